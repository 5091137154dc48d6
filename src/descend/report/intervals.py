"""95 % intervals of a metric over seeds and groups of samples, for one method and for the difference of two."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.stats import t as student

from descend.errors import InputError
from descend.jackknife import degrees_of_freedom
from descend.results import Groups

CONFIDENCE = 0.95

RESAMPLES = 2000
"""Bootstrap resamples, with which standard errors are off by about 2 %."""

BLOCK = 2**21
"""Resampled weights held in memory at a time."""

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From a run's metric (…, G) at the noise levels (G,) to one number (…)."""


@dataclass(frozen=True)
class GroupScores:
    """A run's metric as sums over groups of samples.

    Attributes:
        noise: Levels γ, (G,).
        root: Whether the metric is the root of the mean score.
        counts: Samples in each group, (N,).
        scores: Sums of the scores, (G, N); NaN where one was not finite.
        single: Whether the groups are the samples of a single clip, so that they say nothing about other clips.
    """

    noise: np.ndarray
    root: bool
    counts: np.ndarray
    scores: np.ndarray
    single: bool = False

    @classmethod
    def of(cls, groups: Groups) -> Self:
        """From ``groups.json``."""
        noise, counts = np.array(groups.noise, float), np.array(groups.counts, float)
        return cls(noise, groups.root, counts, np.array(groups.scores, float), groups.single)

    def values(self, weights: np.ndarray) -> np.ndarray:
        """The metric at every level, (K, G), with each group weighted by (K, N) weights."""
        means = (weights @ self.scores.T) / (weights @ self.counts)[:, None]
        return np.sqrt(means) if self.root else means

    def like(self, other: "GroupScores") -> bool:
        """Whether two runs were judged at the same levels on the same groups."""
        return np.array_equal(self.noise, other.noise) and np.array_equal(self.counts, other.counts)


@dataclass(frozen=True)
class Jackknife:
    """A mean over seeds, with its value without each group of samples.

    Its interval is a verdict's, see `descend.evaluation.satisfaction.standard_errors`. With one seed it is that of this
    trained model. With several, the variance between seeds is added, with Satterthwaite's degrees of freedom for the
    sum.

    Attributes:
        by_seed: The value of each run, (S, …).
        without: The mean over runs where one group is left out, (N, …).
        sizes: Samples in each group, (N,).
    """

    by_seed: np.ndarray
    without: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, tables: Sequence[GroupScores], statistic: Statistic) -> Self:
        """From the groups of each seed's run, all on the same data, as in `draws`."""
        _compare(tables)
        groups = len(tables[0].counts)
        whole = _by_seed(tables, statistic, np.ones((1, groups)))[:, 0]
        return cls(whole, _by_seed(tables, statistic, 1 - np.eye(groups)).mean(0), tables[0].counts)

    def __sub__(self, other: Self) -> Self:
        """The difference from another method's, of the same seeds on the same groups."""
        return type(self)(self.by_seed - other.by_seed, self.without - other.without, self.sizes)

    @property
    def seeds(self) -> int:
        """How many runs it rests on."""
        return len(self.by_seed)

    def ends(self) -> tuple[Any, Any]:
        """Its 95 % interval; both ends are NaN where a single group leaves them unknown, or a run has diverged."""
        groups, value = len(self.sizes), self.by_seed.mean(0)
        with np.errstate(all="ignore"):  # what has diverged
            by_groups = (groups - 1) / groups * ((self.without - value) ** 2).sum(0)
            by_seeds = self.by_seed.var(0, ddof=1) / self.seeds if self.seeds > 1 else np.zeros_like(by_groups)
            variance = by_seeds + by_groups
            spread = by_seeds**2 / max(self.seeds - 1, 1) + by_groups**2 / degrees_of_freedom(self.sizes)
            freedom = np.where(variance == 0, 1, variance**2 / spread)  # nothing varies
        width = student.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)
        return value - width, value + width


