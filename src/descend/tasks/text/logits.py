"""What tasks with logits share: cross-entropy, and the share of right answers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from descend.tasks.base import Task
from descend.tasks.text.tokens import embedding_sigma


class LogitTask(Task):
    """Logits (N, C) of N targets against the right one of C classes: cross-entropy, and the share of right answers."""

    higher_is_better = True

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of every target's logits (N, C), shape (N,)."""
        return F.cross_entropy(at_least_single(prediction), target, reduction="none")

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """1 for each target that is predicted right, 0 for others, shape (N,)."""
        return (prediction.argmax(-1) == target).float()

    def decide(self, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely class of logits (N, C) and its probability, both (N,)."""
        confidence, decision = at_least_single(prediction).softmax(-1).max(-1)
        return decision, confidence

    def sigma(self, embedding: nn.Module, dataset: Any) -> float:
        """σ_x: the standard deviation of the embeddings of all tokens in a data set, without padding."""
        return embedding_sigma(embedding, dataset)


def at_least_single(logits: Tensor) -> Tensor:
    """Half-precision logits in single precision; others as they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
