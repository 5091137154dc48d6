"""Targets: the bound that each layer's loss must reach, as a function of the layer losses.

A target gives `DescentProblem` the right-hand sides of its constraints f_l ≤ bound_l. `StepTarget` is the paper's,
eq. (4). `GeometricTarget` is the default of training. What a loss compares predictions with has the same name in
`descend.tasks`; the two never meet.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from descend.errors import InputError, refuse

Form = Literal["difference", "ratio"]

Steps = float | Sequence[float] | Tensor
"""α: one number for all layers, or one per layer, as Python or numpy numbers or tensors."""


ROUNDING = 1e-6
"""By which share of the largest loss another may be below 0 and still count as 0, and two bounds differ and still count
as equal."""


class Target(ABC):
    """The bounds of the constraints of a model of L layers.

    Every vector is (L+1,): entry l is that of layer l's constraint, entry 0 the cap's. Callers ignore entries whose
    constraint is not in force. ``losses`` are f_0 … f_L. ``reference`` are the losses from which a target computes its
    coefficients: a running mean in training, the losses themselves in a verdict.

    Attributes:
        first: The exit where the chain starts; the constraints of layers up to it are not in force.
        memory: The decay of the moving average of the losses that is the reference, in [0, 1); 0 for the last losses.
        normalized: Whether the layers' weights in the primal step are scaled to the objective's sum. The size of the
            gradient then does not change with the multipliers, which matters for Adam's second moments.
    """

    first: int
    memory: float = 0.0
    normalized: bool = False

    @abstractmethod
    def bounds(self, losses: Tensor, reference: Tensor) -> Tensor:
        """The right-hand side of each constraint."""

    def violations(self, losses: Tensor, reference: Tensor) -> Tensor:
        """Left-hand side minus right-hand side, positive if violated; by default f_l − bound_l."""
        return losses - self.bounds(losses, reference)

    @abstractmethod
    def pieces(self, losses: Tensor) -> list[Tensor]:
        """Smooth functions of the losses, each (L+1,): the violation is max(pieces[0], min(pieces[1:])).

        Verdicts alone use them: where two bounds tie, the violation has a kink, and one slope does not tell how it
        varies. They are differentiated in the losses of both sides, whatever the primal step does.
        """

    def units(self, reference: Tensor) -> Tensor:
        """The unit in which the dual step measures each violation; by default 1, and always 1 for the cap."""
        return torch.ones_like(reference)

    @abstractmethod
    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """The gradient of the constraints' part of the Lagrangian with respect to the losses, at ``reference``.

        ``multipliers`` are 0 where a constraint is not in force.
        """

    @abstractmethod
    def penalties(self, losses: Tensor) -> Tensor:
        """The contribution of each violation to the merit, in units of the losses."""

    def refuse_negative(self, losses: Tensor) -> None:
        """Raise an `InputError` for losses that this target can't bound; by default for any below 0."""
        refuse_negative(losses)


class StepTarget(Target):
    """The paper's target, eq. (4): f_l ≤ (1−α_l) f_{l−1}, and its cap.

    Args:
        alpha: α_1 … α_L, each in (0, 1).
        first: The exit where the chain starts; the constraints of layers up to it are not in force.
        form: ``"difference"``, the paper's, or ``"ratio"``: f_l / f_{l−1} ≤ 1−α_l.
        stop_gradient: Treat the right-hand side as a constant in the primal step.
        cap: The bound on the loss of the exit ``cap_layer``.
        cap_layer: That exit.
    """

    def __init__(
        self,
        alpha: Sequence[float],
        first: int,
        form: Form,
        stop_gradient: bool,
        cap: float,
        cap_layer: int,
    ):
        self.rates = 1 - torch.tensor([0.0, *alpha], dtype=torch.float64, device="cpu")  # 1 − α is computed only here
        self.first, self.form, self.stop_gradient = first, form, stop_gradient
        self.cap, self.cap_layer = cap, cap_layer

    def bounds(self, losses: Tensor, reference: Tensor) -> Tensor:
        """(1−α_l) f_{l−1}, or 1−α_l in the ratio form; the cap at entry 0."""
        rates = self.rates.to(losses)
        bounds = rates * _before(losses) if self.form == "difference" else rates
        return torch.cat([losses.new_tensor([self.cap]), bounds[1:]])

    def violations(self, losses: Tensor, reference: Tensor) -> Tensor:
        """f_l − (1−α_l) f_{l−1}, or f_l / f_{l−1} − (1−α_l); f_cap_layer − cap at entry 0."""
        return self._above(losses, losses.detach() if self.stop_gradient else losses, self.form)

    def pieces(self, losses: Tensor) -> list[Tensor]:
        """The violations, differentiated through both sides."""
        return [self._above(losses, losses, self.form)]

    def penalties(self, losses: Tensor) -> Tensor:
        """[f_l − (1−α_l) f_{l−1}]₊ in both forms, and [f_cap_layer − cap]₊."""
        return self._above(losses, losses, "difference").clamp(min=0.0)

    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """λ_l − (1−α_{l+1}) λ_{l+1}; λ_l with ``stop_gradient``; those of the ratio form at ``reference``."""
        multipliers = multipliers.clone()
        of_cap, multipliers[0] = multipliers[0].clone(), 0.0
        if self.form == "difference":
            slopes, returned = multipliers.clone(), self.rates.to(multipliers) * multipliers
        else:
            at = reference.detach().to(multipliers)
            divisors = self._divisors(_before(at))
            slopes, returned = multipliers / divisors, multipliers * at / divisors**2
        if not self.stop_gradient:
            slopes[:-1] -= returned[1:]
        slopes[self.cap_layer] += of_cap
        return slopes

    def refuse_negative(self, losses: Tensor) -> None:
        """Raise an `InputError` for a loss of 0 or less in a denominator: dividing by it tells nothing of descent."""
        if self.form == "ratio" and bool((losses[self.first : -1] <= 0).any()):
            raise InputError(f"the ratio form needs positive losses; got {losses.tolist()}. Use form='difference'.")

    def _above(self, losses: Tensor, right: Tensor, form: Form) -> Tensor:
        """The violations, where the losses on the right-hand side are ``right``."""
        rates, before = self.rates.to(losses), _before(right)
        above = losses - rates * before if form == "difference" else losses / self._divisors(before) - rates
        return torch.cat([losses[self.cap_layer, None] - self.cap, above[1:]])

    def _divisors(self, before: Tensor) -> Tensor:
        # 1 for constraints that are not in force, where a loss of 0 would make the gradient 0·∞ = NaN.
        in_force = torch.arange(len(before), device=before.device) > self.first
        return torch.where(in_force, before, 1.0)


