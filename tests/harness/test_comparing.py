"""Intervals against published numbers, scipy's closed forms and simulated samples."""

from math import comb

import numpy as np
import pytest
from scipy import stats

from descend.harness.evaluating import interval, paired


def pairs(both, wins, losses, neither):
    first = np.repeat([1.0, 1.0, 0.0, 0.0], [both, wins, losses, neither])
    return first, np.repeat([1.0, 0.0, 1.0, 0.0], [both, wins, losses, neither])


def test_newcombes_own_example():
    """Newcombe (1998), Statistics in Medicine 17, 2635-2650: 36, 12, 2 and 0 pairs, method 10."""
    compared = paired(*pairs(36, 12, 2, 0))
    assert (compared.low, compared.high) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    assert (compared.wins, compared.losses) == (12, 2)
    assert compared.p_value == pytest.approx(2 * sum(comb(14, count) for count in range(3)) / 2**14)


@pytest.mark.parametrize("counts", [(7, 5, 1, 4), (10, 0, 0, 10), (0, 20, 0, 0), (0, 0, 20, 0), (1, 0, 0, 0)])
def test_an_interval_has_a_width_around_the_difference_and_turns_around_with_the_models(counts):
    first, second = pairs(*counts)
    one, other = paired(first, second), paired(second, first)
    assert -1 <= one.low <= (first - second).mean() <= one.high <= 1 and one.low < one.high
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low)) and 0 <= one.p_value == other.p_value <= 1


@pytest.mark.slow
def test_the_interval_covers_the_true_difference():
    draws = np.random.default_rng(0).multinomial(60, [0.4, 0.2, 0.1, 0.3], size=1000)
    found = [paired(*pairs(*each)) for each in draws]
    assert 930 <= sum(each.low <= 0.1 <= each.high for each in found) <= 975


def test_one_models_interval_is_wilsons_of_right_and_wrong_and_students_of_other_numbers():
    first, second = np.random.default_rng(0).normal(size=(2, 30))
    compared = paired(first, second)
    assert (compared.low, compared.high) == pytest.approx(stats.ttest_rel(first, second).confidence_interval())
    assert compared.p_value is None and interval(np.array([0.5])) == (-np.inf, np.inf)
    assert interval(first) == pytest.approx(stats.ttest_1samp(first, 0).confidence_interval())
    n, p, z = 50, 0.2, stats.norm.ppf(0.975)
    middle, width = (p + z**2 / 2 / n) / (1 + z**2 / n), z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / 4 / n**2)
    assert interval(np.repeat([1.0, 0.0], [10, 40])) == pytest.approx((middle - width, middle + width))
