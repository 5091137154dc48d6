"""The files of a run as typed objects: ``config.json``, ``summary.json``, ``groups.json``, rows of ``records.jsonl``.

Every writer builds one of these models and every reader gets one, so a key is spelled in one place. A file says which
version of this schema it follows by the key ``schema``. A file without that key is from before it existed and is read
if its entries fit. Keys that this version does not know are kept when a file is written again.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from descend import reading
from descend.errors import InputError
from descend.records.folder import finite, read_json, write_json

SCHEMA = 1
"""The version that this code writes, and the newest that it reads."""

CONFIG_FILE = "config.json"
SUMMARY_FILE = "summary.json"
GROUPS_FILE = "groups.json"
RECORDS_FILE = "records.jsonl"

MOST_LEVELS, MOST_LAYERS = 1000, 1024
"""What a summary may hold, so that a page can show it."""

_MOST_SHOWN = 60
"""Characters of a wrong value in an error."""


def _nan(value: Any) -> Any:
    return math.nan if value is None else value


def _empty(value: Any) -> Any:
    return [] if value is None else value


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, int | float) else value


Number = Annotated[float, BeforeValidator(_nan)]
"""A number; in JSON null stands for one that is not finite, such as the loss of a diverged model."""

Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
Flag = Annotated[bool, BeforeValidator(lambda value: False if value is None else value)]

Numbers = Annotated[list[Number], BeforeValidator(_empty)]
OptionalNumbers = Annotated[list[float | None], BeforeValidator(_empty)]
"""A list with None where there is nothing to say, for example where a layer has no constraint."""

ByLevel = dict[float, list[Number]]
"""Noise level γ → one number for each layer 0 … L."""


class Part(BaseModel):
    """A part of a file. Immutable; change a copy with ``model_copy(update=…)``."""

    model_config = ConfigDict(frozen=True, extra="allow", validate_by_name=True, validate_by_alias=True)


class File(Part):
    """The whole content of a JSON file, with the version of its schema."""

    schema_version: int = Field(default=SCHEMA, alias="schema", ge=1, le=SCHEMA)

    @model_validator(mode="after")
    def _always_write_the_version(self) -> Self:
        self.model_fields_set.add("schema_version")
        return self

    def content(self) -> dict[str, Any]:
        """The file's content in JSON types: what was set, under the keys of the file."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def write(self, path: Path) -> None:
        """Write the file in one piece.

        Raises:
            SaveError: If it can't be written; an older file is as it was.
        """
        write_json(path, self.content())


F = TypeVar("F", bound=BaseModel)


def parse(kind: type[F], content: Any, source: str, todo: str) -> F:
    """Check what a file holds and give its entries their types.

    Args:
        kind: What it should be.
        content: The file's content, as `read_json` gives it.
        source: The file's name, for an error.
        todo: What to do about a damaged file, a full sentence.

    Raises:
        InputError: If an entry is missing, of the wrong type or does not fit the others, or if a newer version of
            Descend wrote the file.
    """
    if isinstance(content, kind):
        return content
    version = content.get("schema") if isinstance(content, Mapping) else None
    if isinstance(version, int) and version > SCHEMA:
        raise InputError(
            f"{source} follows schema {version}; this version of descend reads up to {SCHEMA}. Upgrade descend."
        )
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{source} must hold {_name(kind)}; {_problem(error)}. {todo}") from None
    except (OverflowError, RecursionError) as error:
        raise InputError(f"{source} must hold {_name(kind)}; got a value that is too large ({error}). {todo}") from None


def _name(kind: type[BaseModel]) -> str:
    return (kind.__doc__ or kind.__name__).split(".")[0].split("\n")[0].replace("``", "").lower()


def _problem(error: ValidationError) -> str:
    """The entries that are missing, else the first that is wrong: what was expected and what was got."""
    errors = error.errors(include_url=False)
    missing = [_place(each["loc"]) for each in errors if each["type"] == "missing"]
    if missing:
        return f"it lacks {', '.join(missing)}"
    first = errors[0]
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "model_type":
        message = "should be a JSON object"
    if first["type"] == "value_error" and not first["loc"]:
        return message
    place = _place(first["loc"]) or "it"
    return f"{place} {message[:1].lower()}{message[1:]}; got {repr(first['input'])[:_MOST_SHOWN]}"


def _place(loc: tuple[int | str, ...]) -> str:
    return ".".join(map(str, loc))


# --- config.json


