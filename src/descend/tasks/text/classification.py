"""The base of tasks on texts, and the classification of texts."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from descend.errors import InputError, reason
from descend.tasks.base import LABELS, Task
from descend.tasks.text.tokens import check_tokens, embedding_sigma, readable, refuse, require, values


class TextTask(Task):
    """A task on tokenized texts."""

    higher_is_better = True
    separable = True

    def sigma(self, embedding: nn.Module, dataset: Any) -> float | None:
        """σ_x of all tokens in a data set, without padding; None for samples without tokens."""
        return embedding_sigma(embedding, dataset)

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Raise an error if a model can't take a sample.

        Args:
            dataset: Tokenized samples with their targets: a `datasets.Dataset` or a list. Other types are not checked.
            limits: The model's ``vocabulary`` size, its longest ``length`` in tokens and its number of ``labels``, as
                far as they are known.

        Raises:
            InputError: If tokens or targets are missing or out of range; the message names the sample.
        """
        if readable(dataset):
            self.check_targets(dataset, check_tokens(dataset, limits), limits)

    @abstractmethod
    def check_targets(self, dataset: Any, lengths: np.ndarray, limits: dict[str, int]) -> None:
        """Raise an error if targets are missing or out of range; ``lengths`` are the samples' in tokens."""


class LogitTask(TextTask):
    """Logits (N, C) of N targets over C classes: the loss is the cross-entropy and the metric the accuracy."""

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


def at_least_single(logits: Tensor) -> Tensor:
    """Cast half-precision logits to single precision; return others unchanged."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Classification(LogitTask):
    """Classify texts.

    The loss is the cross-entropy; the metric is the accuracy over a data set, in [0, 1].
    """

    metric = "accuracy"

    def disagreement(self, logits: Tensor, others: Tensor) -> Tensor:
        """½ [KL(p‖q) + KL(q‖p)] between the class probabilities of two predictions, shape (B,).

        Args:
            logits: The first prediction, (B, C).
            others: The second one, (B, C).
        """
        log_p, log_q = at_least_single(logits).log_softmax(-1), at_least_single(others).log_softmax(-1)
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2

    def check_targets(self, dataset: Any, lengths: np.ndarray, limits: dict[str, int]) -> None:
        """Raise an error unless each sample has one label within the model's ``labels``."""
        name, classes = require(dataset, *LABELS), limits["labels"]
        try:
            labels, _ = values(dataset, name)
        except (KeyError, ValueError) as error:
            raise InputError(f"every sample must have one {name}; {type(error).__name__}: {reason(error)}.") from None
        if labels.dtype.kind not in "iu" or len(labels) != len(dataset):
            raise InputError(
                f"{name} must be whole numbers, one for each sample; got {labels.dtype} and {len(labels)} for "
                f"{len(dataset)} samples."
            )
        refuse(
            (labels < 0) | (labels >= classes),
            lambda sample: (
                f"has label {labels[sample]}; expected 0 … {classes - 1}, as the model's head has {classes} "
                "labels. Choose a model with another head, or correct the label."
            ),
        )
