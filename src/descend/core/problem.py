"""The constrained problem of eq. (4) and its Lagrangian, eq. (5), as functions of a vector of values."""

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.core.targets import AtMostZero, Form, Steps, StepTarget, Target
from descend.errors import InputError, refuse


class Problem:
    r"""Minimise a weighted sum of V values subject to the K constraints of a `Target`.

    .. math::
        \min \sum_i c_i v_i \quad\text{s.t.}\quad g_k(v) \le 0

    Args:
        target: The constraints g.
        objective: c_1 … c_V ≥ 0, one weight per value, not all 0.

    Attributes:
        in_force: Which constraints exist, (K,), bool. Multipliers, slack and violations are aligned with it, and 0
            where it is false.
        constrained: Whether any constraint is in force.
        inner: Whether the objective weighs any value but the last.

    Raises:
        InputError: If the objective is no such list, or the target can't read so many values.
    """

    def __init__(self, target: Target, objective: Sequence[float]):
        self.target = target
        self.objective = torch.tensor([float(weight) for weight in objective], dtype=torch.float64, device="cpu")
        refuse(
            (
                not self.objective.any() or not (self.objective.isfinite() & (self.objective >= 0)).all(),
                f"objective must be weights of at least 0, one per value and not all 0; got {[*objective]}.",
            )
        )
        self.in_force = target.in_force(len(self.objective))
        if (shape := tuple(self.in_force.shape)) != (self.in_force.numel(),):
            raise InputError(f"violations must return one vector, a number per constraint; got the shape {shape}.")
        self.constrained = bool(self.in_force.any())
        self.inner = bool(self.objective[:-1].any())

    @classmethod
    def at_most_zero(cls, constraints: int) -> "Problem":
        """Minimise v_0 subject to v_k ≤ 0, for the values (objective, K constraint values)."""
        return cls(AtMostZero(), [1.0, *[0.0] * constraints])

    def goal(self, losses: Tensor) -> Tensor:
        """The objective Σ_i c_i v_i, a scalar."""
        self.check_shape(losses)
        return _weighted(self.objective, losses)

    def violations(self, losses: Tensor, reference: Tensor | None = None) -> Tensor:
        """The violation of each constraint, (K,): positive if violated, 0 if not in force.

        Args:
            losses: The values, such as f_0 … f_L.
            reference: The values from which the target computes its coefficients; by default ``losses``.

        Raises:
            InputError: If ``losses`` has another shape, or the target can't bound such values, see `Target.check`.
                Training and verdicts refuse negative losses in any form.
        """
        self.check_shape(losses)
        if self.constrained:
            self.target.check(losses)
        return self.target.violations_at(losses, losses if reference is None else reference.to(losses))

    def lagrangian(self, losses: Tensor, multipliers: Tensor, reference: Tensor | None = None) -> Tensor:
        """L̂ = Σ_l c_l f_l + Σ_l λ_l (f_l − (1−α_l) f_{l−1}) + λ_0 (f_cap − cap), eq. (5), a scalar.

        Args:
            losses: The values.
            multipliers: λ, (K,).
            reference: The values from which the target computes its coefficients; by default the detached losses. For
                a normalized target the result is Σ_i w_i v_i, with `weights` at the reference.
        """
        self.check_shape(losses)
        self.check_shape(multipliers, "multipliers")
        at = losses.detach() if reference is None else reference.to(losses)
        if self.target.normalized:
            return _weighted(self.weights(multipliers, at), losses)
        # The values of a violation are not looked at here, which would wait for a GPU.
        return _weighted(self.objective, losses) + multipliers.to(losses) @ self.target.violations_at(losses, at)

    def weights(self, multipliers: Tensor, losses: Tensor) -> Tensor:
        """The weight of each value in the primal step, (V,): the gradient of the Lagrangian in the values.

        With α in the difference form w_l = c_l + λ_l, and λ_0 is added at the capped exit. Without ``stop_gradient``
        (1−α_{l+1}) λ_{l+1} is subtracted, and w may be negative.

        Args:
            multipliers: λ, (K,).
            losses: The values where the gradient is taken.
        """
        self.check_shape(multipliers, "multipliers")
        self.check_shape(losses)
        weights = self.objective.to(multipliers) + self.target.slopes(multipliers, losses)
        return weights / weights.sum() * self.objective.sum() if self.target.normalized else weights

    def check_shape(self, values: Tensor, name: str = "losses") -> None:
        """Raise an error unless ``values`` are one vector of the right length: that of the multipliers, or V."""
        expected = self.in_force if name == "multipliers" else self.objective
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if got != tuple(expected.shape):
            raise InputError(
                f"{name} must be one tensor of shape ({len(expected)},); of layers it has L+1 entries, one per layer "
                f"and one for the embedding or the cap; got {got}. Make one of a list by torch.stack, which keeps "
                "gradients."
            )


