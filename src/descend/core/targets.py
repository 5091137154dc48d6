"""Targets: what must hold of a vector of values. One method makes a constraint: `Target.violations`.

The values are mostly the layer losses f_0 … f_L, but any vector will do: losses of groups, an objective and a rate.
`StepTarget` is the paper's, eq. (4). `GeometricTarget` is the default of training. `NoWorse` is for networks that may
run on past the layer that counts, `NearLast` for those whose every layer may be the last one. What a loss compares
predictions with has the same name in `descend.tasks`; the two never meet.
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
    """What must hold of a vector of V values: K constraints g(v) ≤ 0.

    `violations` is enough for a constraint of one's own; the rest has defaults. A bound either way on the gap between
    the losses of two groups, of the values (loss, loss of group 0, loss of group 1)::

        class GroupGap(Target):
            def violations(self, values):
                gap = values[1] - values[2]
                return torch.stack([gap, -gap]) - 0.05

    The targets of layers have K = V = L+1: entry l is layer l's constraint, entry 0 the cap's.

    Attributes:
        name: The target's name in results.
        first: The exit where a chain of layers starts; the constraints of layers up to it are not in force.
        signed: Whether values may be below 0. Others are refused, since a share of a negative loss lies above it.
        memory: The decay by primal step of the moving average of the values that is the reference, in [0, 1); 0 for the
            last values.
        normalized: Whether the values' weights in the primal step are scaled to the objective's sum. The size of the
            gradient then does not change with the multipliers, which matters for Adam's second moments.
    """

    name: str = "own"
    first: int = 0
    signed: bool = False
    memory: float = 0.0
    normalized: bool = False

    @abstractmethod
    def violations(self, values: Tensor) -> Tensor:
        """g(v), (K,): positive where a constraint is violated. The primal step differentiates it by autograd."""

    def violations_at(self, values: Tensor, reference: Tensor) -> Tensor:
        """As `violations`, with coefficients from a reference, a running mean in training. The default has none."""
        return self.violations(values)

    def in_force(self, size: int) -> Tensor:
        """Which of the violations of ``size`` values are constraints, (K,), bool; by default all."""
        violations = self.violations(torch.ones(size, dtype=torch.float64, device="cpu"))
        return torch.ones_like(violations, dtype=torch.bool)

    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """The gradient of Σ_k λ_k g_k in the values, (V,), at the reference."""
        with torch.enable_grad():
            at = reference.detach().to(multipliers).requires_grad_()
            return torch.autograd.grad(multipliers.detach() @ self.violations(at), at)[0]

    def units(self, reference: Tensor) -> Tensor:
        """The unit in which the dual step measures each violation, (K,) or a scalar; by default 1."""
        return torch.ones_like(reference[0])

    def pieces(self, values: Tensor) -> list[Tensor]:
        """Smooth functions of the values, each (K,): the violation is max(pieces[0], min(pieces[1:])).

        Verdicts alone use them: where two bounds tie, the violation has a kink, and one slope does not tell how it
        varies. They are differentiated in the values of both sides, whatever the primal step does.
        """
        return [self.violations(values)]

    def bounds(self, values: Tensor) -> Tensor:
        """The right-hand side of each constraint, (K,), where K = V; by default v − g."""
        return values - self.violations(values)

    def penalties(self, values: Tensor) -> Tensor:
        """The contribution of each violation to the merit, (K,), in units of the values; by default [g]₊."""
        return self.violations(values).clamp(min=0.0)

    def ratios(self, size: int) -> list[float | None]:
        """The largest allowed ratio f_l / f_{l−1} of ``size`` losses; None where the bound is no share of f_{l−1}."""
        return [None] * size

    def check(self, values: Tensor) -> None:
        """Raise an `InputError` for values that this target can't bound; by default for any below 0."""
        if not self.signed:
            refuse_negative(values)


class AtMostZero(Target):
    """Constraint values themselves: after the first value, which is the objective, each must be at most 0."""

    signed = True

    def violations(self, values: Tensor) -> Tensor:
        """v_1 … v_K."""
        return values[1:]


