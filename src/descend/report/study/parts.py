"""What several figures are made of: panels over noise and along layers, and the numbers that claims are about."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np

from descend.report.study.cells import Run, arm_name, data_name, metric_name
from descend.report.study.chart import Chart, Line, Panel, Series, arm_style
from descend.report.study.claims import Claim, above, percent, ranged
from descend.report.study.estimates import Interval, Number, ahead, over_seeds, robust
from descend.report.study.results import Setting
from descend.report.study.tables import Table

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
    """The last layer's metric against test noise, a line for each method."""
    series = [noise_series(arm_name(arm), arm, runs) for arm, runs in arms.items() if runs]
    first = next(run for runs in arms.values() for run in runs)
    lines = [] if trained is None else [Line(trained, "trained")]
    return Panel(title, "test noise γ", metric_name(first), series, lines=lines)


def noise_series(name: str, arm: str, runs: Runs) -> Series:
    """One method's metric against test noise, with its interval."""
    found = robust(tuple(runs))
    ends = [found.at(level).interval for level in found.noise]
    y = [end.value for end in ends]
    return Series(name, arm_style(arm), found.noise, y, [end.low for end in ends], [end.high for end in ends])


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


def gain(setting: Setting, arm: str = "constrained") -> Number:
    """How much better a method is than ERM in what the paper's tables hold, in per cent of ERM's."""
    ours, theirs = robust(tuple(setting.arms[arm])).summary(), robust(tuple(setting.plain)).summary()
    return ahead(ours, theirs, setting.plain[0].higher)


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
    """The last validation value of the last layer, so that less is better; infinite where there is none."""
    ends = []
    for run in runs:
        rows = run.validation.get(run.view.metric) or run.validation.get("loss")
        sign = -1 if run.higher and run.validation.get(run.view.metric) else 1
        end = rows[-1][-1] if rows and rows[-1] else inf
        ends.append(sign * end if isfinite(end) else inf)
    return sum(ends) / len(ends)


def steps_down(runs: Runs, level: float) -> list[Interval]:
    """f_l − f_{l−1} for l = 1 … L in the mean over seeds: below 0 where a layer lowers the loss."""
    rows = [row for run in runs if (row := run.losses(level)) is not None]
    return differences(rows)


def differences(rows: Sequence[Sequence[float]]) -> list[Interval]:
    """The differences of neighbours, each in the mean over seeds."""
    if not rows:
        return []
    return [over_seeds(column.tolist()) for column in np.diff(np.array(rows), axis=1).T]


def worst_step(steps: Sequence[Interval]) -> tuple[int, Interval]:
    """The layer whose loss falls least, or rises most, and by how much; a step that is unknown is worst."""
    place = max(range(len(steps)), key=lambda index: steps[index].value if isfinite(steps[index].value) else inf)
    return place + 1, steps[place]


def rises(runs: Runs, level: float) -> Interval:
    """How much the loss rises along the layers in all, as a share of the highest: 0 where every layer lowers it."""
    found = []
    for run in runs:
        row = run.losses(level)
        if row is not None:
            steps = np.diff(row)
            found.append(float(np.maximum(steps, 0).sum() / max(row)))
    return over_seeds(found) if found else Interval(float("nan"))


def extra_rises(ours: Runs, theirs: Runs, level: float) -> Interval:
    """How much more of `rises` theirs have than ours, seed by seed, in per cent."""
    pairs = _by_seed(ours, theirs)
    found = [100 * (rises([b], level).value - rises([a], level).value) for a, b in pairs]
    return over_seeds(found) if found else Interval(float("nan"))


def smoother(figure: str, says: str, setting: Setting) -> Claim:
    """Whether ERM's loss rises along the layers by more in all than the constrained one's."""
    extra = extra_rises(setting.constrained, setting.plain, setting.gamma)
    ours, theirs = (percent(rises(runs, setting.gamma).value, 1) for runs in (setting.constrained, setting.plain))
    told = (
        f"Along the layers ERM's loss rises by {theirs} of its highest value in all, the constrained one's by {ours}; "
        f"the difference is {ranged(extra, ' %')}."
    )
    return Claim(figure, says, above(extra), told)


def _by_seed(ours: Runs, theirs: Runs) -> list[tuple[Run, Run]]:
    seeds = {run.seed: run for run in theirs}
    return [(run, seeds[run.seed]) for run in ours if run.seed in seeds]


def lacking(wanted: Iterable[tuple[str, str]], have: Iterable[tuple[str, str]]) -> str:
    """Which of the paper's (model, data) are not among ours, in words."""
    known = set(have)
    gone = [f"{model} on {data_name(data)}" for model, data in wanted if (model, data) not in known]
    return f"Not run: {', '.join(gone)}." if gone else ""


def outside(setting: Setting, beyond: float | None = None) -> Number:
    """Points of accuracy gained, in the mean over test noise stronger than in training."""
    ours, theirs = robust(tuple(setting.constrained)), robust(tuple(setting.plain))
    level = setting.gamma if beyond is None else beyond
    return advantage(ours.mean(above=level), theirs.mean(above=level), ours.higher)
