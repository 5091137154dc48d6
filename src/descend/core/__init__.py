"""Layerwise descent constraints and their primal-dual solution, in terms of a vector of layer losses only."""

from descend.core.losses import LossSums
from descend.core.outlook import Outlook
from descend.core.primal_dual import PrimalDual
from descend.core.problem import DescentProblem
from descend.core.targets import GeometricTarget, StepTarget, Target, refuse_negative

__all__ = [
    "DescentProblem",
    "GeometricTarget",
    "LossSums",
    "Outlook",
    "PrimalDual",
    "StepTarget",
    "Target",
    "refuse_negative",
]
