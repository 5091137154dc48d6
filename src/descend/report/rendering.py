"""Pages from templates: Jinja2 with autoescape, one self-contained HTML file, written in one piece."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs


@cache
def environment() -> Environment:
    """The templates of this room. Every value is escaped unless a template or a `Markup` says that it is HTML."""
    return Environment(
        loader=PackageLoader("descend.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """The HTML that a template makes of some values."""
    return environment().get_template(template).render(**values)


def macro(name: str, *values: Any) -> str:
    """The HTML of one macro of ``macros.html``, as a plain string."""
    return str(getattr(environment().get_template("macros.html").module, name)(*values))


def write_interactive(
    out: Path,
    template: str,
    *,
    data: Sequence[Any],
    more: Mapping[str, Any] | None = None,
    css: str = "",
    js: str = "",
    **values: Any,
) -> Path:
    """Render a page with plots and write it.

    Args:
        out: The file to write; a folder gets ``report.html``.
        template: One that extends ``page.html``.
        data: For each section its plots by name, and the state that its controls set.
        more: Further entries of the data that the page's script reads.
        css: Added to the page's own.
        js: Added to the page's own.
        values: What the template shows.

    Returns:
        The file written.
    """
    page = render(
        template,
        css=Markup(asset("page.css") + css),
        js=Markup(asset("page.js") + js),
        plotly=Markup(get_plotlyjs()),
        data=Markup(script_json({"sections": data, **(more or {})})),
        **values,
    )
    path = out / "report.html" if out.is_dir() else out
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, page.encode(errors="replace"))  # a folder's name need not be UTF-8
    return path


def put(path: Path, content: bytes) -> None:
    """Write a file in one piece: two commands may write it at once, and one may be stopped."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def script_json(data: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def asset(name: str) -> str:
    """A text file of this package."""
    return files("descend.report").joinpath(name).read_text(encoding="utf-8")
