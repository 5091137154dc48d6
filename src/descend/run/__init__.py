"""A run: a recipe carried out in a folder, so that it can be repeated, resumed and judged."""

from descend.run.completing import complete
from descend.run.judging import default_levels, evaluate, mean_metric
from descend.run.training import differences, finished, stored, train

__all__ = ["complete", "default_levels", "differences", "evaluate", "finished", "mean_metric", "stored", "train"]
