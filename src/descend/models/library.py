"""What all models of the library have in common, whatever reads their layers."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from descend.errors import InputError
from descend.models.layered import LayeredModel


class LibraryModel(LayeredModel, nn.Module):
    """A Hugging Face model whose layers are read by its own head.

    What is trained and saved is the library's model itself, `network`, with adapters of PEFT or without.

    Raises:
        InputError: If adapters put virtual tokens before the text.
    """

    main_input_name = "input_ids"

    def __init__(self, network: PreTrainedModel):
        super().__init__()
        self.network = network
        if getattr(getattr(network, "active_peft_config", None), "is_prompt_learning", False):
            raise InputError(
                "expected adapters in the layers, such as LoRA's; got virtual tokens before the text, whose layers "
                "can't be read by the head alone."
            )
        self.train(network.training)  # as it came: a loaded model is in evaluation mode

    @property
    def library(self) -> Any:
        """The library's model, without what PEFT has wrapped around it."""
        inside = getattr(self.network, "get_base_model", None)
        return inside() if inside else self.network

    @property
    def config(self) -> Any:
        """The model's own configuration."""
        return self.library.config

    @property
    def saved(self) -> PreTrainedModel:
        """What is trained stays the library's own."""
        return self.network

    @property
    def depth(self) -> int:
        """L, the number of blocks."""
        return self.config.num_hidden_layers

    def get_input_embeddings(self) -> nn.Module:
        """The word embedding, before positions and any norm."""
        return self.library.get_input_embeddings()

    def forward(self, **inputs: Any) -> ModelOutput:
        """The library's own forward pass."""
        return self.network(**inputs)
