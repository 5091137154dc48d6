"""The numbers that a section opens with: every method's metric along the depth, and differences, with intervals."""

from collections.abc import Callable, Sequence
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from descend.report.intervals import GroupScores, Jackknife
from descend.report.runs import Arm, Group, RunView, format_alpha
from descend.report.tables import number
from descend.report.views import Body, Cell, Row, Table
from descend.results import ENOUGH_GROUPS

SAME_SIGMA = 1.02
"""Of two σ_x whose ratio is smaller, γ stands for the same noise."""


class Measure(NamedTuple):
    """What the opening shows: its name for readers, which of two values is better, and whether it is the loss."""

    name: str
    higher: bool
    is_loss: bool


def measure_of(group: Group) -> Measure:
    """The group's metric; the loss where no arm has the metric at each layer."""
    if any(arm.metrics(group.train_noise) for arm in group.arms):
        return Measure(group.metric, group.higher_is_better, group.measure == "loss")
    return Measure("Loss", False, True)


def values_along(arm: Arm, group: Group, measure: Measure) -> list[list[float]]:
    """The measure at each layer 0 … L at the training noise, of each seed that has it."""
    if not measure.is_loss:
        return arm.metrics(group.train_noise)
    return [run.summary.layer_losses[group.train_noise] for run in arm.runs]


