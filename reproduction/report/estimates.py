"""Numbers with 95 % intervals that stay paired: arithmetic on the resamples of `reproduction.report.resampling`.

Every run of a study is judged on the same samples under the same draws of noise, and resampled alike. Each resample
of a number computed from two methods therefore uses the same seeds and groups of samples for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isclose, isfinite, isinf, isnan, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student

from descend.errors import InputError
from descend.report import CONFIDENCE, GroupScores
from reproduction.report.cells import Run
from reproduction.report.resampling import RESAMPLES, Draws, combine, draws
from reproduction.report.results import Setting


class Interval(NamedTuple):
    """A number and its 95 % interval, whose ends are NaN if it is unknown.

    ``over`` says what the interval rests on, if not on all seeds and groups of samples.
    """

    value: float
    low: float = nan
    high: float = nan
    over: str = ""

    def __neg__(self) -> "Interval":
        return Interval(-self.value, -self.high, -self.low, self.over)

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not (isnan(self.low) or isnan(self.high))


@dataclass(frozen=True)
class Number(Draws):
    """A mean over seeds, or a number computed from several, with its resamples.

    Attributes:
        most: How many seeds there are; more than ``seeds`` if some were left out because the other arm lacks them.
        single: Whether its groups are the samples of one clip.
    """

    most: int = 0
    single: bool = False

    def __sub__(self, other: "Number") -> "Number":
        return computed(np.subtract, self, other)

    def times(self, factor: float) -> "Number":
        """A multiple."""
        return computed(lambda part: factor * part, self)

    @property
    def interval(self) -> Interval:
        """The number with its interval; a diverged one has no width."""
        return self.picked(1)

    def picked(self, tried: int) -> Interval:
        """The number with an interval wide enough for the most extreme of several (Bonferroni)."""
        over = f"over {self.seeds} of {self.most} seeds" if self.seeds < self.most else ""
        if not self.groups:
            over = f"{over or 'over seeds'} alone"
        elif self.single:
            over = f"{over or 'over seeds'} and within one clip"
        if tried > 1:
            over = f"{over}{', ' if over else ''}for one picked of {tried}"
        if isinf(self.value):
            return Interval(self.value, self.value, self.value, over)
        with np.errstate(invalid="ignore"):
            low, high = self.ends(tried)
        return Interval(self.value, low, high, over)


def average(parts: Sequence[Number]) -> Number:
    """The mean over cells, resample by resample."""
    return computed(lambda *values: sum(values) / len(values), *parts)


def ahead(ours: Number, theirs: Number, higher: bool) -> Number:
    """How much better ours is, in per cent of theirs: infinite if theirs has diverged, NaN if both have."""
    sign = 1 if higher else -1

    def gained(mine: Any, base: Any) -> Any:
        return np.where(np.isfinite(base), 100 * sign * (mine / base - 1), sign * (mine - base))

    return computed(gained, ours, theirs)


def finite(numbers: Sequence[Number]) -> list[Number]:
    """The finite numbers; those of diverged runs are left out of means over cells."""
    return [one for one in numbers if isfinite(one.value)]


def computed(function: Callable[..., Any], *parts: Number) -> Number:
    """A function of several numbers, applied resample by resample so that they stay paired."""
    return Number(
        **vars(combine(function, *parts)),
        most=max(part.most for part in parts),
        single=any(part.single for part in parts),
    )


@dataclass(frozen=True)
class Robust:
    """A method's last layer against noise, in the mean over its seeds.

    Attributes:
        noise: γ, rising.
        numbers: The metric at each level.
        higher: Whether more is better.
    """

    noise: list[float]
    numbers: list[Number]
    higher: bool

    def at(self, level: float) -> Number:
        """The metric at a level; NaN if it was not judged there."""
        for known, number in zip(self.noise, self.numbers, strict=True):
            if isclose(known, level, abs_tol=1e-9):
                return number
        return self.numbers[0].times(nan)

    def mean(self, above: float = -1.0) -> Number:
        """The plain mean over the levels above one, or the last level if none is."""
        chosen = [number for level, number in zip(self.noise, self.numbers, strict=True) if level > above]
        return average(chosen or self.numbers[-1:])

    def summary(self, most: float = inf) -> Number:
        """The number of the paper's tables: the mean of an error, or the area under an accuracy over γ.

        Args:
            most: The highest level of the area; ignored if fewer than two levels lie below it.
        """
        places_kept = [place for place, level in enumerate(self.noise) if level <= most + 1e-9]
        places_kept = places_kept if len(places_kept) > 1 else list(range(len(self.noise)))
        if not self.higher or len(places_kept) < 2:
            return self.mean()
        steps = np.diff([self.noise[place] for place in places_kept])
        weights = np.append(steps, 0) / 2 + np.append(0, steps) / 2
        numbers = [self.numbers[place] for place in places_kept]
        return computed(lambda *values: sum(w * v for w, v in zip(weights, values, strict=True)), *numbers)


def together(*arms: Sequence[Run]) -> list[Robust]:
    """Several methods' values against noise, from the seeds that all have, so that they pair by seed."""
    most = max(map(len, arms))
    return [robust(runs, most) for runs in same_seeds(*arms)]


def same_seeds(*arms: Sequence[Run]) -> list[tuple[Run, ...]]:
    """The runs of the seeds that all arms have; without any, one run each, whose difference has no interval."""
    shared = set.intersection(*({run.seed for run in runs} for runs in arms))
    return [tuple(run for run in runs if run.seed in shared) or tuple(runs[:1]) for runs in arms]


