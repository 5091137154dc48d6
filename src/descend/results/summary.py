"""What was found of an evaluated run: ``summary.json``, of one run or of a comparison."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from descend.errors import InputError
from descend.results.base import (
    CONFIG_FILE,
    MOST_SHOWN,
    SUMMARY_FILE,
    ByLevel,
    File,
    Flag,
    Number,
    Numbers,
    OptionalNumbers,
    Part,
    Text,
    empty_for_null,
    nan_for_null,
    parse,
)
from descend.results.findings import AnytimeCurve, Exits, Latency, Probes, Ratios, SettledLayer, Speculation
from descend.results.folder import read_json

ENOUGH_GROUPS = 12
"""Below so many independent groups of samples nothing is proven: too few tell how much groups differ."""

LAST_TRAINED = "Last trained by Descend"
"""How the note begins of a model that is judged without its run, by what was saved with it."""

MOST_LEVELS, MOST_LAYERS = 1000, 1024
"""What a summary may hold, so that a page can show it."""


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, int | float) else value


def anytime_curves(layer_metrics: ByLevel, higher_is_better: bool) -> list[AnytimeCurve]:
    """Quality against depth at each noise level, in order of γ."""
    return [
        AnytimeCurve.of(level, metrics, higher_is_better=higher_is_better)
        for level, metrics in sorted(layer_metrics.items())
        if len(metrics) > 1  # a file with fewer layers is refused elsewhere
    ]


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
        input_metrics: γ → the metric of the input itself, with its noise: what doing nothing gives. Of tasks whose
            inputs and predictions are of one form, such as video denoising.
        anytime: For each γ of ``layer_metrics`` quality against depth; computed from them where a file has none.
        violations: Each descent constraint's, L numbers, ≤ 0 where it holds.
        violation_intervals: A (low, high) of each; NaN where the verdict is open.
        cap_violation: The cap's.
        cap_interval: Its (low, high); None in files that are older than this entry.
        bounds: The loss that each layer had to reach, L numbers; None where no constraint is in force.
        certified: The share by which each layer lowers the loss at least, L numbers.
        feasible: No constraint is broken.
        certain: No constraint is broken or undecided, and the verdict is not open.
        violated: Broken constraints by layer; 0 stands for the cap.
        undecided: Constraints that are not broken, but whose interval is unknown or reaches above 0.
        verdict: The verdict in a sentence.
        descending_share: How often a layer lowers a sample's loss.
        ratios: f_l / f_{l−1} over samples.
        settled_layer: Where a classifier's decisions settle.
        samples: How many samples were judged.
        groups: How many independent groups of them the intervals rest on; below 12 the verdict is open.
        depth: L, the number of layers.
    """

    metric: str
    higher_is_better: bool
    noise: list[float]
    values: list[Number]
    mean: Number
    auc: float | None = None
    train_noise: float
    train_value: Annotated[float | None, BeforeValidator(nan_for_null)] = None
    layer_losses: ByLevel
    layer_metrics: Annotated[ByLevel, BeforeValidator(lambda rows: rows or {})] = {}
    input_metrics: dict[float, Number] = {}
    anytime: Annotated[list[AnytimeCurve], BeforeValidator(empty_for_null)] = Field(
        default_factory=lambda known: anytime_curves(known["layer_metrics"], known["higher_is_better"])
    )
    violations: Numbers = []
    violation_intervals: Annotated[list[tuple[Number, Number]], BeforeValidator(empty_for_null)] = []
    cap_violation: float | None = None
    cap_interval: tuple[Number, Number] | None = None
    bounds: OptionalNumbers = []
    certified: Numbers = []
    feasible: bool | None = None
    certain: Flag = False
    violated: Annotated[list[int], BeforeValidator(empty_for_null)] = []
    undecided: Annotated[list[int], BeforeValidator(empty_for_null)] = []
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
        levels = [
            self.train_noise,
            *self.noise,
            *self.input_metrics,
            *(level for rows in self._rows().values() for level in rows),
        ]
        if not all(map(math.isfinite, levels)) or len(set(levels)) > MOST_LEVELS:
            raise ValueError(f"noise levels must be finite, at most {MOST_LEVELS}; got {str(levels)[:MOST_SHOWN]}")
        if self.train_noise not in self.layer_losses:
            raise ValueError(f"layer_losses must contain the training noise {self.train_noise}")

    @property
    def few_groups(self) -> bool:
        """Whether the samples are of fewer than `ENOUGH_GROUPS` groups; False where a file does not say."""
        return self.groups is not None and self.groups < ENOUGH_GROUPS

    @property
    def open(self) -> bool:
        """Whether the groups are too few for a verdict, and no constraint is proven broken all the same."""
        return self.few_groups and self.feasible is not None and (not self.violated or self.unproven)

    @property
    def unproven(self) -> bool:
        """Whether constraints are broken and none is proven to be: groups are few, or all intervals contain 0."""
        if not self.violated or len(self.violation_intervals) < max(self.violated):
            return False
        missed = [self.cap_violation, *self.violations]
        intervals = [self.cap_interval, *self.violation_intervals]
        known = [(missed[constraint], intervals[constraint]) for constraint in self.violated]
        return all(
            by is not None and math.isfinite(by) and ends is not None and (self.few_groups or not ends[0] > 0)
            for by, ends in known
        )

    @property
    def worse_than_input(self) -> list[int]:
        """The layers 1 … L whose metric at the training noise is worse than that of the input itself."""
        given = self.input_metrics.get(self.train_noise)
        if given is None or not self.train_noise:
            return []
        sign = 1 if self.higher_is_better else -1
        rows = self.layer_metrics.get(self.train_noise, [])
        return [layer for layer, value in enumerate(rows) if layer and not sign * value >= sign * given]

    def _rows(self) -> dict[str, ByLevel]:
        return {"layer_losses": self.layer_losses, "layer_metrics": self.layer_metrics}

    def _lengths(self, depth: int) -> Iterator[tuple[str, int]]:
        """The entries with one number per layer, each with its length where that is wrong, 0 else."""
        yield (
            "anytime",
            next((max(len(curve.metric), 1) for curve in self.anytime if len(curve.metric) != depth + 1), 0),
        )
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


