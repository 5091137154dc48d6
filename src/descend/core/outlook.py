"""Whether a run is on its way to meet its constraints, told while there is time to stop it."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from descend.core.problem import DescentProblem


class Outlook:
    """Tells, each thing once, what the losses and multipliers of a run say about its end.

    Two signs are known. Constraints multiply: together they ask f_L ≤ f_first Π_l (1−α_l), and a last loss that noise
    in the labels keeps above that meets them with no model: it stays away and does not come closer. And a multiplier
    that nothing holds back: on an infeasible problem λ_l grows without end, and outweighs the loss it was to help with.

    Args:
        problem: What the run is held to.
        patience: Reports in a row over which a multiplier must grow, and what it or all are to close must not.
    """

    def __init__(self, problem: DescentProblem, patience: int = 10):
        self.problem = problem
        self.patience = patience
        self._told: set[int] = set()
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._apart: list[float] = []  # what the last loss is above that which all constraints ask, in shares of it

    def report(self, losses: Tensor, multipliers: Tensor) -> list[str]:
        """What there is to say; to be asked at regular intervals from the end of warm-up on.

        Args:
            losses: f_0 … f_L, shape (L+1,).
            multipliers: λ_1 … λ_L, shape (L,).

        Returns:
            Sentences, none twice in the life of a run.
        """
        if self.problem.alpha is None:
            return []
        self._seen = [*self._seen[-self.patience :], (multipliers, self.problem.violations(losses))]
        self._apart = [*self._apart[-self.patience :], (losses[-1] / self.problem.floor(losses)).item() - 1]
        return self._floor(losses) + self._growth(losses)

    def state_dict(self) -> dict[str, Any]:
        """What was seen and told, so that a resumed run does not say it again."""
        return {"told": sorted(self._told), "seen": list(self._seen), "apart": list(self._apart)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._told, self._seen, self._apart = set(state["told"]), list(state["seen"]), list(state["apart"])

    def _floor(self, losses: Tensor) -> list[str]:
        """Whether all constraints together ask for less than the last loss comes near to."""
        # A tenth: what remains of a violation on the way to feasibility is no sign.
        if len(self._apart) <= self.patience or 0 in self._told or min(self._apart) < 0.1 or _closes(self._apart):
            return []
        self._told.add(0)
        asked, reached = self.problem.floor(losses).item(), losses[-1].item()
        first, share = self.problem.first, self.problem.floor(torch.ones_like(losses)).item()
        return [
            f"the constraints ask a last loss of at most {asked:.4g}: {losses[first].item():.4g} at layer {first} "
            f"times the product of all 1 - alpha, {share:.4g}. It is {reached:.4g}, and does not come closer. If noise "
            "in the data keeps it above what is asked, no model meets them: lower alpha."
        ]

    def _growth(self, losses: Tensor) -> list[str]:
        """Which multipliers grow and grow, and bring nothing."""
        if len(self._seen) <= self.patience:
            return []
        found = []
        for layer in range(1, self.problem.depth + 1):
            weights = [each[0][layer - 1].item() for each in self._seen]
            violations = [each[1][layer - 1].item() for each in self._seen]
            grows = all(later > earlier for earlier, later in pairwise(weights))
            # Below 1 a multiplier has not outweighed the loss yet, and may only be slow.
            if layer in self._told or not grows or weights[-1] < 1 or min(violations) <= 0:
                continue
            if not _closes(violations):
                self._told.add(layer)
                found.append(
                    f"constraint {layer} is violated by {violations[-1]:.3g}, and does not come closer though its "
                    f"multiplier has grown from {weights[0]:.3g} to {weights[-1]:.3g}: it asks layer {layer} for a "
                    f"loss of at most {self.problem.bounds(losses)[layer].item():.4g}, and seems out of reach. Lower "
                    "its alpha, or allow more slack by resilience."
                )
        return found


def _closes(gaps: list[float]) -> bool:
    """Whether gaps shrink: the later half is a tenth below the earlier."""
    half = len(gaps) // 2
    return sum(gaps[-half:]) < 0.9 * sum(gaps[:half])
