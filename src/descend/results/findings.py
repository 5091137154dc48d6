"""The parts of a summary: ratios, the anytime curve, early exits, speculation, probes."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

from pydantic import JsonValue, model_validator

from descend.results.base import ByLevel, Number, Part
from descend.results.evaluated import LayerScores
from descend.results.verdict import CONFIDENCE

WITHIN = (1, 2, 5)
"""How far from full depth, in percent, `AnytimeCurve.first_within` and `LayersNeeded` look."""

SHARED = 1 - (1 - CONFIDENCE) / len(WITHIN)
"""The confidence of each of these: that of the three together is `CONFIDENCE` (Bonferroni)."""

KEPT_WITHIN = 2
"""By how many percent a last layer may be worse than the baseline's and still keep its quality."""

Kept = Literal["proven", "estimated", "open", "broken"]
"""Whether layers are within a tolerance of a full depth: certain, estimated of a metric without bounds, not known, or
excluded."""

CompareWith = Literal["last", "best"]
"""Which layer counts as full depth: the last one, or the best on validation data."""


def first_within(metric: Sequence[float], full: float, percent: float, *, higher_is_better: bool) -> int | None:
    """The smallest layer such that it and all deeper ones are within a percent of a full depth.

    Percent are points of a metric that is better when higher (accuracy 0.90 is within 1 of 0.91), and relative to the
    absolute value of full depth for one that is better when lower (RMSE 10.1 is within 1 of 10). A layer better than
    full depth is within any percent.

    Args:
        metric: The metric of each layer, L+1 numbers.
        full: That of full depth, the model's own or a baseline's.
        percent: The tolerance.
        higher_is_better: Whether more of the metric is better.

    Returns:
        The layer; None if not even the last one is within, or full depth's metric is not finite.
    """
    if not math.isfinite(full):
        return None
    allowed = percent / 100 if higher_is_better else percent / 100 * abs(full)
    allowed += 1e-9 * abs(full)  # rounding: 0.91 − 0.90 is more than 0.01
    losses = [full - value if higher_is_better else value - full for value in metric]
    layer = max((layer + 1 for layer, loss in enumerate(losses) if not loss <= allowed), default=0)
    return layer if layer < len(metric) else None


def best_layer(metric: Sequence[float], *, higher_is_better: bool) -> int:
    """The best layer of a metric, the first of equal ones; the last one where none is finite."""
    finite = [layer for layer, value in enumerate(metric) if math.isfinite(value)] or [len(metric) - 1]
    return (max if higher_is_better else min)(finite, key=lambda layer: metric[layer])


def is_kept(value: float, full: float, higher_is_better: bool) -> bool:
    """Whether a metric is within `KEPT_WITHIN` percent of a full depth's."""
    return first_within([value], full, KEPT_WITHIN, higher_is_better=higher_is_better) is not None


class Histogram(Part):
    """Counts of samples, one row per layer 1 … L. The first and the last bin hold all that lies beyond."""

    edges: list[float]
    counts: list[list[int]]


class Ratios(Part):
    """How f_l / f_{l−1} spreads over samples and layers."""

    mean: float | None = None
    median: float | None = None
    histogram: Histogram | None = None


class AnytimeCurve(Part):
    """How good the model is at every depth, at one noise level.

    Attributes:
        noise: The level γ.
        metric: The metric of each layer 0 … L.
        first_within: For 1, 2 and 5 the smallest layer l such that l and all deeper layers are within that percent of
            full depth, see `first_within`; None where full depth's metric is not finite.
        area: The trapezoid of the metric over l/L in [0, 1]; NaN where a metric is not finite.
    """

    noise: float
    metric: list[Number]
    first_within: dict[int, int | None]
    area: Number

    @model_validator(mode="after")
    def _layers_exist(self) -> Self:
        if any(layer is not None and not 0 <= layer < len(self.metric) for layer in self.first_within.values()):
            raise ValueError(
                f"anytime.first_within must name layers 0 to {len(self.metric) - 1}; got {self.first_within}"
            )
        return self

    @classmethod
    def of(cls, noise: float, metric: Sequence[float], *, higher_is_better: bool) -> Self:
        """The curve of one noise level.

        Args:
            noise: The level γ.
            metric: The metric of each layer, L+1 numbers.
            higher_is_better: Whether more of the metric is better.
        """
        points = [value if math.isfinite(value) else math.nan for value in metric]
        area = sum((low + high) / 2 for low, high in pairwise(points)) / (len(metric) - 1)
        first = {each: first_within(metric, metric[-1], each, higher_is_better=higher_is_better) for each in WITHIN}
        return cls(noise=noise, metric=list(metric), first_within=first, area=area)


