"""The methods by name, and the settings that each alone uses. Nothing slow is imported."""

from collections.abc import Mapping
from typing import Any

from descend.errors import InputError

METHODS: dict[str, set[str]] = {
    "erm": set(),
    "constrained": set(),
    "useful": set(),
    "uniform": set(),
    "linear": {"inner_weight"},
    "r-drop": {"r_drop"},
    "neftune": set(),
    "layerskip": {"layer_dropout", "layer_dropout_schedule", "exit_scale", "exit_curriculum", "exit_rotation"},
    "probe": set(),
}
"""Name → settings that no other method uses. `descend.training.methods` has a class for each."""


def settings_of_others(*methods: str) -> set[str]:
    """The settings that belong to one method alone, and to none of these."""
    return set().union(*(settings for name, settings in METHODS.items() if name not in methods))


def check_method(settings: Mapping[str, Any]) -> None:
    """Refuse settings that the method does not use.

    Args:
        settings: The given settings by name.

    Raises:
        InputError: If one belongs to another method.
    """
    chosen = settings.get("method", "constrained")
    for method, names in METHODS.items():
        if method != chosen and (strange := sorted(names & settings.keys())):
            flags = ", ".join(f"--{each.replace('_', '-')}" for each in strange)
            raise InputError(
                f"{flags}: a setting of the method {method}; the method is {chosen}. Leave it out, or choose --method "
                f"{method}."
            )
