"""The top of a group's section: one sentence, the picture that shows it, and frames at each layer."""

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from statistics import fmean
from typing import Any, NamedTuple

import plotly.graph_objects as go

from descend.records.schema import Decision
from descend.report import figures
from descend.report.runs import Arm, Group
from descend.report.views import Body, Cell, FigureView, OpeningView, Row, Still, StripLayer, Table

# What counts as better: 5 % less of an error, or at least 1 point more of an accuracy.
ERROR_SHARE, POINTS = 0.05, 0.01

MOST_STILLS = 7
"""Most layers in the strip of frames: as many as stand side by side on a wide screen."""

LOG_FROM = 30.0
"""The vertical axis is logarithmic where its largest value is this many times its smallest."""


class Curve(NamedTuple):
    """An arm's quality at each layer 0 … L at the training noise, the mean over seeds."""

    arm: Arm
    values: list[float]


class Scale(NamedTuple):
    """What a curve's values are: their name for readers, which of two is better, and how far apart they count.

    ``close`` is the difference up to which two numbers count as alike: a share of an error, points of an accuracy.
    """

    name: str
    higher: bool
    close: float

    @classmethod
    def of(cls, name: str, higher: bool, samples: int | None = None) -> "Scale":
        """A scale; for an accuracy two standard errors of a difference count as alike, where ``samples`` is known."""
        if not higher:
            return cls(name, higher, ERROR_SHARE)
        return cls(name, higher, max(POINTS, 2 * sqrt(0.5 / samples)) if samples else POINTS)

    def better(self, value: float, other: float) -> bool:
        """Whether a value is better than another, and not alike."""
        return value > other + self.close if self.higher else value < other * (1 - self.close)

    def reaches(self, value: float, other: float) -> bool:
        """Whether a value is at least as good as another."""
        return value >= other if self.higher else value <= other


def opening(index: int, group: Group, pictures: Mapping[str, Any] | None) -> tuple[OpeningView, go.Figure]:
    """The opening of a group's section, and its plot.

    Args:
        index: The section's number on the page.
        group: The runs.
        pictures: The section's frames as `descend.report.frames.embed` returns them; None without frames.
    """
    curves, scale = _curves(group)
    ours, baseline = _pair(curves)
    level = f"at the training noise, γ\u00a0=\u00a0{group.train_noise:g}" if group.train_noise else "without noise"
    words = f"{scale.name} on {group.split} data if the network is left after each layer, {level}."
    figure = FigureView("opening", f"{scale.name} along the layers", words, wide=True)
    shown = [curve.arm.label for curve in (baseline, ours) if curve]
    strip = _strip(shown, group, pictures) if pictures else []
    texts = _texts([curve.arm for curve in (baseline, ours) if curve])
    view = OpeningView(sentence(ours, baseline, scale), figure, index, strip, texts)
    return view, _plot(curves, ours, baseline, scale, group.train_noise)


def sentence(ours: Curve, baseline: Curve | None, scale: Scale) -> str:
    """What the picture shows, in a sentence.

    Args:
        ours: The curve to speak of, as a rule of constrained training.
        baseline: The one to hold it against; None for a single arm.
        scale: What the values are.
    """
    if diverged := [curve.arm.label for curve in (ours, baseline) if curve and not isfinite(curve.values[-1])]:
        return f"{' and '.join(diverged)} diverged: at full depth the {_noun(scale)} is not a finite number."
    if baseline is None:
        return _alone(ours, scale)
    depth = min(len(ours.values), len(baseline.values)) - 1
    half = depth // 2
    with_ours, with_baseline = _training(ours), _training(baseline)
    ends = _ends(ours.values[-1], baseline.values[-1], with_ours, with_baseline, scale)
    if half == 0:
        return f"{ends[0].upper()}{ends[1:]}."
    inner, other = ours.values[half], baseline.values[half]
    many, noun = _half(half, depth), _noun(scale)
    give = "gives" if many.startswith("1 ") else "give"
    if scale.better(inner, other):
        needed = _first(baseline.values, lambda value: scale.reaches(value, inner))
        if needed is None:
            rest = f"{with_baseline} reaches that at no layer ({_short(other)} at half depth)"
        else:
            count = f"all {depth}" if needed == depth else str(needed)
            rest = f"{with_baseline} needs {count} layers for that ({_short(other)} at half depth)"
        return f"{many} already {give} {noun} {_short(inner)} with {with_ours}; {rest}; {ends}."
    verb = f"{with_ours} is worse" if scale.better(other, inner) else f"{with_ours} gains nothing"
    verb = verb[0].upper() + verb[1:]
    numbers = f"{many.lower()} {give} {noun} {_short(inner)}, against {_short(other)} with {with_baseline}"
    return f"{verb} along the layers: {numbers}; {ends}."