class Validation(Part):
    """Each layer on validation data, on which K is chosen.

    Attributes:
        samples: How many samples.
        metric: The metric of each layer 0 … L at the training noise.
        layer_metrics: γ → the metric of each layer, at 0, the training level and those that were asked for; empty in
            files of older versions.
        fingerprint: That of the samples, as in `Groups`; None in files of older versions.
        blocks: The scores of all layers by at most 30 blocks of groups; None where all samples are of one group, and in
            files of older versions.
    """

    samples: int
    metric: list[Number]
    layer_metrics: ByLevel = {}
    fingerprint: str | None = None
    blocks: LayerScores | None = None


class Choice(Part):
    """The layer K that suffices for one tolerance, and what the evaluated data say of it.

    Attributes:
        layer: K.
        state: *proven* if K and all deeper layers are certain to be within the tolerance, *estimated* if their 95 %
            intervals are within it and the metric is not bounded, *broken* if K is certain to be beyond it, else
            *open*.
        at_most: How much worse than full depth K and all deeper layers are at most, in percent (points of a metric that
            is better when higher), with the confidence of ``state``; NaN where that is not known.
        worse: How much worse than full depth K is on the evaluated data, in the same unit; NaN where full depth makes
            no error, and in files of older versions.
        times: How many times as many samples would certify K if no mean changed; NaN where none would.
        time: The time to K as a share of the time to the last layer; None where it was not measured.
    """

    layer: int
    state: Kept
    at_most: Number = math.nan
    worse: Number = math.nan
    times: Number = math.nan
    time: float | None = None


class Gain(Part):
    """How much better a layer is than another.

    Attributes:
        layer: Its number.
        gain: In points of a metric that is better when higher, else in percent of the other's.
        low: Of the gain's 95 % interval; NaN where groups are too few.
        high: Of the same.
    """

    layer: int
    gain: Number
    low: Number = math.nan
    high: Number = math.nan


class LayersNeeded(Part):
    """How many layers suffice at one noise level, with 95 % confidence.

    Attributes:
        baseline: To whose full depth layers are held, a run's folder as seen from this one; None for the model's own.
        seed: The baseline's; None without one, or where it was not trained.
        noise: The level γ.
        compared_with: The layer of the model that counts as full depth: the ``last`` one, or the ``best`` on validation
            data.
        held_to: Which layer of the baseline counts as its full depth; without a baseline the same as ``compared_with``.
        top: That layer of the model, from which layers are counted; None in files of older versions, for the last one.
        full_layer: That layer of the baseline; None without one.
        best: The best layer on validation data, and its gain over the last one on the evaluated data; None where
            neither layers are compared with it, nor the last one is more than 2 percent worse there.
        excluded: Without a K for 2 percent: how much better layer ``top`` is on validation data than the baseline;
            else None.
        bounded: Whether the metric is a share, such as an accuracy, so that layers are certified; else they are
            estimated. None in files of older versions.
        within: For 1, 2 and 5 the smallest layer K such that K and all deeper layers are certain to be within that
            percent of full depth, see `first_within`; None where not even the last one is.
        time: For 1, 2 and 5 the time to that layer as a share of the time to the last one; None where there is none.
        chosen: For 1, 2 and 5 the K that `first_within` chooses on validation data, and what the evaluated data say of
            it; None where no layer is within that percent there. Empty without validation data.
        last: What the evaluated data say of the last layer for 2 percent; None without a baseline.
        full: The baseline's metric at full depth; None without a baseline.
        steps: Of the baseline's training; None without a baseline, or where they are not known.
        learning_rate: Of the baseline's training; None without a baseline, or where its settings do not say it.
        why: Why layers are not held to the plain training beside them; empty where they are, or there is none.
    """

    baseline: str | None = None
    seed: int | None = None
    noise: float
    compared_with: CompareWith = "last"
    held_to: CompareWith | None = None
    top: int | None = None
    full_layer: int | None = None
    best: Gain | None = None
    excluded: Gain | None = None
    bounded: bool | None = None
    within: dict[int, int | None]
    time: dict[int, float | None] = {}
    chosen: dict[int, Choice | None] = {}
    last: Choice | None = None
    full: Number | None = None
    steps: int | None = None
    learning_rate: JsonValue = None
    why: str = ""

    def held_folder(self, run: Path) -> Path | None:
        """The baseline's folder; None without one.

        Args:
            run: The folder of the run that was evaluated, from which ``baseline`` is named. Older versions named it
                from where the command was typed, so mostly without a leading ``..``.
        """
        if self.baseline is None:
            return None
        beside = run / self.baseline
        ours = self.baseline.startswith("..") or (beside.is_dir() and not beside.samefile(run))
        return beside if ours else Path(self.baseline)

    def choice(self, percent: int) -> Choice | None:
        """K for a tolerance: the one chosen on validation data; without any the one certain on the evaluated data."""
        if self.chosen:
            return self.chosen.get(percent)
        layer = self.within.get(percent)
        state: Kept = "estimated" if self.bounded is False else "proven"
        return None if layer is None else Choice(layer=layer, state=state, time=self.time.get(percent))


