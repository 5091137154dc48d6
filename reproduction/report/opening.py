"""The top of a study's page: five short answers and one picture, computed from the cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import plotly.graph_objects as go

from descend.report import plain_layout, plain_text
from descend.results import ENOUGH_GROUPS
from reproduction.report.cells import Run, arm_name, listed
from reproduction.report.chart import arm_style
from reproduction.report.claims import number
from reproduction.report.estimates import Number, ahead, along, computed, gain, same_seeds
from reproduction.report.layers_needed import metrics
from reproduction.report.overview import INTERVALS, ArmOverview, Gains, RunCount, overview
from reproduction.report.results import FORMS, Results, Setting
from reproduction.report.theorems import out_of_reach

ARMS = ("erm", *FORMS, "linear")
"""The arms that the opening compares."""

SETTING_WORDS = f"""A setting is one task, model, data set, depth and training noise, with all its seeds. Surely: the
whole 95 % interval lies on one side of 0. {INTERVALS} For certain: at 95 % confidence, and on at least {ENOUGH_GROUPS}
clips or texts. Over test noise: the mean error, or the area under the accuracy. At the last
layer: at the training noise, by the test loss or by the metric, the error or accuracy. Preset paper: our first reading
of the paper’s settings, with guesses. It is not what the paper ran: no verdict here is one on the paper."""

_NAMES = {"erm": "ERM", "paper": "preset paper", "constrained": "Descend's default", "linear": "linear weights"}

_OVER_NOISE = "over test noise"


@dataclass(frozen=True)
class Comparison:
    """One arm against another, over the settings that have both.

    Attributes:
        settings: How many settings there are.
        runs: The runs of both arms in them.
        known: Settings whose difference has an interval.
        gains: The differences.
    """

    settings: int
    runs: int
    known: int
    gains: Gains

    @property
    def lead(self) -> int:
        """In how many more settings the arm is better than worse."""
        return self.gains.better - self.gains.worse

    def __str__(self) -> str:
        sure = f"surely {self.gains.surely_better} and {self.gains.surely_worse}"
        if self.known < self.settings:
            sure = f"{sure} of the {self.known} with enough seeds"
        return f"in {self.gains.better} of {self.settings} settings and worse in {self.gains.worse} ({sure})"


def compare(
    settings: Sequence[Setting], arm: str, over: str, difference: Callable[[Setting, str, str], Number] = gain
) -> Comparison:
    """Compare two arms in all settings that have both; an arm of which a run diverged is worse there.

    Args:
        settings: The settings.
        arm: The arm.
        over: The other arm.
        difference: By how much the arm is better in a setting: over test noise, `last_loss` or `last_metric`.
    """
    shared = [setting for setting in settings if setting.compares(arm, over)]
    ends = [difference(setting, arm, over).interval for setting in shared]
    runs = sum(len(setting.runs(each)) for setting in shared for each in (arm, over))
    return Comparison(len(shared), runs, sum(end.known for end in ends), Gains.of(ends))


def last_loss(setting: Setting, arm: str, over: str) -> Number:
    """How much lower an arm's test loss at the last layer is, at the training noise, in per cent of the other's."""
    most = max(len(setting.runs(each)) for each in (arm, over))
    pairs = same_seeds(setting.runs(arm), setting.runs(over))
    ours, theirs = (_loss_at_end(runs, setting.gamma, most) for runs in pairs)
    return ahead(ours, theirs, higher=False)


def last_metric(setting: Setting, arm: str, over: str) -> Number:
    """How much better an arm's error or accuracy at the last layer is, at the training noise, in per cent.

    Its interval is over seeds alone.
    """
    pairs = same_seeds(setting.runs(arm), setting.runs(over))
    ours, theirs = (metrics(runs, setting.gamma)[-1] for runs in pairs)
    return ahead(ours, theirs, setting.runs(over)[0].higher)


def _loss_at_end(runs: tuple[Run, ...], level: float, most: int) -> Number:
    """The last layer's loss; infinite if a run diverged."""
    loss = along(runs, level, most)[-1]
    if not any(run.diverged for run in runs):
        return loss
    return computed(lambda values: np.full_like(values, np.inf), loss)


def findings(results: Results) -> list[str]:
    """The five answers. If linear weights do at least as well as a form of constraints, that comes first."""
    arms = _arms(results)
    if not arms:
        return ["No run of plain training (ERM) is done yet, so nothing is compared."]
    forms = [form for form in FORMS if form in arms]
    against = {form: _three(results, "linear", form) for form in forms}
    compared = {form: three for form, three in against.items() if three[0].settings}
    subjects = ["linear weights, a simpler method, are", *["they are"] * len(compared)]
    by_linear = [
        _beside(words, form, three, "they are")
        for words, (form, three) in zip(subjects, compared.items(), strict=False)
    ]
    linear = " ".join(by_linear) or "No setting has both linear weights and constraints yet."
    by_erm = [_beside(f"{_NAMES[form]} is", "erm", _three(results, form, "erm"), "it is") for form in forms]
    by_erm = by_erm or ["No setting has both ERM and constraints yet."]
    others = [_hold(results, arms), _fall(arms), " ".join([*by_erm, *_calibration(results)])]
    simpler = _simpler(results, "constrained" if "constrained" in arms else "paper")
    if any(one.lead >= 0 for three in compared.values() for one in three):
        return [linear, *others, simpler]
    return [*others, linear, simpler]


