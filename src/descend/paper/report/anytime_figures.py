"""A figure and a table of our own: quality at every depth and its robustness, of all methods."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean

from descend.paper.report.cells import Run, arm_name, data_name
from descend.paper.report.chart import Chart, Panel
from descend.paper.report.parts import BANDS, SEEDS, Runs, layer_series, noise_panel
from descend.paper.report.results import Results, Setting
from descend.paper.report.tables import Table
from descend.records.schema import WITHIN, AnytimeCurve

MODELS = ("ViT", "DistilBERT", "RoBERTa", "Llama")


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
    words = (
        "At the training noise, the mean over seeds. Half: the metric at layer L/2. p %: the first layer from which on "
        "all are within p points of the same run's last layer (p per cent of an error). Area: the mean over depth."
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
    settings = {setting.model: setting for setting in _settings(results)}
    known = {arm for setting in settings.values() for arm in _arms(setting)}
    lacking = [model for model in MODELS if model not in settings]
    for model, setting in settings.items():
        wanted = known - {"neftune", "r-drop"} if setting.task == "video" else known - {"r-drop"}
        lacking += [f"{arm_name(arm)} of {model}" for arm in sorted(wanted - _arms(setting).keys())]
    return f"Not run: {', '.join(lacking)}." if lacking else ""


def _curve(run: Run, level: float) -> AnytimeCurve | None:
    """A run's quality by depth at a noise level; None if it was not judged there, or diverged."""
    return next((curve for curve in run.summary.anytime if abs(curve.noise - level) < 1e-9), None)


def _curves(runs: Runs, level: float) -> list[AnytimeCurve]:
    return [curve for run in runs if (curve := _curve(run, level)) is not None]


def _by_layer(setting: Setting) -> Panel:
    series = []
    for arm, runs in _arms(setting).items():
        if rows := [curve.metric for curve in _curves(runs, setting.gamma)]:
            series.append(layer_series(arm_name(arm), arm, rows))
    return Panel(setting.words, "layer (0 is the input)", setting.metric, series, log_y=_log(setting))


def _by_noise(setting: Setting) -> Panel:
    series = []
    for arm, runs in _arms(setting).items():
        levels = sorted({curve.noise for run in runs for curve in run.summary.anytime})
        rows = [[curve.area for curve in run.summary.anytime] for run in runs if run.summary.anytime]
        if rows:
            series.append(replace(layer_series(arm_name(arm), arm, rows), x=levels))
    title = f"{setting.model}-{setting.depth}, mean over depth"
    return Panel(title, "test noise γ", setting.metric, series, log_y=_log(setting))


def _log(setting: Setting) -> bool:
    """Errors of early layers may be many times those of late ones; an accuracy is not drawn on a log scale."""
    return not any(run.higher for runs in setting.arms.values() for run in runs)


def _row(setting: Setting, arm: str, runs: Runs) -> list[str]:
    curves = _curves(runs, setting.gamma)
    depth = setting.depth
    needed = [[layer for curve in curves if (layer := curve.first_within[each]) is not None] for each in WITHIN]
    numbers = [
        _mean([curve.metric[-1] for curve in curves]),
        _mean([curve.metric[(depth + 1) // 2] for curve in curves]),
        *(f"{fmean(layers):.1f}" if layers else "–" for layers in needed),
        _mean([curve.area for curve in curves]),
    ]
    seeds = f"{len(curves)}" if len(curves) == len(runs) else f"{len(curves)}, {len(runs) - len(curves)} diverged"
    return [setting.model, data_name(setting.data), arm_name(arm), seeds, str(depth), *numbers]


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.4g}" if values and all(map(isfinite, values)) else "–"
