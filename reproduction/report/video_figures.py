"""The figures on video denoising: 2 (noise), 3 (depth), 7 (descent) and 8 (trade-offs)."""

from collections.abc import Mapping, Sequence
from itertools import product

from reproduction.report.cells import arm_name, data_name
from reproduction.report.chart import Chart, Line, Panel, Style, hues, shades
from reproduction.report.estimates import by_level, robust
from reproduction.report.parts import BANDS, SEEDS, banded, lacking, layer_panel, noise_panel, usual_depth
from reproduction.report.results import FORMS, Results, Setting
from reproduction.report.selections import Arms, best_depths, by_depth, dust

MODELS, SETS = ("DUST", "UT", "ViT"), ("avenue", "shanghaitech", "ucsd")


def figure_2(results: Results) -> Chart:
    """RMSE against noise, three data sets × three models."""
    cells = best_depths(results)
    panels = []
    for (_, model, data), arms in cells.items():
        title = f"{model}-{usual_depth(arms)}, {data_name(data)}, γ = {arms['erm'][0].gamma:g}"
        panels.append(noise_panel(arms, title, max(run.gamma for run in arms["erm"])))
    missing = lacking(product(MODELS, SETS), [(model, data) for _, model, data in cells])
    words = (
        "Each method at the depth that is best on validation data. Claims are judged in the regime of training noise "
        f"with the most panels. {BANDS}"
    )
    return Chart("figure-2", "Error against noise: three data sets, three models", words, panels, 3, missing)


def figure_3(results: Results) -> Chart:
    """RMSE against noise at three depths, each form of the constraints beside ERM in a panel of its own."""
    families = {form: by_depth(view, ("UT", "DUST")) for form, view in results.forms.items()}
    every = [(place, form) for form, by_place in families.items() for place in by_place]
    depths = sorted({setting.depth for place, form in every for setting in families[form][place]})
    styles = dict(zip(depths, shades(len(depths)), strict=True))
    panels = []
    for place in dict.fromkeys(place for place, _ in every):
        panels += [_depths(of[place], form, styles) for form, of in families.items() if place in of]
    missing = lacking(product(("UT", "DUST"), SETS), [(model, data) for (_, model, data), _ in every])
    words = f"A panel for each form of the constraints. {BANDS}"
    return Chart("figure-3", "Error against noise: depth", words, panels, max(2, len(families)), missing)


def _depths(settings: Sequence[Setting], form: str, styles: Mapping[int, Style]) -> Panel:
    """The error of one form and of ERM against noise, a line for each depth."""
    first, series = settings[0], []
    for arm, setting in product(("constrained", "erm"), settings):
        curve = robust(tuple(setting.runs(arm)))
        ends = [number.interval for number in curve.numbers]
        name = f"{arm_name(arm) if arm == 'erm' else 'Constraints'}, L = {setting.depth}"
        series.append(banded(name, styles[setting.depth], curve.noise, ends, dashed=arm == "erm"))
    title = f"{first.model}, {data_name(first.data)}, γ = {first.gamma:g}, {arm_name(form)}"
    return Panel(title, "test noise γ", first.metric, series, lines=[Line(first.gamma, "trained")])


def figure_7(results: Results) -> Chart:
    """The loss along the layers of DUST at three depths."""
    settings, data = dust(results), results.known("ucsd")
    panels = [layer_panel(setting.arms, setting.words, setting.gamma) for setting in settings]
    missing = "" if any(setting.data == data for setting in settings) else f"Not run: DUST on {data_name(data)}."
    return Chart("figure-7", "Loss along the layers: DUST at three depths", SEEDS, panels, 3, missing)


def figure_8(results: Results) -> Chart:
    """What each form of the constraints gains at each noise level: the trade-off between training noise and more."""
    cells = best_depths(results)
    sets = list(dict.fromkeys([*SETS, *(data for _, _, data in cells)]))
    styles = dict(zip(sets, hues(len(sets)), strict=True))
    panels = []
    for regime, model in dict.fromkeys((regime, model) for regime, model, _ in cells):
        by_data = {data: arms for (where, name, data), arms in cells.items() if (where, name) == (regime, model)}
        panels += [
            _gains(model, by_data, form, styles) for form in FORMS if any(form in arms for arms in by_data.values())
        ]
    missing = lacking(product(MODELS, SETS), [(model, data) for _, model, data in cells])
    words = (
        "How much lower the error is than ERM's; a panel for each form of the constraints. Rising lines trade quality "
        f"at weak noise for strength. {BANDS}"
    )
    columns = max(2, len(results.forms))
    return Chart("figure-8", "What constraints gain as the noise grows", words, panels, columns, missing)


def _gains(model: str, by_data: Mapping[str, Arms], form: str, styles: Mapping[str, Style]) -> Panel:
    """The gain of one form over ERM against test noise, a line for each data set."""
    series = []
    for data, arms in by_data.items():
        if form in arms:
            gains = by_level(arms[form], arms["erm"])
            series.append(
                banded(data_name(data), styles[data], list(gains), [each.interval for each in gains.values()])
            )
    trained = max(run.gamma for arms in by_data.values() for run in arms["erm"])
    lines = [Line(0, "ERM", "y"), Line(trained, "trained")]
    title = f"{model}, γ = {trained:g}, {arm_name(form)}"
    return Panel(title, "test noise γ", "gain over ERM, %", series, lines=lines)
