"""The verdict: do the constraints hold on data that training did not see?"""

from dataclasses import dataclass

import torch

from descend.core import DescentProblem
from descend.errors import InputError
from descend.evaluation.layers import LayerLosses

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Verdict:
    """Whether the constraints hold, as far as the samples can tell.

    Attributes:
        violations: The violation of each descent constraint on the data set, L numbers, ≤ 0 where it holds.
        intervals: A (low, high) of each, simultaneous at 95 % over all constraints in force.
        cap_violation: That of the cap, 0 without one.
        cap_interval: Its interval.
        violated: Constraints whose interval lies above 0: layers that break their constraint; 0 stands for the cap.
        binding: Constraints whose interval holds 0: met, or missed by less than the samples can tell.
        feasible: No constraint is violated.
        certain: Every interval lies at or below 0: feasible beyond doubt.
    """

    violations: list[float]
    intervals: list[tuple[float, float]]
    cap_violation: float
    cap_interval: tuple[float, float]
    violated: list[int]
    binding: list[int]
    feasible: bool
    certain: bool

    def sentence(self) -> str:
        """The verdict in words."""
        bind = ""
        if self.binding:
            bind = f" {_names(self.binding).capitalize()} bind{'s' if len(self.binding) == 1 else ''}."
        if not self.feasible:
            breaks = "breaks its constraint" if len(self.violated) == 1 else "break their constraints"
            return f"INFEASIBLE: {_names(self.violated)} {breaks} on held-out data.{bind}"
        if self.certain:
            return "Feasible: every constraint holds on held-out data."
        return f"Feasible as far as the samples can tell: no constraint is violated on held-out data.{bind}"


def verdict(problem: DescentProblem, layers: LayerLosses) -> Verdict:
    """Hold a model's measured losses against the problem that it was trained on.

    The violations are those of the mean losses, as in training. Their intervals are normal, from the spread over
    samples to first order (the delta method, exact in the difference form), at 95 % simultaneously (Bonferroni).

    Args:
        problem: The constraints.
        layers: Losses of every sample.

    Raises:
        InputError: If fewer than two samples leave the interval unknown.
    """
    losses = layers.losses
    count = len(losses)
    if count < 2:
        raise InputError(f"a verdict needs at least 2 samples to know its confidence interval; got {count}.")
    mean = losses.mean(0)
    estimate = problem.constraints(mean)
    slopes = torch.func.jacrev(_two_sided(problem).constraints)(mean)
    spread = ((losses - mean) @ slopes.T).std(0) / count**0.5
    number = max(1, int(problem.in_force.sum()))
    width = spread * torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1 - (1 - CONFIDENCE) / (2 * number)))
    low, high = estimate - width, estimate + width
    active = problem.in_force
    violated = (low > 0) & active
    binding = (low <= 0) & (high > 0) & active
    intervals = list(zip(low.tolist(), high.tolist(), strict=True))
    return Verdict(
        violations=estimate[1:].tolist(),
        intervals=intervals[1:],
        cap_violation=estimate[0].item(),
        cap_interval=intervals[0],
        violated=violated.nonzero().flatten().tolist(),
        binding=binding.nonzero().flatten().tolist(),
        feasible=not violated.any().item(),
        certain=not (violated | binding).any().item(),
    )


def _two_sided(problem: DescentProblem) -> DescentProblem:
    """The same constraints, differentiated through both sides: an estimate varies with both."""
    return DescentProblem(problem.depth, problem.alpha, problem.cap, first=problem.first, form=problem.form)


def _names(constraints: list[int]) -> str:
    layers = ", ".join(str(layer) for layer in constraints if layer)
    words = (["the cap"] if 0 in constraints else []) + (
        [f"layer{'s' if ',' in layers else ''} {layers}"] if layers else []
    )
    return " and ".join(words)
