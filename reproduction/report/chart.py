"""A figure as numbers: panels of series, from which pictures, plots and CSV are made."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Literal

from plotly.colors import sample_colorscale

from descend.report import STYLES, Style
from reproduction.report.tables import spreadsheet

PLAIN = Style("#6b665e", "#a09b92", "circle")
"""The style of bounds and of the paper's numbers."""

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "star", "x")


@dataclass(frozen=True)
class Series:
    """One thing shown along x: a line with marks, marks alone, or the steps of a histogram.

    Attributes:
        name: What the legend says.
        style: Its colours and its mark.
        x: Positions in order; for ``steps`` the edges, one more than heights.
        y: Values; one that is not finite is left out.
        low: Lower ends of the intervals; empty without any.
        high: Upper ends.
        kind: How it is drawn.
        dashed: Whether the line is dashed, which tells pairs apart.
    """

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    kind: Literal["line", "marks", "steps"] = "line"
    dashed: bool = False

    def finite(self) -> list[tuple[float, float, float, float]]:
        """(x, y, low, high) of what can be drawn; an interval that is not finite is no wider than its value."""
        rows = []
        low, high = self.low or self.y, self.high or self.y
        for x, y, bottom, top in zip(self.x, self.y, low, high, strict=self.kind != "steps"):
            if isfinite(x) and isfinite(y):
                rows.append((x, y, bottom if isfinite(bottom) else y, top if isfinite(top) else y))
        return rows


@dataclass(frozen=True)
class Line:
    """A straight line to hold values against, with its words."""

    at: float
    words: str
    axis: Literal["x", "y"] = "x"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    lines: Sequence[Line] = ()

    @property
    def crowded(self) -> bool:
        """Whether bands would hide each other and the lines; then they are in the CSV and the page's hover alone."""
        return len(self.series) > 4

    def free_side(self, line: Line) -> Literal["left", "right"]:
        """At which end a level line has room for its words: where the values are further from it."""
        ends = [(rows[0][1], rows[-1][1]) for one in self.series if (rows := one.finite())]
        left, right = (min((abs(end[side] - line.at) for end in ends), default=0.0) for side in (0, 1))
        return "left" if left > right else "right"


@dataclass(frozen=True)
class Chart:
    """A figure.

    Attributes:
        name: As one asks for it, ``figure-2``.
        title: What it shows, in a few words.
        words: How to read it; says what the intervals are.
        panels: In reading order.
        columns: Panels in a row, in print.
        missing: What was not run, in words.
    """

    name: str
    title: str
    words: str
    panels: Sequence[Panel] = ()
    columns: int = 3
    missing: str = ""

    def legend(self) -> dict[str, Series]:
        """The first series of each name, over all panels."""
        first_of: dict[str, Series] = {}
        for panel in self.panels:
            for series in panel.series:
                first_of.setdefault(series.name, series)
        return first_of

    def csv(self) -> str:
        """Every number shown, in long form; of steps x is the lower edge."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("panel", "series", "x", "y", "low", "high"))
        for panel in self.panels:
            for series in panel.series:
                unknown = [nan] * len(series.y)
                bounds = series.low or unknown, series.high or unknown
                for row in zip(series.x, series.y, *bounds, strict=series.kind != "steps"):
                    writer.writerow([spreadsheet(panel.title), spreadsheet(series.name), *map(_number, row)])
            for line in panel.lines:
                x, y = (line.at, None) if line.axis == "x" else (None, line.at)
                writer.writerow([spreadsheet(panel.title), spreadsheet(line.words), _number(x), _number(y), "", ""])
        return out.getvalue()


_ARM_STYLES = STYLES | {
    "paper": Style("#7d6b00", "#ddc94a", "cross"),
    "erm-noisier": Style("#8a4a2f", "#c99a7e", "hexagon"),
    "erm-paper": Style("#4f5a7a", "#a3add0", "triangle-left"),
}


def arm_style(arm: str) -> Style:
    """The colours and the mark of a method."""
    return _ARM_STYLES.get(arm, PLAIN)


def shades(count: int) -> list[Style]:
    """Styles for things that have an order, as noise levels: from dark to light, each with a mark of its own."""
    places = [place / max(count - 1, 1) for place in range(count)]
    light = sample_colorscale("Viridis", [0.72 * place for place in places], colortype="tuple")
    dark = sample_colorscale("Viridis", [0.4 + 0.6 * place for place in places], colortype="tuple")
    return [Style(_hex(light[index]), _hex(dark[index]), _SYMBOLS[index % len(_SYMBOLS)]) for index in range(count)]


def hues(count: int) -> list[Style]:
    """Styles for things that have no order, as data sets."""
    choice = [STYLES[name] for name in ("constrained", "linear", "r-drop", "uniform", "erm", "erm-clean")]
    return [Style(*choice[index % len(choice)][:2], _SYMBOLS[index % len(_SYMBOLS)]) for index in range(count)]


def _hex(colour: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)


def _number(value: float | None) -> str:
    return "" if value is None or not isfinite(value) else f"{value:.6g}"
