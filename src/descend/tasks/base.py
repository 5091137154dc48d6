"""The base class of a task: one required method, and defaults for all else."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

LABELS = ("labels", "label", "label_ids")
"""Fields of a batch that hold the target by Transformers' convention."""

GROUP = "group"
"""The field that says which samples are not independent of each other."""


class Task(ABC):
    """The loss and metric of a data set.

    A subclass must define `losses`. Every other method and attribute has a default that suits samples with ``labels``
    and a model that takes the other fields by name::

        class Digits(descend.Task):
            metric, higher_is_better = "accuracy", True

            def losses(self, prediction, target):
                return F.cross_entropy(prediction, target, reduction="none")

            def score(self, prediction, target):
                return (prediction.argmax(-1) == target).float()

    A *target* is what one loss belongs to: a sample, or for example a token of a sample. N is the number of targets in
    a batch of B samples.
    """

    metric: str = "loss"
    """The metric's name on pages and in logs."""

    higher_is_better: bool = False
    """Whether a larger metric is better."""

    root: bool = False
    """Whether the metric is the root of the mean `score`, such as an RMSE, instead of the mean."""

    @property
    def bounded(self) -> bool:
        """Whether the metric is a share: better when higher, with every `score` in [0, 1].

        Only such metrics can be certified on few samples; of others an evaluation says *estimated*. By default it is
        known of accuracies alone, by their name. A task with another share says so by the attribute ``bounded = True``.
        """
        return self.metric.endswith("accuracy") and self.higher_is_better

    separable: bool = False
    """Whether the loss of a target depends on its own prediction alone, not on others in the batch. Then `losses` is
    called once for several layers, which is faster on a GPU."""

    rows: int = 1
    """How many rows of the model's input a sample makes, such as 2 for a pair of texts; they stand side by side."""

    fields: tuple[str, ...] = ()
    """Fields of a sample that this task reads beside the model's inputs, ``labels`` and ``group``; the trainer drops
    all others, as Transformers' Trainer does."""

    @abstractmethod
    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss f of every target, shape (N,), from one layer's prediction. Do not reduce it to a mean.

        They must be positive, because a layer's bound is a share of a loss; a single one may be 0. Training under
        constraints and evaluation refuse a negative mean. If losses can be negative, add a constant.
        """

    def inputs(self, batch: dict[str, Any]) -> Any:
        """The model's inputs: the fields of the batch by name, without ``labels`` and ``group``."""
        return {name: value for name, value in batch.items() if name not in (*LABELS, GROUP)}

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The targets of a batch, N of them along the first dimension: the field ``labels``."""
        return batch["labels"]

    def mask(self, batch: dict[str, Any]) -> Tensor | None:
        """Where noise may be added, bool (B, T), or None for everywhere: the field ``attention_mask`` if given."""
        mask = batch.get("attention_mask")
        return None if mask is None else mask.bool()

    def sums(self, predictions: Tensor | Sequence[Tensor], target: Tensor) -> Tensor:
        """Σ over the targets of each exit's loss, (E,), in single precision at least.

        Args:
            predictions: One for each of E exits, (E, …) or a list of E.
            target: The targets of all of them.
        """
        count = len(predictions)
        if self.separable and count > 1 and isinstance(predictions, Tensor):
            repeated = target.repeat(count, *(1 for _ in target.shape[1:]))
            losses = self.losses(predictions.flatten(0, 1), repeated).unflatten(0, (count, -1))
        else:
            losses = torch.stack([self.losses(prediction, target) for prediction in predictions])
        return losses.sum(1, dtype=torch.promote_types(losses.dtype, torch.float32))

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The metric's value at every target, shape (N,); the metric is their mean. By default the loss."""
        return self.losses(prediction, target)

    def over_data(self, scores: Tensor, target: Tensor) -> Tensor:
        """The scores of all S targets of a data set at E exits, (S, E), from what `score` gave; by default the same.

        For a metric that is no mean of scores, such as a correlation: each target's share, whose mean is the metric.

        Args:
            scores: What `score` gave, (S, E), double.
            target: The targets, (S, …).
        """
        return scores

    @property
    def scores_together(self) -> bool:
        """Whether the metric is made of a whole data set, by a task's own `over_data`."""
        return type(self).over_data is not Task.over_data

    def decide(self, prediction: Tensor) -> tuple[Tensor, Tensor] | None:
        """The predicted class and its probability, both (N,); by default None: the task has no classes."""
        return None

    def owners(self, batch: dict[str, Any]) -> Tensor:
        """The sample 0 … B−1 that each target belongs to, (N,); by default one target for each sample.

        Override it if `target` has another number of rows than the batch has samples: confidence intervals count the
        targets of one sample together.
        """
        return torch.arange(len(self.target(batch)), device="cpu")

    def groups(self, batch: dict[str, Any]) -> Tensor | None:
        """The group of each sample, (B,) whole numbers, or None if samples are independent: ``group`` if given.

        Samples of one group, such as windows of one video, count together in confidence intervals.
        """
        return batch.get(GROUP)

    def sigma(self, embedding: nn.Module, dataset: Any) -> float | None:
        """σ_x, the standard deviation of the input embedding of a data set; None to measure it with forward passes."""
        return None

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Raise an `InputError` if a model with these limits can't take a sample; by default do nothing."""
        return None
