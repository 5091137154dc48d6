"""How much better one training is than another, in percent, over the seeds and the test samples that both have."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student


class Advantage(NamedTuple):
    """How much better a number is than another's, in percent of the other's.

    Attributes:
        value: Above 0 ours is better.
        low: Of the interval; NaN if there is none.
        high: Of the same.
        p: Two-sided; NaN without an interval.
        groups: Groups of test samples.
        parts: The variance over seeds and that over groups, each with its degrees of freedom; one that is not known is
            left out.
    """

    value: float
    low: float
    high: float
    p: float
    groups: int
    parts: Mapping[str, tuple[float, int]]


def over_noise(noise: Sequence[float], values: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """The number of the paper's tables: the mean error over noise, or the area under the accuracy; of one level itself.

    Args:
        noise: The levels, G numbers.
        values: The metric at each, (…, G).
        higher_is_better: Whether it is an accuracy.
    """
    return np.trapezoid(values, noise) if higher_is_better and len(noise) > 1 else np.mean(values, -1)


def metric(counts: np.ndarray, scores: np.ndarray, root: bool) -> np.ndarray:
    """The metric at each level, (G,).

    Args:
        counts: Samples in each group, (N,).
        scores: Sums of the scores, (G, N).
        root: Whether the metric is the root of the mean score.
    """
    mean = scores.sum(1) / counts.sum()
    return np.sqrt(mean) if root else mean


def without_each(counts: np.ndarray, scores: np.ndarray, root: bool) -> np.ndarray:
    """The metric at each level with each group left out, (N, G); arguments as those of `metric`."""
    means = (scores.sum(1, keepdims=True) - scores) / (counts.sum() - counts)
    return (np.sqrt(means) if root else means).T


class Numbers(NamedTuple):
    """A number of each of S seeds, and the same with each of N groups of test samples left out: (S,) and (S, N)."""

    values: np.ndarray
    without: np.ndarray


def advantage(ours: Numbers, theirs: Numbers, higher_is_better: bool, confidence: float = 0.95) -> Advantage:
    r"""How much better numbers are than others of the same seeds and samples.

    With A and B the means over seeds it is :math:`\pm 100 (A/B - 1)`. Its variance is that over seeds, by the delta
    method, and that over groups of test samples, by the jackknife, each if there is more than one; Satterthwaite's
    degrees of freedom.

    Args:
        ours: The numbers.
        theirs: Those of the other.
        higher_is_better: Whether more of the number is better.
        confidence: Of the interval.
    """
    a, b = ours.values, theirs.values
    sign, seeds = (100 if higher_is_better else -100), len(a)
    parts: dict[str, tuple[float, int]] = {}
    if seeds > 1:
        spread = a / b.mean() - b * a.mean() / b.mean() ** 2
        parts["seeds"] = (sign**2 * spread.var(ddof=1) / seeds, seeds - 1)
    groups = ours.without.shape[1]
    if groups > 1:
        ratio = sign * ours.without.mean(0) / theirs.without.mean(0)
        parts["groups"] = ((groups - 1) ** 2 / groups * ratio.var(ddof=1), groups - 1)
    value = float(sign * (a.mean() / b.mean() - 1))
    error, freedom = combined(parts.values())
    if not error:
        return Advantage(value, math.nan, math.nan, math.nan, groups, parts)
    width = float(student.ppf((1 + confidence) / 2, freedom)) * error
    p = float(2 * student.sf(abs(value) / error, freedom))
    return Advantage(value, value - width, value + width, p, groups, parts)


def combined(parts: Iterable[tuple[float, int]]) -> tuple[float, float]:
    """The standard error of a sum of independent parts, and Satterthwaite's degrees of freedom.

    Args:
        parts: Variances with their degrees of freedom.
    """
    known = list(parts)
    variance = sum(part for part, _ in known)
    if not variance:
        return 0.0, math.nan
    return math.sqrt(variance), variance**2 / sum(part**2 / degrees for part, degrees in known)
