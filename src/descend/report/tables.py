"""Tables as data for templates, and numbers for readers."""

from collections.abc import Sequence
from typing import NamedTuple

from descend.methods import Style


class Cell(NamedTuple):
    """A cell of a table; its ``note`` follows in small print."""

    text: str
    note: str = ""
    strong: bool = False


class Row(NamedTuple):
    """A row of a table; the style's colour marks it in front of its first cell."""

    cells: Sequence[Cell]
    style: Style | None = None


class Table(NamedTuple):
    """A table: rows, under a ``title`` if there is one; folded away under a ``heading`` if there is one."""

    heads: Sequence[str]
    rows: Sequence[Row]
    heading: str = ""
    title: str = ""


class Box(NamedTuple):
    """A part of the page that begins with a headline: the layers needed, or a verdict.

    Attributes:
        headline: The answer in a few words; of several verdicts the worst, and how many runs have it.
        tables: Its numbers; of a verdict layer by layer, of the worst run of each arm under constraints.
        lines: Sentences.
        status: Of a verdict: the worst status of the runs, see `descend.results.Verdict`; it sets the colour. It is
            ``open`` too where constraints hold and the output is still worse than the noisy input, and
            ``not_significant`` where an open verdict has constraints that are missed.
        mark: Of a verdict: the status's sign.
        advice: Of a verdict: what to do.
    """

    headline: str
    tables: Sequence[Table]
    lines: Sequence[str]
    status: str = ""
    mark: str = ""
    advice: str = ""


def duration(seconds: float) -> str:
    """A time for a reader."""
    if seconds < 60:
        return f"{seconds:.0f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest}\u00a0s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
