"""The jackknife over groups of unequal sizes: a mean's standard error, skewness and degrees of freedom."""

import numpy as np


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


def degrees_of_freedom(sizes: np.ndarray) -> float:
    """2 E[V]² / Var[V] of the jackknife's variance V, if the means of the groups are normal with one variance.

    Satterthwaite's (Bell and McCaffrey, 2002; Imbens and Kolesár, 2016): G − 1 for groups of one size, fewer where a
    few groups hold most samples. V is the quadratic form of A = (I − w 1ᵀ) D (I − 1 wᵀ) with the shares w of the
    samples and D = diag(d), d = (w / (1 − w))²: this is tr(A)² / tr(A²).

    Args:
        sizes: Samples in each group, (G,).

    Returns:
        NaN for a single group.
    """
    if len(sizes) < 2:
        return np.nan
    shares = sizes / sizes.sum()
    d = (shares / (1 - shares)) ** 2
    total, ww, wd, dd = d.sum(), shares @ shares, shares @ d, d @ d
    trace = total - 2 * wd + total * ww
    # tr(A²) = |D − w dᵀ − d wᵀ + total w wᵀ|²
    square = dd + 2 * wd**2 + 2 * ww * dd + (total * ww) ** 2
    square += 2 * total * (shares**2 @ d) - 4 * (shares @ d**2) - 4 * total * ww * wd
    return float(trace**2 / square)
