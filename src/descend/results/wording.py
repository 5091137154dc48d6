"""A verdict in words, as a run prints it, its page and its card show it, and ``summary.json`` keeps it."""

from collections.abc import Sequence

from descend.results.verdict import CONFIDENCE, ENOUGH_GROUPS, VIOLATION_TOLERANCE, Verdict

LEAST_FALL = 0.001
"""Certain falls below this share are not listed: in per cent, with one decimal, they read as none."""


def verdict_sentence(verdict: Verdict, data: str = "held-out data") -> str:
    """The verdict in words; ``data`` are what it was measured on."""
    chance = verdict.not_significant
    if verdict.feasible is None:
        return f"Whether the constraints hold on {data} was not measured."
    match verdict.status:
        case "not_asked":
            return f"Its training did not ask that every layer lowers the loss, so {data} give no verdict on that."
        case "open":
            missed = _misses(chance) if chance else f"no constraint is missed by more than {VIOLATION_TOLERANCE:.0%}"
            return (
                f"Open: {verdict.groups} group{'s' * (verdict.groups != 1)} of samples, at least {ENOUGH_GROUPS} are "
                f"needed for a verdict, such as {ENOUGH_GROUPS} clips or texts. So far {missed} on {data}."
            )
        case "holds":
            return f"Feasible: every constraint holds on {data}."
        case "undecided":
            some = _listed(verdict.undecided) or "some"
            known = f"no constraint is broken on {data}, but it can't be excluded for {some}"
            return f"Feasible as far as the data can tell: {known}."
        case "not_significant":
            missed = f"{_misses(chance)} on {data}, which may be chance"
            return f"INFEASIBLE, but not proven: {missed}. Evaluate on more samples."
    proven = [layer for layer in verdict.violated if layer not in chance]
    breaks = "breaks its constraint" if len(proven) == 1 else "break their constraints"
    words = f"INFEASIBLE: {_listed(proven) or 'some layers'} {breaks} on {data}."
    if chance:
        missed = _misses(chance)
        words += f" {missed[0].upper()}{missed[1:]}, which may be chance: evaluate on more samples."
    return words


def certificate_sentence(verdict: Verdict) -> str:
    """What is certain of each layer, in words; empty where the verdict is open."""
    if verdict.status == "open":
        return ""
    shares = enumerate(verdict.certified, start=1)
    falls = [f"layer {layer} by {share:.1%}" for layer, share in shares if share >= LEAST_FALL]
    if not falls:
        return f"No layer is certain to lower the loss by {LEAST_FALL:.1%} on these data."
    return f"With {CONFIDENCE:.0%} confidence these layers lower the loss at least: {', '.join(falls)}."


def _misses(constraints: Sequence[int]) -> str:
    misses = "misses its bound" if len(constraints) == 1 else "miss their bounds"
    return f"{_listed(constraints)} {misses} by more than {VIOLATION_TOLERANCE:.0%}"


def _listed(constraints: Sequence[int]) -> str:
    """Constraints by name, such as "the cap and layers 1, 2"."""
    layers = [str(layer) for layer in constraints if layer]
    words = ["the cap"] if 0 in constraints else []
    if layers:
        words.append(f"layer{'s' * (len(layers) > 1)} {', '.join(layers)}")
    return " and ".join(words)
