"""The classification task: its loss and its metric."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from descend.errors import InputError, reason
from descend.tasks.text.tokens import column, fields, row_lengths, stored, token_counts

# Of a sample, what is not the tokenizer's.
_OURS = ("labels", "group")


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
        mask = batch.get("attention_mask")
        return None if mask is None else mask.bool()

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The classes, (B,)."""
        return batch["labels"]

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of every sample's logits (B, C), shape (B,)."""
        return F.cross_entropy(prediction.float(), target, reduction="none")

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Whether each sample's class is told, shape (B,)."""
        return (prediction.argmax(-1) == target).float()

    def decide(self, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """The class that logits (B, C) decide for and its probability, both (B,)."""
        confidence, decision = prediction.float().softmax(-1).max(-1)
        return decision, confidence

    def metric_value(self, total: float, count: float) -> float:
        """The accuracy over a data set."""
        return total / count

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Refuse samples that a classifier can't take.

        Args:
            dataset: Tokenized samples: a `datasets.Dataset` or a list. Others can't be looked through beforehand.
            limits: The classifier's number of ``labels``, its ``vocabulary`` and its greatest ``length`` in tokens.

        Raises:
            InputError: If there are no tokens or labels, or one is out of range, naming the sample.
        """
        if not (stored(dataset) or isinstance(dataset, list)) or not len(dataset):
            return
        targets = ("labels", "label", "label_ids")
        for names in (("input_ids",), targets):
            if not set(names) & set(fields(dataset)):
                raise InputError(
                    f"samples must have {' or '.join(names)}; got {', '.join(fields(dataset))}. Tokenize the texts and "
                    "name their classes label."
                )
        name = next(each for each in targets if each in fields(dataset))
        try:
            labels = column(dataset, name)
        except (KeyError, ValueError) as error:
            raise InputError(f"every sample must have one {name}; {type(error).__name__}: {reason(error)}.") from None
        if labels.dtype.kind not in "iu" or len(labels) != len(dataset):
            raise InputError(
                f"{name} must be whole numbers, one for each sample; got {labels.dtype} and {len(labels)} for "
                f"{len(dataset)} samples."
            )
        ids, lengths = column(dataset, "input_ids"), row_lengths(dataset, "input_ids")
        starts = np.cumsum(lengths) - lengths

        def refuse(wrong: np.ndarray, sample: Callable[[int], int], words: Callable[[int], str]) -> None:
            if wrong.any():
                place = int(wrong.argmax())
                raise InputError(f"sample {sample(place)} {words(place)}")

        refuse(
            (labels < 0) | (labels >= limits["labels"]),
            int,
            lambda place: (
                f"has label {labels[place]}; expected 0 … {limits['labels'] - 1}, as the model's head has "
                f"{limits['labels']} labels. Choose a model with another head, or correct the label."
            ),
        )
        refuse(lengths == 0, int, lambda place: "has no token. Remove it.")
        refuse(
            (ids < 0) | (ids >= limits["vocabulary"]),
            lambda place: int(np.searchsorted(starts, place, side="right")) - 1,
            lambda place: (
                f"has token {ids[place]}; the model's word embedding has {limits['vocabulary']} rows. Use "
                "the model's own tokenizer."
            ),
        )
        if "length" in limits:
            refuse(
                lengths > limits["length"],
                int,
                lambda place: (
                    f"has {lengths[place]} tokens; the model takes at most {limits['length']}. Tokenize with "
                    f"truncation=True, max_length={limits['length']}."
                ),
            )

    @torch.no_grad()
    def sigma(self, embedding: nn.Module, dataset: Any) -> float:
        """σ_x: the standard deviation over the embeddings of all tokens of a data set, padding left out.

        Exact: every token of the vocabulary counts as often as it comes.
        """
        counts = token_counts(dataset)
        used = counts.nonzero().flatten()
        device = next(embedding.parameters()).device
        # On the host, where there is double precision on every machine.
        vectors = embedding(used.to(device)).cpu().double()
        share = counts[used].double() / counts.sum()
        mean = (share @ vectors).mean()
        return (share @ (vectors - mean).square()).mean().sqrt().item()
