"""The verdict: do the constraints hold on data that training did not see?"""

import math

import torch
from scipy.stats import t as student
from torch import Tensor

from descend.core import DescentProblem, refuse_negative
from descend.errors import refuse
from descend.evaluation.layers import LayerLosses
from descend.jackknife import degrees_of_freedom, standard_error
from descend.results import CONFIDENCE, ENOUGH_GROUPS, VIOLATION_TOLERANCE, Verdict


def verdict(problem: DescentProblem, layers: LayerLosses, *, asked: bool = True) -> Verdict:
    """Hold a model's measured losses against the problem that it was trained on.

    The violations are those of the mean losses, as in training. Their intervals are to first order (the delta method,
    exact in the difference form), with Student's t at 95 % simultaneously over the constraints. A bound that is the
    lowest or highest of several has an interval for each, joined as the bounds are: where they tie, the slope of the
    one that happens to be lower says too little. Below `ENOUGH_GROUPS` groups there are no intervals.

    Args:
        problem: The constraints.
        layers: The measured losses.
        asked: Whether training asked for these constraints; otherwise they describe the model and judge nothing.

    Raises:
        InputError: If there are fewer than two samples, or a layer's mean loss is negative.
    """
    refuse(
        (
            len(layers.losses) < 2,
            f"a verdict needs at least 2 samples to know its confidence interval; got {len(layers.losses)}.",
        )
    )
    in_force = problem.in_force
    mean = layers.losses.mean(0)
    refuse_negative(mean)
    violations = problem.violations(mean)
    bounds = problem.bounds(mean)
    pieces = problem.pieces(mean)
    slopes = torch.func.jacrev(problem.pieces)(mean)
    margin = margin_of_error(layers, slopes, tails=2 * max(1, int(in_force.sum())))
    # The violation of a constraint that is not in force is 0, and so is its interval.
    low = problem.join(pieces - margin).where(in_force, 0.0)
    high = problem.join(pieces + margin).where(in_force, 0.0)
    intervals = list(zip(low.tolist(), high.tolist(), strict=True))
    # A loss that is not finite meets no constraint.
    broken = (low > 0) | (violations > VIOLATION_TOLERANCE * bounds) | ~violations.isfinite()
    undecided = ~broken & ~(high <= 0)  # an interval that is unknown decides nothing
    decided = not (broken | undecided).any().item()
    bounds_in_force = [
        bound if exists else None for bound, exists in zip(bounds.tolist(), in_force.tolist(), strict=True)
    ]
    return Verdict(
        asked=asked,
        violations=violations[1:].tolist(),
        violation_intervals=intervals[1:],
        cap=problem.cap,
        cap_violation=violations[0].item(),
        cap_interval=intervals[0],
        violated=broken.nonzero().flatten().tolist(),
        undecided=undecided.nonzero().flatten().tolist(),
        feasible=not broken.any().item(),
        certain=decided and layers.group_count >= ENOUGH_GROUPS,
        groups=layers.group_count,
        bounds=bounds_in_force[1:],
        certified=certified_falls(layers),
    )


def certified_falls(layers: LayerLosses) -> list[float]:
    """The lower end of each layer's relative fall 1 − f_l / f_{l−1}, L numbers; NaN below `ENOUGH_GROUPS` groups.

    One-sided, at 95 % simultaneously over the layers, by the delta method. A layer after a loss of 0 lowers nothing.
    """
    mean = layers.losses.mean(0)
    before, after = mean[:-1], mean[1:]
    divisors = torch.where(before == 0, 1.0, before)
    falls = torch.where(before == 0, 0.0, 1 - after / divisors)
    # d(f_l / f_{l−1}) = (df_l − (f_l / f_{l−1}) df_{l−1}) / f_{l−1}
    slopes = mean.new_zeros(len(falls), len(mean))
    slopes.diagonal(1).copy_(1 / divisors)
    slopes.diagonal().copy_(-after / divisors**2)
    return (falls - margin_of_error(layers, slopes, tails=len(falls))).tolist()


def margin_of_error(layers: LayerLosses, slopes: Tensor, tails: int) -> Tensor:
    r"""The margins of error of linear functions of the mean losses: standard errors times Student's quantile.

    The mean is over samples, the independent units are groups g of n_g of them: the windows of a clip are alike. The
    variance is the jackknife's, which leaves out one group at a time (CR3; MacKinnon and White, 1985):

    .. math:: \frac{G-1}{G} \sum_g \Big(\frac{T_g}{N - n_g}\Big)^2,
        \qquad T_g = \sum_{i \in g} \text{slopes} \cdot (f_i - \bar f)

    Its degrees of freedom are Satterthwaite's (Bell and McCaffrey, 2002; Imbens and Kolesár, 2016), for groups whose
    means have one variance: G − 1 for groups of one size, fewer where a few groups hold most samples.

    Args:
        layers: Losses of every sample.
        slopes: (…, L+1).
        tails: How many tails share the 5 % (Bonferroni): 2 for each two-sided interval, 1 for each one-sided.

    Returns:
        (…), NaN below `ENOUGH_GROUPS` groups.
    """
    if layers.group_count < ENOUGH_GROUPS:
        return slopes.new_full(slopes.shape[:-1], math.nan)
    sizes = layers.by_group(layers.losses.new_ones(len(layers.losses))).numpy()
    apart = layers.by_group(layers.losses - layers.losses.mean(0))  # small numbers round less
    errors = standard_error((apart @ slopes.flatten(0, -2).T).numpy(), sizes)
    quantile = student.ppf(1 - (1 - CONFIDENCE) / tails, degrees_of_freedom(sizes))
    return torch.from_numpy(errors).unflatten(0, slopes.shape[:-1]) * float(quantile)