class StepTarget(Target):
    """The paper's target, eq. (4): f_l ≤ (1−α_l) f_{l−1}, and f_cap_layer ≤ cap. Without α nothing is in force.

    Args:
        depth: L, the number of layers.
        alpha: α in (0, 1), one for all layers or one per layer (L numbers); None for ERM.
        cap: The bound on the loss of exit ``cap_layer``; None for none. It is ignored without α.
        first: The exit where the chain starts; the constraints of layers up to it are not in force.
        form: ``"difference"``, the paper's, or ``"ratio"``: f_l / f_{l−1} ≤ 1−α_l.
        stop_gradient: Treat the right-hand side as a constant in the primal step.
        cap_layer: The exit that the cap bounds; by default ``first``.

    Raises:
        InputError: If an argument is outside its range.
    """

    name = "step"

    def __init__(
        self,
        depth: int,
        alpha: Steps | None = None,
        cap: float | None = None,
        *,
        first: int = 0,
        form: Form = "difference",
        stop_gradient: bool = True,
        cap_layer: int | None = None,
    ):
        refuse(
            (form not in ("difference", "ratio"), f"form must be 'difference' or 'ratio'; got {form!r}."),
            (
                cap is not None and not 0 < cap < float("inf"),
                f"cap must be a positive bound on the first loss, or None for none; got {cap}.",
            ),
            (
                cap_layer is not None and not 0 <= cap_layer <= depth,
                f"cap_layer must be from 0 to depth = {depth}; got {cap_layer}.",
            ),
        )
        self.alpha = None if alpha is None else step_sizes(alpha, depth)
        self.cap = cap if self.alpha else None
        self.cap_layer = first if cap_layer is None else cap_layer
        self.first = first
        self.form = form
        self.stop_gradient = stop_gradient
        rates = [0.0, *(self.alpha or [0.0] * depth)]
        self.rates = 1 - torch.tensor(rates, dtype=torch.float64, device="cpu")  # 1 − α is computed only here
        self._in_force = (torch.arange(depth + 1, device="cpu") > first) & (self.alpha is not None)
        self._in_force[0] = self.cap is not None

    def in_force(self, size: int) -> Tensor:
        """Layers after ``first`` if there is an α, and the cap."""
        return self._in_force.clone()

    def violations(self, values: Tensor) -> Tensor:
        """f_l − (1−α_l) f_{l−1}, or f_l / f_{l−1} − (1−α_l); f_cap_layer − cap at entry 0."""
        return self._above(values, values.detach() if self.stop_gradient else values, self.form)

    def pieces(self, values: Tensor) -> list[Tensor]:
        """The violations, differentiated through both sides."""
        return [self._above(values, values, self.form)]

    def bounds(self, values: Tensor) -> Tensor:
        """(1−α_l) f_{l−1}, or 1−α_l in the ratio form; the cap at entry 0."""
        rates = self.rates.to(values)
        bounds = rates * before(values) if self.form == "difference" else rates
        return torch.cat([values.new_tensor([self.cap or 0.0]), bounds[1:]])

    def penalties(self, values: Tensor) -> Tensor:
        """[f_l − (1−α_l) f_{l−1}]₊ in both forms, and [f_cap_layer − cap]₊."""
        return self._above(values, values, "difference").clamp(min=0.0)

    def ratios(self, size: int) -> list[float | None]:
        """1−α_l after ``first``."""
        known = self.alpha is not None
        return [rate if known and layer > self.first else None for layer, rate in enumerate(self.rates.tolist())]

    def check(self, values: Tensor) -> None:
        """Raise an `InputError` for a loss of 0 or less in a denominator: dividing by it tells nothing of descent."""
        if self.form == "ratio" and bool((values[self.first : -1] <= 0).any()):
            raise InputError(f"the ratio form needs positive losses; got {values.tolist()}. Use form='difference'.")

    def _above(self, losses: Tensor, right: Tensor, form: Form) -> Tensor:
        """The violations, where the losses on the right-hand side are ``right``."""
        in_force = self._in_force.to(losses.device)
        rates = self.rates.to(losses)
        divisors = before(right)
        if form == "ratio":
            divisors = divisors.where(in_force, 1.0)  # a loss of 0 elsewhere would make the gradient 0·∞ = NaN
            above = losses / divisors - rates
        else:
            above = losses - rates * divisors
        of_cap = losses[self.cap_layer, None] - (self.cap or 0.0)
        return torch.cat([of_cap, above[1:]]).where(in_force, 0.0)


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

    name = "geometric"
    memory = 0.95
    normalized = True

    def __init__(self, strength: float = 0.2, first: int = 0, margin: float = 0.03):
        refuse(
            (not 0 <= strength <= 1, f"strength must lie in [0, 1]; got {strength}."),
            (not 0 < margin <= 0.5, f"margin must lie in (0, 0.5]; got {margin}."),
        )
        self.strength = float(strength)
        self.first = first
        self.margin = margin

    def in_force(self, size: int) -> Tensor:
        """The layers after ``first``."""
        return torch.arange(size, device="cpu") > self.first

    def violations(self, values: Tensor) -> Tensor:
        """f_l − min(step_l, line_l); 0 where no constraint is in force."""
        return self.violations_at(values, values.detach())

    def violations_at(self, values: Tensor, reference: Tensor) -> Tensor:
        """As `violations`, with r, b and the choice of the bound from the reference."""
        return values - self._lower(values, values.detach(), reference)

    def bounds(self, values: Tensor) -> Tensor:
        """min(step_l, line_l); the loss itself where no constraint is in force."""
        return self._lower(values, values, values)

    def pieces(self, values: Tensor) -> list[Tensor]:
        """f_l less step_l, and less each of the two lines."""
        unbounded = values[: self.first + 1]
        floor = self._floor(values)
        distances = self._distances(values, values, values)
        return [values - torch.cat([unbounded, floor + distance]) for distance in distances]

    def units(self, reference: Tensor) -> Tensor:
        """f_{l−1}, so that violations are relative."""
        return _positive(before(reference))

    def slopes(self, multipliers: Tensor, reference: Tensor) -> Tensor:
        """λ_l f_L / f_{l−1}, less (1−b) λ_{l+1} f_L / f_l where the next bound is its step, but at least 0."""
        at = reference.to(multipliers)
        return super().slopes(multipliers * at[-1] / self.units(at), at).clamp(min=0.0)

    def penalties(self, values: Tensor) -> Tensor:
        """f_L [f_l − bound_l]₊ / f_{l−1}."""
        return values[-1] * self.violations(values).clamp(min=0.0) / self.units(values)

    def _lower(self, losses: Tensor, ends: Tensor, reference: Tensor) -> Tensor:
        """The bounds, (L+1,): of `_distances` those that are chosen at the reference, above the floor."""
        step, from_first, from_last = self._distances(reference, reference, reference)
        line = torch.where(from_first >= (1 - ROUNDING) * from_last, 1, 2)  # at s = 1 they are equal at layer L
        chosen = torch.where(step <= torch.where(line == 1, from_first, from_last), 0, line)
        distances = self._distances(losses, ends, reference).gather(0, chosen[None])[0]
        return torch.cat([losses[: self.first + 1], self._floor(ends) + distances])

    def _floor(self, losses: Tensor) -> Tensor:
        """f*, a scalar."""
        return (1 - self.margin) * losses[-1]

    def _distances(self, losses: Tensor, ends: Tensor, reference: Tensor) -> Tensor:
        """How far step_l and the lines from exit F and from layer L are above f*, for l = F+1 … L, (3, L−F).

        Args:
            losses: f_{l−1} of the steps.
            ends: f_F and f_L of the lines and of the floor.
            reference: The losses from which r and b are taken.
        """
        count = len(losses) - 1 - self.first
        reach = torch.maximum(reference[self.first] - self._floor(reference), 2 * self.margin * reference[-1])
        r = (self.margin * reference[-1] / _positive(reach)).clamp(min=0.0)  # rounding may take a loss below 0
        b = self.strength / 2 * (1 - r ** (1 / count))
        layers = torch.arange(1, count + 1, dtype=losses.dtype, device=losses.device)
        floor = self._floor(ends)
        step = (1 - b) * (losses[self.first : -1] - floor)
        from_first = r ** (self.strength * layers / count) * (ends[self.first] - floor)
        from_last = (1 - b) ** (layers - count) * (ends[-1] - floor)
        return torch.stack([step, from_first, from_last])


