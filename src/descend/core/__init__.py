"""Layerwise descent constraints, or others, and their primal-dual solution, in terms of a vector of losses only."""

from descend.core.losses import LossSums
from descend.core.primal_dual import PrimalDual
from descend.core.problem import DescentProblem, Problem
from descend.core.targets import GeometricTarget, NearLast, NoWorse, StepTarget, Target, refuse_negative

__all__ = [
    "DescentProblem",
    "GeometricTarget",
    "LossSums",
    "NearLast",
    "NoWorse",
    "PrimalDual",
    "Problem",
    "StepTarget",
    "Target",
    "refuse_negative",
]
