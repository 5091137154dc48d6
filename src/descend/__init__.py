"""Transformers whose every layer goes downhill.

A layerwise descent constraint, enforced by primal-dual training, makes each layer lower the expected task loss.
The core, `DescentProblem` and `PrimalDual`, needs torch alone and loads at once; the rest loads when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from descend.core import DescentProblem, GeometricTarget, PrimalDual
from descend.errors import InputError, NonFiniteLossError

if TYPE_CHECKING:
    from descend.inference import DescentClassifier
    from descend.models import DUST, UT, DUSTConfig, LayeredModel, UTConfig, layered
    from descend.noise import GaussianNoise
    from descend.objective import Objective
    from descend.tasks import Task
    from descend.training import DescentConfig, DescentTrainer

__all__ = [
    "DUST",
    "UT",
    "DUSTConfig",
    "DescentClassifier",
    "DescentConfig",
    "DescentProblem",
    "DescentTrainer",
    "GaussianNoise",
    "GeometricTarget",
    "InputError",
    "LayeredModel",
    "NonFiniteLossError",
    "Objective",
    "PrimalDual",
    "Task",
    "UTConfig",
    "layered",
]

_ROOMS = {
    "models": ("DUST", "UT", "DUSTConfig", "LayeredModel", "UTConfig", "layered"),
    "noise": ("GaussianNoise",),
    "objective": ("Objective",),
    "tasks": ("Task",),
    "training": ("DescentConfig", "DescentTrainer"),
    "inference": ("DescentClassifier",),
}


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"descend.{room}"), name)
    raise AttributeError(f"module 'descend' has no attribute {name!r}")
