"""What a section begins with: how many layers suffice, and the numbers with their intervals."""

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import fmean, stdev

import numpy as np

from descend.report.answer import Answer
from descend.report.asked import bounds
from descend.report.intervals import Jackknife
from descend.report.runs import Arm, Group, by_run, mean_rows
from descend.report.tables import Box, Cell, Row, Table, duration
from descend.report.words import number, tolerance_words
from descend.results import ENOUGH_GROUPS, KEPT_WITHIN, WITHIN, Results

MOST_NAMED = 3
"""Methods that a headline names."""


def layers_needed(group: Group) -> Box:
    """How many layers suffice in each run, and the arms' numbers."""
    runs = group.runs
    headline = Answer.of(runs[0].summary).headline if len(runs) == 1 else _side_by_side(group)
    table, words = numbers(group)
    terms = by_run(group, ((run, " ".join(Answer.of(run.summary).terms)) for run in runs))
    notes = by_run(group, ((run, run.summary.note) for run in runs))
    levels = by_run(group, ((run, _as_variance(run)) for run in runs))
    return Box(headline, [_needed(group), table, _settings(group)], [*terms, *words, *levels, *notes])


def _settings(group: Group) -> Table:
    """Which method and settings each arm's runs have, and their seeds."""
    rows = [
        Row([Cell(arm.label), Cell(arm.kind), Cell(", ".join(str(run.summary.seed) for run in arm.runs))], arm.style)
        for arm in group.arms
    ]
    return Table(["Runs", "Method and settings that differ", "Seeds"], rows, "The runs’ methods and settings")


def _as_variance(run: Results) -> str:
    """How the noise of a run was given, where that is not the page's unit; else empty."""
    if run.variance is None:
        return ""
    return (
        f"Its training noise was given as {run.variance:g} with γσ_x as the variance (--noise-is variance), a standard "
        f"deviation of {run.summary.train_noise:g} σ_x: γ on this page."
    )


def _side_by_side(group: Group) -> str:
    """How many layers each method needs, over its seeds, where all are held to plain training."""
    own = [run for run in group.runs if run.summary.layers_needed.baseline is None and run.summary.method != "erm"]
    if own or len(group.arms) > MOST_NAMED:
        return "How many layers suffice"
    parts = []
    for arm in group.arms:
        rows = [row for run in arm.runs for row in Answer.of(run.summary).rows if row.percent == KEPT_WITHIN]
        each = dict.fromkeys(", ".join(filter(None, (row.layers, row.state))) for row in rows)
        parts.append(f"{arm.label}: {' or '.join(each)}")
    return f"Within {tolerance_words(KEPT_WITHIN, group.summary.higher_is_better)}: {'; '.join(parts)}"


def _needed(group: Group) -> Table:
    """A row for each run: K, its metric, how sure that is, and its time, for each tolerance."""
    higher, rows = group.summary.higher_is_better, []
    for arm in group.arms:
        for run in arm.runs:
            cells = [Cell(arm.label, f"seed {run.summary.seed}" if len(arm.runs) > 1 else "")]
            for each in Answer.of(run.summary).rows:
                measured = ", ".join(filter(None, (each.metric, each.time)))
                cells.append(Cell(each.layers, "; ".join(filter(None, (measured, each.state + each.more)))))
            rows.append(Row(cells, arm.style))
    return Table(["Run", *(f"Within {tolerance_words(percent, higher)}" for percent in WITHIN)], rows)


