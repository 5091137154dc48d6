"""The numbers that a section opens with: every method's metric along the depth, and differences, with intervals."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import numpy as np

from descend.report.intervals import GroupScores, Jackknife
from descend.report.runs import Arm, Group, RunView, format_alpha, mean_rows
from descend.report.tables import Cell, Row, Table, number
from descend.results import ENOUGH_GROUPS

SAME_SIGMA = 1.02
"""Of two σ_x whose ratio is smaller, γ stands for the same noise."""


def headline(group: Group) -> tuple[Table, list[str]]:
    """The table of numbers, and what a reader has to know of them.

    Differences are those of the same seeds on the same samples, group by group.
    """
    measure, level = group.measure, group.train_noise
    shown = [arm for arm in group.arms if arm.along(measure.entry, level)]
    depth = min(len(arm.along(measure.entry, level)[0]) for arm in shown) - 1
    layers = sorted({1, depth // 2, depth} - {0})
    names = {1: "Layer 1", depth // 2: f"Half depth, layer {depth // 2}", depth: f"Full depth, layer {depth}"}

    def estimate(arm: Arm) -> tuple[np.ndarray, Jackknife | None]:
        """The means over seeds at the shown layers, and what their intervals follow from where that is known."""
        values, tables = mean_rows(arm.along(measure.entry, level)), _tables(arm.runs, group)
        return np.array(values)[layers], Jackknife.of(tables) if tables else None

    def row(cell: Cell, arm: Arm, values: np.ndarray, known: Jackknife | None, *, sign: str) -> Row:
        low, high = known.ends() if known else [np.full(depth + 1, nan)] * 2
        cells = [cell]
        for layer, value in zip(layers, values, strict=True):
            # Without an interval if it is unknown, or nothing varies between groups, as where all answers are right.
            note = f"{number(low[layer])} to {number(high[layer])}" if low[layer] < high[layer] else ""
            cells.append(Cell((sign if value > 0 else "") + number(value), note))
        return Row(cells, arm.style)

    estimates = [estimate(arm) for arm in shown]
    rows = [row(Cell(arm.label), arm, *known, sign="") for arm, known in zip(shown, estimates, strict=True)]
    bodies, notes = [("", rows)], []
    baseline = next((arm for arm in shown if arm.summary.method == "erm"), shown[0])
    against = []
    for arm in shown:
        if arm is baseline:
            continue
        ours, theirs = _same_seeds(arm, baseline)
        if reason := _not_paired(ours, theirs, group):
            notes.append(f"{arm.label} and {baseline.label}: no difference is shown, because {reason}.")
            continue
        (values, known), (base, base_known) = (estimate(replace(arm, runs=runs)) for runs in (ours, theirs))
        difference = known - base_known if known and base_known else None
        of = "" if len(ours) == max(len(arm.runs), len(baseline.runs)) else f"of {len(ours)} shared seeds"
        against.append(row(Cell(arm.label, of), arm, values - base, difference, sign="+"))
    if against:
        bodies.append((f"Minus {baseline.label}, on the same samples", against))
    given = group.input_value
    if given is not None and measure.entry == "layer_metrics":
        notes.insert(0, f"The noisy input itself: {measure.name} {number(given)}.")
    table = Table([measure.name, *(names[layer] for layer in layers)], bodies)
    return table, [_words(group, [known for _, known in estimates if known]), *notes, *evaluated_differently(group)]


def _tables(runs: Sequence[RunView], group: Group) -> list[GroupScores]:
    """Each run's sums over groups of samples, layers in place of noise levels; empty if they are not known or alike."""
    tables = []
    for run in runs:
        layers = run.groups.layers if run.groups else None
        is_loss = group.measure.entry == "layer_losses"
        sums = (layers.losses if is_loss else layers.scores) if layers else []
        if run.groups is None or layers is None or not sums or group.train_noise not in layers.noise:
            return []
        rows = np.array(sums[layers.noise.index(group.train_noise)], float)
        root = run.groups.root and not is_loss
        tables.append(GroupScores(np.arange(len(rows)), root, np.array(layers.counts, float), rows, run.groups.single))
    return tables if all(table.like(tables[0]) for table in tables) else []


def _same_seeds(arm: Arm, other: Arm) -> tuple[list[RunView], list[RunView]]:
    """The runs of the seeds that both arms have; of two arms with one run each these."""
    shared = {run.summary.seed for run in arm.runs} & {run.summary.seed for run in other.runs}
    if not shared and len(arm.runs) == len(other.runs) == 1:
        return arm.runs, other.runs
    ours, theirs = ([run for run in each.runs if run.summary.seed in shared] for each in (arm, other))
    return ours, theirs


