"""The statistics behind the claims: from the cells of a row of `claim_table` to its evidence."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import isfinite, nan
from typing import Any

import numpy as np
from scipy.stats import f

from descend.paper import statistics
from descend.paper.report.cells import Run, arm_name, data_name, few, listed
from descend.paper.report.claims import Evidence, Held, above, below, counted, every, gone, number, percent, ranged
from descend.paper.report.estimates import (
    Interval,
    Number,
    advantage,
    ahead,
    along,
    average,
    by_level,
    computed,
    finite,
    gain,
    outside,
    over_seeds,
    rows_along,
    same_seeds,
    share,
    together,
    unit,
)
from descend.paper.report.results import Setting
from descend.paper.report.selections import Ablation, Arms, GapBound, Panel, Shift, constrained, gaps, missed
from descend.paper.statistics import CONFIDENCE
from descend.records.studies import Answer

GRAM = 3
"""Words in a row that count as a repetition."""

NEAR = 0.5
"""How close to 1 − α a median ratio counts as there, in α: at 1 a layer that does nothing would be."""

PAPER_SHARE = 0.708
"""The share of steps on which the loss of a sample falls, by the paper (Appendix B.5)."""

MEDIAN = 0.5
"""Among the quantiles of a summary."""

DIVERGED = 60.0
"""RMSE above which a run counts as diverged. In the paper's Table 3 six cells lie at 63 to 138, the others below 37."""

ROUNDING = 1e-9
"""How far, in units of f_0, a violation that grows exactly linearly may seem to exceed its line."""


# --- robustness to noise


def decay(settings: Sequence[Setting]) -> Evidence:
    """How much less accuracy the constrained model loses between the training noise and the strongest."""
    setting = settings[-1]
    arms = together(setting.constrained, setting.plain)
    ours, theirs = ((arm.at(setting.gamma) - arm.at(arm.noise[-1])).times(100) for arm in arms)
    words = {"gamma": setting.gamma, "last": arms[1].noise[-1], "ours": number(ours.value)}
    words["theirs"] = number(theirs.value)
    return Evidence((theirs - ours).interval, words, " points", constrained=setting.constrained)


def _outside(arms: Arms) -> Number:
    return outside(arms["constrained"], arms["erm"], arms["erm"][0].gamma)


def panels_ahead(cells: Mapping[Panel, Arms]) -> Evidence:
    """In how many panels the constrained model is better on noise stronger than in training."""
    gains = [_outside(arms) for arms in cells.values()]
    ends = [gained.interval for gained in gains]
    better, worse = (sum(test(end) == "held" for end in ends) for test in (above, below))
    ahead_in = sum(bool(gained.value > 0) for gained in gains)
    end = share(ahead_in, len(gains))
    words = {"better": better, "worse": worse, "open": len(gains) - better - worse, "mean": mean_gain(gains)}
    return Evidence(end, {**words, "count": counted(ahead_in, len(gains), end)})


def panel_gains(cells: Mapping[Panel, Arms]) -> Evidence:
    """The gain of each panel on noise stronger than in training."""
    return Evidence({panel: _outside(arms) for panel, arms in cells.items()}, unit=" %", label=_model)


def panel_costs(cells: Mapping[Panel, Arms]) -> Evidence:
    """The gain of each panel at each level up to the training noise."""
    found = {
        (panel, level): gained
        for panel, arms in cells.items()
        for level, gained in by_level(arms["constrained"], arms["erm"], arms["erm"][0].gamma).items()
    }
    return Evidence(
        found, unit=" %", label=lambda key: f"{_model(key[0])} on {data_name(key[0][2])} at test γ = {key[1]:g}"
    )


def _model(panel: Panel) -> str:
    return panel[1] + ("" if panel[0] in ("", "paper") else f", {panel[0]} noise")


def classifier_gains(settings: Sequence[Setting], models: int = 0) -> Evidence:
    """The gain of each classifier on noise stronger than in training, if ``models`` is given of so many models."""
    found = {setting: outside(setting.constrained, setting.plain, setting.gamma) for setting in settings}
    lacking = len(settings) < models
    return Evidence(
        found,
        {"lacking": " The other was not run." if lacking else ""},
        " points",
        lambda setting: f"{setting.model} on {data_name(setting.data)}",
        partial=lacking,
    )


