"""In how many cells of the paper's tables constraints win, and how many runs diverged."""

from collections.abc import Mapping, Sequence
from math import isfinite

from reproduction import statistics
from reproduction.report.cells import few
from reproduction.report.claims import Evidence, above, below, counted, percent
from reproduction.report.estimates import gain, share, together
from reproduction.report.evidence.noise import mean_gain
from reproduction.report.results import Setting

DIVERGED = 60.0
"""RMSE above which a run counts as diverged. In the paper's Table 3 six cells lie at 63 to 138, the others below 37."""


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
