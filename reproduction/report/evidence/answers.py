"""How much the answers of language models repeat themselves."""

from collections.abc import Mapping, Sequence

from reproduction.records import Answer
from reproduction.report.claims import Evidence, above, ranged
from reproduction.report.estimates import Interval, over_seeds
from reproduction.report.results import Setting

GRAM = 3
"""Words in a row that count as a repetition."""


def less_repetition(cells: Sequence[tuple[Setting, Mapping[str, Sequence[Answer]]]]) -> Evidence | None:
    """How much more ERM's answers repeat themselves under noise: than without noise, and than the constrained ones."""
    for _, answers in reversed(cells):
        ours, theirs = (repeated(answers.get(arm, ())) for arm in ("constrained", "erm"))
        levels = sorted(ours.keys() & theirs.keys())
        if levels:
            last = levels[-1]
            more, less = _less(theirs[last], theirs[min(theirs)]), _less(theirs[last], ours[last])
            words = {"level": last, "more": ranged(more, " points"), "less": ranged(less, " points")}
            return Evidence([(more, above), (less, above)], words)
    return None


def _less(more: Mapping[str, float], fewer: Mapping[str, float]) -> Interval:
    shared = sorted(more.keys() & fewer.keys())
    return over_seeds([100 * (more[prompt] - fewer[prompt]) for prompt in shared], f"over {len(shared)} prompts")


def repeated(answers: Sequence[Answer]) -> dict[float, dict[str, float]]:
    """γ → prompt → the share of its answer that is repeated, without answers that have no words."""
    shares: dict[float, dict[str, float]] = {}
    for answer in answers:
        if answer.text.split():
            shares.setdefault(answer.noise, {})[answer.prompt] = repetition(answer.text)
    return shares


def repetition(text: str) -> float:
    """The share of a text's runs of `GRAM` words that occurred before in it."""
    words = text.lower().split()
    grams = [tuple(words[place : place + GRAM]) for place in range(len(words) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
