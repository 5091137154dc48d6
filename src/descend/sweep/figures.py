"""The figures of a sweep's page, in the style of `descend.report.figures`."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any, NamedTuple

import plotly.graph_objects as go

from descend.report.figures import GRID, MUTED, layer_colours, plain_layout, plain_text
from descend.report.runs import Style
from descend.report.tables import number
from descend.results.sweeps import MethodSearch, Searched, Trial

FAR = 4.0
"""An axis ends where a value is this many times as far from the best as the median is."""

PALE = (MUTED, "#a8a29a")  # trials without a value, in light and dark mode


class Method(NamedTuple):
    """The search of one method, with its key in ``sweep.json``, and its name and style on the page."""

    key: str
    name: str
    style: Style
    search: MethodSearch

    @property
    def best(self) -> int | None:
        """The number of the chosen trial."""
        return None if self.search.best is None else self.search.best.number


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


def history(methods: Sequence[Method], metric: str, higher: bool) -> go.Figure:
    """The value of each finished trial, and the best value so far, for every method."""
    figure = _figure("trials so far", f"mean {plain_text(metric)} over noise, validation")
    for method in methods:
        style, trials = method.style, method.search.trials
        ended = [(place, trial.value, trial) for place, trial in enumerate(trials, 1) if trial.value is not None]
        looks = {"meta": style[:2], "legendgroup": method.key}
        figure.add_scatter(
            x=[place for place, _, _ in ended],
            y=[value for _, value, _ in ended],
            mode="markers",
            name=plain_text(method.name),
            marker={"color": style.light, "size": 8, "symbol": style.symbol},
            customdata=[f"trial {trial.number}: {value:.4g}<br>{_settings(trial)}" for _, value, trial in ended],
            hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
            **looks,
        )
        bests = list(accumulate((value for _, value, _ in ended), max if higher else min))
        figure.add_scatter(
            x=[place for place, _, _ in ended] + [len(trials)] * bool(ended),
            y=bests + bests[-1:],
            mode="lines",
            line={"color": style.light, "width": 2, "shape": "hv"},
            showlegend=False,
            hoverinfo="skip",
            **looks,
        )
    most = max((len(method.search.trials) for method in methods), default=1)
    _cut(figure, higher)
    return figure.update_xaxes(range=[0.5, most + 0.5], dtick=max(1, round(most / 8)), tick0=0)


def importance(methods: Sequence[Method]) -> go.Figure:
    """The importance of every setting as bars, the largest on top."""
    figure = _figure("importance", "").update_layout(barmode="group")
    for method in methods:
        shares = sorted(method.search.importance.items(), key=lambda pair: pair[1])
        if len(shares) > 1:
            figure.add_bar(
                x=[share for _, share in shares],
                y=[plain_text(name) for name, _ in shares],
                orientation="h",
                name=plain_text(method.name),
                marker={"color": method.style.light},
                meta=method.style[:2],
                hovertemplate="%{fullData.name}, %{y}: %{x:.0%}<extra></extra>",
            )
    return figure.update_xaxes(tickformat=".0%", rangemode="tozero")


def curves(method: Method, metric: str, higher: bool) -> go.Figure:
    """The value of each trial on a few validation samples, along the training steps."""
    figure = _figure("training step", f"mean {plain_text(metric)}, few samples").update_layout(showlegend=False)
    for trial in method.search.trials:
        colours = method.style[:2] if trial.state == "finished" else PALE
        last = ["circle"] * (len(trial.curve.steps) - 1) + ["x" if trial.state == "pruned" else "circle"]
        figure.add_scatter(
            x=trial.curve.steps,
            y=trial.curve.values,
            mode="lines+markers",
            marker={"color": colours[0], "size": 6, "symbol": last},
            hovertemplate=f"trial {trial.number}, step %{{x}}: %{{y:.4g}}<br>{_settings(trial)}<extra></extra>",
            **_looks(method, trial, colours, solid=trial.state == "finished", pale=0.6),
        )
    _cut(figure, higher)
    return figure


def parallel(method: Method, metric: str, higher: bool) -> go.Figure:
    """Parallel coordinates: a line per trial through all settings, the most important first, to its value."""
    searched, trials = method.search.searched, method.search.trials
    names = sorted(searched, key=lambda name: -method.search.importance.get(name, 0))
    values = sorted({trial.value for trial in trials if trial.value is not None}, reverse=higher)
    axes = {name: searched[name] for name in names}
    if values:
        low, high = reach(values, higher) or (min(values), max(values))
        axes[f"mean {metric}"] = Searched(low=low, high=high)
    figure = _figure("", "").update_layout(showlegend=False)
    for trial in sorted(trials, key=lambda trial: trial.number == method.best):
        at = [axes[name].place(trial.settings[name]) if name in trial.settings else None for name in names]
        colours = PALE
        if trial.value is not None:
            # An outlier is drawn at the axis's end; its tooltip has the value.
            at.append(min(1.0, max(0.0, axes[f"mean {metric}"].place(trial.value))))
            # The colour scale of layers: dark is the best.
            colours = layer_colours(1 + values.index(trial.value), len(values))
        figure.add_scatter(
            x=list(range(len(at))),
            y=at,
            mode="lines",
            hovertemplate=f"trial {trial.number}, {trial.state} {number(trial.value)}<br>"
            f"{_settings(trial)}<extra></extra>",
            **_looks(method, trial, colours, solid=trial.value is not None, pale=0.7),
        )
    for place, kind in enumerate(axes.values()):
        line = {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "layer": "below"}
        figure.add_shape({**line, "line": {"color": GRID, "width": 1}})
        for words, height in kind.ticks.items():
            figure.add_annotation(x=place, y=height, text=plain_text(words), showarrow=False, xanchor="left", xshift=4)
    figure.update_yaxes(visible=False, range=[-0.06, 1.06])
    return figure.update_xaxes(
        tickvals=list(range(len(axes))),
        ticktext=[plain_text(name) for name in axes],
        range=[-0.15, len(axes) - 0.4],
        showgrid=False,
    )


def _figure(x: str, y: str) -> go.Figure:
    return go.Figure(layout=plain_layout(x, y)).update_layout(hovermode="closest")


def _looks(method: Method, trial: Trial, colours: Sequence[str], *, solid: bool, pale: float) -> dict[str, Any]:
    """How a trial's line looks: the chosen one is thick, one without a value dotted."""
    chosen = trial.number == method.best
    line = {"color": colours[0], "width": 4 if chosen else 1.5, "dash": "solid" if solid else "dot"}
    return {"line": line, "opacity": 1 if chosen else pale, "meta": colours, "name": f"trial {trial.number}"}


def _settings(trial: Trial) -> str:
    return "<br>".join(
        f"{plain_text(name)} {value:.4g}" if isinstance(value, float) else f"{plain_text(name)} {plain_text(value)}"
        for name, value in trial.settings.items()
    )


def _cut(figure: go.Figure, higher: bool) -> None:
    """Leave outliers off the y axis, and say how many there are."""
    values = [value for trace in figure.data if "markers" in trace.mode for value in trace.y]
    axis = reach(values, higher)
    if axis is not None:
        beyond = sum(value < axis[0] if higher else value > axis[1] for value in values)
        figure.update_yaxes(range=axis)
        figure.add_annotation(
            **{"text": f"{beyond} lie beyond the axis", "showarrow": False, "xref": "paper", "yref": "paper"},
            **{"x": 1, "y": 0 if higher else 1, "xanchor": "right", "yanchor": "bottom" if higher else "top"},
        )
