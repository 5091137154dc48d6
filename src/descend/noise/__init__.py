"""Noise on a model's input embedding: one mechanism for training, evaluation and inference."""

from descend.noise.base import GaussianNoise, Noise
from descend.noise.draws import SampleDraws
from descend.noise.kinds import LaplaceNoise, TokenDropout, UniformNoise

__all__ = ["GaussianNoise", "LaplaceNoise", "Noise", "SampleDraws", "TokenDropout", "UniformNoise"]