def _alone(curve: Curve, scale: Scale) -> str:
    values, noun = curve.values, _noun(scale)
    depth, full = len(values) - 1, values[-1]
    half = depth // 2
    if not scale.better(full, values[0]):
        words = f"at the input and {_short(full)} after all {depth} layers"
        return f"The layers improve nothing: {noun} is {_short(values[0])} {words}."
    near = _first(values, lambda value: not scale.better(full, value)) or depth
    if near == depth:
        inner = f" {_half(half, depth).lower()} give {noun} {_short(values[half])}," if half else ""
        return f"This model needs all of its {depth} layers:{inner} all of them {_short(full)}."
    words = f"give {noun} {_short(values[near])}, about as good as all {depth} ({_short(full)})"
    if near <= half:
        return f"The first {near} of {depth} layers already {words}."
    return f"{near} of {depth} layers {words}; {_half(half, depth).lower()} give {_short(values[half])}."


def _ends(ours: float, baseline: float, with_ours: str, with_baseline: str, scale: Scale) -> str:
    if scale.better(ours, baseline):
        return f"at full depth {with_ours} is better ({_short(ours)} against {_short(baseline)})"
    if scale.better(baseline, ours):
        return f"at full depth {with_baseline} is better ({_short(baseline)} against {_short(ours)})"
    return f"at full depth the two are alike ({_short(ours)} and {_short(baseline)})"


def _alike(value: float, other: float, scale: Scale) -> bool:
    return not scale.better(value, other) and not scale.better(other, value)


def _first(values: Sequence[float], holds: Any) -> int | None:
    """The first layer from which on a condition holds; None if it does not hold at the last."""
    layer = len(values)
    while layer and holds(values[layer - 1]):
        layer -= 1
    return layer if layer < len(values) else None


_PLAIN_NAMES = {"ERM": "Plain training", "Constrained": "Constrained training"}


def _training(curve: Curve) -> str:
    """How an arm is called within a sentence."""
    label = curve.arm.label
    return _PLAIN_NAMES[label].lower() if label in _PLAIN_NAMES else label


def _half(half: int, depth: int) -> str:
    return "Half of the layers" if 2 * half == depth else f"{half} of {depth} layers"


def _noun(scale: Scale) -> str:
    return scale.name if scale.name.isupper() else scale.name.lower()


def _short(value: float) -> str:
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{digits}f}" if size >= 1e-3 or size == 0 else f"{value:.2g}"


def _curves(group: Group) -> tuple[list[Curve], Scale]:
    """The metric of each arm along the layers; the loss where no arm has the metric at each layer."""
    level = group.train_noise
    measured = [Curve(arm, curve.metric) for arm in group.arms if (curve := arm.anytime(level))]
    if measured:
        return measured, Scale.of(group.metric, group.higher_is_better, _samples(group))
    rows = [(arm, [run.summary.layer_losses[level] for run in arm.runs]) for arm in group.arms]
    curves = [Curve(arm, [fmean(column) for column in zip(*losses, strict=False)]) for arm, losses in rows]
    return curves, Scale.of("Loss", higher=False)


def _samples(group: Group) -> int | None:
    """How many samples the least of the runs was judged on, if known."""
    return min((run.summary.samples for run in group.runs if run.summary.samples), default=None)


def _pair(curves: Sequence[Curve]) -> tuple[Curve, Curve | None]:
    """The curve that the opening speaks of, and what it is held against: plain training where there is some."""
    ours = next((curve for curve in curves if curve.arm.method == "constrained"), curves[-1])
    others = [curve for curve in curves if curve is not ours]
    baseline = next((curve for curve in others if curve.arm.method == "erm"), others[0] if others else None)
    return ours, baseline


