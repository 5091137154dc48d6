"""The figures, each a plotly `Figure` of its own, made from runs as `descend.report.runs` groups them.

Two entries are for the page alone: a trace's ``meta`` is its colour on a light and on a dark ground, and
``figure.frames`` are the noise levels, named by γ, that a slider steps through.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import isnan, nan
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from descend.report.runs import Arm, Group, RunView, Style
from descend.results import ByLevel, Summary

INK, GRID, MUTED, MUTED_DARK = "#1d1c1a", "#e4e0d8", "#77726a", "#a09b92"
ALONG_LAYERS = "layer (0: before the first block)"
MOST_POINTS = 300
MOST_LEGEND_ENTRIES = 12

LOG_AXIS = {"type": "log", "tickformat": ".3~g"}
"""A logarithmic axis with plain numbers; ``page.js`` sets its steps by the range that is shown."""


def layer_losses(group: Group, noise: float | None = None) -> go.Figure:
    """The loss along the layers: one line per arm, and what each layer under a constraint had to reach.

    With several seeds the line is their mean and the band reaches from the lowest to the highest. Linear probes, where
    they were fitted, are dotted.

    Args:
        group: The runs to compare.
        noise: γ to show; the training noise unless given. The figure's frames hold every level known.
    """
    figure = _along_layers(group, noise, "loss f<sub>l</sub>", _loss_traces)
    figure.update_yaxes(LOG_AXIS)
    return figure


def layer_metrics(group: Group, noise: float | None = None) -> go.Figure:
    """The metric along the layers, as `layer_losses` shows the loss."""
    return _along_layers(group, noise, plain_text(group.metric), _metric_traces)


def ratios(group: Group) -> go.Figure:
    """How f_l / f_{l−1} spreads over samples at each layer: the median, half of the samples, and nine in ten."""
    figure = go.Figure(layout=plain_layout("layer", "f<sub>l</sub> / f<sub>l−1</sub> of a sample"))
    figure.update_layout(hovermode="closest")
    shown = [(arm, run) for arm in group.arms for run in arm.runs[:1] if run.summary.ratios.by_layer]
    for place, (arm, run) in enumerate(shown):
        offset = 0.5 * ((place + 0.5) / len(shown) - 0.5)
        rows, quantiles = run.summary.ratios.by_layer, run.summary.ratios.quantiles
        layers = [layer + offset for layer in range(1, len(rows) + 1)]
        middle = len(quantiles) // 2
        figure.add_scatter(
            x=layers,
            y=[row[middle] for row in rows],
            name=plain_text(arm.label),
            legendgroup=arm.label,
            mode="markers",
            marker={"color": arm.style.light, "size": 11, "symbol": f"{arm.style.symbol}-open"},
            customdata=[[layer, row[1], row[-2], row[0], row[-1]] for layer, row in enumerate(rows, start=1)],
            meta=arm.style[:2],
            hovertemplate="%{fullData.name}, layer %{customdata[0]}: median %{y:.3g}<br>"
            "half from %{customdata[1]:.3g} to %{customdata[2]:.3g}, "
            "nine in ten from %{customdata[3]:.3g} to %{customdata[4]:.3g}<extra></extra>",
        )
        for low, high, width in ((0, -1, 1.5), (1, -2, 6)):  # after the hollow markers, so that none hides a short bar
            pairs = [(row[low], row[high]) for row in rows]
            figure.add_scatter(
                x=[x for layer in layers for x in (layer, layer, None)],
                y=[y for pair in pairs for y in (*pair, None)],
                mode="lines",
                line={"color": arm.style.light, "width": width},
                legendgroup=arm.label,
                showlegend=False,
                hoverinfo="skip",
                meta=arm.style[:2],
            )
    level = {"x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "yref": "y"}
    figure.add_shape(vertical_line(0, "dash", "level") | level)
    figure.update_xaxes(layer_ticks(1, group.depth))
    return figure


def settled(group: Group) -> go.Figure:
    """The share of samples whose decision has settled by each layer: from there on it does not change."""
    figure = go.Figure(layout=plain_layout(ALONG_LAYERS, "share of samples settled"))
    for arm in group.arms:
        settling = [run.summary.settled_layer for run in arm.runs if run.summary.settled_layer]
        rows = [list(accumulate(layers.shares)) for layers in settling if layers.shares]
        if rows:
            by_layer = [list(shares) for shares in zip(*rows, strict=False)]
            figure.add_traces(line_with_band(arm, list(range(len(by_layer))), by_layer))
    figure.update_xaxes(layer_ticks(0, group.depth))
    figure.update_yaxes(tickformat=".0%", range=[0, 1.03])
    return figure


def exits(group: Group) -> go.Figure:
    """The metric against the mean number of layers used by early exits; the chosen threshold's mark is larger."""
    figure = go.Figure(layout=plain_layout("layers used, on average", plain_text(group.metric)))
    figure.update_layout(hovermode="closest")
    for arm in group.arms:
        exits = next((run.summary.exit for run in arm.runs if run.summary.exit), None)
        if exits is None:
            continue
        confidence = [(point.threshold, point) for point in exits.confidence]
        patience = [(float(point.patience or 0), point) for point in exits.patience]
        curves = (
            ("confidence", "threshold", "solid", confidence),
            ("patience", "patience", "dot", patience),
        )
        for kind, setting, dash, points in curves:
            points.sort(key=lambda pair: pair[1].layers)
            figure.add_scatter(
                x=[point.layers for _, point in points],
                y=[point.value for _, point in points],
                name=f"{plain_text(arm.label)}, {kind}",
                mode="lines+markers",
                line={"color": arm.style.light, "width": 2, "dash": dash},
                marker={"color": arm.style.light, "size": 6, "symbol": arm.style.symbol},
                customdata=[value for value, _ in points],
                meta=arm.style[:2],
                hovertemplate=f"{setting} %{{customdata:g}}: %{{y:.3f}} with %{{x:.2f}} layers<extra></extra>",
            )
        chosen = exits.chosen
        figure.add_scatter(
            customdata=["full depth" if chosen.threshold is None else f"threshold {chosen.threshold:g}", "full depth"],
            x=[chosen.layers, exits.depth],
            y=[chosen.value, exits.full],
            name=f"{plain_text(arm.label)}, chosen and full depth",
            mode="markers",
            marker={"color": arm.style.light, "size": 13, "symbol": arm.style.symbol},
            meta=arm.style[:2],
            hovertemplate="%{customdata}: %{y:.3f} with %{x:.2f} layers<extra></extra>",
        )
    return figure