def _three(results: Results, arm: str, over: str) -> list[Comparison]:
    """One arm against another: over test noise, and at the last layer by the loss and by the error or accuracy."""
    return [compare(results.settings, arm, over, difference) for difference in (gain, last_loss, last_metric)]


def _beside(words: str, over: str, three: Sequence[Comparison], again: str) -> str:
    """One arm against another, in words; ``words`` and ``again`` are its subject and verb."""
    by_noise, by_loss, by_metric = three
    return (
        f"{_capital(words)} better than {_NAMES[over]} {_OVER_NOISE} {by_noise}. At the last layer {again} better by "
        f"loss {by_loss}, by metric in {by_metric.gains.better} and worse in {by_metric.gains.worse}."
    )


def _arms(results: Results) -> dict[str, ArmOverview]:
    return {arm: given for arm, given in overview(results).items() if arm in ARMS}


def _hold(results: Results, arms: Mapping[str, ArmOverview]) -> str:
    counts = [
        f"in {arms[form].feasible} runs of {_NAMES[form]} ({arms[form].proven.number})"
        for form in FORMS
        if form in arms
    ]
    if not counts:
        return "No run with constraints is done yet."
    words = f"The constraints hold on test data (in brackets: for certain) {listed(counts)}."
    if "constrained" in arms and arms["erm"].feasible.total:
        plain = arms["erm"]
        words += f" Plain training's models meet the default's in {plain.feasible} ({plain.proven.number})."
    if far := out_of_reach(results):
        total = sum(bool(setting.runs("paper")) for setting in results.settings)
        words += (
            f" In {len(far)} of {total} settings preset paper asks for a lower last loss than the model reached "
            "with any method."
        )
    return words


def _fall(arms: Mapping[str, ArmOverview]) -> str:
    counts = [f"{_NAMES[arm]} {given.falls} ({given.certain.number})" for arm, given in arms.items()]
    return f"Runs whose test loss falls at every layer (in brackets: for certain): {', '.join(counts)}."


def _calibration(results: Results) -> list[str]:
    """A sentence on the methods whose classifiers are not calibrated, if others are; else nothing."""
    arms: dict[bool, set[str]] = {True: set(), False: set()}
    for run in results.runs:
        if run.task == "text" and not run.diverged:
            arms[bool(run.summary.settings.get("calibrate"))].add(run.arm)
    if not all(arms.values()):
        return []
    without = listed([f"“{arm_name(arm)}”" for arm in sorted(arms[False])])
    return [
        f"On texts a temperature is fitted for all methods but {without}. It changes losses and what holds or falls, "
        "but no accuracy."
    ]


def _simpler(results: Results, ours: str) -> str:
    """By task, in how many settings each simpler method is not surely worse than the constraints."""
    parts = []
    for simple in ("erm", "linear"):
        counts, runs = [], 0
        for task in dict.fromkeys(setting.task for setting in results.settings):
            one = compare(results.where(task=task), simple, ours)
            if one.known:
                runs += one.runs
                counts.append(f"{one.known - one.gains.surely_worse} of {one.known} on {task}")
        if counts:
            parts.append(f"{_NAMES[simple]} in {listed(counts)} ({runs} runs)")
    if not parts:
        return "No setting has enough seeds to tell where a simpler method is as good."
    return (
        f"Settings in which a simpler method is not surely worse than {_NAMES[ours]} {_OVER_NOISE}: {'; '.join(parts)}."
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def picture(results: Results) -> dict[str, go.Figure]:
    """Heading → a small plot with a bar for each arm; without those that have nothing to show."""
    arms = _arms(results)
    gains = {
        arm: (given.over_noise.middle, f"{number(given.over_noise.middle)} % in {given.settings} settings")
        for arm, given in arms.items()
        if arm != "erm"
    }
    judged = any(form in arms for form in FORMS)
    drawn = {
        "Constraints hold": _shares(
            {arm: given.feasible for arm, given in arms.items() if arm != "linear"} if judged else {}
        ),
        "Loss falls at every layer": _shares({arm: given.falls for arm, given in arms.items()}),
        "Median gain over ERM over test noise": _bars(gains, "gain, per cent"),
    }
    return {heading: figure for heading, figure in drawn.items() if figure.data}


def _shares(counts: Mapping[str, RunCount]) -> go.Figure:
    bars = {arm: (count.number / count.total, f"{count} runs") for arm, count in counts.items() if count.total}
    return _bars(bars, "share of runs").update_xaxes(range=[0, 1.05], tickvals=[0, 0.5, 1], tickformat=".0%")


def _bars(bars: Mapping[str, tuple[float, str]], title: str) -> go.Figure:
    """A bar for each arm, with its words; an infinite one is not drawn."""
    figure = go.Figure(layout=plain_layout(plain_text(title), ""))
    for arm, (value, words) in bars.items():
        style, name = arm_style(arm), plain_text(arm_name(arm))
        figure.add_bar(
            x=[value if isfinite(value) else None],
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
