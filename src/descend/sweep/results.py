"""The results of a sweep: ``sweep.json``, and the text that the command line prints."""

import shlex
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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
from descend.settings import options
from descend.sweep.space import edges, rounded
from descend.sweep.storage import Search

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
        methods={search.method: _method(search, facts) for search in searches if search.settings},
    )
    with locked(out, wait=True):  # several workers may finish at the same time
        content.write(out / SWEEP_FILE)
    return content


def _method(search: Search, facts: Mapping[str, Any]) -> MethodSearch:
    searched = {name: Searched(**kind) for name, kind in (search.settings or {})["searched"].items()}
    trials = [_trial(trial, searched) for trial in search.ended()]
    best, chosen = search.best, None
    for trial in trials:
        if best is not None and trial.number == best.number:
            words = ["descend", "train", facts["recipe"], *facts["given"], "--method", search.method, *trial.flags]
            command = shlex.join([*words, "--out", f"runs/{search.method}"])
            chosen = ChosenTrial(**dict(trial), command=command)
    return MethodSearch(
        searched=searched,
        counts=dict(Counter(trial.state for trial in trials)),
        best=chosen,
        edges=edges(chosen.settings, searched) if chosen else [],
        importance=_importance(search),
        trials=trials,
    )


def _trial(trial: FrozenTrial, searched: Collection[str]) -> Trial:
    """A finished, pruned or diverged trial as ``sweep.json`` holds it."""
    attributes, curve = trial.user_attrs, dict(sorted(trial.intermediate_values.items()))
    pruned, settings = trial.state is TrialState.PRUNED, rounded(trial.params, searched)
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
        **{name: attributes.get(name) for name in ("values", "noise", "seconds", "folder", "worker")},
    )


def _importance(search: Search) -> dict[str, float]:
    """Setting → its importance by PED-ANOVA; they add up to 1. Empty with fewer than two finished trials."""
    if len(search.ended(TrialState.COMPLETE)) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Optuna warns of few trials; the page shows their number
        return optuna.importance.get_param_importances(search.study)


def tell(search: Search, trial: FrozenTrial, metric: str) -> str:
    """One line that says how a trial ended."""
    ended, best = _trial(trial, search.space), search.best
    if ended.state == "pruned":
        end = f"pruned at step {ended.curve.steps[-1]:g}"
    elif ended.state == "diverged":
        end = f"diverged: {(ended.why or '').split('. ')[0]}"
    elif ended.value is None:
        end = f"mean {metric} not finite"
    else:
        feasible = "" if ended.feasible is None else ", feasible" if ended.feasible else ", infeasible"
        end = f"mean {metric} {ended.value:.4g}{feasible if search.method == 'constrained' else ''}"
    ahead = f"; best {best.value:.4g} of trial {best.number}" if best is not None else ""
    what = f"{search.method} {len(search.ended())} of {search.trials}, trial {trial.number}"
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
