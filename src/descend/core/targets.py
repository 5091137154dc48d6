"""Targets: the bound that each layer's loss must reach, as a function of the layer losses.

A target gives `DescentProblem` the right-hand sides of its constraints f_l ≤ bound_l. `StepTarget` is the paper's,
eq. (4). `GeometricTarget` is the default of training.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from descend.errors import InputError

Form = Literal["difference", "ratio"]


class Target(ABC):
    """The bounds of the descent constraints of a model of L layers.

    ``losses`` are f_0 … f_L, shape (L+1,). ``reference`` are losses of the same shape at which a target takes its
    coefficients: a running mean in training, the losses themselves in a verdict. Constraint l is entry l−1 of every
    vector of shape (L,).

    Attributes:
        first: The exit where the chain starts; constraints up to it are not in force.
        memory: How much of the reference is kept at each dual step, in [0, 1): 0 for the last losses alone, else the
            decay of an exponential moving average.
        normalized: Whether the weights of the layers in the primal step are divided by their sum. Multipliers that
            change then do not change the gradient's size, which an optimizer such as Adam remembers.
    """

    first: int
    memory: float = 0.0
    normalized: bool = False

    @abstractmethod
    def bounds(self, losses: Tensor, reference: Tensor) -> Tensor:
        """What each constraint's left-hand side may reach, shape (L,)."""

    @abstractmethod
    def violations(self, losses: Tensor, reference: Tensor) -> Tensor:
        """Left-hand side less bound of each constraint, shape (L,), positive where violated."""

    @abstractmethod
    def units(self, reference: Tensor) -> Tensor:
        """The unit in which the dual step measures each violation, shape (L,)."""

    @abstractmethod
    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """The gradient in the losses of the constraints' part of the Lagrangian, shape (L+1,).

        Args:
            multipliers: λ_1 … λ_L, shape (L,), 0 where a constraint is not in force.
            reference: Shape (L+1,).
        """

    @abstractmethod
    def penalties(self, losses: Tensor) -> Tensor:
        """What each violation adds to the merit at the price 1, in units of the losses, shape (L,)."""


class StepTarget(Target):
    """The paper's target, eq. (4): f_l ≤ (1−α_l) f_{l−1}.

    Args:
        alpha: α_1 … α_L, each in (0, 1).
        first: The exit where the chain starts; constraints up to it are not in force.
        form: ``"difference"``, the paper's, or ``"ratio"``: f_l / f_{l−1} ≤ 1−α_l.
        stop_gradient: Treat the right-hand side as a constant in the primal step.
    """

    def __init__(self, alpha: Sequence[float], first: int = 0, form: Form = "difference", stop_gradient: bool = False):
        # The one place of 1 − α.
        self.rates = 1 - torch.tensor(list(alpha), dtype=torch.float64)
        self.first, self.form, self.stop_gradient = first, form, stop_gradient

    def bounds(self, losses: Tensor, reference: Tensor) -> Tensor:
        """(1−α_l) f_{l−1}; 1−α_l in the ratio form."""
        rates = self.rates.to(losses)
        return rates * losses[:-1] if self.form == "difference" else rates

    def violations(self, losses: Tensor, reference: Tensor) -> Tensor:
        """f_l − (1−α_l) f_{l−1}, or f_l / f_{l−1} − (1−α_l)."""
        before = losses[:-1].detach() if self.stop_gradient else losses[:-1]
        if self.form == "difference":
            return losses[1:] - self.rates.to(losses) * before
        return losses[1:] / self._divisors(before) - self.rates.to(losses)

    def units(self, reference: Tensor) -> Tensor:
        """1: violations are in units of the losses, those of the ratio form are bare numbers."""
        return torch.ones_like(reference[1:])

    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """λ_l − (1−α_{l+1}) λ_{l+1}; λ_l with ``stop_gradient``; those of the ratio form at ``reference``."""
        found = multipliers.new_zeros(len(multipliers) + 1)
        rates = self.rates.to(multipliers)
        if self.form == "difference":
            found[1:] += multipliers
            before = rates * multipliers
        else:
            at = reference.detach().to(multipliers)
            divisors = self._divisors(at[:-1])
            found[1:] += multipliers / divisors
            before = multipliers * at[1:] / divisors**2
        if not self.stop_gradient:
            found[:-1] -= before
        return found

    def penalties(self, losses: Tensor) -> Tensor:
        """[f_l − (1−α_l) f_{l−1}]₊ in both forms."""
        return (losses[1:] - self.rates.to(losses) * losses[:-1]).clamp(min=0.0)

    def _divisors(self, before: Tensor) -> Tensor:
        # 1 where no constraint is in force: a loss of 0 is no error there, nor may the gradient become 0·∞ = NaN.
        active = torch.arange(1, len(before) + 1, device=before.device) > self.first
        return torch.where(active, before, 1.0)


