"""One page with the answers of several ``descend complete`` files side by side."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from descend.errors import InputError
from descend.reading import read_json
from descend.report.rendering import asset, render


def write_completions(paths: Sequence[Path], out: Path) -> Path:
    """Write one page over files of answers: a row for each prompt that all of them have, a column for each file.

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
    page = render(
        "completions.html",
        css=Markup(asset("page.css")),
        words=f"{len(shared)} prompts, and what each model went on with.",
        heads=[_name(path, each) for path, each in zip(paths, answers, strict=True)],
        rows=[(prompt[0], [each[prompt]["output"] for each in answers]) for prompt in shared],
    )
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
    answers = {}
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("instruction", "output")):
            raise InputError(
                f"{path}, row {number}, is no answer as descend complete writes it, with the texts instruction and "
                f"output; got {repr(row)[:60]}."
            )
        prompt = row["instruction"]  # a prompt may come with several inputs
        answers[prompt, asked[prompt]] = row
        asked[prompt] += 1
    return answers


def _name(path: Path, answers: dict[tuple[str, int], dict[str, Any]]) -> str:
    return f"{next(iter(answers.values())).get('generator', '')} ({path.name})" if answers else path.name
