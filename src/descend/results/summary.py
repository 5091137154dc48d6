"""What was found of an evaluated run: ``summary.json``, of one run or of a comparison."""

import math
from collections.abc import Mapping, Sequence, Sized
from itertools import chain
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from descend.errors import refuse
from descend.reading import read_json
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
    run_name,
)
from descend.results.config import PRETRAINED
from descend.results.findings import (
    KEPT_WITHIN,
    STATES,
    AnytimeCurve,
    Choice,
    Exits,
    Gain,
    Kept,
    Latency,
    LayersNeeded,
    Probes,
    Ratios,
    Speculation,
    Sufficient,
    Validation,
    best_layer,
    first_within,
    is_kept,
    number,
    tolerance_words,
)
from descend.results.verdict import CONFIDENCE, ENOUGH_GROUPS, Verdict

LAST_TRAINED = "Last trained by Descend"
"""How the note begins of a model that is evaluated without its run, by what was saved with it."""

MOST_LEVELS, MOST_LAYERS = 1000, 1024
"""What a summary may hold, so that a page can show it."""

MOST_TIMES = 1000
"""How many times as many samples are named that would certify K."""


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
        slack: Each layer's slack, L numbers.
        binding: The constraints with λ > 0 at the last step of training, by layer; 0 stands for the cap.
        seconds: Training time.
        steps: Optimizer steps of the training; None where they are not known.
        temperature: What a classifier's logits were divided by, 1 if they were not; None where it is not known.
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
    slack: Numbers = []
    binding: list[int] = []
    seconds: float | None = None
    steps: int | None = None
    temperature: float | None = None
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
        commonest: The accuracy of always naming the commonest class of the samples; None of another metric.
        input_metrics: γ → the metric of the input itself, with its noise: what doing nothing gives. Of tasks whose
            inputs and predictions are of one form, such as video denoising.
        anytime: For each γ of ``layer_metrics`` quality against depth; computed from them where a file has none.
        verdict: The verdict in a sentence.
        certificate: ``certified`` in a sentence.
        descending_share: How often a layer lowers a sample's loss.
        ratios: f_l / f_{l−1} over samples.
        samples: How many samples were evaluated.
        depth: L, the number of layers.
        dataset: The name of the data.
        split: ``test``, ``validation`` or ``train``.
        shift: The kind of noise.
        alpha: α of each layer, or a single one for all; empty with a geometric target.
        target: ``geometric`` or ``step``.
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
    input_metrics: dict[float, Number] = {}
    commonest: float | None = None
    anytime: list[AnytimeCurve] = Field(
        default_factory=lambda known: anytime_curves(known["layer_metrics"], known["higher_is_better"])
    )
    verdict: str = ""
    certificate: str = ""
    descending_share: float | None = None
    ratios: Ratios = Ratios()
    samples: int | None = Field(default=None, ge=0)
    depth: int = Field(default_factory=lambda known: max(map(len, known["layer_losses"].values()), default=0) - 1)
    dataset: str
    split: str = "test"
    shift: str = "gaussian"
    alpha: list[float] = []
    target: str | None = None
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

    def __str__(self) -> str:
        """Its verdict in words."""
        return self.verdict or super().__str__()

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
        levels = [self.train_noise, *self.noise, *self.input_metrics, *chain.from_iterable(by_level.values())]
        depth = self.depth
        by_layer: dict[str, list[Sized]] = {
            **{name: list(rows.values()) for name, rows in by_level.items()},
            "anytime": [curve.metric for curve in self.anytime],
            "latency": [latency.milliseconds] if latency else [],
            "validation": [validation.metric] if validation else [],
            "limits": [self.limits] if self.limits else [],
        }
        wrong = [(name, len(row)) for name, rows in by_layer.items() for row in rows if len(row) != depth + 1]
        of_constraints = ("violations", "violation_intervals", "bounds", "certified")
        by_constraint = {name: getattr(self, name) for name in of_constraints}
        wrong += [(name, len(row)) for name, row in by_constraint.items() if len(row) not in (0, depth)]
        name, length = next(iter(wrong), ("", 0))
        refuse(
            (
                not self.noise or len(self.noise) != len(self.values),
                f"expected one value per noise level; got {len(self.noise)} noise levels but {len(self.values)} values",
            ),
            (
                not all(map(math.isfinite, levels)) or len(set(levels)) > MOST_LEVELS,
                f"noise levels must be finite, at most {MOST_LEVELS}; got {str(levels)[:MOST_SHOWN]}",
            ),
            (
                self.train_noise not in self.layer_losses,
                f"layer_losses must contain the training noise {self.train_noise}",
            ),
            (
                not 1 <= depth <= MOST_LAYERS,
                f"layer_losses must have 2 to {MOST_LAYERS + 1} layers; got {depth + 1}",
            ),
            (bool(wrong), f"{name} must have one entry per layer, of {depth} layers; got {length}"),
        )
        return self

    @property
    def headline(self) -> str:
        """Whether the layers chosen suffice within 2 percent, and whether that is certified."""
        needed, within = self.layers_needed, tolerance_words(KEPT_WITHIN, self.higher_is_better)
        choice, last = needed.choice(KEPT_WITHIN), "the last layer" if self.top == self.depth else f"layer {self.top}"
        none = f"None of {self.depth} layers can be left out" if self.depth > 1 else "The only layer can't be left out"
        if needed.baseline is None and needed.best and self.top < self.depth:
            return self._ship(needed.best, choice)
        if choice is None and needed.excluded and self.validation:
            worse = needed.excluded.words(self.higher_is_better, self.full_depth)
            here = "" if needed.last is None else f"; on {self.split} data {self._worse_words(needed.last)}"
            return f"On {self.validation.samples} validation samples {last} is {worse}{here}"
        if choice is None and needed.chosen:
            return f"On validation data {last} is not within {within} of {self.full_depth}"
        if choice is None and needed.baseline is None:
            return f"It is not certain how many layers suffice within {within}"
        if choice is None:
            certain = "" if self.kept.get(needed.noise) == "broken" else "certain to be "
            return f"{last[0].upper()}{last[1:]} is not {certain}within {within} of {self.full_depth}"
        if choice.layer < self.top:
            better = "" if needed.baseline else self.not_the_best
            return f"{better} {choice.sentence(self.depth, KEPT_WITHIN, self.higher_is_better)}".lstrip()
        if needed.baseline is None and not needed.chosen:
            certified = "estimated" if needed.bounded is False else "certified"
            return f"No layer below the last one is {certified} within {within}"
        if needed.baseline is None:
            return f"{none} within {within}"
        verb = {"proven": "is", "estimated": "is", "open": "may be", "broken": "is not"}[choice.state]
        sure = f"{verb} within {within} of {self.full_depth}: {STATES[choice.state]}"
        return f"{none}; the last one {sure}" if self.top == self.depth else f"{last[0].upper()}{last[1:]} {sure}"

    @property
    def top(self) -> int:
        """The layer that counts as full depth: the last one, or the best."""
        return self.depth if self.layers_needed.top is None else self.layers_needed.top

    def _ship(self, best: Gain, choice: Choice | None) -> str:
        """That an inner layer is the best one, and whether still fewer layers suffice."""
        within = tolerance_words(KEPT_WITHIN, self.higher_is_better)
        words = best.words(self.higher_is_better, "the whole")
        words += ", estimated" * (self.layers_needed.bounded is False)
        if best.low > 0:
            words = f"Ship layer {best.layer}: {words}"
        else:
            words = f"By validation data layer {best.layer} is the best; here it is {words}: open"
        if choice is None or choice.layer == best.layer:
            return words
        fewer = choice.sentence(self.depth, KEPT_WITHIN, self.higher_is_better)
        return f"{words}. {fewer.replace(within, f'{within} of layer {best.layer}', 1)}"

    def _worse_words(self, choice: Choice) -> str:
        """How much worse a choice is; of a metric that is not bounded nothing is sure."""
        surely = "" if self.layers_needed.bounded is False else "surely "
        return choice.worse_words(self.higher_is_better, surely)

    def suffices(self) -> list[Sufficient]:
        """A row for each tolerance: K, its metric, how sure that is, and its time."""
        needed = self.layers_needed
        metric, rows = self.layer_metrics.get(needed.noise), []
        for percent, certain in needed.within.items():
            within, choice = tolerance_words(percent, self.higher_is_better), needed.choice(percent)
            if choice is None:
                rows.append(Sufficient(within, "no layer" + " on validation data" * bool(needed.chosen), "", "", ""))
                continue
            layers = f"{choice.layer} of {self.depth} layers" if choice.layer else "the embedding alone"
            state = "not enough" if choice.state == "broken" else STATES[choice.state]
            itself = choice.layer == self.top and needed.baseline is None
            if choice.layer == self.depth:
                state = "none can be left out" + (f"; the last one {state}" if needed.baseline else "")
            elif itself:
                state = "the best"
            if choice.state != "proven" and not itself and (worse := self._worse_words(choice)):
                state += f", {'but ' * (choice.worse > percent)}{worse}"
            if choice.state in ("open", "broken") and certain is not None and certain < self.top:
                state += f"; {'estimated' if needed.bounded is False else 'certified'}: layer {certain}"
            time = "" if choice.time is None else f"{100 * choice.time:.0f} % of the full time"
            rows.append(Sufficient(within, layers, number(metric[choice.layer]) if metric else "", time, state))
        return rows

    def terms(self) -> list[str]:
        """What `suffices` rests on, and whether the last layer is as good as the baseline's, in sentences."""
        needed, within = self.layers_needed, tolerance_words(KEPT_WITHIN, self.higher_is_better)
        metric, choice = self.layer_metrics.get(needed.noise), needed.choice(KEPT_WITHIN)
        how = "K was chosen on validation data and tested" if needed.chosen else "Tested"
        alone = " for this one trained model; with another seed it may differ" * (self.method != "plain")
        lines = [
            f"{self.metric_name} at γ = {needed.noise:g}, held to {self.full_depth}. {how} on {self.split} data, with "
            f"{CONFIDENCE:.0%} confidence{alone}."
        ]
        if needed.bounded is False:
            lines.append(
                f"{self.metric_name} is not known to have bounds, so no test can certify it. These are estimates: they "
                "assume that there are no rare samples, which these data lack, on which a layer is much worse."
            )
        last = "The last layer" if self.top == self.depth else f"Layer {self.top}"
        if levels := [level for level in sorted({0.0, needed.noise}) if level in self.kept]:
            kept = ", ".join(f"{STATES[self.kept[level]]} at γ = {level:g}" for level in levels)
            lines.append(f"{last.removeprefix('The ').capitalize()} within {within} of that: {kept}.")
        if needed.why:
            lines.append(f"It is not held to the plain training beside it: {needed.why}")
        if metric and choice and choice.layer == self.depth > 1 and needed.baseline is None:
            lines.append(
                f"The last layer has {number(metric[-1])}, the one before it {number(metric[-2])}. A model that is "
                "trained with fewer layers from the start may do as well."
            )
        if needed.last and needed.full is not None and metric:
            worse = self._worse_words(needed.last)
            both = f"{last} has {number(metric[self.top])}, the baseline's {number(needed.full)}"
            lines.append(f"{both}{': ' * bool(worse)}{worse}.")
            if needed.last.worse < -KEPT_WITHIN and needed.last.at_most < 0:
                lines.append("A baseline that is so much worse may be a weak one: try it with another rate or seed.")
        held_out = self.validation.metric if self.validation else []
        beaten = needed.baseline is not None and needed.chosen.get(KEPT_WITHIN, True) is None
        if beaten and held_out and self._better(held_out) is None:
            own = first_within(held_out, held_out[-1], KEPT_WITHIN, higher_is_better=self.higher_is_better)
            if own not in (None, self.depth):
                lines.append(f"Held to its own last layer, layer {own} is within {within} on validation data.")
        if needed.baseline or choice is None:
            lines.append(self.not_the_best)
        trained = [(each.steps, each.learning_rate) for each in (needed, self)]
        if trained[0] != trained[1] and all(steps for steps, _ in trained):
            theirs, ours = (
                f"{steps:,} steps at the {'default learning rate' if rate is None else f'learning rate {rate}'}"
                for steps, rate in trained
            )
            lines.append(f"The baseline had {theirs}, this model {ours}. Try each for both.")
        if self.samples and choice and choice.state == "open" and 1 < choice.times < MOST_TIMES:
            enough = float(f"{choice.times * self.samples:.2g}")
            decide = "estimate" if needed.bounded is False else "certify"
            lines.append(f"About {enough:,.0f} such samples would {decide} K within {within}, if no number changed.")
        if self.commonest is not None and metric and self.samples:
            error = math.sqrt(metric[-1] * (1 - metric[-1]) / self.samples)
            if metric[-1] - NormalDist().inv_cdf(CONFIDENCE) * error <= self.commonest:
                chance = f"always naming the commonest class has {self.commonest:.3g}"
                lines.append(f"The last layer may have learned nothing: {chance}.")
        if self.few_groups:
            count = f"{self.groups} group{'s' * (self.groups != 1)}"
            lines.append(f"Too few samples to certify anything: {count}, at least {ENOUGH_GROUPS} are needed.")
        return list(filter(None, lines))

    @property
    def learning_rate(self) -> JsonValue:
        """That of the training; None where the settings do not say it."""
        return self.settings.get("learning_rate")

    @property
    def not_the_best(self) -> str:
        """That validation data choose a layer which is better than the last one by more than 2 percent; else empty."""
        if self.top < self.depth:
            return ""  # layers are held to it
        metric = self.layer_metrics.get(self.layers_needed.noise)
        best = self._better(self.validation.metric) if self.validation else None
        if not metric or best is None or self._better([metric[best], metric[-1]]) is None:
            return ""
        return f"The last layer is not the best: layer {best} has {number(metric[best])}, it {number(metric[-1])}."

    def _better(self, metric: Sequence[float]) -> int | None:
        """The best layer of a metric, if the last one is not within 2 percent of it; None where that diverged."""
        if not math.isfinite(metric[-1]):
            return None
        best = best_layer(metric, higher_is_better=self.higher_is_better)
        return None if is_kept(metric[-1], metric[best], self.higher_is_better) else best

    @property
    def answer(self) -> str:
        """How many layers suffice, and whether the last one keeps the baseline's quality, in lines."""
        rows = self.suffices()
        columns = [column for column in zip(*rows, strict=True) if any(column)]
        widths = [max(map(len, column)) for column in columns]
        table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True)]
        return "\n".join([f"{self.headline}.", *(f"  within {row}" for row in table), *self.terms()])

    @property
    def full_depth(self) -> str:
        """To what layers are held, in words."""
        needed = self.layers_needed
        by_best = needed.compared_with == "best"
        if needed.baseline is None:
            return f"its own best layer, {self.top}" if self.top < self.depth else "its own full depth"
        seed = "" if needed.seed in (None, self.seed) else f" of seed {needed.seed}"
        layer = f"the best layer, {needed.full_layer}," if by_best else "the full depth"
        return f"{layer} of {run_name(Path(needed.baseline))}{seed}"

    @property
    def metric_name(self) -> str:
        """The metric's name for readers."""
        acronym = len(self.metric) <= 4 and self.metric != "loss"
        return self.metric.upper() if acronym else self.metric.replace("_", " ").capitalize()

    @property
    def family(self) -> str:
        """The model but for its depth."""
        return self.model.rpartition("-")[0]

    @property
    def of_script(self) -> bool:
        """Whether no recipe trained the model: the paper's have a hyphen in their names, classes of tasks have none."""
        return "-" not in self.recipe and self.recipe not in PRETRAINED

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
    return Summary.read(path)


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
