"""What constraints gain under noise, by test noise, depth and training noise."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reproduction.report.cells import data_name
from reproduction.report.claims import Evidence, above, below, counted, number, ranged
from reproduction.report.estimates import (
    Number,
    ahead,
    average,
    by_level,
    finite,
    outside,
    over_seeds,
    share,
    together,
    unit,
)
from reproduction.report.evidence.layers import layer_errors
from reproduction.report.results import Setting
from reproduction.report.selections import Arms, Panel, constrained


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
    gains = {
        (panel, level): gained
        for panel, arms in cells.items()
        for level, gained in by_level(arms["constrained"], arms["erm"], arms["erm"][0].gamma).items()
    }
    return Evidence(
        gains, unit=" %", label=lambda key: f"{_model(key[0])} on {data_name(key[0][2])} at test γ = {key[1]:g}"
    )


def _model(panel: Panel) -> str:
    return panel[1] + ("" if panel[0] in ("", "paper") else f", {panel[0]} noise")


def classifier_gains(settings: Sequence[Setting], models: int = 0) -> Evidence:
    """The gain of each classifier on noise stronger than in training, if ``models`` is given of so many models."""
    gains = {setting: outside(setting.constrained, setting.plain, setting.gamma) for setting in settings}
    lacking = len(settings) < models
    return Evidence(
        gains,
        {"lacking": " The other was not run." if lacking else ""},
        " points",
        lambda setting: f"{setting.model} on {data_name(setting.data)}",
        partial=lacking,
    )


def larger_gain(settings: Sequence[Setting]) -> Evidence | None:
    """RoBERTa's gain less DistilBERT's."""
    gains = {setting.model: outside(setting.constrained, setting.plain, setting.gamma) for setting in settings}
    if len(gains) < 2:
        return None
    return Evidence(
        (gains["RoBERTa"] - gains["DistilBERT"]).interval, unit=" points", constrained=constrained(settings)
    )


def classifier_costs(settings: Sequence[Setting]) -> Evidence:
    """The gain of each classifier at each level up to the training noise."""
    gains = {
        (setting, level): gained
        for setting in settings
        for level, gained in by_level(setting.constrained, setting.plain, setting.gamma).items()
    }
    return Evidence(gains, unit=" points", label=lambda key: f"{key[0].words} at test γ = {key[1]:g}")


def strong_noise(settings: Sequence[Setting]) -> Evidence:
    """The gain on noise stronger than in training."""
    setting = settings[-1]
    gained = outside(setting.constrained, setting.plain, setting.gamma).interval
    return Evidence(gained, {"gamma": setting.gamma}, unit(setting.constrained[0].higher))


def weak_noise(settings: Sequence[Setting]) -> Evidence:
    """The gain at each level up to the training noise."""
    setting = settings[-1]
    gains = by_level(setting.constrained, setting.plain, setting.gamma)
    return Evidence(gains, unit=unit(setting.constrained[0].higher), label=lambda level: f"at γ = {level:g}")


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
    finite_pairs = [pair for pair in pairs if len(finite(pair)) == 2]
    first, second = zip(*(finite_pairs or pairs), strict=True)
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
    tests: Any = [(ours.interval, above), (between, above)] if erm else ours.interval
    runs = [run for settings in families.values() for run in constrained(settings)]
    return Evidence(tests, words, constrained=runs)


def mean_gain(gains: Sequence[Number]) -> str:
    """The mean over cells in words, without the infinite gains over a diverged run, which are counted."""
    known = finite(gains)
    left = f", without {len(gains) - len(known)} in which a run diverged" if len(known) < len(gains) else ""
    return f"the mean gain is {ranged(average(known).interval, ' %') if known else 'unknown'}{left}"


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
    rises = [_error_rises(setting) for setting in settings]
    seeds = sorted(set.intersection(*map(set, rises)))
    extra = over_seeds([float(np.mean([by_seed[seed] for by_seed in rises])) for seed in seeds])
    return Evidence(extra, {"seeds": len(seeds)}, " points", constrained=constrained(settings))


def _error_rises(setting: Setting) -> dict[int, float]:
    by_seed = {run.seed: run for run in setting.plain}
    extra = {}
    for run in setting.constrained:
        pair = (run, by_seed[run.seed]) if run.seed in by_seed else ()
        rows = [layer_errors(each, setting.gamma) for each in pair]
        if rows and all(rows):
            ours, theirs = (100 * float(np.maximum(np.diff(row), 0).sum()) for row in rows)
            extra[run.seed] = theirs - ours
    return extra


def _noisy_gain(setting: Setting) -> Number:
    return outside(setting.constrained, setting.plain, 0.0)


def growing_gain(several: Mapping[str, Sequence[Setting]]) -> Evidence:
    """How the gain under noise changes from the least to the most training noise."""
    changes = [_noisy_gain(settings[-1]) - _noisy_gain(settings[0]) for settings in several.values()]
    runs = [run for settings in several.values() for run in constrained((settings[0], settings[-1]))]
    return Evidence(average(finite(changes) or changes).interval, unit=" points", constrained=runs)


def uneven_gain(several: Mapping[str, Sequence[Setting]]) -> Evidence:
    """By how much the largest gain at less training noise exceeds that at the most."""
    tests, words = [], []
    for data, settings in several.items():
        gains = {setting: _noisy_gain(setting) for setting in settings}
        last = settings[-1]
        best = max(settings[:-1], key=lambda setting: gains[setting].value)
        more = (gains[best] - gains[last]).picked(len(settings) - 1)  # the best of several
        tests.append((more, above))
        words.append(
            f"on {data_name(data)} the gain at training γ = {best.gamma:g} exceeds that at {last.gamma:g} by "
            f"{ranged(more, ' points')}"
        )
    runs = [run for settings in several.values() for run in constrained(settings)]
    return Evidence(tests, {"gains": "; ".join(words)}, constrained=runs)
