"""What ``sweep.json`` holds, checked, each entry of its type."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log
from typing import Any

from descend.report.runs import METHOD_NAMES, SPARE_STYLES, STYLES, Style


@dataclass(frozen=True)
class Range:
    """Where a setting was searched: between two numbers, on a linear or a log scale, or among choices."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[str, ...] = ()

    def place(self, value: float | str) -> float:
        """Where on an axis from 0 to 1 a value lies."""
        if self.choices:
            return (self.choices.index(str(value)) + 0.5) / len(self.choices)
        low, high, at = (log(x) if self.log else x for x in (self.low, self.high, float(value)))
        return (at - low) / (high - low) if high > low else 0.5

    @property
    def ticks(self) -> dict[str, float]:
        """Words along the axis and where they stand."""
        if self.choices:
            return {choice: self.place(choice) for choice in self.choices}
        middle = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
        return {f"{value:.2g}": self.place(value) for value in (self.low, middle, self.high)}


@dataclass(frozen=True)
class Trial:
    """A trial that is over: ``finished``, ``pruned`` or ``diverged``; its value is None but for a finished one."""

    number: int
    state: str
    value: float | None
    feasible: bool | None
    settings: dict[str, float | str]
    steps: list[float]
    curve: list[float]


@dataclass(frozen=True)
class Searched:
    """What was found for one method.

    ``best`` is the number of the trial that was chosen, ``edges`` what of it lies at an end of where it was searched.
    """

    method: str
    ranges: dict[str, Range]
    trials: list[Trial]
    best: int | None
    importance: dict[str, float]
    command: str
    edges: list[str]

    @property
    def name(self) -> str:
        """The method as a reader writes it."""
        return METHOD_NAMES.get(self.method, self.method)

    @property
    def chosen(self) -> Trial | None:
        """The trial that was chosen."""
        return next((trial for trial in self.trials if trial.number == self.best), None)

    @classmethod
    def of(cls, method: str, found: Mapping[str, Any]) -> "Searched":
        """From a method's part of ``sweep.json``."""
        best = found["best"]
        return cls(
            method=method,
            ranges={str(name): _range(kind) for name, kind in found["searched"].items()},
            trials=[_trial(each) for each in found["trials"]],
            best=None if best is None else int(best["number"]),
            importance={str(name): float(share) for name, share in found["importance"].items()},
            command="" if best is None else str(best["command"]),
            edges=[str(each) for each in found["edges"]],
        )


def styles(methods: list[Searched]) -> dict[str, Style]:
    """How each method is drawn, as on every page."""
    spare = list(SPARE_STYLES)
    return {each.method: STYLES.get(each.method) or (spare.pop(0) if spare else SPARE_STYLES[-1]) for each in methods}


def _range(kind: Mapping[str, Any]) -> Range:
    if "choices" in kind:
        return Range(choices=tuple(str(choice) for choice in kind["choices"]))
    low, high, scale = float(kind["low"]), float(kind["high"]), bool(kind["log"])
    if not (isfinite(low) and isfinite(high)) or (scale and low <= 0):
        raise ValueError(f"no range from {low} to {high}")
    return Range(low, high, scale)


def _trial(found: Mapping[str, Any]) -> Trial:
    value, curve = found["value"], found["curve"]
    steps = [float(step) for step in curve["steps"]]
    values = [float("nan") if each is None else float(each) for each in curve["values"]]
    if len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps but {len(values)} values")
    return Trial(
        number=int(found["number"]),
        state=str(found["state"]),
        value=float(value) if value is not None and isfinite(float(value)) else None,
        feasible=None if found["feasible"] is None else bool(found["feasible"]),
        settings={
            str(name): float(each) if isinstance(each, int | float) else str(each)
            for name, each in found["settings"].items()
        },
        steps=steps,
        curve=values,
    )
