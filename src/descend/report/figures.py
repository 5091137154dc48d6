"""The figures, each a plotly `Figure`, made from runs as `descend.report.runs` groups them.

Two entries are for the page alone: a trace's ``meta`` is its colour on a light and on a dark ground, and
``figure.frames`` are the noise levels, named by γ, that a slider steps through.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import isfinite, isnan, nan
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from descend.report.frames import Slider
from descend.report.runs import Arm, Group, RunView, Style, mean, mean_rows

INK, GRID, MUTED, MUTED_DARK = "#1d1c1a", "#e4e0d8", "#77726a", "#a09b92"
ALONG_LAYERS = "layer (0: before the first block)"
MOST_POINTS = 300
MOST_LEGEND_ENTRIES = 12

LOG_AXIS = {"type": "log", "tickformat": ".3~g"}
"""A logarithmic axis with plain numbers; ``page.js`` sets its steps by the range that is shown."""

LOG_FROM = 30.0
"""The opening's vertical axis is logarithmic where its largest value is this many times its smallest."""


class Plot(NamedTuple):
    """A figure on the page with its heading and words.

    With a slider over noise, or a note in its place, it also has a switch of the scale.
    """

    key: str
    figure: go.Figure
    heading: str
    words: str
    slider: Slider | None = None
    note: str = ""
    wide: bool = False


def opening(group: Group) -> go.Figure:
    """The measure along the layers at the training noise, with half depth and the noisy input marked."""
    measure, half, given = group.measure, group.depth // 2, group.input_value
    better = "higher" if measure.higher else "lower"
    figure = go.Figure(layout=plain_layout(ALONG_LAYERS, f"{plain_text(measure.name)} ({better} is better)"))
    shown: list[float] = []
    for arm in group.arms:
        if rows := arm.along(measure.entry, group.train_noise):
            figure.add_traces(_layer_line(arm, rows))
            shown += mean_rows(rows)
    if given is not None and measure.entry == "layer_metrics":
        look = {"color": MUTED, "width": 1.5, "dash": "dash"}
        line = {"x": list(range(group.depth + 1)), "y": [given] * (group.depth + 1), "line": look}
        text = {"name": "Noisy input", "hovertemplate": "%{y:.4g}", "meta": [MUTED, MUTED_DARK]}
        figure.add_scatter(mode="lines", **line, **text)
        shown.append(given)
    if half:
        figure.add_shape(_labelled(half, "half", f"layer {half}"))
    figure.update_xaxes(_layer_ticks(0, group.depth))
    known = [value for value in shown if isfinite(value)]
    low, high = min(known, default=-1.0), max(known, default=0.0)
    if low > 0 and high / low > LOG_FROM:
        figure.update_yaxes(LOG_AXIS)
    elif low >= 0 and not measure.higher:
        figure.update_yaxes(range=[0, 1.1 * high])
    elif low >= 0 and high <= 1:
        figure.update_yaxes(range=[0, 1.03])
    return figure


def layer_losses(group: Group) -> go.Figure:
    """The loss along the layers: one line per arm, and what each layer under a constraint had to reach.

    With several seeds the line is their mean and the band reaches from the lowest to the highest. Linear probes, where
    they were fitted, are dotted. The figure shows the training noise; its frames hold every level known.
    """
    with_bars = [arm for arm in group.arms if arm.losses_to_reach(group.train_noise)]

    def traces(level: float) -> list[go.Scatter]:
        # No marker hides a bar. A trace without points stays: the page pairs the traces of two levels by their order.
        bars = [_bars(arm, level, showlegend=arm is with_bars[0]) for arm in with_bars]
        return [*_layer_lines(group, "layer_losses", level), *bars]

    figure = _by_level(group, ALONG_LAYERS, "loss f<sub>l</sub>", traces)
    return figure.update_yaxes(LOG_AXIS)


def by_depth(group: Group) -> go.Figure:
    """The metric along the layers, with a ring at the first layer within 1, 2 and 5 percent of full depth."""
    layers = [list(map(float, range(group.depth + 1)))] * len(group.arms)

    def traces(level: float) -> list[go.Scatter]:
        return [*_layer_lines(group, "layer_metrics", level), *_rings(group, level, layers)]

    return _by_level(group, ALONG_LAYERS, plain_text(group.metric), traces)


