"""The verdict: whether the constraints hold, and how sure that is."""

import math
from typing import Literal, get_args

from descend.results.base import Number, Numbers, OptionalNumbers, Part

ENOUGH_GROUPS = 12
"""Below so many independent groups of samples nothing is proven: too few tell how much groups differ."""

CONFIDENCE = 0.95
"""Of all intervals at once."""

VIOLATION_TOLERANCE = 0.01
"""A constraint missed by more than this share of its bound is broken, however wide its interval."""

Status = Literal["not_asked", "holds", "undecided", "open", "not_significant", "broken"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""From best to worst: several runs together have the worst of theirs."""


class Verdict(Part):
    """Whether the constraints hold, as far as the samples can tell.

    A constraint is broken if its interval lies above 0, which proves it, or if it is missed by more than 1 % of its
    bound. A run is judged by what it was asked: without constraints in training nothing is feasible or broken, and
    violations only describe it. A verdict has one of six statuses:

    =================== ==============================================================================================
    status              the constraints in force
    =================== ==============================================================================================
    ``not_asked``       Training asked for no descent.
    ``holds``           Every interval ends at or below 0: all constraints hold, with 95 % confidence.
    ``undecided``       None is broken, but an interval reaches above 0 or is unknown.
    ``open``            There are fewer than 12 groups of samples, hence no intervals.
    ``not_significant`` Some are broken, but no interval lies above 0: the misses may be chance.
    ``broken``          An interval lies above 0, or a violation is not finite.
    =================== ==============================================================================================

    Attributes:
        asked: Whether training asked for these constraints.
        violations: The violation of each descent constraint on the data set, L numbers, ≤ 0 where it holds.
        violation_intervals: A (low, high) of each, simultaneous at 95 % over all constraints in force; NaN below 12
            groups.
        cap: With α, the bound on the loss of the exit that ``cap_layer`` names, by default the chain's first.
        cap_violation: That of the cap, 0 without one.
        cap_interval: Its (low, high).
        bounds: What each layer's loss had to reach, in the ratio form its ratio, L numbers; None where no constraint is
            in force.
        certified: By which share each layer lowers the loss of the one before at least, 1 − f_l / f_{l−1}, with 95 %
            confidence for all L layers together; L numbers, below 0 where the data can't exclude that it rises, and
            NaN below 12 groups.
        feasible: No constraint is broken.
        certain: The status is ``holds``.
        violated: The broken constraints, by layer; 0 stands for the cap.
        undecided: Constraints that are not broken, but whose interval is unknown or reaches above 0.
        groups: How many independent groups of samples the intervals rest on.
    """

    asked: bool = True
    violations: Numbers = []
    violation_intervals: list[tuple[Number, Number]] = []
    cap: float | None = None
    cap_violation: float | None = None
    cap_interval: tuple[Number, Number] | None = None
    bounds: OptionalNumbers = []
    certified: Numbers = []
    feasible: bool
    certain: bool = False
    violated: list[int] = []
    undecided: list[int] = []
    groups: int | None = None

    def __str__(self) -> str:
        """Its status; `descend.report.verdict_sentence` says it in words."""
        return self.status

    @property
    def few_groups(self) -> bool:
        """Whether the samples are of fewer than `ENOUGH_GROUPS` groups; False where a file does not say."""
        return self.groups is not None and self.groups < ENOUGH_GROUPS

    @property
    def not_significant(self) -> list[int]:
        """The broken constraints whose miss may be chance, because groups are few or the interval contains 0."""
        intervals = dict(enumerate([self.cap_interval, *self.violation_intervals]))
        may_be_chance = []
        for constraint in self._known_violations:
            ends = intervals.get(constraint)
            if ends is not None and (self.few_groups or not ends[0] > 0):
                may_be_chance.append(constraint)
        return may_be_chance

    @property
    def status(self) -> Status:
        """The verdict in one word, see the table above."""
        if not self.asked:
            return "not_asked"
        proven = set(self.violated) - set(self.not_significant)
        if self.few_groups and not proven:
            return "open"
        if not self.feasible:
            return "broken" if proven or not self.violated else "not_significant"
        return "holds" if self.certain else "undecided"

    @property
    def missed(self) -> list[float]:
        """By which share of their bounds the broken constraints are missed, where that is known."""
        bounds = dict(enumerate([self.cap, *self.bounds]))
        known = self._known_violations.items()
        return [violation / bound for constraint, violation in known if (bound := bounds.get(constraint))]

    @property
    def _known_violations(self) -> dict[int, float]:
        """Broken constraint → its violation, where that is a finite number."""
        violations = enumerate([self.cap_violation, *self.violations])
        broken = {constraint: by for constraint, by in violations if constraint in self.violated}
        return {constraint: by for constraint, by in broken.items() if by is not None and math.isfinite(by)}

    @property
    def worst(self) -> float:
        """The largest violation in force, the cap's among them; NaN if one is NaN, −∞ if no constraint is in force."""
        in_force = zip([self.cap_violation, *self.violations], [self.cap, *self.bounds], strict=False)
        missed = [by for by, bound in in_force if by is not None and bound is not None]
        return max(missed, key=lambda by: (math.isnan(by), by), default=-math.inf)
