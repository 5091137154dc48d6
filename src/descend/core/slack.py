"""Resilience: slack on the constraints at a quadratic cost (App. A.5; Hounie et al., 2023).

Slack u ≥ 0 relaxes constraint l to f_l − (1−α_l) f_{l−1} ≤ u_l and costs (1/(2ρ))‖u‖². The dual then has a
solution even if the constraints are infeasible. The optimal slack is u = ρλ.
"""

import math
from typing import Any

import torch
from torch import Tensor

from descend.core.multipliers import optimizer_over
from descend.errors import InputError


class ImplicitSlack:
    """u = ρλ at all times, so that the dual gradient is g − ρλ, eq. (38).

    It is an L2 term inside the dual gradient, not decoupled weight decay: with Adam the two differ.

    Args:
        resilience: ρ ≥ 0; 0 for no slack.

    Raises:
        InputError: If ρ is negative or not finite.
    """

    def __init__(self, resilience: float):
        if not 0 <= resilience < math.inf:
            raise InputError(f"resilience must be 0 (hard constraints) or positive; got {resilience}.")
        self.resilience = resilience

    def values(self, multipliers: Tensor) -> Tensor:
        """The slack of each constraint, shape (L+1,), as ``multipliers``."""
        return self.resilience * multipliers

    def descend(self, multipliers: Tensor) -> None:
        """Does nothing: the slack follows the multipliers."""

    def restart(self) -> None:
        """Does nothing: the slack follows the multipliers."""

    def state_dict(self) -> dict[str, Any]:
        """Empty: the slack follows the multipliers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: the slack follows the multipliers."""


class ExplicitSlack(ImplicitSlack):
    """u is a separate variable that descends the Lagrangian of eq. (36): its gradient is u/ρ − λ.

    At the optimum u = ρλ, as in the implicit form; before that it may differ. `restart` sets it to 0, which the paper
    does after every epoch.

    Args:
        resilience: ρ > 0.
        in_force: Shape (L+1,), bool; slack elsewhere stays 0.
        name: The optimizer of u.
        lr: Its learning rate.

    Raises:
        InputError: If ρ is not positive, or there is no such optimizer.
    """

    def __init__(self, resilience: float, in_force: Tensor, name: str, lr: float):
        super().__init__(resilience)
        if not resilience > 0:
            raise InputError(
                f"explicit slack needs a positive resilience; got {resilience}. For hard constraints use "
                "slack='implicit'."
            )
        self._in_force, self._name, self._lr = in_force, name, lr
        self.restart()

    def values(self, multipliers: Tensor) -> Tensor:
        """The slack of each constraint, shape (L+1,)."""
        return self._values

    def descend(self, multipliers: Tensor) -> None:
        """One projected step of u for fixed λ, shape (L+1,)."""
        self._values.grad = torch.where(self._in_force, self._values / self.resilience - multipliers, 0.0)
        with torch.device("cpu"):  # Adam creates its step counter on the default device
            self._optimizer.step()
        self._values.grad = None
        self._values.clamp_(min=0.0)

    def restart(self) -> None:
        """Set u to 0 and reset its optimizer."""
        self._values = torch.zeros(len(self._in_force), dtype=torch.float64, device="cpu")
        self._optimizer = optimizer_over(self._values, self._name, self._lr)

    def state_dict(self) -> dict[str, Any]:
        """The slack u and the state of its optimizer."""
        return {"values": self._values, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._values.copy_(state["values"])
        self._optimizer.load_state_dict(state["optimizer"])
