"""Training under which every layer of a transformer or unrolled network lowers the loss, and how many layers suffice.

Descent constraints are enforced by primal-dual training. Importing this package is cheap: each name loads what it needs
on first use, and `DescentProblem` and `PrimalDual` need torch alone.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from descend.errors import InputError, NonFiniteLossError
from descend.extras import lazy_names

if TYPE_CHECKING:
    from descend.core import DescentProblem, GeometricTarget, NearLast, NoWorse, PrimalDual, Problem, Target
    from descend.inference import DescentClassifier
    from descend.inference.denoiser import DescentDenoiser
    from descend.models import DUST, UT, DUSTConfig, LayeredModel, UTConfig, first, layered
    from descend.noise import GaussianNoise
    from descend.objective import Objective
    from descend.recipes import configure
    from descend.run.in_memory import evaluate
    from descend.run.run import Run
    from descend.tasks import Task
    from descend.training import DescentConfig, DescentTrainer
    from descend.training.layers_loss import LayersLoss
    from descend.training.unrolled_loss import UnrolledLoss

__all__ = [
    "DUST",
    "UT",
    "DUSTConfig",
    "DescentClassifier",
    "DescentConfig",
    "DescentDenoiser",
    "DescentProblem",
    "DescentTrainer",
    "GaussianNoise",
    "GeometricTarget",
    "InputError",
    "LayeredModel",
    "LayersLoss",
    "NearLast",
    "NoWorse",
    "NonFiniteLossError",
    "Objective",
    "PrimalDual",
    "Problem",
    "Run",
    "Target",
    "Task",
    "UTConfig",
    "UnrolledLoss",
    "configure",
    "evaluate",
    "first",
    "layered",
]

_ROOMS = {
    "core": ("DescentProblem", "GeometricTarget", "NearLast", "NoWorse", "PrimalDual", "Problem", "Target"),
    "models": ("DUST", "UT", "DUSTConfig", "LayeredModel", "UTConfig", "first", "layered"),
    "noise": ("GaussianNoise",),
    "objective": ("Objective",),
    "recipes": ("configure",),
    "run.in_memory": ("evaluate",),
    "run.run": ("Run",),
    "tasks": ("Task",),
    "training": ("DescentConfig", "DescentTrainer"),
    "training.layers_loss": ("LayersLoss",),
    "training.unrolled_loss": ("UnrolledLoss",),
    "inference": ("DescentClassifier",),
    "inference.denoiser": ("DescentDenoiser",),
}


__version__ = version("descend")

__getattr__ = lazy_names("descend", _ROOMS)


def __dir__() -> list[str]:
    return __all__
