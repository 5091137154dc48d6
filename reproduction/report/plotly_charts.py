"""A chart on the page: each panel a plotly figure of its own, so that panels flow as the page is wide."""

import plotly.graph_objects as go

from descend.report import LOG_AXIS, band, plain_layout, plain_text
from reproduction.report.chart import Line, Panel, Series


def plot_panel(panel: Panel) -> go.Figure:
    """A panel with its values to hover over; the page has the legend."""
    figure = go.Figure(layout=plain_layout(plain_text(panel.x_title), plain_text(panel.y_title)))
    figure.update_layout(showlegend=False, hovermode="closest", margin={"t": 8})
    for series in panel.series:
        figure.add_traces(_steps(series) if series.kind == "steps" else _traces(series, bands=not panel.crowded))
    for place, line in enumerate(panel.lines):
        figure.add_shape(_shape(line, place, panel.free_side(line)))
    if panel.log_x:
        figure.update_xaxes(LOG_AXIS)
    if panel.log_y:
        figure.update_yaxes(LOG_AXIS)
    return figure


def _traces(series: Series, *, bands: bool) -> list[go.Scatter]:
    rows = series.finite()
    if not rows:
        return []
    x, y, low, high = (list(column) for column in zip(*rows, strict=True))
    name, light = plain_text(series.name), series.style.light
    symbol = f"{series.style.symbol}-open" if series.dashed else series.style.symbol
    main = go.Scatter(
        x=x,
        y=y,
        name=name,
        mode="markers" if series.kind == "marks" else "lines+markers",
        line={"color": light, "width": 2, "dash": "dash" if series.dashed else "solid"},
        marker={"color": light, "size": 7, "symbol": symbol},
        meta=series.style[:2],
        hovertemplate="%{fullData.name}<br>%{y:.4g} at %{x:g}<extra></extra>",
    )
    if not series.low:
        return [main]
    main.customdata = list(zip(low, high, strict=True))
    main.hovertemplate = (
        "%{fullData.name}<br>%{y:.4g} (from %{customdata[0]:.4g} to %{customdata[1]:.4g}) at %{x:g}<extra></extra>"
    )
    if series.kind == "marks":
        main.error_y = {
            **{"type": "data", "symmetric": False, "color": light, "thickness": 1.5, "width": 3},
            "array": [max(top - value, 0) for value, top in zip(y, high, strict=True)],
            "arrayminus": [max(value - bottom, 0) for value, bottom in zip(y, low, strict=True)],
        }
        return [main]
    if not bands:
        return [main]
    return [band(x, low, high, series.style), main]


def _steps(series: Series) -> list[go.Scatter]:
    name, light = plain_text(series.name), series.style.light
    steps = go.Scatter(
        x=list(series.x),
        y=[*series.y, series.y[-1]] if series.y else [],
        name=name,
        mode="lines",
        line={"color": light, "width": 2, "shape": "hv", "dash": "dash" if series.dashed else "solid"},
        meta=series.style[:2],
        hovertemplate="%{fullData.name}<br>%{y:.3g} from %{x:.3g} on<extra></extra>",
    )
    return [steps]


def _shape(line: Line, place: int, side: str) -> dict[str, object]:
    look = {"width": 1.5, "dash": "dot", "color": "#77726a"}
    label: dict[str, object] = {"text": plain_text(line.words), "textangle": 0, "font": {"size": 12}}
    if line.axis == "x":
        # Lines that are close have their words at other ends.
        low = place % 2 == 1
        label |= {"textposition": "start" if low else "end", "xanchor": "left", "yanchor": "bottom" if low else "top"}
        return {
            "type": "line",
            "line": look,
            "label": label,
            "x0": line.at,
            "x1": line.at,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
        }
    label |= {"textposition": "start" if side == "left" else "end", "xanchor": side, "yanchor": "bottom"}
    return {
        "type": "line",
        "line": look,
        "label": label,
        "y0": line.at,
        "y1": line.at,
        "x0": 0,
        "x1": 1,
        "xref": "paper",
    }
