"""The page of a sweep, from its ``sweep.json`` alone: what was chosen, the trials, and the value by setting."""

from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

from descend.report.charts import Chart, Series, chart
from descend.report.rendering import write_page_of
from descend.report.runs import METHOD_NAMES, SPARE_STYLES, STYLES
from descend.report.tables import Cell, Row, Style, Table
from descend.results.sweeps import SWEEP_FILE, MethodSearch, SweepFile

FAR = 4
"""A trial is left out of the charts if it is this many times as far from the best as three quarters of all are."""

_FEASIBLE = {None: "–", True: "yes", False: "no"}


def write_sweep(folder: Path) -> Path:
    """Write the page of a sweep into its folder.

    Args:
        folder: The sweep's folder, with ``sweep.json``.

    Returns:
        The path of the page.

    Raises:
        InputError: If ``sweep.json`` is missing or damaged, or the page is somebody else's.
    """
    content = SweepFile.read(folder / SWEEP_FILE)
    return write_page_of(
        "sweep.html",
        folder,
        title=f"Descend: sweep {folder.absolute().name}",
        subtitle=f"{content.model}, {content.recipe}: settings chosen on validation data",
        sweep=content,
        far=FAR,
        overview=_overview(content),
        charts=_charts(content),
        trials=[_trials(content, method, search) for method, search in content.methods.items()],
    )


def _overview(content: SweepFile) -> Table:
    """A row for each method: its numbers of trials, its best, and what mattered."""
    rows = []
    for method, search in content.methods.items():
        shares = search.importance.items() if len(search.searched) > 1 else ()
        rows.append(
            [
                method,
                *(str(search.counts.get(state, 0)) for state in ("finished", "pruned", "diverged")),
                _number(search.best.value if search.best else None),
                _FEASIBLE[search.best.feasible if search.best else None],
                ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares) or "–",
            ]
        )
    heads = ["Method", "Finished", "Pruned", "Diverged", f"Best mean {content.metric}", "Feasible", "What mattered"]
    return Table(heads, [Row(list(map(Cell, cells))) for cells in rows])


def _trials(content: SweepFile, method: str, search: MethodSearch) -> Table:
    """All trials of a method; the chosen one stands out."""
    rows = []
    for trial in search.trials:
        chosen = search.best is not None and trial.number == search.best.number
        cells = [f"{trial.number}{' (chosen)' * chosen}", trial.state, _number(trial.value), _FEASIBLE[trial.feasible]]
        cells += [str(trial.settings.get(name, "–")) for name in search.searched]
        rows.append(Row([Cell(each, strong=chosen) for each in cells]))
    heads = ["Trial", "State", f"Mean {content.metric}", "Feasible", *search.searched]
    return Table(heads, rows, f"{method}: all trials")


def _charts(content: SweepFile) -> list[Chart]:
    """The value trial by trial, by each setting that is a number, and during training."""
    name, found, history = f"mean {content.metric}", [], []
    for place, (method, search) in enumerate(content.methods.items()):
        style = STYLES.get(method, SPARE_STYLES[place % len(SPARE_STYLES)])
        drawn = _near(search, content.higher_is_better)
        values = list(drawn.values())
        ended = [trial for trial in search.trials if trial.number in drawn]
        history.append(_points(method, style, list(drawn), values))
        for setting, kind in search.searched.items():
            if not kind.choices:
                x = [trial.settings.get(setting, nan) for trial in ended]
                found.append(
                    chart(
                        f"{method}: value by {setting}",
                        "",
                        (setting, name),
                        [_points(method, style, x, values)],
                        log_x=kind.log,
                    )
                )
        shown = [trial.curve for trial in search.trials if trial.state == "pruned" or trial.number in drawn]
        curves = [Series("", curve.steps, curve.values, style.light, width=1.0) for curve in shown]
        axes = "training step", f"{content.metric} at the training noise"
        found.append(chart(f"{method}: value during training", "", axes, curves))
    return [chart("Trial by trial", "", ("trial", name), history), *found]


def _points(method: str, style: Style, x: Sequence[Any], y: list[float]) -> Series:
    return Series(METHOD_NAMES.get(method, method), x, y, style.light, style.marker, "")


def _near(search: MethodSearch, higher: bool) -> dict[int, float]:
    """Number → value of the finished trials that are drawn: one that lies far off would squash the others."""
    known = {trial.number: trial.value for trial in search.trials if trial.value is not None}
    values = sorted(known.values(), reverse=higher)
    reach = FAR * abs(values[3 * len(values) // 4] - values[0]) or inf if values else inf
    return {number: value for number, value in known.items() if abs(value - values[0]) <= reach}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
