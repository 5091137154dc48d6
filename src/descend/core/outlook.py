"""Early warnings: whether a run is on its way to meet its constraints."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from descend.core.problem import DescentProblem


class Outlook:
    """Warns, once per constraint, of a run that will not meet its constraints.

    There are two signs. First, the constraints together require f_L ≤ f_first Π_l (1−α_l). If label noise keeps the
    last loss above that, no model meets them, and the gap does not close. Second, on an infeasible problem λ_l grows
    without bound until it outweighs the objective.

    Args:
        problem: The constraints.
        patience: The number of consecutive reports in which a multiplier grows while its violation does not shrink,
            before a warning.
    """

    def __init__(self, problem: DescentProblem, patience: int = 10):
        self.problem = problem
        self.patience = patience
        self._warned: set[int] = set()  # layers; 0 for all constraints together
        self._history: list[tuple[list[float], list[float]]] = []  # (multipliers, violations) of the last reports
        self._gaps: list[float] = []  # how far the last loss is above the floor, relative to the floor

    def report(self, losses: Tensor, multipliers: Tensor) -> list[str]:
        """Return new warnings. Call it at regular intervals after warm-up.

        Args:
            losses: f_0 … f_L, shape (L+1,).
            multipliers: λ, shape (L+1,); entry 0 is the cap's.

        Returns:
            Sentences; each occurs once in a run.
        """
        if self.problem.alpha is None:
            return []
        now = multipliers.tolist(), self.problem.violations(losses).tolist()
        self._history = [*self._history[-self.patience :], now]
        self._gaps = [*self._gaps[-self.patience :], (losses[-1] / self.problem.floor(losses)).item() - 1]
        return self._out_of_reach(losses) + self._growing(losses)

    def state_dict(self) -> dict[str, Any]:
        """The reports so far, as JSON content, so that a resumed run does not repeat a warning."""
        return {"warned": sorted(self._warned), "history": list(self._history), "gaps": list(self._gaps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._warned, self._history = set(state["warned"]), list(state["history"])
        self._gaps = list(state["gaps"])

    def _out_of_reach(self, losses: Tensor) -> list[str]:
        """Warn if the last loss stays above the bound of all constraints together."""
        # A gap below a tenth is normal: violations shrink slowly near feasibility.
        if len(self._gaps) <= self.patience or 0 in self._warned or min(self._gaps) < 0.1 or _closes(self._gaps):
            return []
        self._warned.add(0)
        bound, last = self.problem.floor(losses).item(), losses[-1].item()
        first, share = self.problem.first, self.problem.floor(torch.ones_like(losses)).item()
        return [
            f"the constraints ask a last loss of at most {bound:.4g}: {losses[first].item():.4g} at layer {first} "
            f"times the product of all 1 - alpha, {share:.4g}. It is {last:.4g}, and does not come closer. If noise "
            "in the data keeps it there, no model meets the constraints: lower alpha."
        ]

    def _growing(self, losses: Tensor) -> list[str]:
        """Warn of multipliers that grow without lowering their violation."""
        if len(self._history) <= self.patience:
            return []
        warnings = []
        for layer in range(1, self.problem.depth + 1):
            weights = [multipliers[layer] for multipliers, _ in self._history]
            violations = [violation[layer] for _, violation in self._history]
            grows = all(later > earlier for earlier, later in pairwise(weights))
            # Below 1 a multiplier does not outweigh the objective yet, and progress may only be slow.
            if layer in self._warned or not grows or weights[-1] < 1 or min(violations) <= 0:
                continue
            if not _closes(violations):
                self._warned.add(layer)
                warnings.append(
                    f"constraint {layer} is violated by {violations[-1]:.3g}, and does not come closer though its "
                    f"multiplier has grown from {weights[0]:.3g} to {weights[-1]:.3g}: it asks layer {layer} for a "
                    f"loss of at most {self.problem.bounds(losses)[layer].item():.4g}, and seems out of reach. Lower "
                    "its alpha, or allow more slack by resilience."
                )
        return warnings


def _closes(gaps: list[float]) -> bool:
    """Whether gaps shrink: the mean of the later half is at least a tenth below that of the earlier half."""
    half = len(gaps) // 2
    return sum(gaps[-half:]) < 0.9 * sum(gaps[:half])
