"""Calibration: one number by which a classifier's logits are divided, so that held-out losses mean what they say.

A classifier that overfits is sure of its mistakes. Its held-out loss then rises from layer to layer where its accuracy
does not. Dividing all logits by one temperature τ mends this and changes no decision (Guo et al., ICML 2017). Every
layer is read by the same head, so one τ serves them all, and the head's last weights can take it up.
"""

import math
from dataclasses import replace

import torch
from scipy.optimize import minimize_scalar

from descend.core import DescentProblem
from descend.evaluation.layers import LayerLosses
from descend.objective import Task

RANGE = (0.1, 20.0)
"""Where a temperature is looked for."""


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


def temperature(layers: LayerLosses, task: Task, problem: DescentProblem) -> float:
    """τ with the least merit on what was measured: f_L without constraints, see `DescentProblem.merit`.

    Args:
        layers: With the logits of every layer, see `measure`.
        task: Whose losses they are.
        problem: What the model was trained for.
    """

    def merit(log: float) -> float:
        return problem.merit(at_temperature(layers, task, math.exp(log)).losses.mean(0)).item()

    # The merit has kinks where constraints begin to be met: the best of a grid, and then what is near it.
    low, high = map(math.log, RANGE)
    grid = torch.linspace(low, high, 33).tolist()
    best = min(grid, key=merit)
    step = grid[1] - grid[0]
    found = minimize_scalar(merit, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-3})
    return math.exp(found.x if found.fun < merit(best) else best)
