"""The verdict on the constraints in plain words, what to do about it, and further findings on a group's runs."""

from collections.abc import Sequence
from statistics import fmean

from descend.report.runs import Arm, Group, RunView, alphas, group_name
from descend.report.tables import number
from descend.report.views import GroupLink, Sentence, Span, VerdictView
from descend.results import ENOUGH_GROUPS

_MARKS = {"holds": "✓", "tentative": "≈", "unproven": "≈", "broken": "✕", "open": "–"}


def verdict(groups: Sequence[Group]) -> VerdictView:
    """Whether the constraints hold in some groups of runs; for a single group with its arms' verdicts and advice."""
    runs = [run for group in groups for run in group.runs if run.summary.constrained]
    state, headline = _shown(groups), _headline(runs)
    if len(groups) > 1:
        return VerdictView(state, _MARKS[state], headline, groups=_links(groups))
    lines = [*_verdicts(groups[0]), *([Span(words)] for words in _beside_input(groups[0]))]
    return VerdictView(state, _MARKS[state], headline, lines, advice=_advice(_state(runs), runs))


def findings(group: Group) -> list[Sentence]:
    """What else is known of a group's runs: what is certain of the layers, what was asked, what was measured."""
    arms = _judged(group)
    certain = _by_run(
        group, arms, [["" if run.summary.few_groups else run.summary.certificate for run in arm.runs] for arm in arms]
    )
    measured = [words for arm in arms for words in _measured(arm, group)]
    asked = _by_run(group, arms, [[_asked(arm)] * len(arm.runs) for arm in arms])
    return [*certain, *([Span(words)] for words in measured), *asked]


def _state(runs: Sequence[RunView]) -> str:
    """``broken`` is what is proven to be; where all misses may be chance it is ``unproven``, or ``open``."""
    if broken := _broken(runs):
        return "unproven" if all(run.summary.unproven for run in broken) else "broken"
    if not runs or any(run.summary.open or run.summary.feasible is None for run in runs):
        return "open"
    return "holds" if all(run.summary.certain for run in runs) else "tentative"


def _broken(runs: Sequence[RunView]) -> list[RunView]:
    """The runs that are judged not feasible; those whose verdict is open are not."""
    return [run for run in runs if run.summary.feasible is False and not run.summary.open]


def _shown(groups: Sequence[Group]) -> str:
    """The state of some groups' runs; open instead of good where a run's metric is worse than its input's."""
    state = _state([run for group in groups for run in group.runs if run.summary.constrained])
    worse = any(_worse_than_input(group) for group in groups)
    return "open" if worse and state in ("holds", "tentative") else state


def _worse_than_input(group: Group) -> list[RunView]:
    return [run for run in group.runs if run.summary.depth in run.summary.worse_than_input]


def _beside_input(group: Group) -> list[str]:
    """The numbers of the arms whose output has a worse metric than the noisy input itself."""
    worse, lines = _worse_than_input(group), []
    for arm in group.arms:
        values = [run.summary.layer_metrics[group.train_noise][-1] for run in arm.runs if run in worse]
        if values and group.input_value is not None:
            who = f"{arm.label}: " if len(group.arms) > 1 else ""
            lines.append(
                f"{who}{group.metric} of the output at the training noise {number(fmean(values))}, of the noisy input "
                f"itself {number(group.input_value)}."
            )
    return lines


def _headline(runs: Sequence[RunView]) -> str:
    if not runs:
        return "Trained without constraints: nothing is promised about the layers"
    total, broken = len(runs), _broken(runs)
    unproven = sum(run.summary.unproven for run in broken)
    certain = sum(run.summary.certain for run in runs)
    scope = f", in all {total} runs" if total > 1 else ""
    match _state(runs):
        case "holds":
            return f"Feasible: every layer lowers the loss as asked{scope}"
        case "tentative":
            return f"Feasible as far as the data can tell{scope}" + (f"; beyond doubt in {certain}" if certain else "")
        case "unproven" if total == 1:
            return "Not feasible, but not proven: that a bound is missed may be chance"
        case "broken" if total == 1:
            return "Not feasible: the constraints do not hold"
        case "broken" | "unproven":
            where = f"Not feasible in {len(broken)} of {total} runs"
            proven = f", proven in {len(broken) - unproven or 'none'}" if unproven else ""
            return f"{where}{proven or ': there the constraints do not hold'}"
        case _ if any(run.summary.violations for run in runs):
            return "Open: these data are too few to tell whether the constraints hold"
        case _:
            return "Not judged: whether the constraints hold was not measured"


