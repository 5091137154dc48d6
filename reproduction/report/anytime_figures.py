"""A figure and a table of our own: quality at every depth and its robustness, of all methods."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean

from descend.results import WITHIN
from reproduction.grid import ANYTIME_RECIPES, COMPARED, FURTHER, RECIPES
from reproduction.report.cells import Run, arm_name, data_name
from reproduction.report.chart import Chart, Panel
from reproduction.report.layers_needed import curves, half, layers_within, milliseconds
from reproduction.report.parts import BANDS, SEEDS, Runs, layer_series, noise_panel
from reproduction.report.results import Results, Setting
from reproduction.report.tables import Table

MODELS = {name: recipe for of in RECIPES.values() for recipe, name in of.items() if recipe in ANYTIME_RECIPES}
"""Model → its recipe."""


def anytime(results: Results) -> Chart:
    """The metric along the layers, the last layer's under noise, and the mean over depth under noise."""
    panels = []
    for setting in _settings(results):
        last = noise_panel(_arms(setting), f"{setting.model}-{setting.depth}, last layer", setting.gamma)
        panels += [_by_layer(setting), last, _by_noise(setting)]
    words = (
        "Left: every layer at the training noise. Middle: the last layer under noise. Right: the mean over depth under "
        f"noise, the area under the left curve. {SEEDS} {BANDS}"
    )
    return Chart("anytime", "Quality against depth and noise, all methods", words, panels, 3, _missing(results))


def table_anytime(results: Results) -> Table:
    """How many layers each method needs at the training noise."""
    heads = ("Model", "Data", "Method", "Seeds", "L", "Layer L", "Half", *(f"{each} %" for each in WITHIN), "Area")
    heads += ("ms: all layers", "ms: 5 %")
    words = (
        "At the setting's training noise, the mean over seeds. Half: the metric at layer L/2, rounded up. p %: the "
        "first layer from which on all are within p points of the same run's last layer (p per cent of an error). "
        "Area: the mean over depth. ms: milliseconds per sample, up to the last layer and up to the layer for 5 %."
    )
    rows = [_row(setting, arm, runs) for setting in _settings(results) for arm, runs in _arms(setting).items()]
    missing = _missing(results)
    return Table("table-anytime", "Layers needed, all methods", f"{words} {missing}".strip(), heads, rows)


def _settings(results: Results) -> list[Setting]:
    """For each model the setting with the most methods, at the strongest training noise."""
    chosen = []
    for model in MODELS:
        settings = results.where(model=model, paired=True)
        if settings:
            chosen.append(max(settings, key=lambda setting: (len(_arms(setting)), setting.gamma, setting.depth)))
    return chosen


def _arms(setting: Setting) -> dict[str, list[Run]]:
    return {arm: runs for arm, runs in setting.arms.items() if arm != "erm-clean"}


def _missing(results: Results) -> str:
    """Names the models and methods of the grid that were not run."""
    settings = {setting.model: setting for setting in _settings(results)}
    lacking = [model for model in MODELS if model not in settings]
    for model, setting in settings.items():
        wanted = (*COMPARED, *FURTHER.get(MODELS[model], ()))
        lacking += [f"{arm_name(arm)} of {model}" for arm in wanted if not setting.runs(arm)]
    return f"Not run: {', '.join(lacking)}." if lacking else ""


def _by_layer(setting: Setting) -> Panel:
    series = []
    for arm, runs in _arms(setting).items():
        if rows := [curve.metric for curve in curves(runs, setting.gamma)]:
            series.append(layer_series(arm_name(arm), arm, rows))
    return Panel(setting.words, "layer (0 is the input)", setting.metric, series, log_y=_log(setting))


def _by_noise(setting: Setting) -> Panel:
    series = []
    for arm, runs in _arms(setting).items():
        areas = [{curve.noise: curve.area for curve in run.summary.anytime} for run in runs if run.summary.anytime]
        if areas:
            levels = sorted(set.intersection(*map(set, areas)))
            rows = [[by_level[level] for level in levels] for by_level in areas]
            series.append(replace(layer_series(arm_name(arm), arm, rows), x=levels))
    title = f"{setting.model}-{setting.depth}, mean over depth"
    return Panel(title, "test noise γ", setting.metric, series, log_y=_log(setting))


def _log(setting: Setting) -> bool:
    """Errors of early layers may be many times those of late ones; an accuracy is not drawn on a log scale."""
    return not any(run.higher for runs in setting.arms.values() for run in runs)


def _row(setting: Setting, arm: str, runs: Runs) -> list[str]:
    known, level = curves(runs, setting.gamma), setting.gamma
    needed = [layers_within(runs, level, percent) for percent in WITHIN]
    numbers = [
        _mean([curve.metric[-1] for curve in known]),
        _mean([curve.metric[half(setting.depth)] for curve in known]),
        *(f"{fmean(layers):.1f}" if layers else "–" for layers in needed),
        _mean([curve.area for curve in known]),
        *(_mean(times, ".3g") for times in (milliseconds(runs, level), milliseconds(runs, level, 5))),
    ]
    diverged = sum(run.diverged for run in runs)
    seeds = f"{len(known)}, {diverged} diverged" if diverged else f"{len(known)}"
    return [setting.model, data_name(setting.data), arm_name(arm), seeds, str(setting.depth), *numbers]


def _mean(values: Sequence[float], digits: str = ".4g") -> str:
    return f"{fmean(values):{digits}}" if values and all(map(isfinite, values)) else "–"
