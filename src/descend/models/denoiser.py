"""The base of models that denoise patches of video: UT, DUST and ViT."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from descend.errors import InputError
from descend.models.layered import LayeredModel


@dataclass
class Reconstruction(ModelOutput):
    """The output of a denoiser.

    Attributes:
        reconstruction: The last layer's prediction, (B, T, N, P) like the input patches.
        hidden_states: h_0 … h_L if requested.
    """

    reconstruction: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class Denoiser(LayeredModel, PreTrainedModel):
    """A model from noisy patches (B, T, N, P) to clean ones. Noise is added to the patches themselves.

    Raises:
        InputError: If patches of another size are given.
    """

    main_input_name = "patches"
    supports_gradient_checkpointing = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.input = nn.Identity()

    @property
    @abstractmethod
    def patch_shape(self) -> tuple[int | None, int]:
        """(N, P): the patches of a frame, None for any number, and the pixels of a patch."""

    @abstractmethod
    def layer_states(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield h_0 … h_L of noisy patches (B, T, N, P); a layer runs when its state is asked for."""

    def get_input_embeddings(self) -> nn.Module:
        """An identity on the input patches."""
        return self.input

    def forward(self, patches: Tensor, output_hidden_states: bool = False) -> Reconstruction:
        """Denoise.

        Args:
            patches: Noisy patches (B, T, N, P) in [0, 1] units.
            output_hidden_states: Whether to return h_0 … h_L too.
        """
        states = deque(self.layer_states(patches), maxlen=None if output_hidden_states else 1)
        return Reconstruction(
            reconstruction=self.readout(states[-1]), hidden_states=tuple(states) if output_hidden_states else None
        )

    def layer_outputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """h_0 … h_L of noisy patches (B, T, N, P)."""
        return tuple(self.layer_states(inputs))

    def predictions(self, inputs: Tensor) -> Iterator[Tensor]:
        """The reconstruction (B, T, N, P) of every layer; a layer runs when its prediction is asked for."""
        return map(self.readout, self.layer_states(inputs))

    def probe_inputs(self) -> Tensor:
        """Two small made-up frames."""
        weight, (count, pixels) = next(self.parameters()), self.patch_shape
        drawn = torch.rand(1, 2, count or 4, pixels, generator=torch.Generator().manual_seed(0))
        return drawn.to(weight.device, weight.dtype)

    def _noisy(self, patches: Tensor) -> Tensor:
        """The patches (B, T, N, P) of this model's size, with noise where it is added."""
        count, pixels = self.patch_shape
        if patches.dim() != 4 or patches.shape[-1] != pixels or count not in (None, patches.shape[-2]):
            raise InputError(
                f"patches must have shape (B, T, N, P) with N = {count or 'any number'} and P = {pixels}; got "
                f"{tuple(patches.shape)}."
            )
        return self.input(patches)