def _advice(state: str, runs: Sequence[RunView]) -> str:
    """What to do with a verdict."""
    summaries = [run.summary for run in runs]
    scripts = any(summary.of_script for summary in summaries)
    asks = {"alpha" if summary.alpha and summary.target != "geometric" else "strength" for summary in summaries}
    flags = "" if scripts else "--"
    where = "the trainer’s arguments" if scripts else "descend train"
    less = f"ask for less by a lower {' or '.join(f'{flags}{name}' for name in sorted(asks))} of {where}"
    again = "load it and give it to descend.evaluate" if scripts else "evaluate it with --model best_feasible"
    match state:
        case "holds":
            return "Nothing: each layer under a constraint lowers the loss as asked, and that is certain."
        case "tentative":
            return (
                "Nothing on these data speaks against this model’s constraints. To be certain, evaluate it on more "
                f"data, or {less}."
            )
        case "broken" | "unproven":
            chance = any(summary.unproven for summary in summaries)
            return (
                f"{'What is not proven may be chance: evaluate on more data first. ' if chance else ''}"
                f"Train longer, or if only deep layers break for fewer steps: then the model overfits. Or {less}. If "
                f"the run’s folder holds best_feasible, that model met the constraints: {again}."
            )
        case _ if not runs:
            return "For a promise about each layer, train with --method constrained."
        case _ if any(summary.violations for summary in summaries):
            return f"Evaluate on at least {ENOUGH_GROUPS} groups of samples, such as clips or texts."
        case _:
            return "Evaluate the runs again with `descend evaluate`."


def _judged(group: Group) -> list[Arm]:
    """The arms under constraints; all of them where there is none."""
    return [arm for arm in group.arms if arm.runs[0].summary.constrained] or group.arms


def _verdicts(group: Group) -> list[Sentence]:
    """The verdict of each run, and its note."""
    arms = _judged(group)
    lines = _by_run(group, arms, [[_without_title(run.summary.verdict) for run in arm.runs] for arm in arms])
    return lines + _by_run(group, group.arms, [[run.summary.note for run in arm.runs] for arm in group.arms])


def _without_title(words: str) -> str:
    """A verdict without the word that the headline has: "Feasible: every …" becomes "Every …"."""
    title, _, rest = words.partition(": ")
    if not rest or not title.lower().startswith(("feasible", "infeasible", "open")):
        return words
    return rest[0].upper() + rest[1:]


def _by_run(group: Group, arms: Sequence[Arm], words: Sequence[Sequence[str]]) -> list[Sentence]:
    """Sentences about runs, each once, with the arms that it is about, and their seeds where these differ.

    Args:
        group: All runs of the section. Where they are of one arm, it is not named.
        arms: Those of its arms that something is said of.
        words: For each of them a sentence per run; those that are empty are left out.
    """
    by_sentence: dict[str, list[str]] = {}
    for arm, sentences in zip(arms, words, strict=True):
        for each in filter(None, dict.fromkeys(sentences)):
            seeds = [run.summary.seed for run, its in zip(arm.runs, sentences, strict=True) if its == each]
            who = [arm.label] * (len(group.arms) > 1)
            who += [f"seed{'s' * (len(seeds) > 1)} {_listed(seeds)}"] * (len(seeds) < len(arm.runs))
            by_sentence.setdefault(each, []).append(", ".join(who))
    lines: list[Sentence] = []
    for each, whose in by_sentence.items():
        named = "; ".join(filter(None, whose))
        title = [Span(f"{named[0].upper()}{named[1:]}.", bold=True), Span(" ")] if named else []
        lines.append([*title, Span(each)])
    return lines


def _measured(arm: Arm, group: Group) -> list[str]:
    """Further findings on an arm's first run."""
    summary, who = arm.runs[0].summary, f"{arm.label}: " if len(group.arms) > 1 else ""
    words = []
    if summary.ratios.median is not None:
        falls = "" if summary.descending_share is None else f"; {100 * summary.descending_share:.0f}\u00a0% are below 1"
        ratio = "the loss of a single sample after a layer over that before it"
        words.append(f"{who}{ratio if who else ratio.capitalize()}: median {number(summary.ratios.median)}{falls}.")
    if summary.exit:
        words.append(who + summary.exit.sentence(summary.metric))
    return words


def _asked(arm: Arm) -> str:
    """What the constraints ask for; empty where it is not known."""
    steps, strength = alphas(arm.limits), arm.runs[0].summary.strength
    if not steps:
        words = "What each layer had to reach follows from the losses, at a strength of"
        return f"{words} {strength:g}." if arm.runs[0].summary.constrained and strength is not None else ""
    first, last = min(steps), max(steps)
    layers = f"layers {first} to {last}" if last > first else f"layer {first}"
    sizes = [f"{100 * step:.2g}" for step in steps.values()]
    listed = sizes[0] if len(set(sizes)) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
    return f"Asked of {layers}: a loss lower than that of the layer before by {listed} %."


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _links(groups: Sequence[Group]) -> list[GroupLink]:
    states = [_shown([group]) for group in groups]
    return [
        GroupLink(state, _MARKS[state], f"#group-{index}", group_name(group))
        for index, (state, group) in enumerate(zip(states, groups, strict=True))
    ]
