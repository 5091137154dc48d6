"""The figures, each a plotly `Figure` of its own, made from runs as `descend.report.runs` reads them.

Two things ride along for the page, which no other viewer need know: a trace's ``meta`` is its colour on
light and on dark ground, and ``figure.frames`` are the noise levels (named by γ) that a slider steps through.
"""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, inf, log10
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from descend.report.runs import Arm, Group, RunView

INK, GRID, MUTED = "#1d1c1a", "#e4e0d8", "#77726a"
MOST_POINTS = 300
MOST_LEGEND_ENTRIES = 12


def layer_losses(group: Group, noise: float | None = None) -> go.Figure:
    """The loss along the layers: one line per arm, and the limit of every layer that has one.

    With several seeds the line is their mean and the band reaches from the lowest to the highest.

    Args:
        group: The runs to compare.
        noise: γ to show; the training noise unless given. The figure's frames hold every level known.
    """
    level = group.train_noise if noise is None else noise
    frames = [go.Frame(name=str(key), data=_loss_traces(group, key)) for key in group.noise_levels]
    layout = _layout("layer (0 is the input)", "loss f<sub>l</sub>")
    figure = go.Figure(_loss_traces(group, level), layout, frames)
    figure.update_xaxes(_layer_ticks(0, group.depth))
    figure.update_yaxes(type="log", tickvals=_log_ticks(group), tickformat=".3~g")
    figure.add_shape(_cursor("layer", group.depth))
    return figure


def error_by_noise(group: Group) -> go.Figure:
    """The last layer's error against the noise level γ, with the training noise marked."""
    better = "higher" if group.runs[0].higher_is_better else "lower"
    figure = go.Figure(layout=_layout("noise level γ", f"{escape(group.metric)} ({better} is better)"))
    for arm in group.arms:
        table: dict[float, list[float]] = {}
        for run in arm.runs:
            for level, value in zip(run.noise, run.values, strict=True):
                table.setdefault(level, []).append(value)
        levels = sorted(table)
        figure.add_traces(_line_with_band(arm, levels, [table[level] for level in levels]))
    label = {"text": "training noise", "textposition": "end", "textangle": 0}
    label |= {"xanchor": "left", "yanchor": "top"}
    figure.add_shape(_line(group.train_noise, "dash", "train") | {"label": label, "layer": "above"})
    figure.add_shape(_cursor("noise", group.train_noise))
    return figure


def multipliers(run: RunView) -> go.Figure:
    """The multipliers λ over the training steps, one line per layer; the cap's is dashed."""
    figure = go.Figure(layout=_layout("training step", "multiplier λ"))
    depth = max(run.history, default=0)
    every = -(-depth // MOST_LEGEND_ENTRIES)
    for layer, (steps, values) in run.history.items():
        if not any(values) if layer == 0 else not run.asks(layer):
            continue
        colours = _ramp(layer, depth) if layer else (MUTED, "#a8a29a")
        stride = -(-len(steps) // MOST_POINTS)
        keep = [*range(0, len(steps) - 1, stride), len(steps) - 1]
        figure.add_scatter(
            x=[steps[point] for point in keep],
            y=[values[point] for point in keep],
            name=str(layer) if layer else "cap",
            mode="lines",
            line={"color": colours[0], "width": 2, "dash": "solid" if layer else "dot"},
            meta=colours,
            showlegend=layer % every == 0,
            hovertemplate=f"{f'layer {layer}' if layer else 'cap'}: %{{y:.3g}}<extra></extra>",
        )
    figure.update_layout(legend_title={"text": "layer ", "font": {"size": 13}})
    return figure


def violations(group: Group) -> go.Figure:
    """How far each layer's constraint is violated, with its interval.

    A cross marks a constraint that the run was judged to break.
    """
    figure = go.Figure(layout=_layout("layer", "violation (above 0: broken)"))
    figure.update_layout(hovermode="closest")
    shown = [(arm, run) for arm in group.arms for run in arm.runs if run.violations]
    for place, (arm, run) in enumerate(shown):
        offset = 0.5 * ((place + 0.5) / len(shown) - 0.5)
        layers = [layer for layer in range(1, len(run.violations) + 1) if run.asks(layer)]
        values = [run.violations[layer - 1] for layer in layers]
        intervals = run.violation_intervals or [[value, value] for value in run.violations]
        pairs = [intervals[layer - 1] for layer in layers]
        broken = [layer in run.violated for layer in layers]
        figure.add_scatter(
            x=[layer + offset for layer in layers],
            y=values,
            name=arm.label,
            mode="markers",
            legendgroup=arm.label,
            showlegend=run is arm.runs[0],
            marker={
                "color": arm.style.light,
                "size": 9,
                "symbol": ["x" if bad else arm.style.symbol for bad in broken],
            },
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - value for (_, high), value in zip(pairs, values, strict=True)],
                "arrayminus": [value - low for (low, _), value in zip(pairs, values, strict=True)],
                "color": arm.style.light,
                "thickness": 1.5,
                "width": 3,
            },
            customdata=[[layer, *pair] for layer, pair in zip(layers, pairs, strict=True)],
            meta=arm.style[:2],
            hovertemplate=f"{escape(arm.label)}, seed {run.seed}, layer %{{customdata[0]}}<br>"
            "%{y:.3g} (from %{customdata[1]:.3g} to %{customdata[2]:.3g})<extra></extra>",
        )
    figure.update_xaxes(_layer_ticks(1, group.depth))
    figure.update_yaxes(zeroline=True, zerolinecolor=MUTED, zerolinewidth=2)
    return figure


