"""What a sweep has found: the content of ``sweep.json``, the text that the command line prints, and the page."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import plotly.io
from jinja2 import StrictUndefined, Template
from optuna.trial import FrozenTrial, TrialState

from descend.errors import InputError, reason
from descend.results.folder import put
from descend.results.ownership import PAGE_FILE, refuse_foreign
from descend.results.sweeps import SWEEP_FILE, ChosenTrial, MethodSearch, Searched, SweepFile, Trial, TrialCurve
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

FAR = 4
"""A trial is left out of the charts if it is this many times as far from the best as three quarters of all are."""

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


def write_sweep(folder: Path) -> Path:
    """Write the page of a sweep into its folder, from its ``sweep.json`` alone.

    Args:
        folder: The sweep's folder, with ``sweep.json``.

    Returns:
        The path of the page.

    Raises:
        InputError: If ``sweep.json`` is missing or damaged, or the page is somebody else's.
    """
    content, page = SweepFile.read(folder / SWEEP_FILE), folder / PAGE_FILE
    refuse_foreign([page], "another place")
    try:
        # Plotly takes some tags in its texts for HTML.
        charts = _charts(SweepFile.model_validate_json(content.model_dump_json().replace("<", "&lt;")))
    except ValueError as error:
        raise InputError(f"{folder / SWEEP_FILE} can't be drawn: {reason(error)}. Run the sweep again.") from None
    template = Path(__file__).with_name("page.html").read_text("utf-8")
    text = Template(template, autoescape=True, undefined=StrictUndefined).render(
        name=folder.absolute().name, sweep=content, charts=charts, far=FAR
    )
    put(page, lambda part: part.write_bytes(text.encode(errors="replace")))  # a folder's name need not be UTF-8
    return page


def _charts(content: SweepFile) -> dict[str, str]:
    """Heading → one of Optuna's charts as HTML, the first with plotly.js."""
    studies = {method: _drawn(method, search, content.higher_is_better) for method, search in content.methods.items()}
    name, view = f"mean {content.metric}", optuna.visualization
    figures = {"Trial by trial": view.plot_optimization_history(list(studies.values()), target_name=name)}
    for method, study in studies.items():
        figures[f"{method}: value by setting"] = view.plot_slice(study, target_name=name)
        figures[f"{method}: settings and value of each trial"] = view.plot_parallel_coordinate(study, target_name=name)
        figures[f"{method}: value on a few samples, during training"] = view.plot_intermediate_values(study)
    for figure in figures.values():
        figure.update_layout(title=None, template="plotly_white", margin={"t": 30})
    looks: dict[str, Any] = {"config": {"displayModeBar": False, "responsive": True}, "full_html": False}
    return {
        heading: plotly.io.to_html(figure, include_plotlyjs=place == 0, div_id=f"chart-{place}", **looks)
        for place, (heading, figure) in enumerate(figures.items())
    }


def _drawn(method: str, search: MethodSearch, higher: bool) -> optuna.Study:
    """A study of the trials that are drawn: one that diverged or lies far off would squash the others."""
    study = optuna.create_study(study_name=method, direction="maximize" if higher else "minimize")
    # Rounded values may lie a little outside of their range.
    kinds: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(kind.choices)
        if kind.choices
        else optuna.distributions.FloatDistribution(kind.low * 0.999, kind.high * 1.001, log=kind.log)
        for name, kind in search.searched.items()
    }
    values = sorted((trial.value for trial in search.trials if trial.value is not None), reverse=higher)
    reach = FAR * abs(values[3 * len(values) // 4] - values[0]) or math.inf if values else 0.0
    near = {
        trial.number: trial
        for trial in search.trials
        if trial.state == "pruned" or (trial.value is not None and abs(trial.value - values[0]) <= reach)
    }
    for number in range(max(near, default=-1) + 1):
        if (trial := near.get(number)) is None:  # keeps the numbers of those after it
            study.add_trial(optuna.create_trial(state=TrialState.FAIL))
        else:
            curve = dict(zip(map(int, trial.curve.steps), trial.curve.values, strict=True))
            state = TrialState.COMPLETE if trial.state == "finished" else TrialState.PRUNED
            study.add_trial(
                optuna.create_trial(
                    state=state,
                    value=trial.value,
                    params=trial.settings,
                    distributions=kinds,
                    intermediate_values=curve,
                )
            )
    return study
