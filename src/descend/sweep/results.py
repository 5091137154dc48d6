"""The results of a sweep: ``sweep.json``, and the text that the command line prints."""

import math
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from descend.results import locked
from descend.results.sweeps import (
    SWEEP_FILE,
    ChosenTrial,
    MethodSearch,
    Searched,
    SweepFile,
    Trial,
    TrialCurve,
)
from descend.sweep.space import edges
from descend.sweep.storage import DONE, SETTINGS, Search

RULE = (
    "For every method as many trials, finished or pruned. Chosen is the trial with the {better} mean {metric} over the "
    "noise levels {levels} on the validation split, of its final model{seeds}; of equal ones the first. A constrained "
    "trial that meets its constraints may be 1 % worse, unless --preset paper is given. From the middle of a run on a "
    "trial is pruned that is among the worst quarter of its method's finished ones. A pruned trial can't be chosen; "
    "one that diverged counts as finished, and as the worst."
)


def write(out: Path, facts: Mapping[str, Any], searches: Sequence[Search]) -> SweepFile:
    """Write ``sweep.json`` of a sweep's folder.

    Args:
        out: The folder.
        facts: The fields of `SweepFile` that all methods share.
        searches: One per method.
    """
    better = "highest" if facts["higher_is_better"] else "lowest"
    levels = ", ".join(f"{level:g}" for level in facts["levels"])
    seeds = f" and over {facts['seeds']} seeds" if facts["seeds"] > 1 else ""
    content = SweepFile(
        descend=version("descend"),
        **facts,
        rule=RULE.format(better=better, metric=facts["metric"], levels=levels, seeds=seeds),
        # Skip a study that another worker has just created: it has no settings and no trials yet.
        methods={search.method: _method(search, facts) for search in searches if SETTINGS in search.study.user_attrs},
    )
    with locked(out, wait=True):  # several workers may finish at the same time
        content.write(out / SWEEP_FILE)
    return content


def _method(search: Search, facts: Mapping[str, Any]) -> MethodSearch:
    trials = [_trial(trial) for trial in search.study.get_trials(deepcopy=False, states=DONE)]
    best = search.best
    chosen = next((trial for trial in trials if best is not None and trial.number == best.number), None)
    searched = search.study.user_attrs[SETTINGS]["searched"]
    top = None
    if chosen is not None:
        words = ["descend", "train", facts["recipe"], *facts["given"], "--method", search.method, *chosen.flags]
        command = shlex.join([*words, "--out", f"runs/{search.method}"])
        top = ChosenTrial(**dict(chosen), command=command)
    return MethodSearch(
        searched={name: Searched(**kind) for name, kind in searched.items()},
        counts=dict(Counter(trial.state for trial in trials)),
        best=top,
        edges=edges(chosen.settings, searched) if chosen else [],
        importance=_importance(search.study),
        trials=trials,
    )


def _trial(trial: FrozenTrial) -> Trial:
    """A finished, pruned or diverged trial as ``sweep.json`` holds it."""
    attributes = trial.user_attrs
    pruned = trial.state is TrialState.PRUNED
    words = attributes.get("flags", [])
    steps = sorted(trial.intermediate_values)
    return Trial(
        number=trial.number,
        state="pruned" if pruned else "diverged" if "diverged" in attributes else "finished",
        value=None if pruned else trial.value,
        values=attributes.get("values"),
        feasible=attributes.get("feasible"),
        settings={name.lstrip("-").replace("-", "_"): _number(value) for name, value in _pairs(words)},
        flags=words,
        curve=TrialCurve(steps=list(map(float, steps)), values=[trial.intermediate_values[step] for step in steps]),
        noise=attributes.get("noise"),
        seconds=attributes.get("seconds"),
        folder=attributes.get("folder"),
        worker=attributes.get("worker"),
        why=attributes.get("diverged"),
        retries=len(trial.system_attrs.get("retry_history", ())),
    )


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


def _number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word


def _importance(study: optuna.Study) -> dict[str, float]:
    """Setting → its importance by PED-ANOVA; they add up to 1. Empty with fewer than two finished trials."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(finished) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Optuna warns of few trials; the page shows their number
        return optuna.importance.get_param_importances(study)


def tell(search: Search, trial: FrozenTrial, metric: str) -> str:
    """One line that says how a trial ended."""
    ended = _trial(trial)
    number = sum(other.state in DONE for other in search.study.get_trials(deepcopy=False))
    best = search.best
    if ended.state == "pruned":
        end = f"pruned at step {ended.curve.steps[-1]:g}"
    elif ended.state == "diverged":
        end = f"diverged: {(ended.why or '').split('. ')[0]}"
    elif not math.isfinite(trial.value or 0):
        end = f"mean {metric} not finite"
    else:
        feasible = "" if ended.feasible is None else ", feasible" if ended.feasible else ", infeasible"
        end = f"mean {metric} {trial.value:.4g}{feasible if search.method == 'constrained' else ''}"
    ahead = f"; best {best.value:.4g} of trial {best.number}" if best is not None else ""
    what = f"{search.method} {number} of {search.trials}, trial {trial.number}"
    return f"{what}: {end}{ahead} ({shlex.join(ended.flags)})"


def sentences(content: SweepFile) -> str:
    """The result of a sweep for the terminal: the rule, a table, and the commands that train with the best settings."""
    lines = [
        content.rule,
        "",
        f"{'method':14}{'finished':>9}{'pruned':>8}{'diverged':>10}  best mean {content.metric}",
    ]
    todo = []
    for method, search in content.methods.items():
        counts, best = search.counts, search.best
        numbers = "".join(
            f"{counts.get(state, 0):>{width}}" for state, width in (("finished", 9), ("pruned", 8), ("diverged", 10))
        )
        value = f"{best.value:.4g} in {best.folder}" if best else "none: no trial ended with a finite one"
        lines.append(f"{method:14}{numbers}  {value}")
        lines += [f"{'':14}at an end of its range, better may lie beyond: {edge}" for edge in search.edges]
        todo += [best.command] if best else []
    return "\n".join([*lines, "", *todo])
