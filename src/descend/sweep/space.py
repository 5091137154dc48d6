"""What a sweep looks for, and where: the ranges of the settings it draws, and the flags that they become."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from descend.config import DescentConfig

DIGITS = 4
"""Significant ones of a setting that is drawn: what is run can be typed."""


def space(args: DescentConfig, given: Collection[str]) -> dict[str, BaseDistribution]:
    """The settings that are searched for a method, and their ranges.

    Every method searches its learning rate, around the recipe's. The constrained one searches the problem beside it (α,
    its decay, and the cap where the recipe has one) and how its multipliers move.

    Args:
        args: The recipe's own settings for this method, with the person's.
        given: What the person has set: it is not searched.
    """
    around: dict[str, BaseDistribution] = {
        "learning_rate": FloatDistribution(args.learning_rate / 5, args.learning_rate * 5, log=True),
    }
    if args.method == "constrained":
        around["alpha"] = FloatDistribution(0.01, 0.7, log=True)
        if "alpha" not in given:  # the same step at every layer is what --alpha alone means
            around["alpha_decay"] = FloatDistribution(0.3, 1.0)
        if args.cap is not None:  # of data whose first loss is not known there is none to start from
            around["cap"] = FloatDistribution(args.cap / 2, args.cap * 2, log=True)
        around["dual_lr"] = FloatDistribution(1e-3, 1.0, log=True)
        around["dual_optimizer"] = CategoricalDistribution(("adam", "sgd", "nupi"))
        around["resilience"] = FloatDistribution(1e-3, 1.0, log=True)
    return {name: distribution for name, distribution in around.items() if name not in given}


def own(args: DescentConfig, space: Mapping[str, BaseDistribution]) -> dict[str, float | str]:
    """The recipe's own values, where they lie within their ranges: the first trial of every method."""
    found: dict[str, float | str] = {}
    for name, kind in space.items():
        value = vars(args)[name]
        if isinstance(kind, CategoricalDistribution):
            found |= {name: value} if value in kind.choices else {}
        elif isinstance(kind, FloatDistribution):
            with suppress(ValueError):  # one α per layer
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


def flags(values: Mapping[str, float | str], args: DescentConfig, given: Collection[str]) -> list[str]:
    """The words of ``descend train`` that set these values.

    ``--alpha`` alone starts the chain at the input; here it stays where the recipe has it.
    """
    held = {"first_layer": args.first_layer} if "alpha" in values and "first_layer" not in given else {}
    return [word for name, value in {**values, **held}.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def described(space: Mapping[str, BaseDistribution]) -> dict[str, dict[str, Any]]:
    """A space as JSON has it."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in space.items():
        if isinstance(kind, FloatDistribution):
            found[name] = {"low": kind.low, "high": kind.high, "log": kind.log}
        elif isinstance(kind, CategoricalDistribution):
            found[name] = {"choices": list(kind.choices)}
    return found
