"""What was found of an evaluated run: ``summary.json``, of one run or of a comparison."""

import math
from collections.abc import Mapping, Sequence, Sized
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from descend.errors import refuse
from descend.reading import MOST_RECORD, read_json
from descend.results.base import (
    MOST_SHOWN,
    SUMMARY_FILE,
    ByLevel,
    File,
    Number,
    Numbers,
    OptionalNumbers,
    Part,
    nan_for_null,
    parse,
    refuse_comparison,
)
from descend.results.config import PRETRAINED, SOLVERS
from descend.results.dual import Dual
from descend.results.findings import (
    AnytimeCurve,
    CompareWith,
    Exits,
    Kept,
    Latency,
    LayersNeeded,
    Probes,
    Ratios,
    Speculation,
    Validation,
    best_layer,
    is_kept,
)
from descend.results.verdict import Verdict

Unit = Literal["layer", "iteration"]

GROWTH = 10
"""A state that grows by more than this factor past the iterations of training is said to grow without bound."""

MOST_LEVELS, MOST_LAYERS = 1000, 1024
"""What a summary may hold, so that a page can show it."""


def anytime_curves(layer_metrics: ByLevel, higher_is_better: bool) -> list[AnytimeCurve]:
    """Quality against depth at each noise level, in order of γ."""
    return [
        AnytimeCurve.of(level, metrics, higher_is_better=higher_is_better)
        for level, metrics in sorted(layer_metrics.items())
        if len(metrics) > 1  # a file with fewer layers is refused elsewhere
    ]


class Provenance(Part):
    """Where an evaluated model comes from.

    Attributes:
        recipe: The recipe's name, or the class of the task of a model that no recipe trained.
        method: As in `RunConfig`; ``plain`` for a model that Descend did not train.
        seed: The run's seed.
        model: The model's label.
        checkpoint: Which of the run's models: ``model`` or ``best_feasible``.
        settings: All settings that may tell two runs on the same data apart, but for their seeds.
        multipliers: λ of each layer, L numbers.
        cap_multiplier: The cap's.
        max_multiplier: With the price rule the most that λ may be, p; None with another rule, which knows no most.
        slack: Each layer's slack, L numbers.
        cap_slack: The cap's; None in files of older versions.
        binding: The constraints with λ > 0 when the model was saved, by layer; 0 stands for the cap.
        seconds: Training time.
        steps: Optimizer steps of the training; None where they are not known.
        temperature: What a classifier's logits were divided by, 1 if they were not; None where it is not known.
        without_run: Whether the model was evaluated without its run; then method and settings are those that were saved
            with it.
        note: What a reader should know of the run.
        source: Where the data lie, if they are not the run's own.
    """

    recipe: str
    method: str
    seed: int
    model: str
    checkpoint: str = "model"
    settings: dict[str, JsonValue] = {}
    multipliers: Numbers = []
    cap_multiplier: float | None = None
    max_multiplier: float | None = None
    slack: Numbers = []
    cap_slack: float | None = None
    binding: list[int] = []
    seconds: float | None = None
    steps: int | None = None
    temperature: float | None = None
    without_run: bool = False
    note: str = ""
    source: str | None = None


