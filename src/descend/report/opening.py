"""The top of a group's section: numbers with intervals, the picture of them, and frames at each layer."""

from collections.abc import Mapping
from math import isfinite
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from descend.report import figures
from descend.report.headline import Measure, headline, measure_of, values_along
from descend.report.runs import Group
from descend.report.views import Body, Cell, FigureView, OpeningView, Row, Still, StripLayer, Table
from descend.results import Decision

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
    measure = measure_of(group)
    level = f"at the training noise, γ\u00a0=\u00a0{group.train_noise:g}" if group.train_noise else "without noise"
    words = f"{measure.name} on {group.split} data if the network is left after each layer, {level}."
    figure = FigureView("opening", f"{measure.name} along the layers", words, wide=True)
    table, notes = headline(group)
    strip = _strip(group, pictures) if pictures else []
    return OpeningView(table, notes, figure, index, strip, _texts(group)), _plot(group, measure)


def _plot(group: Group, measure: Measure) -> go.Figure:
    better = "higher" if measure.higher else "lower"
    title = f"{figures.plain_text(measure.name)} ({better} is better)"
    figure = go.Figure(layout=figures.plain_layout(figures.ALONG_LAYERS, title))
    shown: list[float] = []
    for arm in group.arms:
        columns = [list(column) for column in zip(*values_along(arm, group, measure), strict=False)]
        if columns:
            figure.add_traces(figures.line_with_band(arm, list(range(len(columns))), columns))
            shown += [fmean(column) for column in columns]
    half, given = group.depth // 2, group.input_value
    if given is not None and not measure.is_loss:
        figure.add_trace(_input_line(given, group.depth))
        shown.append(given)
    if half:
        label = {"text": f"layer {half}", "textposition": "end", "textangle": 0}
        label |= {"xanchor": "left", "yanchor": "top"}
        figure.add_shape(figures.vertical_line(half, "dash", "half") | {"label": label})
    figure.update_xaxes(figures.layer_ticks(0, group.depth))
    known = [value for value in shown if isfinite(value)]
    if known and min(known) > 0 and max(known) / min(known) > LOG_FROM:
        figure.update_yaxes(figures.LOG_AXIS)
    elif known and not measure.higher and min(known) >= 0:
        figure.update_yaxes(range=[0, 1.1 * max(known)])
    elif known and min(known) >= 0 and max(known) <= 1:
        figure.update_yaxes(range=[0, 1.03])
    return figure


def _input_line(given: float, depth: int) -> go.Scatter:
    """The noisy input's own value, across the layers of a plot."""
    return go.Scatter(
        x=list(range(depth + 1)),
        y=[given] * (depth + 1),
        name="Noisy input",
        mode="lines",
        line={"color": figures.MUTED, "width": 1.5, "dash": "dash"},
        hovertemplate="%{y:.4g}",
        meta=[figures.MUTED, figures.MUTED_DARK],
    )


def _texts(group: Group) -> list[Table]:
    """A table for each text that all arms decided on: a row per arm with what its layers say."""
    known = [(arm, run.decisions) for arm in group.arms for run in arm.runs[:1] if run.decisions]
    by_arm = [(arm, {each.text: each.decisions for each in decisions.texts}) for arm, decisions in known]
    shared = [text for text in (by_arm[0][1] if by_arm else ()) if all(text in texts for _, texts in by_arm)]
    tables = []
    for text in shared:
        layers = _layers(min(len(texts[text]) for _, texts in by_arm) - 1)
        rows = [
            Row([Cell(arm.label), *(_decision(texts[text][layer]) for layer in layers)], arm.style)
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


def _strip(group: Group, pictures: Mapping[str, Any]) -> list[StripLayer]:
    """The first clip at the training noise, after each layer or after seven of them, with its input and its goal."""
    levels: list[float] = pictures["noise"]
    noise = min(range(len(levels)), key=lambda place: abs(levels[place] - group.train_noise))
    panels = {panel["label"]: (place, panel) for place, panel in enumerate(pictures["panels"])}
    (noisy, input_panel), (clean, _) = panels["Noisy input"], panels["Clean"]
    strip = []
    for layer in _layers(pictures["layers"]):
        stills = []
        for arm in group.arms:
            if arm.label not in panels or layer >= len(panels[arm.label][1]["images"][noise]):
                continue
            place, panel = panels[arm.label]
            words = f"RMSE {panel['rmse'][noise][layer][0]:.1f}"
            alt = f"{arm.label}, layer {layer}, {words}"
            stills.append(Still(place, [noise, layer, 0], arm.label, words, alt, arm.style))
        if stills:
            strip.append(StripLayer(f"Layer {layer}", stills))
    words = f"RMSE {input_panel['rmse'][noise][0]:.1f}"
    given = [
        Still(noisy, [noise, 0], "Noisy input", words, f"Noisy input, {words}"),
        Still(clean, [0], "Clean", "the goal", "The clean picture"),
    ]
    return [*strip, StripLayer("The data", given)]
