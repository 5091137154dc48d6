"""Gains and their intervals against hand calculations."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from descend.jackknife import over_noise
from reproduction.table import BLOCKS, Gain, _blocks, gain, holm, meets


def rows(numbers, scores=None, higher=False, seeds=None, diverged=False):
    """Runs at one noise level: their numbers by seed, and the squared error of each group of one sample."""
    scores = scores or [[value**2] for value in numbers]
    return pd.DataFrame(
        {"seed": list(seeds or range(len(numbers))), "number": numbers, "noise": [[0.5]] * len(numbers)}
        | {"values": [[value] for value in numbers], "higher": higher, "root": not higher, "diverged": diverged}
        | {"counts": [[1] * len(each) for each in scores], "scores": [[each] for each in scores], "gamma": 0.5}
    )


def test_an_interval_over_seeds_is_that_of_a_hand():
    """Plain training has the same number at every seed, so the gain's spread is that of ours alone."""
    found = gain(rows([9.0, 9.5, 10.0]), rows([10.0, 10.0, 10.0]))
    error = 100 * np.std([0.9, 0.95, 1.0], ddof=1) / math.sqrt(3)
    width = student.ppf(0.975, 2) * error
    assert found.value == pytest.approx(5) and found.seeds == 3
    assert (found.low, found.high) == pytest.approx((5 - width, 5 + width))
    assert found.p == pytest.approx(2 * student.sf(5 / error, 2)) and found.verdict == "undecided"


def test_an_interval_over_groups_is_the_jackknife_of_a_hand():
    squares = [60.0, 100.0, 140.0]
    ours, theirs = math.sqrt(np.mean(squares)), 12.0
    found = gain(rows([ours], [squares]), rows([theirs], [[theirs**2] * 3]))
    left = [100 * (1 - math.sqrt(np.mean(np.delete(squares, place))) / theirs) for place in range(3)]
    error = math.sqrt(2 / 3 * sum((each - np.mean(left)) ** 2 for each in left))
    assert found.value == pytest.approx(100 * (1 - ours / theirs)) and (found.seeds, found.groups) == (1, 3)
    assert found.high - found.value == pytest.approx(student.ppf(0.975, 2) * error)


@pytest.mark.parametrize(("count", "tested"), [(4, False), (11, False), (12, True)])
def test_fewer_than_twelve_clips_give_an_interval_and_no_p(count, tested):
    errors = np.random.default_rng(0).uniform(60, 140, (3, count))
    found = gain(rows([9.0, 9.5, 9.1], errors.tolist()), rows([10.0] * 3, (errors + 20).tolist()))
    assert found.low < found.value < found.high
    assert found.tested_p == pytest.approx(found.p if tested else math.nan, nan_ok=True)


def test_variances_add_up_with_satterthwaites_degrees():
    ours, plain = [[8.0, 10.0], [9.0, 11.0], [10.0, 12.5]], [[10.0] * 2] * 3
    values = [math.sqrt(np.mean(each)) for each in ours]
    both = gain(rows(values, ours), rows([math.sqrt(10)] * 3, plain))
    seeds = gain(rows(values), rows([math.sqrt(10)] * 3))

    def error(found, freedom):
        return (found.high - found.value) / student.ppf(0.975, freedom)

    groups = [100 * (1 - np.mean([math.sqrt(run[1 - place]) for run in ours]) / math.sqrt(10)) for place in range(2)]
    parts = (error(seeds, 2) ** 2, np.var(groups, ddof=1) / 2)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2)
    assert error(both, freedom) == pytest.approx(math.sqrt(sum(parts)))


def test_a_gain_needs_shared_seeds_counts_what_diverged_and_knows_which_way_is_up():
    assert math.isnan(gain(rows([1.0], seeds=[0]), rows([1.0], seeds=[1])).value)
    paired = gain(rows([9.0, 1.0], seeds=[0, 7]), rows([10.0], seeds=[0]))
    assert paired.value == pytest.approx(10) and paired.seeds == 1 and math.isnan(paired.low)
    gone = rows([math.inf], diverged=True)
    assert gain(gone, rows([1.0])).verdict == "worse" and gain(rows([1.0]), gone).verdict == "better"
    assert math.isnan(gain(gone, gone).value) and str(gain(gone, rows([1.0]))) == "diverged"
    assert str(Gain(-0.04, -0.5, -0.03)) == "−0.04 % (−0.5 to −0.03)", "a number near 0 shows its side"
    assert gain(rows([0.9], higher=True), rows([0.8], higher=True)).value == pytest.approx(12.5)
    assert over_noise([0, 1, 2], np.array([1.0, 0.5, 0.5]), True) == pytest.approx(1.25)
    assert over_noise([0, 1, 2], np.array([1.0, 2.0, 6.0]), False) == pytest.approx(3)


def test_holms_adjustment():
    """The values of statsmodels' multipletests(method="holm")."""
    assert holm([0.01, 0.04, 0.03, 0.005, math.nan]) == pytest.approx([0.04, 0.09, 0.09, 0.025, 1.0])


@pytest.mark.parametrize(
    ("losses", "met"), [([9.0, 5.55, 4.3], True), ([9.0, 5.56, 4.3], False), ([9, 5.5, 4.4], False)]
)
def test_bounds_are_met_up_to_a_hundredth(losses, met):
    assert meets(losses, alpha=0.22, cap=5.5, first=1) is met


def test_many_groups_become_few_with_the_same_sums():
    groups = {"counts": [1] * 100, "scores": [[float(place) for place in range(100)]], "root": False}
    blocks = _blocks(groups)
    assert len(blocks["counts"]) == BLOCKS and sum(blocks["counts"]) == 100 and sum(blocks["scores"][0]) == 4950
    assert _blocks(groups) == blocks