def by_time(group: Group) -> go.Figure:
    """The metric against the measured milliseconds per sample up to each layer, with the rings of `by_depth`."""
    timed = replace(group, arms=[arm for arm in group.arms if arm.milliseconds])
    times = [arm.milliseconds for arm in timed.arms]
    hover = "%{fullData.name}, layer %{customdata}: %{y:.4g} after %{x:.3g} ms<extra></extra>"

    def traces(level: float) -> list[go.Scatter]:
        lines = []
        for arm, time in zip(timed.arms, times, strict=True):
            values = mean_rows(arm.along("layer_metrics", level))
            more = {"customdata": list(range(len(time))), "hovertemplate": hover}
            lines.append(_trace(arm, time, values, legendgroup=arm.label, **more))
        return [*lines, *_rings(timed, level, times)]

    return _by_level(group, "milliseconds per sample", plain_text(group.metric), traces)


def time_words(group: Group) -> str:
    """On which device and in which batches the times were measured."""
    timed = [run.summary.latency for run in group.runs if run.summary.latency]
    measured = dict.fromkeys(f"{each.device}, in batches of {each.batch_size}" for each in timed)
    words = f"Measured on {' and on '.join(measured)}."
    if len(measured) > 1:
        return f"{words} These times do not compare."
    if sum(bool(arm.milliseconds) for arm in group.arms) > 1:
        words += (
            " Runs of one network take the same time to a layer, however they were trained: where theirs differ, the "
            "machine was busier with one of them, so compare by depth."
        )
    return words


def ratios(group: Group) -> go.Figure:
    """How f_l / f_{l−1} spreads over samples at each layer: the median, half of the samples, and nine in ten."""
    figure = go.Figure(layout=plain_layout("layer", "f<sub>l</sub> / f<sub>l−1</sub> of a sample"))
    figure.update_layout(hovermode="closest")
    shown = [arm for arm in group.arms if arm.summary.ratios.by_layer]
    for place, arm in enumerate(shown):
        rows, middle = arm.summary.ratios.by_layer, len(arm.summary.ratios.quantiles) // 2
        layers = _beside(range(1, len(rows) + 1), place, len(shown))
        median = _trace(
            arm,
            layers,
            [row[middle] for row in rows],
            legendgroup=arm.label,
            mode="markers",
            line=None,
            marker={"color": arm.style.light, "size": 11, "symbol": f"{arm.style.symbol}-open"},
            customdata=[[layer, row[1], row[-2], row[0], row[-1]] for layer, row in enumerate(rows, start=1)],
            hovertemplate="%{fullData.name}, layer %{customdata[0]}: median %{y:.3g}<br>"
            "half from %{customdata[1]:.3g} to %{customdata[2]:.3g}, "
            "nine in ten from %{customdata[3]:.3g} to %{customdata[4]:.3g}<extra></extra>",
        )
        figure.add_trace(median)
        for low, high, width in ((0, -1, 1.5), (1, -2, 6)):  # after the hollow markers, so that none hides a short bar
            figure.add_scatter(
                x=[x for layer in layers for x in (layer, layer, None)],
                y=[y for row in rows for y in (row[low], row[high], None)],
                mode="lines",
                line={"color": arm.style.light, "width": width},
                legendgroup=arm.label,
                showlegend=False,
                hoverinfo="skip",
                meta=arm.style[:2],
            )
    level = {"x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "yref": "y"}
    figure.add_shape(_vertical_line(0, "dash", "level") | level)
    return figure.update_xaxes(_layer_ticks(1, group.depth))


def settled(group: Group) -> go.Figure:
    """The share of samples whose decision has settled by each layer: from there on it does not change."""
    figure = go.Figure(layout=plain_layout(ALONG_LAYERS, "share of samples settled"))
    for arm in group.arms:
        layers = [run.summary.settled_layer for run in arm.runs]
        if rows := [list(accumulate(each.shares)) for each in layers if each and each.shares]:
            figure.add_traces(_layer_line(arm, rows))
    figure.update_xaxes(_layer_ticks(0, group.depth))
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.03])


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
        name, light = plain_text(arm.label), arm.style.light
        curves = (("confidence", "threshold", "solid", confidence), ("patience", "patience", "dot", patience))
        for kind, setting, dash, points in curves:
            points.sort(key=lambda pair: pair[1].layers)
            line = _trace(
                arm,
                [point.layers for _, point in points],
                [point.value for _, point in points],
                name=f"{name}, {kind}",
                line={"color": light, "width": 2, "dash": dash},
                marker={"color": light, "size": 6, "symbol": arm.style.symbol},
                customdata=[value for value, _ in points],
                hovertemplate=f"{setting} %{{customdata:g}}: %{{y:.3f}} with %{{x:.2f}} layers<extra></extra>",
            )
            figure.add_trace(line)
        chosen = exits.chosen
        marks = _trace(
            arm,
            [chosen.layers, exits.depth],
            [chosen.value, exits.full],
            name=f"{name}, chosen and full depth",
            mode="markers",
            line=None,
            marker={"color": light, "size": 13, "symbol": arm.style.symbol},
            customdata=["full depth" if chosen.threshold is None else f"threshold {chosen.threshold:g}", "full depth"],
            hovertemplate="%{customdata}: %{y:.3f} with %{x:.2f} layers<extra></extra>",
        )
        figure.add_trace(marks)
    return figure


