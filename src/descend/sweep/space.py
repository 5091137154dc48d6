"""The search space of a sweep: where each setting is searched, and the values that a trial draws."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from optuna import Trial

from descend.errors import InputError
from descend.results.sweeps import Searched
from descend.training.config import DescentConfig

DIGITS = 4
"""Significant digits of a drawn value, so that the value that runs can be typed."""

MOST = {
    **dict.fromkeys(("learning_rate", "cap", "dual_lr", "resilience"), math.inf),
    **{"alpha": 0.99, "alpha_decay": 1.0, "strength": 1.0},
}
"""The settings that ``--range`` accepts, with the largest allowed upper end."""

NEAR = 0.05
"""The fraction of a range that counts as its end."""

Ranges = Mapping[str, tuple[float, float]]


def read_ranges(words: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Parse ``--range`` arguments of the form ``NAME=LOW:HIGH``.

    Raises:
        InputError: If an argument is malformed, or names a setting that no sweep searches.
    """
    ranges = {}
    for word in words:
        name, _, ends = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if name not in MOST:
            raise InputError(f"--range takes one of {', '.join(MOST)}, as cap=1:5; got {word!r}.")
        try:
            low, high = map(float, ends.split(":"))
        except ValueError:
            low = high = math.nan
        if not (0 < low < high <= MOST[name] and math.isfinite(high)):
            limit = f" ≤ {MOST[name]:g}" if math.isfinite(MOST[name]) else ""
            raise InputError(f"--range must be NAME=LOW:HIGH with 0 < LOW < HIGH{limit}, as cap=1:5; got {word!r}.")
        ranges[name] = (low, high)
    return ranges


def space(args: DescentConfig, given: Collection[str], ranges: Ranges | None = None) -> dict[str, Searched]:
    """The search space of a method: setting → where it is searched.

    Every method searches its learning rate, around the recipe's value. The constrained method with α also searches the
    problem (α, its decay, and the cap if the recipe has one or a range is given) and the dual optimizer's settings.

    Args:
        args: The recipe's settings for this method, with the user's applied.
        given: Settings that the user gave; they are not searched.
        ranges: The user's ranges, which replace the default ones.
    """
    ranges, searched = ranges or {}, {}

    def add(name: str, low: float, high: float, *, log: bool = True) -> None:
        low, high = ranges.get(name, (low, high))
        searched[name] = Searched(low=low, high=high, log=log)

    add("learning_rate", args.learning_rate / 10, args.learning_rate * 10)
    if args.method == "constrained" and (args.alpha is not None or ranges.keys() & {"alpha", "alpha_decay", "cap"}):
        add("alpha", 0.01, 0.7)
        # --alpha alone means the same step at every layer, as in the paper.
        if "alpha" not in given and args.preset is None:
            add("alpha_decay", 0.3, 1.0, log=False)
        # The cap has no default range: its scale is that of the data's losses.
        if (cap := args.cap) is not None or "cap" in ranges:
            add("cap", (cap or 0.0) / 2, (cap or 0.0) * 2)
        add("dual_lr", 1e-3, 1.0)
        if args.preset is None:
            searched["dual_optimizer"] = Searched(choices=["adam", "sgd", "nupi"])
        add("resilience", 1e-3, 1.0)
    elif args.method == "constrained" and "strength" in ranges:
        add("strength", 0.0, 1.0, log=False)
    return {name: kind for name, kind in searched.items() if name not in given}


def recipe_values(args: DescentConfig, space: Mapping[str, Searched]) -> dict[str, float | str]:
    """The recipe's values that lie within their ranges: the settings of each method's first trial."""
    values: dict[str, float | str] = {}
    for name, kind in space.items():
        value = args.resolved(name)
        if kind.choices:
            values |= {name: value} if value in kind.choices else {}
            continue
        with suppress(ValueError, TypeError):  # a list of α, or no cap
            values |= {name: float(value)} if kind.low <= float(value) <= kind.high else {}
    return values


def draw(trial: Trial, space: Mapping[str, Searched]) -> dict[str, float | str]:
    """Draw a value for every setting of a search space."""
    for name, kind in space.items():
        if kind.choices:
            trial.suggest_categorical(name, kind.choices)
        else:
            trial.suggest_float(name, kind.low, kind.high, log=kind.log)
    return rounded(trial.params, space)


def rounded(drawn: Mapping[str, Any], names: Collection[str]) -> dict[str, float | str]:
    """The values that a trial runs with, from those that were drawn."""
    values = {name: drawn[name] for name in names if name in drawn}
    return {name: value if isinstance(value, str) else float(f"{value:.{DIGITS}g}") for name, value in values.items()}


def edges(settings: Mapping[str, Any], searched: Mapping[str, Searched]) -> list[str]:
    """Describe the chosen values that lie near an end of their range: better values may lie outside it.

    Near means within `NEAR` of the range's length (of its logarithm, on a log scale). An end at a setting's hard limit
    does not count.

    Args:
        settings: The chosen values.
        searched: Where they were searched.
    """
    lines = []
    for name, kind in searched.items():
        value = settings.get(name)
        if kind.choices or not isinstance(value, float):
            continue
        place = kind.place(value)
        if place < NEAR or (place > 1 - NEAR and kind.high < MOST[name]):
            lines.append(f"{name} {value:g} of {kind.low:g} to {kind.high:g}")
    return lines


def described(space: Mapping[str, Searched]) -> dict[str, dict[str, Any]]:
    """A search space as values that JSON can hold."""
    return {name: kind.model_dump(exclude_unset=True) for name, kind in space.items()}
