"""Numbers with 95 % intervals that stay paired: arithmetic on the resamples of `descend.study.statistics`.

Every run of a study is judged on the same samples under the same draws of noise, and resampled alike: whatever is
computed from two methods on one data set comes from the same seeds and groups of samples in each resample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, isinf, isnan, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student

from descend.report.study.cells import Run
from descend.study.statistics import CONFIDENCE, RESAMPLES, Draws, combine, draws


class Interval(NamedTuple):
    """A number and its 95 % interval, whose ends are NaN where nothing is known of it."""

    value: float
    low: float = nan
    high: float = nan

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not (isnan(self.low) or isnan(self.high))


@dataclass(frozen=True)
class Number(Draws):
    """A mean over seeds, or what was computed of some, with its resamples."""

    def __sub__(self, other: "Number") -> "Number":
        return _of(np.subtract, self, other)

    def over(self, other: "Number") -> "Number":
        """Their quotient."""
        return _of(np.divide, self, other)

    def times(self, factor: float) -> "Number":
        """A multiple."""
        return _of(lambda part: factor * part, self)

    @property
    def interval(self) -> Interval:
        """With its interval; what has diverged is so beyond doubt."""
        if isinf(self.value):
            return Interval(self.value, self.value, self.value)
        with np.errstate(invalid="ignore"):
            found = self.estimate
        return Interval(self.value, found.low, found.high)


def average(parts: Sequence[Number]) -> Number:
    """The mean over cells, resample by resample."""
    return _of(lambda *values: sum(values) / len(values), *parts)


def ahead(ours: Number, theirs: Number, higher: bool) -> Number:
    """How much better ours is, in per cent of theirs."""
    if higher:
        return _of(lambda one, other: 100 * (one / other - 1), ours, theirs)
    return _of(lambda one, other: 100 * (1 - one / other), ours, theirs)


def _of(function: Callable[..., Any], *parts: Draws) -> Number:
    return Number(**vars(combine(function, *map(_arrays, parts))))


def _arrays(part: Draws) -> Draws:
    """With a value that numpy divides: by 0 too, as by the accuracy of what has diverged."""
    return Draws(np.float64(part.value), part.over_seeds, part.over_groups, part.seeds, part.groups)


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
        """At the level nearest to one."""
        return min(zip(self.noise, self.numbers, strict=True), key=lambda pair: abs(pair[0] - level))[1]

    def mean(self, above: float = -1.0) -> Number:
        """The plain mean over the levels above one; over the last where there is none above."""
        kept = [number for level, number in zip(self.noise, self.numbers, strict=True) if level > above]
        return average(kept or self.numbers[-1:])

    def summary(self) -> Number:
        """What the paper's tables hold: the mean of an error, the area under an accuracy over γ."""
        if not self.higher or len(self.noise) < 2:
            return self.mean()
        steps = np.diff(self.noise)
        weights = np.append(steps, 0) / 2 + np.append(0, steps) / 2
        return _of(lambda *values: sum(w * v for w, v in zip(weights, values, strict=True)), *self.numbers)


@lru_cache(maxsize=1024)
def robust(runs: tuple[Run, ...]) -> Robust:
    """A method's values against noise, from the seeds of one setting, at the levels that all were judged at."""
    higher = runs[0].higher
    known = [dict(zip(run.view.noise, run.view.values, strict=True)) for run in runs]
    noise = sorted(level for level in known[0] if all(level in values for values in known))
    resampled = _resampled(runs, noise)
    groups = len(runs[0].groups.counts) if runs[0].groups else 0
    numbers = []
    for place, level in enumerate(noise):
        values = [values[level] for values in known]
        if all(map(isfinite, values)):
            value, by_seeds, by_groups = sum(values) / len(values), *(part[:, place] for part in resampled)
        else:  # a run that diverged is worse than any other, and is not left out of its method's mean
            value = 0.0 if higher else inf
            by_seeds = by_groups = np.full(RESAMPLES, value)
        numbers.append(Number(value, by_seeds, by_groups, len(runs), groups))
    return Robust(noise, numbers, higher)


def _resampled(runs: Sequence[Run], noise: Sequence[float]) -> list[np.ndarray]:
    """(RESAMPLES, levels) over seeds, and over groups; NaN where there is too little to resample."""
    unknown = np.full((RESAMPLES, len(noise)), nan)
    told = [run.groups for run in runs if run.groups and set(noise) <= set(run.groups.noise.tolist())]
    if len(told) < len(runs) or not all(table.like(told[0]) for table in told[1:]):
        return [unknown, unknown]
    places = [told[0].noise.tolist().index(level) for level in noise]

    def every(values: np.ndarray, _: np.ndarray) -> np.ndarray:
        """All levels at once, each a statistic of its own."""
        return values[..., places]

    found = draws([vars(table) for table in told], every, np.random.default_rng(0))
    parts = (found.over_seeds, found.over_groups)
    return [part if part.ndim == 2 else unknown for part in parts]


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean of numbers that have no groups, seeds or prompts, with Student's t; one alone has no interval."""
    if not values or not all(map(isfinite, values)):
        return Interval(nan)
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean)
    spread = float(np.std(values, ddof=1)) / sqrt(len(values))
    reach = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread
    return Interval(mean, mean - reach, mean + reach)


def share(count: int, total: int) -> Interval:
    """A share of cells, with Clopper and Pearson's interval."""
    found = binomtest(count, total).proportion_ci(CONFIDENCE, method="exact")
    return Interval(count / total, float(found.low), float(found.high))
