"""Pages from templates: Jinja2 with autoescape, one self-contained HTML file, written in one piece."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from descend.report.charts import GRID, INK, MUTED
from descend.report.runs import SPARE_STYLES, STYLES
from descend.results import put
from descend.results.ownership import PAGE_FILE, refuse_foreign

PACKAGE = "descend.report"


@cache
def environment() -> Environment:
    """The templates of the pages. Every value is escaped unless it is marked as HTML."""
    made = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # JSON that cannot end the script element that holds it.
    made.filters["data"] = lambda value: Markup(json.dumps(value, allow_nan=False).replace("<", "\\u003c"))
    return made


def write_page_of(template: str, out: Path, **values: Any) -> Path:
    """Render a page and write it in one piece, even if two commands write it at once or one is stopped.

    Args:
        template: A template that extends ``page.html``.
        out: The file to write; a folder gets ``report.html``.
        values: The template's values.

    Returns:
        The file written.
    """
    css, js = (files(PACKAGE).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    css = css.replace("/* colours */", _colours())
    page = environment().get_template(template).render(css=Markup(css), js=Markup(js), **values)
    path = out / PAGE_FILE if out.is_dir() else out
    refuse_foreign([path], "another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, lambda part: part.write_bytes(page.encode(errors="replace")))  # a folder's name need not be UTF-8
    return path


def _colours() -> str:
    """The charts' colours, which are named by what they are on light ground, on dark ground."""
    dark = {style.light: style.dark for style in (*STYLES.values(), *SPARE_STYLES)}
    dark |= {INK: "var(--ink)", GRID: "var(--rule)", MUTED: "var(--muted)"}
    return " ".join(f"--c{light[1:]}: {colour};" for light, colour in dark.items())
