"""Theory beside practice: Theorem 2 (the gap that is left), Corollary 3 (violations under shift), energies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite, nan
from typing import Any

import numpy as np

from descend.paper.report.cells import Run, arm_name, rates_of
from descend.paper.report.chart import Chart, Line, Panel
from descend.paper.report.claims import Claim, Held, below, every, not_run, number, ranged
from descend.paper.report.estimates import Interval, Number, along, computed, over_seeds, rows_along, same_seeds
from descend.paper.report.parts import (
    SEEDS,
    Shown,
    constrained,
    deepest,
    differences,
    gone,
    layer_series,
    least_down,
    spoiled,
    strongest,
)
from descend.paper.report.results import Results, Setting

ARMS = ("erm", "constrained")

ROUNDING = 1e-9
"""Of f_0, what a violation that grows exactly linearly may seem to exceed its line by."""

Rates = Mapping[int, float]
"""Constrained layer → the largest f_l / f_{l−1} that is allowed."""


def theory_1(results: Results) -> Shown:
    """The best gap so far, min over k ≤ l of f_k − f*, against what is measured of Theorem 2's bound."""
    says = (
        "Theorem 2: the best gap left at the last layer is within the bound, of which ζ/α is measured (here: with 0, "
        "below which no loss lies, for f*).",
        "Theorem 2: more layers leave a smaller gap.",
    )
    words = (
        "Drawn with the lowest loss that any layer of any method and depth reached on this data for f*. Measured: α, "
        "the smallest of the layers, and ζ, the largest difference between training and test loss of a layer. Named, "
        "not measured: C, δ and ν of the term Cδν/(1−δ), which would raise the bound. It is not drawn where it lies "
        f"above the input's own gap: there it says nothing. {SEEDS}"
    )
    panels, rows = [], []
    settings = _constrained(results)
    named = gone(constrained(settings))
    for setting in settings:
        best = _lowest(results, setting)
        gaps = {arm: [_gaps(run, setting.gamma, best) for run in _of(setting, arm)] for arm in ARMS}
        series = [layer_series(arm_name(arm), arm, found) for arm, found in gaps.items() if found]
        bounds = [_bound(run, setting.gamma) for run in _of(setting, "constrained")]
        bound = sum(bounds) / len(bounds) if bounds else nan
        says_something = bound < max((found[0] for found in gaps["constrained"]), default=nan)
        lines = [Line(bound, "ζ/α", "y")] if says_something else []
        panels.append(Panel(setting.words, "layer (0 is the input)", "best gap so far", series, lines=lines))
        if isfinite(bound):
            # f* is not known; that of these runs alone would make the gap vanish. No loss is below 0.
            left = [_gaps(run, setting.gamma, 0)[-1] for run in _of(setting, "constrained")]
            over = over_seeds([gap - one for gap, one in zip(left, bounds, strict=True)])
            rows.append((setting, over_seeds(left), bound, over, says_something))
    title = "The gap that is left along the layers, and Theorem 2"
    chart = Chart("theory-1", title, words, panels, 3, "" if rows else "Not run: constrained cells with their curves.")
    if not rows:
        first = not_run("theory-1", says[0], "constrained cells with the losses of training")
    else:
        telling = [row for row in rows if row[4]]
        setting, gap, bound, over, _ = max(telling or rows, key=lambda row: least_down(row[3]))
        # The part that is not measured could make up for a miss: the data can't refute the theorem.
        sure = telling and not named and all(below(row[3]) == "held" for row in telling)
        held: Held = "held" if sure else "undecided"
        within = sum(row[3].value <= 0 for row in telling)
        told = (
            f"In {within} of {len(telling)} settings even the loss itself, which the gap does not exceed, is below ζ/α "
            f"(in {len(rows) - len(telling)} more ζ/α lies above the input's own gap and says nothing); furthest above "
            f"it, or closest, is {setting.words}: {ranged(gap)} against {number(bound)}. What is not measured could "
            f"make up for a miss: runs can't refute this. {named}"
        ).strip()
        first = Claim("theory-1", says[0], held, told)
    return Shown([first, _deeper(results, says[1])], chart)


def _deeper(results: Results, says: str) -> Claim:
    found: dict[tuple[object, ...], list[Setting]] = {}
    for setting in strongest(one for one in results.settings if one.constrained):
        found.setdefault((setting.model, setting.data, setting.regime, setting.gamma), []).append(setting)
    families = [sorted(family, key=lambda one: one.depth) for family in found.values() if len(family) > 1]
    if not families:
        return not_run("theory-1", says, "one model at two depths or more")
    changes = {}
    for family in families:
        few, many = family[0], family[-1]
        arms = same_seeds(few.constrained, many.constrained)
        most = max(len(few.constrained), len(many.constrained))
        ends = [computed(_least, *along(runs, many.gamma, most)) for runs in arms]
        changes[many] = ends[1] - ends[0]
    smaller = sum(change.value < 0 for change in changes.values())
    judged = every(changes, below)
    told = (
        f"The gap is smaller at the largest depth than at the smallest in {smaller} of {len(changes)} families; most "
        f"against it speaks {judged.worst.words}: a change of {ranged(judged.end)}."
    )
    return Claim("theory-1", says, judged.held, told)