def speculation(group: Group) -> go.Figure:
    """The share of tokens that the whole model accepts from a draft, against the number of layers that draft."""
    figure = go.Figure(layout=plain_layout("layers that draft", "share of tokens accepted"))
    for arm in group.arms:
        drafting = next((run.summary.speculation for run in arm.runs if run.summary.speculation), None)
        if drafting is not None:
            speeds = [point.speed for point in drafting.layers]
            line = _trace(
                arm,
                [point.layer for point in drafting.layers],
                [point.acceptance for point in drafting.layers],
                line={"color": arm.style.light, "width": 2},
                customdata=["" if speed is None else f", {speed:.2f} of the plain speed" for speed in speeds],
                hovertemplate="%{x} layers: %{y:.2f} accepted%{customdata}<extra></extra>",
            )
            figure.add_trace(line)
    return figure


def error_by_noise(group: Group) -> go.Figure:
    """The last layer's error against the noise level γ, with the training noise marked."""
    better = "higher" if group.summary.higher_is_better else "lower"
    figure = go.Figure(layout=plain_layout("noise level γ", f"{plain_text(group.metric)} ({better} is better)"))
    for arm in group.arms:
        table: dict[float, list[float]] = {}
        for run in arm.runs:
            for level, value in zip(run.summary.noise, run.summary.values, strict=True):
                table.setdefault(level, []).append(value)
        levels = sorted(table)
        figure.add_traces(_line_with_band(arm, levels, [table[level] for level in levels]))
    figure.add_shape(_labelled(group.train_noise, "train", "training noise") | {"layer": "above"})
    return figure.add_shape(_cursor("noise", group.train_noise))


