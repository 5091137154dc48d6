"""The top of a study's page: five short answers and one picture, computed from the cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from statistics import median

import numpy as np
import plotly.graph_objects as go

from descend.paper.report.cells import Run, arm_name, listed
from descend.paper.report.chart import arm_style
from descend.paper.report.claims import above, below, number
from descend.paper.report.estimates import Number, ahead, along, computed, gain, same_seeds
from descend.paper.report.results import FORMS, Results, Setting
from descend.report import plain_layout, plain_text

ARMS = ("erm", *FORMS, "linear")
"""The arms that the opening compares."""

_NAMES = {"erm": "ERM", "paper": "the paper's form", "constrained": "Descend's default", "linear": "linear weights"}


@dataclass(frozen=True)
class Versus:
    """One arm against another, over the settings that have both.

    Attributes:
        settings: How many settings there are.
        runs: The runs of both arms in them.
        wins: Settings in which the arm is better.
        losses: Settings in which it is worse.
        sure_wins: Settings in which the whole 95 % interval says that it is better.
        sure_losses: The same of worse.
        known: Settings whose difference has an interval.
        median: The median difference, in per cent of the other arm; NaN without settings.
    """

    settings: int
    runs: int
    wins: int
    losses: int
    sure_wins: int
    sure_losses: int
    known: int
    median: float

    @property
    def lead(self) -> int:
        """In how many more settings the arm is better than worse."""
        return self.wins - self.losses


@dataclass(frozen=True)
class ArmOverview:
    """What the runs of one arm show.

    Attributes:
        runs: Runs of the settings, without ablations.
        feasible: Runs whose constraints hold on test data.
        falling: Runs whose mean test loss falls at every layer, at the training noise.
        over_noise: Against ERM, by the mean error over test noise or the area under the accuracy.
        last_layer: Against ERM, by the test loss of the last layer at the training noise.
    """

    runs: int
    feasible: int
    falling: int
    over_noise: Versus
    last_layer: Versus


def overview(results: Results) -> dict[str, ArmOverview]:
    """What each arm of `ARMS` that was run shows."""
    known: dict[str, ArmOverview] = {}
    for arm in ARMS:
        runs = [run for setting in results.settings for run in setting.runs(arm)]
        if runs:
            known[arm] = ArmOverview(
                runs=len(runs),
                feasible=sum(run.summary.feasible is True for run in runs),
                falling=sum(map(_falls, runs)),
                over_noise=versus(results.settings, arm, "erm", gain),
                last_layer=versus(results.settings, arm, "erm", last_layer),
            )
    return known


def _falls(run: Run) -> bool:
    """Whether the mean test loss falls at every layer, at the training noise."""
    losses = run.losses(run.gamma) or []
    return len(losses) > 1 and all(after < before for before, after in pairwise(losses))


def versus(
    settings: Sequence[Setting], arm: str, over: str, difference: Callable[[Setting, str, str], Number]
) -> Versus:
    """Compare two arms in all settings that have both; an arm whose run diverged is worse there."""
    shared = [setting for setting in settings if arm != over and setting.compares(arm, over)]
    ends = [difference(setting, arm, over).interval for setting in shared]
    values = [float(end.value) for end in ends if not isnan(end.value)]
    return Versus(
        settings=len(shared),
        runs=sum(len(setting.runs(each)) for setting in shared for each in (arm, over)),
        wins=sum(value > 0 for value in values),
        losses=sum(value < 0 for value in values),
        sure_wins=sum(above(end) == "held" for end in ends),
        sure_losses=sum(below(end) == "held" for end in ends),
        known=sum(end.known for end in ends),
        median=median(values) if values else nan,
    )


def last_layer(setting: Setting, arm: str, over: str) -> Number:
    """How much lower an arm's test loss at the last layer is, at the training noise, in per cent of the other's."""
    most = max(len(setting.runs(each)) for each in (arm, over))
    pairs = same_seeds(setting.runs(arm), setting.runs(over))
    ours, theirs = (_last_loss(runs, setting.gamma, most) for runs in pairs)
    return ahead(ours, theirs, higher=False)


def _last_loss(runs: tuple[Run, ...], level: float, most: int) -> Number:
    """The last layer's loss; infinite if a run diverged."""
    loss = along(runs, level, most)[-1]
    if not any(run.diverged for run in runs):
        return loss
    return computed(lambda values: np.full_like(values, np.inf), loss)


SETTING_WORDS = """A setting is one task, model, data set, depth and training noise, with all its seeds. Surely: the
whole 95 % interval lies on one side of 0. Over test noise: the mean error, or the area under the accuracy. At the last
layer: the test loss at the training noise."""


def sentences(results: Results) -> list[str]:
    """The five answers; if linear weights are better than the constraints, that comes first."""
    arms = overview(results)
    if not arms:
        return ["Nothing was run that compares."]
    ours = "constrained" if "constrained" in arms else "paper"
    linear = {
        "over test noise": versus(results.settings, "linear", ours, gain),
        "at the last layer": versus(results.settings, "linear", ours, last_layer),
    }
    answers = [_hold(arms), _fall(arms), _against_erm(arms), _linear(ours, linear), _simpler(results, ours)]
    if any(one.lead > 0 for one in linear.values()):
        answers.insert(0, answers.pop(answers.index(_linear(ours, linear))))
    return answers


