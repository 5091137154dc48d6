"""Which method needs the fewest layers: the tables and the picture of methods_plan.md, from runs with own readouts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t as student

from descend.jackknife import estimate, without_each
from reproduction.cells import LAST
from reproduction.methods_grid import DEPTH_ARMS
from reproduction.table import CONFIDENCE, Gain, Table

PANEL = "layers"
POINTS = (1, 2, 5)
"""Tolerances: points of accuracy below the reference's last layer."""

LABELS = {
    "probe": "plain training",
    "linear": "weights l/L",
    "linear-.05": "weights .05 l/L",
    "useful-.2": "geometric bounds, strength .2",
    "useful-.8": "geometric bounds, strength .8",
}
COLOURS = {"probe": "#666666", "linear": "#2b8a3e", "linear-.05": "#94d3a2", "useful-.2": "#90b8e0"} | {
    "useful-.8": "#1864ab",
}


def accuracies(rows: pd.DataFrame) -> np.ndarray:
    """The test accuracy of each seed and layer, (S, L+1), in the order of seeds."""
    return np.array(list(rows.sort_values("seed").metrics), float)


def by_model(table: Table) -> Iterator[tuple[str, dict[str, pd.DataFrame], pd.DataFrame]]:
    """Each model with the runs of its arms, and the runs of its reference.

    The reference is plain training at the rate that is best for its last layer alone.
    """
    if table.rows.empty:
        return
    rows = table.rows[(table.rows.panel == PANEL) & ~table.rows.diverged.astype(bool)]
    for model, runs in rows.groupby("model", sort=False):
        arms = {arm: runs[(runs.arm == arm) & (runs.variant == "")] for arm in DEPTH_ARMS}
        arms = {arm: found for arm, found in arms.items() if len(found)}
        reference = runs[(runs.arm == "probe") & (runs.variant == LAST)]
        if len(reference) or "probe" in arms:
            yield str(model), arms, reference if len(reference) else arms["probe"]


def suffices(accuracy: Sequence[float], full: float, points: float) -> int | None:
    """K: the first layer from which on all accuracies lie within a tolerance of a full depth's; None if none does.

    Args:
        accuracy: Of each layer, L+1 numbers.
        full: The reference's last layer.
        points: The tolerance, in points.
    """
    within = np.array(accuracy) >= full - points / 100 - 1e-12
    return int(len(within) - within[::-1].cumprod().sum()) if within[-1] else None


def difference(ours: pd.DataFrame, theirs: pd.DataFrame, comparisons: int = 1) -> tuple[np.ndarray, ...]:
    """How much higher accuracies are, by layer, paired by seed.

    Args:
        ours: Runs of one arm.
        theirs: Runs of another.
        comparisons: Over so many the intervals are simultaneous (Bonferroni).

    Returns:
        The mean difference of each layer and the ends of its interval, (L+1,) each; NaN ends below two seeds.
    """
    shared = sorted(set(ours.seed) & set(theirs.seed))
    apart = accuracies(ours[ours.seed.isin(shared)]) - accuracies(theirs[theirs.seed.isin(shared)])
    mean = apart.mean(0)
    if len(shared) < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    error = apart.std(0, ddof=1) / np.sqrt(len(shared))
    width = student.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons, len(shared) - 1) * error
    return mean, mean - width, mean + width


def worse_at(arms: dict[str, pd.DataFrame]) -> dict[str, list[int]]:
    """Arm → the layers from 1 on at which another arm is better.

    By intervals over seeds that are simultaneous over the layers, but neither over arms nor over test samples.
    """
    worse: dict[str, set[int]] = {arm: set() for arm in arms}
    for one, other in permutations(arms, 2):
        depth = len(arms[one].metrics.iloc[0]) - 1
        _, _, high = difference(arms[one], arms[other], depth)
        worse[one] |= {layer for layer in range(1, depth + 1) if high[layer] < 0}
    return {arm: sorted(layers) for arm, layers in worse.items()}


def layers(table: Table) -> pd.DataFrame:
    """For each model and method: accuracy by layer, K by the means and by seed, and where another method is better."""
    rows = []
    for model, arms, reference in by_model(table):
        full = accuracies(reference)[:, -1].mean()
        compared_with = f"rate {reference.settings.iloc[0]['learning_rate']:g}, {len(reference)} seeds"
        worse = worse_at(arms)
        for arm, runs in arms.items():
            found = accuracies(runs)
            _, low, high = difference(runs, reference)
            last = f"{100 * low[-1]:+.1f} to {100 * high[-1]:+.1f}"
            k = {f"K within {each}": _shown(suffices(found.mean(0), full, each)) for each in POINTS}
            by_seed = ", ".join(_shown(suffices(row, full, POINTS[0])) for row in found)
            rate = f"{runs.settings.iloc[0]['learning_rate']:g}"
            rows.append(
                {"model": model, "method": LABELS[arm], "rate": rate, "seeds": len(runs)}
                | {f"layer {layer}": f"{value:.3f}" for layer, value in enumerate(found.mean(0))}
                | {**k, f"K within {POINTS[0]} by seed": by_seed}
                | {"plain training it is compared with": compared_with}
                | {"last layer less plain training's, points": "–" if runs is reference else last}
                | {"another is better at": ", ".join(map(str, worse[arm])) or "–"}
            )
    return pd.DataFrame(rows).fillna("")


