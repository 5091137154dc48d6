"""The settings in which constraints lose to plain training, and what their own numbers say of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from statistics import fmean

from reproduction.report.cells import Run, arm_name
from reproduction.report.estimates import Interval, gain, same_seeds
from reproduction.report.overview import RunCount, descends, feasible, outcome
from reproduction.report.paper_tables import named, printed
from reproduction.report.results import FORMS, Results, Setting
from reproduction.report.selections import number_of
from reproduction.report.tables import Table, with_ends
from reproduction.report.theorems import last_loss, out_of_reach

LEVEL = 0.5
"""Gains below this many per cent are called level."""

CHANCE = {"imdb": 1 / 2, "mnli": 1 / 3}
"""Accuracy of a guess, by data set; a run within 0.01 of it is at chance."""

NOTABLE = 1.0
"""Losses that differ by more than this many per cent are called higher."""


@dataclass(frozen=True)
class Beside:
    """One form of constraints beside ERM in a setting.

    Attributes:
        setting: The setting.
        form: The form of constraints.
        ours: Its runs, of the seeds that both have.
        theirs: ERM's.
        gained: How much better the form is than ERM in the number of Tables 3 and 4, in per cent.
        too_low: It asks for a lower last loss than the model reached with any method.
    """

    setting: Setting
    form: str
    ours: Sequence[Run]
    theirs: Sequence[Run]
    gained: Interval
    too_low: bool

    @property
    def fit(self) -> float:
        """By how many per cent the last layer's loss on training samples is higher than ERM's."""
        return _higher(_train_losses(self.ours), _train_losses(self.theirs))

    @property
    def test(self) -> float:
        """The same on test data, at the training noise."""
        return _higher(_test_losses(self.ours), _test_losses(self.theirs))

    @property
    def reasons(self) -> list[str]:
        """What the numbers say of a lost setting; empty for one that is won."""
        return list(self._reasons()) if self.gained.value < 0 else []

    def _reasons(self) -> Iterator[str]:
        if any(run.diverged for run in self.ours):
            yield "a run diverged"
            return
        if self.too_low:
            yield "asks for a lower last loss than any method reached"
        held, by_itself = feasible(self.ours), feasible(self.theirs)
        if held.number < held.total:
            yield "constraints not met on test data"
        if any(_at_chance(run) for run in self.ours) and not any(_at_chance(run) for run in self.theirs):
            yield "a seed stays at chance"
        if self.form == "constrained" and by_itself.total and by_itself.number == by_itself.total:
            yield "ERM meets the constraints by itself"
        if self.gained.value > -LEVEL:
            yield "level"
        elif self.fit > NOTABLE:
            yield "fits the training data less well"
        elif self.test > NOTABLE:
            yield "fits the training data as well, and generalizes less well"
        elif isfinite(self.fit) and isfinite(self.test):
            yield "last loss at the training noise not higher"
        if outcome(self.gained) == "undecided":
            yield "not decided"


def _at_chance(run: Run) -> bool:
    """Whether a classifier does no better than a guess at its training noise."""
    value = run.summary.train_value
    return value is not None and abs(value - CHANCE.get(run.data, nan)) <= 0.01 + 1e-9


def beside_erm(results: Results, form: str) -> list[Beside]:
    """A form of constraints beside ERM in every setting that has both, in the paper's order."""
    far = out_of_reach(results, form)
    found = []
    for setting in results.settings:
        if setting.compares(form):
            ours, theirs = same_seeds(setting.runs(form), setting.plain)
            found.append(Beside(setting, form, ours, theirs, gain(setting, form).interval, setting in far))
    return [one for one in found if not isnan(one.gained.value)]


def table_lost(results: Results) -> Table:
    """One row for each setting and form of constraints that is worse than ERM over noise."""
    heads = (
        *("Method", "Model", "L", "Data", "γ", "Noise", "Gain %", "Printed: gain %", "Feasible", "ERM feasible"),
        *("Falls, training data", "Last loss, training data, %", "Last loss, test data, %"),
        *("Learning rate", "ERM's", "What the numbers say"),
    )
    rows, counts = [], []
    for form in FORMS:
        every = beside_erm(results, form)
        lost = sorted((one for one in every if one.gained.value < 0), key=lambda one: one.gained.value)
        rows += [_row(one) for one in lost]
        counts.append(f"{arm_name(form)} has {len(lost)} of {len(every)}.")
    words = (
        f"The settings in which constraints are worse than ERM in the number of Tables 3 and 4. {' '.join(counts)} "
        "Printed: the paper's gain in this cell. ERM feasible: ERM's runs held to the default's target. Falls, "
        "training data: runs whose mean loss on training samples falls at every layer. Last loss: how much higher "
        "layer L's loss is than ERM's at the training noise, in the mean over seeds. The last column follows from the "
        f"others: level is a gain within {LEVEL:g} %, higher a loss by more than {NOTABLE:g} %."
    )
    return Table("table-lost", "Settings in which constraints lose, and why", words, heads, rows)


def _row(one: Beside) -> list[str]:
    row = printed(one.setting)
    measured = [run.train_losses for run in one.ours if run.train_losses is not None]
    return [
        *(arm_name(one.form), *named(one.setting), with_ends(one.gained, "+.2f"), f"{row.gain:+.2f}" if row else "–"),
        *(
            str(feasible(one.ours)),
            str(feasible(one.theirs)),
            str(RunCount(sum(map(descends, measured)), len(measured))),
        ),
        *(with_ends(Interval(each), "+z.1f") for each in (one.fit, one.test)),
        *(_learning_rates(one.ours), _learning_rates(one.theirs), "; ".join(one.reasons)),
    ]


def _learning_rates(runs: Sequence[Run]) -> str:
    rates = dict.fromkeys(number_of(run, "learning_rate") for run in runs)
    return ", ".join(f"{rate:g}" for rate in rates if rate is not None) or "–"


def _train_losses(runs: Sequence[Run]) -> list[float]:
    return [run.train_losses[-1] if run.train_losses else nan for run in runs]


def _test_losses(runs: Sequence[Run]) -> list[float]:
    return [last_loss(run, run.summary.train_noise) for run in runs]


def _higher(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """By how many per cent the mean of one is higher than that of the other; NaN if one is unknown."""
    return 100 * (fmean(ours) / fmean(theirs) - 1)
