"""The figures on video denoising: 2 (noise), 3 (depth), 7 (descent) and 8 (trade-offs)."""

from collections.abc import Iterable, Sized
from itertools import chain, product
from typing import Any

from descend.paper.report.cells import Run, arm_name, data_name
from descend.paper.report.chart import Chart, Line, Panel, hues, shades
from descend.paper.report.claims import Claim, above, below, every, joint, most, not_run, ranged
from descend.paper.report.estimates import Interval, Number, ahead, average, finite, robust, together
from descend.paper.report.parts import (
    BANDS,
    SEEDS,
    Shown,
    banded,
    by_level,
    by_validation,
    constrained,
    lacking,
    layer_panel,
    least_down,
    mean_gain,
    noise_panel,
    outside,
    spoiled,
    steps_down,
    strongest,
)
from descend.paper.report.results import Results, Setting

MODELS, SETS = ("DUST", "UT", "ViT"), ("avenue", "shanghaitech", "ucsd")

MARGIN = 2.0
"""Per cent of an error that we take for no loss; the paper says "slight to no degradation"."""

Arms = dict[str, list[Run]]
Place = tuple[str, str, str]


def figure_2(results: Results) -> Shown:
    """RMSE against noise, three data sets × three models."""
    cells = _chosen(results)
    panels = [
        noise_panel(arms, _title(place, arms), max(run.gamma for run in arms["erm"])) for place, arms in cells.items()
    ]
    missing = lacking(product(MODELS, SETS), [(model, data) for _, model, data in cells])
    words = (
        "Each method at the depth that is best on validation data. Claims are judged in the regime of training noise "
        "of which most was run. " + BANDS
    )
    chart = Chart("figure-2", "Error against noise: three data sets, three models", words, panels, 3, missing)
    main = _main(cells)
    return Shown([_wins(main), _ucsd(main, results.known("ucsd")), _in_distribution(main)], chart)


def _wins(cells: dict[Place, Arms]) -> Claim:
    says = (
        "On noise stronger than in training, constrained models are better in more panels than not (paper: better in "
        "5 of 9, alike in 3, worse in 1)."
    )
    if not cells:
        return not_run("figure-2", says, "video cells of ERM and constrained")
    gains = [_outside(arms) for arms in cells.values()]
    ends = [found.interval for found in gains]
    better = sum(above(end) == "held" for end in ends)
    worse = sum(below(end) == "held" for end in ends)
    held, words = most(sum(bool(found.value > 0) for found in gains), len(gains))
    told = (
        f"Constrained is ahead in {words}: beyond doubt better in {better}, worse in {worse}, undecided in "
        f"{len(gains) - better - worse}; {mean_gain(gains)}."
    )
    return Claim("figure-2", says, held, told)


def _ucsd(cells: dict[Place, Arms], data: str) -> Claim:
    where = data_name(data)
    says = f"On {where} every constrained model has a lower error than ERM under noise stronger than in training."
    found = {place: _outside(arms) for place, arms in cells.items() if place[2] == data}
    if not found:
        return not_run("figure-2", says, f"video cells on {where}")
    judged = every(found, above)
    told = "; ".join(f"{_model(place)} {ranged(end, ' %')}" for place, end in judged.ends.items())
    return Claim("figure-2", says, judged.held, f"Gains on {where}: {told}.")


def _in_distribution(cells: dict[Place, Arms]) -> Claim:
    says = f"Up to the training noise constraints cost little or nothing (here: at most {MARGIN:g} % of the error)."
    found = {
        (place, level): gained
        for place, arms in cells.items()
        for level, gained in by_level(arms["constrained"], arms["erm"], arms["erm"][0].gamma).items()
    }
    if not found:
        return not_run("figure-2", says, "video cells of ERM and constrained")
    judged = every(found, above, -MARGIN)
    (place, level), worst = judged.worst, ranged(judged.end, " %")
    told = f"Most against it speaks {_model(place)} on {data_name(place[2])} at test γ = {level:g}: a gain of {worst}."
    return Claim("figure-2", says, judged.held, told)


