"""95 % intervals of a metric over seeds and groups of samples, by the jackknife."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.stats import t as student

from descend.jackknife import degrees_of_freedom

CONFIDENCE = 0.95


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

    def values(self, weights: np.ndarray) -> np.ndarray:
        """The metric at every level, (K, G), with each group weighted by (K, N) weights."""
        with np.errstate(all="ignore"):  # what has diverged
            means = (weights @ self.scores.T) / (weights @ self.counts)[:, None]
            return np.sqrt(means) if self.root else means

    def like(self, other: "GroupScores") -> bool:
        """Whether two runs were evaluated at the same levels on the same groups."""
        return np.array_equal(self.noise, other.noise) and np.array_equal(self.counts, other.counts)


@dataclass(frozen=True)
class Jackknife:
    """Means over seeds, at each of G noise levels or layers, with their values without each group of samples.

    Its interval is a verdict's, see `descend.evaluation.satisfaction.margin_of_error`. With one seed it is that of this
    trained model. With several, the variance between seeds is added, with Satterthwaite's degrees of freedom for the
    sum.

    Attributes:
        by_seed: The values of each run, (S, G).
        without: The mean over runs where one group is left out, (N, G).
        sizes: Samples in each group, (N,).
    """

    by_seed: np.ndarray
    without: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, tables: Sequence[GroupScores]) -> Self:
        """From the groups of each seed's run, all on the same data."""
        sizes = tables[0].counts
        without = np.mean([table.values(1 - np.eye(len(sizes))) for table in tables], axis=0)
        return cls(np.concatenate([table.values(np.ones((1, len(sizes)))) for table in tables]), without, sizes)

    def __sub__(self, other: Self) -> Self:
        """The difference from another method's, of the same seeds on the same groups."""
        return type(self)(self.by_seed - other.by_seed, self.without - other.without, self.sizes)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % intervals; both ends are NaN where a single group leaves them unknown, or a run has diverged."""
        groups, seeds, value = len(self.sizes), len(self.by_seed), self.by_seed.mean(0)
        with np.errstate(all="ignore"):  # what has diverged
            by_groups = (groups - 1) / groups * ((self.without - value) ** 2).sum(0)
            by_seeds = self.by_seed.var(0, ddof=1) / seeds if seeds > 1 else np.zeros_like(by_groups)
            variance = by_seeds + by_groups
            spread = by_seeds**2 / max(seeds - 1, 1) + by_groups**2 / degrees_of_freedom(self.sizes)
            freedom = np.where(variance == 0, 1, variance**2 / spread)  # nothing varies
        width = student.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)
        return value - width, value + width