def _loss_traces(group: Group, level: float) -> list[go.Scatter]:
    traces: list[go.Scatter] = []
    for arm in group.arms:
        rows = [run.layer_losses[level] for run in arm.runs if level in run.layer_losses]
        by_layer = [list(losses) for losses in zip(*rows, strict=False)]
        traces += _line_with_band(arm, list(range(len(by_layer))), by_layer)
        limits = {
            layer: limit * _mean(by_layer[layer - 1])
            for layer, limit in enumerate(arm.limits[: len(by_layer)])
            if layer and limit is not None
        }
        if limits:
            traces.append(
                go.Scatter(
                    x=list(limits),
                    y=list(limits.values()),
                    name="limit (1−α) f<sub>l−1</sub>",
                    legendgroup=f"{arm.label} limit",
                    mode="markers",
                    marker={"symbol": "line-ew", "size": 16, "line": {"width": 2, "color": arm.style.light}},
                    meta=arm.style[:2],
                    hovertemplate="%{y:.4g}",
                )
            )
    return traces


def _line_with_band(arm: Arm, x: list[Any], values: Sequence[list[float]]) -> list[go.Scatter]:
    """A line through the seeds' means and, with several seeds, a band from their lowest to their highest."""
    light = arm.style.light
    line = go.Scatter(
        x=x,
        y=[_mean(column) for column in values],
        name=escape(arm.label),
        legendgroup=arm.label,
        mode="lines+markers",
        line={"color": light, "width": 2.5},
        marker={"color": light, "size": 8, "symbol": arm.style.symbol},
        meta=arm.style[:2],
        hovertemplate="%{y:.4g}",
    )
    if len(arm.runs) == 1:
        return [line]
    band = go.Scatter(
        x=[*x, *reversed(x)],
        y=[*map(max, values), *map(min, reversed(values))],
        legendgroup=arm.label,
        showlegend=False,
        mode="none",
        fill="toself",
        fillcolor=f"{light}2e",
        hoverinfo="skip",
        meta=arm.style[:2],
    )
    return [band, line]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ramp(layer: int, depth: int) -> tuple[str, str]:
    """Layers are ordered, and so are their colours: plasma, less the end that would sink into the ground."""
    place = (layer - 1) / max(depth - 1, 1)
    light, dark = sample_colorscale("Plasma", [0.78 * place, 0.3 + 0.7 * place])
    return light, dark


def _layer_ticks(first: int, last: int) -> dict[str, Any]:
    return {"dtick": max(1, round(last / 8)), "tick0": first, "range": [first - 0.4, last + 0.4]}


def _log_ticks(group: Group) -> list[float]:
    """Round numbers over all losses, as many per decade as the widest level leaves room for."""
    spans = []
    for level in group.noise_levels:
        losses = [loss for run in group.runs for loss in run.layer_losses.get(level, ()) if 0 < loss < inf]
        spans += [(min(losses), max(losses))] if losses else []
    if not spans:
        return []
    widest = max(high / low for low, high in spans)
    steps = (1, 1.5, 2, 3, 5, 7) if widest < 30 else (1, 2, 5) if widest < 1000 else (1,)
    first = floor(log10(min(low for low, _ in spans)))
    last = ceil(log10(max(high for _, high in spans)))
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def _line(x: float, dash: str, role: str) -> dict[str, Any]:
    place = {"x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    return {"type": "line", "name": role, "line": {"color": MUTED, "width": 1.5, "dash": dash}, **place}


def _cursor(control: str, x: float) -> dict[str, Any]:
    """Where the page's slider of this name stands; not seen where there is no slider."""
    return _line(x, "solid", f"cursor-{control}") | {"visible": False, "opacity": 0.4}


def _layout(x: str, y: str) -> go.Layout:
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": GRID, "automargin": True, "fixedrange": True}
    return go.Layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": INK},
        margin={"l": 56, "r": 12, "t": 12, "b": 48},
        xaxis={**axis, "title": {"text": x, "standoff": 10, "font": {"size": 13}}},
        yaxis={**axis, "title": {"text": y, "standoff": 8, "font": {"size": 13}}},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        hovermode="x unified",
        dragmode=False,
        showlegend=True,
    )
