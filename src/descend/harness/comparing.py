"""Intervals of a mean, and paired comparisons of two models on the same samples."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from descend.results import CONFIDENCE


class Paired(NamedTuple):
    """How sure one model's mean minus another's is, on the same samples; all None for a metric that is no mean.

    Attributes:
        low: The lower end of the difference's interval.
        high: The upper end.
        wins: Samples that only the first has right; None unless all values are 0 or 1.
        losses: Samples that only the second has right; None unless all values are 0 or 1.
        p_value: McNemar's exact two-sided test that wins and losses are equally likely; None unless all are 0 or 1.
    """

    low: float | None = None
    high: float | None = None
    wins: int | None = None
    losses: int | None = None
    p_value: float | None = None


def interval(values: np.ndarray | None) -> tuple[float | None, float | None]:
    """The interval of a mean: Wilson's for values 0 and 1, otherwise Student's t.

    Args:
        values: A number for each sample, (n,); the samples are independent. None for a metric that is no mean.
    """
    if values is None:
        return None, None
    return _wilson(values) if np.isin(values, (0, 1)).all() else _student(values)


def paired(first: np.ndarray | None, second: np.ndarray | None) -> Paired:
    """Compare two models on the same samples.

    The interval is Newcombe's (1998, method 10) for values 0 and 1: it joins the Wilson intervals of both means by the
    correlation of the pairs, and has a width even where the models differ nowhere. Otherwise it is Student's t over the
    differences.

    Args:
        first: A number for each sample, (n,); None for a metric that is no mean.
        second: The other model's, in the same order.
    """
    if first is None or second is None:
        return Paired()
    if not np.isin([first, second], (0, 1)).all():
        return Paired(*_student(first - second))
    wins, losses, n = int((first > second).sum()), int((first < second).sum()), len(first)
    both, neither = int((first * second).sum()), int(((1 - first) * (1 - second)).sum())
    # The correlation φ of the pairs, with a continuity correction where it is positive.
    product = both * neither - wins * losses
    scale = float(np.sqrt(float(both + wins) * (losses + neither) * (both + losses) * (wins + neither)))
    phi = min(product, max(product - n / 2, 0)) / scale if scale else 0.0
    p, q = float(first.mean()), float(second.mean())
    (p_low, p_high), (q_low, q_high) = _wilson(first), _wilson(second)
    below = (p - p_low) ** 2 - 2 * phi * (p - p_low) * (q_high - q) + (q_high - q) ** 2
    above = (p_high - p) ** 2 - 2 * phi * (p_high - p) * (q - q_low) + (q - q_low) ** 2
    p_value = float(stats.binomtest(wins, max(wins + losses, 1)).pvalue)
    return Paired(p - q - float(np.sqrt(below)), p - q + float(np.sqrt(above)), wins, losses, p_value)


def _wilson(values: np.ndarray) -> tuple[float, float]:
    ends = stats.binomtest(int(values.sum()), len(values)).proportion_ci(CONFIDENCE, method="wilson")
    return float(ends.low), float(ends.high)


def _student(values: np.ndarray) -> tuple[float, float]:
    """Student's interval of a mean; not finite for a single sample."""
    n = len(values)
    error = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(values) if n > 1 else np.inf
    return float(values.mean() - error), float(values.mean() + error)
