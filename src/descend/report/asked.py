"""What was asked of the layers of constrained runs, whether it holds, and what to do."""

from descend.report.answer import Answer
from descend.report.runs import Arm, Group, by_run, format_alpha
from descend.report.tables import Box, Cell, Row, Table
from descend.report.words import (
    after_words,
    capitalized,
    drafts_words,
    exits_words,
    less_words,
    missed_of,
    number,
    within_words,
)
from descend.results import ENOUGH_GROUPS, STATUSES, Results, Status

_MEND = (
    "Train longer; if only deep layers break, for fewer steps, as the model may overfit, or with fewer layers, as the "
    "last ones may have nothing left to do. Or ask for less by {less}. If the run’s folder holds best_feasible, that "
    "model met the constraints: evaluate it with --model best_feasible, in Python by descend.evaluate."
)
_WORDS = {
    "holds": ("✓", "Feasible", "Nothing: the constraints hold, with 95 % confidence. What they give is told below."),
    "undecided": (
        "≈",
        "Feasible as far as the data can tell",
        "Nothing on these data speaks against the constraints. To be certain, evaluate on more data, or ask for less "
        "by {less}.",
    ),
    "open": ("–", "Open", f"Evaluate on at least {ENOUGH_GROUPS} groups of samples, such as clips or texts."),
    "not_significant": (
        "≈",
        "Infeasible, but not proven",
        f"What is not proven may be chance: evaluate on more data first. {_MEND}",
    ),
    "broken": ("✕", "Infeasible", _MEND),
}
"""Status → its sign, the headline, and what to do, with a place for `less_words`."""


def asked(group: Group) -> Box | None:
    """The verdict on a group's constrained runs; None where no training asked for descent."""
    runs = [run for run in group.runs if run.summary.asked]
    if not runs:
        return None
    statuses: list[Status] = [run.summary.status for run in runs]
    status = max(statuses, key=STATUSES.index)
    _, headline, advice = _WORDS[status]
    worst = max((run.summary for run in runs if run.summary.status == status), key=lambda each: len(each.violated))
    shown = status
    if status == "open" and worst.missed:
        shown, advice = "not_significant", f"{advice} {_MEND}"
    if worst.violated or status != "broken":  # an older file does not name them
        headline = f"{missed_of(worst)}: {headline[0].lower()}{headline[1:]}"
    if len(runs) > 1:
        headline += f", in {statuses.count(status)} of {len(runs)} runs"
    lines = [
        *((run, f"Asked: {bounds(run)}.") for run in runs),
        *((run, Answer.of(run.summary).verdict) for run in runs),
        *((run, f"{missed_of(run.summary)}." if run.summary.missed else "") for run in runs),
        *((run, Answer.of(run.summary).certificate) for run in runs),
        *((run, Answer.of(run.summary).dual) for run in runs),
    ]
    worse = by_run(group, ((run, _beside_input(group, run)) for run in group.runs))
    shown = "open" if worse and status in ("holds", "undecided") else shown
    tables = [_layers(group, arm) for arm in group.arms if arm.summary.asked and arm.summary.violations]
    advice = advice.format(less=less_words(worst))
    return Box(headline, tables, [*by_run(group, lines), *worse], shown, _WORDS[shown][0], advice)


def bounds(run: Results) -> str:
    """What the constraints are, in words."""
    summary = run.summary
    words = [f"α = {format_alpha(summary.alpha)}"] if summary.alpha else []
    words += [f"strength {summary.strength:g}"] if summary.strength is not None and not summary.alpha else []
    words += [f"from layer {summary.first_layer}"] if words and summary.first_layer else []
    words += filter(None, [after_words(summary), within_words(summary)])
    return ", ".join([*words, *([f"cap {summary.cap:g}"] if summary.cap is not None else [])])


def findings(group: Group) -> list[str]:
    """What is known of single samples: ratios of losses, early exits and drafting."""
    ratios = []
    for run in group.runs:
        share, median = run.summary.descending_share, run.summary.ratios.median
        falls = "" if share is None else f"; {100 * share:.0f}\u00a0% are below 1"
        if median is not None:
            ratios.append((run, f"A sample’s loss after a layer over that before it: median {number(median)}{falls}."))
    exits = [(run, exits_words(summary.exit, summary.metric)) for run in group.runs if (summary := run.summary).exit]
    drafts = [(run, drafts_words(text, run.summary.depth)) for run in group.runs if (text := run.summary.speculation)]
    return by_run(group, [*ratios, *exits, *drafts])


def _beside_input(group: Group, run: Results) -> str:
    """The metric of an output that is worse than the noisy input itself; else empty."""
    given, rows = group.input_value, run.summary.layer_metrics.get(group.train_noise)
    sign = 1 if run.summary.higher_is_better else -1
    if given is None or not rows or sign * rows[-1] >= sign * given:
        return ""
    value = number(rows[-1])
    return f"{group.metric} of the output at the training noise {value}, of the noisy input {number(given)}."


def _layers(group: Group, arm: Arm) -> Table:
    """What each layer of an arm's worst run had to reach at the training noise, what it reaches, and its λ."""
    run = max(arm.runs, key=lambda each: STATUSES.index(each.summary.status))
    summary, rows = run.summary, []
    for each in Answer.of(run.summary).constraints:
        share = each.certified
        certain = "–" if share is None else f"{share:.1%}" if share > 0 else "not certain"
        ends = " to ".join(map(number, each.interval)) if each.interval else ""
        cells = [
            Cell(f"{capitalized(summary.unit)} {each.layer}"),
            Cell(number(each.loss)),
            Cell(number(each.bound)),
            Cell(number(each.violation), ends),
        ]
        cells = [cell._replace(strong=each.broken) for cell in cells]
        rest = f"{each.slackness:.1%} of the objective" if each.slackness else ""
        rows.append(Row([*cells, Cell(certain), Cell(number(each.multiplier), rest)]))
    heads = [
        "Layer",
        "Loss",
        "Had to reach",
        "Violation (above 0: missed)",
        "Lowers the loss by at least",
        "Multiplier λ, times violation",
    ]
    whose = ", ".join([arm.label] * (len(group.arms) > 1) + [f"seed {summary.seed}"] * (len(arm.runs) > 1))
    return Table(heads, rows, f"Layer by layer{f' ({whose})' if whose else ''}")
