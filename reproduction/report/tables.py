"""A table of the paper with our numbers beside it, as CSV and Markdown."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite, isnan

from reproduction.report.estimates import Interval


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers.

    Attributes:
        name: As one asks for it, ``table-3``.
        title: What it holds, in a few words.
        words: How to read it.
        heads: One per column.
        rows: As many cells in each; the first names the row.
    """

    name: str
    title: str
    words: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def csv(self) -> str:
        """The table as CSV, for a spreadsheet."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows([spreadsheet(cell) for cell in row] for row in self.rows)
        return out.getvalue()

    def markdown(self) -> str:
        """The table as Markdown, with its title and words."""
        lines = [_line(self.heads), _line(["---"] * len(self.heads)), *map(_line, self.rows)]
        return f"# {self.title}\n\n{self.words}\n\n" + "\n".join(lines) + "\n"


def with_ends(number: Interval, digits: str) -> str:
    """A number and its 95 % interval for a cell of a table.

    Args:
        number: The number; NaN is unknown, infinite is that of a diverged run.
        digits: How numbers are formatted, such as ``.4g``.
    """
    if not isfinite(number.value):
        return "–" if isnan(number.value) else "diverged"
    ends = f" ({number.low:{digits}} to {number.high:{digits}})" if number.known else ""
    return f"{number.value:{digits}}{ends}"


def spreadsheet(words: str) -> str:
    """Quote words that a spreadsheet would take for a formula; numbers stay as they are."""
    if words[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return words
    try:
        float(words)
    except ValueError:
        return f"'{words}"
    return words


def _line(cells: Sequence[str]) -> str:
    """A row of Markdown, with bars and line breaks in its cells escaped."""
    safe = (" ".join(cell.replace("\\", "\\\\").replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(escape(cell, quote=False) for cell in safe)} |"