def theory_2(results: Results) -> Shown:
    """The largest violation as test noise leaves that of training, against Corollary 3's linear growth."""
    says = (
        "Corollary 3: violations grow no faster than linearly in the distance from the training distribution.",
        "Under the strongest shift constrained models violate the constraints less than ERM does.",
    )
    words = (
        "The largest f_l − (1 − α_l) f_(l−1) over layers, in units of f_0 at the training noise; ERM is held to the "
        "same constraints. Distance: |γ − γ_train|, to which that of transport between the two noises is proportional; "
        f"the factor C of the corollary is fitted, not measured. {SEEDS}"
    )
    panels, excesses, less = [], {}, {}
    settings = _constrained(results)
    for setting in settings:
        finite = {arm: _of(setting, arm) for arm in ARMS}
        rates = rates_of(finite["constrained"])
        if not rates:
            continue
        series = []
        levels = _levels([run for runs in finite.values() for run in runs], setting.gamma)
        for arm, runs in finite.items():
            rows = [[_violation(rates, run, setting.gamma, level) for level in levels] for run in runs]
            if rows:
                x = [level - setting.gamma for level in levels]
                series.append(replace(layer_series(arm_name(arm), arm, rows), x=x))
        if finite["constrained"] and sum(level > setting.gamma for level in levels) > 1:
            told = [part for level in levels for part in along(tuple(finite["constrained"]), level)]
            first, *_ = along(tuple(finite["constrained"]), setting.gamma)
            excesses[setting] = computed(partial(_excess, rates, levels, setting.gamma), first, *told).interval
        lines = [Line(0, "holds below", "y")]
        panels.append(Panel(setting.words, "γ − γ of training", "largest violation / f_0", series, lines=lines))
        if all(finite.values()) and levels:
            theirs, ours = (
                _worst(rates, runs, setting.gamma, levels[-1], max(map(len, finite.values())))
                for runs in same_seeds(*finite.values())
            )
            less[setting] = ours - theirs
    missing = "" if panels else "Not run: constrained cells."
    chart = Chart("theory-2", "Violations under shifted noise, and Corollary 3", words, panels, 3, missing)
    claims = _linear(says[0], excesses), _less(says[1], less)
    return Shown([spoiled(claim, constrained(settings)) for claim in claims], chart)


def _linear(says: str, excesses: dict[Setting, Interval]) -> Claim:
    if not excesses:
        return not_run("theory-2", says, "two test noise levels above that of training")
    setting, worst = max(excesses.items(), key=lambda item: least_down(item[1]))
    under = sum(excess.value <= ROUNDING for excess in excesses.values())
    told = (
        f"At the strongest noise every layer's violation lies below its line over the nearer half of the levels in "
        f"{under} of {len(excesses)} settings; most above it, or least below, is a layer of {setting.words}: by "
        f"{ranged(worst)} of f_0. The corollary's own factor, which is not measured, may be larger than that of the "
        "nearer levels: runs can't refute this."
    )
    held: Held = "held" if all(excess.high <= ROUNDING for excess in excesses.values()) else "undecided"
    return Claim("theory-2", says, held, told)


def _less(says: str, differences: dict[Setting, Number]) -> Claim:
    if not differences:
        return not_run("theory-2", says, "cells of ERM and constrained")
    judged = every(differences, below)
    fewer = sum(difference.value < 0 for difference in differences.values())
    told = (
        f"Less in {fewer} of {len(differences)} settings; most against it speaks {judged.worst.words}: the difference "
        f"is {ranged(judged.end)} of f_0."
    )
    return Claim("theory-2", says, judged.held, told)


