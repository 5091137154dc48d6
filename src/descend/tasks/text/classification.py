"""The base of tasks on texts; classes of texts and of their tokens, and answers to questions."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from descend.errors import InputError, refusing
from descend.tasks.base import LABELS, Task
from descend.tasks.text.tokens import check_tokens, fields, readable, refuse, require, token_counts, values

IGNORED = -100
"""The label of a token without a target, as in Transformers."""

ANSWER = ("start_positions", "end_positions")
"""The fields of a sample that say where its answer starts and ends: its first and its last token."""


class TextTask(Task):
    """A task on tokenized texts."""

    higher_is_better = True
    separable = True

    @torch.no_grad()
    def sigma(self, embedding: nn.Module, dataset: Any) -> float | None:
        """σ_x: the standard deviation over the embeddings of all tokens of a data set, without padding.

        It is exact: each token of the vocabulary is weighted by its count. None for samples without tokens, such as
        texts that the collator tokenizes.
        """
        if len(dataset) and "input_ids" not in fields(dataset):
            return None
        counts = token_counts(dataset)
        used = counts.nonzero().flatten()
        device = next(embedding.parameters()).device
        # On the CPU, because not every device has double precision.
        vectors = embedding(used.to(device)).cpu().double()
        share = counts[used].double() / counts.sum()
        mean = (share @ vectors).mean()
        return (share @ (vectors - mean).square()).mean().sqrt().item()

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
        """1 for each target that is predicted correctly, 0 for others and where a logit is NaN, shape (N,)."""
        largest, decision = prediction.max(-1)
        return ((decision == target) & ~largest.isnan()).float()

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
        """Raise an error unless each sample has one label, within the model's ``labels`` if they are known."""
        name, classes = require(dataset, *LABELS), limits.get("labels")
        with refusing(f"every sample must have one {name}"):
            labels, _ = values(dataset, name)
        if labels.dtype.kind not in "iu" or len(labels) != len(dataset):
            raise InputError(
                f"{name} must be whole numbers, one for each sample; got {labels.dtype} and {len(labels)} for "
                f"{len(dataset)} samples."
            )
        expected, largest = "at least 0. Correct the label.", labels.max(initial=0)
        if classes is not None:
            largest = classes - 1
            expected = (
                f"0 … {largest}, as the model's head has {classes} labels. Choose a model with another head, or "
                "correct the label."
            )
        refuse(
            (labels < 0) | (labels > largest),
            lambda sample: f"has label {labels[sample]}; expected {expected}",
        )


class TokenClassification(LogitTask):
    """Classify the tokens of a text whose label is not ignored, such as the first of each word.

    A target is a token. The loss is the cross-entropy, averaged over target tokens; the metric is the accuracy over
    them, in [0, 1]. Pad labels with -100, as `DataCollatorForTokenClassification` does.
    """

    metric = "token_accuracy"

    def inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch without its labels, and ``places`` (N,): which of B·T tokens are targets.

        Without labels there are no places, and predictions are of all tokens.
        """
        places = {"places": (batch["labels"] != IGNORED).flatten().nonzero().flatten()} if "labels" in batch else {}
        return super().inputs(batch) | places

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The classes of the target tokens, (N,), one text after the other."""
        return batch["labels"][batch["labels"] != IGNORED]

    def owners(self, batch: dict[str, Any]) -> Tensor:
        """The text of the batch that each target belongs to, (N,)."""
        return (batch["labels"] != IGNORED).nonzero()[:, 0]

    def check_targets(self, dataset: Any, lengths: np.ndarray, limits: dict[str, int]) -> None:
        """Raise an error unless each token has a label, -100 or one of the model's ``labels``."""
        check_token_labels(dataset, lengths, limits.get("labels"))


class QuestionAnswering(TextTask):
    """Mark the answer to a question in a text by its first and its last token.

    A target is a sample with ``start_positions`` and ``end_positions``. A prediction is (B, T, 2): logits of start and
    end. The loss is the mean of both cross-entropies over the T tokens. The metric is the share of exact answers, those
    with both places right, in [0, 1].
    """

    metric = "exact_match"
    bounded = True
    fields = ANSWER

    def inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch without the places of the answers."""
        return {name: value for name, value in super().inputs(batch).items() if name not in ANSWER}

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The first and the last token of each answer, (B, 2)."""
        return torch.stack([batch[name] for name in ANSWER], 1)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The mean of the cross-entropies of start and end, (B,)."""
        logits = at_least_single(prediction).transpose(1, 2).flatten(0, 1)
        return F.cross_entropy(logits, target.flatten(), reduction="none").view(-1, 2).mean(1)

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """1 for each exact answer, 0 for others, (B,)."""
        return (prediction.argmax(1) == target).all(1).float()

    def check_targets(self, dataset: Any, lengths: np.ndarray, limits: dict[str, int]) -> None:
        """Raise an error unless each answer is at two tokens of its text, in order."""
        for name in ANSWER:
            require(dataset, name)
        starts, ends = (values(dataset, name)[0] for name in ANSWER)
        refuse(
            (starts < 0) | (ends < starts) | (ends >= lengths),
            lambda sample: (
                f"has its answer at tokens {starts[sample]} … {ends[sample]}; expected places in order "
                f"within 0 … {lengths[sample] - 1}. For a text without the answer, give the place of the first token "
                "twice."
            ),
        )


def check_token_labels(dataset: Any, lengths: np.ndarray, classes: int | None) -> None:
    """Raise an error unless each token has a label, and one of them at least is not `IGNORED`.

    Args:
        dataset: Samples with ``labels``: a `datasets.Dataset` or a list.
        lengths: The number of tokens of each sample.
        classes: The number of classes; None if it is not known.
    """
    require(dataset, "labels")
    labels, counts = values(dataset, "labels")
    refuse(
        lengths != counts,
        lambda sample: (
            f"has {counts[sample]} labels; expected one for each of its {lengths[sample]} tokens, {IGNORED} "
            "for a token without a target."
        ),
    )
    targets = labels != IGNORED
    if not targets.any():
        raise InputError(f"there is no target in {len(dataset)} samples: every label is {IGNORED}.")
    largest = labels.max() if classes is None else classes - 1
    refuse(
        targets & ((labels < 0) | (labels > largest)),
        lambda place: f"has label {labels[place]}; expected {IGNORED} for a token without a target, or 0 … {largest}.",
        lengths,
    )
