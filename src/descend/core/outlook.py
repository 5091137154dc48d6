"""Early warnings: whether a run is on its way to meet its constraints, and what to lower if it is not."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from descend.core.problem import DescentProblem

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
        self._reports = [*self._reports[1 - 4 * self.patience :], (losses.tolist(), multipliers.tolist())]
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
        """Restore the state of `state_dict`; reports of an earlier version are left out."""
        self._warned, self._reports = set(state["warned"]), list(state.get("reports", ()))

    def _faults(self) -> Iterator[tuple[int, str]]:
        """The warnings that are due, by key."""
        if len(self._reports) > self.patience:
            columns = zip(*self._reports, strict=True)
            losses, multipliers = (torch.tensor(each, dtype=torch.float64, device="cpu") for each in columns)
            gaps = torch.stack([self._gaps(each) for each in losses])
            yield from self._out_of_reach(losses, multipliers, gaps)
            yield from self._raised(losses, multipliers, gaps)

    def _gaps(self, losses: Tensor) -> Tensor:
        """The violation of each constraint relative to its bound, 0 if not in force."""
        return self.problem.violations(losses) / self.problem.bounds(losses).where(self.problem.in_force, 1.0)

    def _start(self, losses: Tensor) -> Tensor:
        """The losses, the chain's first at its cap if training may raise it so far."""
        problem, first = self.problem, self.problem.first
        losses = losses.clone()
        if problem.cap is not None and problem.cap_layer == first and not problem.stop_gradient:
            losses[first] = losses[first].clamp(min=problem.cap)
        return losses

    def _out_of_reach(self, losses: Tensor, multipliers: Tensor, gaps: Tensor) -> Iterator[tuple[int, str]]:
        """Warnings of losses that no layer has reached, from reports (R, L+1)."""
        problem, recent, start = self.problem, slice(-self.patience - 1, None), self._start(losses[-1])
        least = losses.min()
        gap = (losses[:, -1] / torch.stack([problem.floor(self._start(each)) for each in losses]) - 1)[recent]
        # A gap below a tenth is normal: violations shrink slowly near feasibility.
        if problem.floor(start) < least and _stays(gap) and gap.min() >= 0.1:
            yield 0, self._of_all(losses[-1], start)
        for layer in range(1, problem.depth + 1):
            allowed, grown, gap = problem.floor(start, layer), multipliers[recent, layer], gaps[recent, layer]
            # Below 1 a multiplier does not outweigh the objective yet, and progress may only be slow.
            outweighs = grown[-1] >= 1 and bool((grown.diff() > 0).all())
            if allowed < least and _stays(gap) and gap.min() > 0 and outweighs:
                yield layer, self._of_constraint(layer, losses[-1], grown, allowed, least)

    def _raised(self, losses: Tensor, multipliers: Tensor, gaps: Tensor) -> Iterator[tuple[int, str]]:
        """The warning of a layer that is raised above its own bound, from reports (R, L+1)."""
        problem = self.problem
        if len(losses) < 4 * self.patience:
            return
        own = gaps.clone()
        own[:, 0] = 0.0
        own[:, problem.cap_layer] = torch.maximum(own[:, problem.cap_layer], gaps[:, 0])
        negative = torch.stack([problem.weights(*each) for each in zip(multipliers, losses, strict=True)]) < 0
        counts = torch.stack([negative, own > 0.1]).unflatten(1, (2, -1)).sum(2)  # (both, halves, L+1)
        often = counts.amin((0, 1)) >= self.patience / 2
        for layer in often.nonzero().flatten().tolist():
            if _stays(own[:, layer].clamp(min=0.0)):
                yield RAISED, self._of_raised(layer, *counts[:, :, layer].sum(1).tolist(), len(losses))
                return

    def _of_all(self, losses: Tensor, start: Tensor) -> str:
        first, problem = self.problem.first, self.problem
        share = problem.floor(torch.ones_like(start)).item()
        return (
            f"the constraints ask a last loss of at most {problem.floor(start).item():.4g}: {start[first].item():.4g} "
            f"at layer {first} times the product of all 1 - alpha, {share:.4g}. It is {losses[-1].item():.4g}, and "
            f"does not come closer. If noise in the data keeps it there, no model meets the constraints: {self._todo}."
        )

    def _of_constraint(self, layer: int, losses: Tensor, grown: Tensor, allowed: Tensor, least: Tensor) -> str:
        asked = "loss" if self.problem.form == "difference" else "ratio to the loss before"
        violation, bound = (each(losses)[layer].item() for each in (self.problem.violations, self.problem.bounds))
        return (
            f"constraint {layer} is violated by {violation:.3g}, and does not come closer though its multiplier has "
            f"grown from {grown[0].item():.3g} to {grown[-1].item():.3g}: it asks layer {layer} for a {asked} of at "
            f"most {bound:.4g}, and seems out of reach. All constraints together allow it a loss of "
            f"{allowed.item():.4g}, and no layer has reached less than {least.item():.4g}: {self._todo}, or allow more "
            "slack by resilience."
        )

    @staticmethod
    def _of_raised(layer: int, negative: int, broken: int, reports: int) -> str:
        return (
            f"the weight of layer {layer} was negative in {negative} of the last {reports} logs, which raises its "
            f"loss, and its own bound was broken by more than a tenth in {broken}: lower the dual's learning rate or "
            "alpha."
        )

    @property
    def _todo(self) -> str:
        return "lower alpha" if self.problem.cap is None else "lower alpha or raise the cap"


def _stays(gap: Tensor) -> bool:
    """Whether a gap stays, (R,): the mean of its later half is not a tenth below that of the earlier half."""
    half = len(gap) // 2
    return bool(gap[-half:].sum() >= 0.9 * gap[:half].sum())
