"""Whether the dual has converged: complementary slackness at the end of training, on the evaluated data."""

from typing import NamedTuple

SMALL_SLACKNESS = 0.01
"""The sum of all |λ · (violation − slack)| that counts as 0, as a share of the objective."""


class Dual(NamedTuple):
    """How far λ is from a saddle point of the Lagrangian. Lists are L+1 numbers, the cap's first.

    Attributes:
        objective: f_L at the training noise, which training lowers subject to the constraints.
        multipliers: λ when the model was saved; 0 where no constraint is in force.
        slackness: λ · (violation − slack) as a share of the objective, 0 at a saddle point: a multiplier above 0 has a
            constraint that holds with equality. It is above 0 where λ has yet to rise, below where λ has yet to fall.
        unmet: The broken constraints whose violation is above their slack, by layer; 0 stands for the cap.
        at_maximum: The constraints that are missed while λ is the price rule's p, which is an L1 penalty there.
            They are none of the two above.
    """

    objective: float
    multipliers: list[float]
    slackness: list[float]
    unmet: list[int]
    at_maximum: list[int] = []

    @property
    def gap(self) -> float:
        """The sum of all |slackness|; NaN if one is not finite."""
        return sum(map(abs, self.slackness))

    @property
    def converged(self) -> bool:
        """Whether the gap is at most `SMALL_SLACKNESS` and no constraint is unmet."""
        return self.gap <= SMALL_SLACKNESS and not self.unmet

    @property
    def worst(self) -> int:
        """The constraint of the largest |slackness|; where they are small together, an unmet one before all."""
        known = self.unmet if self.gap <= SMALL_SLACKNESS and self.unmet else range(len(self.slackness))
        return max(known, key=lambda layer: abs(self.slackness[layer]))
