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

CONFIDENCE = 0.95
"""Of all intervals at once."""

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
        intervals: A (low, high) of each, simultaneous at 95 % over all constraints in force.
        cap_violation: That of the cap, 0 without one.
        cap_interval: Its interval.
        violated: Broken constraints, by layer; 0 stands for the cap. Their interval lies above 0, which proves it, or
            they are missed by more than 1 % of their bound.
        undecided: Constraints that are not broken, but whose interval reaches above 0.
        feasible: No constraint is broken.
        certain: No constraint is broken or undecided: every interval lies at or below 0, and rests on several groups.
        groups: How many independent groups of samples the intervals rest on; of a single one its samples.
        single: Whether all samples are of one group: then the intervals say nothing of others.
        worst: The largest violation of a constraint in force, the cap's among them; −∞ if none is.
        bounds: What each layer's loss had to reach, L numbers; None where no constraint is in force.
        certified: By which share each layer lowers the loss of the one before at least, 1 − f_l / f_{l−1}, with 95 %
            confidence for all L layers together; L numbers, below 0 where the data can't exclude that it rises.
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
    single: bool
    worst: float
    bounds: list[float | None]
    certified: list[float]

    def certificate(self) -> str:
        """What is certain of each layer, in words."""
        falls = [f"layer {layer} by {share:.1%}" for layer, share in enumerate(self.certified, start=1) if share > 0]
        if not falls:
            return "No layer is certain to lower the loss on these data."
        return f"With {CONFIDENCE:.0%} confidence these layers lower the loss at least: {', '.join(falls)}."

    def sentence(self, data: str = "held-out data") -> str:
        """The verdict in words; ``data`` are what it was measured on."""
        words = self._broken(data) if self.violated else self._feasible(data)
        return (
            f"{words} The samples are all of one group, such as one clip: nothing is known of others."
            if self.single
            else words
        )

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
        misses = "misses its bound" if len(unproven) == 1 else "miss their bounds"
        misses = f"{_names(unproven)} {misses} by more than {TOLERANCE:.0%}"
        if not proven:
            return f"INFEASIBLE, but not proven: {misses} on {data}, which may be chance. Judge on more samples."
        breaks = "breaks its constraint" if len(proven) == 1 else "break their constraints"
        words = f"INFEASIBLE: {_names(proven)} {breaks} on {data}."
        if not unproven:
            return words
        return f"{words} {misses[0].upper()}{misses[1:]}, which may be chance: judge on more samples."


def verdict(problem: DescentProblem, layers: LayerLosses) -> Verdict:
    """Hold a model's measured losses against the problem that it was trained on.

    The violations are those of the mean losses, as in training. Their intervals come from the spread over groups of
    samples (the windows of a clip are alike, and count together) to first order (the delta method, exact in the
    difference form), with Student's t at 95 % simultaneously over the constraints (Bonferroni). With a single group
    each sample is its own, and nothing is certain.

    Args:
        problem: The constraints.
        layers: Losses of every sample.

    Raises:
        InputError: If fewer than two samples leave the interval unknown, or a layer's mean loss is negative.
    """
    losses = layers.losses
    count = len(losses)
    if count < 2:
        raise InputError(f"a verdict needs at least 2 samples to know its confidence interval; got {count}.")
    mean = losses.mean(0)
    refuse_negative(mean)
    estimate = problem.violations(mean)
    slopes = torch.func.jacrev(_two_sided(problem).violations)(mean)
    errors, groups = _standard_errors(layers, (losses - mean) @ slopes.T)
    number = max(1, int(problem.in_force.sum()))
    width = errors * float(student.ppf(1 - (1 - CONFIDENCE) / (2 * number), groups - 1))
    low, high = estimate - width, estimate + width
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
        certain=not (violated | undecided).any().item() and not layers.single,
        groups=groups,
        single=layers.single,
        worst=estimate[problem.in_force].max().item() if problem.constrained else -math.inf,
        bounds=[
            bound if on else None
            for bound, on in zip(problem.bounds(mean)[1:].tolist(), problem.in_force[1:].tolist(), strict=True)
        ],
        certified=certified_falls(layers),
    )


def certified_falls(layers: LayerLosses) -> list[float]:
    """The lower end of each layer's relative fall 1 − f_l / f_{l−1}, L numbers.

    One-sided, at 95 % simultaneously over the layers (Bonferroni), by the delta method over groups of samples, as in
    `verdict`. A layer after a loss of 0 lowers nothing.

    Args:
        layers: Losses of every sample.
    """
    losses = layers.losses
    mean = losses.mean(0)
    before, after = mean[:-1], mean[1:]
    divisors = torch.where(before == 0, 1.0, before)
    falls = torch.where(before == 0, 0.0, 1 - after / divisors)
    # d(f_l / f_{l−1}) = (df_l − (f_l / f_{l−1}) df_{l−1}) / f_{l−1}
    moved = losses - mean
    errors, groups = _standard_errors(layers, (moved[:, 1:] - (after / divisors) * moved[:, :-1]) / divisors)
    return (falls - errors * float(student.ppf(1 - (1 - CONFIDENCE) / len(falls), groups - 1))).tolist()


def _standard_errors(layers: LayerLosses, deviations: Tensor) -> tuple[Tensor, int]:
    """The standard error of each mean from the samples' deviations, (S, K) → (K,), and the number of groups."""
    totals = layers.by_group(deviations)
    groups = len(totals)
    return (totals.square().sum(0) * groups / (groups - 1)).sqrt() / len(deviations), groups


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


def _names(constraints: list[int]) -> str:
    layers = ", ".join(str(layer) for layer in constraints if layer)
    words = (["the cap"] if 0 in constraints else []) + (
        [f"layer{'s' if ',' in layers else ''} {layers}"] if layers else []
    )
    return " and ".join(words)
