"""The classification task: its loss and its metric."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

# Of a sample, what is not the tokenizer's.
_OURS = ("labels", "index", "group")


class Classification:
    """Tell a text's class.

    The loss is the cross-entropy; the metric is the accuracy over a data set, in [0, 1].
    """

    metric = "accuracy"
    higher_is_better = True

    def inputs(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """What a tokenizer gives: ``input_ids`` (B, T), ``attention_mask`` (B, T) and what else the model takes."""
        return {name: value for name, value in batch.items() if name not in _OURS}

    def mask(self, batch: dict[str, Any]) -> Tensor | None:
        """What is no padding, (B, T)."""
        return batch.get("attention_mask")

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The classes, (B,)."""
        return batch["labels"]

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of every sample's logits (B, C), shape (B,)."""
        return F.cross_entropy(prediction.float(), target, reduction="none")

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Whether each sample's class is told, shape (B,)."""
        return (prediction.argmax(-1) == target).float()

    def metric_value(self, total: float, count: float) -> float:
        """The accuracy over a data set."""
        return total / count