def larger_gain(settings: Sequence[Setting]) -> Evidence | None:
    """RoBERTa's gain less DistilBERT's."""
    found = {one.model: outside(one.constrained, one.plain, one.gamma) for one in settings}
    if len(found) < 2:
        return None
    return Evidence(
        (found["RoBERTa"] - found["DistilBERT"]).interval, unit=" points", constrained=constrained(settings)
    )


def classifier_costs(settings: Sequence[Setting]) -> Evidence:
    """The gain of each classifier at each level up to the training noise."""
    found = {
        (setting, level): gained
        for setting in settings
        for level, gained in by_level(setting.constrained, setting.plain, setting.gamma).items()
    }
    return Evidence(found, unit=" points", label=lambda key: f"{key[0].words} at test γ = {key[1]:g}")


def strong_noise(settings: Sequence[Setting]) -> Evidence:
    """The gain on noise stronger than in training."""
    setting = settings[-1]
    found = outside(setting.constrained, setting.plain, setting.gamma).interval
    return Evidence(found, {"gamma": setting.gamma}, unit(setting.constrained[0].higher))


def weak_noise(settings: Sequence[Setting]) -> Evidence:
    """The gain at each level up to the training noise."""
    setting = settings[-1]
    found = by_level(setting.constrained, setting.plain, setting.gamma)
    return Evidence(found, unit=unit(setting.constrained[0].higher), label=lambda level: f"at γ = {level:g}")


def trade_off(cells: Mapping[Panel, Arms], *, fading: bool) -> Evidence:
    """The gain at the weakest and the strongest test noise.

    Args:
        cells: The panels.
        fading: Whether a gain at weak noise is claimed to fade, or a loss there to be the price of a later gain.
    """
    rows = [list(by_level(arms["constrained"], arms["erm"]).values()) for arms in cells.values()]
    weak, strong = curve_means([(row[0], row[-1]) for row in rows])
    change = (strong - weak).interval
    words = {"weak": ranged(weak.interval, " %"), "strong": ranged(strong.interval, " %"), "curves": len(rows)}
    words |= {"change": f" It changes by {ranged(change, ' %')}." if fading else ""}
    if fading:
        return Evidence([(weak.interval, above), (change, below)], words)
    return Evidence([(weak.interval, below), (strong.interval, above)], words)


def curve_means(pairs: Iterable[tuple[Number, Number]]) -> tuple[Number, Number]:
    """The means of two numbers over curves, without those where a diverged run leaves one of them unknown."""
    pairs = list(pairs)
    kept = [pair for pair in pairs if len(finite(pair)) == 2]
    first, second = zip(*(kept or pairs), strict=True)
    return average(first), average(second)


def deeper(families: Mapping[Panel, Sequence[Setting]], *, erm: bool) -> Evidence:
    """What the largest depth gains over the smallest at the strongest test noise.

    Args:
        families: Settings by depth.
        erm: Whether the claim is that ERM gains less; else that the constrained models gain.
    """
    pairs = []
    for settings in families.values():
        ends = together(*(one.runs(arm) for arm in ("constrained", "erm") for one in (settings[0], settings[-1])))
        last = min(end.noise[-1] for end in ends)
        gains = [ahead(many.at(last), few_.at(last), few_.higher) for few_, many in (ends[:2], ends[2:])]
        pairs.append((gains[0], gains[1]))
    ours, theirs = curve_means(pairs)
    between = (ours - theirs).interval
    words = {"ours": ranged(ours.interval, " %"), "theirs": ranged(theirs.interval, " %"), "panels": len(families)}
    words |= {"between": ranged(between, " %")}
    # A method that loses from depth does not gain, even if the other loses more.
    found: Any = [(ours.interval, above), (between, above)] if erm else ours.interval
    runs = [run for settings in families.values() for run in constrained(settings)]
    return Evidence(found, words, constrained=runs)


