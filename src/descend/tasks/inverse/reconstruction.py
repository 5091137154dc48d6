"""The task of an inverse problem: an estimate is as good as it is near the signal."""

import torch
from torch import Tensor

from descend.tasks.base import Task


class Reconstruction(Task):
    """The squared error ‖x_l − x‖² of each signal, in a unit such as the mean squared norm of signals.

    Args:
        unit: The unit.
        metric: The name of the error in this unit.
        squared: Whether the loss is the squared error; otherwise it is its root. The metric is the squared one.
    """

    separable = True

    def __init__(self, unit: float, metric: str, squared: bool = True):
        self.unit = unit
        self.metric = metric
        self.squared = squared

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of each of N signals, (N,)."""
        errors = self.score(prediction, target)
        # At 0 the root has no gradient.
        return errors if self.squared else errors.clamp_min(torch.finfo(errors.dtype).tiny).sqrt()

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The squared error of each of N signals, (N,), in the unit."""
        return (prediction - target).flatten(1).square().sum(1) / self.unit
