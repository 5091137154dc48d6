"""The words that terminal, page and card share: numbers, tolerances, how sure something is, and single findings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from descend.results import (
    CONFIDENCE,
    ENOUGH_GROUPS,
    VIOLATION_TOLERANCE,
    Choice,
    Exits,
    Gain,
    Guarantee,
    Kept,
    Speculation,
    Status,
    Summary,
    Unit,
    Verdict,
    run_name,
)

STATES: dict[Kept, str] = {
    "proven": "certified",
    "estimated": "estimated, 95 %",
    "open": "open",
    "broken": "refuted",
}
"""Whether layers are within a tolerance, for readers."""

_LESS = {"within": "a higher --within", "alpha": "a lower --alpha", "after": "a later layer in --after"}

LEAST_FALL = 0.001
"""Certain falls below this share are not listed: in per cent, with one decimal, they read as none."""


def number(value: float | None) -> str:
    """A number for a reader: a dash for none, and a word for one that is not finite."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "diverged"
    size = abs(value)
    return f"{value:.0f}" if size >= 1e4 else f"{value:.2f}" if size >= 1 or value == 0 else f"{value:.3g}"


def tolerance_words(percent: float, higher_is_better: bool) -> str:
    """A tolerance with its unit: points of a metric that is better when higher, else percent of full depth's."""
    return f"{percent:g} point{'s' * (percent != 1)}" if higher_is_better else f"{percent:g} %"


def layers_words(layer: int, summary: Summary) -> str:
    """The first K of a model's layers or iterations."""
    none = "the embedding alone" if summary.unit == "layer" else "the starting point alone"
    return f"{layer} of {summary.depth} {summary.unit}s" if layer else none


def after_words(summary: Summary) -> str:
    """What is asked after layer K, see `descend.NoWorse`; empty where nothing is."""
    unit, after = summary.unit, summary.after
    return "" if after is None else f"no {unit} after {after} worse than {unit} {after}"


def within_words(summary: Summary) -> str:
    """What is asked beside the last layer, see `descend.NearLast`; empty where nothing is."""
    unit, tau = summary.unit, summary.within
    return "" if tau is None else f"no {unit}’s loss more than {tau:.0%} above the last one’s"


def less_words(settings: Any) -> str:
    """What to change so that a run asks less of its layers.

    Args:
        settings: Its summary, or the arguments of its training.
    """
    given = [words for name, words in _LESS.items() if getattr(settings, name) not in (None, [])]
    own = isinstance(settings, Summary) and settings.strength is None  # a target of one's own
    return " or ".join(given) or ("weaker constraints" if own else "a lower --strength")


def capitalized(words: str) -> str:
    """The same with a capital letter first; names in them stay as they are."""
    return words[:1].upper() + words[1:]


def metric_name(summary: Summary) -> str:
    """The metric's name."""
    acronym = len(summary.metric) <= 4 and summary.metric != "loss"
    return summary.metric.upper() if acronym else summary.metric.replace("_", " ").capitalize()


def method_words(summary: Summary) -> str:
    """The method of a run's training; that of a model without its run is the last that Descend trained it with."""
    if summary.without_run:
        return f"(last trained by Descend with {summary.method})"
    return "as given" if summary.method == "plain" else summary.method


def full_depth_words(summary: Summary) -> str:
    """What layers are compared with."""
    needed = summary.layers_needed
    if needed.baseline is None:
        return f"its own best {summary.unit}, {summary.top}" if summary.top < summary.depth else "its own full depth"
    alike = needed.seed in (None, summary.seed) or summary.method == "plain"
    seed = "" if alike else f" of seed {needed.seed}"
    best = (needed.held_to or needed.compared_with) == "best"
    layer = f"the best {summary.unit}, {needed.full_layer}," if best else "the full depth"
    return f"{layer} of {run_name(Path(needed.baseline))}{seed}"


def worse_words(choice: Choice, summary: Summary) -> str:
    """How much worse K is than full depth, or better, and at most, as far as that is known."""
    unit = "points" if summary.higher_is_better else "%"
    surely = "" if summary.layers_needed.bounded is False else "surely "
    worse, at_most = choice.worse, choice.at_most
    if not math.isfinite(worse):
        return f"at most {at_most:.1f} {unit} worse" if math.isfinite(at_most) else ""
    words = f"{abs(worse):.1f} {unit} {'worse' if worse > 0 else 'better'}" if abs(worse) >= 0.05 else "the same"
    if not math.isfinite(at_most) or abs(at_most) < 0.05:
        return words
    end = f"at least {-at_most:.1f}" if at_most < 0 else f"at most {at_most:.1f}{' worse' * (worse <= 0)}"
    return f"{words}, {surely}{end}"


def gain_words(gain: Gain, higher_is_better: bool, other: str) -> str:
    """How much better a layer is than the ``other``, or worse, with its interval."""
    unit, low, high = "points" if higher_is_better else "%", gain.low, gain.high
    if not math.isfinite(gain.gain):
        return f"{'finite' if gain.gain > 0 else 'not finite'}, unlike {other}"
    change = f"{abs(gain.gain):.1f} {unit} {'better' if gain.gain >= 0 else 'worse'} than"
    words = f"{change if abs(gain.gain) >= 0.05 else 'the same as'} {other}"
    if not (math.isfinite(low) and math.isfinite(high)):
        return words
    same = abs(gain.gain) < 0.05
    ends = (low, high) if same or gain.gain >= 0 else (-high, -low)
    return f"{words} (95 %: {' to '.join(f'{round(each, 1) + 0.0:.1f}' for each in ends)})".replace("-", "−")


