"""What a sweep has found: the content of ``sweep.json``, and the text that the command line prints."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from descend.results.sweeps import ChosenTrial, MethodSearch, Searched, SweepFile, Trial, TrialCurve
from descend.settings import options
from descend.sweep.space import edges, typed
from descend.training import preferred

RULE = (
    "For every method as many trials, finished or pruned. Chosen is the trial with the {better} mean {metric} over the "
    "noise levels {levels} on the validation split, of its final model{seeds}; of equal ones the first. A constrained "
    "trial that meets its constraints may be 1 % worse, unless --preset paper is given. From the middle of a run on a "
    "trial is pruned that is among the worst quarter of its method's finished ones. A pruned trial can't be chosen; "
    "one that diverged counts as finished, and as the worst."
)

optuna.logging.set_verbosity(optuna.logging.ERROR)


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
    trials, best = [_trial(trial) for trial in ended], None
    if finished := [(trial, trial.value) for trial in trials if trial.value is not None]:
        sign = -1 if study.direction is optuna.study.StudyDirection.MAXIMIZE else 1
        # The paper's preset ignores feasibility here: it chooses by the metric alone.
        counts = method == "constrained" and not settings.get("preset")
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


def _trial(trial: FrozenTrial) -> Trial:
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
        **{name: attributes.get(name) for name in ("values", "noise", "seconds", "folder", "worker")},
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
    lines = [content.rule, "", f"{'method':14} finished   pruned diverged  best mean {content.metric}"]
    for method, search in content.methods.items():
        counts = "".join(f"{search.counts.get(state, 0):9}" for state in ("finished", "pruned", "diverged"))
        best = search.best
        value = f"{best.value:.4g} in {best.folder}" if best else "none: no trial ended with a finite one"
        lines.append(f"{method:14}{counts}  {value}")
        lines += [f"{'':14} at an end of its range, better may lie beyond: {edge}" for edge in search.edges]
    return "\n".join([*lines, "", *(search.best.command for search in content.methods.values() if search.best)])
