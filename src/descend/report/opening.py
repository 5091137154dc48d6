"""The top of a group's section: one sentence, the picture that shows it, and frames at each layer."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from descend.records.schema import Decision
from descend.report import figures
from descend.report.beside_input import input_line, input_words
from descend.report.runs import METHOD_NAMES, Group
from descend.report.sentence import Curve, Scale, capital, half_words, sentence, short
from descend.report.views import Body, Cell, FigureView, OpeningView, Row, Still, StripLayer, Table

MOST_LABEL = 40
"""Characters of an arm's label that a sentence can take."""

MOST_STILLS = 7
"""Most layers in the strip of frames: as many as stand side by side on a wide screen."""

LOG_FROM = 30.0
"""The vertical axis is logarithmic where its largest value is this many times its smallest."""


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
    shown = [curve for curve in (baseline, ours) if curve]
    strip = _strip(shown, group, pictures) if pictures else []
    texts = _texts(shown)
    given = group.input_value if scale.name == group.metric else None
    lead = sentence(ours, baseline, scale)
    if given is not None:
        lead += f" {input_words(shown, given, scale)}"
    view = OpeningView(lead, figure, index, strip, texts)
    return view, _plot(curves, ours, baseline, scale, group.train_noise, given)


_IN_WORDS = {"erm": "plain training", "constrained": "constrained training"}


def _names(group: Group) -> dict[str, str]:
    """Label → a name short enough for a sentence, for each arm; the tables have the settings that tell arms apart."""
    names = {}
    for arm in group.arms:
        alike = [other.label for other in group.arms if other.method == arm.method]
        name = _IN_WORDS.get(arm.method, METHOD_NAMES.get(arm.method, arm.method))
        if len(alike) > 1:
            numbered = f"{name} {alike.index(arm.label) + 1} of {len(alike)}"
            name = arm.label if max(map(len, alike)) <= MOST_LABEL else numbered
        names[arm.label] = name
    return names


def _label(curve: Curve) -> str:
    """An arm's name beside a small picture."""
    return capital(curve.name.replace(" training", ""))


def _curves(group: Group) -> tuple[list[Curve], Scale]:
    """The metric of each arm along the layers; the loss where no arm has the metric at each layer."""
    level, names = group.train_noise, _names(group)
    measured = [
        Curve(arm, curve.metric, names[arm.label], [row[-1] for row in arm.metrics(level)])
        for arm in group.arms
        if (curve := arm.anytime(level))
    ]
    if measured:
        return measured, Scale(group.metric, group.higher_is_better, _samples(group))
    rows = [(arm, [run.summary.layer_losses[level] for run in arm.runs]) for arm in group.arms]
    curves = [
        Curve(
            arm,
            [fmean(column) for column in zip(*losses, strict=False)],
            names[arm.label],
            [row[-1] for row in losses],
        )
        for arm, losses in rows
    ]
    return curves, Scale("Loss", higher=False)


def _samples(group: Group) -> int | None:
    """How many samples the least of the runs was judged on, if known."""
    return min((run.summary.samples for run in group.runs if run.summary.samples), default=None)


def _pair(curves: Sequence[Curve]) -> tuple[Curve, Curve | None]:
    """The curve that the opening speaks of, and the one to compare it with: plain training where there is some."""
    ours = next((curve for curve in curves if curve.arm.method == "constrained"), curves[-1])
    others = [curve for curve in curves if curve is not ours]
    baseline = next((curve for curve in others if curve.arm.method == "erm"), others[0] if others else None)
    return ours, baseline