def speculation(group: Group) -> go.Figure:
    """The share of tokens that the whole model accepts from a draft, against the number of layers that draft."""
    figure = go.Figure(layout=plain_layout("layers that draft", "share of tokens accepted"))
    for arm in group.arms:
        drafting = next((run.summary.speculation for run in arm.runs if run.summary.speculation), None)
        if drafting is None:
            continue
        figure.add_scatter(
            x=[point.layer for point in drafting.layers],
            y=[point.acceptance for point in drafting.layers],
            name=plain_text(arm.label),
            mode="lines+markers",
            line={"color": arm.style.light, "width": 2},
            marker={"color": arm.style.light, "size": 8, "symbol": arm.style.symbol},
            customdata=[
                "" if point.speed is None else f", {point.speed:.2f} of the plain speed" for point in drafting.layers
            ],
            meta=arm.style[:2],
            hovertemplate="%{x} layers: %{y:.2f} accepted%{customdata}<extra></extra>",
        )
    return figure


def error_by_noise(group: Group) -> go.Figure:
    """The last layer's error against the noise level γ, with the training noise marked."""
    better = "higher" if group.higher_is_better else "lower"
    figure = go.Figure(layout=plain_layout("noise level γ", f"{plain_text(group.metric)} ({better} is better)"))
    for arm in group.arms:
        table: dict[float, list[float]] = {}
        for run in arm.runs:
            for level, value in zip(run.summary.noise, run.summary.values, strict=True):
                table.setdefault(level, []).append(value)
        levels = sorted(table)
        figure.add_traces(line_with_band(arm, levels, [table[level] for level in levels]))
    label = {"text": "training noise", "textposition": "end", "textangle": 0}
    label |= {"xanchor": "left", "yanchor": "top"}
    figure.add_shape(vertical_line(group.train_noise, "dash", "train") | {"label": label, "layer": "above"})
    figure.add_shape(_cursor("noise", group.train_noise))
    return figure


