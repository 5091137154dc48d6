"""Gaussian noise on the input, for training and evaluation alike."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from descend.errors import InputError


class GaussianNoise:
    """x̃ = x + ε, ε ~ N(0, (γσ_x)² I), with its own generator.

    The text of the paper gives ε the standard deviation γσ_x, which is what γ means here; its poster reads as a
    variance. A model's dropout and the order of the data don't move when γ does.

    Args:
        level: γ ≥ 0, in standard deviations of the clean data.
        sigma: σ_x, the standard deviation of the clean training data, in the data's units.
        seed: Of the fresh noise in training; every rank of a process group draws its own.

    Raises:
        InputError: If the level is negative.
    """

    def __init__(self, level: float, sigma: float, seed: int = 0):
        if not level >= 0:
            raise InputError(f"noise must be a level γ of at least 0, in std of the clean data; got {level}.")
        self.level, self.sigma = level, sigma
        rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
        self._seed = seed * 8191 + rank
        self._generator: torch.Generator | None = None

    def __call__(self, clean: Tensor) -> Tensor:
        """The data with fresh noise, as training sees it."""
        if self.level == 0:
            return clean
        draw = torch.randn(clean.shape, generator=self._on(clean.device), device=clean.device, dtype=clean.dtype)
        return draw.mul_(self.level * self.sigma).add_(clean)

    def state_dict(self) -> dict[str, Any]:
        """Where the generator stands, so that a resumed run draws what it would have drawn."""
        return {"generator": self._generator.get_state() if self._generator else self._resume}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._generator, self._resume = None, state["generator"]

    _resume: Tensor | None = None

    def _on(self, device: torch.device) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self._seed)
            if self._resume is not None:
                self._generator.set_state(self._resume)
        return self._generator


def paired_draws(indices: Sequence[int], shape: Sequence[int], seed: int) -> Tensor:
    """Unit noise that depends on nothing but the seed and a sample's index, shape (len(indices), *shape).

    In evaluation every model meets the same draw for the same sample, whatever the batch size; a noise level γ scales
    it by γσ_x, so that levels are paired too.
    """
    draws = [
        torch.randn(tuple(shape), generator=torch.Generator().manual_seed((seed + 1) * 1_000_003 + int(index)))
        for index in indices
    ]
    return torch.stack(draws)
