"""Tasks with targets inside a text: a class for each token, and the answer to a question."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from descend.errors import InputError, SampleError
from descend.tasks.base import Task
from descend.tasks.text.language import IGNORED
from descend.tasks.text.logits import LogitTask, at_least_single
from descend.tasks.text.tokens import (
    column,
    embedding_sigma,
    readable,
    refuse_missing,
    refuse_rows,
    row_lengths,
    sample_of,
)

ANSWER = ("start_positions", "end_positions")
"""The fields of a sample that say where its answer starts and ends: its first and its last token."""


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

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Raise an error if a token classifier can't take a sample.

        Args:
            dataset: Tokenized samples with ``input_ids`` and ``labels``: a `datasets.Dataset` or a list. Other types
                are not checked.
            limits: The model's number of ``labels``, its ``vocabulary`` size and its longest ``length`` in tokens, as
                far as they are known.

        Raises:
            InputError: If tokens or targets are missing, or a value is out of range; the message names the sample.
        """
        if not readable(dataset):
            return
        refuse_rows(dataset, limits)
        refuse_missing(dataset, "labels")
        lengths, counts = row_lengths(dataset, "input_ids"), row_lengths(dataset, "labels")
        if (lengths != counts).any():
            sample = int((lengths != counts).argmax())
            raise SampleError(
                f"sample {sample} has {counts[sample]} labels; expected one for each of its {lengths[sample]} tokens, "
                f"{IGNORED} for a token without a class.",
                sample,
            )
        labels = column(dataset, "labels")
        wrong = (labels != IGNORED) & ((labels < 0) | (labels >= limits.get("labels", labels.max() + 1)))
        if wrong.any():
            place = int(wrong.argmax())
            sample = sample_of(place, lengths)
            raise SampleError(
                f"sample {sample} has label {labels[place]}; expected {IGNORED} for a token without a class, or 0 … "
                f"{limits.get('labels', labels.max() + 1) - 1}.",
                sample,
            )
        if not (labels != IGNORED).any():
            raise InputError(f"there is no target in {len(dataset)} samples: every label is {IGNORED}.")


class QuestionAnswering(Task):
    """Mark the answer to a question in a text by its first and its last token.

    A target is a sample with ``start_positions`` and ``end_positions``. A prediction is (B, T, 2): logits of start and
    end. The loss is the mean of both cross-entropies over the T tokens. The metric is the share of exact answers, those
    with both places right, in [0, 1].
    """

    metric = "exact_match"
    higher_is_better = True
    separable = True
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

    def sigma(self, embedding: nn.Module, dataset: Any) -> float | None:
        """σ_x of all tokens in a data set, without padding; None for samples without tokens."""
        return embedding_sigma(embedding, dataset)

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Raise an error if a model can't take a sample.

        Args:
            dataset: Tokenized samples with ``input_ids``, ``start_positions`` and ``end_positions``: a
                `datasets.Dataset` or a list. Other types are not checked.
            limits: The model's ``vocabulary`` size and its longest ``length`` in tokens, as far as they are known.

        Raises:
            InputError: If a field is missing or a value is out of range; the message names the sample.
        """
        if not readable(dataset):
            return
        refuse_rows(dataset, limits)
        for name in ANSWER:
            refuse_missing(dataset, name)
        lengths = row_lengths(dataset, "input_ids")
        starts, ends = (column(dataset, name) for name in ANSWER)
        wrong = (starts < 0) | (ends < starts) | (ends >= lengths)
        if wrong.any():
            sample = int(wrong.argmax())
            raise SampleError(
                f"sample {sample} has its answer at tokens {starts[sample]} … {ends[sample]}; expected places in order "
                f"within 0 … {lengths[sample] - 1}. For a text without the answer, give the place of the first token "
                "twice.",
                sample,
            )
