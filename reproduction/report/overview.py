"""What each method gives against plain training, over all settings of a study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import isnan, nan
from statistics import fmean, median
from typing import Literal, NamedTuple

from descend.results import ENOUGH_GROUPS, WITHIN
from reproduction.grid import ARMS
from reproduction.report.cells import Run
from reproduction.report.claims import above, below
from reproduction.report.estimates import Interval, advantage, gain, same_seeds
from reproduction.report.layers_needed import half, layers_within, metrics, milliseconds
from reproduction.report.results import FORMS, Results, Setting

INTERVALS = (
    "The 95 % intervals are over seeds and clips or texts, by bootstrap; with fewer than "
    f"{ENOUGH_GROUPS} clips 95 % is not promised."
)
"""What gains of one method over another, and counts of those that exclude 0, rest on."""

Outcome = Literal["better", "worse", "undecided"]


class RunCount(NamedTuple):
    """Some of several runs, ``number`` of ``total``."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number} of {self.total}" if self.total else "–"


@dataclass(frozen=True)
class Gains:
    """How much better a method is than ERM, in several settings.

    Attributes:
        middle: The median over settings; NaN without any.
        better: Settings in which the method is better.
        worse: Settings in which it is worse.
        surely_better: Settings in which the 95 % interval lies above 0.
        surely_worse: Settings in which it lies below 0.
        undecided: Settings in which it contains 0 or is unknown.
    """

    middle: float
    better: int
    worse: int
    surely_better: int
    surely_worse: int
    undecided: int

    @classmethod
    def of(cls, gains: Sequence[Interval]) -> "Gains":
        """From the gain in each setting."""
        outcomes = [outcome(gained) for gained in gains]
        return cls(
            middle=_median([gained.value for gained in gains]),
            better=sum(gained.value > 0 for gained in gains),
            worse=sum(gained.value < 0 for gained in gains),
            surely_better=outcomes.count("better"),
            surely_worse=outcomes.count("worse"),
            undecided=outcomes.count("undecided"),
        )


@dataclass(frozen=True)
class Cost:
    """The layers that a method needs, and their time, in the mean over settings; NaN if unknown.

    Attributes:
        layers: For 1, 2 and 5 the share of the L layers from which on all are within that percent of full depth.
        full: Milliseconds per sample for all layers.
        needed: Milliseconds per sample for the layers needed within 5 %.
    """

    layers: dict[int, float]
    full: float
    needed: float


@dataclass(frozen=True)
class ArmOverview:
    """A method over all settings in which it and ERM were run.

    Errors are those of video, in per cent of ERM's; accuracies those of texts and language models, in points. A gain is
    positive where the method is better. NaN is unknown.

    Attributes:
        settings: How many settings there are.
        runs: Its runs in them, all seeds.
        diverged: How many of these diverged.
        feasible: Runs that are feasible by their own constraints; those of other methods by the default's target, for
            which they were not trained. Of the runs that were judged so.
        proven: Of the feasible runs, those whose verdict is certain at 95 % confidence.
        falls: Runs whose mean test loss, at their training noise, falls at each of the layers 1 … L.
        certain: Of these, runs for which every fall is certain at 95 % confidence. Of those with a certificate.
        error: The median gain of the last layer at the training noise, of errors.
        accuracy: The same of accuracies.
        half_error: The median gain at half depth at the training noise, of errors.
        half_accuracy: The same of accuracies.
        over_noise: The gains in the number of the paper's Tables 3 and 4, in per cent of ERM's.
        cost: The layers needed and their time.
        erm_cost: ERM's, in the same settings.
    """

    settings: int
    runs: int
    diverged: int
    feasible: RunCount
    proven: RunCount
    falls: RunCount
    certain: RunCount
    error: float
    accuracy: float
    half_error: float
    half_accuracy: float
    over_noise: Gains
    cost: Cost
    erm_cost: Cost


def overview(results: Results) -> dict[str, ArmOverview]:
    """Each method of a study over the settings in which it and ERM were run, by arm, ERM first.

    ERM has no gains over itself. ``erm-clean`` counts as ERM at γ = 0 and is left out elsewhere.
    """
    settings = [setting for setting in results.settings if setting.plain]
    others = {arm for setting in settings for arm in setting.arms} - {"erm", "erm-clean"}
    arms = ["erm", *sorted(others, key=lambda arm: ([*ARMS].index(arm) if arm in ARMS else len(ARMS), arm))]
    return (
        {arm: _overview(arm, [setting for setting in settings if setting.runs(arm)]) for arm in arms}
        if settings
        else {}
    )