@dataclass(frozen=True)
class Draws:
    """A mean over seeds, with its value in each resample.

    Seeds and groups are both samples: of all runs that might have been trained, and of all data that might have been
    judged. Each is resampled in its turn (drawing one less than there are, with which the variance of a mean is without
    bias), and the two variances add up. Resampling both at once would count thrice, in place of twice, what is neither
    a seed's nor a group's own. With three seeds the percentiles of so few resamples mean little: the interval is
    Student's, with Satterthwaite's degrees of freedom for the sum of two variances.

    Attributes:
        value: The mean over seeds; not finite where a run has diverged. numpy's: it divides by 0 too.
        over_seeds: What it is in each resample of the seeds, (R,); NaN where there is but one, as of groups.
        over_groups: The same of the groups.
        seeds: How many runs it rests on.
        groups: How many groups of samples; 0 if unknown, and then the interval is over seeds alone.
    """

    value: np.float64
    over_seeds: np.ndarray
    over_groups: np.ndarray
    seeds: int
    groups: int

    def ends(self, tried: int = 1) -> tuple[float, float]:
        """Its 95 % interval, or where it was picked from several Bonferroni's, of 1 − 0.05 / tried.

        Both ends are NaN where one seed or one group leaves them unknown, or a run has diverged.
        """
        by_seeds, by_groups = self.over_seeds.var(), self.over_groups.var()
        variance = by_seeds + by_groups
        if not np.isfinite(variance):
            return np.nan, np.nan
        if variance == 0:  # nothing varies: the difference of an arm with itself, for one
            return self.value, self.value
        freedom = variance**2 / (by_seeds**2 / max(self.seeds - 1, 1) + by_groups**2 / max(self.groups - 1, 1))
        width = float(student.ppf(1 - (1 - CONFIDENCE) / (2 * tried), freedom) * np.sqrt(variance))
        return self.value - width, self.value + width


def draws(tables: Sequence[GroupScores], statistic: Statistic, generator: np.random.Generator) -> Draws:
    """The mean over seeds of a statistic, with its value in each resample.

    Two arms of as many seeds on the same data, with generators that stand alike, have the same resamples.

    Args:
        tables: The groups of each seed's run, all on the same data.
        statistic: Of a run's metric at its noise levels.
        generator: Draws the resamples.

    Raises:
        InputError: If there is no run, or the runs were judged on different data.
    """
    _compare(tables)
    seeds, groups = len(tables), len(tables[0].counts)
    by_seed = _by_seed(tables, statistic, np.ones((1, groups)))[:, 0]
    over_seeds = over_groups = np.full(RESAMPLES, np.nan)
    if seeds > 1:
        over_seeds = by_seed[generator.integers(seeds, size=(RESAMPLES, seeds - 1))].mean(1)
    if groups > 1:
        parts = [_by_seed(tables, statistic, drawn).mean(0) for drawn in _resampled(groups, generator)]
        over_groups = np.concatenate(parts)
    return Draws(by_seed.mean(), over_seeds, over_groups, seeds, groups)


def combine(function: Callable[..., Any], *parts: Draws) -> Draws:
    """A function of several means, resample by resample: their difference by ``np.subtract``, for one."""
    with np.errstate(all="ignore"):  # what has diverged
        return Draws(
            np.float64(function(*(part.value for part in parts))),
            function(*(part.over_seeds for part in parts)),
            function(*(part.over_groups for part in parts)),
            min(part.seeds for part in parts),
            min(part.groups for part in parts),
        )


def _compare(tables: Sequence[GroupScores]) -> None:
    """Refuse runs that were judged on different data or noise levels."""
    if not tables:
        raise InputError("expected the groups of at least one run; got none.")
    for table in tables[1:]:
        if not table.like(tables[0]):
            raise InputError(
                f"runs compare on the same data and noise levels; got {len(tables[0].counts)} and {len(table.counts)} "
                f"groups at {tables[0].noise.tolist()} and {table.noise.tolist()}. Evaluate them alike."
            )


def _by_seed(tables: Sequence[GroupScores], statistic: Statistic, weights: np.ndarray) -> np.ndarray:
    """The statistic of each run, (S, K), under (K, N) weights of the groups."""
    with np.errstate(all="ignore"):  # what has diverged
        return np.stack([statistic(table.values(weights), table.noise) for table in tables])


def _resampled(groups: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each group comes in `RESAMPLES` resamples of one less than there are, (K, N) at a time."""
    size = max(1, BLOCK // groups)
    for start in range(0, RESAMPLES, size):
        rows = min(size, RESAMPLES - start)
        drawn = generator.integers(groups, size=(rows, groups - 1)) + groups * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * groups).reshape(rows, groups).astype(float)
