"""The files of a study and of a sweep as typed objects: lines of ``cells.jsonl``, ``study.json`` and ``sweep.json``."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from descend.errors import InputError
from descend.records.folder import read_json
from descend.records.schema import File, Groups, Number, Part, Summary, parse

CELLS_FILE = "cells.jsonl"
STUDY_FILE = "study.json"
SWEEP_FILE = "sweep.json"

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


# --- sweep.json


class Searched(Part):
    """Where a setting was searched: between two numbers on a linear or log scale, or among choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.choices:
            return self
        low, high = self.low, self.high
        if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)) or (self.log and low <= 0):
            raise ValueError(f"expected a range of two numbers, above 0 on a log scale; got {low} to {high}")
        return self


class TrialCurve(Part):
    """A trial's value on a few validation samples at each evaluation."""

    steps: list[float]
    values: list[Number]

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.steps) != len(self.values):
            raise ValueError(f"expected one value per step; got {len(self.steps)} steps and {len(self.values)} values")
        return self


class Trial(Part):
    """A trial that is over. Its value is None if it was pruned, and not finite if it diverged."""

    number: int
    state: Literal["finished", "pruned", "diverged"]
    value: float | None
    values: list[Number] | None = None
    feasible: bool | None
    settings: dict[str, float | str]
    flags: list[str] = Field(default_factory=list)
    curve: TrialCurve
    noise: JsonValue = None
    seconds: float | None = None
    folder: str | None = None
    worker: str | None = None
    why: str | None = None
    retries: int = 0


class ChosenTrial(Trial):
    """The trial that the rule chooses, and the command that trains with its settings."""

    command: str


class MethodSearch(Part):
    """The search of one method.

    Attributes:
        searched: The settings that were searched.
        counts: State → number of trials.
        best: The chosen trial.
        edges: Chosen settings that lie at an end of their ranges, in words.
        importance: Setting → its share in what makes a trial good.
        trials: All trials that are over.
    """

    searched: dict[str, Searched]
    counts: dict[str, int] = Field(default_factory=dict)
    best: ChosenTrial | None
    edges: list[str]
    importance: dict[str, float]
    trials: list[Trial]


class SweepFile(File):
    """The result of a sweep.

    Attributes:
        descend: The version of Descend.
        recipe: The recipe's name.
        model: The model's label.
        metric: The metric's name.
        higher_is_better: Whether more of it is better.
        split: The split that trials are chosen on.
        levels: The noise levels γ that they are chosen by.
        given: Flags that hold for all trials.
        trials: The number of trials asked for.
        seeds: Runs of each trial.
        rule: The rule of choice, in words.
        methods: The search of each method.
    """

    descend: str = ""
    recipe: str
    model: str
    metric: str
    higher_is_better: bool
    split: str = ""
    levels: list[float] = Field(default_factory=list)
    given: list[str] = Field(default_factory=list)
    trials: int = 0
    seeds: int = 1
    rule: str
    methods: dict[str, MethodSearch]


def read_sweep(folder: Path) -> SweepFile:
    """Read the ``sweep.json`` of a sweep's folder.

    Raises:
        InputError: If it is missing, damaged or not a sweep's.
    """
    path = folder / SWEEP_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {SWEEP_FILE}; run descend sweep with this --out.")
    return parse(
        SweepFile, read_json(path), str(path), "Remove it, and run the same sweep again; it only writes the file again."
    )
