"""The jackknife over groups of unequal sizes: a mean's error, and how much better one training is than another."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student


def standard_error(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    r"""The jackknife's standard error of a mean over samples that are independent between groups only.

    .. math:: \sqrt{\frac{G-1}{G} \sum_g \Big(\frac{s_g - n_g \bar x}{N - n_g}\Big)^2}

    Args:
        sums: Σ x over the samples of each group, (G, …).
        sizes: n_g, the samples in each group, (G,).

    Returns:
        The error of the mean x̄, (…).
    """
    return np.sqrt((len(sums) - 1) / len(sums) * (_influences(sums, sizes) ** 2).sum(0))


@cache
def fewest_groups(share: float, confidence: float) -> int:
    r"""How many groups of one size it takes to certify a layer that answers exactly as full depth does.

    The least G with :math:`t \sqrt{x(1-x)/G} \le x`: the standard error counts as no smaller, see `Against.excess`.

    Args:
        share: The tolerance x, above 0 and below 1.
        confidence: Of the one-sided interval.
    """
    known = (groups for groups in count(2) if student.ppf(confidence, groups - 1) ** 2 * (1 - share) <= groups * share)
    return next(known)


def skewness(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The third cumulant of the same mean over its variance, in units of the mean, (…); 0 where nothing varies.

    Args:
        sums: As in `standard_error`.
        sizes: As there.
    """
    parts = _influences(sums, sizes)
    squares = (parts**2).sum(0)
    return np.where(squares == 0, 0.0, (parts**3).sum(0) / np.where(squares == 0, 1.0, squares))


def _influences(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How far the mean moves without each group, (G, …)."""
    sizes = sizes.reshape(-1, *(1 for _ in sums.shape[1:]))
    mean = sums.sum(0) / sizes.sum()
    return (sums - sizes * mean) / (sizes.sum() - sizes)


ALONE = 0.999
"""The share of the samples from which on one group decides alone: a single degree of freedom."""


def degrees_of_freedom(sizes: np.ndarray) -> float:
    """2 E[V]² / Var[V] of the jackknife's variance V, if the means of the groups are normal with one variance.

    Satterthwaite's (Bell and McCaffrey, 2002; Imbens and Kolesár, 2016): G − 1 for groups of one size, fewer where a
    few groups hold most samples. V is the quadratic form of A = (I − w 1ᵀ) D (I − 1 wᵀ) with the shares w of the
    samples and D = diag(d), d = (w / (1 − w))²: this is tr(A)² / tr(A²).

    Args:
        sizes: Samples in each group, (G,).

    Returns:
        NaN for a single group; 1, the fewest, where one group has nearly all samples: rounding would spoil the formula.
    """
    if len(sizes) < 2:
        return np.nan
    shares = sizes / sizes.sum()
    if shares.max() > ALONE:
        return 1.0
    d = (shares / (1 - shares)) ** 2
    total, ww, wd, dd = d.sum(), shares @ shares, shares @ d, d @ d
    trace = total - 2 * wd + total * ww
    # tr(A²) = |D − w dᵀ − d wᵀ + total w wᵀ|²
    square = dd + 2 * wd**2 + 2 * ww * dd + (total * ww) ** 2
    square += 2 * total * (shares**2 @ d) - 4 * (shares @ d**2) - 4 * total * ww * wd
    return float(trace**2 / square)


class Advantage(NamedTuple):
    """How much better a number is than another's, in percent of the other's, or in its own unit.

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
    parts: Mapping[str, tuple[float, float]]


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
    means = scores.sum(1) / counts.sum() - _influences(scores.T, counts)
    return np.sqrt(means) if root else means


class Numbers(NamedTuple):
    """A number of each of S seeds, and the same with each of N groups of test samples left out: (S,) and (S, N)."""

    values: np.ndarray
    without: np.ndarray


def advantage(
    ours: Numbers, theirs: Numbers, higher_is_better: bool, confidence: float = 0.95, sizes: np.ndarray | None = None
) -> Advantage:
    r"""How much better numbers are than others of the same seeds and samples.

    With A and B the means over seeds it is :math:`\pm 100 (A/B - 1)`. Its variance is that over seeds, by the delta
    method, and that over groups of test samples, by the jackknife, each if there is more than one; Satterthwaite's
    degrees of freedom.

    Args:
        ours: The numbers.
        theirs: Those of the other.
        higher_is_better: Whether more of the number is better.
        confidence: Of the interval.
        sizes: Samples in each group, (N,), for the degrees of freedom of unequal groups; None counts them as equal.
    """
    a, b = ours.values, theirs.values
    sign = 100 if higher_is_better else -100
    spread = sign * (a / b.mean() - b * a.mean() / b.mean() ** 2)
    ratio = sign * ours.without.mean(0) / theirs.without.mean(0)
    return estimate(float(sign * (a.mean() / b.mean() - 1)), spread, ratio, confidence, sizes)


def estimate(
    value: float, spread: np.ndarray, without: np.ndarray, confidence: float = 0.95, sizes: np.ndarray | None = None
) -> Advantage:
    """A mean over seeds with its interval.

    Args:
        value: The mean.
        spread: What varies as it does from seed to seed, (S,).
        without: What varies as it does if a group of test samples is left out, (N,).
        confidence: Of the interval.
        sizes: Samples in each group, (N,); None counts them as equal.
    """
    parts: dict[str, tuple[float, float]] = {}
    seeds, groups = len(spread), len(without)
    if seeds > 1:
        parts["seeds"] = (float(spread.var(ddof=1)) / seeds, seeds - 1)
    if groups > 1:
        freedom_of_groups = groups - 1 if sizes is None else degrees_of_freedom(sizes)
        parts["groups"] = ((groups - 1) ** 2 / groups * float(without.var(ddof=1)), freedom_of_groups)
    error, freedom = combined(parts.values())
    if not error:
        return Advantage(value, math.nan, math.nan, math.nan, groups, parts)
    width = float(student.ppf((1 + confidence) / 2, freedom)) * error
    p = float(2 * student.sf(abs(value) / error, freedom))
    return Advantage(value, value - width, value + width, p, groups, parts)


def combined(parts: Iterable[tuple[Any, float]]) -> tuple[Any, Any]:
    """The standard error of a sum of independent parts, and Satterthwaite's degrees of freedom; ∞ if nothing varies.

    Args:
        parts: Variances, numbers or (…), with their degrees of freedom.
    """
    known = list(parts)
    variance = np.sum([part for part, _ in known], 0)
    squares = np.sum([part**2 / degrees for part, degrees in known], 0)
    return np.sqrt(variance), np.where(variance == 0, np.inf, variance**2 / np.where(squares == 0, 1, squares))
