"""Early exits: the accuracy that is left if each sample stops at the first layer that is sure."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from descend.evaluation.evaluate import Levels, Subject
from descend.evaluation.latency import now
from descend.evaluation.layers import LayerLosses, measure, metric_value
from descend.evaluation.risk_control import certify, on_test_data
from descend.evaluation.satisfaction import CONFIDENCE
from descend.models.exit_rule import leave_at
from descend.results import ChosenExit, ExitPoint, Exits
from descend.tasks import Task

COST = 0.005
"""What early exits may cost, in the metric: half a point of accuracy."""

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


def exits(
    subject: Subject,
    levels: Levels,
    *,
    validation: Dataset,
    risk: float | None = None,
    confidence: float = CONFIDENCE,
) -> Iterator[tuple[str, Exits]]:
    """A classifier's metric against the mean number of layers used, on clean inputs, by confidence.

    The threshold is chosen on ``validation``: of those that cost at most `COST`, the one with the fewest layers; or
    with ``risk`` the boldest one that `certify` certifies. It is then compared with full depth on the subject's data;
    the time is measured with layers really skipped.

    Args:
        subject: A classifier with `exits`, and the samples to report.
        levels: What was measured on them; clean inputs are measured here where they are not among the levels.
        validation: Samples to choose the threshold on.
        risk: The share of samples that may lose an answer that full depth has right; None to choose by `COST`.
        confidence: How sure that bound must be.
    """
    model, task, batches = subject.model, subject.task, subject.batches
    (chosen_on,) = measure(model, task, batches.of(validation))
    reported = levels.get(0.0) or measure(model, task, batches.of(subject.data))[0]
    guarantee = None
    if risk is not None:
        guarantee = on_test_data(certify(chosen_on, risk, confidence, noise=0.0), reported)
    threshold = _affordable(chosen_on, task) if guarantee is None else guarantee.threshold
    point = _reached(reported, task, threshold)
    ratio = 1.0 if threshold is None else _time_ratio(subject, threshold)
    result = Exits(
        full=reported.metrics[-1],
        depth=model.depth,
        confidence=[_reached(reported, task, each) for each in THRESHOLDS],
        chosen=ChosenExit(layers=point.layers, value=point.value, threshold=threshold, time_ratio=ratio),
    )
    yield "exit", result if guarantee is None else result.model_copy(update={"guarantee": guarantee})


def _affordable(measured: LayerLosses, task: Task) -> float:
    """The threshold with the fewest layers among those that cost at most `COST`."""
    sign = 1 if task.higher_is_better else -1
    points = [_reached(measured, task, threshold) for threshold in THRESHOLDS]
    enough = [point for point in points if sign * (measured.metrics[-1] - point.value) <= COST + 1e-12]
    cheapest = min(enough, key=lambda point: point.layers, default=None)
    return (cheapest and cheapest.threshold) or 1.0


def _reached(measured: LayerLosses, task: Task, threshold: float | None) -> ExitPoint:
    """The mean number of layers used, and the metric."""
    layers = measured.exit_layers(threshold)
    value = metric_value(task, measured.scores_at(layers).sum().item(), len(layers))
    return ExitPoint(threshold=threshold, layers=layers.double().mean().item(), value=value)


@torch.no_grad()
def _time_ratio(subject: Subject, threshold: float) -> float:
    """Seconds with early exits over seconds of the whole forward pass, batch by batch in turn."""
    model: Any = subject.model
    device, seconds = torch.device(subject.batches.device), [0.0, 0.0]
    model.eval()
    for turn, batch in enumerate(subject.batches.of(subject.data)):
        inputs = subject.task.inputs(batch)
        runs = (lambda inputs=inputs: model(**inputs), lambda inputs=inputs: model.exits(inputs, leave_at(threshold)))
        for run in runs if not turn else ():  # both are warm before they are timed
            run()
        for early in (turn % 2, 1 - turn % 2):  # each goes first in turn
            began = now(device)
            runs[early]()
            seconds[early] += now(device) - began
    return seconds[1] / seconds[0]
