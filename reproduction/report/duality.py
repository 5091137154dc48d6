"""Theorem 1: a primal and a dual value along training."""

from dataclasses import dataclass

import numpy as np

from reproduction.report.cells import Run
from reproduction.report.results import Results, Setting
from reproduction.report.selections import deepest_constrained, finite_runs, number_of


@dataclass(frozen=True)
class Duality:
    """A primal and a dual value along a run, from the losses and multipliers of its log.

    A loss is the mean over the training batches since the log before, and a multiplier is that of the log's step.

    Attributes:
        steps: The training steps, K numbers, without those whose inner losses were not computed.
        losses: The last layer's loss at each, K numbers.
        primal: The primal value at each, K numbers.
        dual: The Lagrangian at each, K numbers.
    """

    steps: list[float]
    losses: list[float]
    primal: list[float]
    dual: list[float]

    @property
    def gaps(self) -> list[float]:
        """The primal value less the Lagrangian, K numbers, none below 0."""
        return [high - low for high, low in zip(self.primal, self.dual, strict=True)]

    def end(self, last: float = 0.1) -> float:
        """The gap over the last share of training, in units of the primal value."""
        count = max(1, round(last * len(self.steps)))
        return sum(self.gaps[-count:]) / sum(self.primal[-count:])


def duality(run: Run) -> Duality | None:
    r"""Both values of the relaxed problem of Appendix A.5 along a run of preset paper; None if they are unknown.

    g_l = f_l − (1 − α_l) f_(l−1) for a layer and f − f̄_0 for the cap. The relaxed problem is
    min f_L + ‖u‖² / 2ρ with g ≤ u. For a given model the best slack is u = [g]₊, and for given multipliers it is
    u = ρλ (eq. 37), so

    .. math::
        P(T) = f_L + \|[g]_+\|^2 / 2\rho, \qquad \hat L(T, \lambda) = f_L + \lambda^T g - \rho \|\lambda\|^2 / 2.

    P(T_k) is at least the problem's value P*. The dual function D(λ) = min_T L̂(T, λ) is at most P*, but L̂(T_k, λ_k) is
    at least D(λ_k) and can lie on either side of P*. P − L̂ is a sum over constraints of ([g]₊ − ρλ)² / 2ρ + λ[−g]₊:
    complementary slackness. It is a part of the duality gap P(T_k) − D(λ_k); the rest, L̂(T_k, λ_k) − D(λ_k), is how
    far T_k is from a minimiser of L̂, and is not known.
    """
    losses, multipliers = run.curves.get("loss"), run.curves.get("multiplier")
    resilience = number_of(run, "resilience")
    if not follows_its_lagrangian(run) or losses is None or multipliers is None or not resilience:
        return None
    by_step = dict(zip(multipliers.steps, multipliers.values, strict=True))
    shared = [step for step in losses.steps if step in by_step]
    f = np.array([row for step, row in zip(losses.steps, losses.values, strict=True) if step in by_step], float)
    prices = np.array([by_step[step] for step in shared], float)
    if not shared or not f.shape[1] == prices.shape[1] == run.depth + 1:
        return None
    layers, rates = list(run.rates), np.array(list(run.rates.values()))
    g = f[:, layers] - rates * f[:, [layer - 1 for layer in layers]]
    prices_of_g = prices[:, layers]
    if run.summary.cap is not None:
        capped = number_of(run, "cap_layer")
        exit_ = layers[0] - 1 if capped is None else int(capped)
        g = np.column_stack([f[:, exit_] - run.summary.cap, g])
        prices_of_g = np.column_stack([prices[:, 0], prices_of_g])
    primal = f[:, -1] + (np.maximum(g, 0) ** 2).sum(1) / (2 * resilience)
    dual = f[:, -1] + (prices_of_g * g).sum(1) - resilience * (prices_of_g**2).sum(1) / 2
    known = np.isfinite(primal) & np.isfinite(dual)
    if not known.any():
        return None
    steps = [step for step, kept in zip(shared, known, strict=True) if kept]
    return Duality(steps, f[known, -1].tolist(), primal[known].tolist(), dual[known].tolist())


def follows_its_lagrangian(run: Run) -> bool:
    """Whether a run's primal step descends the Lagrangian of constraints with α, eq. (5): preset paper does."""
    has_alpha = any(limit is not None for limit in run.summary.limits)
    return has_alpha and run.summary.settings.get("stop_gradient") is False


def dualities(results: Results) -> dict[Setting, list[Duality]]:
    """The constrained runs of each deepest setting whose values are known."""
    rows = {}
    for setting in deepest_constrained(results):
        known = [values for run in finite_runs(setting, "constrained") if (values := duality(run))]
        if known:
            rows[setting] = known
    return rows
