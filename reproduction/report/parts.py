"""Panels that several figures share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from reproduction.report.cells import Run, arm_name, data_name, metric_name
from reproduction.report.chart import Chart, Line, Panel, Series, Style, arm_style
from reproduction.report.claims import Claim
from reproduction.report.estimates import Interval, robust
from reproduction.report.results import FORMS
from reproduction.report.tables import Table

BANDS = """Bands and bars: 95 % intervals over seeds and test samples; where more than four lines cross, they are in the
CSV and under the pointer alone."""
SEEDS = "Bands: from the lowest to the highest seed."

Runs = Sequence[Run]


@dataclass(frozen=True)
class Shown:
    """A figure or table of the paper, drawn from our runs, with its claims."""

    claims: list[Claim] = field(default_factory=list)
    chart: Chart | None = None
    table: Table | None = None


def noise_panel(arms: Mapping[str, Runs], title: str, trained: float | None) -> Panel:
    """The last layer's metric against test noise, a line for each method, with its depth if depths differ."""
    depth = usual_depth(arms)
    names = {
        arm: arm_name(arm) + ("" if depth is None or runs[0].depth == depth else f", L = {runs[0].depth}")
        for arm, runs in arms.items()
        if runs
    }
    series = [noise_series(name, arm, arms[arm]) for arm, name in names.items()]
    first = next(run for runs in arms.values() for run in runs)
    lines = [] if trained is None else [Line(trained, "trained")]
    return Panel(title, "test noise γ", metric_name(first), series, lines=lines)


def usual_depth(arms: Mapping[str, Runs]) -> int | None:
    """The depth of the first form of constraints among some methods, which a panel's title names."""
    return next((run.depth for form in FORMS for run in arms.get(form, ())), None)


def noise_series(name: str, arm: str, runs: Runs) -> Series:
    """One method's metric against test noise, with its interval."""
    curve = robust(tuple(runs))
    return banded(name, arm_style(arm), curve.noise, [number.interval for number in curve.numbers])


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
    """A quantity along the layers: the mean over seeds and their range."""
    columns = list(zip(*rows, strict=False))
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    mean = [sum(column) / len(column) for column in columns]
    return Series(name, arm_style(arm), list(range(len(columns))), mean, *((low, high) if len(rows) > 1 else ()))


def lacking(wanted: Iterable[tuple[str, str]], have: Iterable[tuple[str, str]]) -> str:
    """Names the paper's pairs of model and data set that were not run."""
    known = set(have)
    missing = [f"{model} on {data_name(data)}" for model, data in wanted if (model, data) not in known]
    return f"Not run: {', '.join(missing)}." if missing else ""
