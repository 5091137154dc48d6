"""A run: a recipe carried out in a folder, so that it can be repeated, resumed and evaluated."""

from descend.run.completing import complete
from descend.run.describing import differences, stored
from descend.run.evaluating import evaluate, evaluate_frozen, frozen_folder, results_folder, usual_levels
from descend.run.exporting import export, export_model
from descend.run.training import finished, train

__all__ = [
    "complete",
    "differences",
    "evaluate",
    "evaluate_frozen",
    "export",
    "export_model",
    "finished",
    "frozen_folder",
    "results_folder",
    "stored",
    "train",
    "usual_levels",
]
