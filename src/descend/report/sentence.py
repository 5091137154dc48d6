"""What the curves of a page's opening show, in a sentence that is computed from their numbers."""

from collections.abc import Callable, Sequence
from math import isfinite, sqrt
from typing import NamedTuple

from scipy.stats import ttest_ind

from descend.report.runs import Arm

CLOSE = 0.01
"""Two models are alike up to 1 % of an error or 1 point of an accuracy, as in choosing a model and in the verdict."""

NEAR = 0.05
"""A layer is near full depth up to 5 % of an error; for an accuracy up to `CLOSE`."""

CHANCE = 0.05
"""A difference may be chance if seeds alone make one as large more often than this."""


class Curve(NamedTuple):
    """An arm's quality at each layer 0 … L at the training noise, the mean over seeds, and its name in a sentence.

    ``ends`` is the quality at full depth of each seed.
    """

    arm: Arm
    values: list[float]
    name: str
    ends: Sequence[float] = ()


class Scale(NamedTuple):
    """What a curve's values are: their name for readers, and which of two is better.

    ``samples`` is the number that an accuracy was measured on, if known: two of them within two standard errors of
    their difference are alike, too.
    """

    name: str
    higher: bool
    samples: int | None = None

    @property
    def close(self) -> float:
        """The difference up to which two numbers are alike: a share of an error, points of an accuracy."""
        return max(CLOSE, 2 * sqrt(0.5 / self.samples)) if self.higher and self.samples else CLOSE

    @property
    def near(self) -> float:
        """The same for a layer and full depth."""
        return self.close if self.higher else NEAR

    def better(self, value: float, other: float, close: float | None = None) -> bool:
        """Whether a value is better than another, and not within ``close``, by default that of two alike."""
        close = self.close if close is None else close
        return value > other + close if self.higher else value < other * (1 - close)

    def reaches(self, value: float, other: float) -> bool:
        """Whether a value is at least as good as another."""
        return value >= other if self.higher else value <= other


def sentence(ours: Curve, baseline: Curve | None, scale: Scale) -> str:
    """What the picture shows, in a sentence.

    Args:
        ours: The curve to speak of, as a rule of constrained training.
        baseline: The one to hold it against; None for a single arm.
        scale: What the values are.
    """
    if diverged := [curve.name for curve in (ours, baseline) if curve and not isfinite(curve.values[-1])]:
        return f"{capital(' and '.join(diverged))} diverged: at full depth the {_noun(scale)} is not a finite number."
    if baseline is None:
        return _alone(ours, scale)
    depth = min(len(ours.values), len(baseline.values)) - 1
    half = depth // 2
    with_ours, with_baseline = ours.name, baseline.name
    ends = _ends(ours, baseline, scale)
    if half == 0:
        return f"{capital(ends)}."
    inner, other = ours.values[half], baseline.values[half]
    many, noun = half_words(half, depth), _noun(scale)
    give = "gives" if many.startswith("1 ") else "give"
    if scale.better(inner, other):
        needed = _first(baseline.values, lambda value: scale.reaches(value, inner))
        if needed is None:
            rest = f"{with_baseline} reaches that at no layer ({short(other)} at half depth)"
        else:
            count = f"all {depth}" if needed == depth else str(needed)
            rest = f"{with_baseline} needs {count} layers for that ({short(other)} at half depth)"
        return f"{many} already {give} {noun} {short(inner)} with {with_ours}; {rest}; {ends}."
    verb = f"{with_ours} is worse" if scale.better(other, inner) else f"{with_ours} gains nothing"
    numbers = f"{many.lower()} {give} {noun} {short(inner)}, against {short(other)} with {with_baseline}"
    return f"{capital(verb)} along the layers: {numbers}; {ends}."


def _alone(curve: Curve, scale: Scale) -> str:
    values, noun = curve.values, _noun(scale)
    depth, full = len(values) - 1, values[-1]
    half = depth // 2
    if not scale.better(full, values[0]):
        words = f"at the input and {short(full)} after all {depth} layers"
        return f"The layers improve nothing: {noun} is {short(values[0])} {words}."
    near = _first(values, lambda value: not scale.better(full, value, scale.near)) or depth
    if near == depth:
        inner = f" {half_words(half, depth).lower()} give {noun} {short(values[half])}," if half else ""
        return f"This model needs all of its {depth} layers:{inner} all of them {short(full)}."
    words = f"give {noun} {short(values[near])}, within {_gap(scale.near, scale)} of all {depth} ({short(full)})"
    if near <= half:
        layers = f"The first {near} of {depth} layers already {words}"
        if near == 1:
            layers = f"The first of {depth} layers already {words.replace('give', 'gives', 1)}"
        falls = not scale.reaches(full, values[near])
        return f"{layers}{'; the layers after it make it worse' if falls else ''}."
    return f"{near} of {depth} layers {words}; {half_words(half, depth).lower()} give {short(values[half])}."


def _ends(ours: Curve, baseline: Curve, scale: Scale) -> str:
    """How far apart the two are at full depth, as a share of the baseline's error or in points, and if by chance."""
    value, other = ours.values[-1], baseline.values[-1]
    numbers = f"({short(value)} against {short(other)})"
    apart = abs(value - other) if scale.higher or not other else abs(value - other) / abs(other)
    gap = _gap(apart, scale)
    if gap.startswith("0 ") or gap == "0%" or short(value) == short(other):
        return f"at full depth both give {_noun(scale)} {short(other)}"
    if apart <= CLOSE + 1e-9:  # rounding: 0.53 − 0.52 is more than 0.01
        return f"at full depth the two differ by {gap} {numbers}"
    word = "better" if (value > other) == scale.higher else "worse"
    return f"at full depth {ours.name} is {gap} {word} {numbers}{_chance(ours, baseline, apart, scale)}"


def _gap(share: float, scale: Scale) -> str:
    """A difference in words: "3.5%" of an error, "1.2 points" of an accuracy."""
    number = f"{100 * share:.{0 if share >= 0.1 else 1}f}".removesuffix(".0")
    if not scale.higher:
        return f"{number}%"
    return f"{number} point{'s' * (number != '1')}"


def _chance(ours: Curve, baseline: Curve, apart: float, scale: Scale) -> str:
    """Words for a difference that seeds (Welch's t-test), or too few samples for an accuracy, may explain."""
    ends = ours.ends, baseline.ends
    vary = min(map(len, ends)) > 1 and max(len(set(values)) for values in ends) > 1
    if vary and ttest_ind(*ends, equal_var=False).pvalue > CHANCE:
        return ", which may be chance over seeds"
    return f", which may be chance on {scale.samples} samples" if scale.higher and apart <= scale.close else ""


def _first(values: Sequence[float], holds: Callable[[float], bool]) -> int | None:
    """The first layer from which on a condition holds; None if it does not hold at the last."""
    layer = len(values)
    while layer and holds(values[layer - 1]):
        layer -= 1
    return layer if layer < len(values) else None


def capital(words: str) -> str:
    """Words with a capital first letter."""
    return words[:1].upper() + words[1:]


def half_words(half: int, depth: int) -> str:
    """How a sentence begins that is about half of the layers."""
    return "Half of the layers" if 2 * half == depth else f"{half} of {depth} layers"


def _noun(scale: Scale) -> str:
    return scale.name if scale.name.isupper() else scale.name.lower()


def short(value: float) -> str:
    """A number with three digits; a larger one without decimals."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".removesuffix(".")
