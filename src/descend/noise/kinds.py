"""Other kinds of noise: uniform, Laplace and token dropout."""

import math

import torch
from torch import Tensor

from descend.errors import InputError
from descend.noise.base import Noise


class UniformNoise(Noise):
    """x̃ = x + ε, ε uniform with the standard deviation of `std`."""

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Uniform numbers from −½ to ½."""
        return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype).sub_(0.5)

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x + √12 std · draw."""
        return super().applied(clean, drawn, math.sqrt(12) * std)


class LaplaceNoise(Noise):
    """x̃ = x + ε, ε from the Laplace distribution with the standard deviation of `std`."""

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A random sign times an exponential draw of mean 1."""
        size = torch.empty_like(like).exponential_(generator=generator)
        return size * (torch.randint(2, like.shape, generator=generator, device=like.device) * 2 - 1)

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x + std / √2 · draw."""
        return super().applied(clean, drawn, std / math.sqrt(2))


class TokenDropout(Noise):
    """Sets each token's embedding to 0 with probability γ.

    It takes the arguments of every kind, but ``sigma`` and ``noise_is`` have no effect: its `sigma` is always 1.
    """

    def _set(self, level: float, sigma: float | None, seed: int) -> None:
        super()._set(level, 1.0, seed)
        if level > 1:
            raise InputError(f"the level of token dropout is a probability, at most 1; got {level}.")

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A uniform number from 0 to 1 for each token."""
        return torch.rand(like.shape[:-1], generator=generator, device=like.device)

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x with some tokens at 0."""
        return clean * (drawn >= self.level)[..., None]