def _not_paired(ours: Sequence[RunView], theirs: Sequence[RunView], group: Group) -> str:
    """Why two arms can't be compared sample by sample; empty if they can."""
    if not ours or len(ours) != len(theirs):
        return "they have no seeds in common"
    tables = [_tables([run], group) for run in (*ours, *theirs)]
    if not all(tables):
        return "not both have the layers’ scores by group of samples; evaluate them again"
    if len({len(table.scores) for (table,) in tables}) > 1:
        return "their depths differ"
    return "" if _tables([*ours, *theirs], group) else "they were evaluated on different samples"


def _words(group: Group, intervals: Sequence[Jackknife]) -> str:
    """The unit, the data and what the intervals rest on."""
    measure = group.measure
    level = f"at the training noise γ\u00a0=\u00a0{group.train_noise:g}" if group.train_noise else "without noise"
    better = "higher" if measure.higher else "lower"
    words = (
        f"{measure.name} on {group.summary.split} data {level}, and differences in its own unit; {better} is better."
    )
    known = [each for each in intervals if np.isfinite(each.ends()).all(0).any()]
    if not known:
        return f"{words} No intervals: they need at least two groups of samples, and an evaluation by this version."
    blocks, seeds = min(len(each.sizes) for each in known), max(len(each.by_seed) for each in known)
    groups = min((run.summary.groups for run in group.runs if run.summary.groups), default=blocks)
    samples = min((run.summary.samples for run in group.runs if run.summary.samples), default=blocks)
    single = any(run.groups and run.groups.single for run in group.runs)
    units = samples if single else groups
    over = f"over {units} {'samples of a single group' if single else 'groups of samples'}"
    over += f", in {blocks} blocks" if blocks < units else ""
    over += f" and {seeds} seeds" if seeds > 1 else ", of these trained models alone"
    few = " With so few groups they may be too narrow." if groups < ENOUGH_GROUPS else ""
    return f"{words} In small print: 95\u00a0% intervals {over}, each for itself.{few}"


_APART = {
    "bounds": "The constraints have different bounds, so violations do not compare: {}.",
    "noise": "γ stands for different noise: {}.",
    "levels": "The mean over noise is over different levels, so it does not compare: {}.",
    "samples": "The number of samples differs: {}.",
    "calibration": "Not all were calibrated alike, so losses do not compare: {}.",
}


def evaluated_differently(group: Group) -> list[str]:
    """A line for each way in which the group's arms were not evaluated alike."""
    # Models of text learn their embedding, so its σ_x differs a little between any two.
    sigmas = [sigma for arm in group.arms if (sigma := arm.summary.sigma)]
    apart = bool(sigmas) and max(sigmas) > SAME_SIGMA * min(sigmas)
    lines = []
    for name, sentence in _APART.items():
        labels: dict[str, list[str]] = {}
        for arm in group.arms:
            if words := _facts(arm, sigma=apart)[name]:
                labels.setdefault(words, []).append(arm.label)
        if len(labels) > 1:
            lines.append(sentence.format("; ".join(f"{words} ({', '.join(arms)})" for words, arms in labels.items())))
    return lines


def _facts(arm: Arm, *, sigma: bool) -> dict[str, str]:
    """How an arm was evaluated, by what that concerns; empty words where a file does not say.

    Args:
        arm: The arm.
        sigma: Whether σ_x is among its noise.
    """
    summary = arm.summary
    asked = [f"α = {format_alpha(summary.alpha)}"] if summary.alpha else []
    asked += [f"strength {summary.strength:g}"] if summary.strength is not None and not summary.alpha else []
    asked += [f"from layer {summary.first_layer}"] if asked and summary.first_layer else []
    asked += [f"cap {summary.cap:g}"] if summary.cap is not None else []
    noise = [f"σ_x {summary.sigma:.3g}"] if summary.sigma and sigma else []
    noise += [f"γ as {kind}"] if summary.sigma and (kind := summary.settings.get("noise_is")) else []
    return {
        "bounds": ", ".join(asked),
        "noise": ", ".join(noise),
        "levels": f"γ from {min(summary.noise):g} to {max(summary.noise):g} ({len(summary.noise)})",
        "samples": f"{summary.samples}" if summary.samples else "",
        "calibration": {True: "calibrated", False: "not calibrated", None: ""}[arm.runs[0].calibrated],
    }
