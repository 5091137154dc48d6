"""Pages from templates: Jinja2 with autoescape, one self-contained HTML file, written in one piece."""

import base64
import gzip
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from descend.report.figures import Plot
from descend.report.glossary import terms
from descend.results import PART
from descend.results.ownership import PAGE_FILE, refuse_foreign

PACKAGE = "descend.report"

COMPACT: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
"""How the pages' JSON is written."""


@cache
def environment(package: str) -> Environment:
    """A package's templates, and those of `PACKAGE`. Every value is escaped unless it is marked as HTML."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in dict.fromkeys((package, PACKAGE))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, package: str = PACKAGE, **values: Any) -> str:
    """The HTML that a package's template makes of some values."""
    return environment(package).get_template(template).render(**values)


def write_interactive(
    out: Path,
    template: str,
    *,
    package: str = PACKAGE,
    data: Sequence[Any],
    pictures: bool,
    more: Mapping[str, Any] | None = None,
    css: str = "",
    js: str = "",
    **values: Any,
) -> Path:
    """Render a page with plots and write it.

    Args:
        out: The file to write; a folder gets ``report.html``.
        template: A template that extends ``page.html``.
        package: The package that holds it in ``templates/``.
        data: For each section its plots by name, and the state that its controls set.
        pictures: Whether predictions are pictures, which the page's glossary asks.
        more: What a further script unpacks when it is first needed.
        css: Further styles.
        js: A further script.
        values: The template's values.

    Returns:
        The file written.
    """
    page = render(
        template,
        package,
        css=Markup(asset("page.css") + css),
        js=Markup(asset("page.js") + js),
        plotly=_packed_plotly(),
        terms=lambda content: terms(content, data, pictures=pictures),
        # JSON that cannot end the script element that holds it.
        data=Markup(json.dumps({"sections": data}, **COMPACT).replace("<", "\\u003c")),
        more=_packed(json.dumps(more, **COMPACT)) if more else None,
        **values,
    )
    path = out / PAGE_FILE if out.is_dir() else out
    refuse_foreign([path], "another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page.encode(errors="replace"))  # a folder's name need not be UTF-8
    return path


def drawn(plots: Sequence[Plot]) -> dict[str, Any]:
    """The figures of a section as data for the page's script."""
    return {plot.key: json.loads(plot.figure.to_json()) for plot in plots}


def _packed(text: str) -> dict[str, Any]:
    """Compress a text, and write gzip's bytes in 85 letters that need no escape in HTML. ``page.js`` unpacks it."""
    content = gzip.compress(text.encode(errors="replace"), mtime=0)
    # Of Python's 85 letters only < means something in a script element; the comma is none of them.
    letters = base64.b85encode(content + bytes(-len(content) % 4)).decode().replace("<", ",")
    return {"letters": Markup(letters), "size": len(content)}


@cache
def _packed_plotly() -> dict[str, Any]:
    """plotly.js, compressed from 4.8 to 1.8 MB."""
    return _packed(get_plotlyjs())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one piece, even if two commands write it at once or one is stopped."""
    part = path.with_name(f"{PART}-{os.getpid()}-{path.name}")
    part.write_bytes(content)
    part.replace(path)


def asset(name: str) -> str:
    """A text file of this package."""
    return files("descend.report").joinpath(name).read_text(encoding="utf-8")
