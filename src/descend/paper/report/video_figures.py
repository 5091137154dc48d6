"""The figures on video denoising: 2 (noise), 3 (depth), 7 (descent) and 8 (trade-offs)."""

from itertools import product

from descend.paper.report.cells import arm_name, data_name
from descend.paper.report.chart import Chart, Line, Panel, hues, shades
from descend.paper.report.estimates import by_level, robust
from descend.paper.report.parts import BANDS, SEEDS, banded, lacking, layer_panel, noise_panel
from descend.paper.report.results import Results
from descend.paper.report.selections import best_depths, by_depth, dust

MODELS, SETS = ("DUST", "UT", "ViT"), ("avenue", "shanghaitech", "ucsd")


def figure_2(results: Results) -> Chart:
    """RMSE against noise, three data sets × three models."""
    cells = best_depths(results)
    panels = []
    for (_, model, data), arms in cells.items():
        title = f"{model}-{arms['constrained'][0].depth}, {data_name(data)}, γ = {arms['erm'][0].gamma:g}"
        panels.append(noise_panel(arms, title, max(run.gamma for run in arms["erm"])))
    missing = lacking(product(MODELS, SETS), [(model, data) for _, model, data in cells])
    words = (
        "Each method at the depth that is best on validation data. Claims are judged in the regime of training noise "
        f"with the most panels. {BANDS}"
    )
    return Chart("figure-2", "Error against noise: three data sets, three models", words, panels, 3, missing)


def figure_3(results: Results) -> Chart:
    """RMSE against noise at three depths, constrained and ERM."""
    families = by_depth(results, ("UT", "DUST"))
    depths = sorted({setting.depth for settings in families.values() for setting in settings})
    styles = dict(zip(depths, shades(len(depths)), strict=True))
    panels = []
    for (_, model, data), settings in families.items():
        series = []
        for arm, setting in product(("constrained", "erm"), settings):
            curve = robust(tuple(setting.runs(arm)))
            ends = [number.interval for number in curve.numbers]
            name = f"{arm_name(arm)}, L = {setting.depth}"
            series.append(banded(name, styles[setting.depth], curve.noise, ends, dashed=arm == "erm"))
        title, gamma = f"{model}, {data_name(data)}, γ = {settings[0].gamma:g}", settings[0].gamma
        panels.append(Panel(title, "test noise γ", settings[0].metric, series, lines=[Line(gamma, "trained")]))
    missing = lacking(product(("UT", "DUST"), SETS), [(model, data) for _, model, data in families])
    return Chart("figure-3", "Error against noise: depth", BANDS, panels, 3, missing)


def figure_7(results: Results) -> Chart:
    """The loss along the layers of DUST at three depths."""
    settings, data = dust(results), results.known("ucsd")
    panels = [layer_panel(setting.arms, setting.words, setting.gamma) for setting in settings]
    missing = "" if any(setting.data == data for setting in settings) else f"Not run: DUST on {data_name(data)}."
    return Chart("figure-7", "Loss along the layers: DUST at three depths", SEEDS, panels, 3, missing)


def figure_8(results: Results) -> Chart:
    """What constraints gain at each noise level: the trade-off between the noise of training and more."""
    cells = best_depths(results)
    sets = list(dict.fromkeys([*SETS, *(data for _, _, data in cells)]))
    styles = dict(zip(sets, hues(len(sets)), strict=True))
    panels = []
    for regime, model in dict.fromkeys((regime, model) for regime, model, _ in cells):
        by_data = {data: arms for (where, name, data), arms in cells.items() if (where, name) == (regime, model)}
        series = []
        for data, arms in by_data.items():
            gains = by_level(arms["constrained"], arms["erm"])
            ends = [gained.interval for gained in gains.values()]
            series.append(banded(data_name(data), styles[data], list(gains), ends))
        trained = max(run.gamma for arms in by_data.values() for run in arms["erm"])
        lines = [Line(0, "ERM", "y"), Line(trained, "trained")]
        panels.append(Panel(f"{model}, γ = {trained:g}", "test noise γ", "gain over ERM, %", series, lines=lines))
    missing = lacking(product(MODELS, SETS), [(model, data) for _, model, data in cells])
    words = f"How much lower the error is than ERM's. Rising lines trade quality at weak noise for strength. {BANDS}"
    return Chart("figure-8", "What constraints gain as the noise grows", words, panels, 3, missing)
