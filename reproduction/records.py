"""The files of a study as typed objects: lines of ``cells.jsonl``, and ``study.json``."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from descend.results import File, Groups, Number, Part, Summary, parse, read_json

CELLS_FILE = "cells.jsonl"
STUDY_FILE = "study.json"

_OrEmptyDict = BeforeValidator(lambda value: value or {})
_OrEmptyList = BeforeValidator(lambda value: value or [])

Settings = dict[str, JsonValue]
"""Fields of a recipe, of its training arguments or of a command, and their values."""


class Cell(Part):
    """A cell of a study.

    Attributes:
        name: The cell in words, and a hash of its settings: other settings are another cell.
        task: ``video``, ``text`` or ``language``.
        model: The paper's name of the model, ``UT`` …
        data: The data set, ``ucsd`` …
        depth: L, the model's number of layers.
        gamma: Training noise γ.
        regime: ``paper`` for the paper's training noise, ``strong`` for more.
        arm: ``constrained``, ``erm`` (``erm-clean`` at γ = 0) or another method.
        variant: What an ablation changes, as ``alpha=0.1``; empty for a cell of a table.
        seed: The run's seed.
        recipe: The recipe's name.
        settings: Fields of the recipe and its training arguments. Placeholders stand for folders.
        judge: Arguments of the evaluation.
        answer: Arguments for completing prompts at γ = 0 and the training noise; empty if the cell needs no answers.
    """

    name: str
    task: str
    model: str
    data: str
    depth: int = Field(ge=1)
    gamma: float = Field(allow_inf_nan=False)
    regime: str = ""
    arm: str
    variant: str = ""
    seed: int
    recipe: str
    settings: Settings
    judge: Settings = Field(default_factory=dict)
    answer: Settings = Field(default_factory=dict)


class Curve(Part):
    """A quantity over training: a row of layers ``first`` … L for each step."""

    steps: list[Annotated[float, Field(allow_inf_nan=False)]]
    values: list[list[Number]]
    first: int | None = None

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        if len(self.steps) != len(self.values):
            raise ValueError(f"a curve must have one row per step; got {len(self.values)} for {len(self.steps)} steps")
        if len(set(map(len, self.values))) > 1:
            raise ValueError("a curve's rows must have one number per layer")
        return self


class Answer(Part):
    """What a language model completes a prompt with, each token under noise γ."""

    prompt: str
    noise: float
    text: str


class FinishedCell(File):
    """A finished cell of a study.

    Attributes:
        cell: The cell.
        summary: Its summary; None if it diverged.
        groups: Its metric by group of samples.
        curves: Quantities of training.
        validation: Metric → a row of layers for each entry of ``steps``.
        train_losses: f_0 … f_L of training samples in test mode, at the training noise; None if not measured.
        kept: The step of the model that was kept.
        completions: Its answers.
        seconds: The time it took.
        diverged: Why it diverged; None if it did not.
    """

    cell: Cell
    summary: Summary | None = None
    groups: Groups | None = None
    curves: Annotated[dict[str, Curve], _OrEmptyDict] = Field(default_factory=dict)
    validation: Annotated[dict[str, list[list[Number] | Number]], _OrEmptyDict] = Field(default_factory=dict)
    train_losses: list[Number] | None = None
    kept: float | None = None
    completions: Annotated[list[Answer], _OrEmptyList] = Field(default_factory=list)
    seconds: float
    diverged: str | None = None

    @model_validator(mode="after")
    def _entries_fit(self) -> Self:
        depth, gamma = self.cell.depth, self.cell.gamma
        if self.summary is None:
            if self.diverged is None:
                raise ValueError("it lacks summary, or diverged")
            return self
        if self.summary.depth != depth or gamma not in self.summary.layer_losses:
            raise ValueError(f"its summary must be of depth {depth} and have losses at γ = {gamma:g}")
        if self.train_losses is not None and len(self.train_losses) != depth + 1:
            raise ValueError(f"train_losses must be L+1 = {depth + 1} numbers; got {len(self.train_losses)}")
        if any(len(curve.values[0]) > depth + 1 for curve in self.curves.values() if curve.values):
            raise ValueError(f"a curve's rows must have one number per layer, of {depth} layers")
        for value in self.summary.settings.values():
            if isinstance(value, int):
                float(value)  # raises OverflowError: figures can't show a number that large
        histogram = self.summary.ratios.histogram
        if histogram and histogram.counts:
            edges = histogram.edges
            if len(edges) < 2 or not all(0 < low < high < math.inf for low, high in pairwise(edges)):
                raise ValueError("a histogram's edges must be two or more, finite, above 0, and rise")
            if any(len(row) != len(edges) - 1 for row in histogram.counts):
                raise ValueError(f"a histogram of {len(edges)} edges must have one count less")
        return self


def parse_cell(content: Any, source: str) -> FinishedCell:
    """Check a line of ``cells.jsonl``.

    Raises:
        InputError: If it is not a finished cell.
    """
    return parse(FinishedCell, content, source, "Remove the line; it is run again.")


class StudyFile(File):
    """The request of a study.

    Attributes:
        scale: The scale of its grid; empty if unknown.
        what: Figures and tables that commands asked for, or ``all``.
        versions: Versions of the packages that ran it.
    """

    scale: str = ""
    what: list[str]
    versions: Annotated[dict[str, str], _OrEmptyDict] = Field(default_factory=dict)


def read_study(folder: Path) -> StudyFile | None:
    """Read the ``study.json`` of a folder; None if it has none.

    Raises:
        InputError: If it is damaged or not a study's.
    """
    path = folder / STUDY_FILE
    if not path.exists():
        return None
    return parse(StudyFile, read_json(path), str(path), "Remove it, and ask for the study again.")
