"""The metric by group of samples, as ``groups.json`` has it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from descend.errors import InputError, reason

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Of a run's metric (…, G) at the noise levels (G,), one number (…)."""


@dataclass(frozen=True)
class Table:
    """A run's ``groups.json``: the metric's sums over groups of samples.

    Attributes:
        noise: Levels γ, (G,).
        root: Whether the metric is the root of the mean score.
        counts: Samples in each group, (N,).
        scores: Sums of the scores, (G, N); NaN where one was not finite.
        single: Whether the groups are the samples of one, a single clip: how clips differ is not in them.
    """

    noise: np.ndarray
    root: bool
    counts: np.ndarray
    scores: np.ndarray
    single: bool = False

    @classmethod
    def read(cls, groups: Mapping[str, Any]) -> Self:
        """Check what a JSON file holds.

        Raises:
            InputError: If it is no table of groups.
        """
        try:
            table = cls(
                np.array(groups["noise"], dtype=float),
                bool(groups["root"]),
                np.array(groups["counts"], dtype=float),
                np.array(groups["scores"], dtype=float),
                bool(groups.get("single", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"expected a table of groups with noise, root, counts and scores; got {type(error).__name__}: "
                f"{reason(error)}."
            ) from None
        shape = (*table.noise.shape, *table.counts.shape)
        if len(shape) != 2 or 0 in shape or table.scores.shape != shape or not (table.counts > 0).all():
            raise InputError(
                f"scores must be one for each noise level and group, of groups that have samples; got scores of shape "
                f"{table.scores.shape} for noise {table.noise.shape} and counts {table.counts.shape}."
            )
        return table

    def values(self, weights: np.ndarray) -> np.ndarray:
        """The metric at every level, (K, G), where each group comes as often as (K, N) weights say."""
        means = (weights @ self.scores.T) / (weights @ self.counts)[:, None]
        return np.sqrt(means) if self.root else means

    def like(self, other: "Table") -> bool:
        """Whether two runs were judged at the same levels on the same groups."""
        return np.array_equal(self.noise, other.noise) and np.array_equal(self.counts, other.counts)
