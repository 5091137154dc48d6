"""A run of a study in the form that figures use."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

import numpy as np

from descend.report import METHOD_NAMES, GroupScores
from descend.results import Groups, Summary
from reproduction.records import Answer, Cell, Curve, FinishedCell

DATA = {
    **{"avenue": "Avenue", "shanghaitech": "ShanghaiTech", "ucsd": "UCSD", "imdb": "IMDb", "mnli": "MNLI"},
    **{"alpaca": "Alpaca", "scenes": "Generated scenes", "generated": "Generated data"},
}

ARM_NAMES = METHOD_NAMES | {
    "erm-noisier": "ERM, more noise",
    "erm-paper": "ERM with preset paper",
    "paper": "Preset paper",
    "constrained": "Descend's default",
}
"""Arm → its name for readers; where arms are listed, in this order."""

Place = tuple[str, str, str, int, float, str]
"""Task, model, data set, depth, training noise and regime: the key of comparable runs."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished cell with its numbers.

    Attributes:
        cell: The cell.
        summary: Its summary; without numbers if the run diverged.
        groups: The metric by group of samples.
        layers: γ → losses by blocks of groups, where the layers 0 … L take the place of noise levels.
        curves: Quantity → its curve over training.
        train_losses: f_0 … f_L of training samples in test mode, at the training noise; None if not measured.
        validation: Metric → rows over training.
        kept: The index in these rows of the model that was kept.
        kept_step: Its training step; infinite for the last.
        completions: A language model's answers.
        seconds: The run time.
    """

    cell: Cell
    summary: Summary
    groups: GroupScores | None = None
    layers: dict[float, GroupScores] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    train_losses: Sequence[float] | None = None
    validation: Mapping[str, list[list[float]]] = field(default_factory=dict)
    kept: int = -1
    kept_step: float = inf
    completions: Sequence[Answer] = ()
    seconds: float | None = None

    @classmethod
    def of(cls, line: FinishedCell, summary: Summary) -> "Run":
        """From a line of ``cells.jsonl``.

        Args:
            line: The line.
            summary: The line's summary, or a stand-in for a diverged run.
        """
        depth = line.cell.depth
        kept_place, kept_step = _kept(line)
        return cls(
            cell=line.cell,
            summary=summary,
            groups=GroupScores.of(line.groups) if line.groups and line.groups.scores else None,
            layers=_layers(line.groups),
            curves={name: _from_first(curve, depth) for name, curve in line.curves.items()},
            train_losses=line.train_losses,
            validation={name: rows for name, rows in line.validation.items() if name != "steps"},  # type: ignore[misc]
            kept=kept_place,
            kept_step=kept_step,
            completions=line.completions,
            seconds=line.seconds,
        )

    name = property(lambda self: self.cell.name)
    task = property(lambda self: self.cell.task)
    model = property(lambda self: self.cell.model)
    data = property(lambda self: self.cell.data)
    depth = property(lambda self: self.cell.depth)
    gamma = property(lambda self: self.cell.gamma)
    regime = property(lambda self: self.cell.regime)
    arm = property(lambda self: self.cell.arm)
    variant = property(lambda self: self.cell.variant)
    seed = property(lambda self: self.cell.seed)

    @property
    def edges(self) -> list[float]:
        """Edges of the histogram of f_l / f_{l−1} over samples."""
        histogram = self.summary.ratios.histogram
        return histogram.edges if histogram else []

    @property
    def shares(self) -> list[list[int]]:
        """Its counts, one row per layer 1 … L."""
        histogram = self.summary.ratios.histogram
        return histogram.counts if histogram else []

    @property
    def place(self) -> Place:
        """The key of the runs it compares with."""
        return (self.task, self.model, self.data, self.depth, self.gamma, self.regime)

    @property
    def diverged(self) -> bool:
        """Whether the run diverged."""
        return not isfinite(self.summary.mean)

    @property
    def few_groups(self) -> bool:
        """Whether its test samples are of too few independent groups to prove anything; one clip is one group."""
        return self.summary.few_groups or (self.groups is not None and self.groups.single)

    @property
    def higher(self) -> bool:
        """Whether more of the metric is better."""
        return self.summary.higher_is_better

    @property
    def validation_loss(self) -> float:
        """Layer L's loss on validation data, of the model that was kept; infinite if the run diverged or has none."""
        rows = self.validation.get("loss")
        return rows[self.kept][-1] if rows and not self.diverged else inf

    @cached_property
    def rates(self) -> dict[int, float]:
        """Constrained layer → the largest ratio f_l / f_{l−1} that its constraint allows.

        With α this is 1 − α_l. Other targets bound the loss at the training noise: then it is that bound divided by the
        loss of the layer before.
        """
        limits = {layer: limit for layer, limit in enumerate(self.summary.limits) if layer and limit is not None}
        before = self.losses(self.summary.train_noise) or []
        bounds = zip(self.summary.bounds, before, strict=False)
        return limits or {
            layer: bound / loss for layer, (bound, loss) in enumerate(bounds, 1) if bound is not None and loss > 0
        }

    @property
    def rate(self) -> float | None:
        """The rate of `rates`, if all constrained layers have the same."""
        rates = {round(rate, 9) for rate in self.rates.values()}
        return rates.pop() if len(rates) == 1 else None

    @property
    def alpha(self) -> float | None:
        """α, if all constrained layers have the same."""
        return None if self.rate is None else round(1 - self.rate, 9)

    def losses(self, level: float) -> list[float] | None:
        """f_0 … f_L at a noise level."""
        return self.summary.layer_losses.get(level)

    def trained(self, quantity: str, last: float = 0.1) -> np.ndarray | None:
        """A curve's mean by layer over the last share of training, up to the model that was kept."""
        curve = self.curves.get(quantity)
        if not curve or not curve.values:
            return None
        rows = np.array(curve.values, float)
        rows = rows[: max(1, sum(step <= self.kept_step for step in curve.steps))]
        recent = rows[-max(1, round(last * len(rows))) :]
        known = np.isfinite(recent)
        total = np.where(known, recent, 0).sum(0)
        return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)


