"""The figures on text classification: 1 and 13 (descent), 4 (noise)."""

from collections.abc import Sequence

from descend.paper.report.cells import data_name, listed
from descend.paper.report.chart import Chart
from descend.paper.report.claims import Claim, Held, above, below, every, most, not_run, number, ranged, within
from descend.paper.report.estimates import Number, together
from descend.paper.report.parts import (
    BANDS,
    SEEDS,
    Shown,
    by_level,
    constrained,
    deepest,
    falling,
    lacking,
    layer_panel,
    noise_panel,
    outside,
    smoother,
    spoiled,
    steps_down,
)
from descend.paper.report.results import Results, Setting

CELLS = (("RoBERTa", "imdb"), ("DistilBERT", "imdb"), ("UT", "imdb"), ("DistilBERT", "mnli"), ("UT", "mnli"))

MARGIN = 1.0
"""Points of accuracy that we take for alike; the paper says "comparable"."""


def figure_1(results: Results) -> Shown:
    """Loss along the layers and accuracy against noise, of RoBERTa on IMDb."""
    data = results.known("imdb")
    settings = _deepest(results, model="RoBERTa", data=data)
    panels = []
    for setting in settings:
        panels.append(layer_panel(setting.arms, f"Loss, {setting.words}", setting.gamma))
        panels.append(noise_panel(setting.arms, f"{setting.metric}, {setting.words}", setting.gamma))
    missing = "" if settings else f"Not run: RoBERTa on {data_name(data)}."
    title = f"RoBERTa on {data_name(data)}: along the layers, and against noise"
    chart = Chart("figure-1", title, f"{SEEDS} {BANDS}", panels, 2, missing)
    return Shown([_smoother("figure-1", settings, data), _graceful("figure-1", settings, data)], chart)


def _smoother(figure: str, settings: Sequence[Setting], data: str) -> Claim:
    says = "The loss along ERM's layers is uneven, with rises; under constraints it falls more smoothly."
    if not settings:
        return not_run(figure, says, f"RoBERTa on {data_name(data)} with ERM and constrained")
    return smoother(figure, says, settings[-1], neither="not held")


def _graceful(figure: str, settings: Sequence[Setting], data: str) -> Claim:
    says = "As the noise grows beyond that of training, the constrained model's accuracy decays more slowly."
    if not settings:
        return not_run(figure, says, f"RoBERTa on {data_name(data)} with ERM and constrained")
    setting = settings[-1]
    arms = together(setting.constrained, setting.plain)
    ours, theirs = ((found.at(setting.gamma) - found.at(found.noise[-1])).times(100) for found in arms)
    saved = (theirs - ours).interval
    last = arms[1].noise[-1]
    told = (
        f"From γ = {setting.gamma:g} to {last:g} accuracy falls by {number(ours.value)} points under constraints "
        f"and by {number(theirs.value)} in ERM; the difference in favour of constrained is {ranged(saved, ' points')}."
    )
    return spoiled(Claim(figure, says, above(saved), told), setting.constrained)


def figure_4(results: Results) -> Shown:
    """Accuracy against noise, of classifiers on two data sets."""
    cells = dict.fromkeys((one.model, one.data) for one in results.where(task="text"))
    settings = [one for model, data in cells for one in _deepest(results, model=model, data=data)]
    panels = [noise_panel(setting.arms, setting.words, setting.gamma) for setting in settings]
    missing = lacking(CELLS, [(setting.model, setting.data) for setting in settings])
    chart = Chart("figure-4", "Accuracy against noise", BANDS, panels, 3, missing)
    gains = {(one.model, one.data): outside(one.constrained, one.plain, one.gamma) for one in settings}
    data = results.known("imdb")
    claims = [_better(gains, data), _larger(settings, gains, data), _unrolled(gains), _preserved(settings)]
    return Shown(claims, chart)


