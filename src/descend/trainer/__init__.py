"""The one training loop: transformers' Trainer, the Lagrangian for its loss, a dual step after each of its own."""

from descend.evaluation.satisfaction import preferred
from descend.trainer.loop import RECORDS_FILE, DescentMixin, DescentTrainer, steps_of_epoch
from descend.trainer.measuring import DUAL_FILE, FEASIBLE_FOLDER
from descend.trainer.saving import STATE_FILE

__all__ = [
    "DUAL_FILE",
    "FEASIBLE_FOLDER",
    "RECORDS_FILE",
    "STATE_FILE",
    "DescentMixin",
    "DescentTrainer",
    "preferred",
    "steps_of_epoch",
]