def rates_of(runs: Iterable[Run]) -> dict[int, float]:
    """`Run.rates` of the first run that has any."""
    return next((run.rates for run in runs if run.rates), {})


def data_name(data: str) -> str:
    """A data set's name for readers."""
    return DATA.get(data, data)


def arm_name(arm: str) -> str:
    """A method's name for readers."""
    return ARM_NAMES.get(arm, arm)


def metric_name(run: Run) -> str:
    """A metric's name for readers."""
    metric = run.summary.metric
    return metric.upper() if len(metric) <= 4 else metric.replace("_", " ").capitalize()


def listed(words: Sequence[str]) -> str:
    """Join words with commas and "and"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def few(words: Sequence[str]) -> str:
    """Join the first five words, and say if there are more."""
    return f"{listed(words[:5])}{' and more' if len(words) > 5 else ''}"


def _layers(groups: Groups | None) -> dict[float, GroupScores]:
    if groups is None or groups.layers is None:
        return {}
    counts = np.array(groups.layers.counts, float)
    return {
        level: GroupScores(np.arange(len(rows), dtype=float), False, counts, np.array(rows, float))
        for level, rows in zip(groups.layers.noise, groups.layers.losses, strict=True)
    }


def _from_first(curve: Curve, depth: int) -> Curve:
    """A curve with its first layer set; its rows end at layer L."""
    wide = len(curve.values[0]) if curve.values else depth + 1
    return curve if curve.first is not None else curve.model_copy(update={"first": depth + 1 - wide})


def _kept(line: FinishedCell) -> tuple[int, float]:
    """The index of the kept model in the rows of validation, and its step; the last if unknown."""
    steps, step = line.validation.get("steps") or [], line.kept
    rows = {len(values) for name, values in line.validation.items() if name != "steps"}
    if step is None or step not in steps or rows != {len(steps)}:
        return -1, inf
    return steps.index(step), step
