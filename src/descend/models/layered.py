"""The one definition of "layer l's output": the contract that every model passes."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.utils import ModelOutput


@dataclass
class Reconstruction(ModelOutput):
    """What a denoiser returns.

    Attributes:
        reconstruction: The last layer's prediction, (B, T, N, P) as the patches given.
        hidden_states: h_0 … h_L if they were asked for.
    """

    reconstruction: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LayeredModel:
    """A model whose L+1 layer outputs are all read by one shared readout.

    h_0 is the embedded input and h_l the output of block l before any final norm; a norm that comes after the last
    block belongs to the readout. Every model keeps three laws, held by one test over all of them: there are L+1
    outputs; ``readout(h_L)`` is the model's own output; ``predictions`` are ``readout`` of ``layer_outputs``.
    """

    first_layer: int = 0
    """Where the default chain of constraints starts: 0, or 1 for a model whose exit 0 is the noisy input itself."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """L, the number of layers."""

    @property
    def saved(self) -> Any:
        """What `save_pretrained` and `from_pretrained` know: the model itself, or the library's inside it."""
        return self

    @property
    def library(self) -> Any:
        """The module whose ``forward`` names the fields of a batch: the model itself, or the library's inside it."""
        return self

    @property
    def limits(self) -> dict[str, int]:
        """What a sample must keep to, where that can be told: ``labels``, ``vocabulary``, ``length``."""
        return {}

    @property
    def blocks(self) -> Iterable[nn.Module]:
        """The layers' modules, by which parallel training shards a model; none where layers are not modules."""
        return ()

    @abstractmethod
    def get_input_embeddings(self) -> nn.Module:
        """The module whose output is x, what noise is added to: the library's word embedding, or the input itself."""

    @abstractmethod
    def layer_outputs(self, inputs: Any) -> tuple[Tensor, ...]:
        """h_0 … h_L, L+1 tensors of one shape, of what the task gives: patches, or a tokenizer's fields."""

    @abstractmethod
    def readout(self, hidden: Tensor) -> Tensor:
        """The prediction read from any one layer's output."""

    def predictions(self, inputs: Any) -> Iterator[Tensor]:
        """The prediction of every layer, L+1 tensors one after the other.

        Where a loss is taken before the next prediction is asked for, the backward pass goes through that loss just
        before its layer, and never holds the gradients of more than one exit. A model whose next layer computes its
        readout anyway shares the work here.
        """
        return (self.readout(hidden) for hidden in self.layer_outputs(inputs))