def mean_gain(gains: Sequence[Number]) -> str:
    """The mean over cells in words, without the infinite gains over a diverged run, which are counted."""
    kept = finite(gains)
    left = f", without {len(gains) - len(kept)} in which a run diverged" if len(kept) < len(gains) else ""
    return f"the mean gain is {ranged(average(kept).interval, ' %') if kept else 'unknown'}{left}"


# --- training noise


def robuster(settings: Sequence[Setting]) -> Evidence | None:
    """How the constrained accuracy under strong noise changes from the least to the most training noise."""
    if len(settings) < 2:
        return None
    low, high = settings[0], settings[-1]
    few_, many, *_ = together(low.constrained, high.constrained, low.plain, high.plain)
    last = min(few_.noise[-1], many.noise[-1])
    words = {"low": low.gamma, "high": high.gamma, "last": last}
    return Evidence(
        (many.at(last) - few_.at(last)).times(100).interval, words, " points", constrained=constrained(settings)
    )


def clean_cost(settings: Sequence[Setting]) -> Evidence | None:
    """How much less accuracy on clean inputs training noise costs the constrained models."""
    if len(settings) < 2:
        return None
    low, high = settings[0], settings[-1]
    arms = together(low.constrained, high.constrained, low.plain, high.plain)
    ours, theirs = ((ends[0].at(0) - ends[1].at(0)).times(100) for ends in (arms[:2], arms[2:]))
    words = {"low": low.gamma, "high": high.gamma, "ours": number(ours.value), "theirs": number(theirs.value)}
    return Evidence((theirs - ours).interval, words, " points", constrained=constrained(settings))


def error_rises(settings: Sequence[Setting]) -> Evidence | None:
    """How many points more ERM's error rises along the layers, averaged over levels of training noise by seed."""
    if len(settings) < 2:
        return None
    found = [_error_rises(setting) for setting in settings]
    seeds = sorted(set.intersection(*map(set, found)))
    extra = over_seeds([float(np.mean([by_seed[seed] for by_seed in found])) for seed in seeds])
    return Evidence(extra, {"seeds": len(seeds)}, " points", constrained=constrained(settings))


def layer_errors(run: Run, level: float) -> list[float]:
    """The error rate of each layer."""
    return [1 - value for value in run.summary.layer_metrics.get(level, [])]


def _error_rises(setting: Setting) -> dict[int, float]:
    by_seed = {run.seed: run for run in setting.plain}
    found = {}
    for run in setting.constrained:
        pair = (run, by_seed[run.seed]) if run.seed in by_seed else ()
        rows = [layer_errors(one, setting.gamma) for one in pair]
        if rows and all(rows):
            ours, theirs = (100 * float(np.maximum(np.diff(row), 0).sum()) for row in rows)
            found[run.seed] = theirs - ours
    return found


def _noisy_gain(setting: Setting) -> Number:
    return outside(setting.constrained, setting.plain, 0.0)


def growing_gain(several: Mapping[str, Sequence[Setting]]) -> Evidence:
    """How the gain under noise changes from the least to the most training noise."""
    changes = [_noisy_gain(settings[-1]) - _noisy_gain(settings[0]) for settings in several.values()]
    runs = [run for settings in several.values() for run in constrained((settings[0], settings[-1]))]
    return Evidence(average(finite(changes) or changes).interval, unit=" points", constrained=runs)


def uneven_gain(several: Mapping[str, Sequence[Setting]]) -> Evidence:
    """By how much the largest gain at less training noise exceeds that at the most."""
    found, words = [], []
    for data, settings in several.items():
        gains = {setting: _noisy_gain(setting) for setting in settings}
        last = settings[-1]
        best = max(settings[:-1], key=lambda setting: gains[setting].value)
        more = (gains[best] - gains[last]).picked(len(settings) - 1)  # the best of several
        found.append((more, above))
        words.append(
            f"on {data_name(data)} the gain at training γ = {best.gamma:g} exceeds that at {last.gamma:g} by "
            f"{ranged(more, ' points')}"
        )
    runs = [run for settings in several.values() for run in constrained(settings)]
    return Evidence(found, {"gains": "; ".join(words)}, constrained=runs)


# --- descent along the layers


