"""Answers of a language model to prompts, as ``descend complete`` writes them in AlpacaEval's format."""

from pathlib import Path

from descend.errors import InputError
from descend.reading import read_json
from descend.results.base import Part, Text, parse


class Completion(Part):
    """An answer, with the texts instruction and output.

    Attributes:
        instruction: The prompt.
        output: The answer.
        generator: The model and its noise.
        dataset: The prompt's data set.
    """

    instruction: str
    output: str
    generator: Text = ""
    dataset: Text = ""


def read_completions(path: Path) -> list[Completion]:
    """Read a file of answers.

    Raises:
        InputError: If there is none, or a row of it is not an answer.
    """
    if not path.exists():
        raise InputError(f"expected a file of answers, as descend complete writes it; there is no {path}.")
    content = read_json(path)
    rows = content if isinstance(content, list) else [content]
    todo = "Write the file again with descend complete."
    return [parse(Completion, row, f"{path}, row {number},", todo) for number, row in enumerate(rows)]
