"""Early exits: the accuracy that is left if each sample stops at the first layer that is sure."""

import time
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from descend.evaluation.layers import LayerLosses, measure, metric_value
from descend.evaluation.risk_control import certify, on_test_data
from descend.evaluation.satisfaction import CONFIDENCE
from descend.models.exit_rule import ExitRule
from descend.objective import Task
from descend.results import ChosenExit, ExitPoint, Exits

COST = 0.005
"""What early exits may cost, in the metric: half a point of accuracy."""

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


def exit_layers(measured: LayerLosses, rule: ExitRule) -> Tensor:
    """The layer 1 … L at which each sample leaves, (S,).

    Args:
        measured: Decisions and confidences of every layer.
        rule: When a sample leaves.
    """
    assert measured.decisions is not None and measured.confidences is not None
    return rule.layers(measured.decisions[:, 1:], measured.confidences[:, 1:])


def exits(
    model: Any,
    task: Task,
    validation: Dataset,
    test: Dataset,
    *,
    judged: LayerLosses | None = None,
    risk: float | None = None,
    confidence: float = CONFIDENCE,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
) -> Exits:
    """The metric against the mean number of layers used, on clean inputs, by confidence and by patience.

    The threshold is chosen on ``validation``: of those that cost at most `COST`, the one with the fewest layers; or
    with ``risk`` the boldest one that `certify` certifies. It is then compared with full depth on ``test``; the time is
    measured with layers really skipped.

    Args:
        model: A classifier, a `LayeredModel` with `exits`.
        task: Its loss and metric.
        validation: Samples to choose the threshold on.
        test: Samples to report.
        judged: What `measure` gives of ``test`` on clean inputs, if it is known; measured here if not.
        risk: The share of samples that may lose an answer that full depth has right; None to choose by `COST`.
        confidence: How sure that bound must be.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.

    Returns:
        ``confidence`` and ``patience``, each a list of their setting, ``layers`` and the metric on ``test``;
        ``full``, the metric at full depth; ``chosen``: its ``threshold``, ``layers``, metric and ``time_ratio``, the
        time against full depth; and with ``risk`` the ``guarantee``.
    """
    settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "collate": collate}
    chosen_on = measure(model, task, validation, **settings)
    judged_on = measure(model, task, test, **settings) if judged is None else judged
    guarantee = None
    if risk is not None:
        guarantee = on_test_data(certify(chosen_on, risk, confidence, noise=0.0), judged_on)
    rule = ExitRule(_affordable(chosen_on, task) if guarantee is None else guarantee.threshold)
    layers, value = _reached(judged_on, task, rule)
    ratio = _time_ratio(model, task, test, rule, **settings) if rule.early else 1.0
    result = Exits(
        full=judged_on.metrics[-1],
        depth=model.depth,
        confidence=_by_threshold(judged_on, task),
        patience=_by_patience(judged_on, task),
        chosen=ChosenExit(layers=layers, value=value, threshold=rule.threshold, time_ratio=ratio),
    )
    return result if guarantee is None else result.model_copy(update={"guarantee": guarantee})


def _affordable(measured: LayerLosses, task: Task) -> float:
    """The threshold with the fewest layers among those that cost at most `COST`."""
    points = [
        point for point in _by_threshold(measured, task) if _worse(point, measured.metrics[-1], task) <= COST + 1e-12
    ]
    cheapest = min(points, key=lambda point: point.layers, default=None)
    return (cheapest and cheapest.threshold) or 1.0


def _by_threshold(measured: LayerLosses, task: Task) -> list[ExitPoint]:
    reached = [(value, *_reached(measured, task, ExitRule(value))) for value in THRESHOLDS]
    return [ExitPoint(threshold=threshold, layers=layers, value=value) for threshold, layers, value in reached]


def _by_patience(measured: LayerLosses, task: Task) -> list[ExitPoint]:
    several = range(1, measured.losses.shape[1] - 1)
    reached = [(patience, *_reached(measured, task, ExitRule(patience=patience))) for patience in several]
    return [ExitPoint(patience=patience, layers=layers, value=value) for patience, layers, value in reached]


def _reached(measured: LayerLosses, task: Task, rule: ExitRule) -> tuple[float, float]:
    """The mean number of layers used, and the metric."""
    layers = exit_layers(measured, rule)
    assert measured.scores is not None
    total = measured.scores.gather(1, layers[:, None]).sum().item()
    return layers.double().mean().item(), metric_value(task, total, len(layers))


def _worse(point: ExitPoint, full: float, task: Task) -> float:
    return (full - point.value) * (1 if task.higher_is_better else -1)


@torch.no_grad()
def _time_ratio(
    model: Any,
    task: Task,
    dataset: Dataset,
    rule: ExitRule,
    *,
    batch_size: int,
    device: torch.device | str,
    collate: Callable[[list[Any]], dict[str, Any]] | None,
) -> float:
    """Seconds with early exits over seconds of the whole forward pass, batch by batch in turn."""

    def finish() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()

    seconds = {"full": 0.0, "early": 0.0}
    model.eval()
    for turn, batch in enumerate(DataLoader(dataset, batch_size=batch_size, collate_fn=collate)):
        inputs = task.inputs(send_to_device(batch, device))
        runs = {
            "full": lambda inputs=inputs: model(**inputs),
            "early": lambda inputs=inputs: model.exits(inputs, rule.leave()),
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
