"""Noise on a model's input embedding: one mechanism for training, evaluation and inference."""

from descend.noise.base import GaussianNoise, Noise
from descend.noise.draws import SampleDraws
from descend.noise.kinds import Corruption, LaplaceNoise, TokenDropout, UniformNoise

__all__ = ["Corruption", "GaussianNoise", "LaplaceNoise", "Noise", "SampleDraws", "TokenDropout", "UniformNoise"]