class RunConfig(File):
    """The settings of a run.

    ``settings`` are the recipe's fields and ``training`` the training arguments that differ from their defaults; both
    are open sets that their classes check. The entries from ``seconds`` on are there when the run has finished.

    Attributes:
        descend: The version of Descend.
        recipe: The recipe's name.
        method: ``constrained``, ``erm`` or another method of training.
        preset: The preset's name.
        overridden: Settings of the preset that were chosen otherwise.
        seed: The seed of everything random.
        model: The model's label, such as ``UT-7``.
        dataset: The data set's name.
        sigma: σ_x of the training data; None until it is known.
        settings: The recipe's fields.
        training: Training arguments.
        versions: Versions of the libraries.
        seconds: Training time.
        step: The step of the model that was kept.
        temperature: What a classifier's logits were divided by.
    """

    descend: str = ""
    recipe: str
    method: str
    preset: str | None = None
    overridden: list[str] = []
    seed: int
    model: str
    dataset: str = ""
    sigma: float | None = None
    settings: dict[str, JsonValue]
    training: dict[str, JsonValue]
    versions: dict[str, str] = {}
    seconds: float | None = None
    step: int | None = None
    temperature: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.seconds is not None


def read_config(folder: Path) -> RunConfig:
    """Read the ``config.json`` of a run folder.

    Raises:
        InputError: If it is missing, damaged or not a run's.
    """
    path = folder / CONFIG_FILE
    todo = "Put back the file that training wrote, or train again."
    return parse(RunConfig, read_json(path), str(path), todo)


# --- summary.json


class Histogram(Part):
    """Counts of samples, one row per layer 1 … L. The first and the last bin hold all that lies beyond."""

    edges: list[float]
    counts: list[list[int]]


class Ratios(Part):
    """How f_l / f_{l−1} spreads over samples: over all layers, and its ``quantiles`` at each layer 1 … L."""

    mean: float | None = None
    median: float | None = None
    quantiles: list[float] = []
    by_layer: list[list[Number]] = []
    histogram: Histogram | None = None


class SettledLayer(Part):
    """From which layer on decisions do not change: the mean, and the share of samples at each layer 0 … L."""

    mean: Number = math.nan
    shares: list[Number] = []


class ExitPoint(Part):
    """The metric's ``value`` and the mean number of ``layers`` used, by one rule for exits.

    In the file the value's key is the name of the summary's metric.
    """

    layers: Number
    value: Number
    threshold: float | None = None
    patience: int | None = None


class ChosenExit(ExitPoint):
    """The threshold chosen on validation data, with its time as a share of full depth's."""

    threshold: float
    time_ratio: Number


class Exits(Part):
    """Early exits: the metric at ``full`` depth, and the curves by confidence threshold and by patience."""

    full: Number
    depth: int
    confidence: list[ExitPoint]
    patience: list[ExitPoint]
    chosen: ChosenExit

    def sentence(self, metric: str) -> str:
        """What early exits cost and save."""
        chosen = self.chosen
        return (
            f"Early exits at a confidence of {chosen.threshold:g}, chosen on validation data, use {chosen.layers:.2f} "
            f"of {self.depth} layers on average and {chosen.time_ratio:.2f} of the time: {metric} {chosen.value:.3f} "
            f"against {self.full:.3f} at full depth, on clean inputs."
        )


class Drafts(Part):
    """Drafting by the first ``layer`` layers: the share of drafted tokens kept, and the speed against full depth."""

    layer: int
    acceptance: Number
    speed: Number


class Speculation(Part):
    """Self-speculative decoding, one entry in ``layers`` for each number of drafting layers 1 … L−1."""

    prompts: int | None = None
    tokens_per_second: float | None = None
    layers: list[Drafts]

    def sentence(self, depth: int) -> str:
        """What drafting by the first layers is worth."""
        if not self.layers:
            return "No prompt leaves room for an answer to draft."
        best = max(self.layers, key=lambda drafts: drafts.speed)
        rate = "" if self.tokens_per_second is None else f" ({self.tokens_per_second:.0f})"
        return (
            f"Drafting by the first {best.layer} of {depth} layers writes {best.speed:.2f} times the tokens per second "
            f"of full depth{rate}, with the same answers: {100 * best.acceptance:.0f} % of the draft is kept."
        )


class Probes(Part):
    """What linear probes reach: the metric at the last layer by noise level, and losses and metrics by layer."""

    values: list[Number] = []
    layer_losses: ByLevel = {}
    layer_metrics: ByLevel = {}