def headline(group: Group) -> tuple[Table, list[str]]:
    """The table of numbers, and what a reader has to know of them.

    Differences are those of the same seeds on the same samples, group by group.
    """
    measure = measure_of(group)
    shown = [arm for arm in group.arms if values_along(arm, group, measure)]
    depth = min(len(rows[0]) for arm in shown for rows in [values_along(arm, group, measure)]) - 1
    layers = sorted({1, depth // 2, depth} - {0})
    names = {1: "Layer 1", depth // 2: f"Half depth, layer {depth // 2}", depth: f"Full depth, layer {depth}"}
    intervals: list[Jackknife] = []
    rows = []
    for arm in shown:
        by_layer = [_values(arm, arm.runs, group, measure, layer) for layer in layers]
        intervals += [known for _, known in by_layer if known]
        rows.append(Row([Cell(arm.label), *(_cell(*pair) for pair in by_layer)], arm.style))
    bodies, notes = [Body(rows)], []
    baseline = next((arm for arm in shown if arm.method == "erm"), shown[0])
    against = []
    for arm in shown:
        if arm is baseline:
            continue
        ours, theirs = _same_seeds(arm, baseline)
        reason = _not_paired(arm, baseline, ours, theirs, group, measure)
        if reason:
            notes.append(f"{arm.label} and {baseline.label}: no difference is shown, because {reason}.")
            continue
        pairs = [
            (_values(arm, ours, group, measure, layer), _values(baseline, theirs, group, measure, layer))
            for layer in layers
        ]
        differences = [_difference(*pair) for pair in pairs]
        of = "" if len(ours) == max(len(arm.runs), len(baseline.runs)) else f"of {len(ours)} shared seeds"
        against.append(Row([Cell(arm.label, of), *(_cell(*pair, signed=True) for pair in differences)], arm.style))
    if against:
        bodies.append(Body(against, f"Minus {baseline.label}, on the same samples"))
    given = group.input_value
    if given is not None and not measure.is_loss:
        notes.insert(0, f"The noisy input itself: {measure.name} {number(given)}.")
    table = Table([measure.name, *(names[layer] for layer in layers)], bodies)
    return table, [_words(group, measure, intervals), *notes, *judged_apart(group)]


def _values(
    arm: Arm, runs: Sequence[RunView], group: Group, measure: Measure, layer: int
) -> tuple[float, Jackknife | None]:
    """The mean over seeds at a layer, and what its interval follows from; None where that is not known."""
    level = group.train_noise
    known = [run.summary.layer_losses if measure.is_loss else run.summary.layer_metrics for run in runs]
    values = [rows[level][layer] for rows in known if level in rows]
    value = float(np.mean(values)) if values else nan
    tables = [_by_layer(run, level, measure) for run in runs]
    first = tables[0]
    if first is None or not isfinite(value) or not all(table and table.like(first) for table in tables):
        return value, None
    return value, Jackknife.of([table for table in tables if table], lambda sums, _: sums[..., layer])


def _by_layer(run: RunView, level: float, measure: Measure) -> GroupScores | None:
    """A run's sums over groups of samples with its layers in place of noise levels; None if it has none."""
    layers = run.groups.layers if run.groups else None
    sums = (layers.losses if measure.is_loss else layers.scores) if layers else []
    if run.groups is None or layers is None or not sums or level not in layers.noise:
        return None
    rows = np.array(sums[layers.noise.index(level)], float)
    root = run.groups.root and not measure.is_loss
    return GroupScores(np.arange(len(rows)), root, np.array(layers.counts, float), rows, run.groups.single)


def _difference(
    ours: tuple[float, Jackknife | None], theirs: tuple[float, Jackknife | None]
) -> tuple[float, Jackknife | None]:
    known = ours[1] - theirs[1] if ours[1] and theirs[1] else None
    return ours[0] - theirs[0], known


def _cell(value: float, known: Jackknife | None, signed: bool = False) -> Cell:
    sign = "+" if signed and value > 0 else ""
    low, high = known.ends() if known else (nan, nan)
    if not low < high:  # unknown, or nothing varies between groups, as where all answers are right
        return Cell(sign + number(value))
    return Cell(sign + number(value), f"{number(low)} to {number(high)}")


def _same_seeds(arm: Arm, other: Arm) -> tuple[list[RunView], list[RunView]]:
    """The runs of the seeds that both arms have; of two arms with one run each these."""
    shared = {run.summary.seed for run in arm.runs} & {run.summary.seed for run in other.runs}
    if not shared and len(arm.runs) == len(other.runs) == 1:
        return arm.runs, other.runs
    ours, theirs = ([run for run in each.runs if run.summary.seed in shared] for each in (arm, other))
    return ours, theirs


def _not_paired(
    arm: Arm, baseline: Arm, ours: Sequence[RunView], theirs: Sequence[RunView], group: Group, measure: Measure
) -> str:
    """Why two arms can't be compared sample by sample; empty if they can."""
    if not ours or len(ours) != len(theirs):
        return "they have no seeds in common"
    tables = [_by_layer(run, group.train_noise, measure) for run in (*ours, *theirs)]
    if not all(tables):
        return "not both have the layers’ scores by group of samples; evaluate them again"
    first, *others = [table for table in tables if table]
    if any(len(table.scores) != len(first.scores) for table in others):
        return "their depths differ"
    if not all(table.like(first) for table in others):
        return "they were judged on different samples"
    return ""


def _words(group: Group, measure: Measure, intervals: Sequence[Jackknife]) -> str:
    """The unit, the data and what the intervals rest on."""
    level = f"at the training noise γ\u00a0=\u00a0{group.train_noise:g}" if group.train_noise else "without noise"
    better = "higher" if measure.higher else "lower"
    words = f"{measure.name} on {group.split} data {level}, and differences in its own unit; {better} is better."
    known = [each for each in intervals if all(map(isfinite, each.ends()))]
    if not known:
        return f"{words} No intervals: they need at least two groups of samples, and an evaluation by this version."
    blocks, seeds = min(len(each.sizes) for each in known), max(each.seeds for each in known)
    groups = min((run.summary.groups for run in group.runs if run.summary.groups), default=blocks)
    samples = min((run.summary.samples for run in group.runs if run.summary.samples), default=blocks)
    single = any(run.groups and run.groups.single for run in group.runs)
    units = samples if single else groups
    over = f"over {units} {'samples of a single group' if single else 'groups of samples'}"
    over += f", in {blocks} blocks" if blocks < units else ""
    over += f" and {seeds} seeds" if seeds > 1 else ", of these trained models alone"
    few = " With so few groups they may be too narrow." if groups < ENOUGH_GROUPS else ""
    return f"{words} In small print: 95\u00a0% intervals {over}, each for itself.{few}"


def _facts(arm: Arm, sigma: bool) -> dict[str, str]:
    """How an arm was judged, by what that concerns; empty words where a file does not say.

    Args:
        arm: The arm.
        sigma: Whether σ_x is among its noise.
    """
    run = arm.runs[0]
    summary = run.summary
    asked = [f"α = {format_alpha(summary.alpha)}"] if summary.alpha else []
    asked += [f"strength {summary.strength:g}"] if summary.strength is not None and not summary.alpha else []
    asked += [f"from layer {summary.first_layer}"] if asked and summary.first_layer else []
    asked += [f"cap {summary.cap:g}"] if summary.cap is not None else []
    noise = [f"σ_x {summary.sigma:.3g}"] if summary.sigma and sigma else []
    noise += [f"γ as {kind}"] if summary.sigma and (kind := summary.settings.get("noise_is")) else []
    levels = f"γ from {min(summary.noise):g} to {max(summary.noise):g} ({len(summary.noise)})"
    return {
        "bounds": ", ".join(asked),
        "noise": ", ".join(noise),
        "levels": levels,
        "samples": f"{summary.samples}" if summary.samples else "",
        "calibration": {True: "calibrated", False: "not calibrated", None: ""}[run.calibrated],
    }


_APART: dict[str, Callable[[str], str]] = {
    "bounds": lambda each: f"The constraints were judged by different bounds, so violations do not compare: {each}.",
    "noise": lambda each: f"γ stands for different noise: {each}.",
    "levels": lambda each: f"The mean over noise is over different levels, so it does not compare: {each}.",
    "samples": lambda each: f"The number of samples differs: {each}.",
    "calibration": lambda each: f"Not all were calibrated alike, so losses do not compare: {each}.",
}


def judged_apart(group: Group) -> list[str]:
    """A line for each way in which the group's arms were not judged alike."""
    # Models of text learn their embedding, so its σ_x differs a little between any two.
    sigmas = [sigma for arm in group.arms if (sigma := arm.runs[0].summary.sigma)]
    apart = bool(sigmas) and max(sigmas) > SAME_SIGMA * min(sigmas)
    facts = {arm.label: _facts(arm, apart) for arm in group.arms}
    lines = []
    for name, words in _APART.items():
        by_value: dict[str, list[str]] = {}
        for label, known in facts.items():
            if known[name]:
                by_value.setdefault(known[name], []).append(label)
        if len(by_value) > 1:
            lines.append(words("; ".join(f"{value} ({', '.join(labels)})" for value, labels in by_value.items())))
    return lines
