"""The verdict: do the constraints hold on data that training did not see?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import t as student
from torch import Tensor

from descend.core import DescentProblem, refuse_negative
from descend.errors import InputError
from descend.evaluation.layers import LayerLosses
from descend.jackknife import degrees_of_freedom
from descend.results import ENOUGH_GROUPS

CONFIDENCE = 0.95
"""Of all intervals at once."""

LEAST_FALL = 0.001
"""Certain falls below this share are not listed: in per cent, with one decimal, they read as none."""

TOLERANCE = 0.01
"""A constraint missed by more than this share of its bound is broken, however wide its interval."""


def preferred(costs: Sequence[float], feasible: Sequence[bool]) -> int:
    """The place of the model to keep: the cheapest, or the cheapest feasible one if it costs at most 1 % more.

    Args:
        costs: What to make small, finite and at least one; of equal ones the first counts.
        feasible: Whether each model meets its constraints; all False where that is not to count.
    """
    places = sorted(range(len(costs)), key=lambda place: costs[place])
    limit = costs[places[0]] + TOLERANCE * abs(costs[places[0]])
    return next((place for place in places if feasible[place] and costs[place] <= limit), places[0])


@dataclass(frozen=True)
class Verdict:
    """Whether the constraints hold, as far as the samples can tell.

    Attributes:
        violations: The violation of each descent constraint on the data set, L numbers, ≤ 0 where it holds.
        intervals: A (low, high) of each, simultaneous at 95 % over all constraints in force; NaN where the verdict is
            open.
        cap_violation: That of the cap, 0 without one.
        cap_interval: Its interval.
        violated: Broken constraints, by layer; 0 stands for the cap. Their interval lies above 0, which proves it, or
            they are missed by more than 1 % of their bound.
        undecided: Constraints that are not broken, but whose interval is unknown or reaches above 0.
        feasible: No constraint is broken.
        certain: No constraint is broken or undecided, and the verdict is not open.
        groups: How many independent groups of samples the intervals rest on.
        worst: The largest violation of a constraint in force, the cap's among them; −∞ if none is.
        bounds: What each layer's loss had to reach, L numbers; None where no constraint is in force.
        certified: By which share each layer lowers the loss of the one before at least, 1 − f_l / f_{l−1}, with 95 %
            confidence for all L layers together; L numbers, below 0 where the data can't exclude that it rises, and
            NaN where the verdict is open.
    """

    violations: list[float]
    intervals: list[tuple[float, float]]
    cap_violation: float
    cap_interval: tuple[float, float]
    violated: list[int]
    undecided: list[int]
    feasible: bool
    certain: bool
    groups: int
    worst: float
    bounds: list[float | None]
    certified: list[float]

    @property
    def open(self) -> bool:
        """Whether groups are fewer than `ENOUGH_GROUPS`, and no constraint is proven broken all the same."""
        return self.groups < ENOUGH_GROUPS and self.violated == self.unproven

    @property
    def single(self) -> bool:
        """Whether all samples are of one group, such as the windows of one clip."""
        return self.groups == 1

    def certificate(self) -> str:
        """What is certain of each layer, in words; empty where the verdict is open."""
        if self.open:
            return ""
        shares = enumerate(self.certified, start=1)
        falls = [f"layer {layer} by {share:.1%}" for layer, share in shares if share >= LEAST_FALL]
        if not falls:
            return f"No layer is certain to lower the loss by {LEAST_FALL:.1%} on these data."
        return f"With {CONFIDENCE:.0%} confidence these layers lower the loss at least: {', '.join(falls)}."

    def sentence(self, data: str = "held-out data") -> str:
        """The verdict in words; ``data`` are what it was measured on."""
        if self.open:
            return (
                f"Open: {self.groups} group{'s' * (self.groups > 1)} of samples, at least {ENOUGH_GROUPS} are needed "
                f"for a verdict, such as {ENOUGH_GROUPS} clips or texts. So far {self._so_far(data)}."
            )
        return self._broken(data) if self.violated else self._feasible(data)

    def _so_far(self, data: str) -> str:
        """What the mean losses alone say."""
        missed = _misses(self.violated)
        return f"{missed} on {data}" if missed else f"no constraint is missed by more than {TOLERANCE:.0%} on {data}"

    def _feasible(self, data: str) -> str:
        """What is known of constraints that are not broken."""
        if self.certain:
            return f"Feasible: every constraint holds on {data}."
        if not self.undecided:
            return f"Feasible as far as the data can tell: every constraint holds on {data}."
        return (
            f"Feasible as far as the data can tell: no constraint is broken on {data}, but it can't be excluded "
            f"for {_names(self.undecided)}."
        )

    @property
    def unproven(self) -> list[int]:
        """Broken constraints whose interval contains 0, so that the miss of more than 1 % may be chance."""
        known = zip([self.cap_violation, *self.violations], [self.cap_interval, *self.intervals], strict=True)
        chance = [math.isfinite(missed) and not low > 0 for missed, (low, _) in known]
        return [constraint for constraint in self.violated if chance[constraint]]

    def _broken(self, data: str) -> str:
        """Which constraints are broken, and of which that is not proven."""
        unproven = self.unproven
        proven = [constraint for constraint in self.violated if constraint not in unproven]
        misses = _misses(unproven)
        if not proven:
            return f"INFEASIBLE, but not proven: {misses} on {data}, which may be chance. Judge on more samples."
        breaks = "breaks its constraint" if len(proven) == 1 else "break their constraints"
        words = f"INFEASIBLE: {_names(proven)} {breaks} on {data}."
        if not unproven:
            return words
        return f"{words} {misses[0].upper()}{misses[1:]}, which may be chance: judge on more samples."


def verdict(problem: DescentProblem, layers: LayerLosses) -> Verdict:
    """Hold a model's measured losses against the problem that it was trained on.

    The violations are those of the mean losses, as in training. Their intervals come from `standard_errors` to first
    order (the delta method, exact in the difference form), with Student's t at 95 % simultaneously over the constraints
    (Bonferroni). A bound that is the lowest or highest of several has an interval for each, joined as the bounds are:
    where they tie, the slope of the one that happens to be lower says too little. Below `ENOUGH_GROUPS` groups the
    verdict is open.

    Args:
        problem: The constraints.
        layers: Losses of every sample.

    Raises:
        InputError: If there are fewer than two samples, or a layer's mean loss is negative.
    """
    losses = layers.losses
    count = len(losses)
    if count < 2:
        raise InputError(f"a verdict needs at least 2 samples to know its confidence interval; got {count}.")
    mean = losses.mean(0)
    refuse_negative(mean)
    estimate = problem.violations(mean)
    smooth = _two_sided(problem)
    pieces, slopes = smooth.pieces(mean), torch.func.jacrev(smooth.pieces)(mean)
    errors, freedom = standard_errors(layers, slopes)
    number = max(1, int(problem.in_force.sum()))
    width = errors * _quantile(1 - (1 - CONFIDENCE) / (2 * number), freedom)
    low, high = (smooth.join(ends).where(problem.in_force, 0.0) for ends in (pieces - width, pieces + width))
    # A loss that is not finite meets no constraint.
    missed = (low > 0) | (estimate > TOLERANCE * problem.bounds(mean)) | ~estimate.isfinite()
    violated = missed & problem.in_force
    undecided = ~(high <= 0) & ~missed & problem.in_force  # an interval that is unknown decides nothing
    intervals = list(zip(low.tolist(), high.tolist(), strict=True))
    return Verdict(
        violations=estimate[1:].tolist(),
        intervals=intervals[1:],
        cap_violation=estimate[0].item(),
        cap_interval=intervals[0],
        violated=violated.nonzero().flatten().tolist(),
        undecided=undecided.nonzero().flatten().tolist(),
        feasible=not violated.any().item(),
        certain=not (violated | undecided).any().item() and layers.group_count >= ENOUGH_GROUPS,
        groups=layers.group_count,
        worst=estimate[problem.in_force].max().item() if problem.constrained else -math.inf,
        bounds=[
            bound if on else None
            for bound, on in zip(problem.bounds(mean)[1:].tolist(), problem.in_force[1:].tolist(), strict=True)
        ],
        certified=certified_falls(layers),
    )


def certified_falls(layers: LayerLosses) -> list[float]:
    """The lower end of each layer's relative fall 1 − f_l / f_{l−1}, L numbers; NaN below `ENOUGH_GROUPS` groups.

    One-sided, at 95 % simultaneously over the layers (Bonferroni), by the delta method, as in `verdict`. A layer after
    a loss of 0 lowers nothing.

    Args:
        layers: Losses of every sample.
    """
    mean = layers.losses.mean(0)
    before, after = mean[:-1], mean[1:]
    divisors = torch.where(before == 0, 1.0, before)
    falls = torch.where(before == 0, 0.0, 1 - after / divisors)
    # d(f_l / f_{l−1}) = (df_l − (f_l / f_{l−1}) df_{l−1}) / f_{l−1}
    slopes = mean.new_zeros(len(falls), len(mean))
    slopes.diagonal(1).copy_(1 / divisors)
    slopes.diagonal().copy_(-after / divisors**2)
    errors, freedom = standard_errors(layers, slopes)
    return (falls - errors * _quantile(1 - (1 - CONFIDENCE) / len(falls), freedom)).tolist()


def standard_errors(layers: LayerLosses, slopes: Tensor) -> tuple[Tensor, float]:
    r"""The standard errors of linear functions of the mean losses, and their degrees of freedom.

    The mean is over samples, the independent units are groups g of n_g of them: the windows of a clip are alike. The
    variance is the jackknife's, which leaves out one group at a time (CR3; MacKinnon and White, 1985):

    .. math:: \frac{G-1}{G} \sum_g \Big(\frac{T_g}{N - n_g}\Big)^2,
        \qquad T_g = \sum_{i \in g} \text{slopes} \cdot (f_i - \bar f)

    Its degrees of freedom are Satterthwaite's (Bell and McCaffrey, 2002; Imbens and Kolesár, 2016), for groups whose
    means have one variance: G − 1 for groups of one size, fewer where a few groups hold most samples.

    Args:
        layers: Losses of every sample.
        slopes: (…, L+1).

    Returns:
        The errors (…), and the degrees of freedom; NaN below `ENOUGH_GROUPS` groups.
    """
    groups, count = layers.group_count, len(layers.losses)
    if groups < ENOUGH_GROUPS:
        return slopes.new_full(slopes.shape[:-1], math.nan), math.nan
    sizes = layers.by_group(layers.losses.new_ones(count))
    totals = layers.by_group(layers.losses - layers.losses.mean(0)) / (count - sizes)[:, None]
    errors = ((totals @ slopes.flatten(0, -2).T).square().sum(0) * (groups - 1) / groups).sqrt()
    return errors.unflatten(0, slopes.shape[:-1]), degrees_of_freedom(sizes.numpy())


def _quantile(share: float, freedom: float) -> float:
    """Student's."""
    return float(student.ppf(share, freedom))


def _two_sided(problem: DescentProblem) -> DescentProblem:
    """The same constraints, differentiated through both sides: an estimate varies with both."""
    if problem.alpha is None:
        return problem
    return DescentProblem(
        problem.depth,
        problem.alpha,
        problem.cap,
        first=problem.first,
        form=problem.form,
        stop_gradient=False,
        cap_layer=problem.cap_layer,
    )


def _misses(constraints: list[int]) -> str:
    """That constraints are missed by more than the tolerance; empty without any."""
    misses = "misses its bound" if len(constraints) == 1 else "miss their bounds"
    return f"{_names(constraints)} {misses} by more than {TOLERANCE:.0%}" if constraints else ""


def _names(constraints: list[int]) -> str:
    layers = ", ".join(str(layer) for layer in constraints if layer)
    words = (["the cap"] if 0 in constraints else []) + (
        [f"layer{'s' if ',' in layers else ''} {layers}"] if layers else []
    )
    return " and ".join(words)
