"""What seeds and groups of samples let one say: intervals, paired comparisons of two arms, and wins over many cells."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import binomtest, wilcoxon
from scipy.stats import t as student

from descend.errors import InputError
from descend.study.groups import Statistic, Table

CONFIDENCE = 0.95

RESAMPLES = 2000
"""Of a bootstrap: its standard errors then differ from their limit by some 2 %."""

BLOCK = 2**21
"""Numbers of resampled weights that are held at a time."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval.

    Attributes:
        estimate: The mean over seeds; not finite where a run has diverged.
        low: The interval's lower end; NaN, as ``high``, where one seed or one group leaves it unknown, or a run has
            diverged.
        high: Its upper end.
        p: That of the hypothesis that the truth is 0, two-sided; NaN where the interval is unknown.
        seeds: How many runs it rests on.
        groups: How many groups of samples.
    """

    estimate: float
    low: float
    high: float
    p: float
    seeds: int
    groups: int


@dataclass(frozen=True)
class Comparison(Estimate):
    """The difference of two arms, the first minus the second, with its interval and what it says.

    Attributes:
        verdict: ``better`` or ``worse`` if the interval excludes 0, or one arm alone has diverged; ``equal`` if 0 can't
            be excluded; ``unknown`` where there is no interval.
    """

    verdict: str


@dataclass(frozen=True)
class Draws:
    """A mean over seeds, and what it is in each resample.

    Seeds and groups are both samples: of all runs that might have been trained, and of all data that might have been
    judged. Each is resampled in its turn (drawing one less than there are, with which the variance of a mean is without
    bias), and the two variances add up. Resampling both at once would count thrice, in place of twice, what is neither
    a seed's nor a group's own. With three seeds the percentiles of so few resamples mean little: the interval is
    Student's, with Satterthwaite's degrees of freedom for the sum of two variances.

    Attributes:
        value: The mean over seeds.
        over_seeds: What it is in each resample of the seeds, (R,); NaN where there is but one, as of groups.
        over_groups: The same of the groups.
        seeds: How many runs it rests on.
        groups: How many groups of samples; 0 where they are not told, and the interval is over seeds alone.
    """

    value: float
    over_seeds: np.ndarray
    over_groups: np.ndarray
    seeds: int
    groups: int

    @property
    def estimate(self) -> Estimate:
        """With its 95 % interval."""
        return self.among(1)

    def among(self, tried: int) -> Estimate:
        """With an interval that holds where it was picked from several: Bonferroni's, of 1 − 0.05 / tried."""
        by_seeds, by_groups = self.over_seeds.var(), self.over_groups.var()
        variance = by_seeds + by_groups
        told = {"seeds": self.seeds, "groups": self.groups}
        if not np.isfinite(variance):
            return Estimate(self.value, np.nan, np.nan, np.nan, **told)
        if variance == 0:  # nothing varies: the difference of an arm with itself, for one
            return Estimate(self.value, self.value, self.value, float(self.value == 0), **told)
        freedom = variance**2 / (by_seeds**2 / (self.seeds - 1) + by_groups**2 / max(self.groups - 1, 1))
        error = np.sqrt(variance)
        width = float(student.ppf(1 - (1 - CONFIDENCE) / (2 * tried), freedom) * error)
        p = min(1.0, float(2 * tried * student.sf(abs(self.value) / error, freedom)))
        return Estimate(self.value, self.value - width, self.value + width, p, **told)


def draws(runs: Sequence[Mapping[str, Any]], statistic: Statistic, generator: np.random.Generator) -> Draws:
    """The mean over seeds of a statistic, and what it is in each resample.

    Two arms of as many seeds on the same data, with generators that stand alike, have the same resamples.

    Args:
        runs: The ``groups.json`` of each seed's run, all on the same data.
        statistic: `mean`, `auc` or `at` a level of `groups`, or one's own.
        generator: Draws the resamples.

    Raises:
        InputError: If there is no run, or the runs were judged on different data.
    """
    tables = _tables(runs)
    seeds, groups = len(tables), len(tables[0].counts)
    found = _by_seed(tables, statistic, np.ones((1, groups)))[:, 0]
    if min(seeds, groups) < 2:
        unknown = np.full(RESAMPLES, np.nan)
        return Draws(float(found.mean()), unknown, unknown, seeds, groups)
    return Draws(
        float(found.mean()),
        found[generator.integers(seeds, size=(RESAMPLES, seeds - 1))].mean(1),
        np.concatenate([_by_seed(tables, statistic, drawn).mean(0) for drawn in _resampled(groups, generator)]),
        seeds,
        groups,
    )


def combine(function: Callable[..., Any], *parts: Draws) -> Draws:
    """A function of several means, resample by resample: their difference by ``np.subtract``, for one."""
    with np.errstate(all="ignore"):  # what has diverged
        return Draws(
            float(function(*(part.value for part in parts))),
            function(*(part.over_seeds for part in parts)),
            function(*(part.over_groups for part in parts)),
            min(part.seeds for part in parts),
            min(part.groups for part in parts),
        )


def interval(runs: Sequence[Mapping[str, Any]], statistic: Statistic, generator: np.random.Generator) -> Estimate:
    """The mean over seeds of a statistic with its 95 % interval, by a bootstrap over seeds and groups: `draws`."""
    return draws(runs, statistic, generator).estimate


