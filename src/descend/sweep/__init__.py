"""A sweep: the settings of a recipe searched for every method alike, by Optuna, and chosen on validation data."""

from descend.sweep.results import sentences
from descend.sweep.space import read_ranges
from descend.sweep.worker import sweep

__all__ = ["read_ranges", "sentences", "sweep"]