def _overview(arm: str, settings: Sequence[Setting]) -> ArmOverview:
    runs = [run for setting in settings for run in setting.runs(arm)]
    rivals = [] if arm == "erm" else settings
    error, accuracy = _medians(arm, rivals, lambda depth: depth)
    half_error, half_accuracy = _medians(arm, rivals, half)
    cost, erm_cost = _costs(arm, settings)
    return ArmOverview(
        settings=len(settings),
        runs=len(runs),
        diverged=sum(run.diverged for run in runs),
        feasible=feasible(runs),
        proven=proven(runs),
        falls=falls(runs),
        certain=certain(runs),
        error=error,
        accuracy=accuracy,
        half_error=half_error,
        half_accuracy=half_accuracy,
        over_noise=Gains.of([gain(setting, arm).interval for setting in rivals]),
        cost=cost,
        erm_cost=erm_cost,
    )


def feasible(runs: Sequence[Run]) -> RunCount:
    """The feasible runs: by their own constraints, or by the default's target if they had none."""
    judged = _judged(runs)
    return RunCount(sum(run.summary.feasible is True for run in judged), len(judged))


def proven(runs: Sequence[Run]) -> RunCount:
    """Of the feasible runs, those whose verdict is certain; below `ENOUGH_GROUPS` groups of samples none is."""
    held = [run for run in _judged(runs) if run.summary.feasible is True]
    return RunCount(sum(run.summary.certain and not run.few_groups for run in held), len(held))


def _judged(runs: Sequence[Run]) -> list[Run]:
    """The runs that are held to the constraints of one of the two forms."""
    return [run for run in runs if run.arm in FORMS or run.diverged or run.summary.target == "geometric"]


def falls(runs: Sequence[Run]) -> RunCount:
    """The runs whose mean test loss falls at every layer, at their training noise."""
    return RunCount(sum(map(_falls, runs)), len(runs))


def certain(runs: Sequence[Run]) -> RunCount:
    """Of the runs that fall and have a certificate, those certain at 95 % confidence, as in `proven`."""
    known = [run for run in runs if _falls(run) and run.summary.certified]
    return RunCount(sum(min(run.summary.certified) > 0 and not run.few_groups for run in known), len(known))


def outcome(gained: Interval) -> Outcome:
    """Whether the whole 95 % interval of a gain lies above 0, below 0, or neither."""
    return "better" if above(gained) == "held" else "worse" if below(gained) == "held" else "undecided"


def descends(losses: Sequence[float]) -> bool:
    """Whether losses f_0 … f_L are known and fall at every layer."""
    return len(losses) > 1 and all(after < before for before, after in pairwise(losses))


def _falls(run: Run) -> bool:
    return descends(run.losses(run.summary.train_noise) or [])


def _medians(arm: str, settings: Sequence[Setting], layer: Callable[[int], int]) -> tuple[float, float]:
    """The median gains over ERM at a layer at the training noise: of errors, and of accuracies.

    Args:
        arm: The method.
        settings: Settings in which it and ERM were run.
        layer: From the depth L to the layer.
    """
    gains: dict[bool, list[float]] = {False: [], True: []}
    for setting in settings:
        pair = same_seeds(setting.runs(arm), setting.plain)
        ours, theirs = (metrics(runs, setting.gamma)[layer(setting.depth)] for runs in pair)
        higher = setting.plain[0].higher
        gains[higher].append(float(advantage(ours, theirs, higher).value))
    return _median(gains[False]), _median(gains[True])


def _costs(arm: str, settings: Sequence[Setting]) -> tuple[Cost, Cost]:
    """A method's cost and ERM's, each number over the settings in which both are known."""

    def means(measure: Callable[[Sequence[Run], float], Sequence[float]]) -> tuple[float, float]:
        """The means over settings of the means over runs."""
        pairs = [
            (measure(setting.runs(arm), setting.gamma), measure(setting.plain, setting.gamma)) for setting in settings
        ]
        known = [(fmean(ours), fmean(theirs)) for ours, theirs in pairs if ours and theirs]
        return (fmean(ours for ours, _ in known), fmean(theirs for _, theirs in known)) if known else (nan, nan)

    shares = {percent: means(partial(_shares, percent=percent)) for percent in WITHIN}
    full, needed = means(milliseconds), means(partial(milliseconds, percent=5))
    ours, theirs = (
        Cost({each: shares[each][place] for each in WITHIN}, full[place], needed[place]) for place in (0, 1)
    )
    return ours, theirs


def _shares(runs: Sequence[Run], level: float, percent: int) -> list[float]:
    return [layer / runs[0].depth for layer in layers_within(runs, level, percent)]


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if not isnan(value)]
    return float(median(known)) if known else nan
