"""What the curves of a page's opening show, in a sentence that is computed from their numbers."""

from collections.abc import Callable, Sequence
from math import isfinite, sqrt
from typing import NamedTuple

from descend.report.runs import Arm

# What counts as better: 5 % less of an error, or at least 1 point more of an accuracy.
ERROR_SHARE, POINTS = 0.05, 0.01


class Curve(NamedTuple):
    """An arm's quality at each layer 0 … L at the training noise, the mean over seeds, and its name in a sentence."""

    arm: Arm
    values: list[float]
    name: str


class Scale(NamedTuple):
    """What a curve's values are: their name for readers, which of two is better, and how far apart they count.

    ``close`` is the difference up to which two numbers count as alike: a share of an error, points of an accuracy.
    """

    name: str
    higher: bool
    close: float

    @classmethod
    def of(cls, name: str, higher: bool, samples: int | None = None) -> "Scale":
        """A scale; for an accuracy two standard errors of a difference count as alike, where ``samples`` is known."""
        if not higher:
            return cls(name, higher, ERROR_SHARE)
        return cls(name, higher, max(POINTS, 2 * sqrt(0.5 / samples)) if samples else POINTS)

    def better(self, value: float, other: float) -> bool:
        """Whether a value is better than another, and not alike."""
        return value > other + self.close if self.higher else value < other * (1 - self.close)

    def alike(self, value: float, other: float) -> bool:
        """Whether neither of two values is better."""
        return not self.better(value, other) and not self.better(other, value)

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
    ends = _ends(ours.values[-1], baseline.values[-1], with_ours, with_baseline, scale)
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
    near = _first(values, lambda value: not scale.better(full, value)) or depth
    if near == depth:
        inner = f" {half_words(half, depth).lower()} give {noun} {short(values[half])}," if half else ""
        return f"This model needs all of its {depth} layers:{inner} all of them {short(full)}."
    words = f"give {noun} {short(values[near])}, about as good as all {depth} ({short(full)})"
    if near <= half:
        layers = f"The first {near} of {depth} layers already {words}"
        if near == 1:
            layers = f"The first of {depth} layers already {words.replace('give', 'gives', 1)}"
        falls = not scale.reaches(full, values[near])
        return f"{layers}{'; the layers after it make it worse' if falls else ''}."
    return f"{near} of {depth} layers {words}; {half_words(half, depth).lower()} give {short(values[half])}."


def _ends(ours: float, baseline: float, with_ours: str, with_baseline: str, scale: Scale) -> str:
    if scale.better(ours, baseline):
        return f"at full depth {with_ours} is better ({short(ours)} against {short(baseline)})"
    if scale.better(baseline, ours):
        return f"at full depth {with_baseline} is better ({short(baseline)} against {short(ours)})"
    return f"at full depth the two are alike ({short(ours)} and {short(baseline)})"


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
    """A number with about three digits."""
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{digits}f}" if size >= 1e-3 or size == 0 else f"{value:.2g}"
