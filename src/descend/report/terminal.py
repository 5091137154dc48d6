"""The answer of an evaluation as the terminal shows it, and as ``summary.json`` keeps it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from descend.report.answer import Answer
from descend.report.asked import asked
from descend.report.gains import gain_lines, gains
from descend.report.levels import in_std
from descend.report.runs import Arm, group_runs, mean, mean_rows
from descend.report.words import (
    after_words,
    capitalized,
    drafts_words,
    exits_words,
    less_words,
    method_words,
    missed_words,
    number,
    within_words,
)
from descend.results import Results, Summary, Verdict


def with_words(summary: Summary) -> Summary:
    """The summary with the sentences that its file keeps for scripts."""
    answer = Answer.of(summary)
    words = {"answer": answer_lines(answer), "verdict": answer.verdict, "certificate": answer.certificate}
    return summary.model_copy(update=words)


def answer_lines(answer: Answer) -> str:
    """How many layers suffice, and whether the last one keeps the baseline's quality."""
    columns = [column for column in zip(*(row.texts for row in answer.rows), strict=True) if any(column)]
    widths = [max(map(len, column)) for column in columns]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True)]
    return "\n".join([f"{answer.headline}.", *(f"  within {row}" for row in table), *answer.terms])


def run_lines(summary: Summary) -> list[str]:
    """A run: its metric, how many layers suffice, the verdict and the dual if it was asked for descent, its layers."""
    answer, pairs = Answer.of(summary), zip(summary.noise, summary.values, strict=True)
    curve = ", ".join(f"{number(value)} at γ = {level:g}" for level, value in pairs)
    given = summary.input_metrics.get(summary.train_noise)
    noisy = "" if given is None else f"; the noisy input itself has {number(given)} at γ = {summary.train_noise:g}"
    lines = [
        f"{summary.model} {method_words(summary)} on {summary.dataset}: {summary.metric} {curve}{noisy}.",
        answer_lines(answer),
    ]
    if summary.asked:
        if asked := after_words(summary) or within_words(summary):
            lines.append(f"Asked: {asked}.")
        verdict = (answer.verdict, missed_sentence(summary, summary), answer.certificate)
        lines.append(" ".join(filter(None, verdict)))
        lines += filter(None, [answer.dual])
    lines += [*_layers(answer), *_past(summary)]
    if summary.exit is not None:
        lines.append(exits_words(summary.exit, summary.metric))
    if summary.speculation is not None:
        lines.append(drafts_words(summary.speculation, summary.depth))
    return lines


def comparison_lines(runs: Sequence[Results]) -> list[str]:
    """Plain training beside constrained: losses by layer with their bounds, the verdict, and the gain over noise."""
    lines = []
    for group in group_runs([in_std(run) for run in runs]):
        level, unit = group.train_noise, group.unit
        rows: dict[str, Sequence[Any]] = {}
        rows |= {arm.label: mean_rows(arm.along("layer_losses", level)) for arm in group.arms}
        for arm in group.arms:
            if bounds := arm.losses_to_reach(level):
                rows["bounds"] = [bounds.get(layer) for layer in range(group.depth + 1)]
        if (shares := _shares_of_plain(group.arms, rows)) is not None:
            rows["% of plain"] = shares
        lines.append(f"{group.name}. Loss by {unit} on {group.summary.split} data at γ = {level:g}:")
        lines += _columns([str(layer) for layer in range(group.depth + 1)], rows)
        if (box := asked(group)) is not None:
            lines.append(f"{box.headline}.")
        lines += filter(None, (_loose_cap(arm.summary) for arm in group.arms))
        if len(group.noise_levels) > 1:
            tables = {arm.label: arm.over_noise() for arm in group.arms}
            levels = sorted({level for table in tables.values() for level in table})
            values = {
                name: [mean(table[level]) if level in table else None for level in levels]
                for name, table in tables.items()
            }
            lines += [f"{group.metric} of the last {unit} at γ:", *_columns([f"{each:g}" for each in levels], values)]
        lines += gain_lines(gains(group))
    return lines


