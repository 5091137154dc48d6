"""Derive the seed of every random stream in Descend from the user's seed.

A stream has a name and numbers that identify its members, such as the rank or the epoch.
`numpy.random.SeedSequence` hashes the user's seed, the stream and these numbers into one seed. The streams are
therefore independent of each other, and of those that Transformers seeds with the user's seed directly (weights,
dropout and the default order of samples).

torch's CPU generators use the lower 32 bits of a seed, so two streams collide with a probability of 2⁻³². A data set
may have many samples; they have consecutive seeds instead, which never collide.
"""

from enum import IntEnum

import torch
from numpy.random import SeedSequence
from torch import distributed

from descend.errors import InputError


class Stream(IntEnum):
    """The purpose of random numbers. Never change a stream's number: earlier runs would not be reproducible."""

    NOISE = 1
    """Noise in training, by rank, optimizer step and micro-batch: see `Draws`."""
    SAMPLE_NOISE = 2
    """Noise in evaluation, by sample: see `of_sample`."""
    ORDER = 3
    """The order of samples grouped by length, by epoch."""
    TARGETS = 4
    """The sample of targets that inner exits are trained on, by rank, optimizer step and micro-batch."""
    PROBES = 5
    """Noise on the texts that linear probes are fitted to."""
    COMPLETIONS = 6
    """Noise while a language model answers prompts, by the number of the batch's first prompt."""
    SWEEP = 7
    """The settings of a sweep's trial, by the trial's number."""
    LAYERS = 8
    """Which rows of a batch pass a block unchanged in LayerSkip's training, by rank, step, micro-batch and block."""
    PREFIX_NOISE = 9
    """Noise on a language model's tokens in lm-eval's tasks, by the hash of the tokens up to each."""
    DEPTH = 10
    """The layer whose loss a step of random depth takes, by step."""
    STATES = 11
    """Noise in evaluation on the state that a layer is given, by layer: the seed of its samples' noise."""


def derived(stream: Stream, seed: int, *place: int) -> int:
    """Derive a 64-bit seed for one member of a stream.

    Args:
        stream: The stream.
        seed: The user's seed, at least 0.
        *place: Numbers of at least 0 that identify the member, such as the rank.

    Raises:
        InputError: If the seed is negative.
    """
    if seed < 0:
        raise InputError(f"a seed must be at least 0; got {seed}.")
    low, high = SeedSequence(seed, spawn_key=(stream, *place)).generate_state(2).tolist()
    return high << 32 | low


def of_sample(seed: int, index: int) -> int:
    """The seed of the noise of sample ``index`` of a data set; different for up to 2³² samples."""
    return (derived(Stream.SAMPLE_NOISE, seed) + index) % 2**64


def generator_of(stream: Stream, seed: int, *place: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one member of a stream; see `derived` for the arguments."""
    return torch.Generator(device).manual_seed(derived(stream, seed, *place))


class Draws:
    """The random numbers of one stream in training, without a state to save.

    A trainer says before each micro-batch where it is. What is drawn then depends on the seed, the rank, the optimizer
    step and the micro-batch alone, so a resumed run draws what it would have drawn. Several draws in one micro-batch
    follow one another, so that two passes of a model do not meet the same noise. In a loop that never calls `begin`
    all draws follow one another.

    Args:
        stream: The stream.
        seed: The user's seed, at least 0.
    """

    def __init__(self, stream: Stream, seed: int):
        self.stream, self.seed = stream, seed
        self.begin()

    def begin(self, *place: int) -> None:
        """Draw from the start of a place on.

        Args:
            *place: The numbers of the optimizer step and of the micro-batch in it, from 0; none for the stream's start.
        """
        self._place = place
        self._generator: torch.Generator | None = None

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """The generator to draw from next, on a device."""
        if self._generator is None or self._generator.device != torch.device(device):
            rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
            self._generator = generator_of(self.stream, self.seed, rank, *self._place, device=device)
        return self._generator
