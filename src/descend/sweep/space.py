"""What a sweep looks for, and where: the ranges of the settings it draws, and the flags that they become."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from descend.errors import InputError
from descend.training.config import DescentConfig

DIGITS = 4
"""Significant ones of a setting that is drawn: what is run can be typed."""


MOST = {
    **dict.fromkeys(("learning_rate", "cap", "dual_lr", "resilience"), math.inf),
    **{"alpha": 0.99, "alpha_decay": 1.0, "strength": 1.0},
}
"""What may have a range of a person's own, and how far one can reach."""

NEAR = 0.05
"""Part of a range that counts as its end."""

Ranges = Mapping[str, tuple[float, float]]


def read_ranges(words: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Ranges of a person's own, from ``NAME=LOW:HIGH``.

    Raises:
        InputError: If one is no range, or of what is not searched.
    """
    found = {}
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
        found[name] = (low, high)
    return found


def space(args: DescentConfig, given: Collection[str], ranges: Ranges | None = None) -> dict[str, BaseDistribution]:
    """The settings that are searched for a method, and their ranges.

    Every method searches its learning rate, around the recipe's. The constrained one searches the problem beside it (α,
    its decay, and the cap where the recipe has one or a range is given) and how its multipliers move.

    Args:
        args: The recipe's own settings for this method, with the person's.
        given: What the person has set: it is not searched.
        ranges: Ranges of the person's own, in place of the usual.
    """
    ranges = ranges or {}
    around: dict[str, BaseDistribution] = {
        "learning_rate": FloatDistribution(args.learning_rate / 10, args.learning_rate * 10, log=True),
    }
    if args.method == "constrained" and (args.alpha is not None or ranges.keys() & {"alpha", "alpha_decay", "cap"}):
        around["alpha"] = FloatDistribution(0.01, 0.7, log=True)
        # The same step at every layer is what --alpha alone means, and what the paper has.
        if "alpha" not in given and args.preset is None:
            around["alpha_decay"] = FloatDistribution(0.3, 1.0)
        # Of data whose first loss is not known there is none to start from.
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


def own(args: DescentConfig, space: Mapping[str, BaseDistribution]) -> dict[str, float | str]:
    """The recipe's own values, where they lie within their ranges: the first trial of every method."""
    found: dict[str, float | str] = {}
    for name, kind in space.items():
        value = args.resolved(name)
        if isinstance(kind, CategoricalDistribution):
            found |= {name: value} if value in kind.choices else {}
        elif isinstance(kind, FloatDistribution):
            with suppress(ValueError, TypeError):  # one α per layer; no cap
                found |= {name: float(value)} if kind.low <= float(value) <= kind.high else {}
    return found


def draw(trial: Trial, space: Mapping[str, BaseDistribution]) -> dict[str, float | str]:
    """A value for every setting of a space."""
    values: dict[str, float | str] = {}
    for name, kind in space.items():
        if isinstance(kind, FloatDistribution):
            values[name] = float(f"{trial.suggest_float(name, kind.low, kind.high, log=kind.log):.{DIGITS}g}")
        elif isinstance(kind, CategoricalDistribution):
            values[name] = str(trial.suggest_categorical(name, kind.choices))
    return values


def flags(values: Mapping[str, float | str]) -> list[str]:
    """The words of ``descend train`` that set these values."""
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def edges(settings: Mapping[str, Any], searched: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which chosen settings lie at an end of where they were searched, so that better ones may lie beyond.

    That is within a twentieth of a range (of its logarithm), at an end that could be moved.

    Args:
        settings: The chosen values.
        searched: The ranges, as `described` has them.
    """
    found = []
    for name, kind in searched.items():
        value = settings.get(name)
        if "low" not in kind or not isinstance(value, float):
            continue
        scale = math.log if kind["log"] else float
        low, high = scale(kind["low"]), scale(kind["high"])
        place = (scale(value) - low) / (high - low)
        if place < NEAR or (place > 1 - NEAR and kind["high"] < MOST[name]):
            found.append(f"{name} {value:g} of {kind['low']:g} to {kind['high']:g}")
    return found


def described(space: Mapping[str, BaseDistribution]) -> dict[str, dict[str, Any]]:
    """A space as JSON has it."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in space.items():
        if isinstance(kind, FloatDistribution):
            found[name] = {"low": kind.low, "high": kind.high, "log": kind.log}
        elif isinstance(kind, CategoricalDistribution):
            found[name] = {"choices": list(kind.choices)}
    return found
