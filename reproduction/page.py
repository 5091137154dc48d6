"""One static page of a study: claims, figures, tables and theory."""

from functools import partial
from importlib.resources import files
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from descend.results import put, refuse_foreign
from reproduction import figures, tables
from reproduction.claims import NOT_REPRODUCED, claims
from reproduction.grids import SCALES
from reproduction.table import Table
from reproduction.theory import HEADS, theory

PAGE_FILE = "report.html"


def write(table: Table, folder: Path) -> Path:
    """Draw figures, make tables and write the page; returns its path.

    Args:
        table: The study.
        folder: The folder; figures and tables go into folders in it.
    """
    refuse_foreign([folder / name for name in (PAGE_FILE, "figures", "tables")], "another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    missing = figures.draw(table, folder / "figures")
    made = tables.write(table, folder / "tables")
    for name, frame in (("claims", claims(table)), ("theory", theory(table))):
        made[name] = frame
        put(folder / "tables" / f"{name}.csv", partial(frame.to_csv, index=False))
    titles = {name: (draw.__doc__ or "").rstrip(".") for name, draw in figures.FIGURES.items()}
    titles = {name: f"{name.replace('-', ' ').capitalize()}: {words}" for name, words in titles.items()}
    titles |= {name: title for name, (title, _) in tables.TABLES.items()}
    titles |= {"claims": "Each claim, the paper's number, ours, and the verdict", "theory": "Beside the theorems"}
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
        heads=HEADS,
        left_out=lacking | (NOT_REPRODUCED if table.scale == "small" else {}),
        html=_html,
    )
    page = folder / PAGE_FILE
    put(page, lambda part: part.write_text(words, "utf-8"))
    return page


def _html(frame: pd.DataFrame) -> Markup:
    """A table as HTML; pandas escapes its cells."""
    shown = frame.map(lambda value: f"{value:.3g}" if isinstance(value, float) else str(value))
    return Markup(shown.to_html(index=False, border=0, escape=True))
