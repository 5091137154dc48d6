"""The figures on text classification: 1 and 13 (descent), 4 (noise), 9 and 10 (training noise)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from reproduction.report.cells import arm_name, data_name
from reproduction.report.chart import Chart, Line, Panel, Style, shades
from reproduction.report.estimates import by_level
from reproduction.report.evidence.layers import layer_errors
from reproduction.report.parts import (
    BANDS,
    SEEDS,
    banded,
    lacking,
    layer_panel,
    layer_series,
    noise_panel,
    noise_series,
)
from reproduction.report.results import FORMS, Results, Setting
from reproduction.report.selections import by_training_noise, classifiers, roberta

CELLS = (("RoBERTa", "imdb"), ("DistilBERT", "imdb"), ("UT", "imdb"), ("DistilBERT", "mnli"), ("UT", "mnli"))


def figure_1(results: Results) -> Chart:
    """Loss along the layers and accuracy against noise, of RoBERTa on IMDb."""
    data = data_name(results.known("imdb"))
    panels = []
    for setting in roberta(results):
        panels.append(layer_panel(setting.arms, f"Loss, {setting.words}", setting.gamma))
        panels.append(noise_panel(setting.arms, f"{setting.metric}, {setting.words}", setting.gamma))
    missing = "" if panels else f"Not run: RoBERTa on {data}."
    title = f"RoBERTa on {data}: along the layers, and against noise"
    return Chart("figure-1", title, f"{SEEDS} {BANDS}", panels, 2, missing)


def figure_4(results: Results) -> Chart:
    """Accuracy against noise, of classifiers on two data sets."""
    settings = classifiers(results)
    panels = [noise_panel(setting.arms, setting.words, setting.gamma) for setting in settings]
    missing = lacking(CELLS, [(setting.model, setting.data) for setting in settings])
    return Chart("figure-4", "Accuracy against noise", BANDS, panels, 3, missing)


def figure_13(results: Results) -> Chart:
    """The loss along the layers in every setting of the texts."""
    settings = results.where(task="text", paired=True)
    panels = [layer_panel(setting.arms, setting.words, setting.gamma) for setting in settings]
    missing = lacking(CELLS, [(setting.model, setting.data) for setting in settings])
    return Chart("figure-13", "Loss along the layers, in every setting", SEEDS, panels, 3, missing)


def figure_9(results: Results) -> Chart:
    """What the training noise does to DistilBERT on IMDb: accuracy against noise, and the error along the layers."""
    data = results.known("imdb")
    settings = by_training_noise(results, "DistilBERT", data)
    styles = shades(len(settings))
    arms = [arm for arm in (*FORMS, "erm") if any(setting.runs(arm) for setting in settings)]
    panels = [draw(settings, styles, arm) for draw in (_by_training, _errors) for arm in arms]
    missing = "" if len(settings) > 1 else f"Not run: DistilBERT on {data_name(data)} at several training noise levels."
    return Chart("figure-9", "The noise of training", BANDS, panels, max(2, len(arms)), missing)


def _by_training(settings: Sequence[Setting], styles: Sequence[Style], arm: str) -> Panel:
    series = [
        replace(noise_series(f"trained at γ = {setting.gamma:g}", arm, setting.runs(arm)), style=style)
        for setting, style in zip(settings, styles, strict=True)
        if setting.runs(arm)
    ]
    return Panel(arm_name(arm), "test noise γ", settings[0].metric, series)


def _errors(settings: Sequence[Setting], styles: Sequence[Style], arm: str) -> Panel:
    series = []
    for setting, style in zip(settings, styles, strict=True):
        rows = [row for run in setting.runs(arm) if (row := layer_errors(run, setting.gamma))]
        if rows:
            series.append(replace(layer_series(f"trained at γ = {setting.gamma:g}", arm, rows), style=style))
    return Panel(f"{arm_name(arm)}, at the training noise", "layer (0 is the input)", "error rate", series)


def figure_10(results: Results) -> Chart:
    """What each form of the constraints gains at each training noise, of UT and DistilBERT."""
    wanted = list(product(("UT", "DistilBERT"), ("mnli", results.known("imdb"))))
    levels = sorted({setting.gamma for setting in results.where(task="text", paired=True)})
    styles = dict(zip(levels, shades(len(levels)), strict=True))
    panels, have = [], []
    for (model, data), form in product(wanted, FORMS):
        settings = [one for one in by_training_noise(results, model, data) if one.compares(form)]
        series = []
        for setting in settings:
            gains = by_level(setting.runs(form), setting.plain)
            ends = [gained.interval for gained in gains.values()]
            series.append(banded(f"trained at γ = {setting.gamma:g}", styles[setting.gamma], list(gains), ends))
        if series:
            have.append((model, data))
            title = f"{model}-{settings[0].depth}, {data_name(data)}, {arm_name(form)}"
            panels.append(Panel(title, "test noise γ", "gain over ERM, points", series, lines=[Line(0, "ERM", "y")]))
    words = f"A panel for each form of the constraints. {BANDS}"
    missing = lacking(wanted, have)
    return Chart("figure-10", "What constraints gain, by the noise of training", words, panels, 2, missing)