class Latency(Part):
    """How long the model computed until each layer could be read.

    Attributes:
        device: The device's name.
        batch_size: Samples in the batch that was timed.
        network: A hash of the shapes of the weights and of the batch: networks with one hash share one clock. None in
            files of older versions.
        milliseconds: Per sample, up to each layer 0 … L and one readout there: the sum of the least times of its parts.
    """

    device: str
    batch_size: int
    network: str | None = None
    milliseconds: list[Number]


class ExitPoint(Part):
    """The metric's ``value`` and the mean number of ``layers`` used, at one threshold.

    In the file the value's key is the name of the summary's metric.
    """

    layers: Number
    value: Number
    threshold: float | None = None


class ChosenExit(ExitPoint):
    """The threshold chosen on validation data, with its time as a share of full depth's; None means full depth."""

    threshold: float | None
    time_ratio: Number


class Guarantee(Part):
    """The bound that an exit threshold was certified by, see `descend.evaluation.risk_control`.

    Attributes:
        risk: The largest share of samples that may lose an answer that full depth has right.
        confidence: How sure this is, over the draw of the validation data.
        noise: The level γ of the data that it holds for.
        threshold: What was certified; None where nothing was, which means full depth.
        validation: Samples that the test was made on.
        losses: How many of them lose an answer.
        groups: How many independent groups they are of, such as premises.
        needed: The fewest groups that can certify this risk, if no sample loses an answer.
        test: Samples of the test data.
        test_risk: The share of them that loses an answer.
    """

    risk: float
    confidence: float
    noise: float
    threshold: float | None
    validation: int
    losses: int
    groups: int
    needed: int
    test: int | None = None
    test_risk: float | None = None


class Exits(Part):
    """Early exits: the metric at ``full`` depth, and the curve by confidence threshold.

    With a ``guarantee`` its threshold is the one chosen.
    """

    full: Number
    depth: int
    confidence: list[ExitPoint]
    chosen: ChosenExit
    guarantee: Guarantee | None = None


class Drafts(Part):
    """Drafting by the first ``layer`` layers: the share of tokens on which they agree with the whole model."""

    layer: int
    acceptance: Number


class Speculation(Part):
    """Self-speculative decoding, one entry in ``layers`` for each number of drafting layers 1 … L−1."""

    prompts: int | None = None
    layers: list[Drafts]


class Probes(Part):
    """What linear probes reach: the metric at the last layer by noise level, and losses and metrics by layer."""

    values: list[Number] = []
    layer_losses: ByLevel = {}
    layer_metrics: ByLevel = {}
