"""Classify texts with early exits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from descend.errors import InputError, reason, refuse
from descend.models import LayeredClassifier, decide, leave_at, load_model
from descend.results import CERTIFIED_FILE, CertifiedExit
from descend.tasks.text.tokens import KEEP_MARKUP, cleaned


@dataclass(frozen=True)
class Prediction:
    """A classifier's prediction for one text.

    Attributes:
        label: The class's name.
        index: The class's number.
        confidence: Its probability, the largest of the softmax.
        layer: The layer l = 1 … L that the text left after.
    """

    label: str
    index: int
    confidence: float
    layer: int


class DescentClassifier:
    """A classifier with its tokenizer; a text can leave after any layer.

    Args:
        model: A classifier of Transformers, or a `LayeredClassifier`.
        tokenizer: The model's tokenizer.
        device: The device to move the model to; None leaves it where it is.
        exit: The certified threshold at which texts leave unless `predict` is told otherwise; None for full depth.

    Raises:
        InputError: If the model's layers can't be read, or the tokenizer does not fit it.
    """

    def __init__(
        self,
        model: LayeredClassifier | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device | str | None = None,
        exit: CertifiedExit | None = None,
    ):
        self.exit = exit
        self.model = model if isinstance(model, LayeredClassifier) else LayeredClassifier(model)
        words, room = len(tokenizer), self.model.limits["vocabulary"]
        refuse(
            (tokenizer.pad_token_id is None, "the tokenizer has no token for padding; set its pad_token."),
            (
                words <= len(tokenizer.all_special_tokens),
                "the tokenizer has no words, only special tokens. Give the one the model was trained with.",
            ),
            (
                words > room,
                f"the tokenizer has {words} words, the model's word embedding {room}. Give the model's own tokenizer.",
            ),
        )
        self.tokenizer = tokenizer
        if device is not None:
            self.model.to(device)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, device: torch.device | str | None = None, *, certified: bool = True
    ) -> Self:
        """Load a trained classifier and its tokenizer, with the exit that ``descend evaluate --risk`` certified.

        Args:
            source: A run folder, a folder that `save_pretrained` wrote, or a name on the Hub.
            device: The device to move the model to; None for the CPU.
            certified: Whether texts leave by the threshold in the folder, if there is one; False for full depth.

        Raises:
            InputError: If it can't be loaded, its family is not in `FAMILIES`, or it was not trained as a classifier.
        """
        folder = Path(source).expanduser()
        # A run folder also has a config.json: that of the run.
        place = next((str(each) for each in (folder / "model", folder) if each.is_dir()), str(source))
        expected = (
            "a run folder, a folder with a model and its tokenizer, or a name on the Hub (with a network at first)"
        )
        model, loading = load_model(
            AutoModelForSequenceClassification, place, "a classifier", expected, output_loading_info=True
        )
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        except Exception as error:  # tokenizers raises plain exceptions
            raise InputError(
                f"can't load a classifier from {str(source)!r}: expected {expected}. {reason(error)}"
            ) from None
        tokenizer.init_kwargs.pop("auto_map", None)  # code of somebody else, which is not passed on
        if loading["missing_keys"]:
            raise InputError(
                f"{source} was not trained as a classifier: it has no {', '.join(sorted(loading['missing_keys']))}. "
                "Train it first."
            )
        file = Path(place) / CERTIFIED_FILE
        return cls(model, tokenizer, device, CertifiedExit.read(file) if certified and file.exists() else None)

    @torch.no_grad()
    def predict(
        self,
        texts: str | Sequence[str] | Sequence[tuple[str, str]],
        exit_threshold: float | None = None,
        batch_size: int = 32,
        layer: int | None = None,
    ) -> list[Prediction]:
        """Classify texts, or pairs of them such as premises and hypotheses; the model is put into eval mode.

        Without a threshold the certified one applies, if the model has one; else all texts go through all layers.

        Args:
            texts: A text, or a list of texts or of pairs. Texts that are too long for the model are cut, and where
                training read ``<br />`` as a blank, so does this.
            exit_threshold: In (0, 1]; a text leaves after the first layer whose confidence is at least that.
            batch_size: Texts per batch; a batch holds texts of similar length.
            layer: l, from 1 to L; all texts leave after it, in place of a threshold.

        Returns:
            One prediction for each text, in the order of the texts.

        Raises:
            InputError: If a text is empty or not a string, or a setting is out of range.
        """
        given = layer if isinstance(layer, int) and not isinstance(layer, bool) else 0
        refuse(
            (
                exit_threshold is not None
                and not (isinstance(exit_threshold, int | float) and 0 < exit_threshold <= 1),
                f"exit_threshold must be a number in (0, 1]; got {exit_threshold!r}.",
            ),
            (
                layer is not None and exit_threshold is not None,
                "expected layer or exit_threshold; got both. Leave one out.",
            ),
            (
                layer is not None and not 1 <= given <= self.model.depth,
                f"layer must be 1 to {self.model.depth}, the model's layers; got {layer!r}.",
            ),
            (
                not (isinstance(batch_size, int) and batch_size >= 1),
                f"batch_size must be a whole number of at least 1; got {batch_size!r}.",
            ),
        )
        if layer is None and exit_threshold is None and self.exit is not None:
            exit_threshold = self.exit.threshold
        columns = _columns(texts)
        if not columns:
            return []
        if (keeps := self.tokenizer.init_kwargs.get(KEEP_MARKUP)) is not None:  # as in training
            columns = tuple([cleaned(text, keeps) for text in column] for column in columns)
        # A tokenizer saved with a run has a maximum length; others may have a huge number.
        longest = min(self.model.limits.get("length", math.inf), self.tokenizer.model_max_length)
        cut = {"truncation": True, "max_length": int(longest)} if longest < 2**31 else {}
        encoded = self.tokenizer(*columns, **cut, verbose=False)
        samples = [dict(zip(encoded, values, strict=True)) for values in zip(*encoded.values(), strict=True)]
        # Longest texts first: little padding, and a batch that does not fit into memory fails at once.
        order = sorted(range(len(samples)), key=lambda place: -len(samples[place]["input_ids"]))
        collate = DataCollatorWithPadding(self.tokenizer)
        network = self.model.eval().library

        def leave_after_layer(place: int, logits: Tensor, rows: Tensor) -> Tensor:
            return torch.full_like(rows, place == layer, dtype=torch.bool)

        leave = leave_after_layer if exit_threshold is None else leave_at(exit_threshold)
        predictions: dict[int, Prediction] = {}
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            padded = collate([samples[place] for place in places])
            inputs = {name: value.to(network.device) for name, value in padded.items()}
            if exit_threshold is not None or layer is not None:
                logits, left = self.model.exits(inputs, leave)
                layers = left.tolist()
            else:
                logits, layers = self.model(**inputs).logits, [self.model.depth] * len(places)
            classes, sure = decide(logits)
            for place, index, confidence, last in zip(places, classes.tolist(), sure.tolist(), layers, strict=True):
                predictions[place] = Prediction(network.config.id2label[index], index, confidence, last)
        return [predictions[place] for place in range(len(samples))]


def _columns(texts: Any) -> tuple[list[str], ...]:
    """The tokenizer's arguments: one column of texts, or two of first and second texts; none without texts."""
    given = [texts] if isinstance(texts, str) else texts
    # A tuple is refused: it could mean one pair or two texts.
    if not isinstance(given, Sequence) or isinstance(given, tuple | bytes):
        raise InputError(f"expected a text, or a list of texts or of pairs of texts; got {type(texts).__name__}.")
    rows: list[Any] = [(each,) if isinstance(each, str) else each for each in given]
    for number, row in enumerate(rows):
        fits = isinstance(row, tuple | list) and len(row) in (1, 2) and all(isinstance(part, str) for part in row)
        refuse(
            (not fits, f"expected text {number} to be a string or a pair of strings; got {row!r:.60}."),
            (
                fits and len(row) != len(rows[0]),
                f"expected all texts alone or all in pairs; text {number} is not as the first is.",
            ),
            (fits and not all(part.strip() for part in row), f"text {number} is empty. Leave it out."),
        )
    return tuple(map(list, zip(*rows, strict=True)))