class DescentProblem(Problem):
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
            (
                target is not None and of_alpha,
                "a target sets the bounds: leave out alpha and cap, and form='ratio'.",
            ),
            (
                target is not None and first != usual,
                f"first must be {usual}, that of the target; got {first}. Leave it out.",
            ),
            (
                objective is not None and len(objective) != depth + 1,
                f"objective must be L+1 = {depth + 1} weights, one per layer output; got {objective}.",
            ),
        )
        if isinstance(target, StepTarget):
            steps = target
        else:
            steps = StepTarget(
                depth, alpha, cap, first=first, form=form, stop_gradient=stop_gradient, cap_layer=cap_layer
            )
        if objective is None:
            objective = [0.0] * depth + [1.0]
        super().__init__(target or steps, objective)
        if len(self.in_force) != depth + 1:
            raise InputError(
                f"violations of a model's layers must be L+1 = {depth + 1} numbers, entry 0 that of a cap or 0; got "
                f"{len(self.in_force)}. For other constraints give a Problem to PrimalDual."
            )
        self.depth = depth
        self.first = first
        self.alpha = steps.alpha
        self.form = steps.form
        self.stop_gradient = steps.stop_gradient
        self.cap = steps.cap
        self.cap_layer = steps.cap_layer

    def pieces(self, losses: Tensor) -> Tensor:
        """The smooth functions that `join` makes the violations of, (K, L+1), see `Target.pieces`."""
        return torch.stack(self.target.pieces(losses))

    @staticmethod
    def join(pieces: Tensor) -> Tensor:
        """The violations (L+1,) from their `pieces` (K, L+1); does not fall where a piece rises."""
        if len(pieces) == 1:
            return pieces[0]
        return torch.maximum(pieces[0], pieces[1:].amin(0))

    def bounds(self, losses: Tensor) -> Tensor:
        """The right-hand side of each constraint, (L+1,), see `Target.bounds`; 0 if not in force."""
        self.check_shape(losses)
        return self.target.bounds(losses).where(self.in_force.to(losses.device), 0.0)

    def merit(self, losses: Tensor) -> Tensor:
        r"""The exact penalty function that ranks models of the same problem, a scalar; lower is better.

        .. math:: \sum_l c_l f_l + \sum_l [f_l - (1-\alpha_l) f_{l-1}]_+ + [f_{\text{cap}} - \text{cap}]_+

        The first sum is the objective, by default f_L; the other terms are `Target.penalties`. Selecting a constrained
        model by the objective alone would prefer one from early in training, before the constraints took effect.
        """
        self.check_shape(losses)
        return self.goal(losses) + self.target.penalties(losses).sum()

    @property
    def limits(self) -> list[float | None]:
        """1−α_l, the largest allowed ratio f_l / f_{l−1}, at entry l; None if there is no such constraint."""
        return self.target.ratios(self.depth + 1)


def _weighted(weights: Tensor, losses: Tensor) -> Tensor:
    """Σ_i w_i v_i without values of weight 0, because 0 times a loss that is NaN or infinite would be NaN."""
    nonzero = weights.nonzero().flatten().tolist()
    return torch.dot(weights[nonzero].to(losses), losses[nonzero])
