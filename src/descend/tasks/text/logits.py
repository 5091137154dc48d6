"""The base of tasks with logits: cross-entropy and accuracy."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from descend.tasks.base import Task
from descend.tasks.text.tokens import embedding_sigma


class LogitTask(Task):
    """Logits (N, C) of N targets over C classes: the loss is the cross-entropy and the metric the accuracy."""

    higher_is_better = True
    separable = True

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of the logits (N, C) against the classes (N,), shape (N,)."""
        return F.cross_entropy(at_least_single(prediction), target, reduction="none")

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """1 for each target that is predicted correctly, 0 for others, shape (N,)."""
        return (prediction.argmax(-1) == target).float()

    def decide(self, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely class of logits (N, C) and its probability, both (N,)."""
        confidence, decision = at_least_single(prediction).softmax(-1).max(-1)
        return decision, confidence

    def sigma(self, embedding: nn.Module, dataset: Any) -> float | None:
        """σ_x of all tokens in a data set, without padding; None for samples without tokens."""
        return embedding_sigma(embedding, dataset)


def at_least_single(logits: Tensor) -> Tensor:
    """Cast half-precision logits to single precision; return others unchanged."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
