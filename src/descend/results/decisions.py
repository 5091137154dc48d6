"""A few texts and what each layer of a classifier decides on them: ``decisions.json``."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from descend.results.base import File, Number, Part, parse
from descend.results.folder import read_json

DECISIONS_FILE = "decisions.json"

MOST_TEXTS, MOST_DECISIONS, MOST_CHARACTERS = 100, 1025, 1000
"""What a file may hold, so that a page can show it."""


class Decision(Part):
    """A layer's answer.

    Attributes:
        answer: The name of the class.
        confidence: The probability that the layer gives it.
        right: Whether it is the right one.
    """

    answer: str = Field(max_length=MOST_CHARACTERS)
    confidence: Number
    right: bool


class DecidedText(Part):
    """The beginning of a text, and what the layers decide on it.

    Attributes:
        text: The beginning.
        decisions: Of every layer 0 … L.
    """

    text: str = Field(max_length=MOST_CHARACTERS)
    decisions: list[Decision] = Field(min_length=2, max_length=MOST_DECISIONS)


class Decisions(File):
    """Texts with the decisions of every layer.

    Attributes:
        noise: The noise level γ at which they were taken.
        texts: The texts.
    """

    noise: float
    texts: list[DecidedText] = Field(max_length=MOST_TEXTS)

    @model_validator(mode="after")
    def _as_many_layers(self) -> Self:
        if len({len(each.decisions) for each in self.texts}) > 1:
            raise ValueError("every text must have a decision for each layer")
        return self


def read_decisions(path: Path) -> Decisions:
    """Read ``decisions.json``.

    Raises:
        InputError: If the file is damaged.
    """
    return parse(Decisions, read_json(path), str(path), "Remove it, and evaluate again.")
