"""What was asked of the layers of constrained runs, whether it holds, and what to do."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from descend.report.runs import Arm, Group, RunView, by_run
from descend.report.tables import Cell, Row, Table, number
from descend.results import ENOUGH_GROUPS, STATUSES, Status, Summary

_MARKS = {"not_asked": "", "holds": "✓", "undecided": "≈", "not_significant": "≈", "broken": "✕", "open": "–"}


class VerdictBox(NamedTuple):
    """Whether the constraints hold, and what to do about it.

    Attributes:
        status: The worst status of the runs, see `descend.results.Verdict`; it sets the colour. It is ``open`` too
            where constraints hold and the output is still worse than the noisy input.
        mark: The status's sign.
        headline: The verdict in a sentence.
        lines: Further sentences.
        advice: What to do.
        tables: Layer by layer, of each run under constraints.
    """

    status: str
    mark: str
    headline: str
    lines: Sequence[str]
    advice: str
    tables: Sequence[Table]


def asked(group: Group) -> VerdictBox | None:
    """The verdict on a group's constrained runs; None where no training asked for descent."""
    runs = [run for run in group.runs if run.summary.asked]
    if not runs:
        return None
    status: Status = max((run.summary.status for run in runs), key=STATUSES.index)
    headline, advice = _in_words(status, [run.summary for run in runs])
    said = by_run(group, ((run, _without_title(run.summary.verdict)) for run in runs))
    said += by_run(group, ((run, "" if run.summary.few_groups else run.summary.certificate) for run in runs))
    said += by_run(group, ((run, _asked_of(run.summary)) for run in runs))
    worse = by_run(group, ((run, _beside_input(group, run)) for run in group.runs))
    shown: Status = "open" if worse and status in ("holds", "undecided") else status
    tables = [_layers(group, arm) for arm in group.arms if arm.summary.asked and arm.summary.violations]
    return VerdictBox(shown, _MARKS[shown], headline, [*said, *worse], advice, tables)


def findings(group: Group) -> list[str]:
    """What is known of single samples: ratios of losses, early exits and drafting."""
    ratios, exits, drafts = [], [], []
    for run in group.runs:
        summary, falls = run.summary, ""
        if summary.descending_share is not None:
            falls = f"; {100 * summary.descending_share:.0f}\u00a0% are below 1"
        if (median := summary.ratios.median) is not None:
            ratios.append((run, f"A sample’s loss after a layer over that before it: median {number(median)}{falls}."))
        exits.append((run, summary.exit.sentence(summary.metric) if summary.exit else ""))
        drafts.append((run, summary.speculation.sentence(summary.depth) if summary.speculation else ""))
    return [line for said in (ratios, exits, drafts) for line in by_run(group, said)]


def _in_words(status: Status, summaries: Sequence[Summary]) -> tuple[str, str]:
    """The headline of some constrained runs, and what to do."""
    counts, total = Counter(summary.status for summary in summaries), len(summaries)
    scripts = any(summary.of_script for summary in summaries)
    asks = {"alpha" if summary.alpha and summary.target != "geometric" else "strength" for summary in summaries}
    flags = "" if scripts else "--"
    where = "the trainer’s arguments" if scripts else "descend train"
    less = f"ask for less by a lower {' or '.join(f'{flags}{name}' for name in sorted(asks))} of {where}"
    scope = f", in all {total} runs" if total > 1 else ""
    if status == "holds":
        return f"Feasible: every layer lowers the loss as asked{scope}", "Nothing: this is certain."
    if status == "undecided":
        certain = f"; beyond doubt in {counts['holds']}" if counts["holds"] else ""
        return (
            f"Feasible as far as the data can tell{scope}{certain}",
            f"Nothing on these data speaks against the constraints. To be certain, evaluate on more data, or {less}.",
        )
    if status == "open":
        return (
            "Open: these data are too few to tell whether the constraints hold",
            f"Evaluate on at least {ENOUGH_GROUPS} groups of samples, such as clips or texts.",
        )
    broken, headline = counts["broken"] + counts["not_significant"], "Not feasible: the constraints do not hold"
    if total > 1:
        proven = f", proven in {counts['broken'] or 'none'}" if counts["not_significant"] else ""
        headline = f"Not feasible in {broken} of {total} runs{proven or ': there the constraints do not hold'}"
    elif status == "not_significant":
        headline = "Not feasible, but not proven: that a bound is missed may be chance"
    chance = "What is not proven may be chance: evaluate on more data first. " * bool(counts["not_significant"])
    again = "load it and give it to descend.evaluate" if scripts else "evaluate it with --model best_feasible"
    return headline, (
        f"{chance}Train longer, or if only deep layers break for fewer steps: then the model overfits. Or {less}. If "
        f"the run’s folder holds best_feasible, that model met the constraints: {again}."
    )


def _without_title(words: str) -> str:
    """A verdict without the word that the headline has: "Feasible: every …" becomes "Every …"."""
    title, _, rest = words.partition(": ")
    if not rest or not title.lower().startswith(("feasible", "infeasible", "open")):
        return words
    return rest[0].upper() + rest[1:]


def _beside_input(group: Group, run: RunView) -> str:
    """The metric of an output that is worse than the noisy input itself; else empty."""
    given, rows = group.input_value, run.summary.layer_metrics.get(group.train_noise)
    if given is None or not rows:
        return ""
    value, sign = rows[-1], 1 if run.summary.higher_is_better else -1
    if sign * value >= sign * given:
        return ""
    return f"{group.metric} of the output at the training noise {number(value)}, of the noisy input {number(given)}."


def _asked_of(summary: Summary) -> str:
    """What the constraints ask for; empty where it is not known."""
    steps = {layer: 1 - limit for layer, limit in enumerate(summary.limits) if limit is not None}
    if not steps:
        words = "What each layer had to reach follows from the losses, at a strength of"
        return "" if summary.strength is None else f"{words} {summary.strength:g}."
    sizes = [f"{100 * step:.2g}" for step in steps.values()]
    listed = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
    return f"Asked of layers {min(steps)} to {max(steps)}: a loss {listed}\u00a0% lower than the layer before."


def _layers(group: Group, arm: Arm) -> Table:
    """What each layer of an arm's first run had to reach at the training noise, and what it reaches."""
    summary = arm.summary
    losses, to_reach = summary.layer_losses[summary.train_noise], summary.losses_to_reach(summary.train_noise)
    rows = []
    for layer in range(1, summary.depth + 1):
        certain = "–"
        if summary.certified and not summary.few_groups:
            share = summary.certified[layer - 1]
            certain = f"{share:.1%}" if share > 0 else "not certain"
        violation = number(summary.violations[layer - 1]) if summary.asks(layer) else "–"
        cells = [f"Layer {layer}", number(losses[layer]), number(to_reach.get(layer)), violation]
        rows.append(Row([*(Cell(each, strong=layer in summary.violated) for each in cells), Cell(certain)]))
    heads = ("Layer", "Loss", "Had to reach", "Violation", "Lowers the loss by at least")
    whose = ", ".join([arm.label] * (len(group.arms) > 1) + [f"seed {summary.seed}"] * (len(arm.runs) > 1))
    return Table(heads, [("", rows)], f"Layer by layer{f' ({whose})' if whose else ''}")