@lru_cache(maxsize=1024)
def robust(runs: tuple[Run, ...], most: int = 0) -> Robust:
    """A method's values against noise, from the seeds of one setting, at the levels that all were judged at.

    Args:
        runs: One for each seed.
        most: How many seeds there would be, were none left out.
    """
    higher = runs[0].higher
    known = [dict(zip(run.summary.noise, run.summary.values, strict=True)) for run in runs]
    noise = sorted(level for level in known[0] if all(level in values for values in known))
    if not noise:
        names = ", ".join(run.name for run in runs)
        raise InputError(f"{names} were judged at no common noise level. Remove their lines; they are run again.")
    resampled = _resampled([run.groups for run in runs], noise)
    groups = len(runs[0].groups.counts) if runs[0].groups else 1
    single = any(run.groups.single for run in runs if run.groups)
    numbers = []
    for place, level in enumerate(noise):
        values = [values[level] for values in known]
        if all(map(isfinite, values)):
            value, by_seeds, by_groups = np.float64(np.mean(values)), *(part[:, place] for part in resampled)
        else:  # a diverged run counts as worst and stays in its method's mean
            value = np.float64(-inf if higher else inf)
            by_seeds = by_groups = np.full(RESAMPLES, value)
        numbers.append(Number(value, by_seeds, by_groups, len(runs), groups, max(most, len(runs)), single))
    return Robust(noise, numbers, higher)


@lru_cache(maxsize=1024)
def along(runs: tuple[Run, ...], level: float, most: int = 0) -> list[Number]:
    """f_0 … f_L at a noise level, from the seeds of one setting; resampled over seeds alone if a run has no groups."""
    unknown = [nan] * (runs[0].depth + 1)
    return rows_along([run.losses(level) or unknown for run in runs], [run.layers.get(level) for run in runs], most)


def rows_along(
    rows: Sequence[Sequence[float]], tables: Sequence[GroupScores | None] = (), most: int = 0
) -> list[Number]:
    """A quantity along the layers, from a row for each seed and, if all have one, its table of groups."""
    layers = range(min(map(len, rows), default=0))
    scores = [table for table in tables if table and set(layers) <= set(table.noise.tolist())]
    grouped = len(scores) == len(rows) and all(table.like(scores[0]) for table in scores[1:])
    groups = len(scores[0].counts) if grouped and scores else 0
    if not grouped:  # two equal groups add no variance, so only seeds vary
        scores = [
            GroupScores(np.array(layers), False, np.ones(2), np.array([[row[i]] * 2 for i in layers])) for row in rows
        ]
    by_seeds, by_groups = _resampled(scores, layers)
    means = [np.float64(np.mean([row[i] for row in rows])) for i in layers]
    single = grouped and any(table.single for table in scores)
    return [
        Number(mean, by_seeds[:, i], by_groups[:, i], len(rows), groups, most, single)
        for i, mean in zip(layers, means, strict=True)
    ]


def _resampled(tables: Sequence[GroupScores | None], levels: Sequence[float]) -> list[np.ndarray]:
    """Resamples over seeds and over groups, each (RESAMPLES, levels); NaN if there is too little to resample."""
    unknown = np.full((RESAMPLES, len(levels)), nan)
    usable = [table for table in tables if table and set(levels) <= set(table.noise.tolist())]
    if not usable or len(usable) < len(tables) or not all(table.like(usable[0]) for table in usable[1:]):
        return [unknown, unknown]
    places = [usable[0].noise.tolist().index(level) for level in levels]

    def every(values: np.ndarray, _: np.ndarray) -> np.ndarray:
        """All levels at once, each a statistic of its own."""
        return values[..., places]

    resampled = draws(usable, every, np.random.default_rng(0))
    parts = (resampled.over_seeds, resampled.over_groups)
    return [part if part.ndim == 2 else unknown for part in parts]


def advantage(ours: Number, theirs: Number, higher: bool) -> Number:
    """How much better ours is: accuracies in percentage points, errors in per cent of theirs."""
    return (ours - theirs).times(100) if higher else ahead(ours, theirs, higher)


def unit(higher: bool) -> str:
    """The unit of `advantage`."""
    return " points" if higher else " %"


def by_level(ours: Sequence[Run], theirs: Sequence[Run], upto: float = inf) -> dict[float, Number]:
    """The `advantage` at each level of test noise up to one."""
    mine, base = together(ours, theirs)
    return {level: advantage(mine.at(level), base.at(level), mine.higher) for level in mine.noise if level <= upto}


def outside(ours: Sequence[Run], theirs: Sequence[Run], beyond: float) -> Number:
    """The `advantage` averaged over test noise stronger than a level."""
    mine, base = together(ours, theirs)
    return advantage(mine.mean(above=beyond), base.mean(above=beyond), mine.higher)


def gain(setting: Setting, arm: str = "constrained", over: str = "erm") -> Number:
    """How much better an arm is than another, in per cent of the other's number in the paper's tables."""
    ours, theirs = together(setting.runs(arm), setting.runs(over))
    return ahead(ours.summary(setting.reach), theirs.summary(setting.reach), ours.higher)


def over_seeds(values: Sequence[float], over: str = "over seeds alone") -> Interval:
    """The mean of independent numbers, such as seeds or prompts, with Student's t; one alone has no interval."""
    if not values or not all(map(isfinite, values)):
        return Interval(nan, over=over)
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, over=over)
    spread = float(np.std(values, ddof=1)) / sqrt(len(values))
    reach = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread
    return Interval(mean, mean - reach, mean + reach, over)


def share(count: int, total: int) -> Interval:
    """A share of cells, with Clopper and Pearson's interval."""
    interval = binomtest(count, total).proportion_ci(CONFIDENCE, method="exact")
    return Interval(count / total, float(interval.low), float(interval.high))