def numbers(group: Group) -> tuple[Table, list[str]]:
    """The arms' measure at half and full depth, differences from plain training, and their means over noise."""
    measure, depth, arms, several = group.measure, group.depth, group.arms, len(group.noise_levels) > 1
    folders = (run.summary.layers_needed.held_folder(run.folder) for run in group.runs if run.folder)
    held_to = {folder.resolve() for folder in folders if folder}
    plain = [arm for arm in arms if arm.summary.method == "erm"]
    named = (arm for arm in plain if any(run.folder and run.folder.resolve() in held_to for run in arm.runs))
    baseline = next(named, plain[0] if plain else None)
    known = {arm.label: _jackknife(group, arm.runs) for arm in arms}

    def at(arm: Arm, layer: int) -> Cell:
        rows = arm.along(measure.entry, group.train_noise)
        last = min((len(row) - 1 for row in rows), default=0)
        if layer > last and layer < depth:
            return Cell("–")
        return _cell(np.array(mean_rows(rows)), known[arm.label], min(layer, last))

    columns: dict[str, Callable[[Arm], Cell]] = {
        measure.name: lambda arm: Cell(arm.label, f"{len(arm.runs)} seeds" if len(arm.runs) > 1 else ""),
        f"Half depth, {group.unit} {depth // 2}": lambda arm: at(arm, depth // 2),
        f"Full depth{f', {group.unit} {depth}' * (len(group.depths) == 1)}": lambda arm: at(arm, depth),
    }
    if baseline and len(arms) > 1:
        columns[f"Minus {baseline.label}"] = lambda arm: (
            Cell("itself") if arm is baseline else _difference(group, arm, baseline)
        )
    if several:
        columns[f"{group.metric}, mean over noise"] = lambda arm: _spread(arm, "mean")
    if several and group.summary.higher_is_better:
        columns["Area over γ"] = lambda arm: _spread(arm, "auc")
    columns["Training"] = _time
    table = Table([*columns], [Row([cell(arm) for cell in columns.values()], arm.style) for arm in arms])
    return table, [_words(group, [each for each in known.values() if each]), *evaluated_differently(group)]


def _time(arm: Arm) -> Cell:
    """The mean training time of an arm's runs; a dash where it is not known."""
    seconds = [run.summary.seconds for run in arm.runs if run.summary.seconds is not None]
    return Cell(duration(fmean(seconds)) if seconds and isfinite(fmean(seconds)) else "–")


def _cell(values: np.ndarray, known: Jackknife | None, layer: int, sign: str = "") -> Cell:
    """A value with its interval; without one if it is unknown, or nothing varies between groups."""
    low, high = (ends[layer] for ends in known.ends()) if known else (np.nan, np.nan)
    note = f"{number(low)} to {number(high)}" if low < high else ""
    return Cell((sign if values[layer] > 0 else "") + number(float(values[layer])), note)


def _difference(group: Group, arm: Arm, baseline: Arm) -> Cell:
    """At full depth, of the seeds that both arms have on the same samples, cut alike; a dash where there are none."""
    shared = {run.summary.seed for run in arm.runs} & {run.summary.seed for run in baseline.runs}
    alone = not shared and len(arm.runs) == len(baseline.runs) == 1
    ours, theirs = (
        _jackknife(group, [run for run in each.runs if alone or run.summary.seed in shared], last=True)
        for each in (arm, baseline)
    )
    marks = {run.groups and run.groups.fingerprint for each in (arm, baseline) for run in each.runs}
    if ours is None or theirs is None or len(marks) > 1 or not np.array_equal(ours.sizes, theirs.sizes):
        return Cell("–")
    apart = ours - theirs
    return _cell(apart.by_seed.mean(0), apart, -1, "+")


def _jackknife(group: Group, runs: Sequence[Results], *, last: bool = False) -> Jackknife | None:
    """The measure of all layers or the last; None where groups or depths differ or are unknown."""
    is_loss, rows, sizes = group.measure.entry == "layer_losses", [], []
    for run in runs:
        if run.groups is None or group.train_noise not in run.groups.layers.noise:
            return None
        layers = run.groups.layers
        sums = (layers.losses if is_loss else layers.scores)[layers.noise.index(group.train_noise)]
        rows.append(sums[-1:] if last else sums)
        sizes.append(layers.counts)
    if not rows or any((each, len(row)) != (sizes[0], len(rows[0])) for each, row in zip(sizes, rows, strict=True)):
        return None
    root = bool(runs[0].groups and runs[0].groups.root)
    return Jackknife.of(np.array(rows, float), np.array(sizes[0], float), root and not is_loss)


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
    return [*lines, group.sigma_apart] if group.sigma_apart else lines


_APART: dict[str, Callable[[Results], str]] = {
    "The bounds differ, so violations do not compare": lambda run: bounds(run) if run.summary.asked else "",
    "γ stands for different noise": lambda run: str(run.summary.settings.get("noise_is", "")),
    "The mean over noise is over different levels": lambda run: ", ".join(f"{each:g}" for each in run.summary.noise),
    "The number of samples differs": lambda run: str(run.summary.samples or ""),
    "Not all were calibrated alike, so losses do not compare": lambda run: (
        "" if run.calibrated is None else "calibrated" if run.calibrated else "not calibrated"
    ),
}


def _spread(arm: Arm, entry: str) -> Cell:
    """The mean ± the standard deviation of an entry of the summary over an arm's runs, of those that are known."""
    known = [value for run in arm.runs if (value := getattr(run.summary, entry)) is not None]
    if len(known) < 2:
        return Cell(number(known[0] if known else None))
    digits = 3 if abs(fmean(known)) < 1 else 2
    return Cell(number(fmean(known)) + (f" ± {stdev(known):.{digits}f}" if all(map(isfinite, known)) else ""))