class NoWorse(Target):
    r"""No layer after layer K may have a higher loss than layer K, for networks that may run on past it.

    .. math:: f_l \le f_K, \quad l = K+1 \dots L

    The primal step lowers the later losses and takes no gradient through f_K on the right-hand side, which would reward
    a higher f_K. With ``alpha`` the layers up to K must descend too, :math:`f_l \le (1-\alpha)\, f_{l-1}`, again
    without a gradient through the right-hand side. The dual step measures violations relative to f_K, or to f_{l−1} up
    to K. This target is not in the paper.

    Args:
        after: K ≥ 1, the layer whose loss is the objective of training.
        alpha: α in (0, 1) of the layers up to K, one for all or one per layer; None for no constraint on them.
        first: With α, the exit where the chain up to K starts.

    Raises:
        InputError: If an argument is outside its range.
    """

    name = "no_worse"

    def __init__(self, after: int, alpha: Steps | None = None, first: int = 0):
        refuse(
            (
                isinstance(after, bool) or not isinstance(after, int) or after < 1,
                f"after must be the layer K that later ones are compared with, at least 1; got {after!r}.",
            ),
            (alpha is not None and not 0 <= first < after, f"first must be from 0 to after - 1; got {first}."),
        )
        self.after = after
        self.first = after if alpha is None else first
        self._up_to = StepTarget(after, alpha, first=first)

    def in_force(self, size: int) -> Tensor:
        """The layers after K; with α all after ``first``."""
        return torch.arange(size, device="cpu") > self.first

    def violations(self, values: Tensor) -> Tensor:
        """f_l − f_K after K; up to K f_l − (1−α) f_{l−1} with α, else 0."""
        return values - self.bounds(values).detach()

    def pieces(self, values: Tensor) -> list[Tensor]:
        """The violations, differentiated through both sides."""
        return [values - self.bounds(values)]

    def bounds(self, values: Tensor) -> Tensor:
        """f_K after K; up to K (1−α) f_{l−1} with α, else f_l itself."""
        chain = values[: self.after + 1]
        chain = torch.where(self._up_to.in_force(len(chain)).to(chain.device), self._up_to.bounds(chain), chain)
        return torch.cat([chain, values[self.after].expand(len(values) - len(chain))])

    def units(self, reference: Tensor) -> Tensor:
        """f_K after K, f_{l−1} up to it, so that violations are relative."""
        layers = torch.arange(len(reference), device=reference.device)
        return _positive(torch.where(layers > self.after, reference[self.after], before(reference)))

    def ratios(self, size: int) -> list[float | None]:
        """1−α for the layers up to K, with α."""
        return self._up_to.ratios(self.after + 1) + [None] * (size - self.after - 1)


