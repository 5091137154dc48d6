"""The figures on the method's own settings (5, 14, 15), on infeasible runs (11) and on single samples (12)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from reproduction.report.cells import Place, Run, arm_name, data_name, metric_name
from reproduction.report.chart import Chart, Line, Panel, Series, Style, arm_style, shades
from reproduction.report.estimates import robust
from reproduction.report.evidence.method import three_levels
from reproduction.report.parts import BANDS, SEEDS, banded, layer_series, noise_series
from reproduction.report.results import FORMS, Results
from reproduction.report.selections import Ablation, alphas, dual_lrs, made_infeasible, with_ratios

RED = Style("#9c1633", "#ff8095", "triangle-down")

Selected = TypeVar("Selected")

Histogram = tuple[list[float], list[float]]
"""Edges of the bins, and the share of samples in each."""


def figure_5(results: Results) -> Chart:
    """What a larger α does, in and out of distribution."""
    name, title, varied = "figure-5", "The step α: in and out of distribution", _of_form(results, alphas)
    if varied is None:
        return Chart(name, title, BANDS, missing="Not run: constrained cells at two values of α or more.")
    form, ablation = varied
    levels = {"in distribution": ablation.first.gamma, "out of distribution": three_levels(ablation)[-1]}
    return Chart(name, title, _words(form), [_against(ablation, "α", levels)], 1)


def figure_14(results: Results) -> Chart:
    """What a larger α does at three noise levels."""
    return _three_levels("figure-14", "The step α at three noise levels", "α", _of_form(results, alphas))


def figure_15(results: Results) -> Chart:
    """What the dual learning rate does at three noise levels."""
    varied = _of_form(results, dual_lrs)
    return _three_levels("figure-15", "The dual learning rate η at three noise levels", "η", varied)


def _of_form(results: Results, select: Callable[[Results], Selected | None]) -> tuple[str, Selected] | None:
    """The first form of the constraints of which a selection has runs, and what it selects."""
    chosen = ((form, select(view)) for form, view in results.forms.items())
    return next(((form, selected) for form, selected in chosen if selected is not None), None)


def _words(form: str) -> str:
    return f"Constraints: {arm_name(form)}. {BANDS}"


def _three_levels(name: str, title: str, axis: str, varied: tuple[str, Ablation] | None) -> Chart:
    if varied is None:
        return Chart(name, title, BANDS, missing=f"Not run: constrained cells at two values of {axis} or more.")
    form, ablation = varied
    panel = _against(ablation, axis, {f"test γ = {level:g}": level for level in three_levels(ablation)})
    panel = replace(panel, log_x=axis == "η" and min(ablation.family) > 0)
    return Chart(name, title, _words(form), [panel], 1)


def _against(ablation: Ablation, axis: str, levels: Mapping[str, float]) -> Panel:
    """The metric against a setting, a line for each noise level."""
    first, family = ablation.first, ablation.family
    series = []
    for (name, level), style in zip(levels.items(), shades(len(levels)), strict=True):
        ends = [robust(tuple(runs)).at(level).interval for runs in family.values()]
        series.append(banded(name, style, list(family), ends))
    title = f"{first.model}-{first.depth}, {data_name(first.data)}, γ = {first.gamma:g}"
    return Panel(title, axis, metric_name(first), series)


def _usual_arms(results: Results, place: Place) -> dict[str, list[Run]]:
    """ERM and both forms of the constraints in one setting, without ablations."""
    setting = next((setting for setting in results.settings if setting.place == place), None)
    arms = {arm: setting.runs(arm) for arm in ("erm", *FORMS)} if setting else {}
    return {arm: runs for arm, runs in arms.items() if runs}


def figure_11(results: Results) -> Chart:
    """Constrained runs that were made infeasible, beside those that were not."""
    infeasible = _of_form(results, made_infeasible)
    if infeasible is None:
        return Chart("figure-11", "An infeasible run", BANDS, missing="Not run: an infeasible constrained cell.")
    form, (runs, setting) = infeasible
    name, arms = f"{arm_name(form)}, infeasible", _usual_arms(results, setting.place)
    metric = [noise_series(arm_name(arm), arm, rivals) for arm, rivals in arms.items()]
    metric.append(replace(noise_series(name, "", runs), style=RED))
    rows = {arm: [row for run in rivals if (row := run.losses(setting.gamma))] for arm, rivals in arms.items()}
    losses = [layer_series(arm_name(arm), arm, found_rows) for arm, found_rows in rows.items() if found_rows]
    broken = [row for run in runs if (row := run.losses(setting.gamma))]
    losses += [replace(layer_series(name, "", broken), style=RED), *_bounds(runs[0], broken)]
    panels = [
        Panel("Loss, with what the constraints ask", "layer (0 is the input)", "loss", losses, log_y=True),
        Panel(setting.metric, "test noise γ", setting.metric, metric, lines=[Line(setting.gamma, "trained")]),
    ]
    return Chart("figure-11", f"An infeasible run: {setting.words}", f"{SEEDS} {BANDS}", panels, 2)


def _bounds(run: Run, rows: Sequence[Sequence[float]]) -> list[Series]:
    mean = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    if not run.rates:
        return []
    layers, bounds = zip(*((layer, rate * mean[layer - 1]) for layer, rate in run.rates.items()), strict=True)
    return [Series("asked of the infeasible run", arm_style(""), layers, bounds, kind="marks")]


def figure_12(results: Results) -> Chart:
    """How f_l / f_{l−1} spreads over single samples, with and without relaxation."""
    title = "Single samples: how a layer changes the loss"
    words = "All layers and seeds together, at the training noise. Left of 1 a layer lowers the loss."
    cells = _of_form(results, with_ratios)
    if cells is None:
        return Chart("figure-12", title, words, missing="Not run: constrained cells with a histogram of ratios.")
    form, (setting, bare) = cells
    histograms = {arm: _pooled(runs) for arm, runs in _usual_arms(results, setting.place).items()}
    drawn = [(arm_name(arm), arm, histogram, False) for arm, histogram in histograms.items() if histogram]
    if without := _pooled(bare):
        drawn.append((f"{arm_name(form)}, no relaxation", form, without, True))
    every = [histogram for _, _, histogram, _ in drawn]
    series = [
        Series(name, arm_style(arm), *_visible(histogram, every), kind="steps", dashed=dashed)
        for name, arm, histogram, dashed in drawn
    ]
    rate = next((run.rate for run in setting.constrained if run.rate), None)
    lines = [Line(1, "no change")] + ([Line(rate, "1 − α")] if rate is not None else [])
    panel = Panel(setting.words, "f_l / f_(l−1) of a sample", "share of samples", series, log_x=True, lines=lines)
    return Chart("figure-12", title, words, [panel], 1, "" if bare else "Not run: constrained without relaxation.")


def _visible(histogram: Histogram, every: Iterable[Histogram]) -> Histogram:
    """Without the outer bins that are next to empty in all histograms of the same edges."""
    edges, heights = histogram
    full = {place for others, row in every if others == edges for place, height in enumerate(row) if height >= 1e-3}
    first, last = min(full, default=0), max(full, default=len(heights) - 1)
    return edges[first : last + 2], heights[first : last + 1]


def _pooled(runs: Sequence[Run]) -> Histogram | None:
    """The histogram over layers and seeds; the outer bins are open."""
    same = [run for run in runs if run.shares and run.edges == runs[0].edges]
    if not same:
        return None
    counts = [sum(column) for column in zip(*(row for run in same for row in run.shares), strict=True)]
    total = sum(counts)
    return (list(same[0].edges), [count / total for count in counts]) if total else None