def _plot(
    curves: Sequence[Curve], ours: Curve, baseline: Curve | None, scale: Scale, level: float, given: float | None
) -> go.Figure:
    better = "higher" if scale.higher else "lower"
    layout = figures.plain_layout(figures.ALONG_LAYERS, f"{figures.plain_text(scale.name)} ({better} is better)")
    figure = go.Figure(layout=layout)
    by_metric = scale.name != "Loss"
    for arm, values, name, _ in curves:
        entries = [run.summary.layer_metrics if by_metric else run.summary.layer_losses for run in arm.runs]
        rows = [entry[level] for entry in entries if level in entry]
        columns = [list(column) for column in zip(*rows, strict=False)] or [[value] for value in values]
        *bands, line = figures.line_with_band(arm, list(range(len(columns))), columns)
        line.name = figures.plain_text(capital(name))
        figure.add_traces([*bands, line])
    depth = max(len(curve.values) for curve in curves) - 1
    half = depth // 2
    if given is not None:
        figure.add_trace(input_line(given, depth))
    for curve, above in ((ours, scale.higher or baseline is None), (baseline, not scale.higher)):
        if curve and len(curve.values) == depth + 1:
            once = curve is ours and baseline and short(ours.values[-1]) == short(baseline.values[-1])
            layers = [layer for layer in (half, 0 if once else depth) if layer]
            figure.add_trace(_numbers(curve, layers, above=above))
    if half:
        label = {"text": half_words(half, depth).lower(), "textposition": "end", "textangle": 0}
        label |= {"xanchor": "left", "yanchor": "top"}
        figure.add_shape(figures.vertical_line(half, "dash", "half") | {"label": label})
    figure.update_xaxes(figures.layer_ticks(0, depth))
    every = [*(value for curve in curves for value in curve.values), *([] if given is None else [given])]
    known = [value for value in every if isfinite(value)]
    if known and min(known) > 0 and max(known) / min(known) > LOG_FROM:
        figure.update_yaxes(type="log", tickvals=figures.log_ticks([known]), tickformat=".3~g")
    elif known and not scale.higher and min(known) >= 0:  # from 0, with room for a number below the lowest point
        figure.update_yaxes(range=[-0.1 * max(known), 1.25 * max(known)])
    elif known and min(known) >= 0 and max(known) <= 1:
        figure.update_yaxes(range=[0, 1.03])
    return figure


def _numbers(curve: Curve, layers: Sequence[int], *, above: bool) -> go.Scatter:
    """The numbers of the sentence, at their points in the plot."""
    style = curve.arm.style
    return go.Scatter(
        x=list(layers),
        y=[curve.values[layer] for layer in layers],
        text=[short(curve.values[layer]) for layer in layers],
        textposition="top center" if above else "bottom center",
        textfont={"color": style.light, "size": 15},
        mode="markers+text",
        marker={"size": 20, "opacity": 0},  # keeps the number off its point
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
        meta=style[:2],
    )


def _texts(curves: Sequence[Curve]) -> list[Table]:
    """A table for each text that all arms decided on: a row per arm with what its layers say."""
    known = [(curve, run.decisions) for curve in curves for run in curve.arm.runs[:1] if run.decisions]
    by_arm = [(curve, {each.text: each.decisions for each in decisions.texts}) for curve, decisions in known]
    shared = [text for text in (by_arm[0][1] if by_arm else ()) if all(text in texts for _, texts in by_arm)]
    tables = []
    for text in shared:
        layers = _layers(min(len(texts[text]) for _, texts in by_arm) - 1)
        rows = [
            Row(
                [Cell(_label(curve)), *(_decision(texts[text][layer]) for layer in layers)],
                curve.arm.style,
            )
            for curve, texts in by_arm
        ]
        tables.append(Table(["", *(f"Layer {layer}" for layer in layers)], [Body(rows, f"“{text}”")]))
    return tables


def _decision(decision: Decision) -> Cell:
    sure = f"{decision.confidence:.0%}" if isfinite(decision.confidence) else "–"
    return Cell(f"{'✓' if decision.right else '✗'} {decision.answer}", sure)


def _layers(depth: int) -> list[int]:
    """The layers to show: all, or seven of them from the first to the last."""
    return sorted({round(place * depth / (MOST_STILLS - 1)) for place in range(MOST_STILLS)})


def _strip(curves: Sequence[Curve], group: Group, pictures: Mapping[str, Any]) -> list[StripLayer]:
    """The first clip at the training noise, after each layer or after seven of them, with its input and its goal."""
    levels: list[float] = pictures["noise"]
    noise = min(range(len(levels)), key=lambda place: abs(levels[place] - group.train_noise))
    panels = {panel["label"]: (place, panel) for place, panel in enumerate(pictures["panels"])}
    (noisy, input_panel), (clean, _) = panels["Noisy input"], panels["Clean"]
    given_error = input_panel["rmse"][noise][0]
    strip = []
    for layer in _layers(pictures["layers"]):
        stills = []
        for curve in curves:
            label, name = curve.arm.label, _label(curve)
            if label not in panels or layer >= len(panels[label][1]["images"][noise]):
                continue
            place, panel = panels[label]
            error = panel["rmse"][noise][layer][0]
            words = f"RMSE {error:.1f}" + (", worse than the input" if layer and error > given_error else "")
            alt = f"{name}, layer {layer}, {words}"
            stills.append(Still(place, [noise, layer, 0], name, words, alt, curve.arm.style))
        if stills:
            strip.append(StripLayer(f"Layer {layer}", stills))
    words = f"RMSE {given_error:.1f}"
    given = [
        Still(noisy, [noise, 0], "Noisy input", words, f"Noisy input, {words}"),
        Still(clean, [0], "Clean", "the goal", "The clean picture"),
    ]
    return [*strip, StripLayer("The data", given)]
