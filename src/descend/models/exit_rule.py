"""The rule for early exits: a sample leaves at the first confident layer, or when its decision has not changed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.errors import refuse


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
        refuse(
            (
                self.threshold is not None
                and not (isinstance(self.threshold, int | float) and 0 < self.threshold <= 1),
                f"exit_threshold must be a number in (0, 1]; got {self.threshold!r}.",
            ),
            (
                self.patience is not None and not (isinstance(self.patience, int) and self.patience >= 1),
                f"exit_patience must be a whole number of at least 1; got {self.patience!r}.",
            ),
        )

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