def multipliers(run: RunView) -> go.Figure:
    """The multipliers λ over the training steps, one line per layer; the cap's is dashed."""
    figure = go.Figure(layout=plain_layout("training step", "multiplier λ"))
    depth = max(run.history, default=0)
    every = -(-depth // MOST_LEGEND_ENTRIES)
    for layer, (steps, values) in run.history.items():
        if not any(values) if layer == 0 else not run.summary.asks(layer):
            continue
        colours = layer_colours(layer, depth) if layer else (MUTED, "#a8a29a")
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
    """How far each layer's constraint is violated, with its interval where there is one.

    A cross marks a constraint that the run was judged to break.
    """
    figure = go.Figure(layout=plain_layout("layer", "violation (above 0: broken)"))
    figure.update_layout(hovermode="closest")
    shown = [(arm, run) for arm in group.arms for run in arm.runs if run.summary.violations]
    for place, (arm, run) in enumerate(shown):
        summary = run.summary
        offset = 0.5 * ((place + 0.5) / len(shown) - 0.5)
        layers = [layer for layer in range(1, summary.depth + 1) if summary.asks(layer)]
        values = [summary.violations[layer - 1] for layer in layers]
        known = not summary.few_groups and summary.violation_intervals
        pairs = [summary.violation_intervals[layer - 1] if known else (nan, nan) for layer in layers]
        ranges = ["" if isnan(low) else f" (from {low:.3g} to {high:.3g})" for low, high in pairs]
        broken = [layer in summary.violated for layer in layers]
        figure.add_scatter(
            x=[layer + offset for layer in layers],
            y=values,
            name=plain_text(arm.label),
            mode="markers",
            legendgroup=arm.label,
            showlegend=run is arm.runs[0],
            marker={
                "color": arm.style.light,
                "size": 11,
                # Hollow, so that an interval shorter than its marker is seen.
                "symbol": ["x-open" if bad else f"{arm.style.symbol}-open" for bad in broken],
            },
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - value for (_, high), value in zip(pairs, values, strict=True)],
                "arrayminus": [value - low for (low, _), value in zip(pairs, values, strict=True)],
                "color": arm.style.light,
                "thickness": 2,
                "width": 7,
            },
            customdata=list(zip(layers, ranges, strict=True)),
            meta=arm.style[:2],
            hovertemplate=f"%{{fullData.name}}, seed {summary.seed}, layer %{{customdata[0]}}<br>"
            "%{y:.3g}%{customdata[1]}<extra></extra>",
        )
    figure.update_xaxes(layer_ticks(1, group.depth))
    figure.update_yaxes(zeroline=True, zerolinecolor=MUTED, zerolinewidth=2)
    return figure


def _along_layers(group: Group, noise: float | None, what: str, traces: Callable[..., list[go.Scatter]]) -> go.Figure:
    level = group.train_noise if noise is None else noise
    frames = [go.Frame(name=str(key), data=traces(group, key)) for key in group.noise_levels]
    figure = go.Figure(traces(group, level), plain_layout(ALONG_LAYERS, what), frames)
    figure.update_xaxes(layer_ticks(0, group.depth))
    figure.add_shape(_cursor("layer", group.depth))
    return figure


def _metric_traces(group: Group, level: float) -> list[go.Scatter]:
    return [
        trace
        for arm in group.arms
        for trace in (
            *_layer_line(arm, _rows(arm, level, lambda summary: summary.layer_metrics)),
            *_probe_line(arm, _rows(arm, level, lambda summary: summary.probe.layer_metrics)),
        )
    ]


def _rows(arm: Arm, level: float, entry: Callable[[Summary], ByLevel]) -> list[list[float]]:
    """The seeds' values by layer at a noise level, of those that have it."""
    return [entry(run.summary)[level] for run in arm.runs if level in entry(run.summary)]


def _layer_line(arm: Arm, rows: Sequence[list[float]]) -> list[go.Scatter]:
    """The line through the means of the seeds' values, by layer."""
    by_layer = [list(values) for values in zip(*rows, strict=False)]
    return line_with_band(arm, list(range(len(by_layer))), by_layer)


