"""The training loop: Transformers' Trainer with the Lagrangian as its loss and a dual step after each primal step."""

from descend.evaluation.calibration import preferred
from descend.results import DUAL_FILE, FEASIBLE_FOLDER
from descend.training.config import DescentConfig
from descend.training.loader import steps_of_epoch
from descend.training.trainer import DescentMixin, DescentTrainer

__all__ = [
    "DUAL_FILE",
    "FEASIBLE_FOLDER",
    "DescentConfig",
    "DescentMixin",
    "DescentTrainer",
    "preferred",
    "steps_of_epoch",
]
