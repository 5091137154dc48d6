"""Tasks with targets inside a text: a class for each token, and the answer to a question."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from descend.tasks.text.classification import LogitTask, TextTask, at_least_single
from descend.tasks.text.language import IGNORED, check_token_labels
from descend.tasks.text.tokens import refuse, require, values

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
