"""Noise: its size, its own generator, and draws that belong to a sample."""

import pytest
import torch

from descend.errors import InputError
from descend.noise import GaussianNoise, paired_draws

CLEAN = torch.full((4, 3, 100, 256), 0.5)


@pytest.mark.parametrize(("level", "sigma"), [(0.8, 0.2), (2.0, 0.1)])
def test_the_standard_deviation_is_gamma_sigma_and_the_mean_zero(level, sigma):
    difference = GaussianNoise(level, sigma, seed=3)(CLEAN) - CLEAN
    assert difference.std().item() == pytest.approx(level * sigma, rel=0.01)
    assert difference.mean().item() == pytest.approx(0, abs=level * sigma * 0.01)


def test_level_zero_leaves_the_data_alone_and_draws_nothing():
    noise = GaussianNoise(0.0, 0.2)
    assert noise(CLEAN) is CLEAN
    assert noise.state_dict() == {"generator": None}


@pytest.mark.parametrize("level", [0.0, 0.8])
def test_the_global_generator_does_not_move(level):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    GaussianNoise(level, 0.2)(CLEAN)
    paired_draws([1, 2], (3, 4), seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_the_same_whatever_gamma():
    kept = []
    for level in (0.0, 0.3, 2.0):
        torch.manual_seed(5)
        noise = GaussianNoise(level, 0.2)
        kept.append([torch.dropout(torch.ones_like(noise(CLEAN)), 0.5, True) for _ in range(2)])
    for others in kept[1:]:
        assert all(torch.equal(one, other) for one, other in zip(kept[0], others, strict=True))


def test_draws_are_fresh_and_depend_on_the_seed_alone():
    noise, again, other = (GaussianNoise(0.5, 0.2, seed) for seed in (1, 1, 2))
    first, second = noise(CLEAN), noise(CLEAN)
    assert not torch.equal(first, second)
    assert torch.equal(again(CLEAN), first)
    assert torch.equal(again(CLEAN), second)
    assert not torch.equal(other(CLEAN), first)


def test_draws_do_not_depend_on_how_a_step_is_cut_into_micro_batches():
    whole, parts = GaussianNoise(0.5, 0.2, 1), GaussianNoise(0.5, 0.2, 1)
    expected = torch.cat([whole(CLEAN), whole(CLEAN)])
    assert torch.equal(torch.cat([parts(clean) for clean in [*CLEAN.split(1), *CLEAN.split(2)]]), expected)


def test_a_restored_noise_goes_on_bit_equal():
    noise = GaussianNoise(0.5, 0.2, 1)
    noise(CLEAN)
    state = noise.state_dict()
    expected = [noise(CLEAN) for _ in range(2)]
    restored = GaussianNoise(0.5, 0.2, 99)
    restored.load_state_dict(state)
    # Saved again before a draw, it is still where it was.
    twice = GaussianNoise(0.5, 0.2, 99)
    twice.load_state_dict(restored.state_dict())
    for one in (restored, twice):
        assert all(torch.equal(one(CLEAN), other) for other in expected)


def test_a_noise_restored_to_its_start_starts_again():
    noise = GaussianNoise(0.5, 0.2, 1)
    start = noise.state_dict()
    first = noise(CLEAN)
    noise.load_state_dict(start)
    assert torch.equal(noise(CLEAN), first)


def test_noise_keeps_the_data_type():
    assert GaussianNoise(0.5, 0.2)(CLEAN.bfloat16()).dtype == torch.bfloat16


def test_paired_draws_depend_on_the_seed_and_the_index_alone():
    together = paired_draws([7, 3, 5], (2, 10), seed=4)
    assert together.shape == (3, 2, 10)
    for place, index in enumerate([7, 3, 5]):
        assert torch.equal(paired_draws([index], (2, 10), seed=4)[0], together[place])
    assert not torch.equal(paired_draws([7], (2, 10), seed=5)[0], together[0])
    assert not torch.equal(together[0], together[1])


def test_paired_draws_meet_no_generator_of_training():
    def first(seed: int) -> float:
        return torch.randn(1, generator=torch.Generator().manual_seed(seed)).item()

    # A run's own generator (of weights and order) starts from its seed, that of its noise from 8191 times it.
    training = {first(seed * factor) for seed in range(100) for factor in (1, 8191)}
    training |= {GaussianNoise(1.0, 1.0, seed)(torch.zeros(1)).item() for seed in range(100)}
    paired = {draw.item() for seed in (0, 1, 2) for draw in paired_draws(range(500), (1,), seed)}
    assert len(paired) == 1500
    assert not training & paired
    assert paired_draws([5], (1,), seed=0).item() == first(1_000_003 + 5)


def test_paired_draws_are_standard_normal():
    draws = paired_draws(range(50), (3, 1000), seed=0)
    assert draws.std().item() == pytest.approx(1, rel=0.01)
    assert draws.mean().item() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("level", [-0.1, float("nan")])
def test_a_negative_level_is_refused(level):
    with pytest.raises(InputError, match=f"at least 0, in std of the clean data; got {level}"):
        GaussianNoise(level, 0.2)
