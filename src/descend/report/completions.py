"""Answers side by side: one page over the files that ``descend complete`` wrote."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from descend.errors import InputError
from descend.reading import read_json

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Descend: completions</title>
<style>{css}
table.answers {{ table-layout: fixed; width: 100%; }}
table.answers td, table.answers th {{ white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top;
text-align: left; }}
</style>
</head>
<body>
<main>
<h1>Completions</h1>
<p class="words">{words}</p>
<table class="answers"><thead><tr><th scope="col">Prompt</th>{heads}</tr></thead>
<tbody>{rows}</tbody></table>
</main>
</body>
</html>
"""


def write_completions(paths: Sequence[Path], out: Path) -> Path:
    """Write the page of some files of answers: a row for every prompt that is in all of them, a column for each.

    Args:
        paths: Files in AlpacaEval's form.
        out: The file to write; a folder gets ``completions.html``.

    Returns:
        The file written.

    Raises:
        InputError: If a file can't be read, or they have no prompt in common.
    """
    answers = [_read(path) for path in paths]
    shared = [prompt for prompt in answers[0] if all(prompt in each for each in answers)]
    if not shared:
        raise InputError(f"{' and '.join(map(str, paths))} have no prompt in common.")
    heads = "".join(
        f'<th scope="col">{escape(_name(path, each))}</th>' for path, each in zip(paths, answers, strict=True)
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(prompt[0])}</th>'
        + "".join(f"<td>{escape(each[prompt]['output'])}</td>" for each in answers)
        + "</tr>"
        for prompt in shared
    )
    words = f"{len(shared)} prompts, and what each model went on with."
    css = files("descend.report").joinpath("page.css").read_text(encoding="utf-8")
    page = _PAGE.format(css=css, words=words, heads=heads, rows=rows)
    path = out if out.suffix == ".html" else out / "completions.html"
    if out.is_file() and path != out:
        raise InputError(f"{out} is a file; give --out a folder for the page, or a name that ends in .html.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", errors="replace")  # half a surrogate pair, as JSON may hold
    return path


def _read(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    if not path.exists():
        raise InputError(f"expected a file of answers, as descend complete writes it; there is no {path}.")
    rows = read_json(path)
    asked: Counter[str] = Counter()
    found = {}
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("instruction", "output")):
            raise InputError(
                f"{path}, row {number}, is no answer as descend complete writes it, with the texts instruction and "
                f"output; got {repr(row)[:60]}."
            )
        prompt = row["instruction"]  # one may come with several inputs
        found[prompt, asked[prompt]] = row
        asked[prompt] += 1
    return found


def _name(path: Path, answers: dict[tuple[str, int], dict[str, Any]]) -> str:
    return f"{next(iter(answers.values())).get('generator', '')} ({path.name})" if answers else path.name
