"""The bases of models that denoise patches of video: `Denoiser`, and `UnrolledModel` for UT and DUST (App. C).

A layer of UT or DUST is a descent step of an energy. Both work on sequences: one patch position over T frames is a
sequence of T tokens, and the tokens of different positions never meet. Their hidden states are (B, N, T, …).
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from descend.errors import InputError
from descend.models.layered import LayeredModel
from descend.models.tied import TiedLayers


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
    def depth(self) -> int:
        """L, the number of layers."""
        return self.config.depth

    @property
    @abstractmethod
    def patch_shape(self) -> tuple[int | None, int]:
        """The number of a frame's patches, None for any, and the pixels of one."""

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
        shape, generator = (1, 2, count or 4, pixels), torch.Generator().manual_seed(0)
        drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
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


def dct_dictionary(side: int, atoms: int) -> Tensor:
    """An (overcomplete) two-dimensional DCT dictionary of patches.

    Args:
        side: Height and width of a patch in pixels.
        atoms: A, a square number; side² gives the orthonormal DCT, more an overcomplete one.

    Returns:
        (side², A): unit-norm atoms as columns, lowest frequencies first.

    Raises:
        InputError: If ``atoms`` is not a square number.
    """
    count = round(atoms**0.5)
    if count**2 != atoms:
        raise InputError(f"atoms must be a square number, the DCT being separable; got {atoms}. Try {count**2}.")
    frequencies, pixels = torch.arange(count, dtype=torch.float64), torch.arange(side, dtype=torch.float64)
    waves = torch.cos(torch.pi * (pixels[:, None] + 0.5) * frequencies / count)
    waves /= waves.norm(dim=0)
    low_first = (frequencies[:, None] + frequencies).flatten().argsort(stable=True)
    return torch.kron(waves, waves)[:, low_first].float()


class UnrolledConfig(PreTrainedConfig):
    """The settings that UT and DUST share.

    Args:
        depth: L, the number of layers.
        patch_size: Height and width of a patch in pixels; P = patch_size².
        tied: Whether all layers share one set of weights (the main text), or each has its own (App. C.4).
    """

    def __init__(self, depth: int = 7, patch_size: int = 16, tied: bool = True, **kwargs: Any):
        if depth < 1:
            raise InputError(f"depth must be at least 1, the number of layers; got {depth}.")
        self.depth = depth
        self.patch_size = patch_size
        self.tied = tied
        super().__init__(**kwargs)


class UnrolledModel(TiedLayers, Denoiser):
    """The base class of UT and DUST: sequences in, patches out."""

    config: UnrolledConfig
    gradient_checkpointing = False

    @property
    def patch_shape(self) -> tuple[None, int]:
        """Any number of patches, and the ``config.patch_size``² pixels of one."""
        return None, self.config.patch_size**2

    @abstractmethod
    def energies(self, inputs: Tensor) -> Tensor:
        """The energy that the layers descend, at h_0 … h_L: see `energy` of UT and of DUST.

        The energy of h_l is computed with the weights of layer l, that of h_0 with those of layer 1. If weights are
        tied, all layers have the same energy.

        Args:
            inputs: Noisy patches (B, T, N, P).

        Returns:
            (L+1, B): the energy of a sequence, averaged over the N patch positions.
        """

    def _init_weights(self, module: nn.Module) -> None:
        """Does nothing: constructors set the DCT. Transformers calls this for weights that a checkpoint lacks."""

    def _sequences(self, patches: Tensor) -> Tensor:
        """The sequences (B, N, T, P) of patches (B, T, N, P)."""
        return self._noisy(patches).transpose(1, 2).contiguous()

    def _run(self, step: Any, *args: Any) -> Any:
        """Call one layer, which computes its activations again in the backward pass with gradient checkpointing."""
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(step, *args)
        return step(*args)
