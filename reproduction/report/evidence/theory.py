"""Theorems 1 and 2 and Corollary 3 beside the measurements."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from reproduction.report.cells import Run
from reproduction.report.claims import Evidence, Held, below, gone, number, ranged
from reproduction.report.duality import Duality
from reproduction.report.estimates import Number, along, computed, over_seeds, rows_along, same_seeds
from reproduction.report.evidence.layers import least_down
from reproduction.report.results import Setting
from reproduction.report.selections import constrained
from reproduction.report.theorems import GapBound, Shift, gaps, missed, noise_distance

ROUNDING = 1e-9
"""How far, in units of f_0, a violation that grows exactly linearly may seem to exceed its line."""


MEET = 5.0
"""Per cent of the primal value within which it and the Lagrangian count as equal."""


def values_meet(rows: Mapping[Setting, Sequence[Duality]]) -> Evidence:
    """The primal value less the Lagrangian at the end of training, in per cent of the primal value."""
    ends = {setting: rows_along([[one.end()] for one in values])[0].times(100) for setting, values in rows.items()}
    words = {"near": sum(end.value < MEET for end in ends.values()), "settings": len(ends)}
    return Evidence(ends, words, " %", label=lambda setting: setting.words, constrained=constrained(rows))


def gap_within_bound(bounds: Sequence[GapBound]) -> Evidence | None:
    """The loss that is left at the last layer, less (ζ + u)/α. It is at least the gap, since no loss is below 0."""
    rows = []
    for one in bounds:
        runs = [run for run in one.setting.constrained if run.losses(one.setting.gamma) and not run.diverged]
        left = [gaps(run, one.setting.gamma, 0)[-1] for run in runs]
        if isfinite(one.bound):
            over = over_seeds([gap - bound for gap, bound in zip(left, one.bounds, strict=True)])
            rows.append((one, over_seeds(left), over))
    if not rows:
        return None
    telling = [row for row in rows if row[0].telling]
    one, gap, _ = max(telling or rows, key=lambda row: least_down(row[2]))
    diverged = gone(constrained(one.setting for one in bounds))
    words = {"within": sum(row[2].value <= 0 for row in telling), "telling": len(telling)}
    words |= {"silent": len(rows) - len(telling)}
    named = {"where": one.setting.words, "gap": ranged(gap), "bound": number(one.bound), "diverged": diverged}
    # The term that is not measured could make up for a miss: data can't refute the theorem.
    sure = telling and not diverged and all(below(row[2]) == "held" for row in telling)
    return Evidence("held" if sure else "undecided", {**words, **named})


def smaller_gap(families: Sequence[Sequence[Setting]]) -> Evidence:
    """How the smallest loss along the layers changes from the smallest to the largest depth."""
    changes = {}
    for family in families:
        few_, many = family[0], family[-1]
        most = max(len(few_.constrained), len(many.constrained))
        arms = same_seeds(few_.constrained, many.constrained)
        ends = [computed(_least, *along(runs, many.gamma, most)) for runs in arms]
        changes[many] = ends[1] - ends[0]
    words = {"smaller": sum(change.value < 0 for change in changes.values()), "families": len(changes)}
    return Evidence(changes, words, label=lambda setting: setting.words)


def _least(*losses: Any) -> Any:
    return np.min(losses, axis=0)


def linear_growth(shifted: Sequence[Shift]) -> Evidence | None:
    """How far violations at the strongest noise exceed the line through those at the nearer levels."""
    excesses = {}
    for shift in shifted:
        runs, gamma = tuple(shift.arms["constrained"]), shift.setting.gamma
        if runs and sum(level > gamma for level in shift.levels) > 1:
            losses = [part for level in shift.levels for part in along(runs, level)]
            first, *_ = along(runs, gamma)
            distances = [noise_distance(runs[0], level) for level in shift.levels]
            excess = partial(_excess, shift.rates, distances)
            excesses[shift.setting] = computed(excess, first, *losses).interval
    if not excesses:
        return None
    setting, worst = max(excesses.items(), key=lambda item: least_down(item[1]))
    words: dict[str, object] = {
        "under": sum(excess.value <= ROUNDING for excess in excesses.values()),
        "settings": len(excesses),
    }
    held: Held = "held" if all(excess.high <= ROUNDING for excess in excesses.values()) else "undecided"
    words |= {"where": setting.words, "worst": ranged(worst)}
    return Evidence(held, words, constrained=constrained(shift.setting for shift in shifted))


def _excess(rates: dict[int, float], distances: Sequence[float], first: Any, *losses: Any) -> Any:
    """How far a layer's violation at the last level lies above its line, in units of f_0; that of the worst layer.

    Each layer has its own line: the largest of several that grow linearly need not do so. A line starts at the nearest
    level, the training noise if it was judged there, and covers the nearer half of the levels.

    Args:
        rates: 1 − α of each constrained layer.
        distances: The distance of each level from the training noise, rising.
        first: f_0 there.
        losses: f_0 … f_L at the first level, at the second, and so on.
    """
    wide = len(losses) // len(distances)
    by_noise = [missed(rates, losses[start : start + wide]) for start in range(0, len(losses), wide)]
    start, beyond = by_noise[0], [place for place, distance in enumerate(distances) if distance > 0]
    near, last = beyond[: max(1, len(beyond) // 2)], beyond[-1]
    slope = np.max([0 * start, *((by_noise[place] - start) / distances[place] for place in near)], axis=0)
    return (by_noise[last] - (start + slope * distances[last])).max(0) / first


def fewer_violations(shifted: Sequence[Shift]) -> Evidence | None:
    """The largest violation at the strongest noise, less ERM's, in units of f_0."""
    differences = {}
    for shift in shifted:
        runs = shift.arms["constrained"], shift.arms["erm"]
        if all(runs) and shift.levels:
            most = max(map(len, runs))
            ours, theirs = (_worst(shift, arm, most) for arm in same_seeds(*runs))
            differences[shift.setting] = ours - theirs
    if not differences:
        return None
    words = {"fewer": sum(number_.value < 0 for number_ in differences.values()), "settings": len(differences)}
    runs_ = constrained(shift.setting for shift in shifted)
    return Evidence(differences, words, label=lambda setting: setting.words, constrained=runs_)


def _worst(shift: Shift, runs: Sequence[Run], most: int) -> Number:
    first, *_ = along(tuple(runs), shift.setting.gamma, most)
    return computed(partial(largest, shift.rates), first, *along(tuple(runs), shift.levels[-1], most))


def largest(rates: dict[int, float], first: Any, *losses: Any) -> Any:
    """The largest violation over layers, in units of f_0 at the training noise."""
    return missed(rates, losses).max(0) / first
