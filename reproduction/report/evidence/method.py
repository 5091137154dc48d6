"""What α, η and relaxation do, infeasible runs, and the descent of single samples."""

from collections.abc import Sequence
from math import nan

import numpy as np
from scipy.stats import f

from descend.report import CONFIDENCE
from reproduction.report.cells import Run, listed
from reproduction.report.claims import Evidence, below, every, number, ranged
from reproduction.report.estimates import Interval, advantage, ahead, by_level, over_seeds, same_seeds, together, unit
from reproduction.report.results import Setting
from reproduction.report.selections import Ablation

NEAR = 0.5
"""How close to 1 − α a median ratio counts as there, in α: at 1 a layer that does nothing would be."""

PAPER_SHARE = 0.708
"""The share of steps on which the loss of a sample falls, by the paper (Appendix B.5)."""

MEDIAN = 0.5
"""Among the quantiles of a summary."""


def largest_alpha(ablation: Ablation) -> Evidence:
    """What the largest α gains over the smallest under the strongest noise."""
    family, first = ablation.family, ablation.first
    few_, much = together(family[min(family)], family[max(family)])
    last = few_.noise[-1]
    gained = advantage(much.at(last), few_.at(last), first.higher).interval
    words = {"low": min(family), "high": max(family), "last": last}
    return Evidence(gained, words, unit(first.higher), constrained=ablation.runs)


def alpha_cost(ablation: Ablation) -> Evidence:
    """The same at each level up to the training noise."""
    family, first = ablation.family, ablation.first
    gains = by_level(family[max(family)], family[min(family)], first.gamma)
    words = {"low": min(family), "high": max(family)}
    return Evidence(gains, words, unit(first.higher), lambda level: f"test γ = {level:g}", ablation.runs)


