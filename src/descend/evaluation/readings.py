"""What every exit says of one batch, from one forward pass: losses, scores and decisions."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from descend.models.causal import LayeredCausalLM
from descend.objective import Task
from descend.tiles import rows_per_tile

WatchRows = Callable[[Tensor], None]
"""Called with the logits (R, V) of the last exit of a language model, a tile of rows at a time."""


@dataclass(frozen=True)
class Readings:
    """The exits of one batch of N targets.

    Attributes:
        losses: f_l of every target, (N, L+1).
        scores: What the metric is made of, (N, L+1).
        decisions: The class that each exit decides for, (N, L+1), and its probability; both None if the task has no
            decisions.
        confidences: See ``decisions``.
        last: The last exit's prediction; None for a language model, whose logits do not outlive their tile.
        logits: The predictions of all exits, (N, L+1, C), if they are kept.
    """

    losses: Tensor
    scores: Tensor
    decisions: Tensor | None
    confidences: Tensor | None
    last: Tensor | None = None
    logits: Tensor | None = None

    def columns(self) -> dict[str, Tensor]:
        """What is measured of every target, by name, on the host."""
        names = ("losses", "scores", "decisions", "confidences", "logits")
        values = {name: getattr(self, name) for name in names}
        return {name: value.cpu() for name, value in values.items() if value is not None}


def read_predictions(
    predictions: Iterable[Tensor], task: Task, target: Tensor, *, keep_logits: bool = False
) -> Readings:
    """Look at the prediction of every exit, one after the other.

    Args:
        predictions: L+1 predictions.
        task: Its loss, score and decision.
        target: Their targets, (N, …).
        keep_logits: Keep the predictions (N, C).
    """
    columns: dict[str, list[Tensor]] = defaultdict(list)
    last = None
    for last in predictions:
        for name, value in _judged(last, task, target).items():
            columns[name].append(value)
        if keep_logits:
            columns["logits"].append(last)
    return _readings({name: torch.stack(values, 1) for name, values in columns.items()}, last)


def read_language_model(
    model: LayeredCausalLM, inputs: Any, task: Task, target: Tensor, watch_rows: WatchRows | None = None
) -> Readings:
    """Look at every exit of a language model, a tile of logits at a time.

    All L+1 exits are read from one forward pass; no more than `TILE` logits are held at once.

    Args:
        model: The model.
        inputs: With ``places``, see `NextToken.inputs`.
        task: Its loss, score and decision.
        target: The target tokens (N,).
        watch_rows: Sees the last exit's logits.
    """
    rows = inputs["places"]
    size = rows_per_tile(model.limits["vocabulary"])
    starts = range(0, max(len(rows), 1), size)  # a batch without a target has one empty tile
    states = model.layer_outputs(inputs)
    columns: dict[str, list[Tensor]] = defaultdict(list)
    for exit, state in enumerate(states):
        flat, parts = state.flatten(0, -2), defaultdict(list)
        for start in starts:
            logits = model.readout(flat[rows[start : start + size]])
            for name, value in _judged(logits, task, target[start : start + size]).items():
                parts[name].append(value)
            if watch_rows is not None and exit == len(states) - 1:
                watch_rows(logits)
        for name, values in parts.items():
            columns[name].append(torch.cat(values))
    return _readings({name: torch.stack(values, 1) for name, values in columns.items()}, None)


def _judged(prediction: Tensor, task: Task, target: Tensor) -> dict[str, Tensor]:
    judged = {"losses": task.losses(prediction, target), "scores": task.score(prediction, target)}
    decided = task.decide(prediction)
    return judged if decided is None else judged | {"decisions": decided[0], "confidences": decided[1]}


def _readings(columns: dict[str, Tensor], last: Tensor | None) -> Readings:
    return Readings(
        losses=columns["losses"],
        scores=columns["scores"],
        decisions=columns.get("decisions"),
        confidences=columns.get("confidences"),
        last=last,
        logits=columns.get("logits"),
    )