def missed_words(verdict: Verdict) -> str:
    """By how many percent of their bounds the broken constraints are missed, such as "14 to 21 %"; else empty."""
    shares = verdict.missed
    if not shares:
        return ""
    low = f"{100 * min(shares):.0f}"
    high = f"{100 * max(shares):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def missed_of(summary: Summary) -> str:
    """How many of the constraints are missed, and by how much."""
    count = sum(summary.asks(layer) for layer in range(1, summary.depth + 1)) + (summary.cap is not None)
    by = missed_words(summary)
    return f"{len(summary.violated)} of {count} constraints missed{f', by {by}' if by else ''}"


def groups_words(groups: int | None) -> str:
    """That samples are of too few groups."""
    return f"{groups} group{'s' * (groups != 1)}, at least {ENOUGH_GROUPS} are needed"


def exits_words(exits: Exits, metric: str) -> str:
    """What early exits cost and save."""
    chosen = exits.chosen
    bound = "" if exits.guarantee is None else f" {guarantee_words(exits.guarantee)}"
    if chosen.threshold is None:
        return bound.strip() or "No exit was chosen: all samples go to full depth."
    return (
        f"Early exits at a confidence of {chosen.threshold:g}, chosen on validation data, use {chosen.layers:.2f} "
        f"of {exits.depth} layers on average and {chosen.time_ratio:.2f} of the time: {metric} {chosen.value:.3f} "
        f"against {exits.full:.3f} at full depth, on clean inputs.{bound}"
    )


def guarantee_words(guarantee: Guarantee) -> str:
    """The bound of an exit threshold, what it rests on, and what the test data say."""
    risk, confidence = (f"{100 * each:g} %" for each in (guarantee.risk, guarantee.confidence))
    data = f"{guarantee.validation} validation samples in {guarantee.groups} independent groups"
    if guarantee.threshold is None:
        why = (
            f"this takes at least {guarantee.needed} groups"
            if guarantee.groups < guarantee.needed
            else "even the safest threshold loses too many answers"
        )
        return (
            f"No exit is certified for a risk of {risk} at {confidence} confidence on {data}: {why}. All samples "
            "go to full depth; give more data or allow a higher risk."
        )
    share = guarantee.test_risk
    tested = "" if share is None else f", and {share:.2%} of the {guarantee.test} evaluated here"
    return (
        f"With {confidence} confidence at most {risk} of samples like the validation data lose an answer that full "
        f"depth has right, at γ = {guarantee.noise:g}: {guarantee.losses} of {data} did there{tested}."
    )


def drafts_words(speculation: Speculation, depth: int) -> str:
    """How often the best of the first layers agree with the whole model."""
    if not speculation.layers:
        return "No prompt leaves room for an answer to draft."
    best = max(speculation.layers, key=lambda drafts: drafts.acceptance)
    share = f"{100 * best.acceptance:.0f} %"
    return f"The first {best.layer} of {depth} layers agree with {share} of the tokens of the answers."


def verdict_sentence(verdict: Verdict, data: str = "held-out data", unit: Unit = "layer") -> str:
    """The verdict in words; ``data`` are what it was measured on."""
    chance, few = verdict.not_significant, f"no constraint is missed by more than {VIOLATION_TOLERANCE:.0%}"
    proven = [layer for layer in verdict.violated if layer not in chance]
    misses = "misses its bound" if len(chance) == 1 else "miss their bounds"
    missed = f"{listed(chance, unit)} {misses} by more than {VIOLATION_TOLERANCE:.0%}"
    breaks = "breaks its constraint" if len(proven) == 1 else "break their constraints"
    more = f" {missed[0].upper()}{missed[1:]}, which may be chance: evaluate on more samples." if chance else ""
    known = ", as far as Descend knows," if isinstance(verdict, Summary) and verdict.method == "plain" else ""
    sentences: dict[Status, str] = {
        "not_asked": (
            f"Its training did not ask{known} that every {unit} lowers the loss, so {data} give no verdict on that."
        ),
        "open": (
            f"Open: {verdict.groups} group{'s' * (verdict.groups != 1)} of samples, at least {ENOUGH_GROUPS} are "
            f"needed for a verdict, such as {ENOUGH_GROUPS} clips or texts. So far {missed if chance else few} on "
            f"{data}."
        ),
        "holds": f"Feasible: every constraint holds on {data}.",
        "undecided": (
            f"Feasible as far as the data can tell: no constraint is broken on {data}, but it can't be excluded for "
            f"{listed(verdict.undecided, unit) or 'some'}."
        ),
        "not_significant": (
            f"INFEASIBLE, but not proven: {missed} on {data}, which may be chance. Evaluate on more samples."
        ),
        "broken": f"INFEASIBLE: {listed(proven, unit) or f'some {unit}s'} {breaks} on {data}.{more}",
    }
    return sentences[verdict.status]


def certificate_sentence(verdict: Verdict, unit: Unit = "layer") -> str:
    """What is certain of each layer, in words; empty where the verdict is open."""
    if verdict.status == "open":
        return ""
    falls = [f"{unit} {layer} by {fall:.1%}" for layer, fall in enumerate(verdict.certified, 1) if fall >= LEAST_FALL]
    if not falls:
        return f"No {unit} is certain to lower the loss by {LEAST_FALL:.1%} on these data."
    return f"With {CONFIDENCE:.0%} confidence these {unit}s lower the loss at least: {', '.join(falls)}."


def listed(constraints: Sequence[int], unit: Unit = "layer") -> str:
    """Constraints by name, such as "the cap and layers 1, 2"."""
    layers = [str(layer) for layer in constraints if layer]
    words = ["the cap"] if 0 in constraints else []
    if layers:
        words.append(f"{unit}{'s' * (len(layers) > 1)} {', '.join(layers)}")
    return " and ".join(words)
