"""A chart in print: PNG and SVG, the same bytes every time."""

from collections.abc import Sequence
from io import BytesIO
from math import ceil
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from reproduction.report.chart import PLAIN, Chart, Line, Panel, Series

# Inches: a column of a paper, and its whole width.
_COLUMN, _WIDTH, _HEIGHT = 3.4, 6.9, 1.9
_MARKERS = {
    **{"circle": "o", "diamond": "D", "square": "s", "triangle-up": "^"},
    **{"triangle-down": "v", "star": "*", "x": "x", "pentagon": "p"},
    **{"cross": "P", "hexagon": "h", "triangle-left": "<"},
}
_GROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
_LOOKS: Any = {
    **{"font.family": "DejaVu Sans", "font.size": 7.5, "axes.titlesize": 8, "axes.labelsize": 7.5},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.grid": True},
    **{"grid.color": "#e4e0d8", "grid.linewidth": 0.5, "xtick.labelsize": 7, "ytick.labelsize": 7},
    **{"legend.fontsize": 7.5, "legend.frameon": False, "lines.linewidth": 1.2, "lines.markersize": 3.5},
    # A name between two dollars is a name.
    "text.parse_math": False,
    # Names in an SVG are drawn by chance unless they have this.
    **{"svg.hashsalt": "descend", "svg.fonttype": "path", "axes.axisbelow": True},
}


def print_chart(chart: Chart) -> dict[str, bytes]:
    """A chart as ``png`` (200 dpi) and ``svg``."""
    printed = {}
    with matplotlib.rc_context(_LOOKS):
        figure = _drawn(chart)
        # Room for the words is made once, not for each file.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            stream = BytesIO()
            figure.savefig(stream, format=suffix, dpi=200, metadata=metadata)
            printed[suffix] = stream.getvalue()
    return printed


def _drawn(chart: Chart) -> Figure:
    columns = max(1, min(chart.columns, len(chart.panels)))
    rows = max(1, ceil(len(chart.panels) / columns))
    names = chart.legend()
    width = _COLUMN if columns == 1 else _WIDTH
    # An entry of the legend: its line, and its words at 7.5 points.
    across = max(1, min(len(names), int(width / (0.45 + 0.062 * max([1, *map(len, names)])))))
    height = _HEIGHT * rows * (1.15 if columns < 3 else 1) + 0.2 * ceil(len(names) / across) + 0.3
    # What letters of these sizes are wide.
    title, missing = wrap(chart.title, int(12.5 * width)), wrap(chart.missing, int(17 * width))
    height += 0.13 * len(missing) + 0.14 * (len(title) - 1)
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle("\n".join(title), fontsize=8.5, fontweight="bold", x=0.01, ha="left")
    if not chart.panels:
        figure.text(0.5, 0.5, "nothing of this was run", ha="center", va="center", color=PLAIN.light)
    places: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat) if chart.panels else []
    for panel, axes in zip(chart.panels, places, strict=False):
        _panel(axes, panel)
    for axes in places[len(chart.panels) :]:
        axes.set_visible(False)
    if len(names) > 1 or missing:
        handles = {name: _handle(series) for name, series in names.items() if len(names) > 1}
        place: Any = {"loc": "outside lower center", "ncols": across}
        figure.legend(list(handles.values()), list(handles), title="\n".join(missing), title_fontsize=6.5, **place)
    return figure


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x_title)
    axes.set_ylabel(panel.y_title)
    if panel.log_x:
        axes.set_xscale("log")
        _ticks(axes.xaxis, [x for series in panel.series for x in series.x])
    if panel.log_y:
        axes.set_yscale("log")
        _ticks(axes.yaxis, [row[1] for series in panel.series for row in series.finite()])
    for series in panel.series:
        _series(axes, series, bands=not panel.crowded)
    for place, line in enumerate(panel.lines):
        _line(axes, line, place, panel.free_side(line))
    places = [x for series in panel.series for x in series.x]
    if places and not panel.log_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=all(x == round(x) for x in places), nbins=6))


def _ticks(axis: Axis, values: Sequence[float]) -> None:
    """Plain numbers along a logarithmic axis; a short range lies within a decade, whose only label would be its end."""
    positive = [value for value in values if value > 0] or [1]
    narrow = max(positive) < 8 * min(positive)
    axis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7) if narrow else (1, 2, 5)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _series(axes: Axes, series: Series, *, bands: bool) -> None:
    colour = series.style.light
    if series.kind == "steps":
        axes.stairs(series.y, series.x, color=colour, linewidth=1.2, linestyle="--" if series.dashed else "-")
        return
    rows = series.finite()
    if not rows:
        return
    x, y, low, high = zip(*rows, strict=True)
    if series.low and series.kind == "line":
        if bands:
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    elif series.low:
        # An estimate need not lie within a percentile interval of its own.
        reach = [
            [max(v - a, 0) for v, a in zip(y, low, strict=True)],
            [max(b - v, 0) for v, b in zip(y, high, strict=True)],
        ]
        axes.errorbar(x, y, yerr=reach, fmt="none", ecolor=colour, elinewidth=1, capsize=2)
    axes.plot(x, y, **_look(series))


def _look(series: Series) -> dict[str, Any]:
    line = "none" if series.kind == "marks" else "--" if series.dashed else "-"
    return {
        "color": series.style.light,
        "linestyle": line,
        "marker": None if series.kind == "steps" else _MARKERS[series.style.symbol],
        "markerfacecolor": "white" if series.dashed else series.style.light,
    }


def _handle(series: Series) -> Line2D:
    return Line2D([], [], **_look(series))


def _line(axes: Axes, line: Line, place: int, side: str) -> None:
    draw = axes.axvline if line.axis == "x" else axes.axhline
    draw(line.at, color=PLAIN.light, linewidth=0.8, linestyle=":", zorder=1)
    where: Any
    if line.axis == "x":
        # Lines that are close have their words one below the other.
        where = {
            "xy": (line.at, 1),
            "xycoords": ("data", "axes fraction"),
            "va": "top",
            "xytext": (2, -1 - 8 * place),
        }
    else:
        where = {"xy": (side == "right", line.at), "xycoords": ("axes fraction", "data"), "ha": side, "xytext": (0, 2)}
    axes.annotate(line.words, textcoords="offset points", fontsize=6.5, color=PLAIN.light, bbox=_GROUND, **where)
