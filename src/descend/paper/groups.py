"""The metric by group of samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from descend.records.schema import Groups

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