def theory_3(results: Results) -> Shown:
    """The energy of UT's and DUST's own objective along the layers."""
    says = "UT's and DUST's layers lower their own energy at every step (Appendices C.2 and C.3)."
    settings = deepest(
        one
        for one in results.where(model=("UT", "DUST"))
        if any(run.energy for runs in one.arms.values() for run in runs)
    )
    panels: list[Panel] = []
    steps: dict[tuple[Setting, str], list[Number]] = {}
    for setting in settings:
        series = []
        for arm, runs in setting.arms.items():
            rows = [run.energy[setting.gamma] for run in runs if setting.gamma in run.energy]
            if rows:
                series.append(layer_series(arm_name(arm), arm, rows))
                steps[setting, arm] = differences(rows_along(rows))
        panels.append(Panel(setting.words, "layer (0 is the input)", "energy", series))
    missing = "" if panels else "Not run: cells of UT or DUST with their energies."
    chart = Chart("theory-3", "Energies along the layers of UT and DUST", SEEDS, panels, 3, missing)
    if not steps:
        return Shown([not_run("theory-3", says, "cells of UT or DUST with their energies")], chart)
    judged = every({(*place, layer): step for place, row in steps.items() for layer, step in enumerate(row, 1)}, below)
    setting, arm, layer = judged.worst
    falling = sum(all(step.value < 0 for step in row) for row in steps.values())
    told = (
        f"The energy falls at every layer in {falling} of {len(steps)} (setting, method) pairs; most against "
        f"it speaks layer {layer} of {arm_name(arm)}, {setting.words}: the energy changes by {ranged(judged.end)}."
    )
    return Shown([spoiled(Claim("theory-3", says, judged.held, told), constrained(settings))], chart)


def _constrained(results: Results) -> list[Setting]:
    return deepest(one for one in results.settings if one.constrained)


def _of(setting: Setting, arm: str) -> list[Run]:
    return [run for run in setting.runs(arm) if run.losses(setting.gamma) and not run.diverged]


def _lowest(results: Results, setting: Setting) -> float:
    """f*: the lowest loss that this model reached on this data under this noise, at any depth and by any method."""
    losses = [
        value
        for one in results.where(model=setting.model, data=setting.data, regime=setting.regime)
        for runs in one.arms.values()
        for run in runs
        for value in run.losses(setting.gamma) or []
        if isfinite(value)
    ]
    return min(losses, default=nan)


def _gaps(run: Run, level: float, best: float) -> list[float]:
    return (np.minimum.accumulate(np.array(run.losses(level))) - best).tolist()


def _bound(run: Run, level: float) -> float:
    """ζ/α, NaN where one of them is not known."""
    trained = run.trained("loss")
    alpha = min((1 - rate for rate in run.rates.values()), default=nan)
    if trained is None or not alpha > 0:
        return nan
    test = np.array(run.losses(level))[-len(trained) :]
    gap = np.abs(trained - test)
    return float(gap[np.isfinite(gap)].max() / alpha) if np.isfinite(gap).any() else nan


def _levels(runs: Sequence[Run], trained: float) -> list[float]:
    """The noise levels from that of training on at which all runs were judged."""
    judged = [{level for level in run.view.layer_losses if level >= trained} for run in runs]
    return sorted(set.intersection(*judged)) if judged else []


def _worst(rates: Rates, runs: Sequence[Run], trained: float, level: float, most: int = 0) -> Number:
    """The largest violation over layers at a noise level, in units of f_0 at the training noise."""
    first, *_ = along(tuple(runs), trained, most)
    return computed(partial(_largest, rates), first, *along(tuple(runs), level, most))


def _violation(rates: Rates, run: Run, trained: float, level: float) -> float:
    """The same of one run."""
    return float(_largest(rates, (run.losses(trained) or [nan])[0], *(run.losses(level) or [])))


def _largest(rates: Rates, first: Any, *losses: Any) -> Any:
    return _missed(rates, losses).max(0) / first


def _missed(rates: Rates, losses: Sequence[Any]) -> np.ndarray:
    """f_l − (1 − α_l) f_{l−1} of each constrained layer."""
    return np.array([losses[layer] - rate * losses[layer - 1] for layer, rate in rates.items() if layer < len(losses)])


def _least(*losses: Any) -> Any:
    return np.min(losses, axis=0)


def _excess(rates: Rates, levels: Sequence[float], trained: float, first: Any, *losses: Any) -> Any:
    """How far a layer's violation at the last level lies above its line, in units of f_0; that of the worst layer.

    A layer's line starts at the training noise and covers the nearer half of the levels. The largest of several that
    grow linearly need not do so: each layer has its own.

    Args:
        rates: 1 − α of each constrained layer.
        levels: That were judged, from that of training on.
        trained: The noise of training.
        first: f_0 there.
        losses: f_0 … f_L at the first level, at the second, and so on.
    """
    wide = len(losses) // len(levels)
    missed = [_missed(rates, losses[start : start + wide]) for start in range(0, len(losses), wide)]
    row = dict(zip(levels, missed, strict=True))
    outside = [level for level in levels if level > trained]
    near, last = outside[: max(1, len(outside) // 2)], outside[-1]
    start = row.get(trained, row[levels[0]])
    slope = np.max([0 * start, *((row[level] - start) / (level - trained) for level in near)], axis=0)
    return (row[last] - (start + slope * (last - trained))).max(0) / first
