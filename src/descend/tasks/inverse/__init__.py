"""Inverse problems: generated signals and their measurements, and the loss of an estimate."""

from descend.tasks.inverse.generated import Measured, dictionary, images, sparse_codes
from descend.tasks.inverse.reconstruction import Reconstruction

__all__ = ["Measured", "Reconstruction", "dictionary", "images", "sparse_codes"]
