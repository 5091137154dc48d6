"""Intervals that stay paired, and wins: closed forms, and simulations in which the truth is known."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import t as student

from descend.errors import InputError
from descend.report import GroupScores
from descend.results import Groups, parse
from reproduction.report import resampling
from reproduction.report.resampling import Draws, combine, draws
from reproduction.statistics import wins

NOISE = [0.0, 1.0, 3.0]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mean(values, noise):
    return values.mean(-1)


class Estimate(NamedTuple):
    estimate: float
    low: float
    high: float


def told(found: Draws) -> Estimate:
    return Estimate(found.value, *found.ends())


def groups(content: dict) -> Groups:
    return parse(Groups, content, "groups.json", "Remove it, and evaluate again.")


def resampled(runs, generator, statistic=mean) -> Draws:
    return draws([GroupScores.of(groups(run)) for run in runs], statistic, generator)


def interval(runs, generator) -> Estimate:
    """The mean over the noise levels, with its interval."""
    return told(resampled(runs, generator))


def difference(ours, theirs, seed: int = 0) -> Estimate:
    """Of two arms, on the same resamples, as the report has it."""
    return told(combine(np.subtract, *(resampled(arm, rng(seed)) for arm in (ours, theirs))))


def table(scores, counts=None, noise=NOISE, root=False) -> dict:
    """groups.json with these means of each group (G, N)."""
    scores = np.array(scores, dtype=float)
    counts = np.ones(scores.shape[1]) if counts is None else np.array(counts)
    kept = [[None if not np.isfinite(each) else float(each) for each in row] for row in scores * counts]
    return {"noise": list(noise), "root": root, "counts": counts.tolist(), "scores": kept}


def drawn(generator, seeds, groups, *, truth=2.0, by_seed=0.0, by_group=0.0, own=0.0) -> list[dict]:
    """Runs at one noise level: truth + a_s + b_g + e_sg, each normal with these standard deviations."""
    values = truth + by_seed * generator.normal(size=(seeds, 1)) + by_group * generator.normal(size=groups)
    values = values + own * generator.normal(size=(seeds, groups))
    return [table([row], noise=[1.0]) for row in values]


# --- the estimate


def test_the_statistics_by_hand():
    scores, counts = [[4, 9, 1], [16, 9, 0], [25, 16, 9]], [1, 2, 1]
    rmse = np.sqrt([23 / 4, 34 / 4, 66 / 4])
    run = table(scores, counts, root=True)
    for statistic, expected in (
        (mean, rmse.mean()),
        (lambda values, noise: np.trapezoid(values, noise, axis=-1), (rmse[0] + rmse[1]) / 2 + (rmse[1] + rmse[2])),
        (lambda values, noise: values[..., 2], rmse[2]),
    ):
        assert resampled([run], rng(), statistic).value == pytest.approx(expected)
    plain = resampled([table(scores, counts), table(np.array(scores) + 1, counts)], rng())
    assert plain.value == pytest.approx((23 + 34 + 66) / 12 + 0.5)
    assert (plain.seeds, plain.groups) == (2, 3)


def test_where_seeds_alone_differ_the_interval_is_students():
    values = np.array([1.0, 2.5, 2.0, 4.0])
    found = interval([table(np.full((3, 5), value)) for value in values], rng())
    width = student.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert (found.high - found.low) / 2 == pytest.approx(width, rel=0.05)
    assert found.estimate == pytest.approx(values.mean()) == pytest.approx((found.low + found.high) / 2)


def test_where_groups_alone_differ_the_interval_is_students():
    values = rng(3).normal(5, 1, size=12)
    found = interval([table(np.tile(values, (3, 1)))] * 3, rng())
    width = student.ppf(0.975, 11) * values.std(ddof=1) / np.sqrt(12)
    assert (found.high - found.low) / 2 == pytest.approx(width, rel=0.05)


def test_large_groups_weigh_more_and_many_are_resampled_in_blocks(monkeypatch):
    run = table([[0.0, 10.0]], [9, 1], noise=[1.0])
    assert interval([run, run], rng()).estimate == 1
    runs = drawn(rng(1), 3, 40, by_seed=0.1, by_group=1)
    whole = interval(runs, rng())
    monkeypatch.setattr(resampling, "BLOCK", 100)
    parts = interval(runs, rng())
    assert parts.high - parts.low == pytest.approx(whole.high - whole.low, rel=0.05)


def test_the_same_generator_gives_the_same_interval():
    runs = drawn(rng(1), 3, 10, by_seed=1, by_group=1)
    assert interval(runs, rng(5)) == interval(runs, rng(5)) != interval(runs, rng(6))


@pytest.mark.parametrize(
    ("spreads", "most"),
    [
        ({"by_seed": 1.0}, 0.985),
        ({"by_group": 1.0}, 0.985),
        ({"by_seed": 0.3, "by_group": 1.0, "own": 0.5}, 0.995),
        ({"own": 1.0}, 1.0),  # counted twice: on the safe side
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_the_interval_covers_the_truth_as_often_as_it_says(spreads, most, monkeypatch):
    monkeypatch.setattr(resampling, "RESAMPLES", 300)
    generator = rng(11)
    covered = []
    for _ in range(400):
        found = interval(drawn(generator, 3, 12, **spreads), generator)
        covered.append(found.low <= 2.0 <= found.high)
    assert 0.92 <= np.mean(covered) <= most  # 0.95 ± 3 standard errors is 0.917 … 0.983


def test_percentiles_of_three_seeds_would_cover_it_far_too_seldom():
    generator, covered = rng(11), []
    for _ in range(400):
        values = np.array([run["scores"][0] for run in drawn(generator, 3, 12, by_seed=1.0)])
        rows = np.arange(300)[:, None]
        over_groups = generator.multinomial(12, np.full(12, 1 / 12), 300) @ values.T / 12
        low, high = np.quantile(over_groups[rows, generator.integers(3, size=(300, 3))].mean(1), (0.025, 0.975))
        covered.append(low <= 2.0 <= high)
    assert 0.66 <= np.mean(covered) <= 0.80


# --- pairs


def test_what_both_arms_share_falls_out_of_their_difference():
    runs = drawn(rng(2), 3, 20, by_seed=1.0, by_group=3.0)
    more = [each | {"scores": [[score + 0.5 for score in each["scores"][0]]]} for each in runs]
    found = difference(more, runs)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    alone = interval(runs, rng())
    assert alone.high - alone.low > 1
    same = difference(runs, runs)
    assert (same.estimate, same.low, same.high) == (0, 0, 0)


def test_a_false_alarm_is_as_rare_as_it_says(monkeypatch):
    monkeypatch.setattr(resampling, "RESAMPLES", 300)
    generator, alarms, found = rng(4), [], []
    for seed in range(300):
        ours, theirs, others = (drawn(generator, 3, 12, truth=truth, by_seed=0.5, own=0.5) for truth in (2, 2, 5))
        same, apart = difference(ours, theirs, seed), difference(ours, others, seed)
        alarms.append(not same.low <= 0 <= same.high)
        found.append(apart.high < 0)
    assert np.mean(alarms) <= 0.08 and np.mean(found) >= 0.9


def test_numbers_made_of_several_keep_their_pairs():
    cells = [drawn(rng(seed), 3, 8 + seed, truth=3.0, by_seed=0.4, by_group=1.0) for seed in range(4)]
    parts = [resampled(cell, rng()) for cell in cells]
    mixed = combine(lambda *values: np.mean(values, axis=0), *parts)
    average = told(mixed)
    assert average.estimate == pytest.approx(np.mean([part.value for part in parts]))
    assert average.high - average.low < min(one.high - one.low for one in map(told, parts))
    assert (mixed.seeds, mixed.groups) == (3, 8)
    doubled = [table(2 * np.array(run["scores"]), noise=[1.0]) for run in cells[0]]
    quotient = told(combine(np.divide, resampled(doubled, rng()), parts[0]))
    assert (quotient.estimate, quotient.low, quotient.high) == pytest.approx((2, 2, 2))


def test_one_seed_or_one_group_leaves_the_interval_unknown():
    for runs in (drawn(rng(), 1, 9, own=1), drawn(rng(), 3, 1, own=1)):
        found = interval(runs, rng())
        assert np.isfinite(found.estimate) and np.isnan([found.low, found.high]).all()
        assert np.isnan(difference(runs, runs).low)


def test_a_run_that_diverged_leaves_no_number():
    fine = drawn(rng(), 3, 5, by_seed=1, by_group=1)
    broken = [*fine[:2], table([[1, np.nan, 1, 1, 1]], noise=[1.0])]
    for found in (interval(broken, rng()), difference(broken, fine), difference(fine, broken)):
        assert np.isnan([found.estimate, found.low, found.high]).all()


# --- wins


def test_wins_by_hand():
    cells = [*((1.0 + place, 1.5 + 2 * place) for place in range(9)), (9.0, 8.9), (3.0, 3.0)]
    found = wins(cells, higher_is_better=False)
    assert (found.wins, found.losses, found.ties) == (9, 1, 1)
    assert found.p_sign == pytest.approx(2 * (1 + 10) / 2**10)
    other_way = wins(cells, higher_is_better=True)
    assert (other_way.wins, other_way.losses) == (1, 9) and other_way.p_sign == found.p_sign
    level = wins([(1.0, 1.0)], higher_is_better=True)
    assert (level.ties, level.p_sign) == (1, 1)


def test_cells_that_diverged_are_lost():
    nan, inf = float("nan"), float("inf")
    cells = [(1.0, 2.0), (nan, 2.0), (1.0, inf), (inf, inf), (nan, nan), (1.0, 1.5)]
    found = wins(cells, higher_is_better=False)
    assert (found.wins, found.losses, found.ties) == (3, 1, 2)
    assert found.p_sign == pytest.approx(10 / 16)
    assert wins([(-inf, 2.0)], higher_is_better=True).losses == 1


# --- bad input


def test_what_does_not_compare_is_refused():
    runs = drawn(rng(), 2, 5, own=1)
    other = [table([[1.0] * 5], noise=[2.0]), table([[1.0] * 6], noise=[1.0]), table([[1.0] * 5], [2] * 5, noise=[1.0])]
    for each in other:
        with pytest.raises(InputError, match=r"data.*noise"):
            interval([*runs, each], rng())
    with pytest.raises(InputError, match="at least one run"):
        interval([], rng())
    with pytest.raises(InputError, match="cells"):
        wins([], higher_is_better=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": [0.0]},
        {"scores": [[1.0, 2.0], [1.0, 2.0], [1.0]]},
        {"scores": [["a", 2.0]] * 3},
        {"counts": [1, 0]},
        {"counts": None},
    ],
)
def test_what_is_no_table_of_groups_is_refused(wrong):
    with pytest.raises(InputError, match=r"groups\.json"):
        groups(table([[1.0, 2.0]] * 3) | wrong)
    with pytest.raises(InputError, match=r"groups\.json .* lacks"):
        groups({key: value for key, value in table([[1.0, 2.0]] * 3).items() if key not in wrong})
