"""One page with the answers of several ``descend complete`` files side by side."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from descend.errors import InputError
from descend.report.rendering import write_page_of
from descend.results import Completion, read_completions


def write_completions(paths: Sequence[Path], out: Path) -> Path:
    """Write one page over files of answers: a row for each prompt that all of them have, a column for each file.

    Args:
        paths: Files in AlpacaEval's form.
        out: The file to write; a folder gets ``completions.html``.

    Returns:
        The file written.

    Raises:
        InputError: If a file can't be read, or the files have no prompt in common.
    """
    files = [read_completions(path) for path in paths]
    answers = [_by_prompt(completions) for completions in files]
    shared = [prompt for prompt in answers[0] if all(prompt in each for each in answers)]
    if not shared:
        raise InputError(f"{' and '.join(map(str, paths))} have no prompt in common.")
    path = out if out.suffix == ".html" else out / "completions.html"
    if out.is_file() and path != out:
        raise InputError(f"{out} is a file; give --out a folder for the page, or a name that ends in .html.")
    return write_page_of(
        "completions.html",
        path,
        title="Answers side by side",
        subtitle=f"{len(shared)} prompts, and what each model went on with.",
        heads=_names(paths, files),
        rows=[(prompt[0], [each[prompt] for each in answers]) for prompt in shared],
    )


def _by_prompt(completions: Sequence[Completion]) -> dict[tuple[str, int], str]:
    """(prompt, how often it came before) → answer: a prompt may come with several inputs."""
    counts: Counter[str] = Counter()
    answers = {}
    for each in completions:
        answers[each.instruction, counts[each.instruction]] = each.output
        counts[each.instruction] += 1
    return answers


def _names(paths: Sequence[Path], files: Sequence[Sequence[Completion]]) -> list[str]:
    """Each file's generator and name; its whole path where two would be alike."""
    for shown in ([path.name for path in paths], paths):
        names = [
            f"{each[0].generator} ({path})" if each else str(path) for path, each in zip(shown, files, strict=True)
        ]
        if len(set(names)) == len(names):
            break
    return names
