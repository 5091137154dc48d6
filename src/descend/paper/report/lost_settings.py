"""The settings in which constraints lose to plain training, and what their own numbers say of it."""

from collections.abc import Iterator, Sequence
from math import isfinite, nan
from statistics import fmean

from descend.paper.report.cells import Run, arm_name
from descend.paper.report.estimates import Interval, gain, same_seeds
from descend.paper.report.overview import RunCount, descends, feasible, outcome
from descend.paper.report.paper_tables import named, printed
from descend.paper.report.results import FORMS, Results, Setting
from descend.paper.report.tables import Table, with_ends
from descend.paper.report.theorems import out_of_reach

LEVEL = 0.5
"""Gains below this many per cent are called level."""

NOTABLE = 1.0
"""Losses that differ by more than this many per cent are called higher."""


def table_lost(results: Results) -> Table:
    """One row for each setting and form of constraints that is worse than ERM over noise."""
    heads = (
        *("Method", "Model", "L", "Data", "γ", "Noise", "Gain %", "Printed: gain %", "Feasible", "ERM feasible"),
        *("Falls, training data", "Last loss, training data, %", "Last loss, test data, %"),
        *("Learning rate", "ERM's", "What the numbers say"),
    )
    rows, counts = [], []
    for form in FORMS:
        settings = [setting for setting in results.settings if setting.compares(form)]
        lost = [setting for setting in settings if gain(setting, form).interval.value < 0]
        lost.sort(key=lambda setting: gain(setting, form).interval.value)
        far = out_of_reach(results, form)
        rows += [_row(setting, form, setting in far) for setting in lost]
        counts.append(f"{arm_name(form)} has {len(lost)} of {len(settings)}.")
    words = (
        f"The settings in which constraints are worse than ERM in the number of Tables 3 and 4. {' '.join(counts)} "
        "Printed: the paper's gain in this cell. ERM feasible: ERM's runs held to the default's target. Falls, "
        "training data: runs whose mean loss on training samples falls at every layer. Last loss: how much higher "
        "layer L's loss is than ERM's at the training noise, in the mean over seeds. The last column follows from the "
        f"others: level is a gain within {LEVEL:g} %, higher a loss by more than {NOTABLE:g} %."
    )
    return Table("table-lost", "Settings in which constraints lose, and why", words, heads, rows)


def _row(setting: Setting, form: str, too_low: bool) -> list[str]:
    ours, theirs = same_seeds(setting.runs(form), setting.plain)
    row = printed(setting)
    fit, test = _higher(_train_losses(ours), _train_losses(theirs)), _higher(_test_losses(ours), _test_losses(theirs))
    measured = [run for run in ours if run.train_losses is not None]
    falling = RunCount(sum(descends(run.train_losses or []) for run in measured), len(measured))
    return [
        *(arm_name(form), *named(setting), with_ends(gain(setting, form).interval, "+.2f")),
        *(f"{row.gain:+.2f}" if row else "–", str(feasible(ours)), str(feasible(theirs)), str(falling)),
        *(with_ends(Interval(each), "+z.1f") for each in (fit, test)),
        *(_learning_rates(ours), _learning_rates(theirs)),
        "; ".join(_reasons(setting, form, too_low, fit, test)),
    ]


def _reasons(setting: Setting, form: str, too_low: bool, fit: float, test: float) -> Iterator[str]:
    """What the numbers of a lost setting say.

    Args:
        setting: The setting.
        form: The form of constraints.
        too_low: It asks for a lower last loss than the model reached with any method.
        fit: By how many per cent the last layer's loss on training samples is higher than ERM's.
        test: The same on test data, at the training noise.
    """
    ours, theirs = same_seeds(setting.runs(form), setting.plain)
    if any(run.diverged for run in ours):
        yield "a run diverged"
        return
    if too_low:
        yield "asks for a lower last loss than any method reached"
    gained, held, by_itself = gain(setting, form).interval, feasible(ours), feasible(theirs)
    if held.number < held.total:
        yield "constraints not met on test data"
    if form == "constrained" and by_itself.total and by_itself.number == by_itself.total:
        yield "ERM meets the constraints by itself"
    if gained.value > -LEVEL:
        yield "level"
    elif fit > NOTABLE:
        yield "fits the training data less well"
    elif test > NOTABLE:
        yield "fits the training data as well, and generalizes less well"
    elif isfinite(fit) and isfinite(test):
        yield "not behind at the training noise, but at other noise"
    if outcome(gained) == "undecided":
        yield "not decided"


def _learning_rates(runs: Sequence[Run]) -> str:
    rates = dict.fromkeys(run.summary.settings.get("learning_rate") for run in runs)
    return ", ".join(f"{rate:g}" for rate in rates if isinstance(rate, float)) or "–"


def _train_losses(runs: Sequence[Run]) -> list[float]:
    return [run.train_losses[-1] if run.train_losses else nan for run in runs]


def _test_losses(runs: Sequence[Run]) -> list[float]:
    return [(run.losses(run.summary.train_noise) or [nan])[-1] for run in runs]


def _higher(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """By how many per cent the mean of one is higher than that of the other; NaN if one is unknown."""
    return 100 * (fmean(ours) / fmean(theirs) - 1)
