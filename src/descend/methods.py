"""The methods: what each minimizes, and the settings that it alone uses. Nothing slow is imported."""

from collections.abc import Callable, Mapping
from typing import Any

from descend.errors import InputError


def _last(depth: int) -> list[float]:
    return [0.0] * depth + [1.0]


def _uniform(depth: int) -> list[float]:
    return [1 / (depth + 1)] * (depth + 1)


def _linear(depth: int) -> list[float]:
    return [layer / (depth * (depth + 1) / 2) for layer in range(depth + 1)]


METHODS: dict[str, Callable[[int], list[float]]] = {
    "erm": _last,
    "constrained": _last,
    "uniform": _uniform,
    "linear": _linear,
    "r-drop": _last,
    "neftune": _last,
    "layerskip": _last,
}
"""The weights of f_0 … f_L in a method's objective, for a model of L layers.

``uniform`` and ``linear`` are deep supervision: every exit has a fixed weight. ``uniform`` includes exit 0, the readout
of the embedded input, which trains the readout and the embedding (for UT, where exit 0 is the noisy input, it is a
constant). ``linear`` weights layer l in proportion to l, so exit 0 has no weight. ``r-drop`` is ERM with another term,
see `Objective`; ``neftune`` is ERM with other noise, see `matched_alpha`. The weights of ``layerskip`` change at every
step, see `LayerSkip`.
"""

OF_METHOD: dict[str, set[str]] = {
    "r-drop": {"r_drop"},
    "layerskip": {"layer_dropout", "layer_dropout_schedule", "exit_scale", "exit_curriculum", "exit_rotation"},
}
"""Settings that one method alone uses."""


def check_method(settings: Mapping[str, Any]) -> None:
    """Refuse settings that the method does not use.

    Args:
        settings: The given settings by name.

    Raises:
        InputError: If one belongs to another method.
    """
    chosen = settings.get("method", "constrained")
    for method, names in OF_METHOD.items():
        if method != chosen and (strange := sorted(names & settings.keys())):
            flags = ", ".join(f"--{each.replace('_', '-')}" for each in strange)
            raise InputError(
                f"{flags}: a setting of the method {method}; the method is {chosen}. Leave it out, or choose --method "
                f"{method}."
            )