def smoother(settings: Sequence[Setting], neither: Held) -> Evidence:
    """How much more ERM's loss rises along the layers, in per cent of its highest value.

    Args:
        settings: The last of them is judged.
        neither: The verdict if neither loss ever rises.
    """
    setting = settings[-1]
    arms = same_seeds(setting.constrained, setting.plain)
    most = max(len(setting.constrained), len(setting.plain))
    ours, theirs = (computed(_rises, *along(runs, setting.gamma, most)) for runs in arms)
    difference = (theirs - ours).interval
    words = {"ours": number(ours.value), "theirs": number(theirs.value), "difference": ranged(difference, " %")}
    flat = all(end.high == 0 for end in (ours.interval, theirs.interval))
    return Evidence(neither if flat else difference, words, constrained=setting.constrained)


def _rises(*losses: Any) -> Any:
    rows = np.array(losses)
    return 100 * np.maximum(np.diff(rows, axis=0), 0).sum(0) / rows.max(0)


Steps = dict[tuple[Setting, int], Number]
"""By setting and layer l = 1 … L: f_l − f_{l−1} averaged over seeds, negative where the layer lowers the loss."""


def _steps(settings: Iterable[Setting], arm: str) -> Steps:
    return {
        (setting, layer): after - before
        for setting in settings
        for layer, (before, after) in enumerate(pairwise(along(tuple(setting.runs(arm)), setting.gamma)), 1)
    }


def _falling(steps: Steps) -> int:
    """In how many settings every layer lowers the mean loss."""
    return len({setting for setting, _ in steps} - {key[0] for key, step in steps.items() if not step.value < 0})


def descent(settings: Sequence[Setting]) -> Evidence:
    """The change of the loss at every layer under constraints."""
    steps, theirs = _steps(settings, "constrained"), _steps(settings, "erm")
    count = _falling(steps)
    words = {"count": counted(count, len(settings), share(count, len(settings))), "erm": _falling(theirs)}
    return Evidence(steps, words, label=_layer, constrained=constrained(settings))


def _layer(key: tuple[Setting, int]) -> str:
    return f"layer {key[1]} of {key[0].words}"


def erm_rise(settings: Sequence[Setting]) -> Evidence:
    """ERM's worst step, with an interval for the number of steps that it was picked from."""
    steps = _steps(settings, "erm")
    worst = max(steps, key=lambda key: least_down(steps[key]))
    return Evidence(steps[worst].picked(len(steps)), {"worst": _layer(worst)})


def least_down(step: Interval | Number) -> float:
    """A sorting key that puts the largest last, and what is unknown after it."""
    return np.inf if np.isnan(step.value) else float(step.value)


def energy(settings: Sequence[Setting]) -> Evidence:
    """The change of the energy at every layer."""
    steps: dict[tuple[Setting, str, int], Number] = {}
    pairs, falling = 0, 0
    for setting in settings:
        for arm, runs in setting.arms.items():
            rows = [run.summary.energy[setting.gamma] for run in runs if setting.gamma in run.summary.energy]
            changes = [after - before for before, after in pairwise(rows_along(rows))] if rows else []
            pairs, falling = pairs + bool(rows), falling + bool(rows and all(step.value < 0 for step in changes))
            steps |= {(setting, arm, layer): step for layer, step in enumerate(changes, 1)}
    words = {"falling": falling, "pairs": pairs}
    return Evidence(
        steps,
        words,
        label=lambda key: f"layer {key[2]} of {arm_name(key[1])}, {key[0].words}",
        constrained=constrained(settings),
    )


# --- settings of the method


def largest_alpha(ablation: Ablation) -> Evidence:
    """What the largest α gains over the smallest under the strongest noise."""
    family, first = ablation.family, ablation.first
    few_, much = together(family[min(family)], family[max(family)])
    last = few_.noise[-1]
    found = advantage(much.at(last), few_.at(last), first.higher).interval
    words = {"low": min(family), "high": max(family), "last": last}
    return Evidence(found, words, unit(first.higher), constrained=ablation.runs)