class Summary(Verdict, Provenance, File):
    """The summary of an evaluated run: which model, on which data, what was measured, the verdict.

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
        past_losses: γ → the losses of an unrolled network past its L iterations, f_{L+1} and on; empty if it did not
            run further.
        past_metrics: γ → the metric there.
        commonest: The accuracy of always naming the commonest class of the samples; None of another metric.
        input_metrics: γ → the metric of the input itself, with its noise: what doing nothing gives. Of tasks whose
            inputs and predictions are of one form, such as video denoising.
        anytime: For each γ of ``layer_metrics`` quality against depth; computed from them where a file has none.
        answer: How many layers suffice, in lines, as the report writes it; so are the next two.
        verdict: The verdict in a sentence.
        certificate: ``certified`` in a sentence.
        descending_share: How often a layer lowers a sample's loss.
        ratios: f_l / f_{l−1} over samples.
        samples: How many samples were evaluated.
        depth: L, the number of layers.
        unit: What a layer is called: an ``iteration`` of one block with one set of weights, else a ``layer``.
        dataset: The name of the data.
        split: ``test``, ``validation`` or ``train``.
        shift: The kind of noise.
        alpha: α of each layer, or a single one for all; empty with a geometric target.
        target: ``geometric``, ``step``, ``no_worse`` or ``near_last``, see `descend.core.targets`.
        within: With ``near_last`` the share by which a loss may be above the last one.
        after: With ``no_worse`` the layer K whose loss is the objective, and that later layers are compared with.
        strength: The geometric target's.
        limits: For each layer 0 … L the share of the loss before that it may keep; None where nothing is asked.
        first_layer: The exit where the chain starts; the first constraint is on the layer after it.
        sigma: σ_x of the noise.
        asked: As in `Verdict`; in files of older versions whether the method is ``constrained``.
        layers_needed: How many layers suffice at the training noise.
        validation: The metric of each layer on validation data, on which K is chosen; None where it was not measured.
        kept: γ → whether the last layer is within 2 % of the baseline's; empty without a baseline.
        latency: Measured time to each layer; None where it was not measured.
        probe: Linear probes.
        exit: Early exits.
        speculation: Self-speculative decoding.
        energy: γ → the mean energy of h_0 … h_L, of unrolled models.
        state_norms: The root mean square of the entries of h_0 … h_L at the training noise, over at most 32 samples;
            past L too if the network ran further. Of networks whose layers are iterations of one block.
    """

    asked: bool = Field(default_factory=lambda known: known["method"] == "constrained")
    metric: str
    higher_is_better: bool
    noise: list[float]
    values: list[Number]
    mean: Number
    auc: float | None = None
    train_noise: float
    train_value: Annotated[float | None, BeforeValidator(nan_for_null)] = None
    layer_losses: ByLevel
    layer_metrics: ByLevel = {}
    past_losses: ByLevel = {}
    past_metrics: ByLevel = {}
    input_metrics: dict[float, Number] = {}
    commonest: float | None = None
    anytime: list[AnytimeCurve] = Field(
        default_factory=lambda known: anytime_curves(known["layer_metrics"], known["higher_is_better"])
    )
    answer: str = ""
    verdict: str = ""
    certificate: str = ""
    descending_share: float | None = None
    ratios: Ratios = Ratios()
    samples: int | None = Field(default=None, ge=0)
    depth: int = Field(default_factory=lambda known: max(map(len, known["layer_losses"].values()), default=0) - 1)
    unit: Unit = "layer"
    dataset: str
    split: str = "test"
    shift: str = "gaussian"
    alpha: list[float] = []
    target: str | None = None
    within: float | None = Field(default=None, ge=0)
    after: int | None = Field(default=None, ge=1)
    strength: float | None = None
    limits: OptionalNumbers = []
    first_layer: int | None = None
    sigma: float | None = None
    layers_needed: LayersNeeded
    kept: dict[float, Kept] = {}
    validation: Validation | None = None
    latency: Latency | None = None
    probe: Probes = Probes()
    exit: Exits | None = None
    speculation: Speculation | None = None
    energy: ByLevel = {}
    state_norms: Numbers = []

    @model_validator(mode="after")
    def _entries_fit(self) -> Self:
        """Entries that belong together have the same lengths, so that no reader need ask."""
        latency, validation = self.latency, self.validation
        by_level = {
            "layer_losses": self.layer_losses,
            "layer_metrics": self.layer_metrics,
            "probe.layer_losses": self.probe.layer_losses,
            "probe.layer_metrics": self.probe.layer_metrics,
            "energy": self.energy,
            "validation.layer_metrics": validation.layer_metrics if validation else {},
        }
        past = self.past_losses, self.past_metrics
        levels = [self.train_noise, *self.noise, *self.input_metrics, *chain(*by_level.values(), *past)]
        lengths = {len(row) for rows in past for row in rows.values()}
        depth, further = self.depth, max(lengths, default=0)
        by_layer: dict[str, list[Sized]] = {
            **{name: list(rows.values()) for name, rows in by_level.items()},
            "anytime": [curve.metric for curve in self.anytime],
            "latency": [latency.milliseconds] if latency else [],
            "validation": [validation.metric] if validation else [],
            "limits": [self.limits] if self.limits else [],
        }
        wrong = [(name, len(row)) for name, rows in by_layer.items() for row in rows if len(row) != depth + 1]
        of_constraints = ("violations", "violation_intervals", "bounds", "certified", "multipliers", "slack")
        by_constraint = {name: getattr(self, name) for name in of_constraints}
        wrong += [(name, len(row)) for name, row in by_constraint.items() if len(row) not in (0, depth)]
        name, length = next(iter(wrong), ("", 0))
        needed = self.layers_needed
        found = [*needed.chosen.values(), needed.last, needed.best, needed.excluded]
        named: dict[str, list[int | None]] = {
            "layers_needed": [needed.top, *needed.within.values(), *(each.layer for each in found if each)],
            "violated": [*self.violated],
            "undecided": [*self.undecided],
            "binding": [*self.binding],
            "after": [self.after],
        }
        beyond = [
            (name, at) for name, layers in named.items() for at in layers if at is not None and not 0 <= at <= depth
        ]
        place, layer = next(iter(beyond), ("", 0))
        refuse(
            (
                not self.noise or len(self.noise) != len(self.values),
                f"expected one value per noise level; got {len(self.noise)} noise levels but {len(self.values)} values",
            ),
            (
                not all(map(math.isfinite, levels)) or len(set(levels)) > MOST_LEVELS,
                f"noise levels must be finite, at most {MOST_LEVELS}; got {str(levels)[:MOST_SHOWN]}",
            ),
            (bool(beyond), f"{place} must name layers from 0 to {depth}; got {layer}"),
            (
                self.train_noise not in self.layer_losses,
                f"layer_losses must contain the training noise {self.train_noise}",
            ),
            (
                not 1 <= depth <= MOST_LAYERS,
                f"layer_losses must have 2 to {MOST_LAYERS + 1} layers; got {depth + 1}",
            ),
            (
                len(lengths) > 1 or further > MOST_LAYERS,
                f"past_losses and past_metrics must have one entry for each iteration, at most {MOST_LAYERS}; got "
                f"{', '.join(map(str, sorted(lengths)[:3]))}",
            ),
            (
                len(self.state_norms) not in (0, depth + 1 + further),
                f"state_norms must have one entry for each of {depth + further} iterations and their start; got "
                f"{len(self.state_norms)}",
            ),
            (bool(wrong), f"{name} must have one entry per layer, of {depth} layers; got {length}"),
        )
        return self

    @property
    def top(self) -> int:
        """The layer that counts as full depth: the last one, or the best."""
        return self.depth if self.layers_needed.top is None else self.layers_needed.top

    @property
    def full_depth(self) -> CompareWith | None:
        """Which layer of a model as it is counted as full depth when it was evaluated; None of other models."""
        return self.layers_needed.compared_with if self.method == "plain" else None

    @property
    def cap_layer(self) -> int:
        """The layer that a cap bounds."""
        given = self.settings.get("cap_layer")
        return given if isinstance(given, int) else self.first_layer or 0

    @property
    def grows(self) -> bool:
        """Whether the state at the last iteration past L is over `GROWTH` times as large as at L, or is not finite."""
        trained, *further = self.state_norms[self.depth :] or [math.nan]
        return bool(further) and math.isfinite(trained) and not further[-1] <= GROWTH * trained

    @property
    def learning_rate(self) -> JsonValue:
        """That of the training; None where the settings do not say it."""
        return self.settings.get("learning_rate")

    @property
    def better_layer(self) -> int | None:
        """The layer that validation data choose, if it is better than the last one by more than 2 percent here too."""
        metric = self.layer_metrics.get(self.layers_needed.noise)
        if self.top < self.depth or not metric or not self.validation:
            return None  # layers are compared with the best one
        best = self.better_on(self.validation.metric)
        return None if best is None or self.better_on([metric[best], metric[-1]]) is None else best

    def better_on(self, metric: Sequence[float]) -> int | None:
        """The best layer of a metric, if the last one is not within 2 percent of it; None where that diverged."""
        if not math.isfinite(metric[-1]):
            return None
        best = best_layer(metric, higher_is_better=self.higher_is_better)
        return None if is_kept(metric[-1], metric[best], self.higher_is_better) else best

    @property
    def dual(self) -> Dual | None:
        """How far λ is from a saddle point; None where training asked for nothing or λ is not known."""
        if not (self.asked and self.multipliers and self.violations):
            return None
        losses, multipliers = self.layer_losses[self.train_noise], [self.cap_multiplier or 0.0, *self.multipliers]
        objective = losses[-1 if self.after is None else self.after]
        violations = [self.cap_violation or 0.0, *self.violations]
        slack = [self.cap_slack or 0.0, *(self.slack or [0.0] * self.depth)]
        if self.target == "near_last":
            units = [objective] * len(losses)
        elif self.target in ("geometric", "no_worse"):
            units = [losses[0], *losses[:-1]]
            if self.after is not None:
                units[self.after + 1 :] = [objective] * (self.depth - self.after)
        else:
            units = [1.0] * len(losses)
        # What a violation of one unit adds to the Lagrangian at λ = 1, as a share of the objective.
        shares = [1.0 if self.target == "geometric" else unit / (objective or math.nan) for unit in units]
        excess = [by / (unit or math.nan) - less for by, unit, less in zip(violations, units, slack, strict=True)]
        most = math.inf if self.max_multiplier is None else self.max_multiplier
        at_maximum = [
            layer
            for layer, (multiplier, by) in enumerate(zip(multipliers, excess, strict=True))
            if multiplier >= most and by > 0
        ]
        slackness = [
            multiplier * by * share if multiplier and layer not in at_maximum else 0.0
            for layer, (multiplier, by, share) in enumerate(zip(multipliers, excess, shares, strict=True))
        ]
        unmet = [layer for layer in self.violated if not excess[layer] <= 0 and layer not in at_maximum]
        return Dual(objective, multipliers, slackness, unmet, at_maximum)

    @property
    def family(self) -> str:
        """The model but for its depth."""
        return self.model.rpartition("-")[0]

    @property
    def of_script(self) -> bool:
        """Whether no recipe trained the model: the paper's have a hyphen in their names, classes of tasks have none."""
        return "-" not in self.recipe and self.recipe not in (*PRETRAINED, *SOLVERS)

    def asks(self, layer: int) -> bool:
        """Whether a constraint is in force at a layer 1 … L; at all of them where the summary does not say."""
        if self.bounds:
            return self.bounds[layer - 1] is not None
        return not self.limits or self.limits[layer] is not None

    def losses_to_reach(self, level: float) -> dict[int, float]:
        """The loss that each layer under a constraint had to reach, by layer.

        A limit is a share of the loss before and applies at every noise level. Bounds of a geometric target follow from
        the losses, and the cap is on one layer: both are known at the training noise alone.

        Args:
            level: The noise level γ.
        """
        limits = {layer: limit for layer, limit in enumerate(self.limits) if layer and limit is not None}
        reach = {} if self.cap is None or level != self.train_noise else {self.cap_layer: self.cap}
        if level == self.train_noise:
            reach |= {layer: bound for layer, bound in enumerate(self.bounds, start=1) if bound is not None}
        if level in self.layer_losses:
            reach |= {layer: limit * self.layer_losses[level][layer - 1] for layer, limit in limits.items()}
        return reach

    @model_validator(mode="before")
    @classmethod
    def _name_exit_values(cls, content: Any) -> Any:
        """In the file an exit's value has the metric's name."""
        exits = content.get("exit") if isinstance(content, Mapping) else None
        return {**content, "exit": _renamed(exits, content.get("metric"), "value")} if exits else content

    @model_serializer(mode="wrap")
    def _name_exit_values_again(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = dump(self)
        if content.get("exit"):
            content["exit"] = _renamed(content["exit"], "value", self.metric)
        return content


def _renamed(entry: Any, old: str, new: str) -> Any:
    """Early exits with another key for the metric's value."""
    if isinstance(entry, list):
        return [_renamed(each, old, new) for each in entry]
    if not isinstance(entry, Mapping):
        return entry
    return {new if key == old else key: _renamed(each, old, new) for key, each in entry.items()}


def read_summary(folder: Path) -> Summary:
    """Read the ``summary.json`` of an evaluated run's folder.

    Raises:
        InputError: If the run has not been evaluated, or the file is damaged or something else.
    """
    path = folder / SUMMARY_FILE
    refuse(
        (
            not path.is_file(),
            f"{folder} has no {SUMMARY_FILE}; evaluate it first, by descend evaluate or in Python.",
        )
    )
    content = read_json(path, MOST_RECORD)
    refuse_comparison(folder, content)
    return parse(Summary, content, str(path), Summary.todo)


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
