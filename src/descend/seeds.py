"""Seeds: every stream of random numbers that Descend draws from is derived here, from the seed that a person gives.

A stream has a name and numbers that tell its members apart, such as the rank or the epoch.
`numpy.random.SeedSequence` hashes the person's seed, the stream and these numbers into one seed. Streams therefore
share nothing, whatever the seed: neither with each other nor with what Transformers seeds itself from the person's
seed (the weights, dropout and the plain order of samples).

Generators of torch on the CPU use the lower 32 bits of a seed. Two given streams have equal seeds there with a
probability of 2⁻³². The samples of one data set, of which there may be many, have consecutive seeds instead and never
share one.
"""

from enum import IntEnum

import torch
from numpy.random import SeedSequence

from descend.errors import InputError


class Stream(IntEnum):
    """What random numbers are for. A stream keeps its number for ever: with another one runs would not repeat."""

    NOISE = 1
    """Noise in training, by rank."""
    SAMPLE_NOISE = 2
    """Noise that belongs to samples, in evaluation: see `of_sample`."""
    ORDER = 3
    """The order of samples grouped by length, by epoch."""
    TARGETS = 4
    """The share of targets that inner exits see, by rank."""
    PROBES = 5
    """Noise on the texts that linear probes are fitted on."""
    COMPLETIONS = 6
    """Noise on a language model's answers, by the first prompt of the batch."""
    SWEEP = 7
    """What a trial of a sweep draws, by its number."""


def derived(stream: Stream, seed: int, *place: int) -> int:
    """A seed of 64 bits for one member of a stream.

    Args:
        stream: What the numbers are for.
        seed: The person's seed, at least 0.
        *place: Which member of the stream, numbers of at least 0, such as the rank.

    Raises:
        InputError: If the seed is negative.
    """
    if seed < 0:
        raise InputError(f"a seed must be at least 0; got {seed}.")
    low, high = SeedSequence(seed, spawn_key=(stream, *place)).generate_state(2).tolist()
    return high << 32 | low


def of_sample(seed: int, index: int) -> int:
    """The seed of the noise that belongs to sample ``index`` of a data set, another one for each of 2³² samples."""
    return (derived(Stream.SAMPLE_NOISE, seed) + index) % 2**64


def generator_of(stream: Stream, seed: int, *place: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one member of a stream; arguments as those of `derived`."""
    return torch.Generator(device).manual_seed(derived(stream, seed, *place))
