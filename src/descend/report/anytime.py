"""Quality against depth and against time: figures and a table, with the first layers that are close to full depth."""

from collections.abc import Sequence
from math import isfinite

import plotly.graph_objects as go

from descend.report import figures
from descend.report.runs import Arm, Group
from descend.report.tables import number
from descend.report.views import Body, Cell, Row, Table
from descend.results import WITHIN


def by_depth(group: Group) -> go.Figure:
    """The metric along the layers, with a ring at the first layer within 1, 2 and 5 percent of full depth."""
    figure = figures.layer_metrics(group)
    layers = [list(map(float, range(arm.depth + 1))) for arm in group.arms]
    figure.add_traces(_rings(group, group.train_noise, layers))
    for frame in figure.frames:
        frame.data = (*frame.data, *_rings(group, float(frame.name), layers))
    if not group.higher_is_better:
        figure.update_yaxes(figures.LOG_AXIS)
    return figure


def by_time(group: Group) -> go.Figure:
    """The metric against the measured milliseconds per sample up to each layer, with the rings of `by_depth`."""
    timed = Group(**vars(group) | {"arms": [arm for arm in group.arms if arm.milliseconds]})

    def traces(level: float) -> list[go.Scatter]:
        times = [arm.milliseconds for arm in timed.arms]
        lines = [_line(arm, level, time) for arm, time in zip(timed.arms, times, strict=True)]
        return lines + _rings(timed, level, times)

    frames = [go.Frame(name=str(level), data=traces(level)) for level in group.noise_levels]
    layout = figures.plain_layout("milliseconds per sample", figures.plain_text(group.metric))
    figure = go.Figure(traces(group.train_noise), layout, frames)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(rangemode="tozero")
    if not group.higher_is_better:
        figure.update_yaxes(figures.LOG_AXIS)
    return figure


def depth_table(group: Group) -> Table:
    """For each noise level the first layer within 1, 2 and 5 percent of full depth, and the area over depth."""
    heads = ("Method", *(f"Within {_share(each, group)}" for each in WITHIN), "Full depth", "Area over depth")
    bodies = []
    for level in group.noise_levels:
        rows = [Row(cells, arm.style) for arm in group.arms if (cells := _cells(arm, level))]
        if rows:
            bodies.append(Body(rows, f"γ = {level:g}"))
    return Table(heads, bodies, "First layer close to full depth")


def time_words(group: Group) -> str:
    """On which device and in which batches the times were measured."""
    measured = dict.fromkeys(
        f"{timed.device}, in batches of {timed.batch_size}"
        for run in group.runs
        if (timed := run.summary.latency) is not None
    )
    words = f"Measured on {' and on '.join(measured)}."
    if len(measured) > 1:
        return f"{words} These times do not compare."
    if sum(bool(arm.milliseconds) for arm in group.arms) > 1:
        words += (
            " Runs of one network take the same time to a layer, however they were trained: where theirs differ, the "
            "machine was busier with one of them, so compare by depth."
        )
    return words


def _share(percent: int, group: Group) -> str:
    return f"{percent} point{'s' * (percent > 1)}" if group.higher_is_better else f"{percent} %"


def _cells(arm: Arm, level: float) -> list[Cell]:
    curve = arm.anytime(level)
    if curve is None:
        return []
    times = arm.milliseconds
    return [
        Cell(arm.label),
        *(_layer(curve.first_within[percent], times) for percent in WITHIN),
        Cell(number(curve.metric[-1]), f"{times[-1]:.3g} ms" if times else ""),
        Cell(number(curve.area)),
    ]


def _layer(layer: int | None, times: Sequence[float]) -> Cell:
    if layer is None:
        return Cell("–")
    return Cell(f"layer {layer}", f"{times[layer]:.3g} ms" if times else "")


def _line(arm: Arm, level: float, times: Sequence[float]) -> go.Scatter:
    curve = arm.anytime(level)
    return go.Scatter(
        x=times,
        y=curve.metric if curve else [],
        name=figures.plain_text(arm.label),
        legendgroup=arm.label,
        mode="lines+markers",
        line={"color": arm.style.light, "width": 2.5},
        marker={"color": arm.style.light, "size": 8, "symbol": arm.style.symbol},
        customdata=list(range(len(times))),
        meta=arm.style[:2],
        hovertemplate="%{fullData.name}, layer %{customdata}: %{y:.4g} after %{x:.3g} ms<extra></extra>",
    )


def _rings(group: Group, level: float, places: Sequence[Sequence[float]]) -> list[go.Scatter]:
    """A trace for each arm, even if it is empty: the page pairs the traces of two levels by their order.

    Args:
        group: The arms.
        level: The noise level γ.
        places: Each arm's places on the horizontal axis, L+1 numbers.
    """
    unit = "points" if group.higher_is_better else "%"
    rings = []
    curves = [arm.anytime(level) for arm in group.arms]
    highest = max((curve.area for curve in curves if curve and isfinite(curve.area)), default=0.0)
    for arm, curve, place in zip(group.arms, curves, places, strict=True):
        near: dict[int, list[int]] = {}  # layer → percents
        for percent, layer in (curve.first_within if curve else {}).items():
            if layer is not None:
                near.setdefault(layer, []).append(percent)
        words = [", ".join(map(str, percents)) for percents in near.values()]
        ring = go.Scatter(
            x=[place[layer] for layer in near],
            y=[curve.metric[layer] for layer in near] if curve else [],
            text=words,
            textposition="top center" if curve and curve.area == highest else "bottom center",
            textfont={"color": arm.style.light},
            legendgroup=arm.label,
            showlegend=False,
            mode="markers+text",
            marker={"color": arm.style.light, "size": 17, "symbol": "circle-open"},
            cliponaxis=False,
            meta=arm.style[:2],
            hovertemplate=f"first layer within %{{text}} {unit} of full depth<extra></extra>",
        )
        rings.append(ring)
    return rings
