"""The verdict on the constraints in plain words, what to do about it, and further findings on a group's runs."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from descend.report.runs import Arm, Group, RunView, mean
from descend.report.tables import number
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
        groups: On a page of several groups the status, mark, link and name of each.
    """

    status: str
    mark: str
    headline: str
    lines: Sequence[str] = ()
    advice: str = ""
    groups: Sequence[tuple[str, str, str, str]] = ()


def verdict(groups: Sequence[Group]) -> VerdictBox:
    """Whether the constraints hold in some groups of runs; for a single group with its arms' verdicts and advice."""
    summaries = [run.summary for group in groups for run in group.runs if run.summary.asked]
    status: Status = max((summary.status for summary in summaries), key=STATUSES.index, default="not_asked")
    headline, advice = _in_words(status, summaries)
    if status in ("holds", "undecided") and any(map(_worse_than_input, groups)):
        status = "open"
    if len(groups) > 1:
        boxes = [verdict([group]) for group in groups]
        links = [(box.status, box.mark, f"#group-{index}", groups[index].name) for index, box in enumerate(boxes)]
        return VerdictBox(status, _MARKS[status], headline, groups=links)
    (group,) = groups
    said = [(arm, run, _without_title(run.summary.verdict)) for arm in _constrained(group) for run in arm.runs]
    return VerdictBox(status, _MARKS[status], headline, [*_by_run(group, said), *remarks(group)], advice)


def remarks(group: Group) -> list[str]:
    """What a reader should know of a group's runs before their numbers."""
    notes = [(arm, run, run.summary.note) for arm in group.arms for run in arm.runs]
    return [*_by_run(group, notes), *_beside_input(group)]


def findings(group: Group) -> list[str]:
    """What else is known of a group's runs: what is certain of the layers, what was asked, what was measured."""
    runs = [(arm, run) for arm in _constrained(group) for run in arm.runs]
    certain = [(arm, run, "" if run.summary.few_groups else run.summary.certificate) for arm, run in runs]
    measured: list[str] = []
    for arm in _constrained(group):
        summary, who = arm.summary, f"{arm.label}: " if len(group.arms) > 1 else ""
        if summary.ratios.median is not None:
            falls = (
                "" if summary.descending_share is None else f"; {100 * summary.descending_share:.0f}\u00a0% are below 1"
            )
            ratio = f"{who}the loss of a single sample after a layer over that before it"
            measured.append(f"{ratio if who else ratio.capitalize()}: median {number(summary.ratios.median)}{falls}.")
        if summary.exit:
            measured.append(who + summary.exit.sentence(summary.metric))
    asked = [(arm, run, _asked(arm)) for arm, run in runs]
    return [*_by_run(group, certain), *measured, *_by_run(group, asked)]


def _in_words(status: Status, summaries: Sequence[Summary]) -> tuple[str, str]:
    """The headline of some constrained runs, and what to do."""
    if not summaries:
        return "Each setting says how many layers suffice", ""
    counts, total = Counter(summary.status for summary in summaries), len(summaries)
    scripts = any(summary.of_script for summary in summaries)
    asks = {"alpha" if summary.alpha and summary.target != "geometric" else "strength" for summary in summaries}
    flags = "" if scripts else "--"
    where = "the trainer’s arguments" if scripts else "descend train"
    less = f"ask for less by a lower {' or '.join(f'{flags}{name}' for name in sorted(asks))} of {where}"
    scope = f", in all {total} runs" if total > 1 else ""
    match status:
        case "holds":
            return (
                f"Feasible: every layer lowers the loss as asked{scope}",
                "Nothing: each layer under a constraint lowers the loss as asked, and that is certain.",
            )
        case "undecided":
            certain = f"; beyond doubt in {counts['holds']}" if counts["holds"] else ""
            return (
                f"Feasible as far as the data can tell{scope}{certain}",
                "Nothing on these data speaks against this model’s constraints. To be certain, evaluate it on more "
                f"data, or {less}.",
            )
        case "open" if any(summary.violations for summary in summaries):
            return (
                "Open: these data are too few to tell whether the constraints hold",
                f"Evaluate on at least {ENOUGH_GROUPS} groups of samples, such as clips or texts.",
            )
        case "open":
            return (
                "No verdict: whether the constraints hold was not measured",
                "Evaluate the runs again with `descend evaluate`.",
            )
    headline = "Not feasible: the constraints do not hold"
    if total > 1:
        proven = f", proven in {counts['broken'] or 'none'}" if counts["not_significant"] else ""
        broken = counts["broken"] + counts["not_significant"]
        headline = f"Not feasible in {broken} of {total} runs{proven or ': there the constraints do not hold'}"
    elif status == "not_significant":
        headline = "Not feasible, but not proven: that a bound is missed may be chance"
    chance = any(summary.violated and summary.status != "broken" for summary in summaries)
    again = "load it and give it to descend.evaluate" if scripts else "evaluate it with --model best_feasible"
    return headline, (
        f"{'What is not proven may be chance: evaluate on more data first. ' if chance else ''}"
        f"Train longer, or if only deep layers break for fewer steps: then the model overfits. Or {less}. If "
        f"the run’s folder holds best_feasible, that model met the constraints: {again}."
    )


