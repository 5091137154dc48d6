"""Settings as they are typed: the options of ``descend train``."""

import json
from collections.abc import Mapping
from typing import Any


def flag_of(name: str) -> str:
    """The option of a setting, such as ``--learning-rate``."""
    return f"--{name.replace('_', '-')}"


def options(settings: Mapping[str, Any]) -> list[str]:
    """The words that give settings to ``descend train``, in the form of `sys.argv`.

    Args:
        settings: Name → value; none of them is None, which can't be typed.
    """
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(flag_of(name if value else f"no_{name}"))
        else:
            words += [flag_of(name), _word(value)]
    return words


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
