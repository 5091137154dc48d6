"""95 % intervals of a metric over seeds and groups of samples, by the jackknife."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.stats import t as student

from descend.jackknife import combined, degrees_of_freedom
from descend.results import CONFIDENCE


@dataclass(frozen=True)
class Jackknife:
    """The metric of layers 0 … L in each of S runs, and its mean over them without each of N groups of samples.

    Its interval is a verdict's, see `descend.evaluation.satisfaction.margin_of_error`. With one seed it is that of this
    trained model. With several, the variance between seeds is added, with Satterthwaite's degrees of freedom for the
    sum.

    Attributes:
        by_seed: The values of each run, (S, L+1).
        without: The mean over runs where one group is left out, (L+1, N).
        sizes: Samples in each group, (N,).
    """

    by_seed: np.ndarray
    without: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, sums: np.ndarray, sizes: np.ndarray, root: bool = False) -> Self:
        """From sums of scores over groups.

        Args:
            sums: Of each run, all on the same groups, (S, L+1, N); NaN where one was not finite.
            sizes: Samples in each group, (N,).
            root: Whether the metric is the root of the mean score.
        """
        total = sums.sum(-1, keepdims=True)
        with np.errstate(all="ignore"):  # a single group, and what has diverged
            values, without = total / sizes.sum(), (total - sums) / (sizes.sum() - sizes)
            if root:
                values, without = np.sqrt(values), np.sqrt(without)
        return cls(values[..., 0], without.mean(0), sizes)

    def __sub__(self, other: Self) -> Self:
        """The difference from another method's, of the same seeds on the same groups."""
        return type(self)(self.by_seed - other.by_seed, self.without - other.without, self.sizes)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % intervals; both ends are NaN where a single group leaves them unknown, or a run has diverged."""
        groups, seeds, value = len(self.sizes), len(self.by_seed), self.by_seed.mean(0)
        with np.errstate(all="ignore"):  # what has diverged
            by_groups = (groups - 1) / groups * ((self.without - value[:, None]) ** 2).sum(1)
            by_seeds = self.by_seed.var(0, ddof=1) / seeds if seeds > 1 else np.zeros_like(by_groups)
            error, freedom = combined([(by_seeds, max(seeds - 1, 1)), (by_groups, degrees_of_freedom(self.sizes))])
            width = student.ppf((1 + CONFIDENCE) / 2, freedom) * error
        return value - width, value + width
