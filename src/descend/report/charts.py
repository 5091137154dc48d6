"""Charts as inline SVG, drawn by matplotlib in the page's own colours, each with its numbers as a table."""

import io
import re
import warnings
from collections.abc import Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from descend.report.tables import Cell, Row, Table
from descend.report.words import number

INK, GRID, MUTED = "#1d1c1a", "#e4e0d8", "#6b665e"
"""Colours of text and lines on light ground."""

MOST_ROWS = 60
"""A chart with more places on its horizontal axis has no table of its numbers."""

LOG_FROM = 30.0
"""A vertical axis is logarithmic where its largest value is this many times its smallest."""

LONG_LABEL = 28
"""A legend with a longer entry has one column."""

_LOOK: Any = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # and is not read as formulas
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


class Series(NamedTuple):
    """Points of a chart.

    Attributes:
        name: As the legend has it; empty for a series without an entry.
        x: Horizontal places.
        y: Values.
        colour: On light ground; the page's style sheet has that of dark ground.
        marker: matplotlib's name of the mark; empty for none.
        line: matplotlib's style of the line; empty for none.
        ends: The low and the high ends of a band along the line.
        width: Of the line, in points.
        size: Of the marks, in points.
        hollow: Marks are outlines.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    marker: str = ""
    line: str = "-"
    ends: tuple[Sequence[float], Sequence[float]] | None = None
    width: float = 2.0
    size: float = 5.0
    hollow: bool = False


class Chart(NamedTuple):
    """A chart on the page: its heading, its words, its drawing and its numbers."""

    heading: str
    words: str
    svg: Markup
    numbers: Table | None


def chart(
    heading: str,
    words: str,
    axes: tuple[str, str],
    series: Sequence[Series],
    *,
    log: bool | None = False,
    log_x: bool = False,
    layers: bool = False,
    mark: tuple[float, str] | None = None,
    like: Sequence[Series] = (),
) -> Chart:
    """Draw a chart.

    Args:
        heading: Its heading.
        words: What it shows, in sentences.
        axes: The titles of the horizontal and the vertical axis.
        series: What is drawn.
        log: Whether the vertical axis is logarithmic if values are spread; None for a linear one if they are not spread
            widely, from 0 if the smallest is less than half the largest.
        log_x: Whether the horizontal axis is logarithmic.
        layers: Whether the horizontal axis counts layers.
        mark: A place on the horizontal axis where a dashed line stands, and its label.
        like: Further series whose values the vertical axis has room for, as those of a chart beside it.
    """
    with matplotlib.rc_context(_LOOK | {"svg.hashsalt": heading}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that a name has and matplotlib's font has not: the browser has them
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        cell = figure.subplots()
        for each in series:
            if each.ends:
                cell.fill_between(each.x, *each.ends, color=each.colour, alpha=0.18, linewidth=0)
            cell.plot(
                each.x,
                each.y,
                label=_safe(each.name) or None,
                color=each.colour,
                linestyle=each.line or "none",
                linewidth=each.width,
                marker=each.marker,
                markersize=each.size,
                markerfacecolor="none" if each.hollow else each.colour,
            )
        if mark:
            cell.axvline(mark[0], color=MUTED, linestyle="--", linewidth=1)
            cell.annotate(mark[1], (mark[0], 1), xycoords=("data", "axes fraction"), color=MUTED, fontsize=8)
        rows = [row for each in (*series, *like) for row in (each.y, *(each.ends or ()))]
        values = [value for row in rows for value in row if isfinite(value)]
        low, high = min(values, default=0), max(values, default=0)
        if low > 0 and high > low * (LOG_FROM if log is None else 3 if log else inf):
            cell.set_yscale("log")
            _tick(cell.yaxis, (1, 2, 5))
        elif log is None and low >= 0:
            floor = 0 if low < high / 2 else low - 0.05 * (high - low)
            cell.set_ylim(floor, high + 0.05 * (high - floor))
        if log_x:
            cell.set_xscale("log")
            _tick(cell.xaxis, (1, 3))
        if layers:
            cell.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        cell.set_xlabel(_safe(axes[0]))
        cell.set_ylabel(_safe(axes[1]))
        if cell.get_legend_handles_labels()[1]:
            long = max(len(each.name) for each in series) > LONG_LABEL
            figure.legend(loc="outside upper left", ncols=1 if long else 2, fontsize=8.5)
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return Chart(heading, words, _svg(drawing.getvalue(), heading), _numbers(axes[0], series))


def _tick(axis: Any, digits: Sequence[float]) -> None:
    """Plain numbers on a logarithmic axis, those with these first digits."""
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _safe(text: str) -> str:
    """A text that fonts can be asked for; a leading underscore would hide it from the legend."""
    return re.sub(r"^_", "\u200b_", text.encode(errors="replace").decode())


def _svg(drawing: str, heading: str) -> Markup:
    """The drawing for the page: without a prolog and names, in colours that the style sheet may change."""
    body = drawing[drawing.index("<svg") :]
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"#([0-9a-f]{6})\b(?=[;\"])", r"var(--c\1, #\1)", body)
    # A mark's name is its content's hash, so two of one name are one mark.
    return Markup('<div class="plot" role="img" aria-label="Plot: {}">{}</div>').format(heading, Markup(body))


def _numbers(axis: str, series: Sequence[Series]) -> Table | None:
    """A row for each place on the horizontal axis, and a column for each named series."""
    named = {each.name: dict(zip(each.x, each.y, strict=True)) for each in series if each.name}
    places = sorted({x for values in named.values() for x in values})
    if not named or len(places) > MOST_ROWS:
        return None
    rows = [Row([Cell(f"{x:.4g}"), *(Cell(number(values.get(x))) for values in named.values())]) for x in places]
    return Table([axis, *named], rows, "The numbers")