def _shares_of_plain(arms: Sequence[Arm], losses: Mapping[str, Sequence[Any]]) -> list[str] | None:
    """The losses of the only other arm in percent of plain training's; None where there are not these two."""
    if [arm.summary.method == "erm" for arm in arms] != [True, False] or len({arm.summary.depth for arm in arms}) > 1:
        return None  # a group's plain training comes first
    plain, other = (losses[arm.label] for arm in arms)
    shares = [100 * ours / theirs if theirs else math.nan for ours, theirs in zip(other, plain, strict=True)]
    return [f"{share:.0f}" if math.isfinite(share) else "–" for share in shares]


def _loose_cap(summary: Summary) -> str:
    """That the cap lets a layer be worse than the network's input; empty where it does not."""
    given, layer = summary.layer_losses[summary.train_noise][0], summary.cap_layer
    if not summary.asked or layer == 0 or summary.cap is None or not summary.cap > given:
        return ""
    return (
        f"The cap on {summary.unit} {layer}, {number(summary.cap)}, is above the loss of the input, {number(given)}: "
        f"that {summary.unit} may be worse than the input. A lower --cap asks that it is not."
    )


def _columns(heads: Sequence[str], rows: Mapping[str, Sequence[Any]]) -> list[str]:
    """Lines of a table: named rows of numbers, or of words, under heads."""
    words = {name: [each if isinstance(each, str) else number(each) for each in row] for name, row in rows.items()}
    cells = [["", *heads], *([name, *row] for name, row in words.items())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(["", name.ljust(widths[0]), *map(str.rjust, values, widths[1:])]) for name, *values in cells]


def missed_sentence(verdict: Verdict, settings: Any) -> str:
    """Of an open verdict by how much bounds are missed, and what asks for less, see `less_words`; else empty."""
    if verdict.status != "open" or not verdict.missed:
        return ""
    return f"These are missed by {missed_words(verdict)}: {less_words(settings)} asks for less."


def _layers(answer: Answer) -> list[str]:
    """A line for each layer at the training noise: its metric, its time, and its loss and λ where that had to fall."""
    summary, constraints = answer.summary, {each.layer: each for each in answer.constraints}
    values, losses = summary.layer_metrics.get(summary.train_noise, []), summary.layer_losses[summary.train_noise]
    best = (max if summary.higher_is_better else min)(values, default=None)
    times = summary.latency.milliseconds if summary.latency else []
    rows = [f"{capitalized(summary.unit)}s at γ = {summary.train_noise:g}:"] if values else []
    for layer, value in enumerate(values):
        share = f", {times[layer] / times[-1]:4.0%} of the time" if times else ""
        loss = f", loss {number(losses[layer])}" if summary.asked and summary.metric != "loss" else ""
        if (constraint := constraints.get(layer)) is not None:
            loss += "" if constraint.bound is None or not loss else f" of at most {constraint.bound:.4g}"
            loss += "" if constraint.multiplier is None else f", λ {number(constraint.multiplier)}"
        name, mark = f"{summary.unit} {layer:2}", " <- best" if value == best else ""
        rows.append(f"{name}: {summary.metric} {number(value)}{loss}{share}{mark}")
    return rows


def _past(summary: Summary) -> list[str]:
    """The last iteration past those of training, and a warning if the state grows without bound."""
    depth, lines = summary.depth, []
    trained, past = (rows.get(summary.train_noise) for rows in (summary.layer_metrics, summary.past_metrics))
    if trained and past:
        change = past[-1] - trained[-1]
        word = "better" if (change > 0) == summary.higher_is_better else "worse"
        apart = f"{number(abs(change))} {word} than" if change else "the same as"
        lines.append(
            f"Past training: iteration {depth + len(past)} has {summary.metric} {number(past[-1])}, {apart} iteration "
            f"{depth}."
        )
    if summary.grows:
        norms = summary.state_norms
        lines.append(
            f"WARNING: the state grows without bound: its root mean square is {number(norms[depth])} at iteration "
            f"{depth} and {number(norms[-1])} at iteration {len(norms) - 1}."
        )
    return lines