def _better(gains: dict[tuple[str, str], Number], data: str) -> Claim:
    where = data_name(data)
    says = f"On {where}, constrained DistilBERT and RoBERTa are more accurate under noise stronger than in training."
    found = {model: gains[model, data] for model in ("DistilBERT", "RoBERTa") if (model, data) in gains}
    if not found:
        return not_run("figure-4", says, f"DistilBERT or RoBERTa on {data_name(data)}")
    judged = every(found, above)
    told = listed([f"{model} {ranged(end, ' points')}" for model, end in judged.ends.items()])
    gone = "" if len(found) == 2 else " The other was not run."
    # What is claimed of two is not settled by one, unless that one refutes it.
    held: Held = "undecided" if judged.held == "held" and gone else judged.held
    return Claim("figure-4", says, held, f"Gains on {where}: {told}.{gone}")


def _larger(settings: Sequence[Setting], gains: dict[tuple[str, str], Number], data: str) -> Claim:
    says = f"On {data_name(data)} the gain is larger for the larger model: RoBERTa's exceeds DistilBERT's."
    both = {("RoBERTa", data), ("DistilBERT", data)}
    if not both <= gains.keys():
        return not_run("figure-4", says, f"both DistilBERT and RoBERTa on {data_name(data)}")
    more = (gains["RoBERTa", data] - gains["DistilBERT", data]).interval
    told = f"On {data_name(data)} RoBERTa's gain less DistilBERT's is {ranged(more, ' points')}."
    bound = constrained(one for one in settings if (one.model, one.data) in both)
    return spoiled(Claim("figure-4", says, above(more), told), bound)


def _unrolled(gains: dict[tuple[str, str], Number]) -> Claim:
    says = f"Constrained UT is as accurate as ERM (here: within {MARGIN:g} point)."
    found = {key: draws for key, draws in gains.items() if key[0] == "UT"}
    if not found:
        return not_run("figure-4", says, "UT on texts")
    judged = every(found, within, MARGIN)
    told = listed([f"{data_name(data)} {ranged(end, ' points')}" for (_, data), end in judged.ends.items()])
    return Claim("figure-4", says, judged.held, f"Gains of UT: {told}.")


def _preserved(settings: Sequence[Setting]) -> Claim:
    says = f"Up to the training noise constraints cost next to nothing (here: at most {MARGIN:g} point)."
    if not settings:
        return not_run("figure-4", says, "text cells of ERM and constrained")
    found = {
        (setting, level): gained
        for setting in settings
        for level, gained in by_level(setting.constrained, setting.plain, setting.gamma).items()
    }
    judged = every(found, above, -MARGIN)
    (setting, level), worst = judged.worst, ranged(judged.end, " points")
    told = f"Most against it speaks {setting.words} at test γ = {level:g}: a gain of {worst}."
    return Claim("figure-4", says, judged.held, told)


def figure_13(results: Results) -> Shown:
    """The loss along the layers in every setting of the texts."""
    settings = results.where(task="text", paired=True)
    panels = [layer_panel(setting.arms, setting.words, setting.gamma) for setting in settings]
    missing = lacking(CELLS, [(setting.model, setting.data) for setting in settings])
    chart = Chart("figure-13", "Loss along the layers, in every setting", SEEDS, panels, 3, missing)
    says = "Constrained models lower the loss at every layer, in every setting of the texts."
    if not settings:
        return Shown([not_run("figure-13", says, "text cells of ERM and constrained")], chart)
    steps = steps_down(settings, "constrained")
    judged = every(steps, below)
    setting, layer = judged.worst
    told = (
        f"In {most(falling(steps), len(settings))[1]} of the settings the mean loss falls at every layer, in ERM's "
        f"{falling(steps_down(settings, 'erm'))}; most against it speaks layer {layer} of {setting.words}: the loss "
        f"changes by {ranged(judged.end)}."
    )
    claim = Claim("figure-13", says, judged.held, told)
    return Shown([spoiled(claim, constrained(settings))], chart)


def _deepest(results: Results, **wanted: str) -> list[Setting]:
    return deepest(results.where(task="text", paired=True, **wanted))
