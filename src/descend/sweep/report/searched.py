"""The search of one method, prepared for the page of a sweep."""

from dataclasses import dataclass
from math import isfinite, log

from descend.report.runs import METHOD_NAMES, SPARE_STYLES, STYLES, Style
from descend.results.sweeps import MethodSearch, Searched, Trial


@dataclass(frozen=True)
class Range:
    """The searched range of a setting: two numbers on a linear or log scale, or a list of choices."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, searched: Searched) -> "Range":
        """From ``sweep.json``."""
        if searched.low is None or searched.high is None:
            return cls(choices=tuple(searched.choices))
        return cls(searched.low, searched.high, searched.log)

    def place(self, value: float | str) -> float:
        """A value's position on an axis from 0 to 1."""
        if self.choices:
            return (self.choices.index(str(value)) + 0.5) / len(self.choices)
        low, high, at = (log(x) if self.log else x for x in (self.low, self.high, float(value)))
        return (at - low) / (high - low) if high > low else 0.5

    @property
    def ticks(self) -> dict[str, float]:
        """Tick label → its position on the axis, from 0 to 1."""
        if self.choices:
            return {choice: self.place(choice) for choice in self.choices}
        middle = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
        return {f"{value:.2g}": self.place(value) for value in (self.low, middle, self.high)}


@dataclass(frozen=True)
class Method:
    """The search of one method, with its ranges as axes."""

    method: str
    search: MethodSearch
    ranges: dict[str, Range]
    trials: list[Trial]

    @classmethod
    def of(cls, method: str, search: MethodSearch) -> "Method":
        """From ``sweep.json``; a value that is not finite becomes None."""
        trials = [
            trial if trial.value is None or isfinite(trial.value) else trial.model_copy(update={"value": None})
            for trial in search.trials
        ]
        ranges = {name: Range.of(searched) for name, searched in search.searched.items()}
        return cls(method, search, ranges, trials)

    @property
    def name(self) -> str:
        """The method's display name."""
        return METHOD_NAMES.get(self.method, self.method)

    @property
    def best(self) -> int | None:
        """The number of the chosen trial."""
        return None if self.search.best is None else self.search.best.number

    @property
    def chosen(self) -> Trial | None:
        """The chosen trial."""
        return next((trial for trial in self.trials if trial.number == self.best), None)


def styles(methods: list[Method]) -> dict[str, Style]:
    """Method → its colours and marker, the same on every page."""
    spare = list(SPARE_STYLES)
    return {each.method: STYLES.get(each.method) or (spare.pop(0) if spare else SPARE_STYLES[-1]) for each in methods}
