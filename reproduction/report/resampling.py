"""95 % intervals of a metric over seeds and groups of samples by resampling, for any statistic and for pairs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from descend.errors import InputError
from descend.report import CONFIDENCE, GroupScores

RESAMPLES = 2000
"""Bootstrap resamples, with which standard errors are off by about 2 %."""

BLOCK = 2**21
"""Resampled weights held in memory at a time."""

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From a run's metric (…, G) at the noise levels (G,) to one number (…)."""


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
