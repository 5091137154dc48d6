"""What a section begins with: how many layers suffice, and the numbers with their intervals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from descend.report.intervals import GroupScores, Jackknife
from descend.report.runs import Arm, Group, RunView, by_run, format_alpha, mean_rows
from descend.report.tables import Cell, Row, Table, duration, number
from descend.results import ENOUGH_GROUPS, WITHIN
from descend.results.findings import tolerance_words

SAME_SIGMA = 1.02
"""Of two σ_x whose ratio is smaller, γ stands for the same noise."""


class Answer(NamedTuple):
    """A headline, tables, and what a reader has to know of them."""

    headline: str
    tables: Sequence[Table]
    lines: Sequence[str]


def answer(group: Group) -> Answer:
    """How many layers suffice in each run, and the arms' numbers."""
    runs = group.runs
    known = [run for run in runs if run.summary.layers_needed]
    headline = "How many layers suffice" if known else "How many layers suffice was not measured"
    if known and len(runs) == 1:
        headline = runs[0].summary.headline
    table, words = numbers(group)
    needed = [_needed(group)] if known else []
    terms = [by_run(group, ((run, " ".join(run.summary.terms())) for run in known))] if known else []
    notes = by_run(group, ((run, run.summary.note) for run in runs))
    return Answer(headline, [*needed, table], [*(line for lines in terms for line in lines), *words, *notes])


def _needed(group: Group) -> Table:
    """A row for each run: K, its metric, how sure that is, and its time, for each tolerance."""
    higher, rows = group.summary.higher_is_better, []
    for arm in group.arms:
        for run in arm.runs:
            cells = [Cell(arm.label, f"seed {run.summary.seed}" if len(arm.runs) > 1 else "")]
            for each in run.summary.suffices():
                cells.append(Cell(each.layers, ", ".join(filter(None, (each.certain, each.metric, each.time)))))
            rows.append(Row(cells if len(cells) > 1 else [*cells, *[Cell("–")] * len(WITHIN)], arm.style))
    return Table(["Method", *(f"Within {tolerance_words(percent, higher)}" for percent in WITHIN)], [("", rows)])


