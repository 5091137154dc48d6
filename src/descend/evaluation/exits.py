"""Leaving early: what accuracy is left where a model stops at the layer that is sure."""

import time
from collections.abc import Callable
from typing import Any, cast

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from descend.evaluation.layers import LayerLosses, measure, metric_value
from descend.objective import Task

COST = 0.005
"""What leaving early may cost, in the metric: half a point of accuracy."""

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


def exit_layers(found: LayerLosses, *, threshold: float | None = None, patience: int | None = None) -> Tensor:
    """The layer 1 … L at which each sample leaves, (S,): the last one where it is never sure.

    Args:
        found: Decisions and confidences of every layer.
        threshold: Leave at the first layer whose confidence is at least this.
        patience: Leave where this many layers have agreed with the one before them, in a row (Zhou et al., 2020).
    """
    assert found.decisions is not None and found.confidences is not None
    if threshold is not None:
        sure = found.confidences[:, 1:] >= threshold
    else:
        agree = (found.decisions[:, 2:] == found.decisions[:, 1:-1]).long()
        run, runs = torch.zeros(len(agree), dtype=torch.long), [torch.zeros(len(agree), dtype=torch.long)]
        for same in agree.T:
            run = (run + 1) * same
            runs.append(run)
        sure = torch.stack(runs, 1) >= cast(int, patience)
    sure[:, -1] = True
    return sure.long().argmax(1) + 1


def exits(
    model: Any,
    task: Task,
    validation: Dataset,
    test: Dataset,
    *,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The metric against the mean number of layers used, on clean inputs, by confidence and by patience.

    The threshold to use is chosen on ``validation``: of those that cost at most `COST` there, the one with the fewest
    layers. It is then held against the full depth on ``test``, where the time is that of layers really skipped.

    Args:
        model: A classifier, a `LayeredModel` with `exits`.
        task: Its loss and metric.
        validation: Samples to choose the threshold on.
        test: Samples to report.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.

    Returns:
        ``confidence`` and ``patience``, each a list of their setting, ``layers`` and the metric on ``test``;
        ``full``, the metric at full depth; and ``chosen``: its ``threshold``, ``layers``, metric and ``time_ratio``,
        the time against full depth.
    """
    settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "collate": collate}
    tried, found = (measure(model, task, data, **settings) for data in (validation, test))
    affordable = [
        one for one in _curve(tried, task, "threshold") if _worse(one, tried.metrics[-1], task) <= COST + 1e-12
    ]
    best = min(affordable, key=lambda one: one["layers"], default={"threshold": 1.0})
    threshold = best["threshold"]
    return {
        "full": found.metrics[-1],
        "depth": model.depth,
        "confidence": _curve(found, task, "threshold"),
        "patience": _curve(found, task, "patience"),
        "chosen": {
            **_left(found, task, threshold=threshold),
            "threshold": threshold,
            "time_ratio": _time_ratio(model, task, test, threshold, **settings),
        },
    }


def _curve(found: LayerLosses, task: Task, kind: str) -> list[dict[str, float]]:
    values = THRESHOLDS if kind == "threshold" else range(1, found.losses.shape[1] - 1)
    return [{kind: value, **_left(found, task, **{kind: value})} for value in values]  # type: ignore[arg-type]


def _left(found: LayerLosses, task: Task, **how: Any) -> dict[str, float]:
    layers = exit_layers(found, **how)
    assert found.scores is not None
    total = found.scores.gather(1, layers[:, None]).sum().item()
    return {"layers": layers.double().mean().item(), task.metric: metric_value(task, total, len(layers))}


def _worse(one: dict[str, float], full: float, task: Task) -> float:
    return (full - one[task.metric]) * (1 if task.higher_is_better else -1)


@torch.no_grad()
def _time_ratio(
    model: Any,
    task: Task,
    dataset: Dataset,
    threshold: float,
    *,
    batch_size: int,
    device: torch.device | str,
    collate: Callable[[list[Any]], dict[str, Any]] | None,
) -> float:
    """Seconds of leaving early over those of the model's own forward pass, batch by batch in turn."""

    def leave(layer: int, logits: Tensor, rows: Tensor) -> Tensor:
        return logits.float().softmax(-1).amax(-1) >= threshold

    def finish() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()

    seconds = {"full": 0.0, "early": 0.0}
    model.eval()
    for turn, batch in enumerate(DataLoader(dataset, batch_size=batch_size, collate_fn=collate)):
        inputs = task.inputs(send_to_device(batch, device))
        runs = {
            "full": lambda inputs=inputs: model(**inputs),
            "early": lambda inputs=inputs: model.exits(inputs, leave),
        }
        if not turn:  # both are warm before they are timed
            for warm in runs.values():
                warm()
            finish()
        for name in sorted(runs, reverse=bool(turn % 2)):  # each goes first in turn
            began = time.perf_counter()
            runs[name]()
            finish()
            seconds[name] += time.perf_counter() - began
    return seconds["early"] / seconds["full"]
