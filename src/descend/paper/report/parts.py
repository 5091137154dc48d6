"""What several figures are made of: panels over noise and along layers, and the numbers that claims are about."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, isnan
from typing import Any

import numpy as np

from descend.paper.published import AREA_REACH
from descend.paper.report.cells import Run, arm_name, data_name, few, metric_name
from descend.paper.report.chart import Chart, Line, Panel, Series, Style, arm_style
from descend.paper.report.claims import Claim, Held, above, number, ranged
from descend.paper.report.estimates import (
    Interval,
    Number,
    ahead,
    along,
    average,
    computed,
    finite,
    robust,
    same_seeds,
    together,
)
from descend.paper.report.results import Setting
from descend.paper.report.tables import Table

BANDS = """Bands and bars: 95 % intervals over seeds and test samples; where more than four lines cross, they are in the
CSV and under the pointer alone."""
SEEDS = "Bands: from the lowest to the highest seed."

Runs = Sequence[Run]


@dataclass(frozen=True)
class Shown:
    """A figure or table of the paper, drawn from our runs."""

    claims: list[Claim] = field(default_factory=list)
    chart: Chart | None = None
    table: Table | None = None


def noise_panel(arms: Mapping[str, Runs], title: str, trained: float | None) -> Panel:
    """The last layer's metric against test noise, a line for each method; of another depth than ours, it says so."""
    depth = next((run.depth for run in arms.get("constrained", [])), None)
    names = {
        arm: arm_name(arm) + ("" if depth is None or runs[0].depth == depth else f", L = {runs[0].depth}")
        for arm, runs in arms.items()
        if runs
    }
    series = [noise_series(name, arm, arms[arm]) for arm, name in names.items()]
    first = next(run for runs in arms.values() for run in runs)
    lines = [] if trained is None else [Line(trained, "trained")]
    return Panel(title, "test noise γ", metric_name(first), series, lines=lines)


def noise_series(name: str, arm: str, runs: Runs) -> Series:
    """One method's metric against test noise, with its interval."""
    found = robust(tuple(runs))
    return banded(name, arm_style(arm), found.noise, [number.interval for number in found.numbers])


def banded(name: str, style: Style, x: Sequence[float], ends: Sequence[Interval], *, dashed: bool = False) -> Series:
    """Numbers along x, with their intervals."""
    values, low, high = ([getattr(end, part) for end in ends] for part in ("value", "low", "high"))
    return Series(name, style, x, values, low, high, dashed=dashed)


def layer_panel(arms: Mapping[str, Runs], title: str, level: float) -> Panel:
    """The loss along the layers at a noise level, a line for each method."""
    series = []
    for arm, runs in arms.items():
        rows = [row for run in runs if not run.diverged and (row := run.losses(level)) is not None]
        if rows:
            series.append(layer_series(arm_name(arm), arm, rows))
    # A loss is positive, but an overflow of a diverged run is not.
    positive = all(value > 0 for one in series for value in one.y if isfinite(value))
    return Panel(title, "layer (0 is the input)", "loss", series, log_y=positive)


def layer_series(name: str, arm: str, rows: Sequence[Sequence[float]]) -> Series:
    """A quantity along the layers: the mean of seeds, and how far they reach."""
    columns = list(zip(*rows, strict=False))
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    mean = [sum(column) / len(column) for column in columns]
    return Series(name, arm_style(arm), list(range(len(columns))), mean, *((low, high) if len(rows) > 1 else ()))


def advantage(ours: Number, theirs: Number, higher: bool) -> Number:
    """How much better ours is: of accuracies in points of a hundred, of errors in per cent of theirs."""
    return (ours - theirs).times(100) if higher else ahead(ours, theirs, higher)


def unit(higher: bool) -> str:
    """The unit of `advantage`."""
    return " points" if higher else " %"


def gain(setting: Setting) -> Number:
    """How much better constrained is than ERM in what the paper's tables hold, in per cent of ERM's."""
    ours, theirs = together(setting.constrained, setting.plain)
    most = reach(setting)
    return ahead(ours.summary(most), theirs.summary(most), ours.higher)


def reach(setting: Setting) -> float:
    """The highest noise of an area: the paper's for texts in its own regime, otherwise what was judged."""
    return AREA_REACH if setting.task == "text" and setting.regime in ("", "paper") else inf


def mean_gain(gains: Sequence[Number]) -> str:
    """The mean over cells in words; a gain that a run which diverged has made infinite is left out, and counted."""
    kept = finite(gains)
    left = f", without {len(gains) - len(kept)} in which a run diverged" if len(kept) < len(gains) else ""
    return f"the mean gain is {ranged(average(kept).interval, ' %') if kept else 'unknown'}{left}"


def strongest(settings: Iterable[Setting]) -> list[Setting]:
    """Of settings that differ in their training noise alone, that with the most."""
    found: dict[tuple[object, ...], Setting] = {}
    for setting in settings:
        key = (setting.task, setting.model, setting.data, setting.depth, setting.regime)
        if key not in found or setting.gamma > found[key].gamma:
            found[key] = setting
    return list(found.values())