def figure_3(results: Results) -> Shown:
    """RMSE against noise at three depths, constrained and ERM."""
    families = _families(results, ("UT", "DUST"))
    depths = sorted({setting.depth for settings in families.values() for setting in settings})
    styles = dict(zip(depths, shades(len(depths)), strict=True))
    panels = []
    deeper: dict[str, list[Number]] = {"constrained": [], "erm": []}
    for (_, model, data), settings in families.items():
        series = []
        for arm in ("constrained", "erm"):
            found = [robust(tuple(setting.runs(arm))) for setting in settings]
            for one, setting in zip(found, settings, strict=True):
                shown = [number.interval for number in one.numbers]
                name = f"{arm_name(arm)}, L = {setting.depth}"
                series.append(banded(name, styles[setting.depth], one.noise, shown, dashed=arm == "erm"))
        ends = together(*(one.runs(arm) for arm in deeper for one in (settings[0], settings[-1])))
        last = min(one.noise[-1] for one in ends)
        for arm, (few, many) in zip(deeper, (ends[:2], ends[2:]), strict=True):
            deeper[arm].append(ahead(many.at(last), few.at(last), few.higher))
        title = f"{model}, {data_name(data)}, γ = {settings[0].gamma:g}"
        panels.append(
            Panel(title, "test noise γ", settings[0].metric, series, lines=[Line(settings[0].gamma, "trained")])
        )
    missing = lacking(product(("UT", "DUST"), SETS), [(model, data) for _, model, data in families])
    chart = Chart("figure-3", "Error against noise: depth", BANDS, panels, 3, missing)
    says = (
        "Deeper constrained models have a lower error under strong noise.",
        "ERM does not gain from depth as constrained training does.",
    )
    if not families:
        return Shown([not_run("figure-3", words, "UT or DUST at two depths or more") for words in says], chart)
    ours, theirs = _means(zip(deeper["constrained"], deeper["erm"], strict=True))
    between = (ours - theirs).interval
    words = f"at the strongest test noise, mean of {_panels(families)}"
    claims = [
        Claim(
            "figure-3",
            says[0],
            above(ours.interval),
            f"From the smallest depth to the largest constrained gains {ranged(ours.interval, ' %')}, {words}.",
        ),
        Claim(
            "figure-3",
            says[1],
            joint([above(ours.interval), above(between)]),  # who loses from depth does not gain, whoever loses more
            f"From the smallest depth to the largest ERM gains {ranged(theirs.interval, ' %')}, {words}; constrained "
            f"gains {ranged(ours.interval, ' %')}, which is more by {ranged(between, ' %')}.",
        ),
    ]
    bound = constrained(chain(*families.values()))
    return Shown([spoiled(claim, bound) for claim in claims], chart)


def figure_7(results: Results) -> Shown:
    """The loss along the layers of DUST at three depths."""
    settings = strongest(results.where(task="video", model="DUST", paired=True))
    on_ucsd = [setting for setting in settings if setting.data == results.known("ucsd")]
    settings = on_ucsd or settings
    panels = [layer_panel(setting.arms, setting.words, setting.gamma) for setting in settings]
    missing = "" if on_ucsd else f"Not run: DUST on {data_name(results.known('ucsd'))}."
    chart = Chart("figure-7", "Loss along the layers: DUST at three depths", SEEDS, panels, 3, missing)
    says = (
        "Constrained DUST lowers the loss at every layer, at every depth.",
        "Unconstrained DUST does not: somewhere its loss rises.",
    )
    if not settings:
        return Shown([not_run("figure-7", words, "DUST with ERM and constrained") for words in says], chart)
    judged = every(steps_down(settings, "constrained"), below)
    setting, layer = judged.worst
    theirs = steps_down(settings, "erm")
    other, rising = max(theirs, key=lambda place: least_down(theirs[place]))
    # The step that rises most was looked for among all: it is asked at the share of 5 % that is left to each.
    rise = theirs[other, rising].picked(len(theirs))
    claims = [
        Claim(
            "figure-7",
            says[0],
            judged.held,
            f"Most against it speaks layer {layer} of {setting.model}-{setting.depth}: the loss changes by "
            f"{ranged(judged.end)}.",
        ),
        Claim(
            "figure-7",
            says[1],
            above(rise),
            f"ERM's worst step is that of layer {rising} of {other.model}-{other.depth}: the loss changes by "
            f"{ranged(rise)}.",
        ),
    ]
    return Shown([spoiled(claims[0], constrained(settings)), claims[1]], chart)


def figure_8(results: Results) -> Shown:
    """What constraints gain at each noise level: the trade-off between the noise of training and more."""
    cells = _chosen(results)
    panels, gains = [], {}
    sets = list(dict.fromkeys([*SETS, *(place[2] for place in cells)]))
    styles = dict(zip(sets, hues(len(sets)), strict=True))
    for regime, model in dict.fromkeys((place[0], place[1]) for place in cells):
        series = []
        for place, arms in cells.items():
            if place[:2] != (regime, model):
                continue
            found = by_level(arms["constrained"], arms["erm"])
            ends = list(found.values())
            gains[place] = (ends[0], ends[-1])
            series.append(banded(data_name(place[2]), styles[place[2]], list(found), [end.interval for end in ends]))
        trained = max(run.gamma for place, arms in cells.items() if place[:2] == (regime, model) for run in arms["erm"])
        lines = [Line(0, "ERM", "y"), Line(trained, "trained")]
        panels.append(Panel(f"{model}, γ = {trained:g}", "test noise γ", "gain over ERM, %", series, lines=lines))
    missing = lacking(product(MODELS, SETS), [(model, data) for _, model, data in cells])
    words = "How much lower the error is than ERM's. Rising lines trade quality at weak noise for strength. " + BANDS
    chart = Chart("figure-8", "What constraints gain as the noise grows", words, panels, 3, missing)
    return Shown([_trade(_main(gains)), _faded(_main(gains))], chart)


