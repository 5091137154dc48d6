"""The grids of a study as heat maps, one for each form of constraints, and the runs that a cell opens."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any

from descend.report import layer_colours
from reproduction.report.cells import DATA, Run, arm_name, data_name
from reproduction.report.chart import arm_style
from reproduction.report.claims import above, below, ranged
from reproduction.report.estimates import Interval, gain
from reproduction.report.results import MODELS, Results, Setting

BUDGET = 4_000_000
"""Characters that the runs of all cells may take on the page."""

STRONG = 10.0
"""The gain in per cent from which on a cell has its full colour. Some runs lose so much that no others would show."""

_MARKS = {"better": "✔", "worse": "✘", "alike": "≈", "alone": "–"}
_MEANING = {
    "better": "better beyond doubt",
    "worse": "worse beyond doubt",
    "alike": "not decided",
    "alone": "nothing to compare",
}


@dataclass(frozen=True)
class GridCell:
    """A setting in the grid.

    Attributes:
        index: The setting's place in `Results.settings`.
        mark: Whether the grid's form of constraints is better than ERM.
        text: The gain.
        words: The setting and its gain, in words.
        tone: ``up`` if the form gains, else ``down``.
        share: How strong the colour is, in per cent.
    """

    index: int
    mark: str
    text: str
    words: str
    tone: str
    share: int


@dataclass(frozen=True)
class HeatMap:
    """Rows of models and depths, columns of data sets and training noise γ; None where nothing was run.

    ``name`` is the form of constraints whose gains over ERM it has.
    """

    name: str
    columns: Sequence[tuple[str, float]]
    rows: Sequence[tuple[str, Sequence[GridCell | None]]]


def heat_maps(results: Results) -> list[HeatMap]:
    """For each form that was run what it gains in each setting; the maps share rows, columns and scale of colours."""
    settings = results.settings
    tasks = list(dict.fromkeys(setting.task for setting in settings))
    sets = [*DATA, *(setting.data for setting in settings)]
    ordered = sorted(settings, key=lambda setting: (tasks.index(setting.task), sets.index(setting.data), setting.gamma))
    columns = list(dict.fromkeys((setting.data, setting.gamma) for setting in ordered))
    models = [*MODELS, *(setting.model for setting in settings)]
    rows = sorted(
        {(setting.model, setting.depth) for setting in settings}, key=lambda row: (models.index(row[0]), row[1])
    )
    gains = {form: [_gained(setting, form) for setting in settings] for form in results.forms or ("constrained",)}
    places = {
        (setting.model, setting.depth, setting.data, setting.gamma): index for index, setting in enumerate(settings)
    }

    def cell(form: str, place: tuple[str, int, str, float]) -> GridCell | None:
        index = places.get(place)
        return None if index is None else _grid_cell(index, settings[index], form, gains[form][index])

    names = [(data_name(data), gamma) for data, gamma in columns]
    return [
        HeatMap(
            arm_name(form),
            names,
            [
                (f"{model}-{depth}", [cell(form, (model, depth, *column)) for column in columns])
                for model, depth in rows
            ],
        )
        for form in gains
    ]


def _gained(setting: Setting, arm: str) -> Interval:
    return gain(setting, arm).interval if setting.compares(arm) else Interval(nan)


def _grid_cell(index: int, setting: Setting, form: str, gained: Interval) -> GridCell:
    kind = _kind(gained)
    share = round(45 * min(1.0, abs(gained.value) / STRONG)) if isfinite(gained.value) else 0
    text = f"{gained.value:+.1f}".replace("-", "−") + " %" if isfinite(gained.value) else "diverged"
    compared, words = setting.compares(form), f"{setting.words}, {arm_name(form)}: "
    words += f"gain {ranged(gained, ' %')}, {_MEANING[kind]}" if compared else _MEANING["alone"]
    tone = "up" if gained.value > 0 else "down"
    return GridCell(index, _MARKS[kind], text if compared else "alone", words, tone, share)


def _kind(gained: Interval) -> str:
    if isnan(gained.value):
        return "alone"
    return "better" if above(gained) == "held" else "worse" if below(gained) == "held" else "alike"


def opened(results: Results) -> dict[str, Any]:
    """The dialog's data for each cell, thinned until all fit: fewer steps of a curve, then fewer seeds."""
    for steps, seeds in ((60, 99), (30, 99), (60, 1), (30, 1), (12, 1)):
        cells = [_cell(setting, steps, seeds) for setting in results.settings]
        if sum(_size(cell) for cell in cells) <= BUDGET:
            break
    depths = {setting.depth for setting in results.settings}
    ramps = {depth: [list(layer_colours(layer + 1, depth + 1)) for layer in range(depth + 1)] for depth in depths}
    return {"cells": cells, "ramps": ramps}


def _cell(setting: Setting, steps: int, seeds: int) -> dict[str, Any]:
    arms = [
        {
            "name": arm_name(arm),
            "colours": list(arm_style(arm)[:2]),
            "runs": [_run(run, steps) for run in runs[:seeds]],
            "left": max(0, len(runs) - seeds),
        }
        for arm, runs in setting.arms.items()
    ]
    gains = [
        f"{arm_name(arm)} {ranged(_gained(setting, arm), ' %')}"
        for arm in setting.arms
        if arm not in ("erm", "erm-clean") and setting.compares(arm)
    ]
    over = "area" if next(iter(setting.arms.values()))[0].higher else "mean"
    words = f"{setting.metric}, {over} over test noise. Gains over ERM: {'; '.join(gains)}." if gains else ""
    return {"title": setting.words, "words": words, "depth": setting.depth, "arms": arms}


def _run(run: Run, most: int) -> dict[str, Any]:
    curves = {}
    for name, curve in run.curves.items():
        stride = -(-len(curve.steps) // most)
        places = [*range(0, len(curve.steps) - 1, stride), len(curve.steps) - 1] if curve.steps else []
        rows = [curve.values[place] for place in places]
        curves[name] = {
            "first": curve.first,
            "steps": [curve.steps[place] for place in places],
            "values": [[_short(value) for value in column] for column in zip(*rows, strict=True)],
        }
    ratios = {"edges": [_short(edge) for edge in run.edges], "shares": [_parts(row) for row in run.shares]}
    return {
        "seed": run.seed,
        "verdict": run.summary.verdict,
        "curves": curves,
        "ratios": ratios if run.shares else None,
    }


def _parts(counts: Sequence[float]) -> list[float | None]:
    total = sum(counts) or 1
    return [_short(count / total) for count in counts]


def _short(value: float) -> float | None:
    """Three significant digits: more than a curve shows."""
    return float(f"{value:.3g}") if isfinite(value) else None


def _size(content: Any) -> int:
    """The approximate number of characters as JSON."""
    if isinstance(content, dict):
        return sum(len(key) + 4 + _size(value) for key, value in content.items())
    if isinstance(content, list):
        return sum(_size(value) + 1 for value in content)
    return len(str(content))
