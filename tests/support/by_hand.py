"""Written by hand: geometric bounds, and steps of optimizers, each a function of the gradient."""

from collections.abc import Callable
from typing import Any

Step = Callable[[Any], Any]


def sgd(lr: float) -> Step:
    return lambda gradient: lr * gradient


def adam(lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Step:
    m = v = t = 0

    def step(gradient: Any) -> Any:
        nonlocal m, v, t
        m, v, t = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2, t + 1
        return lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)) ** 0.5 + eps)

    return step


DELTA = 0.03
"""The margin of geometric bounds."""


def bounds_by_hand(losses, reference, strength, first):
    """bound_l = min(step_l, line_l) for l > first, one layer at a time; and whether it is the step, and 1 − b.

    Which of the two is lower, and which form of the line is higher, is decided at the reference.
    """
    depth, last = len(losses) - 1, len(losses) - 1
    count = depth - first
    r = DELTA * reference[last] / max(reference[first] - (1 - DELTA) * reference[last], 2 * DELTA * reference[last])
    b = strength / 2 * (1 - r ** (1 / count))

    def both(f):
        floor = (1 - DELTA) * f[last]
        found = {}
        for layer in range(first + 1, depth + 1):
            step = floor + (1 - b) * (f[layer - 1] - floor)
            lines = (
                floor + r ** (strength * (layer - first) / count) * (f[first] - floor),
                floor + (1 - b) ** (layer - last) * (f[last] - floor),
            )
            found[layer] = step, *lines
        return found

    there, here = both(reference), both(losses)
    kind = {layer: step <= max(lines) for layer, (step, *lines) in there.items()}
    form = {layer: 1 if one >= (1 - 1e-9) * other else 2 for layer, (_, one, other) in there.items()}
    return {layer: here[layer][0 if kind[layer] else form[layer]] for layer in here}, kind, 1 - b