def multipliers(run: RunView) -> go.Figure:
    """The multipliers λ over the training steps, one line per layer; the cap's is dashed."""
    figure = go.Figure(layout=plain_layout("training step", "multiplier λ"))
    depth = max(run.history, default=0)
    every = -(-depth // MOST_LEGEND_ENTRIES)
    for layer, values in run.history.items():
        if not any(values.values()) if layer == 0 else not run.summary.asks(layer):
            continue
        steps, stride = list(values), -(-len(values) // MOST_POINTS)
        shown = [*steps[:-1:stride], steps[-1]]
        colours = layer_colours(layer, depth) if layer else (MUTED, "#a8a29a")
        figure.add_scatter(
            x=shown,
            y=[values[step] for step in shown],
            name=str(layer) if layer else "cap",
            mode="lines",
            line={"color": colours[0], "width": 2, "dash": "solid" if layer else "dot"},
            meta=colours,
            showlegend=layer % every == 0,
            hovertemplate=f"{f'layer {layer}' if layer else 'cap'}: %{{y:.3g}}<extra></extra>",
        )
    return figure.update_layout(legend_title={"text": "layer ", "font": {"size": 13}})


def violations(group: Group) -> go.Figure:
    """How far each layer's constraint is violated, with its interval where there is one.

    A cross marks a constraint that is broken by the run's verdict.
    """
    figure = go.Figure(layout=plain_layout("layer", "violation (above 0: broken)"))
    figure.update_layout(hovermode="closest")
    shown = [
        (arm, run.summary) for arm in group.arms for run in arm.runs if run.summary.asked and run.summary.violations
    ]
    for place, (arm, summary) in enumerate(shown):
        layers = [layer for layer in range(1, summary.depth + 1) if summary.asks(layer)]
        values = [summary.violations[layer - 1] for layer in layers]
        known = not summary.few_groups and summary.violation_intervals
        pairs = [summary.violation_intervals[layer - 1] if known else (nan, nan) for layer in layers]
        ranges = ["" if isnan(low) else f" (from {low:.3g} to {high:.3g})" for low, high in pairs]
        # Hollow, so that an interval shorter than its marker is seen.
        symbols = ["x-open" if layer in summary.violated else f"{arm.style.symbol}-open" for layer in layers]
        marks = _trace(
            arm,
            _beside(layers, place, len(shown)),
            values,
            mode="markers",
            line=None,
            legendgroup=arm.label,
            showlegend=summary is arm.summary,
            marker={"color": arm.style.light, "size": 11, "symbol": symbols},
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
            hovertemplate=f"%{{fullData.name}}, seed {summary.seed}, layer %{{customdata[0]}}<br>"
            "%{y:.3g}%{customdata[1]}<extra></extra>",
        )
        figure.add_trace(marks)
    figure.update_xaxes(_layer_ticks(1, group.depth))
    return figure.update_yaxes(zeroline=True, zerolinecolor=MUTED, zerolinewidth=2)


def _by_level(group: Group, x: str, y: str, traces: Callable[[float], list[go.Scatter]]) -> go.Figure:
    """A figure over layers or times, at the training noise and with a frame for every noise level."""
    frames = [go.Frame(name=str(level), data=traces(level)) for level in group.noise_levels]
    figure = go.Figure(traces(group.train_noise), plain_layout(x, y), frames)
    if x == ALONG_LAYERS:
        figure.update_xaxes(_layer_ticks(0, group.depth))
        figure.add_shape(_cursor("layer", group.depth))
    else:
        figure.update_xaxes(rangemode="tozero")
        figure.update_layout(hovermode="closest")
    return figure if group.summary.higher_is_better else figure.update_yaxes(LOG_AXIS)


def _layer_lines(group: Group, entry: str, level: float) -> list[go.Scatter]:
    """Each arm's line along the layers, and dotted that of its linear probes where they were fitted."""
    lines: list[go.Scatter] = []
    for arm in group.arms:
        lines += _layer_line(arm, arm.along(entry, level))
        if probed := mean_rows(arm.along(f"probe.{entry}", level)):
            look = {"line": {"color": arm.style.light, "width": 2, "dash": "dot"}}
            look |= {"marker": {"color": arm.style.light, "size": 6}}
            name = f"{plain_text(arm.label)}, linear probe"
            lines.append(_trace(arm, list(range(len(probed))), probed, name=name, **look))
    return lines


def _layer_line(arm: Arm, rows: Sequence[Sequence[float]]) -> list[go.Scatter]:
    """The line through the means of the seeds' values by layer, also without points: the page pairs traces by place."""
    columns = list(zip(*rows, strict=False))
    return _line_with_band(arm, list(range(len(columns))), columns)


def _line_with_band(arm: Arm, x: list[Any], columns: Sequence[Sequence[float]]) -> list[go.Scatter]:
    """A line through the seeds' means and, with several seeds, a band from their lowest to their highest."""
    line = _trace(arm, x, list(map(mean, columns)), legendgroup=arm.label)
    if len(arm.runs) == 1:
        return [line]
    return [band(x, list(map(min, columns)), list(map(max, columns)), arm.style).update(legendgroup=arm.label), line]


def _bars(arm: Arm, level: float, *, showlegend: bool) -> go.Scatter:
    """A short bar at each loss that a layer under a constraint had to reach."""
    to_reach = arm.losses_to_reach(level)
    return _trace(
        arm,
        list(to_reach),
        list(to_reach.values()),
        name="had to reach",
        legendgroup="had to reach",
        legendrank=1001,  # after the arms
        showlegend=showlegend,
        mode="markers",
        line=None,
        marker={"symbol": "line-ew", "size": 28, "line": {"width": 2, "color": arm.style.light}},
    )


def _rings(group: Group, level: float, places: Sequence[Sequence[float]]) -> list[go.Scatter]:
    """A trace for each arm, even if it is empty: the page pairs the traces of two levels by their order.

    Args:
        group: The arms.
        level: The noise level γ.
        places: Each arm's places on the horizontal axis, L+1 numbers.
    """
    unit = "points" if group.summary.higher_is_better else "%"
    rings = []
    curves = [arm.anytime(level) for arm in group.arms]
    highest = max((curve.area for curve in curves if curve and isfinite(curve.area)), default=0.0)
    for arm, curve, place in zip(group.arms, curves, places, strict=True):
        near: dict[int, list[str]] = {}  # layer → percents
        for percent, layer in (curve.first_within if curve else {}).items():
            if layer is not None:
                near.setdefault(layer, []).append(str(percent))
        ring = _trace(
            arm,
            [place[layer] for layer in near],
            [curve.metric[layer] for layer in near] if curve else [],
            name=None,
            text=[", ".join(percents) for percents in near.values()],
            textposition="top center" if curve and curve.area == highest else "bottom center",
            textfont={"color": arm.style.light},
            legendgroup=arm.label,
            showlegend=False,
            mode="markers+text",
            line=None,
            marker={"color": arm.style.light, "size": 17, "symbol": "circle-open"},
            cliponaxis=False,
            hovertemplate=f"first layer within %{{text}} {unit} of full depth<extra></extra>",
        )
        rings.append(ring)
    return rings


def _trace(arm: Arm, x: Sequence[Any], y: Sequence[Any], **more: Any) -> go.Scatter:
    """A line with marks in an arm's colours; ``more`` replaces or adds settings of plotly's `Scatter`."""
    light = arm.style.light
    look: dict[str, Any] = {
        "name": plain_text(arm.label),
        "mode": "lines+markers",
        "line": {"color": light, "width": 2.5},
        "marker": {"color": light, "size": 8, "symbol": arm.style.symbol},
        "meta": arm.style[:2],
        "hovertemplate": "%{y:.4g}",
    }
    return go.Scatter(x=x, y=y, **(look | more))


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


def layer_colours(layer: int, depth: int) -> tuple[str, str]:
    """A layer's colours on light and dark ground, ordered as the layers are, from the plasma scale."""
    place = (layer - 1) / max(depth - 1, 1)
    light, dark = sample_colorscale("Plasma", [0.78 * place, 0.3 + 0.7 * place])
    return light, dark


def _beside(layers: Sequence[int], place: int, count: int) -> list[float]:
    """The layers, moved so that marks of several runs stand side by side."""
    return [layer + 0.5 * ((place + 0.5) / count - 0.5) for layer in layers]


def _layer_ticks(first: int, last: int) -> dict[str, Any]:
    """The settings of an axis over layers ``first`` … ``last``: about eight ticks, with room at both ends."""
    return {"dtick": max(1, round(last / 8)), "tick0": first, "range": [first - 0.4, last + 0.4]}


def _vertical_line(x: float, dash: str, role: str) -> dict[str, Any]:
    """A line from the bottom of the plot to its top at ``x``, under the curves; ``role`` is its name."""
    place = {"x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    return {"type": "line", "name": role, "line": {"color": MUTED, "width": 1.5, "dash": dash}, **place}


def _labelled(x: float, role: str, text: str) -> dict[str, Any]:
    """A dashed vertical line with words at its top."""
    label = {"text": text, "textposition": "end", "textangle": 0, "xanchor": "left", "yanchor": "top"}
    return _vertical_line(x, "dash", role) | {"label": label}


def _cursor(control: str, x: float) -> dict[str, Any]:
    """A line at the position of the page's slider of this name; invisible without one."""
    return _vertical_line(x, "solid", f"cursor-{control}") | {"visible": False, "opacity": 0.4}


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
