"""What a section begins with: how many layers suffice, run by run."""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from descend.report.runs import Group, RunView
from descend.report.tables import Cell, Row, Table
from descend.report.verdict import remarks
from descend.results import CONFIDENCE, ENOUGH_GROUPS, WITHIN
from descend.results.findings import KEPT_WITHIN, tolerance_words


class Answer(NamedTuple):
    """How many layers suffice: a headline, a row for each run, and what a reader has to know of them."""

    headline: str
    table: Table | None
    lines: Sequence[str]


def answer(group: Group) -> Answer | None:
    """The answer of a group's runs; None for runs with a verdict that were evaluated before there was an answer."""
    known = [run for run in group.runs if run.summary.layers_needed]
    asked = any(run.summary.asked for run in group.runs)
    lines = [] if asked else remarks(group)
    if not known:
        return None if asked else Answer("How many layers suffice was not measured", None, lines)
    headline = known[0].summary.headline if len(group.runs) == 1 else "How many layers suffice"
    return Answer(headline, _table(group), [*_words(group, known), *lines])


def _table(group: Group) -> Table:
    """A row for each run: K and its time for each tolerance, the time of all layers, and whether the last is kept."""
    higher = group.summary.higher_is_better
    levels = sorted({0.0, group.train_noise} & {level for run in group.runs for level in run.summary.kept})
    kept = [f"Last layer, γ\u00a0=\u00a0{level:g}" if level else "Last layer, clean" for level in levels]
    heads = ["Method", *(f"Within {tolerance_words(percent, higher)}" for percent in WITHIN), "All layers", *kept]
    rows = []
    for arm in group.arms:
        for run in arm.runs:
            times = [f"{time:.3g}\u00a0ms" for time in run.summary.latency.milliseconds] if run.summary.latency else []
            cells = [Cell(arm.label, f"seed {run.summary.seed}" if len(arm.runs) > 1 else "")]
            cells += [_cell(run, percent, times) for percent in WITHIN]
            cells += [Cell(str(run.summary.depth), times[-1] if times else "")]
            cells += [Cell(run.summary.kept.get(level, "–")) for level in levels]
            rows.append(Row(cells, arm.style))
    return Table(heads, [("", rows)])


def _cell(run: RunView, percent: int, times: Sequence[str]) -> Cell:
    needed = run.summary.layers_needed
    choice = needed.choice(percent) if needed else None
    if choice is None:
        return Cell("none" if needed else "–")
    state = choice.state_words
    if choice.state != "proven" and isfinite(choice.at_most):
        state += f", up to {choice.at_most:.1f}\u00a0worse"
    words = f"{choice.layer}\u00a0of\u00a0{run.summary.depth}" if choice.layer else "the embedding alone"
    return Cell(words, ", ".join([state, *times[choice.layer : choice.layer + 1]]))


def _words(group: Group, known: Sequence[RunView]) -> list[str]:
    """What K is, to whose full depth layers are held, and what the data are too few for."""
    summary = known[0].summary
    full_depths: dict[str, list[str]] = {}
    for arm in group.arms:
        for run in arm.runs:
            if run.summary.layers_needed:
                labels = full_depths.setdefault(run.summary.full_depth, [])
                labels += [] if arm.label in labels else [arm.label]
    held = "; ".join(f"{', '.join(labels)} to {full}" for full, labels in full_depths.items())
    chosen = ", chosen on validation data" if any(run.summary.validation for run in known) else ""
    unit = "points" if summary.higher_is_better else "%"
    metric = group.metric if group.metric.isupper() else group.metric.lower()
    lines = [
        f"K of L layers: layer K and all deeper ones are within so many {unit} of the {metric} at full depth, at "
        f"γ\u00a0=\u00a0{group.train_noise:g}{chosen}. Certified: the {summary.split} data say so with "
        f"{CONFIDENCE:.0%} confidence. Open means that more data would decide; so far they may be so many {unit} "
        f"worse. Held to: {held if len(group.runs) > 1 else next(iter(full_depths))}."
    ]
    if any(run.summary.kept for run in known):
        within = tolerance_words(KEPT_WITHIN, summary.higher_is_better)
        lines.append(
            f"Last layer: whether it is within {within} of the baseline’s. Proven, open, or broken, each "
            f"with {CONFIDENCE:.0%} confidence for itself."
        )
    if few := [run.summary.groups for run in known if run.summary.groups and run.summary.few_groups]:
        lines.append(f"{min(few)} groups of samples certify nothing: at least {ENOUGH_GROUPS} are needed.")
    return lines