class Measured(File):
    """What an evaluation measures, before it is known which run it belongs to.

    Attributes:
        metric: The metric's name.
        higher_is_better: Whether more of it is better.
        noise: Levels γ of the robustness curve, G numbers.
        values: The last layer's metric at each level, G numbers.
        mean: The plain mean of ``values``.
        auc: The area under ``values`` over γ; None with a single level.
        train_noise: γ of the training, where the verdict is taken.
        train_value: The last layer's metric there.
        layer_losses: γ → the losses f_0 … f_L.
        layer_metrics: γ → the metric at each layer.
        violations: Each descent constraint's, L numbers, ≤ 0 where it holds.
        violation_intervals: A (low, high) of each.
        cap_violation: The cap's.
        bounds: The loss that each layer had to reach, L numbers; None where no constraint is in force.
        certified: The share by which each layer lowers the loss at least, L numbers.
        feasible: No constraint is broken.
        certain: No constraint is broken or undecided.
        violated: Broken constraints by layer; 0 stands for the cap.
        undecided: Constraints whose interval reaches above 0.
        verdict: The verdict in a sentence.
        descending_share: How often a layer lowers a sample's loss.
        ratios: f_l / f_{l−1} over samples.
        settled_layer: Where a classifier's decisions settle.
        samples: How many samples were judged.
        groups: How many independent groups of them the intervals rest on.
        depth: L, the number of layers.
    """

    metric: str
    higher_is_better: bool
    noise: list[float]
    values: list[Number]
    mean: Number
    auc: float | None = None
    train_noise: float
    train_value: Annotated[float | None, BeforeValidator(_nan)] = None
    layer_losses: ByLevel
    layer_metrics: Annotated[ByLevel, BeforeValidator(lambda rows: rows or {})] = {}
    violations: Numbers = []
    violation_intervals: Annotated[list[tuple[Number, Number]], BeforeValidator(_empty)] = []
    cap_violation: float | None = None
    bounds: OptionalNumbers = []
    certified: Numbers = []
    feasible: bool | None = None
    certain: Flag = False
    violated: Annotated[list[int], BeforeValidator(_empty)] = []
    undecided: Annotated[list[int], BeforeValidator(_empty)] = []
    verdict: Text = ""
    descending_share: float | None = None
    ratios: Ratios = Ratios()
    settled_layer: SettledLayer | None = None
    samples: int | None = None
    groups: int | None = None
    depth: int = Field(default_factory=lambda known: max(map(len, known["layer_losses"].values()), default=0) - 1)

    @model_validator(mode="after")
    def _entries_fit(self) -> Self:
        """Entries that belong together have the same lengths, so that no reader need ask."""
        self._levels_fit()
        depth = self.depth
        if not 1 <= depth <= MOST_LAYERS:
            raise ValueError(f"layer_losses must have 2 to {MOST_LAYERS + 1} layers; got {depth + 1}")
        for name, length in self._lengths(depth):
            if length:
                raise ValueError(f"{name} must have one entry per layer, of {depth} layers; got {length}")
        return self

    def _levels_fit(self) -> None:
        if not self.noise or len(self.noise) != len(self.values):
            raise ValueError(
                f"expected one value per noise level; got {len(self.noise)} noise levels but {len(self.values)} values"
            )
        levels = [self.train_noise, *self.noise, *(level for rows in self._rows().values() for level in rows)]
        if not all(map(math.isfinite, levels)) or len(set(levels)) > MOST_LEVELS:
            raise ValueError(f"noise levels must be finite, at most {MOST_LEVELS}; got {str(levels)[:_MOST_SHOWN]}")
        if self.train_noise not in self.layer_losses:
            raise ValueError(f"layer_losses must contain the training noise {self.train_noise}")

    def _rows(self) -> dict[str, ByLevel]:
        return {"layer_losses": self.layer_losses, "layer_metrics": self.layer_metrics}

    def _lengths(self, depth: int) -> Iterator[tuple[str, int]]:
        """The entries with one number per layer, each with its length where that is wrong, 0 else."""
        for name, rows in self._rows().items():
            yield name, next((max(len(row), 1) for row in rows.values() if len(row) != depth + 1), 0)
        for name in ("violations", "violation_intervals", "bounds", "certified"):
            length = len(getattr(self, name))
            yield name, length if length not in (0, depth) else 0
        quantiles, by_layer = self.ratios.quantiles, self.ratios.by_layer
        fits = len(by_layer) == depth and len(quantiles) >= 2 and all(len(row) == len(quantiles) for row in by_layer)
        yield "ratios", len(by_layer) if by_layer and not fits else 0
        shares = self.settled_layer.shares if self.settled_layer else []
        yield "settled_layer", len(shares) if len(shares) not in (0, depth + 1) else 0