def by_validation(settings: Sequence[Setting]) -> dict[str, list[Run]]:
    """Each method's runs at the depth that is best on validation data in the mean over its seeds."""
    chosen: dict[str, list[Run]] = {}
    for arm in dict.fromkeys(arm for setting in settings for arm in setting.arms):
        rivals = [setting.arms[arm] for setting in settings if setting.arms.get(arm)]
        chosen[arm] = min(rivals, key=lambda runs: (_validated(runs), -runs[0].depth))
    if "erm" not in chosen and "erm-clean" in chosen and all(setting.gamma == 0 for setting in settings):
        chosen["erm"] = chosen.pop("erm-clean")
    return chosen


def _validated(runs: Runs) -> float:
    """The last layer's validation value of the model that was kept, so that less is better; infinite where none is."""
    ends = []
    for run in runs:
        rows = run.validation.get(run.view.metric) or run.validation.get("loss")
        sign = -1 if run.higher and run.validation.get(run.view.metric) else 1
        row = rows[run.kept] if rows else []
        end = row[-1] if row else inf
        ends.append(sign * end if isfinite(end) else inf)
    return sum(ends) / len(ends)


Steps = dict[tuple[Setting, int], Number]
"""By setting and layer l."""


def steps_down(settings: Iterable[Setting], arm: str) -> Steps:
    """f_l − f_{l−1} of each layer l = 1 … L in the mean over seeds: below 0 where it lowers the loss."""
    return {
        (setting, layer): step
        for setting in settings
        for layer, step in enumerate(differences(along(tuple(setting.runs(arm)), setting.gamma)), 1)
    }


def differences(numbers: Sequence[Number]) -> list[Number]:
    """The differences of neighbours."""
    return [after - before for before, after in pairwise(numbers)]


def falling(steps: Steps) -> int:
    """In how many settings every layer lowers the mean loss."""
    return len({setting for setting, _ in steps} - {place[0] for place, step in steps.items() if not step.value < 0})


def least_down(step: Interval | Number) -> float:
    """The worse, the larger, in an order that no NaN upsets: what is unknown is worst."""
    return inf if isnan(step.value) else step.value


def deepest(settings: Iterable[Setting]) -> list[Setting]:
    """For each task, model, data set and regime the deepest at its strongest training noise."""
    found: dict[tuple[str, ...], Setting] = {}
    for setting in strongest(settings):
        place = (setting.task, setting.model, setting.data, setting.regime)
        if place not in found or setting.depth > found[place].depth:
            found[place] = setting
    return list(found.values())


def rises(losses: Sequence[Number]) -> Number:
    """How much the loss rises along the layers in all, in per cent of the highest: 0 where every layer lowers it."""
    return computed(_rises, *losses)


def _rises(*losses: Any) -> Any:
    rows = np.array(losses)
    return 100 * np.maximum(np.diff(rows, axis=0), 0).sum(0) / rows.max(0)


def constrained(settings: Iterable[Setting]) -> list[Run]:
    """The constrained runs of some settings."""
    return [run for setting in settings for run in setting.constrained]


def gone(runs: Iterable[Run]) -> str:
    """Which of some runs diverged, in words; empty where none did."""
    names = [run.name for run in runs if run.diverged]
    return f"Diverged: {few(names)}." if names else ""


def spoiled(claim: Claim, runs: Iterable[Run]) -> Claim:
    """A claim on what constrained runs do: one that diverged, and has no numbers, does not do it."""
    named = gone(runs)
    if not named:
        return claim
    told = "" if claim.held == "not run" else claim.sentence
    return replace(claim, held="not held", sentence=f"{named} {told}".strip())


def smoother(figure: str, says: str, setting: Setting, *, neither: Held) -> Claim:
    """Whether ERM's loss rises along the layers by more in all than the constrained one's.

    Args:
        figure: Of which figure.
        says: What is claimed.
        setting: Of which runs.
        neither: What it means for the claim that neither loss ever rises.
    """
    arms = same_seeds(setting.constrained, setting.plain)
    most = max(len(setting.constrained), len(setting.plain))
    ours, theirs = (rises(along(runs, setting.gamma, most)) for runs in arms)
    told = (
        f"Along the layers ERM's loss rises by {number(theirs.value)} % of its highest value in all, the constrained "
        f"one's by {number(ours.value)} %; the difference is {ranged((theirs - ours).interval, ' %')}."
    )
    ends = ours.interval, theirs.interval
    held = neither if all(end.high == 0 for end in ends) else above((theirs - ours).interval)
    return spoiled(Claim(figure, says, held, told), setting.constrained)


def lacking(wanted: Iterable[tuple[str, str]], have: Iterable[tuple[str, str]]) -> str:
    """Which of the paper's (model, data) are not among ours, in words."""
    known = set(have)
    gone = [f"{model} on {data_name(data)}" for model, data in wanted if (model, data) not in known]
    return f"Not run: {', '.join(gone)}." if gone else ""


def by_level(ours: Runs, theirs: Runs, upto: float = inf) -> dict[float, Number]:
    """How much better ours is at each level of test noise, see `advantage`: up to training's is in distribution."""
    one, other = together(ours, theirs)
    return {level: advantage(one.at(level), other.at(level), one.higher) for level in one.noise if level <= upto}


def outside(ours: Runs, theirs: Runs, beyond: float) -> Number:
    """How much better ours is in the mean over test noise stronger than a level: see `advantage`."""
    one, other = together(ours, theirs)
    return advantage(one.mean(above=beyond), other.mean(above=beyond), one.higher)
