"""What constrained training gives over noise, read by the paper's protocol and fairly, as methods_plan.md says."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import beta
from scipy.stats import t as student

from reproduction.cells import SEARCH, Cell, cells
from reproduction.figures import plain_of
from reproduction.grids import SCALES
from reproduction.methods_grid import BOTH
from reproduction.methods_grid import MECHANISM as ARMS_OF_VIDEO
from reproduction.table import CONFIDENCE, SETTING, Gain, Table, at_levels, beyond, gain, up_to
from reproduction.tables import best_number, published, published_place

PANEL = "robustness"
MECHANISM = "mechanism"
SCOPES: dict[str, Callable[[float, float], bool]] = {
    "all noise": lambda level, gamma: True,
    "up to γ_train": up_to,
    "beyond": beyond,
}
"""Column → which levels of the test noise it covers: the level and the training noise."""

MARGIN = 0.5
"""Two methods are as good as each other where the interval of the gain, in per cent, lies within this."""

LACKING = "we have no such cell"
UNEXPLAINED = "nothing to explain"
"""Where the interval of the gain of the chosen constraints over plain training is not above 0."""

LABELS = {
    "erm": "plain training",
    "algorithm-1": "constrained, chosen",
    "alpha=0.226": "constrained, α = .226",
    "alpha=0.4": "constrained, α = .4",
    "useful-.8": "geometric bounds",
    "linear": "weights l/L",
    "uniform": "uniform weights",
    "replayed": "weights of seed 0, replayed",
    "mean-weights": "their mean, constant",
}
"""Arm or variant of the mechanism → its name."""


def main_runs(table: Table) -> Table:
    """The study without the sixth seed of plain and constrained training, which counts in the mechanism alone."""
    rows = table.rows
    sixth = (rows.panel == MECHANISM) & rows.arm.isin(BOTH) & (rows.variant == "")
    return replace(table, rows=rows[~sixth])


def settings(table: Table) -> Iterator[tuple[dict[str, Any], str, pd.DataFrame, str, pd.DataFrame]]:
    """Each setting and form of constrained runs, with each form of plain training, the paper's own pair first.

    Yields:
        The setting, the form and its runs, the form of plain training and its runs.
    """
    runs = main_runs(table).where(panel=PANEL)
    for setting, group in runs.groupby(SETTING, sort=False) if len(runs) else ():
        place = dict(zip(SETTING, setting, strict=True))
        for form, ours in group[group.arm == "algorithm-1"].groupby("form"):
            plain = group[group.arm == "erm"]
            first = plain_of(place["model"], str(form))
            for other in sorted(set(plain.form), key=lambda each: (each != first, each)):
                yield place, str(form), ours, other, plain[plain.form == other]


def protocol(table: Table) -> pd.DataFrame:
    """Each setting as the paper reports it: the best of several runs by validation data, on video one run.

    Columns ``plain`` and ``constrained`` are the area under the accuracy or the mean RMSE, NaN if the run diverged.
    """
    rows = []
    for place, form, ours, other, plain in settings(table):
        if other != plain_of(place["model"], form):
            continue
        trials = _trials(table, place, form)
        if place["model"] in _of_video():
            seed = min(set(ours.seed) & set(plain.seed), default=None)
            pair, words = [runs[runs.seed == seed] for runs in (plain, ours)], f"seed {seed}"
        else:
            pair = [plain, ours if trials.empty else trials]
            sides = ((plain, "seed"), (pair[1], "seed" if trials.empty else "trial"))
            words = ", ".join(f"best of {len(runs)} {what}{'s' * (len(runs) > 1)}" for runs, what in sides)
        best_plain, best = (best_number(runs) for runs in pair)
        sign = sign_of(best_plain, best, place["model"] not in _of_video())
        rows.append([*place.values(), form, best_plain, best, sign, words])
    return pd.DataFrame(rows, columns=[*SETTING, "form", "plain", "constrained", "sign", "runs"])


def _of_video() -> list[str]:
    models = SCALES["methods"].models
    return [name for name, model in models.items() if model.recipe.startswith("video")]


def _trials(table: Table, place: dict[str, Any], form: str) -> pd.DataFrame:
    """The trials that were searched in a setting itself; none where a search is reused."""
    trials = table.trials
    here = (trials.arm == "algorithm-1") & (trials.form == form)
    for name, value in place.items():
        here &= trials[name] == value
    return trials[here]


def sign_of(plain: float, constrained: float, higher: bool) -> str:
    """``+`` if constrained training is better, ``−`` if it is worse, ``=``, or ``?`` if neither number is known.

    Numbers are equal where three decimals are, which the paper prints.
    """
    if math.isnan(plain) or math.isnan(constrained):
        return "?" if math.isnan(plain) and math.isnan(constrained) else "+" if math.isnan(plain) else "−"
    change = (round(constrained, 3) - round(plain, 3)) * (1 if higher else -1)
    return "+" if change > 0 else "−" if change < 0 else "="


def signs(table: Table) -> pd.DataFrame:
    """Every cell of Tables 3 and 4 beside ours by the protocol; then the cells of ours that the paper has not."""
    ours = {published_place(table, row): row for row in protocol(table).to_dict("records")}
    rows = []
    for number, higher in ((3, False), (4, True)):
        for printed in published(f"table{number}").itertuples():
            place = (printed.model, printed.layers, printed.dataset, printed.train_gamma)
            plain, constrained = float(printed.unconstrained), float(printed.constrained)
            sign = sign_of(plain, constrained, higher)
            rows.append([f"Table {number}", *place, plain, constrained, sign, *_ours(ours.pop(place, None))])
    for place, row in ours.items():
        rows.append(["ours alone", *place, math.nan, math.nan, "", *_ours(row)])
    heads = ["table", "model", "layers", "dataset", "γ_train", "printed: plain", "printed: constrained", "printed"]
    return pd.DataFrame(rows, columns=[*heads, "our model", "plain", "constrained", "ours", "our runs"])


def _ours(row: Any) -> list[Any]:
    if row is None:
        return ["", math.nan, math.nan, "", LACKING]
    return [f"{row['model']}-{row['depth']}", row["plain"], row["constrained"], row["sign"], row["runs"]]


def counts(table: Table) -> pd.DataFrame:
    """How often constrained training is ahead by the protocol, in the paper and here, with a clustered interval."""
    every = signs(table)
    rows = []
    for number in ("Table 3", "Table 4"):
        cell = every[every.table == number]
        there = cell[cell["our runs"] != LACKING]
        cases = {"the paper, all cells": (cell, "printed"), "the paper, cells that we have": (there, "printed")}
        for case, (some, column) in (cases | {"ours": (there, "ours")}).items():
            won = (some[column] == "+").to_numpy()
            clusters = list(zip(some.model, some.dataset, strict=True))
            low, high = share(won, clusters)
            numbers = [int((some[column] == sign).sum()) for sign in ("+", "=", "−", "?")]
            rows.append([number, case, *numbers, len(set(clusters)), _percent(low, high)])
        rows.append([number, "cells that we lack", *[""] * 5, str(len(cell) - len(there))])
    heads = ["table", "cells", "ahead", "level", "behind", "both diverged", "models × data sets", "share ahead, 95 %"]
    return pd.DataFrame(rows, columns=heads)


def _percent(low: float, high: float) -> str:
    return "–" if math.isnan(low) else f"{100 * low:.0f} to {100 * high:.0f} %"


def share(won: np.ndarray, clusters: list[Any]) -> tuple[float, float]:
    """An interval of a share of cells that depend on each other within clusters (Korn and Graubard 1998).

    It is Clopper and Pearson's at the number of independent cells that would have the variance between clusters, which
    is lowered where few clusters estimate it; where that variance is 0, at the number of clusters.

    Args:
        won: Whether each cell counts, (N,).
        clusters: The cluster of each cell.

    Returns:
        The ends of the 95 % interval; NaN below two clusters.
    """
    names = list(dict.fromkeys(clusters))
    if len(names) < 2:
        return math.nan, math.nan
    mean = won.mean()
    apart = [sum(win - mean for win, name in zip(won, clusters, strict=True) if name == each) for each in names]
    variance = len(names) / (len(names) - 1) * sum(part**2 for part in apart) / len(won) ** 2
    tail = (1 - CONFIDENCE) / 2
    fewer = (student.ppf(tail, len(won) - 1) / student.ppf(tail, len(names) - 1)) ** 2
    size = min(fewer * mean * (1 - mean) / variance, len(won)) if variance else len(names)
    ahead = mean * size
    low = float(beta.ppf(tail, ahead, size - ahead + 1)) if ahead else 0.0
    high = float(beta.ppf(1 - tail, ahead + 1, size - ahead)) if ahead < size else 1.0
    return low, high


def fairly(table: Table) -> pd.DataFrame:
    """Constrained against plain training of the same seeds: the gain over all noise, up to γ_train and beyond.

    *Holds* counts the constrained runs that meet all their bounds on test data. It decides nothing here.
    """
    rows = []
    for place, form, ours, other, plain in settings(table):
        gains = [gain_at(ours, plain, scope) for scope in SCOPES.values()]
        both = set(ours.seed) & set(plain.seed)
        seeds = f"{gains[0].seeds} of {len(set(ours.seed) | set(plain.seed))}"
        means = [_mean(runs[runs.seed.isin(both)]) for runs in (plain, ours)]
        rates = " and ".join(dict.fromkeys(_setting(runs, "learning_rate") for runs in (plain, ours)))
        chosen = [_setting(ours, name) for name in ("alpha", "dual_lr")]
        holds = f"{ours.holds.sum()} of {len(ours)}"
        about = [seeds, gains[0].groups, *chosen, holds, _multipliers(ours), rates]
        rows.append([*place.values(), form, other, *means, *gains, *about])
    heads = [*SETTING, "form", "against plain", "plain", "constrained", *SCOPES, "seeds of both", "test groups"]
    heads += ["α", "η_λ", "holds", "Σλ at the end", "learning rates"]
    return pd.DataFrame(rows, columns=heads)


def _setting(runs: pd.DataFrame, name: str) -> str:
    """A number among the settings of runs of one arm."""
    return f"{runs.settings.iloc[0].get(name, math.nan):g}"


def _multipliers(runs: pd.DataFrame) -> float:
    """The sum of the multipliers, in the mean over the last tenth of training and the runs that ended."""
    ended = runs[~runs.diverged.astype(bool)]
    return float(np.mean([sum(each["multiplier"].values()) for each in ended.trained])) if len(ended) else math.nan


def gain_at(ours: pd.DataFrame, theirs: pd.DataFrame, wanted: Callable[[float, float], bool]) -> Gain:
    """The gain at some levels of the test noise; NaN if the runs have none of them."""
    ended = ours[~ours.diverged.astype(bool)]
    if len(ended) and not any(wanted(level, ended.gamma.iloc[0]) for level in ended.noise.iloc[0]):
        return Gain(math.nan)
    return gain(at_levels(ours, wanted), at_levels(theirs, wanted))


def _mean(runs: pd.DataFrame) -> str:
    ended = runs[~runs.diverged.astype(bool)]
    return f"{ended.number.mean():.4g}" if len(ended) else "diverged"


def mechanism(table: Table) -> pd.DataFrame:
    """Each arm of the mechanism against plain and against constrained training, of the seeds that both have.

    What is as good as the chosen constraints is asked only if the interval of their gain over plain training is above
    0. The number is the mean over all seeds of an arm, a gain the mean over the seeds that both arms have.
    """
    runs = table.rows[table.rows.panel.isin([PANEL, MECHANISM])] if len(table.rows) else table.rows
    of_arms = runs[runs.panel == MECHANISM]
    if of_arms.empty:
        return pd.DataFrame(columns=[*SETTING, "method", "seeds", "number"])
    parts = []
    for setting in of_arms[SETTING].drop_duplicates().itertuples(index=False):
        here = runs[(runs[SETTING] == list(setting)).all(axis=1)]
        parts.append(_mechanism_of(here).assign(**dict(zip(SETTING, setting, strict=True))))
    made = pd.concat(parts)
    return made[[*SETTING, *(name for name in made.columns if name not in SETTING)]]


def _mechanism_of(runs: pd.DataFrame) -> pd.DataFrame:
    """The arms of one setting: those that are planned for it, whether or not they have runs."""
    rows = []
    plain, chosen = (runs[(runs.arm == arm) & (runs.variant == "")] for arm in BOTH)
    explained = len(plain) > 0 and len(chosen) > 0 and gain_at(chosen, plain, SCOPES["all noise"]).surely_above(0)
    of_texts = runs.model.iloc[0] not in _of_video()
    for name, label in LABELS.items():
        if name not in (*BOTH, *ARMS_OF_VIDEO) and not of_texts:
            continue
        arm, variant = ("algorithm-1", name) if "=" in name else (name, "")
        found = runs[(runs.arm == arm) & (runs.variant == variant)]
        row: dict[str, Any] = {"method": label, "seeds": len(found), "number": _mean(found) if len(found) else "–"}
        for (other, words), (scope, wanted) in product(_BESIDE.items(), SCOPES.items()):
            beside = runs[(runs.arm == other) & (runs.variant == "")]
            known = len(found) and len(beside) and (arm, variant) != (other, "")
            row[f"against {words}, {scope}"] = gain_at(found, beside, wanted) if known else "–"
        over_chosen = row[f"against {_BESIDE['algorithm-1']}, all noise"]
        told = "–" if over_chosen == "–" else _as_good(over_chosen) if explained else UNEXPLAINED
        rows.append(row | {"as good as the chosen constraints": told})
    return pd.DataFrame(rows)


def _as_good(gain: Gain) -> str:
    """Whether two methods are as good as each other, by the interval of the gain: yes, no, better or open."""
    if math.isnan(gain.value):
        return "–"
    if gain.surely_above(-MARGIN) and gain.surely_below(MARGIN):
        return "yes"
    return {"better": "better", "worse": "no"}.get(gain.verdict, "open")


_BESIDE = {"erm": "plain training", "algorithm-1": "the chosen constraints", "mean-weights": "the constant mean"}


def gain_of_setting(table: Table, model: str, data: str, gamma: float, level: float | None = None) -> Gain:
    """The gain in a setting over plain training of the paper's own pair, at one level or all; NaN without runs."""
    for place, _, ours, _, plain in settings(table):
        if (place["model"], place["data"], place["gamma"]) == (model, data, gamma):
            return gain(ours, plain) if level is None else gain_at(ours, plain, lambda at, _: at == level)
    return Gain(math.nan)


def done(table: Table) -> pd.DataFrame:
    """How many cells of the grid are there, by what they are for."""
    there = {row.name: row.diverged for row in _named(table)}
    planned: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells(SCALES["methods"], table.chosen):
        panel = "trials" if cell.panel == SEARCH else cell.panel
        planned.setdefault((panel, cell.model, cell.data, cell.depth, f"{cell.gamma:g}"), []).append(cell)
    rows = []
    for key, group in planned.items():
        ended = [there[cell.name] for cell in group if cell.name in there]
        rows.append([*key, len(group), len(ended), len(group) - len(ended), sum(map(bool, ended))])
    return pd.DataFrame(rows, columns=["for", *SETTING, "planned", "done", "missing", "diverged"])


def _named(table: Table) -> list[Any]:
    frames = [frame for frame in (table.rows, table.trials) if len(frame)]
    return [row for frame in frames for row in frame[["name", "diverged"]].itertuples(index=False)]