def _worse_than_input(group: Group) -> list[RunView]:
    """The runs whose output has a worse metric than the noisy input itself."""
    return [run for run in group.runs if run.summary.depth in run.summary.worse_than_input]


def _beside_input(group: Group) -> list[str]:
    """The numbers of the arms whose output has a worse metric than the noisy input itself."""
    worse, lines = _worse_than_input(group), []
    for arm in group.arms:
        values = [run.summary.layer_metrics[group.train_noise][-1] for run in arm.runs if run in worse]
        if values and group.input_value is not None:
            who = f"{arm.label}: " if len(group.arms) > 1 else ""
            lines.append(
                f"{who}{group.metric} of the output at the training noise {number(mean(values))}, of the noisy input "
                f"itself {number(group.input_value)}."
            )
    return lines


def _constrained(group: Group) -> list[Arm]:
    """The arms under constraints; all of them where there is none."""
    return [arm for arm in group.arms if arm.summary.asked] or group.arms


def _without_title(words: str) -> str:
    """A verdict without the word that the headline has: "Feasible: every …" becomes "Every …"."""
    title, _, rest = words.partition(": ")
    if not rest or not title.lower().startswith(("feasible", "infeasible", "open")):
        return words
    return rest[0].upper() + rest[1:]


def _by_run(group: Group, said: Sequence[tuple[Arm, RunView, str]]) -> list[str]:
    """Sentences about runs, each once, with the arms that it is about, and their seeds where these differ.

    Args:
        group: All runs of the section. Where they are of one arm, it is not named.
        said: Runs of some arms with a sentence of each; those that are empty are left out.
    """
    by_sentence: dict[str, dict[str, list[int]]] = {}  # sentence → arm → seeds
    for arm, run, sentence in said:
        if sentence:
            by_sentence.setdefault(sentence, {}).setdefault(arm.label, []).append(run.summary.seed)
    counts = {arm.label: len(arm.runs) for arm in group.arms}
    lines = []
    for sentence, arms in by_sentence.items():
        whose = []
        for label, seeds in arms.items():
            *most, last = map(str, seeds)
            listed = f"seeds {', '.join(most)} and {last}" if most else f"seed {last}"
            parts = [label] * (len(counts) > 1) + [listed] * (len(seeds) < counts[label])
            whose += [", ".join(parts)] if parts else []
        named = "; ".join(whose)
        title = Markup("<b>{}.</b> ").format(named[0].upper() + named[1:]) if named else ""
        lines.append(title + sentence)
    return lines


def _asked(arm: Arm) -> str:
    """What the constraints ask for; empty where it is not known."""
    steps, strength = arm.steps, arm.summary.strength
    if not steps:
        words = "What each layer had to reach follows from the losses, at a strength of"
        return f"{words} {strength:g}." if arm.summary.asked and strength is not None else ""
    first, last = min(steps), max(steps)
    layers = f"layers {first} to {last}" if last > first else f"layer {first}"
    sizes = [f"{100 * step:.2g}" for step in steps.values()]
    listed = sizes[0] if len(set(sizes)) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
    return f"Asked of {layers}: a loss lower than that of the layer before by {listed} %."