def _trade(gains: dict[Place, tuple[Number, Number]]) -> Claim:
    says = "UT and ViT trade quality at weak noise for more of it at strong noise."
    found = [ends for place, ends in gains.items() if place[1] in ("UT", "ViT")]
    if not found:
        return not_run("figure-8", says, "cells of UT or ViT")
    weak, strong = (end.interval for end in _means(found))
    return Claim("figure-8", says, joint([below(weak), above(strong)]), _ends(weak, strong, len(found)))


def _faded(gains: dict[Place, tuple[Number, Number]]) -> Claim:
    says = "Constrained DUST is ahead most at weak noise, and less so as the noise grows."
    found = [ends for place, ends in gains.items() if place[1] == "DUST"]
    if not found:
        return not_run("figure-8", says, "cells of DUST")
    weak, strong = _means(found)
    change = (strong - weak).interval
    told = _ends(weak.interval, strong.interval, len(found))
    held = joint([above(weak.interval), below(change)])
    return Claim("figure-8", says, held, f"{told} It changes by {ranged(change, ' %')}.")


def _ends(weak: Interval, strong: Interval, curves: int) -> str:
    return (
        f"At the weakest test noise the gain over ERM is {ranged(weak, ' %')}, at the strongest "
        f"{ranged(strong, ' %')}, in the mean of {curves} curve{'s' * (curves != 1)}."
    )


def _means(pairs: Iterable[tuple[Number, Number]]) -> tuple[Number, Number]:
    """The means of two numbers over curves, without the curves in which a run that diverged leaves one unknown."""
    pairs = list(pairs)
    kept = [pair for pair in pairs if len(finite(pair)) == 2]
    first, second = zip(*(kept or pairs), strict=True)
    return average(first), average(second)


def _chosen(results: Results) -> dict[Place, Arms]:
    """(regime, model, data) → each method's runs at its best depth on validation data, at the most training noise."""
    cells = {}
    for place, settings in _families(results, None, least=1).items():
        arms = by_validation(settings)
        if arms.get("erm") and arms.get("constrained"):
            cells[place] = arms
    return cells


def _main(cells: dict[Place, Any]) -> dict[Place, Any]:
    """The cells of the regime of which there is most: training noise of one regime is no second sample of another's."""
    regimes = [place[0] for place in cells]
    main = max(dict.fromkeys(regimes), key=regimes.count, default="")
    return {place: found for place, found in cells.items() if place[0] == main}


def _families(results: Results, models: tuple[str, ...] | None, least: int = 2) -> dict[Place, list[Setting]]:
    """(regime, model, data) → settings by depth, at the strongest training noise that they share."""
    found: dict[Place, list[Setting]] = {}
    for setting in results.where(task="video", paired=True):
        if models is None or setting.model in models:
            found.setdefault((setting.regime, setting.model, setting.data), []).append(setting)
    families = {}
    for place, settings in found.items():
        top = max(setting.gamma for setting in settings)
        kept = sorted((setting for setting in settings if setting.gamma == top), key=lambda setting: setting.depth)
        if len(kept) >= least:
            families[place] = kept
    # The regime of which there is most comes first, whole rows of it.
    regimes = [place[0] for place in families]
    return dict(sorted(families.items(), key=lambda item: -regimes.count(item[0][0])))


def _outside(arms: Arms) -> Number:
    """How much lower the constrained error is under noise stronger than in training, in per cent of ERM's."""
    return outside(arms["constrained"], arms["erm"], arms["erm"][0].gamma)


def _panels(some: Sized) -> str:
    return f"{len(some)} panel{'s' * (len(some) != 1)}"


def _model(place: Place) -> str:
    return f"{place[1]}{_regime(place[0])}"


def _regime(regime: str) -> str:
    return "" if regime in ("", "paper") else f", {regime} noise"


def _title(place: Place, arms: Arms) -> str:
    ours, theirs = arms["constrained"][0], arms["erm"][0]
    return f"{place[1]}-{ours.depth}, {data_name(place[2])}, γ = {theirs.gamma:g}"
