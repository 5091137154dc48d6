"""Seeds: no two streams share one, and each is what it was yesterday."""

import pytest
import torch

from descend import GaussianNoise, InputError
from descend.seeds import Stream, derived, generator_of, of_sample
from descend.tiles import TargetSample
from descend.training.hf_hooks import LengthGrouped

SEEDS = [*range(20), 2**31 - 1, 2**32, 2**63]


def members(seed: int) -> list[int]:
    """The seeds of one run, on eight ranks, over fifty epochs, of a thousand samples and as many places and trials."""
    found = [derived(stream, seed, rank) for stream in (Stream.NOISE, Stream.TARGETS) for rank in range(8)]
    found += [derived(Stream.NOISE, seed, rank, step, part) for rank in (0, 3) for step in range(9) for part in (0, 1)]
    found += [derived(Stream.ORDER, seed, epoch) for epoch in range(50)]
    found += [derived(Stream.SWEEP, seed, trial) for trial in range(50)]
    found += [derived(Stream.COMPLETIONS, seed, start) for start in range(0, 800, 16)]
    found += [derived(Stream.PROBES, seed)]
    return found + [of_sample(seed, index) for index in range(1000)]


def test_no_two_streams_of_a_run_and_no_two_runs_share_a_seed():
    """Of one run also not the lower 32 bits, which are all that torch's generators on the CPU use."""
    every = []
    for seed in SEEDS:
        made = members(seed)
        assert len({each % 2**32 for each in made} - {seed}) == len(made)  # Transformers uses the person's seed itself
        every += made
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("rank", [0, 1])
def test_noise_and_targets_are_those_of_rank_and_place_whatever_was_drawn_before(monkeypatch, rank):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    noise, sample = GaussianNoise(1.0, 1.0, seed=3), TargetSample(0.5, seed=3)
    for place in ((), (5, 2), (5, 1), (5, 2)):  # first in a loop that says no place, then in a trainer
        if place:
            noise.begin(*place)
            sample.begin(*place)
        drawn, chosen = (generator_of(stream, 3, rank, *place) for stream in (Stream.NOISE, Stream.TARGETS))
        for _ in range(2):  # the second pass of a micro-batch continues
            assert torch.equal(noise(torch.zeros(9)), torch.randn(9, generator=drawn))
            order = torch.randperm(9, generator=chosen)[:5]
            assert torch.equal(sample(9, torch.device("cpu")), order.sort().values)


def test_streams_are_the_same_on_every_machine():
    """Pinned: with other values a run would not repeat."""
    assert derived(Stream.NOISE, 0, 0) == 11539782348902174461
    assert LengthGrouped(4, [3, 5, 4], seed=3).generator.initial_seed() == derived(Stream.ORDER, 3, 0)
    assert derived(Stream.ORDER, 3, 7) == 627156372575053629
    assert of_sample(0, 5) == 16452687389592421902


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="at least 0; got -1"):
        derived(Stream.NOISE, -1)