class Summary(Measured):
    """The summary of an evaluated run.

    Beside what was measured it says which run, data and constraints that was.

    Attributes:
        recipe: The recipe's name, or the task of a model that Descend did not train.
        method: As in `RunConfig`; ``plain`` for a model that Descend did not train.
        seed: The run's seed.
        model: The model's label.
        dataset: The name of the data judged on.
        split: ``test``, ``validation`` or ``train``.
        checkpoint: Which of the run's models: ``model`` or ``best_feasible``.
        shift: The kind of noise.
        settings: All settings that may tell two runs on the same data apart, but for their seeds.
        multipliers: λ of each layer, L numbers.
        cap_multiplier: The cap's.
        slack: Each layer's slack, L numbers.
        binding: The constraints with λ > 0, by layer; 0 stands for the cap.
        alpha: α of each layer, or a single one for all; empty with a geometric target.
        target: ``geometric`` or ``step``.
        strength: The geometric target's.
        certificate: ``certified`` in a sentence.
        limits: For each layer 0 … L the share of the loss before that it may keep; None where nothing is asked.
        first_layer: The first layer under a constraint.
        cap: The cap on the last layer's loss.
        sigma: σ_x of the noise.
        seconds: Training time.
        note: What a reader should know of the run.
        probe: Linear probes.
        exit: Early exits.
        speculation: Self-speculative decoding.
        energy: γ → the mean energy of h_0 … h_L, of unrolled models.
    """

    recipe: str
    method: str
    seed: int
    model: str
    dataset: str
    split: str = "test"
    checkpoint: str = "model"
    shift: str = "gaussian"
    settings: dict[str, JsonValue] = {}
    multipliers: Numbers = []
    cap_multiplier: float | None = None
    slack: Numbers = []
    binding: Annotated[list[int], BeforeValidator(_empty)] = []
    alpha: Annotated[list[float], BeforeValidator(_listed)] = []
    target: str | None = None
    strength: float | None = None
    certificate: Text = ""
    limits: OptionalNumbers = []
    first_layer: int | None = None
    cap: float | None = None
    sigma: float | None = None
    seconds: float | None = None
    note: Text = ""
    probe: Probes = Probes()
    exit: Exits | None = None
    speculation: Speculation | None = None
    energy: ByLevel = {}

    @property
    def constrained(self) -> bool:
        """Whether the run was trained under constraints."""
        return self.method == "constrained"

    def asks(self, layer: int) -> bool:
        """Whether a constraint is in force at a layer 1 … L; at all of them where the summary does not say."""
        if self.bounds:
            return self.bounds[layer - 1] is not None
        return not self.limits or self.limits[layer] is not None

    def losses_to_reach(self, level: float) -> dict[int, float]:
        """The loss that each layer under a constraint had to reach, by layer.

        A limit is a share of the loss before and applies at every noise level. Bounds of a geometric target follow from
        the losses and are known at the training noise alone.

        Args:
            level: The noise level γ.
        """
        limits = {layer: limit for layer, limit in enumerate(self.limits) if layer and limit is not None}
        if limits and level in self.layer_losses:
            return {layer: limit * self.layer_losses[level][layer - 1] for layer, limit in limits.items()}
        if level != self.train_noise:
            return {}
        return {layer: bound for layer, bound in enumerate(self.bounds, start=1) if bound is not None}

    def _rows(self) -> dict[str, ByLevel]:
        probe = {"probe.layer_losses": self.probe.layer_losses, "probe.layer_metrics": self.probe.layer_metrics}
        return super()._rows() | probe | {"energy": self.energy}

    def _lengths(self, depth: int) -> Iterator[tuple[str, int]]:
        yield from super()._lengths(depth)
        yield "limits", len(self.limits) if len(self.limits) not in (0, depth + 1) else 0

    @model_validator(mode="before")
    @classmethod
    def _name_exit_values(cls, content: Any) -> Any:
        """In the file an exit's value has the metric's name."""
        if not isinstance(content, Mapping):
            return content
        exits, metric = content.get("exit"), content.get("metric")
        if not isinstance(exits, Mapping) or not isinstance(metric, str):
            return content if exits or "exit" not in content else {**content, "exit": None}
        return {**content, "exit": _renamed(exits, metric, "value") or None}

    @model_serializer(mode="wrap")
    def _name_exit_values_again(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = dump(self)
        if content.get("exit"):
            content["exit"] = _renamed(content["exit"], "value", self.metric)
        return content


REQUIRED = tuple(name for name, field in Summary.model_fields.items() if field.is_required())
"""The entries that a summary can't do without."""


def _renamed(exits: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Early exits with another key for the metric's value."""

    def point(entry: Any) -> Any:
        return (
            {new if key == old else key: each for key, each in entry.items()} if isinstance(entry, Mapping) else entry
        )

    def value(entry: Any) -> Any:
        return [point(each) for each in entry] if isinstance(entry, list) else point(entry)

    return {key: value(entry) for key, entry in exits.items()}


def read_summary(folder: Path) -> Summary:
    """Read the ``summary.json`` of an evaluated run's folder.

    Raises:
        InputError: If the run has not been evaluated, or the file is damaged or something else.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        state = f"has no {SUMMARY_FILE}" if folder.is_dir() else "is not a run folder"
        raise InputError(f"{folder} {state}; run `descend evaluate {folder} --data PATH` first.")
    return parse_summary(read_json(path), str(path))


def parse_summary(content: Any, source: str = "summary") -> Summary:
    """Check the content of a ``summary.json``.

    Args:
        content: What the file holds.
        source: Where it is from, for an error.

    Raises:
        InputError: If it is not the summary of one evaluated run.
    """
    return parse(Summary, content, source, "Evaluate the run again.")


class Comparison(File):
    """A comparison of evaluated runs: their summaries, and their folders relative to the comparison's."""

    runs: list[Summary]
    folders: list[str]


def read_comparison(folder: Path) -> Comparison | None:
    """Read the ``summary.json`` of a comparison; None if it is not one.

    Raises:
        InputError: If there is none, or it is damaged.
    """
    path = folder / SUMMARY_FILE
    content = read_json(path)
    if not isinstance(content, Mapping) or "folders" not in content:
        return None
    return parse(Comparison, content, str(path), "Compare the runs again.")


# --- groups.json


class LayerGroups(Part):
    """Every layer's losses by blocks of groups: sums over B blocks at each of K levels.

    Attributes:
        noise: Levels γ, K numbers.
        counts: Samples in each block, B numbers.
        losses: Sums of the losses, (K, L+1, B).
    """

    noise: list[float]
    counts: list[int]
    losses: list[list[list[Number]]]

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if len(self.losses) != len(self.noise) or any(
            len(row) != len(self.counts) for rows in self.losses for row in rows
        ):
            raise ValueError(
                f"layers.losses must have one row per layer at each of {len(self.noise)} noise levels, with "
                f"{len(self.counts)} sums each"
            )
        return self


class Groups(File):
    """The metric by group of samples: sums of the last layer's scores over N groups at each of G levels.

    Runs judged on the same data have the same groups in the same order, and the same draws of noise.

    Attributes:
        noise: Levels γ, G numbers.
        root: Whether the metric is the root of the mean score.
        single: Whether the groups are the samples of a single one.
        counts: Samples in each group, N numbers.
        scores: Sums of the scores, (G, N); empty for a task without a score per sample.
        layers: The losses of all layers.
    """

    noise: list[float]
    root: bool
    single: bool = False
    counts: list[int]
    scores: list[list[Number]]
    layers: LayerGroups | None = None

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if len(self.scores) not in (0, len(self.noise)) or any(len(row) != len(self.counts) for row in self.scores):
            raise ValueError(
                f"scores must have {len(self.counts)} sums at each of {len(self.noise)} noise levels; got "
                f"{len(self.scores)} rows of {sorted({len(row) for row in self.scores})}"
            )
        if not all(count > 0 for count in self.counts):
            raise ValueError("counts must be above 0: a group has samples")
        return self


def read_groups(folder: Path) -> Groups | None:
    """Read the ``groups.json`` of an evaluated run's folder; None if it has none.

    Raises:
        InputError: If it is damaged.
    """
    path = folder / GROUPS_FILE
    return parse(Groups, read_json(path), str(path), "Evaluate the run again.") if path.exists() else None


# --- records.jsonl


class Record(Part):
    """A row of records: the value of one metric at one layer and step.

    Attributes:
        run: The run's name.
        step: The training step.
        split: ``train``, ``validation``, ``validation NAME`` or ``test``.
        layer: 0 … L; for multipliers 0 is the cap.
        noise: γ.
        metric: The metric's name.
        value: Its value.
    """

    run: str
    step: int = Field(ge=0, le=2**53)
    split: str
    layer: int
    noise: float | None
    metric: str
    value: Number

    def line(self) -> str:
        """The row as a line of the file."""
        return json.dumps(finite(self.model_dump())) + "\n"


def read_records(path: Path) -> Iterator[Record]:
    """Read ``records.jsonl`` row by row; a last line that was cut off, as by a kill, is left out.

    Raises:
        InputError: If another line is not a row of records, with its number.
    """
    for number, row in reading.json_lines(path, appended=True):
        yield parse(Record, row, f"{path}, line {number},", "Correct or remove it.")
