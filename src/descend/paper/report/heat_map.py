"""The grid of a study as a heat map, and what a cell of it opens: its runs."""

from collections.abc import Sequence
from html import escape
from math import isfinite
from typing import Any

from descend.paper.report.cells import DATA, Run, arm_name, data_name
from descend.paper.report.chart import arm_style
from descend.paper.report.claims import above, below, ranged
from descend.paper.report.estimates import Interval, gain
from descend.paper.report.results import MODELS, Results, Setting
from descend.report.figures import layer_colours

BUDGET = 4_000_000
"""Characters that the runs of all cells may take on the page."""

_MARKS = {"better": "✔", "worse": "✘", "alike": "≈", "alone": "–"}
_SAID = {
    "better": "constrained is better beyond doubt",
    "worse": "constrained is worse beyond doubt",
    "alike": "not decided",
    "alone": "nothing to compare",
}


def heat_map(results: Results) -> str:
    """Rows of models and depths, columns of data sets and training noise; a cell's colour is what constraints gain."""
    settings = results.settings
    if not settings:
        return '<p class="words">No cell was run.</p>'
    tasks, sets = list(dict.fromkeys(one.task for one in settings)), [*DATA, *(one.data for one in settings)]
    ordered = sorted(settings, key=lambda one: (tasks.index(one.task), sets.index(one.data), one.gamma))
    columns = list(dict.fromkeys((one.data, one.gamma) for one in ordered))
    models = [*MODELS, *(one.model for one in settings)]
    rows = sorted({(one.model, one.depth) for one in settings}, key=lambda row: (models.index(row[0]), row[1]))
    gains = {one: gain(one).interval if one.paired else Interval(float("nan")) for one in settings}
    most = max((abs(found.value) for found in gains.values() if isfinite(found.value)), default=1) or 1
    heads = "".join(f'<th scope="col">{escape(data_name(data))}<br>γ = {gamma:g}</th>' for data, gamma in columns)
    places = {(one.model, one.depth, one.data, one.gamma): (index, one) for index, one in enumerate(settings)}
    body = ""
    for model, depth in rows:
        cells = ""
        for column in columns:
            found = places.get((model, depth, *column))
            cells += f"<td>{_button(*found, gains[found[1]], most)}</td>" if found else '<td class="none"></td>'
        body += f'<tr><th scope="row">{escape(model)}-{depth}</th>{cells}</tr>'
    return (
        '<div class="scroll" role="region" aria-label="The grid of runs" tabindex="0">'
        f'<table class="grid"><thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _button(index: int, setting: Setting, found: Interval, most: float) -> str:
    kind = _kind(found)
    share = round(45 * min(1.0, abs(found.value) / most)) if isfinite(found.value) else 0
    tone = "up" if found.value > 0 else "down"
    text = f"{found.value:+.1f}".replace("-", "−") + " %" if isfinite(found.value) else "diverged"
    text = text if setting.paired else "alone"
    words = f"{setting.words}: gain {ranged(found, ' %')}, {_SAID[kind]}" if setting.paired else setting.words
    return (
        f'<button type="button" class="cell {tone}" style="--share:{share}%" data-cell="{index}" '
        f'aria-label="{escape(words)}. Open its runs." aria-haspopup="dialog">'
        f'<span aria-hidden="true">{_MARKS[kind]}</span> {text}</button>'
    )


def _kind(found: Interval) -> str:
    if found.value != found.value:
        return "alone"
    return "better" if above(found) == "held" else "worse" if below(found) == "held" else "alike"


def opened(results: Results) -> dict[str, Any]:
    """What the dialog shows of each cell, thinned until all fits: fewer steps of a curve, then fewer seeds."""
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
    found = gain(setting).interval if setting.paired else None
    over = "area" if setting.constrained and setting.constrained[0].higher else "mean"
    words = f"{setting.metric}, {over} over test noise: constrained gains {ranged(found, ' %')}." if found else ""
    start = max(range(len(arms)), key=lambda place: arms[place]["name"] == arm_name("constrained"))
    return {"title": setting.words, "words": words, "depth": setting.depth, "arms": arms, "start": start}


def _run(run: Run, most: int) -> dict[str, Any]:
    curves = {}
    for name, curve in run.curves.items():
        stride = -(-len(curve.steps) // most)
        kept = [*range(0, len(curve.steps) - 1, stride), len(curve.steps) - 1] if curve.steps else []
        rows = [curve.values[place] for place in kept]
        curves[name] = {
            "first": curve.first,
            "steps": [curve.steps[place] for place in kept],
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
    """Characters that it takes as JSON, about."""
    if isinstance(content, dict):
        return sum(len(key) + 4 + _size(value) for key, value in content.items())
    if isinstance(content, list):
        return sum(_size(value) + 1 for value in content)
    return len(str(content))
