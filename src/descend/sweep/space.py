"""The search space of a sweep: the range of each setting, and the command line flags for its values."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from descend.errors import InputError
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


def space(args: DescentConfig, given: Collection[str], ranges: Ranges | None = None) -> dict[str, BaseDistribution]:
    """The search space of a method: setting → Optuna distribution.

    Every method searches its learning rate, around the recipe's value. The constrained method with α also searches the
    problem (α, its decay, and the cap if the recipe has one or a range is given) and the dual optimizer's settings.

    Args:
        args: The recipe's settings for this method, with the user's flags applied.
        given: Settings that the user fixed by a flag; they are not searched.
        ranges: The user's ranges, which replace the default ones.
    """
    ranges = ranges or {}
    around: dict[str, BaseDistribution] = {
        "learning_rate": FloatDistribution(args.learning_rate / 10, args.learning_rate * 10, log=True),
    }
    if args.method == "constrained" and (args.alpha is not None or ranges.keys() & {"alpha", "alpha_decay", "cap"}):
        around["alpha"] = FloatDistribution(0.01, 0.7, log=True)
        # --alpha alone means the same step at every layer, as in the paper.
        if "alpha" not in given and args.preset is None:
            around["alpha_decay"] = FloatDistribution(0.3, 1.0)
        # The cap has no default range: its scale is that of the data's losses.
        if (cap := args.cap) is not None or "cap" in ranges:
            low, high = ranges["cap"] if cap is None else (cap / 2, cap * 2)
            around["cap"] = FloatDistribution(low, high, log=True)
        around["dual_lr"] = FloatDistribution(1e-3, 1.0, log=True)
        if args.preset is None:
            around["dual_optimizer"] = CategoricalDistribution(("adam", "sgd", "nupi"))
        around["resilience"] = FloatDistribution(1e-3, 1.0, log=True)
    elif args.method == "constrained" and "strength" in ranges:
        around["strength"] = FloatDistribution(0.0, 1.0)
    for name, kind in around.items():
        if name in ranges and isinstance(kind, FloatDistribution):
            around[name] = FloatDistribution(*ranges[name], log=kind.log)
    return {name: distribution for name, distribution in around.items() if name not in given}


def recipe_values(args: DescentConfig, space: Mapping[str, BaseDistribution]) -> dict[str, float | str]:
    """The recipe's values that lie within their ranges: the settings of each method's first trial."""
    values: dict[str, float | str] = {}
    for name, kind in space.items():
        value = args.resolved(name)
        if isinstance(kind, CategoricalDistribution):
            values |= {name: value} if value in kind.choices else {}
        elif isinstance(kind, FloatDistribution):
            with suppress(ValueError, TypeError):  # a list of α, or no cap
                values |= {name: float(value)} if kind.low <= float(value) <= kind.high else {}
    return values


def draw(trial: Trial, space: Mapping[str, BaseDistribution]) -> dict[str, float | str]:
    """Draw a value for every setting of a search space."""
    values: dict[str, float | str] = {}
    for name, kind in space.items():
        if isinstance(kind, FloatDistribution):
            values[name] = float(f"{trial.suggest_float(name, kind.low, kind.high, log=kind.log):.{DIGITS}g}")
        elif isinstance(kind, CategoricalDistribution):
            values[name] = str(trial.suggest_categorical(name, kind.choices))
    return values


def edges(settings: Mapping[str, Any], searched: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describe the chosen values that lie near an end of their range: better values may lie outside it.

    Near means within `NEAR` of the range's length (of its logarithm, on a log scale). An end at a setting's hard limit
    does not count.

    Args:
        settings: The chosen values.
        searched: The ranges, as `described` returns them.
    """
    lines = []
    for name, kind in searched.items():
        value = settings.get(name)
        if "low" not in kind or not isinstance(value, float):
            continue
        scale = math.log if kind["log"] else float
        low, high = scale(kind["low"]), scale(kind["high"])
        place = (scale(value) - low) / (high - low)
        if place < NEAR or (place > 1 - NEAR and kind["high"] < MOST[name]):
            lines.append(f"{name} {value:g} of {kind['low']:g} to {kind['high']:g}")
    return lines


def described(space: Mapping[str, BaseDistribution]) -> dict[str, dict[str, Any]]:
    """A search space as values that JSON can hold."""
    ranges: dict[str, dict[str, Any]] = {}
    for name, kind in space.items():
        if isinstance(kind, FloatDistribution):
            ranges[name] = {"low": kind.low, "high": kind.high, "log": kind.log}
        elif isinstance(kind, CategoricalDistribution):
            ranges[name] = {"choices": list(kind.choices)}
    return ranges