def _hold(arms: Mapping[str, ArmOverview]) -> str:
    counts = [f"in {arms[form].feasible} of {arms[form].runs} runs of {_NAMES[form]}" for form in FORMS if form in arms]
    return (
        f"The constraints hold on test data {' and '.join(counts)}." if counts else "No run with constraints is done."
    )


def _fall(arms: Mapping[str, ArmOverview]) -> str:
    counts = [f"{_NAMES[arm]} {one.falling} of {one.runs}" for arm, one in arms.items()]
    return f"Runs whose test loss falls at every layer: {', '.join(counts)}."


def _against_erm(arms: Mapping[str, ArmOverview]) -> str:
    compared = {form: arms[form] for form in FORMS if form in arms and arms[form].over_noise.settings}
    if not compared:
        return "No setting has both ERM and constraints."
    over = [f"{_NAMES[form]} is {_score(one.over_noise)}" for form, one in compared.items()]
    last = [f"{_NAMES[form]} is {_score(one.last_layer)}" for form, one in compared.items()]
    runs = listed([str(one.over_noise.runs) for one in compared.values()])
    return f"Against ERM over test noise, {'; '.join(over)}. At the last layer, {'; '.join(last)} ({runs} runs)."


def _score(one: Versus) -> str:
    sure = f"surely {one.sure_wins} and {one.sure_losses}" if one.known else "too few seeds to be sure"
    return f"better in {one.wins}, worse in {one.losses} of {one.settings} settings ({sure})"


def _linear(ours: str, against: Mapping[str, Versus]) -> str:
    """Whether linear weights are better than the constraints, and where."""
    runs = max(one.runs for one in against.values())
    if not runs:
        return f"No setting has both linear weights and {_NAMES[ours]}."
    scores = "; ".join(f"{where} {_score(one)}" for where, one in against.items())
    better = [where for where, one in against.items() if one.lead > 0]
    worse = [where for where, one in against.items() if one.lead < 0]
    rest = [where for where in against if where not in (better or worse)]
    but = f", but not {listed(rest)}" if rest else ""
    if better:
        verdict = f"a simpler method, beat {_NAMES[ours]} more often than they lose to it {listed(better)}{but}"
    elif worse:
        verdict = f"a simpler method, lose to {_NAMES[ours]} more often than they beat it {listed(worse)}{but}"
    else:
        verdict = f"a simpler method, beat {_NAMES[ours]} as often as they lose to it"
    return f"Linear weights, {verdict}. They are {scores} ({runs} runs)."


def _simpler(results: Results, ours: str) -> str:
    """By task, in how many settings each simpler method is not surely worse than the constraints."""
    parts = []
    for simple in ("erm", "linear"):
        counts = []
        for task in dict.fromkeys(setting.task for setting in results.settings):
            one = versus(results.where(task=task), simple, ours, gain)
            if one.known:
                counts.append(f"{one.known - one.sure_losses} of {one.known} on {task}")
        if counts:
            parts.append(f"{_NAMES[simple]} in {listed(counts)}")
    if not parts:
        return "No setting has enough seeds to tell where a simpler method is as good."
    return f"Settings in which a simpler method is not surely worse than {_NAMES[ours]}: {'; '.join(parts)}."


def plots(results: Results) -> dict[str, go.Figure]:
    """The picture: heading → a small plot with a bar for each arm; without those that have nothing to show."""
    arms = overview(results)
    feasible = {form: (arms[form].feasible, arms[form].runs) for form in FORMS if form in arms}
    falling = {arm: (one.falling, one.runs) for arm, one in arms.items()}
    gains = {arm: one.over_noise for arm, one in arms.items() if one.over_noise.settings}
    drawn = {
        "Constraints hold": _shares(feasible),
        "Loss falls at every layer": _shares(falling),
        "Median gain over ERM, over test noise": _bars(
            {arm: (one.median, f"{number(one.median)} %, {one.settings} settings") for arm, one in gains.items()},
            "per cent of ERM's number",
        ),
    }
    return {heading: figure for heading, figure in drawn.items() if figure.data}


def _shares(counts: Mapping[str, tuple[int, int]]) -> go.Figure:
    bars = {arm: (part / total, f"{part} of {total}") for arm, (part, total) in counts.items()}
    return _bars(bars, "share of runs").update_xaxes(range=[0, 1], tickformat=".0%")


def _bars(bars: Mapping[str, tuple[float, str]], title: str) -> go.Figure:
    """A bar for each arm, with its words; an infinite one is not drawn."""
    figure = go.Figure(layout=plain_layout(plain_text(title), ""))
    for arm, (value, words) in bars.items():
        style, name = arm_style(arm), plain_text(arm_name(arm))
        shown = value if np.isfinite(value) else None
        figure.add_bar(
            x=[shown],
            y=[f"{name}<br>{words}"],
            orientation="h",
            name=name,
            marker={"color": style.light},
            meta=style[:2],
            hovertemplate=f"{name}: {words}<extra></extra>",
        )
    figure.update_layout(showlegend=False, hovermode="closest", bargap=0.45)
    figure.update_xaxes(zeroline=True, zerolinewidth=1.5)
    return figure.update_yaxes(autorange="reversed", showgrid=False)
