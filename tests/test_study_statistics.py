"""Intervals, paired comparisons and wins: closed forms, and simulations in which the truth is known."""

import numpy as np
import pytest
from scipy.stats import t as student

from descend.errors import InputError
from descend.study import statistics
from descend.study.groups import at, auc, mean
from descend.study.statistics import combine, draws, interval, paired, wins

NOISE = [0.0, 1.0, 3.0]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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
        (auc, (rmse[0] + rmse[1]) / 2 + (rmse[1] + rmse[2])),
        (at(3.0), rmse[2]),
    ):
        assert interval([run], statistic, rng()).estimate == pytest.approx(expected)
    plain = interval([table(scores, counts), table(np.array(scores) + 1, counts)], mean, rng())
    assert plain.estimate == pytest.approx((23 + 34 + 66) / 12 + 0.5)
    assert (plain.seeds, plain.groups) == (2, 3)


def test_where_seeds_alone_differ_the_interval_is_students():
    values = np.array([1.0, 2.5, 2.0, 4.0])
    found = interval([table(np.full((3, 5), value)) for value in values], mean, rng())
    width = student.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert (found.high - found.low) / 2 == pytest.approx(width, rel=0.05)
    assert found.estimate == pytest.approx(values.mean()) == pytest.approx((found.low + found.high) / 2)
    assert found.p == pytest.approx(2 * student.sf(found.estimate / (values.std(ddof=1) / 2), 3), rel=0.1)


def test_where_groups_alone_differ_the_interval_is_students():
    values = rng(3).normal(5, 1, size=12)
    found = interval([table(np.tile(values, (3, 1)))] * 3, mean, rng())
    width = student.ppf(0.975, 11) * values.std(ddof=1) / np.sqrt(12)
    assert (found.high - found.low) / 2 == pytest.approx(width, rel=0.05)


def test_large_groups_weigh_more_and_many_are_resampled_in_blocks(monkeypatch):
    run = table([[0.0, 10.0]], [9, 1], noise=[1.0])
    assert interval([run, run], mean, rng()).estimate == 1
    runs = drawn(rng(1), 3, 40, by_seed=0.1, by_group=1)
    whole = interval(runs, mean, rng())
    monkeypatch.setattr(statistics, "BLOCK", 100)
    parts = interval(runs, mean, rng())
    assert parts.high - parts.low == pytest.approx(whole.high - whole.low, rel=0.05)


def test_the_same_generator_gives_the_same_interval():
    runs = drawn(rng(1), 3, 10, by_seed=1, by_group=1)
    assert interval(runs, mean, rng(5)) == interval(runs, mean, rng(5)) != interval(runs, mean, rng(6))


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
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    generator = rng(11)
    covered = []
    for _ in range(400):
        found = interval(drawn(generator, 3, 12, **spreads), mean, generator)
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
    worse = [each | {"scores": [[score + 0.5 for score in each["scores"][0]]]} for each in runs]
    found = paired(worse, runs, mean, rng(), higher_is_better=False)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (found.p, found.verdict) == (pytest.approx(0), "worse")
    assert paired(worse, runs, mean, rng(), higher_is_better=True).verdict == "better"
    alone = interval(runs, mean, rng())
    assert alone.high - alone.low > 1
    same = paired(runs, runs, mean, rng(), higher_is_better=True)
    assert (same.estimate, same.low, same.high, same.p, same.verdict) == (0, 0, 0, 1, "equal")


def test_the_verdict_is_that_of_the_interval_and_p():
    said = set()
    for seed in range(60):
        generator = rng(seed)
        ours, theirs = (drawn(generator, 3, 15, truth=truth, by_seed=0.1, own=0.4) for truth in (2.0, 2.2))
        found = paired(ours, theirs, mean, generator, higher_is_better=False)
        assert (found.verdict == "equal") == (found.low <= 0 <= found.high) == (found.p >= 0.05)
        assert found.verdict == "equal" or (found.verdict == "better") == (found.estimate < 0)
        said.add(found.verdict)
    assert said == {"better", "equal"}


