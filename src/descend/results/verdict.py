"""The verdict: whether the constraints hold, how sure that is, and both in words."""

import math
from typing import Annotated

from pydantic import BeforeValidator

from descend.results.base import Flag, Number, Numbers, OptionalNumbers, Part, empty_for_null

ENOUGH_GROUPS = 12
"""Below so many independent groups of samples nothing is proven: too few tell how much groups differ."""

CONFIDENCE = 0.95
"""Of all intervals at once."""

LEAST_FALL = 0.001
"""Certain falls below this share are not listed: in per cent, with one decimal, they read as none."""

TOLERANCE = 0.01
"""A constraint missed by more than this share of its bound is broken, however wide its interval."""


class Verdict(Part):
    """Whether the constraints hold, as far as the samples can tell. Files of older versions may lack any entry.

    Attributes:
        violations: The violation of each descent constraint on the data set, L numbers, ≤ 0 where it holds.
        violation_intervals: A (low, high) of each, simultaneous at 95 % over all constraints in force; NaN where the
            verdict is open.
        cap: With α, the bound on the loss of the exit that ``cap_layer`` names, by default the chain's first.
        cap_violation: That of the cap, 0 without one.
        cap_interval: Its (low, high).
        bounds: What each layer's loss had to reach, in the ratio form its ratio, L numbers; None where no constraint is
            in force.
        certified: By which share each layer lowers the loss of the one before at least, 1 − f_l / f_{l−1}, with 95 %
            confidence for all L layers together; L numbers, below 0 where the data can't exclude that it rises, and
            NaN where the verdict is open.
        feasible: No constraint is broken.
        certain: No constraint is broken or undecided, and the verdict is not open.
        violated: Broken constraints, by layer; 0 stands for the cap. Their interval lies above 0, which proves it, or
            they are missed by more than 1 % of their bound.
        undecided: Constraints that are not broken, but whose interval is unknown or reaches above 0.
        groups: How many independent groups of samples the intervals rest on; below 12 the verdict is open.
    """

    violations: Numbers = []
    violation_intervals: Annotated[list[tuple[Number, Number]], BeforeValidator(empty_for_null)] = []
    cap: float | None = None
    cap_violation: float | None = None
    cap_interval: tuple[Number, Number] | None = None
    bounds: OptionalNumbers = []
    certified: Numbers = []
    feasible: bool | None = None
    certain: Flag = False
    violated: Annotated[list[int], BeforeValidator(empty_for_null)] = []
    undecided: Annotated[list[int], BeforeValidator(empty_for_null)] = []
    groups: int | None = None

    @property
    def few_groups(self) -> bool:
        """Whether the samples are of fewer than `ENOUGH_GROUPS` groups; False where a file does not say."""
        return self.groups is not None and self.groups < ENOUGH_GROUPS

    @property
    def by_chance(self) -> list[int]:
        """The broken constraints whose miss may be chance, because groups are few or the interval contains 0."""
        if len(self.violation_intervals) < max(self.violated, default=0):
            return []
        missed = [self.cap_violation, *self.violations]
        intervals = [self.cap_interval, *self.violation_intervals]
        known = [(layer, missed[layer], intervals[layer]) for layer in self.violated]
        return [
            layer
            for layer, by, ends in known
            if by is not None and math.isfinite(by) and ends is not None and (self.few_groups or not ends[0] > 0)
        ]

    @property
    def unproven(self) -> bool:
        """Whether constraints are broken and none is proven to be."""
        return bool(self.violated) and self.by_chance == self.violated

    @property
    def open(self) -> bool:
        """Whether the groups are too few for a verdict, and no constraint is proven broken all the same."""
        return self.few_groups and self.feasible is not None and (not self.violated or self.unproven)

    @property
    def worst(self) -> float:
        """The largest violation in force, the cap's among them; NaN if one is NaN, −∞ if no constraint is in force."""
        bounds = [self.cap, *self.bounds]
        in_force = zip([self.cap_violation, *self.violations], bounds, strict=False)
        missed = [by for by, bound in in_force if by is not None and bound is not None]
        return max(missed, key=lambda by: (math.isnan(by), by), default=-math.inf)

    def certainty(self) -> str:
        """What is certain of each layer, in words; empty where the verdict is open."""
        if self.open:
            return ""
        shares = enumerate(self.certified, start=1)
        falls = [f"layer {layer} by {share:.1%}" for layer, share in shares if share >= LEAST_FALL]
        if not falls:
            return f"No layer is certain to lower the loss by {LEAST_FALL:.1%} on these data."
        return f"With {CONFIDENCE:.0%} confidence these layers lower the loss at least: {', '.join(falls)}."

    def sentence(self, data: str = "held-out data") -> str:
        """The verdict in words; ``data`` are what it was measured on."""
        chance = self.by_chance
        if self.open:
            so_far = f"no constraint is missed by more than {TOLERANCE:.0%}"
            return (
                f"Open: {self.groups} group{'s' * (self.groups != 1)} of samples, at least {ENOUGH_GROUPS} are needed "
                f"for a verdict, such as {ENOUGH_GROUPS} clips or texts. So far {_misses(chance) or so_far} on {data}."
            )
        if not self.violated:
            known = f"no constraint is broken on {data}, but it can't be excluded for {_names(self.undecided)}"
            words = known if self.undecided else f"every constraint holds on {data}"
            return f"Feasible{'' if self.certain else ' as far as the data can tell'}: {words}."
        if self.unproven:
            words = f"INFEASIBLE, but not proven: {_misses(chance)} on {data}, which may be chance."
            return f"{words} Evaluate on more samples."
        proven = [layer for layer in self.violated if layer not in chance]
        breaks = "breaks its constraint" if len(proven) == 1 else "break their constraints"
        words = f"INFEASIBLE: {_names(proven)} {breaks} on {data}."
        if not chance:
            return words
        misses = _misses(chance)
        return f"{words} {misses[0].upper()}{misses[1:]}, which may be chance: evaluate on more samples."


def _misses(constraints: list[int]) -> str:
    """That constraints are missed by more than the tolerance; empty without any."""
    misses = "misses its bound" if len(constraints) == 1 else "miss their bounds"
    return f"{_names(constraints)} {misses} by more than {TOLERANCE:.0%}" if constraints else ""


def _names(constraints: list[int]) -> str:
    layers = ", ".join(str(layer) for layer in constraints if layer)
    words = (["the cap"] if 0 in constraints else []) + (
        [f"layer{'s' if ',' in layers else ''} {layers}"] if layers else []
    )
    return " and ".join(words)