class GeometricTarget(Target):
    r"""A target without a schedule to choose: the losses themselves say how much each layer can lower them.

    The chain starts at exit F and has L' = L − F constraints. With reference losses :math:`\bar f` and δ = ``margin``,

    .. math::
        f^* = (1-\delta) f_L, \qquad
        r = \frac{\delta \bar f_L}{\max(\bar f_F - (1-\delta)\bar f_L,\ 2\delta \bar f_L)}, \qquad
        b = \tfrac s2 (1 - r^{1/L'})

    f* is a floor just below the last loss, and r the share of the first layer's distance to it that is left at the
    last layer. A geometric line between the two ends lowers that distance by the factor :math:`r^{1/L'}` at each
    layer. Layer l must reach the lower of two bounds:

    .. math::
        \text{step}_l &= f^* + (1-b)(f_{l-1} - f^*) \\
        \text{line}_l &= f^* + \max\big( r^{s (l-F)/L'} (f_F - f^*),\ (1-b)^{l-L} (f_L - f^*) \big)

    The step asks for the share s/2 of the geometric rate from the layer before; the line asks early layers to do their
    share. At the strength s = 0 no layer may raise the loss, and that is all. Both are linear in the losses; which one
    is lower, r and b are decided at the reference. Losses × 1000 have bounds × 1000. The target is ours; the paper has
    `StepTarget`.

    In the primal step every bound is a constant, except that a step's right-hand side lowers the weight of the layer
    before, never below 0: no layer is rewarded for a higher loss. A multiplier is a price in units of the last loss:
    constraint l enters the Lagrangian as :math:`\lambda_l \bar f_L (f_l - \text{bound}_l) / \bar f_{l-1}`.

    Args:
        strength: s in [0, 1]: 0 asks that no layer raises the loss, 1 for the geometric line itself.
        first: F, the exit where the chain starts.
        margin: δ in (0, ½].

    Raises:
        InputError: If a setting is outside its range.
    """

    memory = 0.95
    normalized = True

    def __init__(self, strength: float = 0.2, first: int = 0, margin: float = 0.03):
        if not 0 <= strength <= 1:
            raise InputError(f"strength must lie in [0, 1]; got {strength}.")
        if not 0 < margin <= 0.5:
            raise InputError(f"margin must lie in (0, 0.5]; got {margin}.")
        self.strength, self.first, self.margin = float(strength), first, margin

    def bounds(self, losses: Tensor, reference: Tensor) -> Tensor:
        """min(step_l, line_l); at constraints that are not in force the loss itself."""
        step, line, _ = self._both(losses, reference)
        at_reference = self._both(reference, reference)
        found = torch.where(at_reference[0] <= at_reference[1], step, line)
        return torch.cat([losses[1 : self.first + 1], found])

    def violations(self, losses: Tensor, reference: Tensor) -> Tensor:
        """f_l − bound_l."""
        return losses[1:] - self.bounds(losses, reference)

    def units(self, reference: Tensor) -> Tensor:
        """The loss of the layer before: violations are relative."""
        return _positive(reference[:-1])

    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """λ_l f_L / f_{l−1}, less (1−b) λ_{l+1} f_L / f_l where the next bound is its step, but at least 0."""
        at = reference.to(multipliers)
        priced = multipliers * at[-1] / self.units(at)
        step, line, rate = self._both(at, at)
        returned = torch.zeros_like(priced)
        returned[self.first :] = torch.where(step <= line, rate * priced[self.first :], 0.0)
        found = multipliers.new_zeros(len(multipliers) + 1)
        found[1:] = priced
        found[:-1] -= returned
        return found.clamp(min=0.0)

    def penalties(self, losses: Tensor) -> Tensor:
        """f_L [f_l − bound_l]₊ / f_{l−1}."""
        return losses[-1] * self.violations(losses, losses).clamp(min=0.0) / self.units(losses)

    def _both(self, losses: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """step_l and line_l for l = F+1 … L, each (L−F,), and 1−b, a scalar."""
        count = len(losses) - 1 - self.first
        layers = torch.arange(1, count + 1, dtype=losses.dtype, device=losses.device)
        last = reference[-1]
        distance = torch.maximum(reference[self.first] - (1 - self.margin) * last, 2 * self.margin * last)
        share = self.margin * last / _positive(distance)
        rate = 1 - self.strength / 2 * (1 - share ** (1 / count))  # 1 − b
        floor = (1 - self.margin) * losses[-1]
        step = floor + rate * (losses[self.first : -1] - floor)
        from_first = share ** (self.strength * layers / count)
        from_last = rate ** (layers - count)
        # The larger of the two lines, decided at the reference, so that the bound is linear in the losses.
        floor_there = (1 - self.margin) * last
        higher = from_first * (reference[self.first] - floor_there) >= from_last * (last - floor_there)
        line = floor + torch.where(higher, from_first * (losses[self.first] - floor), from_last * (losses[-1] - floor))
        return step, line, rate


def _positive(values: Tensor) -> Tensor:
    """The values, none so small that dividing by it gives no number: a loss of 0 meets every bound."""
    return values.clamp(min=torch.finfo(values.dtype).tiny)


def step_sizes(alpha: float | Sequence[float], depth: int) -> list[float]:
    """α of each of ``depth`` layers, from one number or one per layer.

    Raises:
        InputError: If there are too few or too many, or one is not in (0, 1).
    """
    values = [float(alpha)] * depth if isinstance(alpha, int | float) else [float(a) for a in alpha]
    if len(values) != depth:
        raise InputError(f"alpha must be one number or one per layer ({depth}); got {len(values)} numbers.")
    for value in values:
        if not 0 < value < 1:
            raise InputError(
                "alpha must lie strictly between 0 and 1: each layer lowers the loss by the factor 1 - alpha;"
                f" got {value}."
            )
    return values