def test_a_false_alarm_is_as_rare_as_it_says(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    generator, alarms = rng(4), []
    for _ in range(300):
        ours, theirs = (drawn(generator, 3, 12, by_seed=0.5, own=0.5) for _ in range(2))
        alarms.append(paired(ours, theirs, mean, generator, higher_is_better=True).verdict != "equal")
    assert np.mean(alarms) <= 0.08


def test_numbers_made_of_several_keep_their_pairs():
    cells = [drawn(rng(seed), 3, 8 + seed, truth=3.0, by_seed=0.4, by_group=1.0) for seed in range(4)]
    parts = [draws(cell, mean, rng()) for cell in cells]
    average = combine(lambda *values: np.mean(values, axis=0), *parts).estimate
    assert average.estimate == pytest.approx(np.mean([part.value for part in parts]))
    assert average.high - average.low < min(one.high - one.low for one in (part.estimate for part in parts))
    assert (average.seeds, average.groups) == (3, 8)
    doubled = [table(2 * np.array(run["scores"]), noise=[1.0]) for run in cells[0]]
    quotient = combine(np.divide, draws(doubled, mean, rng()), parts[0]).estimate
    assert (quotient.estimate, quotient.low, quotient.high) == pytest.approx((2, 2, 2))


def test_one_seed_or_one_group_leaves_the_interval_unknown():
    for runs in (drawn(rng(), 1, 9, own=1), drawn(rng(), 3, 1, own=1)):
        found = interval(runs, mean, rng())
        assert np.isfinite(found.estimate) and np.isnan([found.low, found.high, found.p]).all()
        assert paired(runs, runs, mean, rng(), higher_is_better=True).verdict == "unknown"


def test_an_arm_that_diverged_is_the_worse_one():
    fine = drawn(rng(), 3, 5, by_seed=1, by_group=1)
    broken = [*fine[:2], table([[1, np.nan, 1, 1, 1]], noise=[1.0])]
    assert np.isnan(interval(broken, mean, rng()).estimate)
    for higher in (True, False):
        assert paired(broken, fine, mean, rng(), higher_is_better=higher).verdict == "worse"
        assert paired(fine, broken, mean, rng(), higher_is_better=higher).verdict == "better"
        assert paired(broken, broken, mean, rng(), higher_is_better=higher).verdict == "unknown"


# --- wins


def test_wins_by_hand():
    cells = {str(place): (1.0 + place, 1.5 + 2 * place) for place in range(9)} | {"lost": (9.0, 8.9), "tie": (3.0, 3.0)}
    found = wins(cells, higher_is_better=False)
    assert (found.wins, found.losses, found.ties, found.cells) == (9, 1, 1, 11)
    assert found.p_sign == pytest.approx(2 * (1 + 10) / 2**10)
    assert found.p_wilcoxon == pytest.approx(2 * 2 / 2**10)  # the smallest rank alone is lost: 2 of 2¹⁰ are as extreme
    other_way = wins(cells, higher_is_better=True)
    assert (other_way.wins, other_way.losses) == (1, 9) and other_way.p_sign == found.p_sign
    level = wins({"a": (1.0, 1.0)}, higher_is_better=True)
    assert (level.ties, level.p_sign, level.p_wilcoxon) == (1, 1, 1)


def test_cells_that_diverged_are_counted_and_named():
    nan, inf = float("nan"), float("inf")
    cells = {"a": (1.0, 2.0), "b": (nan, 2.0), "c": (1.0, inf), "d": (inf, inf), "e": (nan, nan), "f": (1.0, 1.5)}
    found = wins(cells, higher_is_better=False)
    assert (found.wins, found.losses, found.ties) == (3, 1, 2)
    assert found.diverged == ["b", "d", "e"] and found.diverged_theirs == ["c", "d", "e"]
    # Of four cells the largest differences are one won and one lost, both by divergence.
    assert found.p_sign == pytest.approx(10 / 16) and 0 < found.p_wilcoxon < 1
    assert wins({"b": (-inf, 2.0)}, higher_is_better=True).losses == 1


# --- bad input


def test_what_does_not_compare_is_refused():
    runs = drawn(rng(), 2, 5, own=1)
    other = [table([[1.0] * 5], noise=[2.0]), table([[1.0] * 6], noise=[1.0]), table([[1.0] * 5], [2] * 5, noise=[1.0])]
    for each in other:
        with pytest.raises(InputError, match="same data and noise levels"):
            interval([*runs, each], mean, rng())
    with pytest.raises(InputError, match="seed by seed; got 2 and 1 runs"):
        paired(runs, runs[:1], mean, rng(), higher_is_better=True)
    with pytest.raises(InputError, match="at least one run"):
        interval([], mean, rng())
    with pytest.raises(InputError, match=r"noise 7.0 was not judged; there are 1"):
        interval(runs, at(7.0), rng())
    with pytest.raises(InputError, match="wins are counted over cells"):
        wins({}, higher_is_better=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": [0.0]},
        {"scores": [[1.0, 2.0], [1.0, 2.0], [1.0]]},
        {"scores": [["a", 2.0]] * 3},
        {"counts": [1, 0]},
        {"counts": None},
        {"noise": [], "scores": []},
    ],
)
def test_what_is_no_table_of_groups_is_refused(wrong):
    with pytest.raises(InputError, match=r"table of groups|scores must be one for each"):
        interval([table([[1.0, 2.0]] * 3) | wrong], mean, rng())
    with pytest.raises(InputError, match="table of groups"):
        interval([{key: value for key, value in table([[1.0, 2.0]] * 3).items() if key not in wrong}], mean, rng())
