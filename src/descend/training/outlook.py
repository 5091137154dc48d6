"""Early warnings: whether a run is on its way to meet its constraints, and what to lower if it is not."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from descend.core import DescentProblem

RAISED = -1
"""The key of the warning of a raised layer; that of a constraint is its layer, and 0 is all constraints together."""


class Outlook:
    """Warns, once each, of constraints of α that a run will not meet.

    **Out of reach.** All constraints together allow layer l the loss f_first Π_{k≤l} (1−α_k). A warning is due if no
    layer has reached so little, and the gap of constraint l, its violation relative to its bound, stays while λ_l grows
    and outweighs the objective: on an infeasible problem λ_l grows without bound. With a gradient through both sides
    training may raise f_first up to its cap.

    **Raised.** A negative weight raises a layer's loss for the next one's sake, as it should while the layer's own
    bound allows it. A warning is due if that bound is broken again and again as well, and this does not fade, as it
    does where the first loss is only on its way to the cap: multipliers move too fast, or α asks too much.

    Args:
        problem: The constraints.
        patience: The number of consecutive reports in which a gap stays before a warning; four times as many for a
            layer that is raised.
    """

    def __init__(self, problem: DescentProblem, patience: int = 10):
        self.problem, self.patience = problem, patience
        self._warned: set[int] = set()
        self._reports: list[tuple[list[float], list[float]]] = []  # the last losses and multipliers

    def report(self, losses: Tensor, multipliers: Tensor) -> list[str]:
        """New warnings, each once in a run. Call it at regular intervals after warm-up.

        Args:
            losses: f_0 … f_L, shape (L+1,).
            multipliers: λ, shape (L+1,); entry 0 is the cap's.
        """
        if self.problem.alpha is None:
            return []
        earlier = self._reports[1 - 4 * self.patience :]
        self._reports = [*earlier, (losses.tolist(), multipliers.tolist())]
        new = {key: sentence for key, sentence in self._faults() if key not in self._warned}
        self._warned |= new.keys()
        return list(new.values())

    @property
    def fault(self) -> str:
        """The first warning that is due now, whether it was told or not; empty for none."""
        return next((sentence for _, sentence in self._faults()), "")

    def state_dict(self) -> dict[str, Any]:
        """The reports so far, as JSON content, so that a resumed run does not repeat a warning."""
        return {"warned": sorted(self._warned), "reports": list(self._reports)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._warned, self._reports = set(state["warned"]), list(state["reports"])

    def _faults(self) -> Iterator[tuple[int, str]]:
        """The warnings that are due, by key."""
        if len(self._reports) <= self.patience:
            return
        problem = self.problem
        columns = zip(*self._reports, strict=True)
        losses, multipliers = (torch.tensor(each, dtype=torch.float64, device="cpu") for each in columns)
        bounds = torch.stack([problem.bounds(each) for each in losses]).where(problem.in_force, 1.0)
        gaps = torch.stack([problem.violations(each) for each in losses]) / bounds
        yield from self._out_of_reach(losses, multipliers, gaps)
        if len(losses) == 4 * self.patience:
            yield from self._raised(losses, multipliers, gaps)

    def _out_of_reach(self, losses: Tensor, multipliers: Tensor, gaps: Tensor) -> Iterator[tuple[int, str]]:
        """Warnings of losses that no layer has reached, from reports (R, L+1)."""
        problem = self.problem
        recent = slice(-self.patience - 1, None)
        least = losses.min()
        start = losses[recent, problem.first]
        todo = "lower alpha" if problem.cap is None else "lower alpha or raise the cap"
        if problem.cap is not None and problem.cap_layer == problem.first and not problem.stop_gradient:
            start = start.clamp(min=problem.cap)
        shares = torch.tensor([limit or 1.0 for limit in problem.limits], dtype=torch.float64, device="cpu").cumprod(0)
        allowed = start[-1] * shares
        last = losses[-1]
        gap = losses[recent, -1] / (start * shares[-1]) - 1
        # A gap below a tenth is normal: violations shrink slowly near feasibility.
        if allowed[-1] < least and _stays(gap) and gap.min() >= 0.1:
            yield (
                0,
                f"the constraints ask a last loss of at most {allowed[-1]:.4g}: {start[-1]:.4g} at layer "
                f"{problem.first} times the product of all 1 - alpha, {shares[-1]:.4g}. It is {last[-1]:.4g}, and does "
                f"not come closer. If noise in the data keeps it there, no model meets the constraints: {todo}.",
            )
        asked = "loss" if problem.form == "difference" else "ratio to the loss before"
        for layer in range(1, problem.depth + 1):
            gap = gaps[recent, layer]
            grown = multipliers[recent, layer]
            # Below 1 a multiplier does not outweigh the objective yet, and progress may only be slow.
            outweighs = grown[-1] >= 1 and bool((grown.diff() > 0).all())
            if allowed[layer] < least and _stays(gap) and gap.min() > 0 and outweighs:
                yield (
                    layer,
                    f"constraint {layer} is violated by {problem.violations(last)[layer]:.3g}, and does not come "
                    f"closer though its multiplier has grown from {grown[0]:.3g} to {grown[-1]:.3g}: it asks layer "
                    f"{layer} for a {asked} of at most {problem.bounds(last)[layer]:.4g}, and seems out of reach. All "
                    f"constraints together allow it a loss of {allowed[layer]:.4g}, and no layer has reached less than "
                    f"{least:.4g}: {todo}, or allow more slack by resilience.",
                )

    def _raised(self, losses: Tensor, multipliers: Tensor, gaps: Tensor) -> Iterator[tuple[int, str]]:
        """The warning of a layer that is raised above its own bound, from reports (R, L+1)."""
        problem = self.problem
        of_layer = gaps.clone()
        of_layer[:, 0] = 0.0
        capped = problem.cap_layer
        of_layer[:, capped] = torch.maximum(of_layer[:, capped], gaps[:, 0])
        weights = [problem.weights(*report) for report in zip(multipliers, losses, strict=True)]
        both = torch.stack([torch.stack(weights) < 0, of_layer > 0.1])
        counts = both.unflatten(1, (2, -1)).sum(2)  # (both, halves, L+1)
        often = (counts.amin((0, 1)) >= self.patience / 2).nonzero().flatten().tolist()
        if due := [layer for layer in often if _stays(of_layer[:, layer].clamp(min=0.0))]:
            raised, broken = counts[:, :, due[0]].sum(1).tolist()
            yield (
                RAISED,
                f"the weight of layer {due[0]} was negative in {raised} of the last {len(losses)} logs, which raises "
                f"its loss, and its own bound was broken by more than a tenth in {broken}: lower the dual's learning "
                "rate or alpha.",
            )


def _stays(gap: Tensor) -> bool:
    """Whether a gap stays, (R,): the mean of its later half is not a tenth below that of the earlier half."""
    half = len(gap) // 2
    return bool(gap[-half:].sum() >= 0.9 * gap[:half].sum())
