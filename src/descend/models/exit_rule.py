"""The rule for early exits: a sample leaves at the first confident layer."""

from collections.abc import Callable

from torch import Tensor


def leave_at(threshold: float) -> Callable[[int, Tensor, Tensor], Tensor]:
    """The rule as `LayeredClassifier.exits` calls it: a row leaves when its confidence is at least the threshold."""
    return lambda layer, logits, rows: decide(logits)[1] >= threshold


def decide(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely class (R,) of logits (R, C), and its probability (R,)."""
    confidence, decided = logits.float().softmax(-1).max(-1)
    return decided, confidence