def paired(
    ours: Sequence[Mapping[str, Any]],
    theirs: Sequence[Mapping[str, Any]],
    statistic: Statistic,
    generator: np.random.Generator,
    *,
    higher_is_better: bool,
) -> Comparison:
    """How two arms differ, seed by seed and group by group, by a paired bootstrap: `draws`.

    What makes a seed or a group hard for both falls out of the difference.

    Args:
        ours: The ``groups.json`` of each seed's run of one arm.
        theirs: Those of the other, of the same seeds in the same order.
        statistic: `mean`, `auc` or `at` a level of `groups`, or one's own.
        generator: Draws the resamples.
        higher_is_better: Which way the metric goes.

    Raises:
        InputError: If the arms have different numbers of seeds, or were judged on different data.
    """
    if len(ours) != len(theirs):
        raise InputError(f"arms are compared seed by seed; got {len(ours)} and {len(theirs)} runs.")
    _tables([*ours, *theirs])
    one, other = draws(ours, statistic, deepcopy(generator)), draws(theirs, statistic, generator)
    found = combine(np.subtract, one, other).estimate
    if np.isfinite(one.value) != np.isfinite(other.value):
        verdict = "better" if np.isfinite(one.value) else "worse"
    elif not np.isfinite([found.low, found.high]).all():
        verdict = "unknown"
    elif found.low <= 0 <= found.high:
        verdict = "equal"
    else:
        verdict = "better" if (found.estimate > 0) == higher_is_better else "worse"
    return Comparison(**vars(found), verdict=verdict)


@dataclass(frozen=True)
class Wins:
    """In how many cells one arm is ahead of another.

    Attributes:
        wins: Cells in which it is.
        losses: Cells in which the other is.
        ties: Cells in which neither is.
        p_sign: Of wins and losses alike, two-sided and exact (binomial); ties are left out.
        p_wilcoxon: The same of a signed-rank test, which also asks by how much. Cells of one study share data and
            seeds: both take them for independent, and so for more than they are.
        diverged: Cells in which this arm has no finite value; lost, unless the other has none either.
        diverged_theirs: Cells in which the other has none; won, unless this one has none either.
    """

    wins: int
    losses: int
    ties: int
    p_sign: float
    p_wilcoxon: float
    diverged: list[str] = field(default_factory=list)
    diverged_theirs: list[str] = field(default_factory=list)

    @property
    def cells(self) -> int:
        """How many there are."""
        return self.wins + self.losses + self.ties


def wins(cells: Mapping[str, tuple[float, float]], *, higher_is_better: bool) -> Wins:
    """Count wins over cells, and test them.

    Args:
        cells: By name, our value and theirs: means over all seeds, never the best of them.
        higher_is_better: Which way the metric goes.

    Raises:
        InputError: If there is no cell.
    """
    if not cells:
        raise InputError("wins are counted over cells; got none.")
    values = np.array(list(cells.values()), dtype=float)
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        ahead = (values[:, 0] - values[:, 1]) * (1 if higher_is_better else -1)
    both = finite.all(1)
    # What has diverged is further behind than anything that has not; ranks ask for no more.
    furthest = 2 * np.abs(ahead[both]).max(initial=0.0) + 1
    ahead = np.where(both, ahead, (finite[:, 0].astype(float) - finite[:, 1]) * furthest)
    won, lost = int((ahead > 0).sum()), int((ahead < 0).sum())
    apart = ahead[ahead != 0]
    names = list(cells)
    return Wins(
        wins=won,
        losses=lost,
        ties=len(ahead) - won - lost,
        p_sign=float(binomtest(won, won + lost).pvalue) if len(apart) else 1.0,
        p_wilcoxon=float(wilcoxon(apart).pvalue) if len(apart) else 1.0,
        diverged=[names[place] for place in np.nonzero(~finite[:, 0])[0]],
        diverged_theirs=[names[place] for place in np.nonzero(~finite[:, 1])[0]],
    )


def _tables(runs: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Runs that compare."""
    tables = [Table.read(run) for run in runs]
    if not tables:
        raise InputError("expected the groups of at least one run; got none.")
    for table in tables[1:]:
        if not table.like(tables[0]):
            raise InputError(
                f"runs compare on the same data and noise levels; got {len(tables[0].counts)} and {len(table.counts)} "
                f"groups at {tables[0].noise.tolist()} and {table.noise.tolist()}. Evaluate them alike."
            )
    return tables


def _by_seed(tables: Sequence[Table], statistic: Statistic, weights: np.ndarray) -> np.ndarray:
    """The statistic of each run, (S, K), under (K, N) weights of the groups."""
    with np.errstate(all="ignore"):  # what has diverged
        return np.stack([statistic(table.values(weights), table.noise) for table in tables])


def _resampled(groups: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each group comes in `RESAMPLES` resamples of one less than there are, (K, N) at a time."""
    size = max(1, BLOCK // groups)
    for start in range(0, RESAMPLES, size):
        rows = min(size, RESAMPLES - start)
        drawn = generator.integers(groups, size=(rows, groups - 1)) + groups * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * groups).reshape(rows, groups).astype(float)
