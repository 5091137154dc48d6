"""Hugging Face classifiers with every layer read by the model's own head."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from descend.errors import InputError
from descend.models.layered import LayeredModel


def _distilbert(model: Any, hidden: Tensor) -> Tensor:
    return model.classifier(model.dropout(F.relu(model.pre_classifier(hidden[:, 0]))))


def _bert(model: Any, hidden: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.bert.pooler(hidden)))


def _roberta(model: Any, hidden: Tensor) -> Tensor:
    return model.classifier(hidden)


FAMILIES: dict[str, Callable[[Any, Tensor], Tensor]] = {"distilbert": _distilbert, "bert": _bert, "roberta": _roberta}
"""By ``config.model_type``, how a classifier's own head makes logits (B, C) of one hidden state (B, T, H). The
embeddings are the library's `get_input_embeddings`, the layers' outputs its hidden states; only heads have no common
name."""


class LayeredClassifier(LayeredModel, nn.Module):
    """A Hugging Face sequence classifier, its every layer's output read by its own head.

    h_0 is the embedding output and h_l the output of block l, as the library's ``output_hidden_states`` gives them.
    What is trained and saved is the classifier itself, `network`.

    Args:
        network: A classifier of one of `FAMILIES`, such as `AutoModelForSequenceClassification` loads it.

    Raises:
        InputError: If the classifier's family is not in the table, or it is no classifier.
    """

    main_input_name = "input_ids"

    def __init__(self, network: PreTrainedModel):
        super().__init__()
        kind = network.config.model_type
        if kind not in FAMILIES:
            raise InputError(
                f"model_type must be one of {', '.join(FAMILIES)}; got {kind!r}. To add a family, give "
                "descend.models.classifiers.FAMILIES a row with its head: the logits it makes of one hidden state."
            )
        if not type(network).__name__.endswith("ForSequenceClassification"):
            raise InputError(
                f"expected a sequence classifier; got {type(network).__name__}. Load it with "
                "AutoModelForSequenceClassification."
            )
        self.network = network
        self.head = FAMILIES[kind]

    @property
    def config(self) -> Any:
        """The classifier's own configuration."""
        return self.network.config

    @property
    def saved(self) -> PreTrainedModel:
        """The classifier: what is trained stays the library's own."""
        return self.network

    @property
    def depth(self) -> int:
        """L, the number of blocks."""
        return self.network.config.num_hidden_layers

    def get_input_embeddings(self) -> nn.Module:
        """The classifier's word embedding, before positions and any norm."""
        return self.network.get_input_embeddings()

    def forward(self, **inputs: Any) -> SequenceClassifierOutput:
        """The classifier's own forward pass."""
        return self.network(**inputs)

    def layer_outputs(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """h_0 … h_L, each (B, T, H), of a tokenizer's ``input_ids``, ``attention_mask`` and what else it gives."""
        return self.network.base_model(**inputs, output_hidden_states=True).hidden_states

    def readout(self, hidden: Tensor) -> Tensor:
        """The logits (B, C) that the classifier's head reads from one layer's output (B, T, H)."""
        return self.head(self.network, hidden)