def _probe_line(arm: Arm, rows: Sequence[list[float]]) -> list[go.Scatter]:
    """A dotted line through the means of linear probes; none where no probe was fitted."""
    values = [_mean(column) for column in zip(*rows, strict=False)]
    if not values:
        return []
    line = go.Scatter(
        x=list(range(len(values))),
        y=values,
        name=f"{plain_text(arm.label)}, linear probe",
        mode="lines+markers",
        line={"color": arm.style.light, "width": 2, "dash": "dot"},
        marker={"color": arm.style.light, "size": 6},
        meta=arm.style[:2],
        hovertemplate="%{y:.4g}",
    )
    return [line]


def _loss_traces(group: Group, level: float) -> list[go.Scatter]:
    traces: list[go.Scatter] = []
    on_top: list[go.Scatter] = []  # no marker hides a bar
    with_bars = [arm for arm in group.arms if arm.losses_to_reach(group.train_noise)]
    for arm in group.arms:
        traces += _layer_line(arm, _rows(arm, level, lambda summary: summary.layer_losses))
        traces += _probe_line(arm, _rows(arm, level, lambda summary: summary.probe.layer_losses))
        if arm in with_bars:  # at every level, without marks where none are known: the page pairs traces by place
            to_reach = arm.losses_to_reach(level)
            bars = go.Scatter(
                x=list(to_reach),
                y=list(to_reach.values()),
                name="had to reach",
                legendgroup="had to reach",
                legendrank=1001,  # after the arms
                showlegend=arm is with_bars[0],
                mode="markers",
                marker={"symbol": "line-ew", "size": 28, "line": {"width": 2, "color": arm.style.light}},
                meta=arm.style[:2],
                hovertemplate="%{y:.4g}",
            )
            on_top.append(bars)
    return traces + on_top


def line_with_band(arm: Arm, x: list[Any], values: Sequence[list[float]]) -> list[go.Scatter]:
    """A line through the seeds' means and, with several seeds, a band from their lowest to their highest."""
    light = arm.style.light
    line = go.Scatter(
        x=x,
        y=[_mean(column) for column in values],
        name=plain_text(arm.label),
        legendgroup=arm.label,
        mode="lines+markers",
        line={"color": light, "width": 2.5},
        marker={"color": light, "size": 8, "symbol": arm.style.symbol},
        meta=arm.style[:2],
        hovertemplate="%{y:.4g}",
    )
    if len(arm.runs) == 1:
        return [line]
    filled = band(x, [min(column) for column in values], [max(column) for column in values], arm.style)
    return [filled.update(legendgroup=arm.label), line]


def band(x: Sequence[Any], low: Sequence[float], high: Sequence[float], style: Style) -> go.Scatter:
    """The filled area between two lines, without a legend entry."""
    return go.Scatter(
        x=[*x, *reversed(x)],
        y=[*high, *reversed(low)],
        showlegend=False,
        mode="none",
        fill="toself",
        fillcolor=f"{style.light}2e",
        hoverinfo="skip",
        meta=style[:2],
    )


def plain_text(words: str) -> str:
    """Escape words for plotly, whose text has tags; it knows the entities of <, > and & alone."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def layer_colours(layer: int, depth: int) -> tuple[str, str]:
    """A layer's colours on light and dark ground, ordered as the layers are, from the plasma scale."""
    place = (layer - 1) / max(depth - 1, 1)
    light, dark = sample_colorscale("Plasma", [0.78 * place, 0.3 + 0.7 * place])
    return light, dark


def layer_ticks(first: int, last: int) -> dict[str, Any]:
    """The settings of an axis over layers ``first`` … ``last``: about eight ticks, with room at both ends."""
    return {"dtick": max(1, round(last / 8)), "tick0": first, "range": [first - 0.4, last + 0.4]}


def vertical_line(x: float, dash: str, role: str) -> dict[str, Any]:
    """A line from the bottom of the plot to its top at ``x``, under the curves; ``role`` is its name."""
    place = {"x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    return {"type": "line", "name": role, "line": {"color": MUTED, "width": 1.5, "dash": dash}, **place}


def _cursor(control: str, x: float) -> dict[str, Any]:
    """A line at the position of the page's slider of this name; invisible without one."""
    return vertical_line(x, "solid", f"cursor-{control}") | {"visible": False, "opacity": 0.4}


def plain_layout(x: str, y: str) -> go.Layout:
    """A layout with these axis titles and a transparent background."""
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
