"""Early warnings: whether a run is on its way to meet its constraints."""

from itertools import pairwise
from typing import Any

from torch import Tensor

from descend.core.problem import DescentProblem


class Outlook:
    """Warns, once per constraint of α, of a run that will not meet it: one whose gap stays and does not close.

    The gap of constraint l is its violation, and counts once λ_l grows and outweighs the objective: on an infeasible
    problem λ_l grows without bound. All constraints together require f_L ≤ f_first Π_l (1−α_l): their gap is how far
    the last loss is above that, relative to it. If label noise keeps it there, no model meets them.

    Args:
        problem: The constraints.
        patience: The number of consecutive reports in which a gap stays before a warning.
    """

    def __init__(self, problem: DescentProblem, patience: int = 10):
        self.problem, self.patience = problem, patience
        self._warned: set[int] = set()  # layers; 0 for all constraints together
        self._history: list[tuple[list[float], list[float]]] = []  # multipliers and gaps of the last reports

    def report(self, losses: Tensor, multipliers: Tensor) -> list[str]:
        """New warnings, each once in a run. Call it at regular intervals after warm-up.

        Args:
            losses: f_0 … f_L, shape (L+1,).
            multipliers: λ, shape (L+1,); entry 0 is the cap's.
        """
        if self.problem.alpha is None:
            return []
        gaps = self.problem.violations(losses).tolist()
        gaps[0] = (losses[-1] / self.problem.floor(losses)).item() - 1  # of all together, in place of the cap's
        self._history = [*self._history[-self.patience :], (multipliers.tolist(), gaps)]
        if len(self._history) <= self.patience:
            return []
        new = [layer for layer in range(self.problem.depth + 1) if layer not in self._warned and self._stays(layer)]
        self._warned |= set(new)
        return [self._of_constraint(layer, losses) if layer else self._of_all(losses) for layer in new]

    def state_dict(self) -> dict[str, Any]:
        """The reports so far, as JSON content, so that a resumed run does not repeat a warning."""
        return {"warned": sorted(self._warned), "history": list(self._history)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._warned, self._history = set(state["warned"]), list(state["history"])

    def _series(self, layer: int) -> tuple[list[float], list[float]]:
        """The last multipliers and gaps of a constraint."""
        return [row[layer] for row, _ in self._history], [row[layer] for _, row in self._history]

    def _stays(self, layer: int) -> bool:
        """Whether a gap stays: the mean of its later half is not a tenth below that of the earlier half."""
        multipliers, gaps = self._series(layer)
        half = len(gaps) // 2
        if sum(gaps[-half:]) < 0.9 * sum(gaps[:half]):
            return False
        if not layer:  # a gap below a tenth is normal: violations shrink slowly near feasibility
            return min(gaps) >= 0.1
        # Below 1 a multiplier does not outweigh the objective yet, and progress may only be slow.
        return min(gaps) > 0 and multipliers[-1] >= 1 and all(later > now for now, later in pairwise(multipliers))

    def _of_all(self, losses: Tensor) -> str:
        bound, first = self.problem.floor(losses).item(), losses[self.problem.first].item()
        share = self.problem.floor(losses.new_ones(len(losses))).item()
        return (
            f"the constraints ask a last loss of at most {bound:.4g}: {first:.4g} at layer {self.problem.first} times "
            f"the product of all 1 - alpha, {share:.4g}. It is {losses[-1].item():.4g}, and does not come closer. If "
            "noise in the data keeps it there, no model meets the constraints: lower alpha."
        )

    def _of_constraint(self, layer: int, losses: Tensor) -> str:
        multipliers, gaps = self._series(layer)
        asked = "loss" if self.problem.form == "difference" else "ratio to the loss before"
        return (
            f"constraint {layer} is violated by {gaps[-1]:.3g}, and does not come closer though its multiplier has "
            f"grown from {multipliers[0]:.3g} to {multipliers[-1]:.3g}: it asks layer {layer} for a {asked} of at most "
            f"{self.problem.bounds(losses)[layer].item():.4g}, and seems out of reach. Lower its alpha, or allow more "
            "slack by resilience."
        )
