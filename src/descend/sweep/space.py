"""The search space of a sweep: where each setting is searched, and the values that a trial draws."""

import math
from collections.abc import Collection, Mapping, Sequence

from optuna import Trial

from descend.errors import refuse
from descend.results.sweeps import Searched
from descend.training import DescentConfig
from descend.training.methods import CLASSES

MOST = {
    **dict.fromkeys(("learning_rate", "cap", "dual_lr", "resilience"), 1e9),
    **{"alpha": 0.99, "alpha_decay": 1.0, "strength": 1.0},
}
"""The settings that ``--range`` accepts, with the largest allowed upper end."""

NEAR = 0.05
"""The fraction of a range that counts as its end."""

Ranges = Mapping[str, tuple[float, float]]
Settings = dict[str, float | str]


def read_ranges(words: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Parse ``--range`` arguments of the form ``NAME=LOW:HIGH``.

    Raises:
        InputError: If an argument is malformed, or names a setting that no sweep searches.
    """
    ranges = {}
    for word in words:
        name, _, ends = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        try:
            low, high = map(float, ends.split(":"))
        except ValueError:
            low = high = math.nan
        most = MOST.get(name, 0.0)
        refuse(
            (
                not 0 < low < high <= most,
                f"--range takes one of {', '.join(MOST)} as NAME=LOW:HIGH with 0 < LOW < HIGH"
                f"{f' ≤ {most:g}' if most else ''}, such as cap=1:5; got {word!r}.",
            ),
        )
        ranges[name] = (low, high)
    return ranges


def space(args: DescentConfig, given: Collection[str], ranges: Ranges) -> dict[str, Searched]:
    """The search space of a method: setting → where it is searched.

    Every method searches its learning rate, around the recipe's value. The constrained method with α also searches the
    problem (α, its decay, and the cap if the recipe has one or a range is given) and the dual optimizer's settings.

    Args:
        args: The recipe's settings for this method, with the user's applied.
        given: Settings that the user gave; they are not searched.
        ranges: The user's ranges, which replace the default ones.
    """
    rate, cap = args.learning_rate, args.cap or 0.0
    bounds = args.alpha is not None or ranges.keys() & {"alpha", "alpha_decay", "cap"}
    alpha = args.method == "constrained" and bool(bounds)
    # Setting → whether it is searched, its lowest and its highest value, and whether its scale is logarithmic.
    usual = {
        "learning_rate": (True, rate / 10, rate * 10, True),
        "alpha": (alpha, 0.01, 0.7, True),
        # --alpha alone means the same step at every layer, as in the paper.
        "alpha_decay": (alpha and "alpha" not in given and args.preset is None, 0.3, 1.0, False),
        # The cap has no default range: its scale is that of the data's losses.
        "cap": (alpha and (args.cap is not None or "cap" in ranges), cap / 2, cap * 2, True),
        "dual_lr": (alpha, 1e-3, 1.0, True),
        "resilience": (alpha, 1e-3, 1.0, True),
        "strength": (CLASSES[args.method].constrained and not alpha and "strength" in ranges, 0.0, 1.0, False),
    }
    searched = {}
    for name, (asked, *ends, log) in usual.items():
        if asked and name not in given:
            low, high = ranges.get(name, ends)
            searched[name] = Searched(low=low, high=high, log=log)
    if alpha and args.preset is None and "dual_optimizer" not in given:
        searched["dual_optimizer"] = Searched(choices=["adam", "sgd", "nupi"])
    return searched


def recipe_values(args: DescentConfig, searched: Mapping[str, Searched]) -> Settings:
    """The recipe's values that lie within their ranges: the settings of each method's first trial."""
    values = {name: args.resolved(name) for name in searched}
    return {
        name: value
        for name, value in values.items()  # a list of α and a cap of None are no values
        if value in searched[name].choices
        or (isinstance(value, int | float) and searched[name].low <= value <= searched[name].high)
    }


def draw(trial: Trial, searched: Mapping[str, Searched]) -> Settings:
    """Draw a value for every setting of a search space."""
    for name, kind in searched.items():
        if kind.choices:
            trial.suggest_categorical(name, kind.choices)
        else:
            trial.suggest_float(name, kind.low, kind.high, log=kind.log)
    return typed(trial.params)


def typed(drawn: Settings) -> Settings:
    """The values that a trial runs with, of those that were drawn: four digits, so that they can be typed."""
    return {name: value if isinstance(value, str) else float(f"{value:.4g}") for name, value in drawn.items()}


def edges(settings: Settings, searched: Mapping[str, Searched]) -> list[str]:
    """Describe the chosen values that lie near an end of their range: better values may lie outside it.

    Near means within `NEAR` of the range's length (of its logarithm, on a log scale). An end at a setting's hard limit
    does not count.

    Args:
        settings: The chosen values.
        searched: Where they were searched.
    """
    values = {name: value for name, value in settings.items() if isinstance(value, float)}
    places = {name: searched[name].place(value) for name, value in values.items()}
    return [
        f"{name} {value:g} of {searched[name].low:g} to {searched[name].high:g}"
        for name, value in values.items()
        if places[name] < NEAR or (places[name] > 1 - NEAR and searched[name].high < MOST[name])
    ]
