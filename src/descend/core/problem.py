"""The constrained problem of eq. (4) and its Lagrangian, eq. (5), as functions of the layer losses."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from descend.core.targets import Form, Steps, StepTarget, Target, step_sizes
from descend.errors import InputError, refuse


class DescentProblem:
    r"""Minimise the last layer's loss subject to descent at every layer, eq. (4).

    .. math::
        \min_T \sum_l c_l f_l \quad\text{s.t.}\quad f_l \le (1-\alpha_l)\, f_{l-1},\ l = \text{first}+1 \dots L,
        \qquad f_{\text{first}} \le \text{cap}

    where :math:`f_0 \dots f_L` are expected losses, one per layer output, :math:`f_0` that of the embedded
    input. They should be positive: a share of a negative loss lies above it, so such a bound does not ask for descent.
    With a ``target`` the right-hand sides are its bounds instead. ERM, eq. (3), is the same problem with
    ``alpha=None``: no constraint is in force. So is deep supervision, with weights c for the inner layers too.

    Losses, weights, multipliers, slack, violations and bounds are vectors of shape (L+1,), all aligned: entry l belongs
    to layer l. Layer 0 has no descent constraint; entry 0 of multipliers, slack, violations and bounds is the cap's.

    Args:
        depth: L, the number of layers.
        alpha: The step α in (0, 1), one for all constraints or one per layer (L numbers); None for ERM.
        cap: The bound on the loss of exit ``cap_layer``; None for none. It keeps the constraints of α from being met
            by raising the first loss, and is ignored without them.
        first: The exit where the chain starts: 0 the embedded input, 1 the first block's output, and so on. By default
            0, or that of the target. Constraints up to ``first`` are not in force.
        form: ``"difference"``: f_l − (1−α_l) f_{l−1} ≤ 0, the paper's. ``"ratio"``: f_l / f_{l−1} − (1−α_l) ≤ 0, the
            same feasible set for positive losses, with violations that do not shrink with them.
        stop_gradient: Treat the right-hand side as a constant for the primal step. Then no weight is
            negative: no layer is rewarded for a higher loss. The paper differentiates through both sides (False).
        objective: c_0 … c_L ≥ 0; by default the last loss alone.
        target: Other bounds than those of α, such as `GeometricTarget`; leave out ``alpha`` then.
        cap_layer: The exit that the cap bounds; by default ``first``. The paper does not say which exit it is.

    Attributes:
        in_force: Which constraints exist, shape (L+1,), bool.

    Raises:
        InputError: If an argument is outside its range.
    """

    def __init__(
        self,
        depth: int,
        alpha: Steps | None = None,
        cap: float | None = None,
        *,
        first: int | None = None,
        form: Form = "difference",
        stop_gradient: bool = True,
        objective: Sequence[float] | None = None,
        target: Target | None = None,
        cap_layer: int | None = None,
    ):
        usual = 0 if target is None else target.first
        first = usual if first is None else first
        of_alpha = alpha is not None or cap is not None or form != "difference"
        refuse(
            (depth < 1, f"depth must be at least 1, the number of layers; got {depth}."),
            (not 0 <= first < depth, f"first (--first-layer) must be from 0 to depth - 1 = {depth - 1}; got {first}."),
            (form not in ("difference", "ratio"), f"form must be 'difference' or 'ratio'; got {form!r}."),
            (
                cap is not None and not 0 < cap < math.inf,
                f"cap must be a positive bound on the first loss, or None for none; got {cap}.",
            ),
            (
                target is not None and of_alpha,
                "a target sets the bounds: leave out alpha and cap, and form='ratio'.",
            ),
            (
                isinstance(target, StepTarget),
                "expected alpha for the bounds of a StepTarget; got the target. Give alpha and cap.",
            ),
            (
                target is not None and first != usual,
                f"first must be {usual}, that of the target; got {first}. Leave it out.",
            ),
            (
                cap_layer is not None and not 0 <= cap_layer <= depth,
                f"cap_layer must be from 0 to depth = {depth}; got {cap_layer}.",
            ),
        )
        self.depth = depth
        self.alpha = None if alpha is None else step_sizes(alpha, depth)
        self.cap = cap if self.alpha else None
        cap_layer = first if cap_layer is None else cap_layer
        if target is None:
            steps, form_of_steps = self.alpha or [0.0] * depth, form if self.alpha else "difference"
            target = StepTarget(steps, first, form_of_steps, stop_gradient, self.cap or 0.0, cap_layer)
        self.target = target
        self.first, self.form, self.stop_gradient, self.cap_layer = first, form, stop_gradient, cap_layer
        self.objective = _objective(objective, depth)
        self.in_force = torch.zeros(depth + 1, dtype=torch.bool, device="cpu")
        self.in_force[first + 1 :] = bool(self.alpha) or not isinstance(target, StepTarget)
        self.in_force[0] = self.cap is not None

    @property
    def constrained(self) -> bool:
        """Whether any constraint is in force."""
        return bool(self.in_force.any())

    @property
    def inner(self) -> bool:
        """Whether the objective weighs any loss but the last."""
        return bool(self.objective[:-1].any())

    def goal(self, losses: Tensor) -> Tensor:
        """The objective Σ_l c_l f_l, a scalar; by default f_L."""
        self._check(losses)
        return _weighted(self.objective, losses)

    def violations(self, losses: Tensor, reference: Tensor | None = None) -> Tensor:
        """The violation of each constraint, positive if violated, 0 if not in force.

        Args:
            losses: f_0 … f_L.
            reference: The losses from which the target computes its coefficients; by default ``losses``.

        Raises:
            InputError: If ``losses`` has another shape, or the target can't bound such a loss: α in the ratio form
                none of 0 or less, a target other than α none below 0. Training and verdicts refuse negative losses in
                any form.
        """
        self._check(losses)
        if self.constrained:
            self.target.refuse_negative(losses)
        return self._violations(losses, reference)

    def _violations(self, losses: Tensor, reference: Tensor | None) -> Tensor:
        """As `violations`, but without checking the values, which would synchronize with a GPU."""
        return self._if_in_force(self.target.violations(losses, losses if reference is None else reference.to(losses)))

    def _if_in_force(self, values: Tensor) -> Tensor:
        """0 where a constraint is not in force."""
        return torch.where(self.in_force.to(values.device), values, 0.0)

    def pieces(self, losses: Tensor) -> Tensor:
        """The smooth functions that `join` makes the violations of, (K, L+1), see `Target.pieces`."""
        return torch.stack([self._if_in_force(piece) for piece in self.target.pieces(losses)])

    @staticmethod
    def join(pieces: Tensor) -> Tensor:
        """The violations (L+1,) from their `pieces` (K, L+1); does not fall where a piece rises."""
        return pieces[0] if len(pieces) == 1 else torch.maximum(pieces[0], pieces[1:].amin(0))

    def bounds(self, losses: Tensor) -> Tensor:
        """The right-hand side of each constraint, see `Target.bounds`; 0 if not in force."""
        self._check(losses)
        return self._if_in_force(self.target.bounds(losses, losses))

    def merit(self, losses: Tensor) -> Tensor:
        r"""The exact penalty function that ranks models of the same problem, a scalar; lower is better.

        .. math:: f_L + \sum_l [f_l - (1-\alpha_l) f_{l-1}]_+ + [f_{\text{cap}} - \text{cap}]_+

        The terms of the sum are `Target.penalties`. Selecting a constrained model by the last loss alone would prefer
        one from early in training, before the constraints took effect.
        """
        self._check(losses)
        return losses[-1] + self._if_in_force(self.target.penalties(losses)).sum()

    @property
    def limits(self) -> list[float | None]:
        """1−α_l, the largest allowed ratio f_l / f_{l−1}, at entry l; None if there is no such constraint."""
        if not self.alpha or not isinstance(self.target, StepTarget):
            return [None] * (self.depth + 1)
        rates = enumerate(self.target.rates.tolist())
        return [rate if layer > self.first else None for layer, rate in rates]

    def lagrangian(self, losses: Tensor, multipliers: Tensor, reference: Tensor | None = None) -> Tensor:
        """L̂ = Σ_l c_l f_l + Σ_l λ_l (f_l − (1−α_l) f_{l−1}) + λ_0 (f_cap − cap), eq. (5), a scalar.

        Args:
            losses: f_0 … f_L.
            multipliers: λ; entry 0 is the cap's.
            reference: The losses from which the target computes its coefficients; by default the detached losses. For
                any target but α's the result is Σ_l w_l f_l, with `weights` at the reference.
        """
        self._check(losses)
        self._check(multipliers, "multipliers")
        if not isinstance(self.target, StepTarget):
            at = losses.detach() if reference is None else reference
            return _weighted(self.weights(multipliers, at), losses)
        return self.goal(losses) + torch.dot(multipliers.to(losses), self._violations(losses, reference))

    def weights(self, multipliers: Tensor, losses: Tensor | None = None) -> Tensor:
        """The weight of each layer's loss in the primal step: the gradient of the Lagrangian in the losses.

        With α in the difference form w_l = c_l + λ_l, and λ_0 is added at the capped exit. Without ``stop_gradient``
        (1−α_{l+1}) λ_{l+1} is subtracted, and w may be negative. See `Target.slopes`.

        Args:
            multipliers: λ; entry 0 is the cap's.
            losses: f_0 … f_L, where the gradient is taken. The difference form does not need them.

        Raises:
            InputError: If losses are needed and not given.
        """
        self._check(multipliers, "multipliers")
        weights = self.objective.to(multipliers, copy=True)
        if losses is None:
            if not isinstance(self.target, StepTarget) or self.target.form == "ratio":
                raise InputError(
                    "the ratio form is not linear, and another target's bounds depend on the losses: pass the losses "
                    "where to take the weights."
                )
            losses = torch.ones_like(multipliers)
        self._check(losses)
        weights += self.target.slopes(self._if_in_force(multipliers), losses)
        return weights / weights.sum() * self.objective.sum() if self.target.normalized else weights

    def _check(self, values: Tensor, name: str = "losses") -> None:
        """Raise an error unless ``values`` are one tensor with an entry for each layer output."""
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if got != (self.depth + 1,):
            raise InputError(
                f"{name} must be one tensor of shape (L+1,) = ({self.depth + 1},), one entry per layer output and one "
                f"for the embedding or the cap; got {got}. Make one of a list by torch.stack, which keeps gradients."
            )


def _weighted(weights: Tensor, losses: Tensor) -> Tensor:
    """Σ_l w_l f_l without losses of weight 0, because 0 times a loss that is NaN or infinite would be NaN."""
    nonzero = weights.nonzero().flatten().tolist()
    return torch.dot(weights[nonzero].to(losses), losses[nonzero])


def _objective(weights: Sequence[float] | None, depth: int) -> Tensor:
    """c_0 … c_L, in double precision on the CPU."""
    if weights is None:
        weights = [0.0] * depth + [1.0]
    objective = torch.tensor([float(weight) for weight in weights], dtype=torch.float64, device="cpu")
    if len(objective) != depth + 1 or not (objective.isfinite() & (objective >= 0)).all() or not objective.any():
        raise InputError(
            f"objective must be L+1 = {depth + 1} weights of at least 0, one per layer output and not all 0; got "
            f"{objective.tolist()}."
        )
    return objective
