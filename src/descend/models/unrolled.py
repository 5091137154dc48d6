"""The base of UT and DUST: transformers whose layer is a descent step of an energy (App. C).

Both work on sequences: one patch position over T frames is a sequence of T tokens, and the tokens of different
positions never meet. Inputs are noisy patches (B, T, N, P); hidden states are (B, N, T, …).
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from descend.errors import InputError
from descend.models.denoiser import Denoiser


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


class UnrolledModel(Denoiser):
    """The base class of UT and DUST: sequences in, patches out."""

    config: UnrolledConfig

    def __init__(self, config: UnrolledConfig):
        super().__init__(config)
        self.gradient_checkpointing = False

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return self.config.depth

    @property
    def patch_shape(self) -> tuple[None, int]:
        """(N, P): any number of patches, each of ``config.patch_size``² pixels."""
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