def alpha_cost(ablation: Ablation) -> Evidence:
    """The same at each level up to the training noise."""
    family, first = ablation.family, ablation.first
    found = by_level(family[max(family)], family[min(family)], first.gamma)
    words = {"low": min(family), "high": max(family)}
    return Evidence(found, words, unit(first.higher), lambda level: f"test γ = {level:g}", ablation.runs)


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
    levels, family, found = three_levels(ablation), ablation.family, {}
    for level in levels if strongest or len(levels) < 2 else levels[:-1]:
        for value in list(family)[1:]:
            ours, base = together(family[value], family[min(family)])
            found[level, value] = advantage(ours.at(level), base.at(level), ours.higher)
    return Evidence(
        found,
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


# --- feasibility and single samples


def infeasible_is_worse(cells: tuple[list[Run], Setting]) -> Evidence | None:
    """The gain of an infeasible run over the constrained ones beside it, at each noise level."""
    runs, setting = cells
    beside = setting.constrained
    if not beside:
        return None
    ours, theirs = together(runs, beside)
    found = {
        level: ahead(ours.at(level), theirs.at(level), ours.higher) for level in ours.noise if level in theirs.noise
    }
    feasible = sum(run.summary.feasible is True for run in beside)
    words = {"beside": len(beside), "feasible": feasible, "metric": setting.metric}
    evidence = Evidence(found, words, " %", lambda level: f"test γ = {level:g}")
    if feasible == len(beside):
        return evidence
    # To be worse than another infeasible run says nothing, and to pick seeds by their verdicts would be a choice.
    judged = every(found, below)
    words |= {"worst": evidence.label(judged.worst), "end": ranged(judged.end, " %")}
    return Evidence("undecided", words)


def verdict_names_layers(cells: tuple[list[Run], Setting]) -> Evidence:
    """Whether the verdict finds each infeasible run and names layers that missed their bounds in training too."""
    runs, _ = cells
    found = [run for run in runs if run.summary.feasible is False and _missing(run)]
    words = {"count": len(found), "runs": len(runs), "verdict": (found or runs)[0].summary.verdict}
    return Evidence("held" if len(found) == len(runs) else "not held", words)


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


# --- answers of a language model


def less_repetition(cells: Sequence[tuple[Setting, Mapping[str, Sequence[Answer]]]]) -> Evidence | None:
    """How much more ERM's answers repeat themselves under noise: than without noise, and than the constrained ones."""
    for _, answers in reversed(cells):
        ours, theirs = (repeated(answers.get(arm, ())) for arm in ("constrained", "erm"))
        levels = sorted(ours.keys() & theirs.keys())
        if levels:
            last = levels[-1]
            more, less = _less(theirs[last], theirs[min(theirs)]), _less(theirs[last], ours[last])
            words = {"level": last, "more": ranged(more, " points"), "less": ranged(less, " points")}
            return Evidence([(more, above), (less, above)], words)
    return None


def _less(more: Mapping[str, float], fewer: Mapping[str, float]) -> Interval:
    shared = sorted(more.keys() & fewer.keys())
    return over_seeds([100 * (more[prompt] - fewer[prompt]) for prompt in shared], f"over {len(shared)} prompts")


def repeated(answers: Sequence[Answer]) -> dict[float, dict[str, float]]:
    """γ → prompt → the share of its answer that is repeated, without answers that have no words."""
    found: dict[float, dict[str, float]] = {}
    for answer in answers:
        if answer.text.split():
            found.setdefault(answer.noise, {})[answer.prompt] = repetition(answer.text)
    return found


def repetition(text: str) -> float:
    """The share of a text's runs of `GRAM` words that occurred before in it."""
    words = text.lower().split()
    grams = [tuple(words[place : place + GRAM]) for place in range(len(words) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


# --- the paper's tables


def table_wins(regimes: Mapping[str, Sequence[Setting]]) -> Evidence:
    """In how many cells the constrained model is better, in the regime with the most cells."""
    (main, pairs), *others = regimes.items()
    wins = win_counts(pairs)
    end = share(wins.wins, len(pairs))
    gains = [gain(setting) for setting in pairs]
    sure = [sum(test(gained.interval) == "held" for gained in gains) for test in (above, below)]
    apart = "".join(
        f" Counted apart: {_regime(regime, settings).lower()}, it is better in {win_counts(settings).wins} of "
        f"{len(settings)}, with {_ties(win_counts(settings))}."
        for regime, settings in others
    )
    words = {"where": _regime(main, pairs), "count": counted(wins.wins, len(pairs), end), "ties": _ties(wins)}
    words |= {"p": f"{wins.p_sign:.2g}", "better": str(sure[0]), "worse": str(sure[1])}
    words |= {"mean": mean_gain(gains), "apart": apart}
    return Evidence(end, words)


def table_share(regimes: Mapping[str, Sequence[Setting]]) -> Evidence:
    """The same share, to compare with the paper's."""
    main, pairs = next(iter(regimes.items()))
    wins = win_counts(pairs)
    end = share(wins.wins, len(pairs))
    words = {"where": _regime(main, pairs), "count": wins.wins, "cells": len(pairs), "ties": _ties(wins)}
    words |= {"share": percent(end.value), "low": percent(end.low), "high": percent(end.high)}
    return Evidence(end, words)


def win_counts(pairs: Sequence[Setting]) -> statistics.Wins:
    """Wins over cells. A diverged run loses; two diverged or two equal runs tie."""
    values = []
    for setting in pairs:
        ours, theirs = together(setting.constrained, setting.plain)
        most = setting.reach
        values.append((float(ours.summary(most).value), float(theirs.summary(most).value)))
    return statistics.wins(values, higher_is_better=pairs[0].plain[0].higher)


def _ties(wins: statistics.Wins) -> str:
    return f"{wins.ties or 'no'} tie{'' if wins.ties == 1 else 's'}"


def _regime(regime: str, settings: Sequence[Setting]) -> str:
    gammas = ", ".join(f"{gamma:g}" for gamma in sorted({setting.gamma for setting in settings}))
    if regime == "paper":
        return f"At the paper's training noise (γ = {gammas})"
    return f"In the {regime} regime (γ = {gammas}: our training noise, not the paper's)"


def none_diverges(settings: Sequence[Setting]) -> Evidence | None:
    """How many video runs diverged."""
    # A model trained on clean inputs may be that bad under noise without having diverged.
    runs = [run for setting in settings for arm, runs in setting.arms.items() if arm != "erm-clean" for run in runs]
    if not runs:
        return None
    bad = [run.name for run in runs if not isfinite(run.summary.mean) or run.summary.mean > DIVERGED]
    end = share(len(bad), len(runs))
    words = {"count": len(bad), "runs": len(runs), "low": percent(end.low, 1), "high": percent(end.high, 1)}
    words |= {"named": f": {few(bad)}" if bad else "", "most": f"{DIVERGED:g}"}
    return Evidence("not held" if bad else "held", words)


# --- theory


def gap_within_bound(bounds: Sequence[GapBound]) -> Evidence | None:
    """The loss that is left at the last layer, less ζ/α. It is at least the gap, since no loss is below 0."""
    rows = []
    for one in bounds:
        runs = [run for run in one.setting.constrained if run.losses(one.setting.gamma) and not run.diverged]
        left = [gaps(run, one.setting.gamma, 0)[-1] for run in runs]
        if isfinite(one.bound):
            over = over_seeds([gap - bound for gap, bound in zip(left, one.bounds, strict=True)])
            rows.append((one, over_seeds(left), over))
    if not rows:
        return None
    telling = [row for row in rows if row[0].telling]
    one, gap, _ = max(telling or rows, key=lambda row: least_down(row[2]))
    diverged = gone(constrained(one.setting for one in bounds))
    words = {"within": sum(row[2].value <= 0 for row in telling), "telling": len(telling)}
    words |= {"silent": len(rows) - len(telling)}
    named = {"where": one.setting.words, "gap": ranged(gap), "bound": number(one.bound), "diverged": diverged}
    # The term that is not measured could make up for a miss: data can't refute the theorem.
    sure = telling and not diverged and all(below(row[2]) == "held" for row in telling)
    return Evidence("held" if sure else "undecided", {**words, **named})


def smaller_gap(families: Sequence[Sequence[Setting]]) -> Evidence:
    """How the smallest loss along the layers changes from the smallest to the largest depth."""
    found = {}
    for family in families:
        few_, many = family[0], family[-1]
        most = max(len(few_.constrained), len(many.constrained))
        arms = same_seeds(few_.constrained, many.constrained)
        ends = [computed(_least, *along(runs, many.gamma, most)) for runs in arms]
        found[many] = ends[1] - ends[0]
    words = {"smaller": sum(change.value < 0 for change in found.values()), "families": len(found)}
    return Evidence(found, words, label=lambda setting: setting.words)


def _least(*losses: Any) -> Any:
    return np.min(losses, axis=0)


def linear_growth(found: Sequence[Shift]) -> Evidence | None:
    """How far violations at the strongest noise exceed the line through those at the nearer levels."""
    excesses = {}
    for shift in found:
        runs, gamma = tuple(shift.arms["constrained"]), shift.setting.gamma
        if runs and sum(level > gamma for level in shift.levels) > 1:
            losses = [part for level in shift.levels for part in along(runs, level)]
            first, *_ = along(runs, gamma)
            excess = partial(_excess, shift.rates, shift.levels, gamma)
            excesses[shift.setting] = computed(excess, first, *losses).interval
    if not excesses:
        return None
    setting, worst = max(excesses.items(), key=lambda item: least_down(item[1]))
    words: dict[str, object] = {
        "under": sum(excess.value <= ROUNDING for excess in excesses.values()),
        "settings": len(excesses),
    }
    held: Held = "held" if all(excess.high <= ROUNDING for excess in excesses.values()) else "undecided"
    words |= {"where": setting.words, "worst": ranged(worst)}
    return Evidence(held, words, constrained=constrained(shift.setting for shift in found))


def _excess(rates: dict[int, float], levels: Sequence[float], trained: float, first: Any, *losses: Any) -> Any:
    """How far a layer's violation at the last level lies above its line, in units of f_0; that of the worst layer.

    Each layer has its own line: the largest of several that grow linearly need not do so. A line starts at the
    training noise and covers the nearer half of the levels.

    Args:
        rates: 1 − α of each constrained layer.
        levels: The noise levels, from that of training on.
        trained: The training noise.
        first: f_0 there.
        losses: f_0 … f_L at the first level, at the second, and so on.
    """
    wide = len(losses) // len(levels)
    by_noise = [missed(rates, losses[start : start + wide]) for start in range(0, len(losses), wide)]
    row = dict(zip(levels, by_noise, strict=True))
    beyond = [level for level in levels if level > trained]
    near, last = beyond[: max(1, len(beyond) // 2)], beyond[-1]
    start = row.get(trained, row[levels[0]])
    slope = np.max([0 * start, *((row[level] - start) / (level - trained) for level in near)], axis=0)
    return (row[last] - (start + slope * (last - trained))).max(0) / first


def fewer_violations(found: Sequence[Shift]) -> Evidence | None:
    """The largest violation at the strongest noise, less ERM's, in units of f_0."""
    differences = {}
    for shift in found:
        runs = shift.arms["constrained"], shift.arms["erm"]
        if all(runs) and shift.levels:
            most = max(map(len, runs))
            ours, theirs = (_worst(shift, arm, most) for arm in same_seeds(*runs))
            differences[shift.setting] = ours - theirs
    if not differences:
        return None
    words = {"fewer": sum(number_.value < 0 for number_ in differences.values()), "settings": len(differences)}
    runs_ = constrained(shift.setting for shift in found)
    return Evidence(differences, words, label=lambda setting: setting.words, constrained=runs_)


def _worst(shift: Shift, runs: Sequence[Run], most: int) -> Number:
    first, *_ = along(tuple(runs), shift.setting.gamma, most)
    return computed(partial(largest, shift.rates), first, *along(tuple(runs), shift.levels[-1], most))


def largest(rates: dict[int, float], first: Any, *losses: Any) -> Any:
    """The largest violation over layers, in units of f_0 at the training noise."""
    return missed(rates, losses).max(0) / first
