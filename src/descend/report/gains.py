"""What a training gives under noise, compared with the plain training beside it."""

from collections.abc import Sequence
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from descend.jackknife import Advantage, Numbers, advantage, metric, over_noise, without_each
from descend.report.runs import Arm, Group
from descend.report.words import groups_words, metric_name
from descend.results import CONFIDENCE, Groups


class Gains(NamedTuple):
    """How much better an arm's last layer is than plain training's, in percent.

    Attributes:
        arm: The arm.
        levels: γ → the gain there.
        over: The gain over all levels: of the mean error, or of the area under an accuracy.
        seeds: Seeds that both have.
        lost: Seeds of the arm that diverged.
    """

    arm: Arm
    levels: dict[float, Advantage]
    over: Advantage
    seeds: int
    lost: int


def gains(group: Group) -> list[Gains]:
    """The gains of a group's arms over the first plain training with runs on the same samples and levels."""
    found, plain = [], [arm for arm in group.arms if arm.summary.method == "erm"]
    for arm in group.arms:
        if arm.summary.method in ("erm", "plain"):
            continue
        every = (_beside(arm, other) for other in plain if other.summary.depth == arm.summary.depth)
        found += [each for each in every if each][:1]
    return found


def gain_lines(found: Sequence[Gains]) -> list[str]:
    """A sentence for each arm: the change of the number over all levels, its interval, and what that rests on."""
    lines = []
    for each in found:
        summary, metric = each.arm.summary, metric_name(each.arm.summary)
        name = f"the area under the {metric.lower()}" if summary.higher_is_better else f"mean {metric}"
        value, low, high, _, groups, _ = each.over
        levels = sorted(each.levels)
        span = f"from γ = {levels[0]:g} to {levels[-1]:g}" if levels[1:] else f"at γ = {levels[0]:g}"
        middle, least, most = (f"{round(end, 1) + 0.0:+.1f}".replace("-", "−") for end in (value, low, high))
        ends = "" if np.isnan(low) else f"95 %: {least} to {most}; "
        change = f"in {name} {span}: {middle} % ({ends}above 0 is better)"
        seeds = "1 seed, so other seeds are not tested" if each.seeds == 1 else f"{each.seeds} seeds"
        lost = f" {each.lost} more seed{'s' * (each.lost > 1)} diverged: no claim." if each.lost else ""
        few = f" Open: {groups_words(summary.groups)}." if summary.few_groups else ""
        rest = f"{groups} group{'s' * (groups != 1)} of test samples, {seeds}.{few}{lost}"
        lines.append(f"{each.arm.label}: gain over plain training {change}; {rest}")
    return lines


def _beside(arm: Arm, plain: Arm) -> Gains | None:
    """The gains of an arm over another; None if no seed of both was evaluated alike."""
    theirs = {run.summary.seed: run.groups for run in plain.runs}
    pairs = [(run.groups, theirs.get(run.summary.seed)) for run in arm.runs]
    both = [(own, other) for own, other in pairs if own and other and _alike(own, other)]
    both = [pair for pair in both if _alike(pair[0], both[0][0])]
    if not both:
        return None
    higher, noise = arm.summary.higher_is_better, both[0][0].noise
    single = any(own.single for own, _ in both)

    def gain(places: list[int]) -> Advantage:
        ours, others = (_numbers(side, places, higher) for side in zip(*both, strict=True))
        found = advantage(ours, others, higher, CONFIDENCE, np.array(both[0][0].counts))
        # Samples of one group, such as windows of one clip, are not independent, so they tell no spread.
        return found._replace(low=nan, high=nan, p=nan, groups=1, parts={}) if single else found

    by_level = {level: gain([place]) for place, level in enumerate(noise)}
    lost = sum(not isfinite(run.summary.mean) for run in arm.runs if run.summary.seed in theirs)
    return Gains(arm, by_level, gain([*range(len(noise))]), len(both), lost)


def _alike(ours: Groups, theirs: Groups) -> bool:
    """Whether both have finite scores of the same samples at the same levels."""
    known = ours.fingerprint is not None and ours.fingerprint == theirs.fingerprint
    same = (ours.noise, ours.counts) == (theirs.noise, theirs.counts) and len(ours.counts) > 1
    return known and same and all(bool(np.isfinite(groups.scores).all()) for groups in (ours, theirs))


def _numbers(side: Sequence[Groups], places: list[int], higher_is_better: bool) -> Numbers:
    """The metric over some of the levels, of each seed."""
    values, without = [], []
    for groups in side:
        levels = [groups.noise[place] for place in places]
        counts, scores = np.array(groups.counts, float), np.array(groups.scores, float)[places]
        values.append(over_noise(levels, metric(counts, scores, groups.root), higher_is_better))
        without.append(over_noise(levels, without_each(counts, scores, groups.root), higher_is_better))
    return Numbers(np.array(values), np.stack(without))
