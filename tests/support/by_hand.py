"""Steps of optimizers, written by hand: each is a function of the gradient, an array or a tensor."""

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