class GeometricTarget(Target):
    r"""A target without a schedule to choose: the bounds follow from the losses themselves.

    The chain starts at exit F and has L' = L − F constraints. With reference losses :math:`\bar f` and δ = ``margin``,

    .. math::
        f^* = (1-\delta) f_L, \qquad
        r = \frac{\delta \bar f_L}{\max(\bar f_F - (1-\delta)\bar f_L,\ 2\delta \bar f_L)}, \qquad
        b = \tfrac s2 (1 - r^{1/L'})

    f* is a floor just below the last loss, and r the distance of the last layer to it, relative to that of exit F. A
    geometric line between the two ends lowers the distance by the factor :math:`r^{1/L'}` a layer. Layer l must reach
    the lower of two bounds:

    .. math::
        \text{step}_l &= f^* + (1-b)(f_{l-1} - f^*) \\
        \text{line}_l &= f^* + \max\big( r^{s (l-F)/L'} (f_F - f^*),\ (1-b)^{l-L} (f_L - f^*) \big)

    The step requires the share s/2 of the geometric rate relative to the layer before; the line requires early layers
    to contribute. Its second form, back from layer L, and the maximum in r keep bounds in reach where f_F is hardly
    above f_L. Both bounds are linear in the losses; r, b and the choice of the lower bound are fixed at the reference.
    Scaling the losses scales the bounds. At s = 1 both forms of the line end in f_L, and layer L takes the first, as it
    does at any lower strength: the second, f_L ≤ f_L, would require nothing. This target is not in the paper.

    The primal step takes no gradient through f_F and f_L in a bound, which would loosen it by a higher loss, but does
    through f_{l−1} in step_l; no layer's weight falls below 0. A multiplier is a price in units of the last loss:
    constraint l enters the Lagrangian as :math:`\lambda_l \bar f_L (f_l - \text{bound}_l) / \bar f_{l-1}`. Training
    moves it by `PriceAscent`.

    Args:
        strength: s in [0, 1]: 0 only requires that no layer raises the loss; 1 requires the geometric line itself.
        first: F, the exit where the chain starts.
        margin: δ in (0, ½].

    Raises:
        InputError: If a setting is outside its range.
    """

    memory = 0.95
    normalized = True

    def __init__(self, strength: float = 0.2, first: int = 0, margin: float = 0.03):
        refuse(
            (not 0 <= strength <= 1, f"strength must lie in [0, 1]; got {strength}."),
            (not 0 < margin <= 0.5, f"margin must lie in (0, 0.5]; got {margin}."),
        )
        self.strength, self.first, self.margin = float(strength), first, margin

    def bounds(self, losses: Tensor, reference: Tensor) -> Tensor:
        """min(step_l, line_l); the loss itself where no constraint is in force."""
        bound = self._candidates(losses, reference).gather(0, self._chosen(reference)[None])[0]
        return torch.cat([losses[: self.first + 1], bound])

    def pieces(self, losses: Tensor) -> list[Tensor]:
        """f_l less step_l, and less each of the two lines."""
        return [losses - torch.cat([losses[: self.first + 1], bound]) for bound in self._candidates(losses, losses)]

    def units(self, reference: Tensor) -> Tensor:
        """f_{l−1}, so that violations are relative."""
        return _positive(_before(reference))

    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """λ_l f_L / f_{l−1}, less (1−b) λ_{l+1} f_L / f_l where the next bound is its step, but at least 0."""
        at = reference.to(multipliers)
        priced = multipliers * at[-1] / self.units(at)
        _, b = self._rates(at)
        slopes = priced.clone()
        slopes[self.first : -1] -= torch.where(self._chosen(at) == 0, (1 - b) * priced[self.first + 1 :], 0.0)
        return slopes.clamp(min=0.0)

    def penalties(self, losses: Tensor) -> Tensor:
        """f_L [f_l − bound_l]₊ / f_{l−1}."""
        return losses[-1] * self.violations(losses, losses).clamp(min=0.0) / self.units(losses)

    def _rates(self, reference: Tensor) -> tuple[Tensor, Tensor]:
        """r and b, scalars."""
        last, count = reference[-1], len(reference) - 1 - self.first
        distance = torch.maximum(reference[self.first] - (1 - self.margin) * last, 2 * self.margin * last)
        r = (self.margin * last / _positive(distance)).clamp(min=0.0)  # rounding may take a last loss below 0
        return r, self.strength / 2 * (1 - r ** (1 / count))

    def _candidates(self, losses: Tensor, reference: Tensor) -> Tensor:
        """step_l, and the lines from exit F and from layer L, for l = F+1 … L, (3, L−F)."""
        return (1 - self.margin) * losses[-1] + self._distances(losses, reference)

    def _distances(self, losses: Tensor, reference: Tensor) -> Tensor:
        """The candidates' distances above f*."""
        r, b = self._rates(reference)
        count = len(losses) - 1 - self.first
        layers = torch.arange(1, count + 1, dtype=losses.dtype, device=losses.device)
        floor = (1 - self.margin) * losses[-1]
        step = (1 - b) * (losses[self.first : -1] - floor)
        from_first = r ** (self.strength * layers / count) * (losses[self.first] - floor)
        from_last = (1 - b) ** (layers - count) * (losses[-1] - floor)
        return torch.stack([step, from_first, from_last])

    def _chosen(self, reference: Tensor) -> Tensor:
        """Which of the candidates is min(step_l, line_l) at the reference: its number, (L−F,)."""
        _, from_first, from_last = self._distances(reference, reference)
        line = torch.where(from_first >= (1 - ROUNDING) * from_last, 1, 2)  # at s = 1 they are equal at layer L
        candidates = self._candidates(reference, reference)
        return torch.where(candidates[0] <= candidates.gather(0, line[None])[0], 0, line)


