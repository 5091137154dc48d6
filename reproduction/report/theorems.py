"""What can be measured of the paper's Theorems 2 and 4 and of Corollary 3, setting by setting."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan, prod
from typing import Any

import numpy as np

from descend.noise_scale import noise_std
from reproduction.report.cells import Run, rates_of
from reproduction.report.results import Results, Setting
from reproduction.report.selections import deepest_constrained, finite_runs, number_of

# --- Theorem 2


@dataclass(frozen=True)
class GapBound:
    """What is known of Theorem 2's bound in one setting.

    Attributes:
        setting: The setting.
        bound: (ζ + u)/α, averaged over seeds; NaN if unknown.
        bounds: (ζ + u)/α of each constrained run.
        telling: Whether it lies below the input's own gap; above it, it says nothing.
    """

    setting: Setting
    bound: float
    bounds: list[float]
    telling: bool


def gap_bounds(results: Results) -> list[GapBound]:
    """Theorem 2's bound in each deepest constrained setting."""
    checked = []
    for setting in deepest_constrained(results):
        runs, best = finite_runs(setting, "constrained"), lowest_loss(results, setting)
        bounds = [gap_bound(run) for run in runs]
        bound = sum(bounds) / len(bounds) if bounds else nan
        largest = max((gaps(run, setting.gamma, best)[0] for run in runs), default=nan)
        checked.append(GapBound(setting, bound, bounds, bound < largest))
    return checked


def lowest_loss(results: Results, setting: Setting) -> float:
    """f*: the lowest loss that this model reached on this data under this noise, at any depth by any method."""
    losses = [
        value
        for other in results.where(model=setting.model, data=setting.data, regime=setting.regime)
        for runs in other.arms.values()
        for run in runs
        for value in run.losses(setting.gamma) or []
        if isfinite(value)
    ]
    return min(losses, default=nan)


def gaps(run: Run, level: float, best: float) -> list[float]:
    """min over k ≤ l of f_k, less f*."""
    return (np.minimum.accumulate(np.array(run.losses(level))) - best).tolist()


def allowed_loss(run: Run) -> float:
    """The largest f_L that a run's cap and its α_l allow together; NaN without a cap or without an α.

    The cap f̄_0 bounds the loss of layer c. With f_l ≤ (1 − α_l) f_(l−1) in each layer after it,

        f_L ≤ f̄_0 Π_(l > c) (1 − α_l).

    Constraints on the layers up to c bound f_L in the same way from the input's loss f_0 on.
    """
    layer, cap = number_of(run, "cap_layer") or 0, run.summary.cap
    rates = {each: limit for each, limit in enumerate(run.summary.limits) if each and limit is not None}
    if cap is None or not rates:
        return nan
    after = cap * prod(rate for each, rate in rates.items() if each > layer)
    first = (run.losses(run.summary.train_noise) or [nan])[0]
    return min(after, first * prod(rates.values())) if layer else after


def lowest_allowed(setting: Setting, form: str = "paper") -> float:
    """The lowest `allowed_loss` of a form's runs in a setting; NaN without any."""
    return min(map(allowed_loss, setting.runs(form)), default=nan)


def out_of_reach(results: Results, form: str = "paper") -> list[Setting]:
    """Settings in which α and cap ask for a lower f_L than any layer of the model reached, by any method and depth."""
    return [setting for setting in results.settings if lowest_allowed(setting, form) < lowest_loss(results, setting)]


def gap_bound(run: Run) -> float:
    """(ζ + u)/α, the part of Theorem 2's bound that is measured; NaN if a part of it is unknown.

    A relaxed constraint is f_l ≤ (1 − α) f_(l−1) + u_l on the training samples, and ζ is the most by which a mean over
    them differs from the expectation. With u the largest u_l, expectations satisfy

        f_l ≤ (1 − α) f_(l−1) + ζ + u,   so   f_l − (ζ + u)/α ≤ (1 − α) (f_(l−1) − (ζ + u)/α),

    and f_l ends at (ζ + u)/α or below as l grows: slack adds u/α to the theorem's ζ/α.

    ζ is measured as the largest difference, over layers, between the losses of training and of test samples, both in
    test mode. Assumption 4 takes the largest over all models, which is at least that of this one. α is the smallest of
    the layers'. u is the run's own slack, over the last tenth of its training.
    """
    alpha = min((1 - rate for rate in run.rates.values()), default=nan)
    test = run.losses(run.summary.train_noise)
    if run.train_losses is None or test is None or not alpha > 0:
        return nan
    zeta = np.abs(np.array(run.train_losses) - np.array(test)).max()
    slack = run.trained("slack")
    return float((zeta + (0.0 if slack is None else slack.max())) / alpha)


# --- Corollary 3 and Theorem 4