class NearLast(Target):
    r"""Every inner layer's loss must be within the share τ of the last one's, so that each could be the last.

    .. math:: f_l \le (1+\tau)\, f_L, \quad l = F+1 \dots L-1

    The primal step lowers inner losses and takes no gradient through f_L on the right-hand side, which would reward a
    higher f_L: the last layer is not to be harmed. The dual step measures violations relative to f_L. This target is
    not in the paper.

    Args:
        tau: τ ≥ 0.
        first: F, the layer after which constraints begin.

    Raises:
        InputError: If an argument is outside its range.
    """

    name = "near_last"
    memory = 0.95
    normalized = True

    def __init__(self, tau: float, first: int = 0):
        refuse(
            (
                isinstance(tau, bool) or not isinstance(tau, int | float) or not 0 <= tau < float("inf"),
                f"tau must be the share by which a loss may be above the last one, at least 0; got {tau!r}.",
            ),
            (first < 0, f"first must be at least 0; got {first}."),
        )
        self.tau = float(tau)
        self.first = first

    def in_force(self, size: int) -> Tensor:
        """The layers after ``first`` but for the last."""
        layers = torch.arange(size, device="cpu")
        return (layers > self.first) & (layers < size - 1)

    def violations(self, values: Tensor) -> Tensor:
        """f_l − (1+τ) f_L; 0 where no constraint is in force."""
        return values - self.bounds(values.detach())

    def pieces(self, values: Tensor) -> list[Tensor]:
        """The violations, differentiated through both sides."""
        return [values - self.bounds(values)]

    def bounds(self, values: Tensor) -> Tensor:
        """(1+τ) f_L; the loss itself where no constraint is in force."""
        return torch.where(self.in_force(len(values)).to(values.device), (1 + self.tau) * values[-1], values)

    def units(self, reference: Tensor) -> Tensor:
        """f_L, so that violations are relative."""
        return _positive(reference[-1])


def before(losses: Tensor) -> Tensor:
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
        "that keeps it above 0; a target of your own whose values may be negative sets signed = True."
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
    outside = dict.fromkeys(value for value in values if not 0 < value < 1)
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
