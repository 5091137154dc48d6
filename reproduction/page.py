"""One static page of a study: claims, figures, tables and theory."""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from descend.results import put, refuse_foreign
from reproduction import figures, methods_page, tables
from reproduction.claims import NOT_REPRODUCED, claims
from reproduction.grids import SCALES
from reproduction.table import Table
from reproduction.theory import HEADS, theory

PAGE_FILE = "report.html"


class Contents(NamedTuple):
    """What a page shows.

    Attributes:
        figures: Name → what draws it.
        tables: Name → title, and what makes it.
        sections: Heading → names of figures and tables, in their order.
        reading: How to read them.
    """

    figures: Mapping[str, Callable[[Table], Figure]]
    tables: Mapping[str, tuple[str, Callable[[Table], pd.DataFrame]]]
    sections: Mapping[str, Sequence[str]]
    reading: str


PAPER = Contents(
    figures.FIGURES,
    tables.TABLES
    | {
        "claims": ("Each claim, the paper's number, ours, and the verdict", claims),
        "theory": ("Beside the theorems", theory),
    },
    {
        "What was asked before the runs": ["primaries", "held", "searched"],
        "The paper's claims": ["claims"],
        "Figures": [*(name for name in figures.FIGURES if name != "figure-1"), "figure-16"],
        "Tables": [*(f"table-{number}" for number in range(1, 6)), "wins", "comparisons"],
        "The theorems": ["theory"],
    },
    "Holds: no mean on test data misses its bound by more than 1 %. Gains are in per cent of plain training's number "
    "over noise, with 95 % intervals over seeds and groups of test samples. The paper's form has α and the cap fixed "
    "in advance for UT and DUST, and the dual optimizer that validation data chose. Bands are the range over seeds, a "
    "grey line is the training noise; a dashed line is tied weights, but in Figures 3 and 9 plain training.",
)
METHODS = Contents(methods_page.FIGURES, methods_page.TABLES, methods_page.SECTIONS, methods_page.READING)


def write(table: Table, folder: Path) -> Path:
    """Draw figures, make tables and write the page; returns its path.

    Args:
        table: The study.
        folder: The folder; figures and tables go into folders in it.
    """
    refuse_foreign([folder / name for name in (PAGE_FILE, "figures", "tables")], "another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    shown = METHODS if table.scale == "methods" else PAPER
    missing = figures.draw(table, folder / "figures", shown.figures)
    made = tables.write(table, folder / "tables", shown.tables)
    titles = {name: (draw.__doc__ or "").rstrip(".") for name, draw in shown.figures.items()}
    titles = {name: _title(name, words) for name, words in titles.items()}
    titles |= {name: title for name, (title, _) in shown.tables.items()}
    lacking = {titles[name]: f"{why}." for name, why in missing.items() if why}
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        (files("reproduction") / "templates" / "page.html").read_text("utf-8")
    )
    everything = pd.concat([table.rows, table.trials])
    hours = everything.groupby("device").seconds.agg(["size", "sum"])
    words = template.render(
        scale=table.scale,
        about=SCALES[table.scale].about,
        runs=len(table.rows),
        trials=len(table.trials),
        spent=[f"{row['size']:.0f} on {name} ({row['sum'] / 3600:.1f} hours)" for name, row in hours.iterrows()],
        titles=titles,
        tables=made,
        missing=missing,
        sections=shown.sections,
        reading=shown.reading,
        heads=HEADS,
        left_out=lacking | (NOT_REPRODUCED if table.scale == "small" else {}),
        html=_html,
    )
    page = folder / PAGE_FILE
    put(page, lambda part: part.write_text(words, "utf-8"))
    return page


def _title(name: str, words: str) -> str:
    """A figure's title; one of the paper's begins with its number."""
    return f"{name.replace('-', ' ').capitalize()}: {words}" if name.startswith("figure-") else words


def _html(frame: pd.DataFrame) -> Markup:
    """A table as HTML; pandas escapes its cells."""
    shown = frame.map(
        lambda value: str(value) if not isinstance(value, float) else "–" if pd.isna(value) else f"{value:.5g}"
    )
    return Markup(shown.to_html(index=False, border=0, escape=True))
