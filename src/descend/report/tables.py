"""The page's tables of runs and of layers, as data."""

from collections.abc import Sequence
from math import isfinite
from statistics import fmean, stdev

from descend.report.runs import Arm, Group, RunView, group_name
from descend.report.views import Body, Cell, Row, Table

TIME = "Training, machine time of this run"


def runs_tables(groups: Sequence[Group]) -> list[Table]:
    """For each metric a table with one row per arm, by group; of several seeds every run by itself.

    A row has the mean ± standard deviation over seeds.
    """
    by_metric: dict[str, list[Group]] = {}
    for group in groups:
        by_metric.setdefault(group.metric, []).append(group)
    named = len(groups) > 1
    return [table for metric, members in by_metric.items() for table in _tables(metric, members, named)]


def _tables(metric: str, groups: Sequence[Group], named: bool) -> list[Table]:
    """The tables of groups with one metric."""
    area = ["Area over γ"] if groups[0].higher_is_better else []
    heads = ("Method", f"{metric}, mean over noise", "At training noise", *area, "Feasible", "Descending layers", TIME)
    bodies = [
        Body(
            [Row(_arm_cells(arm, area=bool(area)), arm.style) for arm in group.arms],
            group_name(group) if named else "",
        )
        for group in groups
    ]
    several = any(len(arm.runs) > 1 for group in groups for arm in group.arms)
    return [Table(heads, bodies), *([_every_run(metric, groups, named)] if several else [])]


def layers_table(run: RunView, heading: str, *, opened: bool) -> Table:
    """What each layer had to reach at the training noise, and what it reaches, one row per layer.

    Args:
        run: A run with constraints.
        heading: The heading under which the table is folded away.
        opened: Whether the page shows it unfolded.
    """
    summary = run.summary
    losses, to_reach = summary.layer_losses[summary.train_noise], summary.losses_to_reach(summary.train_noise)
    rows = [
        Row(
            [
                Cell(f"Layer {layer}"),
                Cell(number(losses[layer])),
                Cell(number(to_reach.get(layer))),
                Cell(
                    number(summary.violations[layer - 1]) if summary.asks(layer) else "–",
                    strong=layer in summary.violated,
                ),
                Cell(_at_least(summary.certified[layer - 1]) if summary.certified and not summary.few_groups else "–"),
            ]
        )
        for layer in range(1, summary.depth + 1)
    ]
    heads = ("Layer", "Loss", "Had to reach", "Violation", "Lowers the loss by at least")
    return Table(heads, [Body(rows)], heading, opened)


def _at_least(share: float) -> str:
    return f"{share:.1%}" if share > 0 else "not certain"


def _every_run(metric: str, groups: Sequence[Group], named: bool) -> Table:
    rows = [
        Row(
            [
                Cell(run.name, group_name(group) if named else ""),
                Cell(str(run.summary.seed)),
                Cell(number(run.summary.mean)),
                Cell(number(run.train_value)),
                _feasible([run]),
            ],
            arm.style,
        )
        for group in groups
        for arm in group.arms
        for run in arm.runs
    ]
    heads = ("Run", "Seed", f"{metric}, mean over noise", "At training noise", "Feasible")
    return Table(heads, [Body(rows)], "Every run by itself")


def _arm_cells(arm: Arm, *, area: bool) -> list[Cell]:
    summaries = [run.summary for run in arm.runs]
    shares = [summary.descending_share for summary in summaries if summary.descending_share is not None]
    seconds = [summary.seconds for summary in summaries if summary.seconds is not None and isfinite(summary.seconds)]
    return [
        Cell(arm.label, f"{len(arm.runs)} seeds" if len(arm.runs) > 1 else ""),
        Cell(_spread([summary.mean for summary in summaries])),
        Cell(_spread([run.train_value for run in arm.runs])),
        *([Cell(_spread([summary.auc for summary in summaries]))] if area else []),
        _feasible(arm.runs),
        Cell(f"{fmean(shares):.0%}" if shares else "–"),
        Cell(_duration(fmean(seconds)) if seconds else "–"),
    ]


def _feasible(runs: Sequence[RunView]) -> Cell:
    known = [run.summary.feasible for run in runs if run.summary.feasible is not None]
    if not known:
        return Cell("–")
    words = f"{sum(known)} of {len(known)}" if len(known) > 1 else "yes" if known[0] else "no"
    if all(run.summary.open for run in runs):
        return Cell("open", f"so far {words}")
    if not all(known):
        broken = [run.summary for run in runs if run.summary.feasible is False]
        note = "not proven" if all(summary.unproven for summary in broken) else ""
        return Cell(words, note, strong=runs[0].summary.constrained)
    return Cell(words, "" if all(run.summary.certain for run in runs) else "as far as can be told")


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return number(known[0] if known else None)
    digits = 3 if abs(fmean(known)) < 1 else 2
    spread = f" ± {stdev(known):.{digits}f}" if all(map(isfinite, known)) else ""
    return number(fmean(known)) + spread


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
