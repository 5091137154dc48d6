"""A model beside its noisy input: what doing nothing gives, and where the model is worse than that."""

from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go

from descend.report import figures
from descend.report.runs import Group, RunView
from descend.report.sentence import Curve, Scale, short
from descend.report.tables import number


def input_words(curves: Sequence[Curve], given: float, scale: Scale) -> str:
    """What the noisy input itself has, and which layers are worse than leaving it as it is.

    Args:
        curves: The curves that the page opens with.
        given: The input's own value.
        scale: What the values are.
    """
    words = f"The noisy input itself has {scale.name if scale.name.isupper() else scale.name.lower()} {short(given)}"
    worse = []
    for curve in curves:
        layers = [layer for layer, value in enumerate(curve.values) if layer and not scale.reaches(value, given)]
        if layers:
            name = curve.name if len(curves) > 1 else "this model"
            worse.append(f"{name} at {_listed(layers, len(curve.values) - 1)}")
    return f"{words}; worse than doing nothing: {' and '.join(worse)}." if worse else f"{words}."


def input_line(given: float, depth: int) -> go.Scatter:
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


def harmful(group: Group) -> list[RunView]:
    """The runs whose last layer is worse than the noisy input itself."""
    return [run for run in group.runs if run.summary.depth in run.summary.worse_than_input]


def headline_end(groups: Sequence[Group]) -> str:
    """The end of a verdict's headline where a run is worse than doing nothing."""
    total, worse = sum(len(group.runs) for group in groups), sum(len(harmful(group)) for group in groups)
    scope = f" in {worse} of {total} runs" if total > 1 else ""
    return f"; the output{scope} is worse than the noisy input" if worse else ""


def warnings(group: Group) -> list[str]:
    """What is said of runs that are worse than doing nothing, a sentence for each arm."""
    worse, lines = harmful(group), []
    for arm in group.arms:
        values = [run.summary.layer_metrics[group.train_noise][-1] for run in arm.runs if run in worse]
        if values and group.input_value is not None:
            who = f"{arm.label}: at" if len(group.arms) > 1 else "At"
            lines.append(
                f"{who} the training noise the output has {group.metric} {number(fmean(values))}, and the noisy input "
                f"itself {number(group.input_value)}: don’t use this model as it is."
            )
    return lines


def _listed(layers: Sequence[int], depth: int) -> str:
    first, last = layers[0], layers[-1]
    if len(layers) == depth > 1:
        return "every layer"
    if len(layers) > 2 and len(layers) == last - first + 1:
        return f"layers {first} to {last}"
    return f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"