def three_levels(ablation: Ablation) -> list[float]:
    """The weakest, the middle and the strongest noise level."""
    noise = together(next(iter(ablation.family.values())))[0].noise
    return sorted({noise[0], noise[len(noise) // 2], noise[-1]})


def changes(ablation: Ablation, name: str, *, strongest: bool) -> Evidence:
    """By how much the result of each value differs from that of the smallest.

    Args:
        ablation: The runs.
        name: The setting's symbol.
        strongest: Whether the claim is about the strongest level too.
    """
    levels, family, differences = three_levels(ablation), ablation.family, {}
    for level in levels if strongest or len(levels) < 2 else levels[:-1]:
        for value in list(family)[1:]:
            ours, base = together(family[value], family[min(family)])
            differences[level, value] = advantage(ours.at(level), base.at(level), ours.higher)
    return Evidence(
        differences,
        {"least": min(family)},
        unit(ablation.first.higher),
        lambda key: f"{name} = {key[1]:g} at test γ = {key[0]:g}",
        ablation.runs,
    )


def seed_spread(ablation: Ablation) -> Evidence | None:
    """The spread over seeds at the strongest noise, as a multiple of that at the weakest."""
    arms = same_seeds(*ablation.family.values())
    seeds, levels = len(arms[0]), three_levels(ablation)
    if seeds < 2:
        return None
    # Values share their seeds, so each spread has the degrees of freedom of its seeds alone.
    ends = [np.array([[_value(run, level) for run in runs] for runs in arms]) for level in (levels[0], levels[-1])]
    weak, strong = (100 * float(np.sqrt(values.var(1, ddof=1).mean())) for values in ends)
    ratio = strong / weak if weak else nan
    reach = float(f.ppf((1 + CONFIDENCE) / 2, seeds - 1, seeds - 1)) ** 0.5
    words = {"seeds": seeds, "values": len(arms), "strong": number(strong), "weak": number(weak)}
    words |= {"last": levels[-1], "first": levels[0]}
    return Evidence(Interval(ratio, ratio / reach, ratio * reach), words, constrained=ablation.runs)


def _value(run: Run, level: float) -> float:
    return dict(zip(run.summary.noise, run.summary.values, strict=True))[level]


def infeasible_is_worse(cells: tuple[list[Run], Setting]) -> Evidence | None:
    """The gain of an infeasible run over the constrained ones beside it, at each noise level."""
    runs, setting = cells
    beside = setting.constrained
    if not beside:
        return None
    ours, theirs = together(runs, beside)
    gains = {
        level: ahead(ours.at(level), theirs.at(level), ours.higher) for level in ours.noise if level in theirs.noise
    }
    feasible = sum(run.summary.feasible is True for run in beside)
    words = {"beside": len(beside), "feasible": feasible, "metric": setting.metric}
    evidence = Evidence(gains, words, " %", lambda level: f"test γ = {level:g}")
    if feasible == len(beside):
        return evidence
    # To be worse than another infeasible run says nothing, and to pick seeds by their verdicts would be a choice.
    judged = every(gains, below)
    words |= {"worst": evidence.label(judged.worst), "end": ranged(judged.end, " %")}
    return Evidence("undecided", words)


def verdict_names_layers(cells: tuple[list[Run], Setting]) -> Evidence:
    """Whether the verdict finds each infeasible run and names layers that missed their bounds in training too."""
    runs, _ = cells
    found = [run for run in runs if run.summary.feasible is False]
    named = [run for run in found if _missing(run)]
    words = {
        **{"infeasible": len(found), "count": len(named), "runs": len(runs)},
        "verdict": (named or runs)[0].summary.verdict,
    }
    return Evidence("held" if len(named) == len(runs) else "not held", words)


def _missing(run: Run) -> bool:
    trained = run.trained("violation")
    named = [layer for layer in run.summary.violated if layer > 0]
    return trained is not None and bool(named) and all(trained[layer - run.depth - 1] > 0 for layer in named)


def sample_descent(cells: tuple[Setting, list[Run]]) -> Evidence:
    """The share of steps on which a sample's loss falls."""
    setting, bare = cells
    ours = over_seeds(_descending(setting.constrained))
    others = "".join(
        f", {name} {100 * over_seeds(shares).value:.1f} %"
        for name, runs in (("ERM", setting.plain), ("without relaxation", bare))
        if (shares := _descending(runs))
    )
    rates = next((run.rates for run in setting.constrained if run.rates), {})
    free = [str(layer) for layer in range(1, setting.depth + 1) if layer not in rates]
    words = {
        "points": ranged(Interval(100 * ours.value, 100 * max(ours.low, 0), 100 * min(ours.high, 1), ours.over), " %")
    }
    words["free"] = f", layers without a constraint ({listed(free)}) among them" if free else ""
    words["paper"] = f"paper {100 * PAPER_SHARE:.1f} %{others}"
    return Evidence(ours, words, constrained=setting.constrained)


def _descending(runs: Sequence[Run]) -> list[float]:
    return [run.summary.descending_share for run in runs if run.summary.descending_share is not None]


def median_ratio(cells: tuple[Setting, list[Run]]) -> Evidence | None:
    """How far a constrained layer's median ratio lies from 1 − α, in α."""
    runs = cells[0].constrained
    pairs = [pair for run in runs if (pair := _median_and_rate(run))]
    if not pairs:
        return None
    median, rate = (sum(values) / len(values) for values in zip(*pairs, strict=True))
    difference = over_seeds([one - other for one, other in pairs])
    alpha = max(1 - rate, 1e-9)
    in_alpha = Interval(difference.value / alpha, difference.low / alpha, difference.high / alpha, difference.over)
    words = {"median": number(median), "rate": f"{rate:.4g}", "difference": ranged(difference)}
    return Evidence(in_alpha, words, constrained=runs)


def _median_and_rate(run: Run) -> tuple[float, float] | None:
    """A layer's median ratio over samples and its `Run.rates`, both averaged over the constrained layers."""
    ratios = run.summary.ratios
    if MEDIAN not in ratios.quantiles or not run.rates or max(run.rates) > len(ratios.by_layer):
        return None
    place = ratios.quantiles.index(MEDIAN)
    medians = [ratios.by_layer[layer - 1][place] for layer in run.rates]
    return sum(medians) / len(medians), sum(run.rates.values()) / len(run.rates)