@dataclass(frozen=True)
class Shift:
    """A setting whose constraints are judged under stronger noise than in training.

    Attributes:
        setting: The setting.
        arms: Runs of ``erm`` and ``constrained`` that did not diverge.
        rates: `Run.rates` of the constrained runs; ERM is judged by the same.
        levels: The noise levels from that of training on at which all of them were judged.
    """

    setting: Setting
    arms: dict[str, list[Run]]
    rates: dict[int, float]
    levels: list[float]


def shifts(results: Results) -> list[Shift]:
    """The deepest constrained settings, for Corollary 3."""
    shifted = []
    for setting in deepest_constrained(results):
        arms = {arm: finite_runs(setting, arm) for arm in ("erm", "constrained")}
        rates = rates_of(arms["constrained"])
        if rates:
            judged = [
                {level for level in run.summary.layer_losses if level >= setting.gamma}
                for runs in arms.values()
                for run in runs
            ]
            shifted.append(Shift(setting, arms, rates, sorted(set.intersection(*judged)) if judged else []))
    return shifted


def missed(rates: dict[int, float], losses: Sequence[Any]) -> np.ndarray:
    """f_l − (1 − α_l) f_(l−1) of each constrained layer."""
    return np.array([losses[layer] - rate * losses[layer - 1] for layer, rate in rates.items() if layer < len(losses)])


@dataclass(frozen=True)
class Transfer:
    """What Assumption 7 and Theorem 4 say of a setting at its strongest test noise.

    Attributes:
        shift: The setting and its runs.
        level: That test noise γ′.
        distance: d, a bound on the Wasserstein distance between the two noises; see `noise_distance`.
        constant: The most by which a loss of any layer of any run changed between the training noise and another, per
            unit of d. Assumption 7's C is at least that.
    """

    shift: Shift
    level: float
    distance: float
    constant: float

    @property
    def allowed(self) -> float:
        """Cd: by Assumption 7 no model's loss may rise by more, however it was trained."""
        return self.constant * self.distance

    @property
    def any_gap(self) -> float:
        """Cτ, with τ = 2d: by Assumption 7 no model's gap to the optimum may grow by more, however it was trained.

        With f* and f*′ the optima, E′f ≤ E f + Cd and f*′ ≥ f* − Cd, so E′f − f*′ ≤ E f − f* + 2Cd.
        """
        return 2 * self.allowed

    @property
    def term(self) -> float:
        """Cτ/α of Theorem 4, with the smallest α; NaN where that is not above 0."""
        alpha = min(1 - rate for rate in self.shift.rates.values())
        return self.any_gap / alpha if alpha > 0 else nan

    def rise(self, arm: str) -> float:
        """By how much the last layer's loss rises from the training noise to the strongest, averaged over seeds."""
        runs = self.shift.arms[arm]
        rises = [last_loss(run, self.level) - last_loss(run, self.shift.setting.gamma) for run in runs]
        return sum(rises) / len(rises) if rises else nan

    @property
    def telling(self) -> bool:
        """Whether the term lies below the loss of the input itself at the strongest noise."""
        first = [(run.losses(self.level) or [inf])[0] for run in self.shift.arms["constrained"]]
        return self.term < sum(first) / len(first)


def noise_distance(run: Run, level: float) -> float:
    """A bound on the Wasserstein distance between inputs under two noises, in units of σ_x√d; symmetric.

    Samples x + sε and x + s′ε of the same x and ε differ by |s − s′| ‖ε‖, so W_1 ≤ W_2 ≤ |s − s′| √d in d dimensions.
    s is `noise_std`; where γσ_x is a variance, the unit is √(σ_x d).
    """
    noise_is = str(run.summary.settings.get("noise_is", "std"))
    trained, other = (noise_std(value, 1.0, noise_is) for value in (run.summary.train_noise, level))
    return abs(other - trained)


def transfers(results: Results) -> list[Transfer]:
    """Theorem 4 in each deepest constrained setting that was judged beyond its training noise."""
    rows = []
    for shift in shifts(results):
        runs = [run for runs in shift.arms.values() for run in runs]
        if shift.arms["constrained"] and shift.levels and shift.levels[-1] > shift.setting.gamma:
            level = shift.levels[-1]
            rows.append(Transfer(shift, level, noise_distance(runs[0], level), _steepest(runs)))
    return rows


def _steepest(runs: Iterable[Run]) -> float:
    """The largest change of a layer's loss from the training noise to another, per unit of distance."""
    slopes = [
        abs(there - here) / noise_distance(run, level)
        for run in runs
        for level, losses in run.summary.layer_losses.items()
        if noise_distance(run, level) > 0
        for here, there in zip(run.losses(run.summary.train_noise) or [], losses, strict=False)
    ]
    return max(filter(isfinite, slopes), default=nan)


def last_loss(run: Run, level: float) -> float:
    """f_L at a noise level; NaN if the run was not judged there."""
    return (run.losses(level) or [nan])[-1]
