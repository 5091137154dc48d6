"""The figures of a sweep's page, in the style of `descend.report.figures`."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import isfinite

import plotly.graph_objects as go

from descend.report.figures import GRID, MUTED, layer_colours, plain_layout, plain_text
from descend.report.runs import Style
from descend.report.tables import number
from descend.results.sweeps import Trial
from descend.sweep.report.searched import Method, Range

FAR = 4.0
"""An axis ends where a value is this many times as far from the best as the median is."""

PALE = (MUTED, "#a8a29a")  # trials without a value, in light and dark mode


def reach(values: Iterable[float], higher: bool) -> tuple[float, float] | None:
    """The range of an axis that leaves out outliers; None if there are none.

    Some settings make a trial diverge. On an axis that includes its value, all other trials would look alike.

    Args:
        values: The trials' values.
        higher: Whether a higher value is better.

    Returns:
        The lowest and the highest value on the axis.
    """
    known = sorted((value for value in values if isfinite(value)), reverse=higher)
    if not known:
        return None
    best, middle = known[0], known[len(known) // 2]
    end = best + FAR * (middle - best)
    if end == best or not any(value < end if higher else value > end for value in known):
        return None
    pad = (end - best) / 20
    low, high = sorted((best - pad, end))
    return low, high


def _cut(figure: go.Figure, values: Iterable[float], higher: bool) -> None:
    """Leave outliers off the y axis, and say how many there are."""
    values = list(values)
    axis = reach(values, higher)
    if axis is not None:
        low, high = axis
        beyond = sum(value < low if higher else value > high for value in values)
        figure.update_yaxes(range=axis)
        figure.add_annotation(
            **{"text": f"{beyond} lie beyond the axis", "showarrow": False, "xref": "paper", "yref": "paper"},
            **{"x": 1, "y": 0 if higher else 1, "xanchor": "right", "yanchor": "bottom" if higher else "top"},
        )


def history(methods: list[Method], metric: str, higher: bool, styles: Mapping[str, Style]) -> go.Figure:
    """The value of each finished trial, and the best value so far, for every method."""
    figure = go.Figure(layout=plain_layout("trials so far", f"mean {plain_text(metric)} over noise, validation"))
    figure.update_layout(hovermode="closest")
    for each in methods:
        style = styles[each.method]
        ended = [(place, trial.value, trial) for place, trial in enumerate(each.trials, 1) if trial.value is not None]
        looks = {"meta": style[:2], "legendgroup": each.method}
        figure.add_scatter(
            x=[place for place, _, _ in ended],
            y=[value for _, value, _ in ended],
            mode="markers",
            name=plain_text(each.name),
            marker={"color": style.light, "size": 8, "symbol": style.symbol},
            customdata=[f"trial {trial.number}: {value:.4g}<br>{_settings(trial)}" for _, value, trial in ended],
            hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
            **looks,
        )
        bests = list(accumulate((value for _, value, _ in ended), max if higher else min))
        figure.add_scatter(
            x=[place for place, _, _ in ended] + [len(each.trials)] * bool(ended),
            y=bests + bests[-1:],
            mode="lines",
            line={"color": style.light, "width": 2, "shape": "hv"},
            showlegend=False,
            hoverinfo="skip",
            **looks,
        )
    most = max((len(each.trials) for each in methods), default=1)
    _cut(figure, [trial.value for each in methods for trial in each.trials if trial.value is not None], higher)
    figure.update_xaxes(range=[0.5, most + 0.5], dtick=max(1, round(most / 8)), tick0=0)
    return figure


def importance(methods: list[Method], styles: Mapping[str, Style]) -> go.Figure:
    """The importance of every setting as bars, the largest on top."""
    figure = go.Figure(layout=plain_layout("importance", ""))
    figure.update_layout(hovermode="closest", barmode="group")
    for each in methods:
        if len(each.search.importance) > 1:
            shares = sorted(each.search.importance.items(), key=lambda pair: pair[1])
            figure.add_bar(
                x=[share for _, share in shares],
                y=[plain_text(name) for name, _ in shares],
                orientation="h",
                name=plain_text(each.name),
                marker={"color": styles[each.method].light},
                meta=styles[each.method][:2],
                hovertemplate="%{fullData.name}, %{y}: %{x:.0%}<extra></extra>",
            )
    figure.update_xaxes(tickformat=".0%", rangemode="tozero")
    return figure


def curves(searched: Method, metric: str, higher: bool, style: Style) -> go.Figure:
    """The value of each trial on a few validation samples, along the training steps."""
    figure = go.Figure(layout=plain_layout("training step", f"mean {plain_text(metric)}, few samples"))
    figure.update_layout(hovermode="closest", showlegend=False)
    for trial in searched.trials:
        ended, chosen = trial.state == "finished", trial.number == searched.best
        colours = style[:2] if ended else PALE
        last = ["circle"] * (len(trial.curve.steps) - 1) + ["x" if trial.state == "pruned" else "circle"]
        figure.add_scatter(
            x=trial.curve.steps,
            y=trial.curve.values,
            mode="lines+markers",
            line={"color": colours[0], "width": 4 if chosen else 1.5, "dash": "solid" if ended else "dot"},
            marker={"color": colours[0], "size": 6, "symbol": last},
            opacity=1 if chosen else 0.6,
            meta=colours,
            name=f"trial {trial.number}",
            hovertemplate=f"trial {trial.number}, step %{{x}}: %{{y:.4g}}<br>{_settings(trial)}<extra></extra>",
        )
    _cut(figure, [value for trial in searched.trials for value in trial.curve.values], higher)
    return figure


def parallel(searched: Method, metric: str, higher: bool) -> go.Figure:
    """Parallel coordinates: a line per trial through all settings, the most important first, to its value."""
    names = sorted(searched.ranges, key=lambda name: -searched.search.importance.get(name, 0))
    values = sorted({trial.value for trial in searched.trials if trial.value is not None}, reverse=higher)
    axes = {name: searched.ranges[name] for name in names}
    if values:
        axes[f"mean {metric}"] = Range(*(reach(values, higher) or (min(values), max(values))))
    figure = go.Figure(layout=plain_layout("", ""))
    for trial in sorted(searched.trials, key=lambda trial: trial.number == searched.best):
        at = [axes[name].place(trial.settings[name]) if name in trial.settings else None for name in names]
        # The colour scale of layers: dark is the best.
        colours = PALE if trial.value is None else layer_colours(1 + values.index(trial.value), len(values))
        # An outlier is drawn at the axis's end; its tooltip has the value.
        at += [min(1.0, max(0.0, axes[f"mean {metric}"].place(trial.value)))] if trial.value is not None else []
        chosen = trial.number == searched.best
        figure.add_scatter(
            x=list(range(len(at))),
            y=at,
            mode="lines",
            line={
                "color": colours[0],
                "width": 4 if chosen else 1.5,
                "dash": "solid" if trial.value is not None else "dot",
            },
            opacity=1 if chosen else 0.7,
            meta=colours,
            name=f"trial {trial.number}",
            hovertemplate=f"trial {trial.number}, {trial.state} {number(trial.value)}<br>"
            f"{_settings(trial)}<extra></extra>",
        )
    for place, kind in enumerate(axes.values()):
        line = {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "layer": "below"}
        figure.add_shape({**line, "line": {"color": GRID, "width": 1}})
        for words, height in kind.ticks.items():
            figure.add_annotation(x=place, y=height, text=plain_text(words), showarrow=False, xanchor="left", xshift=4)
    figure.update_layout(hovermode="closest", showlegend=False)
    figure.update_yaxes(visible=False, range=[-0.06, 1.06])
    figure.update_xaxes(
        tickvals=list(range(len(axes))),
        ticktext=[plain_text(name) for name in axes],
        range=[-0.15, len(axes) - 0.4],
        showgrid=False,
    )
    return figure


def _settings(trial: Trial) -> str:
    return "<br>".join(
        f"{plain_text(name)} {value:.4g}" if isinstance(value, float) else f"{plain_text(name)} {plain_text(value)}"
        for name, value in trial.settings.items()
    )
