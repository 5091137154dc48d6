"""Judge the paper's claims: a row of the table becomes a verdict and a sentence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite, isinf, isnan
from typing import Any, Generic, Literal, TypeVar

from reproduction.report.cells import Run, data_name, few
from reproduction.report.estimates import Interval, Number
from reproduction.report.results import Results

Held = Literal["held", "not held", "undecided", "not run"]
Test = Callable[[Interval, float], Held]
Key = TypeVar("Key")

_AGAINST: tuple[Held, ...] = ("held", "undecided", "not held")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, in other words, and the verdict of our runs.

    Attributes:
        figure: The figure or table it belongs to.
        claim: The claim.
        form: The arm that it is judged for: ``paper`` or ``constrained``. Empty if it is judged once, or was not run.
        held: ``held`` if the whole 95 % interval lies on the claim's side, ``not held`` if it lies on the other side,
            ``undecided`` between, ``not run`` without the cells.
        sentence: The number and its interval, and what they describe.
        whole: It speaks of every run, so it can't be held before all are run.
    """

    figure: str
    claim: str
    form: str
    held: Held
    sentence: str
    whole: bool = False

    def json(self) -> dict[str, Any]:
        """An entry of ``claims.json``."""
        return {name: value for name, value in asdict(self).items() if name != "whole"}

    def unfinished(self) -> "Claim":
        """The claim as the cells of an unfinished figure judge it."""
        return replace(self, held="undecided") if self.whole and self.held == "held" else self


@dataclass(frozen=True)
class Evidence:
    """The evidence for or against a claim.

    Attributes:
        found: An interval for the row's test; several numbers by key, which must all pass it; pairs of an interval and
            the interval's test, which must all hold; or a verdict.
        words: Values that the row's sentence names.
        unit: The unit of ``found``, with its leading space.
        label: Names a key of ``found`` in the sentence.
        constrained: Runs the claim is about. One that diverged refutes it.
        partial: Some of the cells are missing, so the claim can't be held yet.
    """

    found: Interval | Mapping[Any, Number] | Sequence[tuple[Interval, Test]] | Held
    words: Mapping[str, object] = field(default_factory=dict)
    unit: str = ""
    label: Callable[[Any], str] = str
    constrained: Sequence[Run] = ()
    partial: bool = False


@dataclass(frozen=True)
class Row:
    """A row of the table of claims.

    Attributes:
        figure: The figure or table it belongs to.
        claim: The claim. ``{imdb}`` and ``{ucsd}`` stand for the names of these data sets, or of what replaces them.
        needs: The cells it needs, in words.
        cells: Selects these cells; empty if they were not run.
        statistic: Computes the evidence from them; None if there are too few.
        sentence: A template. ``{found}`` is the interval; for several numbers ``{worst}`` names the strongest
            counter-evidence, ``{end}`` is its interval and ``{ends}`` lists all of them.
        test: The test of each interval.
        bound: The bound or margin of the test.
        once: Judge it once, from the runs of all methods: it does not compare one form of constraints with ERM.
        whole: It speaks of every run, so it can't be held before all are run.
    """

    figure: str
    claim: str
    needs: str
    cells: Callable[[Results], Any]
    statistic: Callable[[Any], Evidence | None]
    sentence: str
    test: Test
    bound: float = 0.0
    once: bool = False
    whole: bool = False

    def judge(self, results: Results) -> list[Claim]:
        """The verdict on this claim for each form that has the cells it needs; one verdict if none has."""
        if self.once or not results.forms:
            return [self._verdict(results)]
        verdicts = [self._verdict(view, form) for form, view in results.forms.items()]
        return [claim for claim in verdicts if claim.held != "not run"] or [replace(verdicts[0], form="")]

    def _verdict(self, results: Results, form: str = "") -> Claim:
        """The verdict from the cells of one form, or of all runs."""
        names = {data: data_name(results.known(data)) for data in ("imdb", "ucsd")}
        claim, needs = self.claim.format(**names), self.needs.format(**names)
        cells = self.cells(results)
        evidence = self.statistic(cells) if cells else None
        if evidence is None:
            return Claim(self.figure, claim, form, "not run", f"Not run: it needs {needs}.")
        verdict, words = _judge(evidence, self.test, self.bound)
        if evidence.partial and verdict == "held":
            verdict = "undecided"
        sentence = self.sentence.format(**names, **evidence.words, **words)
        sentence = f"{sentence[:1].upper()}{sentence[1:]}".strip()
        diverged = gone(evidence.constrained)
        if diverged:
            verdict, sentence = "not held", f"{diverged} {sentence}"
        return Claim(self.figure, claim, form, verdict, sentence, self.whole)