def pairs(table: Table) -> pd.DataFrame:
    """For each pair of methods how many points higher the first one's accuracy is, by layer.

    Intervals are paired by seed and simultaneous over the layers from 1 on.
    """
    rows = []
    for model, arms, _ in by_model(table):
        for one, other in combinations(arms, 2):
            depth = len(arms[one].metrics.iloc[0]) - 1
            mean, low, high = difference(arms[one], arms[other], depth)
            seeds = len(set(arms[one].seed) & set(arms[other].seed))
            row = {"model": model, "method": LABELS[one], "against": LABELS[other], "seeds of both": seeds}
            for layer in range(1, depth + 1):
                row[f"layer {layer}"] = points(mean[layer], low[layer], high[layer])
            rows.append(row)
    return pd.DataFrame(rows).fillna("")


def points(mean: float, low: float, high: float) -> str:
    """A difference of accuracies with its interval, in points."""
    interval = "" if np.isnan(low) else f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return f"{100 * mean:+.1f}{interval}".replace("-", "−")


def rule(table: Table) -> pd.DataFrame:
    """The rule of the plan: at how many layers of the deeper halves each method is worse than another.

    The choice is the first method that is worse at none and whose last layer is not worse than plain training's; if
    there is none, the first of those that are worse at the fewest layers. It holds for the models that have runs.
    """
    worse: dict[str, int] = {}
    harmed: dict[str, list[str]] = {}
    models: dict[str, list[str]] = {}
    for model, arms, reference in by_model(table):
        for arm, places in worse_at(arms).items():
            depth = len(arms[arm].metrics.iloc[0]) - 1
            worse[arm] = worse.get(arm, 0) + sum(layer >= depth // 2 for layer in places)
            _, _, high = difference(arms[arm], reference)
            harmed.setdefault(arm, []).extend([model] * bool(high[-1] < 0))
            models.setdefault(arm, []).append(f"{model} ({len(arms[arm])} seeds)")
    ranked = [arm for arm in DEPTH_ARMS if arm in worse]
    good = [arm for arm in ranked if not worse[arm] and not harmed[arm]]
    choice = next(iter([*good, *sorted(ranked, key=worse.__getitem__)]), None)
    rows = [
        [LABELS[arm], ", ".join(models[arm]), worse[arm], ", ".join(harmed[arm]) or "–", "yes" * (arm == choice)]
        for arm in ranked
    ]
    heads = [
        "method",
        "runs",
        "worse at, layers L/2 to L",
        "last layer worse than plain training's",
        "the rule's choice",
    ]
    return pd.DataFrame(rows, columns=heads)


def compared(table: Table, model: str, ours: str, theirs: str) -> Gain:
    """The mean accuracy of the deeper half of the layers, ours less theirs, paired by seed and test samples.

    Its interval is over seeds and blocks of test samples. There is none below two seeds, and no value without one.
    """
    for name, arms, _ in by_model(table):
        if name != model or ours not in arms or theirs not in arms:
            continue
        shared = sorted(set(arms[ours].seed) & set(arms[theirs].seed))
        if not shared:
            return Gain(math.nan)
        pair = [arms[arm][arms[arm].seed.isin(shared)].sort_values("seed") for arm in (ours, theirs)]
        half = (len(pair[0].metrics.iloc[0]) - 1) // 2
        one, other = (accuracies(runs)[:, half:].mean(1) for runs in pair)
        apart, seeds = one - other, len(shared)
        if seeds < 2:
            return Gain(float(apart.mean()), seeds=seeds)
        without, sizes = _without_each_block(*(list(runs.get("half", ())) for runs in pair))
        found = estimate(float(apart.mean()), apart, without, CONFIDENCE, sizes)
        return Gain(found.value, found.low, found.high, found.p, seeds, found.groups, found.parts)
    return Gain(math.nan)


def _without_each_block(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The mean difference of the deeper half with each block of test samples left out, and the samples of each block.

    Both are empty unless all rows have their blocks.

    Args:
        ours: The entry ``half`` of each run's row, S of them; rows of older code have none.
        theirs: Those of the other arm, of the same seeds.
    """
    rows = [*ours, *theirs]
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return np.empty(0), np.empty(0)
    (sizes,) = np.unique([row["counts"] for row in rows], axis=0).astype(float)  # all on the same blocks
    without = without_each(sizes, np.array([row["scores"] for row in rows], float), root=False)  # (B, 2S)
    return (without[:, : len(ours)] - without[:, len(ours) :]).mean(1), sizes


def picture(table: Table, arms: Sequence[str] = ("probe", "linear", "useful-.8")) -> Figure:
    """Test accuracy by layer of each model, a thin line a seed; a ring marks K within one point."""
    models = list(by_model(table))
    figure = Figure(figsize=(4.5 * len(models), 3.6), layout="constrained")
    axes = figure.subplots(1, len(models), squeeze=False)[0]
    for axis, (model, found, reference) in zip(axes, models, strict=True):
        full = accuracies(reference)[:, -1].mean()
        axis.axhspan(full - POINTS[0] / 100, full, color="#2e8b57", alpha=0.15, lw=0)
        depth = len(reference.metrics.iloc[0]) - 1
        for arm in arms:
            if arm not in found:
                continue
            seeds, colour = accuracies(found[arm]), COLOURS[arm]
            mean, k = seeds.mean(0), suffices(seeds.mean(0), full, POINTS[0])
            axis.plot(seeds.T, color=colour, alpha=0.2, lw=0.8)
            axis.plot(mean, color=colour, marker="o", ms=3, label=f"{LABELS[arm]}: {_shown(k)} of {depth}")
            if k is not None:
                axis.plot(k, mean[k], "o", ms=13, mfc="none", color=colour)
        axis.set(xlabel="layer", ylabel="accuracy on test data", title=model.removesuffix("-exits"))
        axis.legend(title="layers that suffice, within 1 point", fontsize=8, title_fontsize=8)
    return figure


def _shown(k: int | None) -> str:
    return "none" if k is None else str(k)