def _before(losses: Tensor) -> Tensor:
    """f_{l−1} at entry l; f_0 at entry 0, which has no predecessor."""
    return torch.cat([losses[:1], losses[:-1]])


def _positive(values: Tensor) -> Tensor:
    """The values, bounded away from 0 so that neither a quotient by them nor a sum of quotients overflows."""
    return values.clamp(min=torch.finfo(values.dtype).tiny ** 0.5)


def refuse_negative(losses: Tensor, first: int = 0) -> None:
    """Raise an `InputError` for a mean loss below 0, because a bound is a share of a loss: (1−α) f is above f < 0.

    The loss 0 of a perfect layer is accepted, and so is one that only rounding takes below 0. NaN is not looked at.

    Args:
        losses: Mean losses of the layers from ``first`` on.
        first: The first of these layers.
    """
    known = losses.detach().nan_to_num(nan=0.0)
    if not len(known) or known.min() >= -ROUNDING * known.abs().max():
        return
    lowest, layer = known.min().item(), first + int(known.argmin())
    raise InputError(
        f"expected a mean loss above 0 at every layer; got {lowest:.4g} at layer {layer}. "
        "What a layer must reach is a share of a loss, so no loss may be negative. Add a constant to the task's loss "
        "that keeps it above 0."
    )


def step_numbers(alpha: Steps) -> float | list[float]:
    """α as a Python number or a list of numbers; an `InputError` if it is neither."""
    try:
        numbers = torch.as_tensor(alpha, dtype=torch.float64, device="cpu")
        if numbers.dim() <= 1:
            return numbers.tolist()
    except (TypeError, ValueError, RuntimeError):  # words, or nothing
        pass
    raise InputError(f"alpha must be one number or one per layer; got {alpha!r}.")


def step_sizes(alpha: Steps, depth: int) -> list[float]:
    """α of each of ``depth`` layers, from one number in (0, 1) or one per layer; an `InputError` for others."""
    numbers = step_numbers(alpha)
    values = numbers if isinstance(numbers, list) else [numbers] * depth
    outside = [value for value in values if not 0 < value < 1]
    refuse(
        (
            len(values) != depth,
            f"alpha must be one number or one per layer ({depth}); got {len(values)} numbers.",
        ),
        (
            bool(outside),
            "alpha must lie strictly between 0 and 1: each layer lowers the loss by the factor 1 - alpha; got "
            f"{', '.join(map(str, outside))}.",
        ),
    )
    return values
