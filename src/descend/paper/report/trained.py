"""The figures on the noise that texts are trained under: 9 and 10."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from descend.paper.report.cells import Run, arm_name, data_name
from descend.paper.report.chart import Chart, Line, Panel, shades
from descend.paper.report.claims import Claim, Held, above, joint, not_run, number, ranged
from descend.paper.report.estimates import Number, average, finite, over_seeds, together
from descend.paper.report.parts import (
    BANDS,
    Shown,
    banded,
    by_level,
    constrained,
    lacking,
    layer_series,
    noise_series,
    outside,
    spoiled,
)
from descend.paper.report.results import Results, Setting


def figure_9(results: Results) -> Shown:
    """What the training noise does: accuracy against noise, and the error along the layers, of DistilBERT on IMDb."""
    data = results.known("imdb")
    settings = _one_depth(results.where(task="text", model="DistilBERT", data=data, paired=True))
    styles = shades(len(settings))
    panels = [
        *(_by_training(settings, styles, arm) for arm in ("constrained", "erm")),
        *(_errors(settings, styles, arm) for arm in ("constrained", "erm")),
    ]
    missing = "" if len(settings) > 1 else f"Not run: DistilBERT on {data_name(data)} at several training noise levels."
    chart = Chart("figure-9", "The noise of training", BANDS, panels if settings else [], 2, missing)
    says = (
        "More training noise makes constrained models more robust to strong noise.",
        "On clean inputs it costs constrained models less than ERM.",
        "The error along the layers falls more smoothly under constraints.",
    )
    if len(settings) < 2:
        needs = f"DistilBERT on {data_name(data)} at two training noise levels or more"
        return Shown([not_run("figure-9", words, needs) for words in says], chart)
    low, high = settings[0], settings[-1]
    arms = together(low.constrained, high.constrained, low.plain, high.plain)
    ours, theirs = arms[:2], arms[2:]
    last = min(ours[0].noise[-1], ours[1].noise[-1])
    robuster = (ours[1].at(last) - ours[0].at(last)).times(100).interval
    cost = [(ends[0].at(0) - ends[1].at(0)).times(100) for ends in (ours, theirs)]
    saved = (cost[1] - cost[0]).interval
    # Noise levels of one seed are no samples of their own: they are averaged first.
    pairs = [_error_rises(setting) for setting in settings]
    seeds = sorted(set.intersection(*map(set, pairs)))
    extra = over_seeds([float(np.mean([found[seed] for found in pairs])) for seed in seeds])
    training = f"γ = {low.gamma:g} to {high.gamma:g} in training"
    claims = [
        Claim(
            "figure-9",
            says[0],
            above(robuster),
            f"From {training}, constrained accuracy at test γ = {last:g} changes by {ranged(robuster, ' points')}.",
        ),
        Claim(
            "figure-9",
            says[1],
            above(saved),
            f"From {training}, accuracy on clean inputs falls by {number(cost[0].value)} points under constraints and "
            f"by {number(cost[1].value)} in ERM; the gain of constrained is {ranged(saved, ' points')}.",
        ),
        Claim(
            "figure-9",
            says[2],
            above(extra),
            "What ERM's error rises along the layers in all, less what the constrained one's does: "
            f"{ranged(extra, ' points')}, in the mean over training noise, {len(seeds)} seeds.",
        ),
    ]
    return Shown([spoiled(claim, constrained(settings)) for claim in claims], chart)


def _by_training(settings: Sequence[Setting], styles: Sequence, arm: str) -> Panel:
    series = []
    for setting, style in zip(settings, styles, strict=True):
        one = noise_series(f"trained at γ = {setting.gamma:g}", arm, setting.runs(arm))
        series.append(replace(one, style=style))
    metric = settings[0].metric if settings else ""
    return Panel(arm_name(arm), "test noise γ", metric, series)


def _errors(settings: Sequence[Setting], styles: Sequence, arm: str) -> Panel:
    series = []
    for setting, style in zip(settings, styles, strict=True):
        rows = [row for run in setting.runs(arm) if (row := _error(run, setting.gamma))]
        if rows:
            one = layer_series(f"trained at γ = {setting.gamma:g}", arm, rows)
            series.append(replace(one, style=style))
    return Panel(f"{arm_name(arm)}, at the training noise", "layer (0 is the input)", "error rate", series)


def _error(run: Run, level: float) -> list[float]:
    return [1 - value for value in run.view.layer_metrics.get(level, [])]


def _error_rises(setting: Setting) -> dict[int, float]:
    """By seed: how many points more ERM's error rises along the layers than the constrained one's."""
    by_seed = {run.seed: run for run in setting.plain}
    found = {}
    for run in setting.constrained:
        rows = [_error(run, setting.gamma), _error(by_seed[run.seed], setting.gamma)] if run.seed in by_seed else []
        if rows and all(rows):
            ours, theirs = (100 * float(np.maximum(np.diff(row), 0).sum()) for row in rows)
            found[run.seed] = theirs - ours
    return found


def figure_10(results: Results) -> Shown:
    """What constraints gain at each training noise, of UT and DistilBERT."""
    panels = []
    ends: dict[tuple[str, str], list[tuple[Setting, Number]]] = {}
    levels = sorted({one.gamma for one in results.where(task="text", paired=True)})
    styles = dict(zip(levels, shades(len(levels)), strict=True))
    for model, data in product(("UT", "DistilBERT"), ("mnli", results.known("imdb"))):
        settings = _one_depth(results.where(task="text", model=model, data=data, paired=True))
        series = []
        for setting in settings:
            found = by_level(setting.constrained, setting.plain)
            ends.setdefault((model, data), []).append((setting, outside(setting.constrained, setting.plain, 0.0)))
            name = f"trained at γ = {setting.gamma:g}"
            series.append(banded(name, styles[setting.gamma], list(found), [one.interval for one in found.values()]))
        if series:
            title = f"{model}-{settings[0].depth}, {data_name(data)}"
            panels.append(Panel(title, "test noise γ", "gain over ERM, points", series, lines=[Line(0, "ERM", "y")]))
    missing = lacking(product(("UT", "DistilBERT"), ("mnli", results.known("imdb"))), ends)
    chart = Chart("figure-10", "What constraints gain, by the noise of training", BANDS, panels, 2, missing)
    says = (
        "DistilBERT's gain under noise grows with the training noise.",
        "UT's gain is not largest at the strongest training noise: the effect is not uniform.",
    )
    claims = []
    for words, model in zip(says, ("DistilBERT", "UT"), strict=True):
        several = {place: rows for place, rows in ends.items() if place[0] == model and len(rows) > 1}
        if not several:
            claims.append(not_run("figure-10", words, f"{model} at two training noise levels or more"))
        elif model == "DistilBERT":
            changes = [rows[-1][1] - rows[0][1] for rows in several.values()]
            more = average(finite(changes) or changes).interval
            told = f"From the least to the most training noise the gain changes by {ranged(more, ' points')}."
            bound = constrained(rows[place][0] for rows in several.values() for place in (0, -1))
            claims.append(spoiled(Claim("figure-10", words, above(more), told), bound))
        else:
            bound = constrained(setting for rows in several.values() for setting, _ in rows)
            claims.append(spoiled(_uneven(words, several), bound))
    return Shown(claims, chart)


def _uneven(says: str, several: dict[tuple[str, str], list[tuple[Setting, Number]]]) -> Claim:
    verdicts: list[Held] = []
    told = []
    for (model, data), rows in several.items():
        setting, best = max(rows[:-1], key=lambda row: row[1].value)
        more = (best - rows[-1][1]).picked(len(rows) - 1)  # the best of them was looked for
        verdicts.append(above(more))
        told.append(
            f"on {data_name(data)} {model}'s gain at training γ = {setting.gamma:g} exceeds that at "
            f"{rows[-1][0].gamma:g} by "
            f"{ranged(more, ' points')}"
        )
    words = "; ".join(told)
    return Claim("figure-10", says, joint(verdicts), f"{words[0].upper()}{words[1:]}.")


def _one_depth(settings: Sequence[Setting]) -> list[Setting]:
    """The settings of the depth that was run at the most training noise levels, by their noise."""
    depths = [setting.depth for setting in settings]
    kept = max(set(depths), key=lambda depth: (depths.count(depth), depth), default=None)
    return sorted((setting for setting in settings if setting.depth == kept), key=lambda setting: setting.gamma)
