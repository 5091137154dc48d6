"""The search space of a sweep, and what was found in it.

Where each setting is searched, the values that a trial draws, the content of ``sweep.json`` and the printed text.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from descend.declared import options
from descend.errors import refuse
from descend.methods import CLASSES
from descend.results import ChosenTrial, MethodSearch, Searched, SweepFile, Trial, TrialCurve
from descend.training import DescentConfig, preferred

MOST = {
    **dict.fromkeys(("learning_rate", "cap", "dual_lr", "resilience"), 1e9),
    **{"alpha": 0.99, "alpha_decay": 1.0, "strength": 1.0},
}
"""The settings that ``--range`` accepts, with the largest allowed upper end."""

NEAR = 0.05
"""The fraction of a range that counts as its end."""

Ranges = Mapping[str, tuple[float, float]]
Settings = dict[str, float | str]

EQUAL = "For every method as many trials, finished or pruned. "
"""How the rule begins where methods have equal numbers of trials."""

RULE = (
    "Chosen is the trial with the {better} mean {metric} over the noise levels {levels} on the validation split, of "
    "its final model{seeds}; of equal ones the first. A constrained trial that meets its constraints may be 1 % worse, "
    "unless --preset paper is given. From the middle of a run on a trial is pruned that is among the worst quarter of "
    "its method's finished ones. A pruned trial can't be chosen; one that diverged counts as finished, and as the "
    "worst."
)


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
    method = CLASSES[args.method]
    alpha = method.asks and bool(bounds)
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
        "strength": (method.constrained and not alpha and "strength" in ranges, 0.0, 1.0, False),
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


def draw(trial: optuna.Trial, searched: Mapping[str, Searched]) -> Settings:
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


TRIALS = "trials"
"""The folder of a sweep that holds the run folders of its trials."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


def folder_of(method: str, trial: optuna.Trial | FrozenTrial) -> str:
    """A trial's folder in that of the sweep; a trial that was resumed has the folder of the first attempt.

    Another name in the database is not taken: the database may come from somebody else.
    """
    name = str(trial.user_attrs.get("folder"))
    known = re.fullmatch(rf"{TRIALS}/{re.escape(method)}-\d{{3,9}}", name) is not None
    return name if known else f"{TRIALS}/{method}-{trial.number:03d}"


def searched_by(study: optuna.Study, settings: Mapping[str, Any], command: Sequence[str]) -> MethodSearch:
    """What the search of one method has found.

    Args:
        study: Its Optuna study.
        settings: The settings that all its trials share, and how they are searched.
        command: The words that train with these settings.
    """
    method = settings["method"]
    searched = {name: Searched(**kind) for name, kind in settings["searched"].items()}
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    trials, best = [_trial(method, trial) for trial in ended], None
    if finished := [(trial, trial.value) for trial in trials if trial.value is not None]:
        sign = -1 if study.direction is optuna.study.StudyDirection.MAXIMIZE else 1
        # The paper's preset ignores feasibility here: it chooses by the metric alone.
        counts = CLASSES[method].asks and not settings.get("preset")
        feasible = [counts and bool(trial.feasible) for trial, _ in finished]
        chosen, _ = finished[preferred([sign * value for _, value in finished], feasible)]
        words = [*command, "--method", method, *chosen.flags, "--out", f"runs/{method}"]
        best = ChosenTrial(**dict(chosen), command=shlex.join(words))
    several = sum(trial.state is TrialState.COMPLETE for trial in ended) > 1
    return MethodSearch(
        searched=searched,
        counts=dict(Counter(trial.state for trial in trials)),
        best=best,
        edges=edges(best.settings, searched) if best else [],
        importance=optuna.importance.get_param_importances(study) if several else {},  # by PED-ANOVA
        trials=trials,
    )


def _trial(method: str, trial: FrozenTrial) -> Trial:
    """A finished, pruned or diverged trial as ``sweep.json`` holds it."""
    attributes, curve = trial.user_attrs, dict(sorted(trial.intermediate_values.items()))
    pruned, settings = trial.state is TrialState.PRUNED, typed(trial.params)
    return Trial(
        number=trial.number,
        state="pruned" if pruned else "diverged" if "diverged" in attributes else "finished",
        value=None if pruned else trial.value,
        settings=settings,
        flags=options(settings),
        curve=TrialCurve(steps=list(map(float, curve)), values=list(curve.values())),
        feasible=attributes.get("feasible"),
        why=attributes.get("diverged"),
        retries=len(trial.system_attrs.get("retry_history", ())),
        folder=folder_of(method, trial),
        **{name: attributes.get(name) for name in ("values", "noise", "seconds", "worker")},
    )


def line(content: SweepFile, method: str, number: int) -> str:
    """How a trial ended, in one line for the terminal."""
    search = content.methods[method]
    trial = next(trial for trial in search.trials if trial.number == number)
    value = "" if trial.value is None else f", mean {content.metric} {trial.value:.4g}"
    feasible = {None: "", True: ", feasible", False: ", infeasible"}[trial.feasible]
    why = f": {trial.why.split('. ')[0]}" if trial.why else ""
    best = f"; best {search.best.value:.4g} of trial {search.best.number}" if search.best else ""
    what = f"{method} {len(search.trials)} of {content.trials}, trial {number}"
    return f"{what}: {trial.state}{value}{feasible}{why}{best} ({shlex.join(trial.flags)})"


def sentences(content: SweepFile) -> str:
    """The result of a sweep for the terminal: the rule, a table, and the commands that train with the best settings."""
    lines = [content.rule, *filter(None, [content.unequal]), ""]
    lines += [f"{'method':14} finished   pruned diverged  best mean {content.metric}"]
    for method, search in content.methods.items():
        counts = "".join(f"{search.counts.get(state, 0):9}" for state in ("finished", "pruned", "diverged"))
        best = search.best
        value = f"{best.value:.4g} in {best.folder}" if best else "none: no trial ended with a finite one"
        lines.append(f"{method:14}{counts}  {value}")
        lines += [f"{'':14} at an end of its range, better may lie beyond: {edge}" for edge in search.edges]
    return "\n".join([*lines, "", *(search.best.command for search in content.methods.values() if search.best)])
