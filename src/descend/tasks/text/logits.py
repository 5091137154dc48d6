"""What tasks that tell one of some names from logits have in common."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from descend.tasks.text.tokens import embedding_sigma


class LogitTask:
    """Logits (N, C) against the right one of C names, N targets: cross-entropy, and the share that is told right."""

    higher_is_better = True
    root = False

    def mask(self, batch: dict[str, Any]) -> Tensor | None:
        """What is no padding, (B, T)."""
        mask = batch.get("attention_mask")
        return None if mask is None else mask.bool()

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of every target's logits (N, C), shape (N,)."""
        return F.cross_entropy(at_least_single(prediction), target, reduction="none")

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Whether each target is told, shape (N,)."""
        return (prediction.argmax(-1) == target).float()

    def decide(self, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """What logits (N, C) decide for and its probability, both (N,)."""
        confidence, decision = at_least_single(prediction).softmax(-1).max(-1)
        return decision, confidence

    def sigma(self, embedding: nn.Module, dataset: Any) -> float:
        """σ_x: the standard deviation over the embeddings of all tokens of a data set, padding left out."""
        return embedding_sigma(embedding, dataset)


def at_least_single(logits: Tensor) -> Tensor:
    """Logits in single precision where they come in half."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