def numbers(group: Group) -> tuple[Table, list[str]]:
    """The arms' measure at half and full depth, differences from plain training, and their means over noise."""
    measure, level, shown = group.measure, group.train_noise, group.arms
    depth = group.depth
    baseline = next((arm for arm in shown if arm.summary.method == "erm"), None)
    asked = any(run.summary.asked for run in group.runs)
    higher = group.summary.higher_is_better
    several = len(group.noise_levels) > 1
    heads = [measure.name, f"Half depth, layer {depth // 2}", f"Full depth, layer {depth}"]
    heads += [f"Minus {baseline.label}"] if baseline and len(shown) > 1 else []
    heads += [f"{group.metric}, mean over noise"] * several + ["Area over γ"] * (several and higher)
    heads += ["Feasible"] * asked + ["Training"]
    rows, found = [], []
    for arm in shown:
        summaries = [run.summary for run in arm.runs]
        own = [len(row) - 1 for row in arm.along(measure.entry, level)]
        values, known = _estimate(group, arm)
        last = min(own, default=0)
        cells = [Cell(arm.label, f"{len(arm.runs)} seeds" if len(arm.runs) > 1 else "")]
        cells += [_cell(values, known, layer) if layer <= last else Cell("–") for layer in (depth // 2, last)]
        found += [known] if known else []
        if baseline and len(shown) > 1:
            cells.append(Cell("itself") if arm is baseline else _difference(group, arm, baseline))
        cells += [Cell(_spread([summary.mean for summary in summaries]))] * several
        cells += [Cell(_spread([summary.auc for summary in summaries]))] * (several and higher)
        cells += [_feasible(arm.runs)] * asked
        seconds = [summary.seconds for summary in summaries if summary.seconds is not None]
        cells.append(Cell(duration(fmean(seconds)) if seconds and isfinite(fmean(seconds)) else "–"))
        rows.append(Row(cells, arm.style))
    return Table(heads, [("", rows)]), [_words(group, found), *evaluated_differently(group)]


def _estimate(group: Group, arm: Arm) -> tuple[np.ndarray, Jackknife | None]:
    """The means over seeds of layers 0 … L, and what their intervals follow from where that is known."""
    tables = _tables(group, arm.runs)
    values = np.array(mean_rows(arm.along(group.measure.entry, group.train_noise)))
    return values, Jackknife.of(tables) if tables else None


def _cell(values: np.ndarray, known: Jackknife | None, layer: int, sign: str = "") -> Cell:
    """A value with its interval; without one if it is unknown, or nothing varies between groups."""
    low, high = (ends[layer] for ends in known.ends()) if known else (np.nan, np.nan)
    note = f"{number(low)} to {number(high)}" if low < high else ""
    return Cell((sign if values[layer] > 0 else "") + number(float(values[layer])), note)


def _difference(group: Group, arm: Arm, baseline: Arm) -> Cell:
    """At full depth, of the seeds that both arms have on the same samples; a dash where there are none."""
    shared = {run.summary.seed for run in arm.runs} & {run.summary.seed for run in baseline.runs}
    pair = [replace(each, runs=[run for run in each.runs if run.summary.seed in shared]) for each in (arm, baseline)]
    if not shared and len(arm.runs) == len(baseline.runs) == 1:
        pair = [arm, baseline]
    if not pair[0].runs or not _tables(group, [*pair[0].runs, *pair[1].runs]):
        return Cell("–")
    (values, known), (base, base_known) = (_estimate(group, each) for each in pair)
    return _cell(values - base, known - base_known if known and base_known else None, -1, "+")


def _tables(group: Group, runs: Sequence[RunView]) -> list[GroupScores]:
    """Each run's sums over groups of samples, layers in place of noise levels; empty if they are not known or alike."""
    tables: list[GroupScores] = []
    is_loss = group.measure.entry == "layer_losses"
    for run in runs:
        layers = run.groups.layers if run.groups else None
        sums = (layers.losses if is_loss else layers.scores) if layers else []
        if run.groups is None or layers is None or not sums or group.train_noise not in layers.noise:
            return []
        rows = np.array(sums[layers.noise.index(group.train_noise)], float)
        root = run.groups.root and not is_loss
        tables.append(GroupScores(np.arange(len(rows)), root, np.array(layers.counts, float), rows, run.groups.single))
    return tables if all(table.like(tables[0]) for table in tables) else []


def _words(group: Group, intervals: Sequence[Jackknife]) -> str:
    """The unit, the data and what the intervals rest on."""
    measure = group.measure
    level = f"at the training noise γ\u00a0=\u00a0{group.train_noise:g}" if group.train_noise else "without noise"
    better = "higher" if measure.higher else "lower"
    words = f"{measure.name} on {group.summary.split} data {level}; {better} is better."
    if (given := group.input_value) is not None and measure.entry == "layer_metrics":
        words += f" The noisy input itself has {number(given)}."
    if not any(np.isfinite(each.ends()).all(0).any() for each in intervals):
        return f"{words} No intervals: they need at least two groups of samples."
    groups = min((run.summary.groups for run in group.runs if run.summary.groups), default=len(intervals[0].sizes))
    seeds = max(len(each.by_seed) for each in intervals)
    single = any(run.groups and run.groups.single for run in group.runs)
    over = "the samples of a single group" if single else f"{groups} groups of samples"
    over += f" and {seeds} seeds" if seeds > 1 else ", of these trained models alone"
    few = " So few groups may make them too narrow." if groups < ENOUGH_GROUPS else ""
    paired = " Differences are of the same seeds on the same samples; – where there are none." * (len(group.arms) > 1)
    return f"{words} In small print: 95\u00a0% intervals over {over}, each for itself.{few}{paired}"


def evaluated_differently(group: Group) -> list[str]:
    """A line for each way in which the group's arms were not evaluated alike."""
    lines = []
    for what, words_of in _APART.items():
        labels: dict[str, list[str]] = {}
        for arm in group.arms:
            if words := words_of(arm.runs[0]):
                labels.setdefault(words, []).append(arm.label)
        joined = [f"{words} ({', '.join(arms)})" for words, arms in labels.items()]
        lines += [f"{what}: {'; '.join(joined)}."] if len(joined) > 1 else []
    # Models of text learn their embedding, so its σ_x differs a little between any two.
    sigmas = [sigma for arm in group.arms if (sigma := arm.summary.sigma)]
    if sigmas and max(sigmas) > SAME_SIGMA * min(sigmas):
        lines.append(f"γ stands for different noise: σ_x is {min(sigmas):.3g} to {max(sigmas):.3g}.")
    return lines


def _bounds(run: RunView) -> str:
    """What the constraints are, in words."""
    summary = run.summary
    words = [f"α = {format_alpha(summary.alpha)}"] if summary.alpha else []
    words += [f"strength {summary.strength:g}"] if summary.strength is not None and not summary.alpha else []
    words += [f"from layer {summary.first_layer}"] if words and summary.first_layer else []
    return ", ".join([*words, *([f"cap {summary.cap:g}"] if summary.cap is not None else [])])


_APART: dict[str, Callable[[RunView], str]] = {
    "The bounds differ, so violations do not compare": _bounds,
    "γ stands for different noise": lambda run: str(run.summary.settings.get("noise_is", "")),
    "The mean over noise is over different levels": lambda run: ", ".join(f"{each:g}" for each in run.summary.noise),
    "The number of samples differs": lambda run: str(run.summary.samples or ""),
    "Not all were calibrated alike, so losses do not compare": lambda run: (
        "" if run.calibrated is None else "calibrated" if run.calibrated else "not calibrated"
    ),
}


def _feasible(runs: Sequence[RunView]) -> Cell:
    known = [run.summary for run in runs if run.summary.asked and run.summary.feasible is not None]
    if not known:
        return Cell("–")
    feasible = sum(bool(summary.feasible) for summary in known)
    words = f"{feasible} of {len(known)}" if len(known) > 1 else "yes" if feasible else "no"
    statuses = {run.summary.status for run in runs}
    if statuses == {"open"}:
        return Cell("open", f"so far {words}")
    if feasible < len(known):
        return Cell(words, "" if "broken" in statuses else "not proven", strong=True)
    return Cell(words, "" if statuses == {"holds"} else "as far as can be told")


def _spread(values: Sequence[float | None]) -> str:
    """The mean ± the standard deviation of those that are known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return number(known[0] if known else None)
    digits = 3 if abs(fmean(known)) < 1 else 2
    return number(fmean(known)) + (f" ± {stdev(known):.{digits}f}" if all(map(isfinite, known)) else "")