def _judge(evidence: Evidence, test: Test, bound: float) -> tuple[Held, dict[str, str]]:
    """The verdict, and the intervals for the sentence."""
    numbers = evidence.found
    if isinstance(numbers, str):
        return numbers, {}
    if isinstance(numbers, Interval):
        return test(numbers, bound), {"found": ranged(numbers, evidence.unit)}
    if isinstance(numbers, Mapping):
        judged = every(numbers, test, bound)
        ends = [f"{evidence.label(key)} {ranged(end, evidence.unit)}" for key, end in judged.ends.items()]
        words = {"worst": evidence.label(judged.worst), "end": ranged(judged.end, evidence.unit)}
        return judged.held, {**words, "ends": "; ".join(ends)}
    return joint([each_test(interval, 0.0) for interval, each_test in numbers]), {}


def above(estimate: Interval, bound: float = 0.0) -> Held:
    """Whether a number lies above a bound."""
    if not estimate.known:
        return "undecided"
    return "held" if estimate.low > bound else "not held" if estimate.high <= bound else "undecided"


def below(estimate: Interval, bound: float = 0.0) -> Held:
    """Whether a number lies below a bound."""
    return above(-estimate, -bound)


def within(estimate: Interval, margin: float) -> Held:
    """Whether a number is equivalent to 0: within a margin chosen in advance."""
    if not estimate.known:
        return "undecided"
    if max(abs(estimate.low), abs(estimate.high)) <= margin:
        return "held"
    return "not held" if estimate.low > margin or estimate.high < -margin else "undecided"


def joint(verdicts: Sequence[Held]) -> Held:
    """The verdict on several parts: not held if one is not, else undecided if one is, else held."""
    return "not held" if "not held" in verdicts else "undecided" if "undecided" in verdicts else "held"


@dataclass(frozen=True)
class Every(Generic[Key]):
    """A claim about several numbers at once.

    Attributes:
        held: Held if every number passes the test. Not held if one fails it by an interval that is corrected for the
            number of comparisons (Bonferroni): of sixty true claims one or two would fail by chance.
        ends: The intervals behind the verdict.
        worst: The strongest counter-evidence: among the numbers that refute the claim, else among those that leave it
            undecided, else among all.
    """

    held: Held
    ends: dict[Key, Interval]
    worst: Key

    @property
    def end(self) -> Interval:
        """The interval of the worst."""
        return self.ends[self.worst]


def every(parts: Mapping[Key, Number], test: Test, bound: float = 0.0) -> Every[Key]:
    """Test that each of some numbers lies `above` or `below` a bound, or `within` it."""

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


def gone(runs: Sequence[Run]) -> str:
    """Names the runs that diverged; empty if none did."""
    names = [run.name for run in runs if run.diverged]
    return f"Diverged: {few(names)}." if names else ""


def with_note(claim: Claim, note: str) -> Claim:
    """The claim with one more sentence, if its cells were run."""
    return claim if claim.held == "not run" else replace(claim, sentence=f"{claim.sentence} {note}".strip())


def counted(count: int, total: int, end: Interval) -> str:
    """A share of cells in words."""
    return f"{count} of {total} ({percent(end.value)}, 95 % interval {percent(end.low)} to {percent(end.high)})"


def percent(part: float, digits: int = 0) -> str:
    """A share in words."""
    return f"{100 * part:.{digits}f} %"


def number(value: float) -> str:
    """A number in a sentence."""
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
