"""The page's tables of runs, of layers and of depths, as data."""

from collections.abc import Sequence
from math import isfinite
from statistics import fmean, stdev
from typing import NamedTuple

from descend.report.runs import Arm, Group, RunView, Style
from descend.results import WITHIN
from descend.results.findings import tolerance_words


class Cell(NamedTuple):
    """A cell of a table; its ``note`` follows in small print."""

    text: str
    note: str = ""
    strong: bool = False


class Row(NamedTuple):
    """A row of a table; the style's colour marks it in front of its first cell."""

    cells: Sequence[Cell]
    style: Style | None = None


class Table(NamedTuple):
    """A table: parts of rows, each with its name or an empty one; folded away under a ``heading`` if there is one."""

    heads: Sequence[str]
    bodies: Sequence[tuple[str, Sequence[Row]]]
    heading: str = ""
    opened: bool = False


def runs_tables(groups: Sequence[Group]) -> list[Table]:
    """For each metric a table with one row per arm, by group; of several seeds every run by itself.

    A row has the mean ± standard deviation over seeds.
    """
    by_metric: dict[str, list[Group]] = {}
    for group in groups:
        by_metric.setdefault(group.metric, []).append(group)
    tables = []
    for metric, members in by_metric.items():
        higher = members[0].summary.higher_is_better
        numbers = [f"{metric}, mean over noise", "At training noise"]
        asked = any(run.summary.asked for group in members for run in group.runs)
        feasible = ["Feasible"] * asked
        heads = ["Method", *numbers, *["Area over γ"] * higher, *feasible, "Descending layers"]
        bodies = [
            (
                group.name if len(groups) > 1 else "",
                [Row(_arm_cells(arm, area=higher, asked=asked), arm.style) for arm in group.arms],
            )
            for group in members
        ]
        tables.append(Table([*heads, "Training, machine time of this run"], bodies))
        if any(len(arm.runs) > 1 for group in members for arm in group.arms):
            rows = [
                Row(
                    [
                        Cell(run.name, name),
                        Cell(str(run.summary.seed)),
                        *_noise_cells([run]),
                        *[_feasible([run])] * asked,
                    ],
                    arm.style,
                )
                for group, (name, _) in zip(members, bodies, strict=True)
                for arm in group.arms
                for run in arm.runs
            ]
            tables.append(Table(["Run", "Seed", *numbers, *feasible], [("", rows)], "Every run by itself"))
    return tables


def layers_table(run: RunView, heading: str, *, opened: bool) -> Table:
    """What each layer had to reach at the training noise, and what it reaches, one row per layer.

    Args:
        run: A run with constraints.
        heading: The heading under which the table is folded away.
        opened: Whether the page shows it unfolded.
    """
    summary = run.summary
    losses, to_reach = summary.layer_losses[summary.train_noise], summary.losses_to_reach(summary.train_noise)
    rows = []
    for layer in range(1, summary.depth + 1):
        violation = number(summary.violations[layer - 1]) if summary.asks(layer) else "–"
        certain = "–"
        if summary.certified and not summary.few_groups:
            share = summary.certified[layer - 1]
            certain = f"{share:.1%}" if share > 0 else "not certain"
        words = f"Layer {layer}", number(losses[layer]), number(to_reach.get(layer))
        cells = [*map(Cell, words), Cell(violation, strong=layer in summary.violated), Cell(certain)]
        rows.append(Row(cells))
    heads = ("Layer", "Loss", "Had to reach", "Violation", "Lowers the loss by at least")
    return Table(heads, [("", rows)], heading, opened)


def depth_table(group: Group) -> Table:
    """For each noise level the first layer within 1, 2 and 5 percent of full depth, and the area over depth."""
    bodies = []
    for level in group.noise_levels:
        rows = []
        for arm in group.arms:
            if curve := arm.anytime(level):
                times = [f"{time:.3g} ms" for time in arm.milliseconds] or [""] * len(curve.metric)
                first = [curve.first_within[percent] for percent in WITHIN]
                cells = [Cell("–") if layer is None else Cell(f"layer {layer}", times[layer]) for layer in first]
                full = Cell(number(curve.metric[-1]), times[-1])
                rows.append(Row([Cell(arm.label), *cells, full, Cell(number(curve.area))], arm.style))
        if rows:
            bodies.append((f"γ = {level:g}", rows))
    within = [f"Within {tolerance_words(percent, group.summary.higher_is_better)}" for percent in WITHIN]
    heads = ("Method", *within, "Full depth", "Area over depth")
    return Table(heads, bodies, "First layer close to full depth")


def _arm_cells(arm: Arm, *, area: bool, asked: bool) -> list[Cell]:
    summaries = [run.summary for run in arm.runs]
    shares = [summary.descending_share for summary in summaries if summary.descending_share is not None]
    seconds = [summary.seconds for summary in summaries if summary.seconds is not None and isfinite(summary.seconds)]
    return [
        Cell(arm.label, f"{len(arm.runs)} seeds" if len(arm.runs) > 1 else ""),
        *_noise_cells(arm.runs),
        *([Cell(_spread([summary.auc for summary in summaries]))] if area else []),
        *[_feasible(arm.runs)] * asked,
        Cell(f"{fmean(shares):.0%}" if shares else "–"),
        Cell(_duration(fmean(seconds)) if seconds else "–"),
    ]


def _noise_cells(runs: Sequence[RunView]) -> list[Cell]:
    """The mean over noise and the value at the training noise."""
    return [Cell(_spread([run.summary.mean for run in runs])), Cell(_spread([run.train_value for run in runs]))]


def _feasible(runs: Sequence[RunView]) -> Cell:
    known = [run.summary.feasible for run in runs if run.summary.asked and run.summary.feasible is not None]
    if not known:
        return Cell("–")
    words = f"{sum(known)} of {len(known)}" if len(known) > 1 else "yes" if known[0] else "no"
    statuses = {run.summary.status for run in runs}
    if statuses == {"open"}:
        return Cell("open", f"so far {words}")
    if not all(known):
        return Cell(words, "" if "broken" in statuses else "not proven", strong=True)
    return Cell(words, "" if statuses == {"holds"} else "as far as can be told")


def _spread(values: Sequence[float | None]) -> str:
    """The mean ± the standard deviation of those that are known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return number(known[0] if known else None)
    digits = 3 if abs(fmean(known)) < 1 else 2
    return number(fmean(known)) + (f" ± {stdev(known):.{digits}f}" if all(map(isfinite, known)) else "")


def number(value: float | None) -> str:
    """A number for a reader: a dash for none, and a word for one that is not finite."""
    if value is None:
        return "–"
    if not isfinite(value):
        return "diverged"
    return f"{value:.2f}" if 1 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest}\u00a0s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
