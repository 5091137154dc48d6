"""The rule for early exits: a sample leaves at the first confident layer, or when its decision has not changed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from descend.errors import InputError
from descend.reading import read_json

CERTIFIED_FILE = "certified_exit.json"
"""Beside a model's weights: the exit threshold that ``descend evaluate --risk`` certified."""


@dataclass(frozen=True)
class CertifiedExit:
    """The exit threshold that belongs to a saved model, and the bound that it was certified by.

    Attributes:
        threshold: A text leaves after the first layer whose confidence is at least this; None for full depth.
        risk: The largest share of texts that may lose an answer that full depth has right.
        confidence: How sure this is, over the draw of the validation data.
        noise: The level γ that it holds for.

    Raises:
        InputError: If an entry is no number in its range.
    """

    threshold: float | None
    risk: float
    confidence: float
    noise: float

    def __post_init__(self) -> None:
        numbers = (self.risk, self.confidence, self.noise)
        real = all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)
        if not real or not (0 < self.risk < 1 and 0 < self.confidence < 1 and 0 <= self.noise < math.inf):
            raise InputError(
                "risk and confidence must be numbers between 0 and 1, and noise one of at least 0; got "
                f"{numbers!r:.80}."
            )
        if isinstance(self.threshold, bool):
            raise InputError(f"threshold must be a number in (0, 1], or null; got {self.threshold}.")
        ExitRule(self.threshold)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The threshold saved in a model's folder; None if there is none.

        Raises:
            InputError: If the file is damaged.
        """
        path = folder / CERTIFIED_FILE
        if not path.exists():
            return None
        content = read_json(path)
        todo = "Run descend evaluate --exit --risk again, or remove the file."
        try:
            return cls(**content)
        except TypeError:
            names = ", ".join(cls.__dataclass_fields__)
            raise InputError(f"{path} must be an object with {names}; got {content!r:.80}. {todo}") from None
        except InputError as error:
            raise InputError(f"{path}: {error} {todo}") from None


@dataclass(frozen=True)
class ExitRule:
    """When a sample leaves. With both settings the rule that applies first counts; with neither it is layer L.

    Attributes:
        threshold: In (0, 1]; leave after the first layer whose confidence is at least this.
        patience: p ≥ 1; leave after the first layer that gives the same class as the p layers before it, counted from
            layer 1 (PABEE; Zhou et al., 2020).

    Raises:
        InputError: If a setting is out of range.
    """

    threshold: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not (isinstance(self.threshold, int | float) and 0 < self.threshold <= 1):
            raise InputError(f"exit_threshold must be a number in (0, 1]; got {self.threshold!r}.")
        if self.patience is not None and not (isinstance(self.patience, int) and self.patience >= 1):
            raise InputError(f"exit_patience must be a whole number of at least 1; got {self.patience!r}.")

    @property
    def early(self) -> bool:
        """Whether any sample can leave before layer L."""
        return self.threshold is not None or self.patience is not None

    def leave(self) -> Callable[[int, Tensor, Tensor], Tensor]:
        """The rule for one batch, as `LayeredClassifier.exits` calls it.

        Returns:
            A function of the layer 1, 2, …, its logits (R, C) and the rows (R,) of the batch that are still present.
            It returns which of them leave, bool (R,), and must be called once per layer.
        """
        step = self._step()
        return lambda layer, logits, rows: step(layer, *decide(logits), rows)

    def layers(self, decisions: Tensor, confidences: Tensor) -> Tensor:
        """The layer 1 … L at which each sample leaves, (S,), if all layers are known.

        Args:
            decisions: The class that each of layers 1 … L decides for, (S, L).
            confidences: Its probability, (S, L).
        """
        step, rows = self._step(), torch.arange(len(decisions), device=decisions.device)
        left = torch.full_like(rows, decisions.shape[1])
        for layer in range(1, decisions.shape[1]):
            leaves = step(layer, decisions[rows, layer - 1], confidences[rows, layer - 1], rows)
            left[rows[leaves]] = layer
            rows = rows[~leaves]
        return left

    def _step(self) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        """The rule with its memory: layer, decisions (R,), confidences (R,) and rows (R,) → bool (R,)."""
        enough = math.inf if self.threshold is None else self.threshold
        long = math.inf if self.patience is None else self.patience
        last = lasted = torch.empty(0)  # each row's class, and for how many layers it has not changed

        def step(layer: int, decided: Tensor, confidence: Tensor, rows: Tensor) -> Tensor:
            nonlocal last, lasted
            if layer == 1:  # all rows are present
                last, lasted = decided.clone(), torch.zeros_like(decided)
            else:
                lasted[rows] = torch.where(decided == last[rows], lasted[rows] + 1, 0)
                last[rows] = decided
            return (confidence >= enough) | (lasted[rows] >= long)

        return step


def decide(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely class (R,) of logits (R, C), and its probability (R,)."""
    confidence, decided = logits.float().softmax(-1).max(-1)
    return decided, confidence
