"""``sweep.json`` as a typed object."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from descend.errors import refuse
from descend.results.base import File, Number, Part

SWEEP_FILE = "sweep.json"


class Searched(Part):
    """Where a setting is searched: between two numbers on a linear or log scale, or among choices."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        known = self.choices or {"low", "high"} <= self.model_fields_set
        refuse(
            (
                not known or not -math.inf < self.low <= self.high < math.inf or (self.log and self.low <= 0),
                f"expected two numbers, above 0 on a log scale; got {self.low} to {self.high}",
            )
        )
        return self

    def place(self, value: float) -> float:
        """A number's position in the range, from 0 to 1."""
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5


class TrialCurve(Part):
    """A trial's metric on the validation data at the training noise, at each evaluation."""

    steps: list[float]
    values: list[Number]

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        steps, values = len(self.steps), len(self.values)
        refuse((steps != values, f"expected one value per step; got {steps} steps and {values} values"))
        return self


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


class Trial(Part):
    """A trial that is over. Its value is None if it was pruned or diverged."""

    number: Annotated[int, Field(ge=0, lt=100_000)]
    state: Literal["finished", "pruned", "diverged"]
    value: Annotated[float | None, AfterValidator(_finite)]
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
        trials: The number of trials that the last call asked for.
        seeds: Runs of each trial.
        rule: The rule of choice, in words.
        methods: The search of each method.
    """

    todo: ClassVar[str] = "Remove it, and run the same sweep again; it only writes the file again."

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

    @property
    def unequal(self) -> str:
        """Says that methods have different numbers of trials, as where a later call searched one further; or empty."""
        numbers = {len(search.trials) for search in self.methods.values()}
        told = "The methods have different numbers of trials, so their results can't be compared."
        return told if len(numbers) > 1 else ""