class Provenance(Part):
    """Where a judged model comes from.

    Attributes:
        recipe: The recipe's name, or the class of the task of a model that no recipe trained.
        method: As in `RunConfig`; ``plain`` for a model that Descend did not train.
        seed: The run's seed.
        model: The model's label.
        checkpoint: Which of the run's models: ``model`` or ``best_feasible``.
        settings: All settings that may tell two runs on the same data apart, but for their seeds.
        multipliers: λ of each layer, L numbers.
        cap_multiplier: The cap's.
        slack: Each layer's slack, L numbers.
        binding: The constraints with λ > 0 at the last step of training, by layer; 0 stands for the cap.
        seconds: Training time.
        temperature: What a classifier's logits were divided by, 1 if they were not; None where it is not known.
        note: What a reader should know of the run.
    """

    recipe: str
    method: str
    seed: int
    model: str
    checkpoint: str = "model"
    settings: dict[str, JsonValue] = {}
    multipliers: Numbers = []
    cap_multiplier: float | None = None
    slack: Numbers = []
    binding: Annotated[list[int], BeforeValidator(empty_for_null)] = []
    seconds: float | None = None
    temperature: float | None = None
    note: Text = ""


class Summary(Measured, Provenance):
    """The summary of an evaluated run.

    It adds to the measurements which model, data and constraints they are of.

    Attributes:
        dataset: The name of the data judged on.
        split: ``test``, ``validation`` or ``train``.
        shift: The kind of noise.
        alpha: α of each layer, or a single one for all; empty with a geometric target.
        target: ``geometric`` or ``step``.
        strength: The geometric target's.
        certificate: ``certified`` in a sentence.
        limits: For each layer 0 … L the share of the loss before that it may keep; None where nothing is asked.
        first_layer: The exit where the chain starts; the first constraint is on the layer after it.
        cap: With α, the bound on the loss of the exit that ``cap_layer`` names, by default the chain's first.
        sigma: σ_x of the noise.
        latency: Measured time to each layer; None where it was not measured.
        probe: Linear probes.
        exit: Early exits.
        speculation: Self-speculative decoding.
        energy: γ → the mean energy of h_0 … h_L, of unrolled models.
    """

    dataset: str
    split: str = "test"
    shift: str = "gaussian"
    alpha: Annotated[list[float], BeforeValidator(_listed)] = []
    target: str | None = None
    strength: float | None = None
    certificate: Text = ""
    limits: OptionalNumbers = []
    first_layer: int | None = None
    cap: float | None = None
    sigma: float | None = None
    latency: Latency | None = None
    probe: Probes = Probes()
    exit: Exits | None = None
    speculation: Speculation | None = None
    energy: ByLevel = {}

    @classmethod
    def of(cls, measured: Measured, provenance: Provenance, **entries: Any) -> Self:
        """Join what was measured with which model, data and constraints that was.

        Args:
            measured: The measurements.
            provenance: The model's.
            entries: Further entries, which take precedence.
        """
        parts = (measured, provenance)
        known = {name: getattr(part, name) for part in parts for name in part.model_fields_set}
        return cls(**known | entries)

    @property
    def constrained(self) -> bool:
        """Whether the run was trained under constraints."""
        return self.method == "constrained"

    @property
    def last_trained(self) -> bool:
        """Whether the model is judged without its run, so that others may have trained it since Descend did."""
        return self.note.startswith(LAST_TRAINED)

    @property
    def of_script(self) -> bool:
        """Whether no recipe trained the model: recipes have a hyphen in their names, classes of tasks have none."""
        return "-" not in self.recipe

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
        milliseconds = len(self.latency.milliseconds) if self.latency else depth + 1
        yield "latency", max(milliseconds, 1) if milliseconds != depth + 1 else 0
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
        if not folder.is_dir():
            raise InputError(f"{folder} is not a run folder: it does not exist; give one after `descend evaluate`.")
        todo = f"run `descend evaluate {folder}` first"
        if not (folder / CONFIG_FILE).is_file():
            todo = "give a run after `descend evaluate`, or one that a script judged by descend.evaluate"
        raise InputError(f"{folder} has no {SUMMARY_FILE}; {todo}.")
    return parse_summary(read_json(path), str(path))


def parse_summary(content: Any, source: str = "summary") -> Summary:
    """Check the content of a ``summary.json``.

    Args:
        content: What the file holds.
        source: Where it is from, for an error.

    Raises:
        InputError: If it is not the summary of one evaluated run.
    """
    return parse(Summary, content, source, "Remove it, and evaluate again.")


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
