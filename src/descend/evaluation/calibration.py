"""Calibration: one number by which a classifier's logits are divided, so that held-out losses mean what they say.

A classifier that overfits is sure of its mistakes. Its held-out loss then rises from layer to layer where its accuracy
does not. Dividing all logits by one temperature τ mends this, and the most likely class stays the same (Guo et al.,
ICML 2017). Every layer is read by the same head, so one τ serves them all, and the head's last weights can take it up.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from descend.core import DescentProblem
from descend.evaluation.layers import LayerLosses
from descend.tasks import Task

TEMPERATURES = torch.logspace(-1, 1.5, 101).tolist()
"""The candidates, 6 % apart: near its lowest point the loss hardly changes with τ."""

COST_TOLERANCE = 0.01
"""What meets its constraints is preferred to what is cheaper if it costs at most this share more."""


def preferred(costs: Sequence[float], feasible: Sequence[bool]) -> int:
    """The place of the model to keep: the cheapest, or the cheapest feasible one if it costs at most 1 % more.

    Args:
        costs: What to make small, finite and at least one; of equal ones the first counts.
        feasible: Whether each model meets its constraints; all False where that is not to count.
    """
    places = sorted(range(len(costs)), key=lambda place: costs[place])
    limit = costs[places[0]] + COST_TOLERANCE * abs(costs[places[0]])
    return next((place for place in places if feasible[place] and costs[place] <= limit), places[0])


def at_temperature(layers: LayerLosses, task: Task, temperature: float) -> LayerLosses:
    """What was measured, with all logits divided by a temperature.

    Args:
        layers: With the logits of every layer, see `measure`.
        task: Whose losses they are.
        temperature: τ > 0.
    """
    assert layers.logits is not None
    logits, targets = layers.logits
    losses = [task.losses(layer / temperature, targets) for layer in logits.double().unbind(1)]
    return replace(layers, losses=torch.stack(losses, 1), logits=(logits / temperature, targets))


def temperature(layers: LayerLosses, task: Task, problem: DescentProblem) -> float | None:
    """The τ that fits what was measured; None if no τ within the range of `TEMPERATURES` does.

    A classifier without a mistake is never sure enough, and one that knows nothing is always too sure: the loss then
    falls up to an end of the range, where τ says no more than that the range ends.

    Of all τ whose last loss is at most 1 % above the lowest it is the one at which the constraints are broken least,
    by the penalties of `DescentProblem.merit`; among equals that of the lowest last loss.

    Args:
        layers: With the logits of every layer, see `measure`.
        task: Whose losses they are.
        problem: What the model was trained for; without constraints it is the τ of the lowest last loss.
    """
    means = [at_temperature(layers, task, each).losses.mean(0) for each in TEMPERATURES]
    last = [mean[-1].item() for mean in means]
    broken = [problem.target.penalties(mean).sum().item() for mean in means]
    close = [place for place, loss in enumerate(last) if loss <= (1 + COST_TOLERANCE) * min(last)]
    place = min(close, key=lambda place: (broken[place], last[place]))
    at_an_end = {0, len(TEMPERATURES) - 1} & {place, last.index(min(last))}
    return None if at_an_end else TEMPERATURES[place]
