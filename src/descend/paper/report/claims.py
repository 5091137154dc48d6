"""What the paper says of its figures, and whether it holds here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, isinf, isnan
from typing import Any, Generic, Literal, TypeVar

from descend.paper.report.estimates import Interval, Number, share

Held = Literal["held", "not held", "undecided", "not run"]
Test = Callable[[Interval, float], Held]
Key = TypeVar("Key")

_AGAINST: tuple[Held, ...] = ("held", "undecided", "not held")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, in our own words, and what our runs say of it.

    Attributes:
        figure: Of which figure or table.
        claim: What is claimed.
        held: ``held`` if the whole 95 % interval is on the claim's side, ``not held`` if it is wholly on the other,
            ``undecided`` between, ``not run`` without the cells.
        sentence: The number and its interval, and what they are of.
    """

    figure: str
    claim: str
    held: Held
    sentence: str

    def json(self) -> dict[str, Any]:
        """As ``claims.json`` holds it."""
        return asdict(self)


def not_run(figure: str, claim: str, needs: str) -> Claim:
    """A claim whose cells are not there."""
    return Claim(figure, claim, "not run", f"Not run: it needs {needs}.")


def above(estimate: Interval, bound: float = 0.0) -> Held:
    """Whether a number lies above a bound."""
    if not estimate.known:
        return "undecided"
    return "held" if estimate.low > bound else "not held" if estimate.high <= bound else "undecided"


def below(estimate: Interval, bound: float = 0.0) -> Held:
    """Whether a number lies below a bound."""
    return above(-estimate, -bound)


def within(estimate: Interval, margin: float) -> Held:
    """Whether a number is as good as 0: no further from it than a margin that was named beforehand."""
    if not estimate.known:
        return "undecided"
    if max(abs(estimate.low), abs(estimate.high)) <= margin:
        return "held"
    return "not held" if estimate.low > margin or estimate.high < -margin else "undecided"


def joint(verdicts: Sequence[Held]) -> Held:
    """A claim with several parts: it falls with one, and is undecided with one."""
    return "not held" if "not held" in verdicts else "undecided" if "undecided" in verdicts else "held"


@dataclass(frozen=True)
class Every(Generic[Key]):
    """What is said of all of some numbers.

    Attributes:
        held: Held where each one is. Not held where one is not by an interval that allows for how many were looked
            at (Bonferroni): of sixty true claims one or two would fall by chance.
        ends: The intervals that this rests on.
        worst: The one that speaks most against it: of those that refute it, where there are any, else of those that
            leave it undecided, else of all.
    """

    held: Held
    ends: dict[Key, Interval]
    worst: Key

    @property
    def end(self) -> Interval:
        """The interval of the worst."""
        return self.ends[self.worst]


def every(parts: Mapping[Key, Number], test: Test, bound: float = 0.0) -> Every[Key]:
    """Judge a claim on all of some: that each lies `above` or `below` a bound, or `within` it."""

    def against(key: Key) -> float:
        value = parts[key].value
        size = -value if test is above else abs(value) if test is within else value
        return inf if isnan(size) else size

    def judged(ends: Mapping[Key, Interval]) -> tuple[list[Held], Key]:
        verdicts = {key: test(end, bound) for key, end in ends.items()}
        return list(verdicts.values()), max(parts, key=lambda key: (_AGAINST.index(verdicts[key]), against(key)))

    ends = {key: part.interval for key, part in parts.items()}
    verdicts, worst = judged(ends)
    if set(verdicts) == {"held"}:
        return Every("held", ends, worst)
    ends = {key: part.picked(len(parts)) for key, part in parts.items()}
    verdicts, worst = judged(ends)
    return Every("not held" if "not held" in verdicts else "undecided", ends, worst)


def most(count: int, total: int) -> tuple[Held, str]:
    """Whether a count of cells is more than half beyond chance, and the words for it."""
    found = share(count, total)
    words = f"{count} of {total} ({percent(found.value)}, 95 % interval {percent(found.low)} to {percent(found.high)})"
    return above(found, 0.5), words


def percent(part: float, digits: int = 0) -> str:
    """A share in words."""
    return f"{100 * part:.{digits}f} %"


def number(value: float) -> str:
    """A number as a sentence has it."""
    if not isfinite(value):
        return "unknown" if isnan(value) else "∞" if value > 0 else "−∞"
    digits = f"{value + 0.0:.3g}" if abs(value) < 1000 else f"{value:.4g}"  # −0 is 0
    return digits.replace("-", "−")


def ranged(estimate: Interval, unit: str = "") -> str:
    """A number and its interval in words."""
    if isinf(estimate.value):
        return f"{number(estimate.value)}{unit} (a run diverged)"
    if not estimate.known:
        return f"{number(estimate.value)}{unit} (no interval: too few seeds or samples)"
    over = f" {estimate.over}" if estimate.over else ""
    return f"{number(estimate.value)}{unit} (95 % interval{over} {number(estimate.low)} to {number(estimate.high)})"
