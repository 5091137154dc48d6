"""The theorems beside what a study measures of them; reproduction/theory.md says what that can and cannot show."""

import math
from typing import Any

import numpy as np
import pandas as pd

from reproduction.cells import FIRST_EXIT
from reproduction.table import SETTING, Table

HEADS = {
    "P − L̂": "Theorem 1: primal value less Lagrangian at the end of training, in % of the primal value",
    "f_L": "Theorem 2: the last loss, at least the gap that is left",
    "(ζ + u)/α": "Theorem 2: what of its bound is measured",
    "missed": "Corollary 3: largest violation at the strongest noise, in units of the first loss at the training noise",
    "missed, plain": "the same of plain training's models, held to the same bounds",
    "rise": "Theorem 4: by how much the last loss rises from the training noise to the strongest",
    "rise, plain": "the same of plain training",
    "Cτ/α": "Theorem 4: the term of the shift, with C from below",
    "energy": "Appendix C: whether the energy falls at every layer, in runs of the paper's form",
}
"""Column → what it says."""


def theory(table: Table) -> pd.DataFrame:
    """A row for each setting and form of the paper's runs; means over seeds."""
    rows = []
    for key, runs in table.where(arm="paper").groupby([*SETTING, "form"], sort=False):
        *setting, form = key
        plain = table.where(arm="erm", form=form, **dict(zip(SETTING, setting, strict=True)))
        ours, theirs = ([run for run in each.itertuples() if not run.diverged] for each in (runs, plain))
        if ours:
            rows.append([*key, *_measured(ours, theirs)])
    return pd.DataFrame(rows, columns=[*SETTING, "form", *HEADS])


def _measured(ours: list[Any], theirs: list[Any]) -> list[Any]:
    alpha = min(1 - rate for rate in ours[0].limits if rate is not None)
    falls = sum(bool((np.diff(run.energy) < 0).all()) for run in ours if len(run.energy))
    energies = sum(bool(len(run.energy)) for run in ours)
    return [
        np.mean([duality_gap(run) for run in ours]),
        np.mean([last(run, run.gamma) for run in ours]),
        np.mean([gap_bound(run, alpha) for run in ours]),
        *(np.mean([missed(run, ours[0].limits) for run in runs]) if runs else math.nan for runs in (ours, theirs)),
        *(np.mean([rise(run) for run in runs]) if runs else math.nan for runs in (ours, theirs)),
        2 * steepest([*ours, *theirs]) * distance(ours[0], ours[0].noise[-1]) / alpha,
        f"{falls} of {energies}" if energies else "–",
    ]


def last(run: Any, level: float) -> float:
    """f_L at a noise level."""
    return run.losses[f"{level:g}"][-1]


def violations(run: Any, losses: Any, limits: Any) -> np.ndarray:
    """f_l − (1 − α_l) f_{l−1} of each constrained layer."""
    layers = [layer for layer, limit in enumerate(limits) if limit is not None]
    return np.array([losses[layer] - limits[layer] * losses[layer - 1] for layer in layers])


def duality_gap(run: Any) -> float:
    """P − L̂ in per cent of P, from losses and multipliers of the last tenth of training; at least 0.

    P = f_L + ‖[g]₊‖²/2ρ, L̂ = f_L + λᵀg − ρ‖λ‖²/2 (Appendix A.5); 0 means complementary slackness. It is a part of the
    duality gap: the dual function lies below L̂ by an unknown amount.
    """
    trained, rho = run.trained, run.resilience
    if not rho or "loss" not in trained or "multiplier" not in trained:
        return math.nan
    losses, prices = (np.array(list(trained[name].values()), float) for name in ("loss", "multiplier"))
    g = violations(run, losses, run.limits)
    prices_of_g = prices[[layer for layer, limit in enumerate(run.limits) if limit is not None]]
    if run.cap is not None:
        g = np.append(g, losses[FIRST_EXIT.get(run.model, 0)] - run.cap)
        prices_of_g = np.append(prices_of_g, prices[0])
    primal = losses[-1] + (np.maximum(g, 0) ** 2).sum() / (2 * rho)
    dual = losses[-1] + prices_of_g @ g - rho * (prices_of_g**2).sum() / 2
    return float(100 * (primal - dual) / primal)


def gap_bound(run: Any, alpha: float) -> float:
    """(ζ + u)/α: ζ is the largest difference over layers of training and test losses, u the largest slack."""
    test = run.losses[f"{run.gamma:g}"]
    zeta = max(abs(value - test[int(layer)]) for layer, value in run.trained["loss"].items())
    return (zeta + max(run.trained.get("slack", {"1": 0.0}).values())) / alpha


def missed(run: Any, limits: Any) -> float:
    """The largest violation at the strongest noise, in units of the first loss at the training noise."""
    first = run.losses[f"{run.gamma:g}"][FIRST_EXIT.get(run.model, 0)]
    return float(violations(run, run.losses[f"{run.noise[-1]:g}"], limits).max() / first)


def rise(run: Any) -> float:
    """By how much the last loss rises from the training noise to the strongest."""
    return last(run, run.noise[-1]) - last(run, run.gamma)


def distance(run: Any, level: float) -> float:
    """A bound on the Wasserstein distance of inputs under a noise level and the training's, in units of σ_x√d.

    Samples x + sε and x + s′ε differ by |s − s′|‖ε‖. Where γσ_x is a variance, the unit is √(σ_x d).
    """
    power = 0.5 if run.settings.get("noise_is") == "variance" else 1.0
    return abs(level**power - run.gamma**power)


def steepest(runs: list[Any]) -> float:
    """C from below: the largest change of a layer's loss with the noise, per unit of distance."""
    slopes = [
        abs(there - here) / distance(run, float(level))
        for run in runs
        for level, losses in run.losses.items()
        if distance(run, float(level)) > 0
        for here, there in zip(run.losses[f"{run.gamma:g}"], losses, strict=True)
    ]
    return max(slopes)