def _plot(curves: Sequence[Curve], ours: Curve, baseline: Curve | None, scale: Scale, level: float) -> go.Figure:
    better = "higher" if scale.higher else "lower"
    layout = figures.plain_layout("layer (0 is the input)", f"{figures.plain_text(scale.name)} ({better} is better)")
    figure = go.Figure(layout=layout)
    by_metric = scale.name != "Loss"
    for arm, values in curves:
        entries = [run.summary.layer_metrics if by_metric else run.summary.layer_losses for run in arm.runs]
        rows = [entry[level] for entry in entries if level in entry]
        columns = [list(column) for column in zip(*rows, strict=False)] or [[value] for value in values]
        *bands, line = figures.line_with_band(arm, list(range(len(columns))), columns)
        line.name = _PLAIN_NAMES.get(arm.label, line.name)
        figure.add_traces([*bands, line])
    depth = max(len(curve.values) for curve in curves) - 1
    half = depth // 2
    for curve, above in ((ours, scale.higher or baseline is None), (baseline, not scale.higher)):
        if curve and len(curve.values) == depth + 1:
            once = curve is ours and baseline and _alike(ours.values[-1], baseline.values[-1], scale)
            layers = [layer for layer in (half, 0 if once else depth) if layer]
            figure.add_trace(_numbers(curve, layers, above=above))
    if half:
        label = {"text": _half(half, depth).lower(), "textposition": "end", "textangle": 0}
        label |= {"xanchor": "left", "yanchor": "top"}
        figure.add_shape(figures.vertical_line(half, "dash", "half") | {"label": label})
    figure.update_xaxes(figures.layer_ticks(0, depth))
    known = [value for curve in curves for value in curve.values if isfinite(value)]
    if known and min(known) > 0 and max(known) / min(known) > LOG_FROM:
        figure.update_yaxes(type="log", tickvals=figures.log_ticks([known]), tickformat=".3~g")
    elif known and not scale.higher and min(known) >= 0:  # from 0, with room for a number below the lowest point
        figure.update_yaxes(range=[-0.1 * max(known), 1.15 * max(known)])
    elif known and min(known) >= 0 and max(known) <= 1:
        figure.update_yaxes(range=[0, 1.03])
    return figure


def _numbers(curve: Curve, layers: Sequence[int], *, above: bool) -> go.Scatter:
    """The numbers of the sentence, at their points in the plot."""
    style = curve.arm.style
    return go.Scatter(
        x=list(layers),
        y=[curve.values[layer] for layer in layers],
        text=[_short(curve.values[layer]) for layer in layers],
        textposition="top center" if above else "bottom center",
        textfont={"color": style.light, "size": 15},
        mode="markers+text",
        marker={"size": 20, "opacity": 0},  # keeps the number off its point
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
        meta=style[:2],
    )


def _texts(arms: Sequence[Arm]) -> list[Table]:
    """A table for each text that all arms decided on: a row per arm with what its layers say."""
    known = [(arm, run.decisions) for arm in arms for run in arm.runs[:1] if run.decisions]
    by_arm = [(arm, {each.text: each.decisions for each in decisions.texts}) for arm, decisions in known]
    shared = [text for text in (by_arm[0][1] if by_arm else ()) if all(text in texts for _, texts in by_arm)]
    tables = []
    for text in shared:
        layers = _layers(min(len(texts[text]) for _, texts in by_arm) - 1)
        rows = [
            Row(
                [Cell(_PLAIN_NAMES.get(arm.label, arm.label).removesuffix(" training"))]
                + [_decision(texts[text][layer]) for layer in layers],
                arm.style,
            )
            for arm, texts in by_arm
        ]
        tables.append(Table(["", *(f"Layer {layer}" for layer in layers)], [Body(rows, f"“{text}”")]))
    return tables


def _decision(decision: Decision) -> Cell:
    sure = f"{decision.confidence:.0%}" if isfinite(decision.confidence) else "–"
    return Cell(f"{'✓' if decision.right else '✗'} {decision.answer}", sure)


def _layers(depth: int) -> list[int]:
    """The layers to show: all, or seven of them from the first to the last."""
    return sorted({round(place * depth / (MOST_STILLS - 1)) for place in range(MOST_STILLS)})


def _strip(labels: Sequence[str], group: Group, pictures: Mapping[str, Any]) -> list[StripLayer]:
    """The first clip at the training noise, after each layer or after seven of them, with its input and its goal."""
    levels: list[float] = pictures["noise"]
    noise = min(range(len(levels)), key=lambda place: abs(levels[place] - group.train_noise))
    panels = {panel["label"]: (place, panel) for place, panel in enumerate(pictures["panels"])}
    strip = []
    for layer in _layers(pictures["layers"]):
        stills = []
        for label, arm in ((label, arm) for label in labels for arm in group.arms if arm.label == label):
            if label not in panels or layer >= len(panels[label][1]["images"][noise]):
                continue
            place, panel = panels[label]
            words = f"RMSE {panel['rmse'][noise][layer][0]:.1f}"
            name = _PLAIN_NAMES.get(label, label).removesuffix(" training")
            stills.append(Still(place, [noise, layer, 0], name, words, f"{name}, layer {layer}, {words}", arm.style))
        if stills:
            strip.append(StripLayer(f"Layer {layer}", stills))
    (noisy, panel), (clean, _) = panels["Noisy input"], panels["Clean"]
    words = f"RMSE {panel['rmse'][noise][0]:.1f}"
    given = [
        Still(noisy, [noise, 0], "Noisy input", words, f"Noisy input, {words}"),
        Still(clean, [0], "Clean", "the goal", "The clean picture"),
    ]
    return [*strip, StripLayer("The data", given)]
