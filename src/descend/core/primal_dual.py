"""Algorithm 1: the dual side of primal-dual training, around any training loop."""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, distributed

from descend.core.agreement import fingerprint, refuse_differing
from descend.core.multipliers import LEARNING_RATE, LEARNING_RATES, Multipliers
from descend.core.problem import DescentProblem
from descend.core.slack import ExplicitSlack, ImplicitSlack
from descend.errors import InputError, NonFiniteLossError


class PrimalDual:
    """The multipliers of a `DescentProblem` and when they move.

    It calls neither backward nor zero_grad, so that accumulation, clipping, mixed precision and any trainer
    fit around it. One training step is::

        dual.lagrangian(losses).backward()
        optimizer.step(); optimizer.zero_grad()
        dual.observe(losses.detach()); dual.step()

    With accumulation call `observe` once per micro-batch, with its sums and its count, and `step` once per optimizer
    step. In a process group the observed sums and counts are added over the ranks, so every rank holds the same
    multipliers; each dual step checks that, at the cost of two more numbers. If a gradient scaler skips the primal
    step, call `skip` instead of `step`.

    All tensors of a PrimalDual are on the CPU in double precision, whatever torch's defaults are.

    Args:
        problem: The constrained problem.
        lr: η_λ, the dual learning rate; by default 0.03, or 500 per run for ``"price"``.
        optimizer: ``"sgd"``, ``"adam"`` (the paper's), ``"nupi"`` or ``"price"`` (`PriceAscent`; use it with
            a `GeometricTarget`).
        resilience: ρ, the price of slack; 0 for hard constraints.
        slack: ``"implicit"``, eq. (38), or ``"explicit"``, eq. (36).
        slack_lr: Learning rate of explicit slack; by default ``resilience * lr``, so that u follows its optimum ρλ, or
            0.03 ``resilience`` for the price rule. With SGD a rate above 2ρ diverges.
        slack_optimizer: Optimizer of explicit slack; by default ``optimizer``, or ``"sgd"`` for νPI and the price
            rule, which apply to multipliers only.
        warmup: Steps on the objective alone before the multipliers begin to move (the paper: one epoch of ERM).
        every: The dual schedule: a dual step after every k primal steps, on the mean losses since the last one, or
            ``"epoch"`` for one at each `end_epoch`.
        options: Further arguments of the dual optimizer, such as ``{"kp": 5.0}`` of νPI.
        horizon: The number of primal steps of the run, which the step of ``"price"`` is relative to; see `plan`.

    Raises:
        InputError: If an argument is outside its range.
    """

    def __init__(
        self,
        problem: DescentProblem,
        lr: float | None = None,
        optimizer: str = "adam",
        resilience: float = 0.0,
        *,
        slack: Literal["implicit", "explicit"] = "implicit",
        slack_lr: float | None = None,
        slack_optimizer: str | None = None,
        warmup: int = 0,
        every: int | Literal["epoch"] = 1,
        options: Mapping[str, Any] | None = None,
        horizon: int | None = None,
    ):
        if every != "epoch" and not (_whole(every) and every >= 1):
            raise InputError(f"every must be a number of steps, at least 1, or 'epoch'; got {every!r}.")
        if not (_whole(warmup) and warmup >= 0):
            raise InputError(f"warmup must be a number of steps, 0 for none; got {warmup}.")
        if slack not in ("implicit", "explicit"):
            raise InputError(f"slack must be 'implicit' or 'explicit'; got {slack!r}.")
        self.problem = problem
        self.warmup = warmup
        self.every = every
        self.steps = 0
        lr = LEARNING_RATES.get(optimizer, LEARNING_RATE) if lr is None else lr
        self._multipliers = Multipliers(problem.in_force, optimizer, lr, options)
        if horizon is not None:
            self.plan(horizon)
        # Stored in a saved state and compared on loading: an optimizer can't use the state of another kind.
        self._kind = f"optimizer={optimizer!r}, slack={slack!r}"
        if slack == "explicit":
            name = slack_optimizer or ("sgd" if optimizer in ("nupi", "price") else optimizer)
            pace = LEARNING_RATE if optimizer == "price" else lr  # a price's rate is that of a whole run
            rate = resilience * pace if slack_lr is None else slack_lr
            self._slack: ImplicitSlack = ExplicitSlack(resilience, problem.in_force, name, rate)
            self._kind += f", slack_optimizer={name!r}"
        else:
            self._slack = ImplicitSlack(resilience)
        # The reference at which a target takes its coefficients; ones before the first losses.
        self._reference = torch.ones(problem.depth + 1, dtype=torch.float64, device="cpu")
        self._referred = False
        # Σ losses (L+1 entries) and Σ count (the last entry) on this rank since the last dual step.
        self._totals = torch.zeros(problem.depth + 2, dtype=torch.float64, device="cpu")
        # The same for the current primal step.
        self._pending = torch.zeros_like(self._totals)
        self._observed = False
        self._device = torch.device("cpu")

    @property
    def multipliers(self) -> Tensor:
        """λ ≥ 0, shape (L+1,). Entry 0 is the cap's, entry l layer l's; 0 where a constraint is not in force."""
        return self._multipliers.values.clone()

    @property
    def slack(self) -> Tensor:
        """u, shape (L+1,), aligned with `multipliers`, in units of the violations."""
        return self._slack.values(self._multipliers.values).clone()

    def plan(self, steps: int) -> None:
        """Set the length of the run, in primal steps; with ``every="epoch"`` in epochs.

        Raises:
            InputError: If ``steps`` is not a whole number of at least 0.
        """
        if not (_whole(steps) and steps >= 0):
            raise InputError(f"the length of the run must be a number of steps; got {steps}.")
        self._multipliers.set_horizon(steps if self.every == "epoch" else -(-steps // self.every))

    @property
    def warm(self) -> bool:
        """Whether warm-up is over and the constraints take part."""
        return self.steps >= self.warmup

    @property
    def moved(self) -> bool:
        """Whether a dual step was taken, in this run or in the one that it resumes; until then λ is where it starts."""
        return self._referred

    @property
    def inner(self) -> bool:
        """Whether the next primal step needs the losses of inner layers."""
        return self.problem.inner or (self.problem.constrained and self.warm)

    @property
    def weights(self) -> Tensor:
        """w_0 … w_L, shape (L+1,), the next primal step's weight of each loss, known before the forward pass.

        The ratio form is linearized at the last losses, and a `GeometricTarget` at their running mean.
        """
        if not self.warm:
            return self.problem.objective.clone()
        return self.problem.weights(self._multipliers.values, self._reference)

    def lagrangian(self, losses: Tensor) -> Tensor:
        """L̂ at the current multipliers, eq. (5), a scalar for ``backward``; during warm-up the objective only.

        The slack's own terms, λᵀu and its cost, do not depend on the model and are left out.

        Args:
            losses: f_0 … f_L, shape (L+1,), of this batch.
        """
        if not self.warm:
            return self.problem.goal(losses)
        return self.problem.lagrangian(losses, self._multipliers.values, self._reference)

    def observe(self, sums: Tensor, count: Tensor | float = 1.0) -> None:
        """Add a batch's losses to those that the next dual step averages.

        The dual step uses Σ sums / Σ count over micro-batches and ranks, so every sample has the same weight. You can
        pass mean losses with the count 1 if all batches have the same size.

        Args:
            sums: Detached losses summed over the batch's samples (or tokens), shape (L+1,).
            count: The number of samples (or tokens) in the sums; 0 for a batch without any.

        Raises:
            InputError: If the shape is wrong, the losses are not detached, the count is negative or not finite, or the
                count is 0 and the sums are not.
        """
        self.problem._check(sums)
        if sums.requires_grad:
            raise InputError("observe takes detached losses: pass losses.detach().")
        number, on_host = float(count), sums.cpu().double()
        if not 0 <= number < math.inf:
            raise InputError(f"count must be the number of samples in the sums, at least 0; got {number}.")
        if number == 0 and bool(on_host.any()):
            raise InputError(f"a count of 0 needs sums of 0; got {on_host.tolist()}. Give the number of samples.")
        self._observed = True
        self._device = sums.device
        self._pending[:-1] += on_host
        self._pending[-1] += number

    def step(self) -> bool:
        """Count a primal step, and take the dual step if it is due.

        Returns:
            Whether the multipliers moved. They don't in warm-up, between dual steps, without constraints, or if all
            counts since the last dual step were 0.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite, or a multiplier would be; the multipliers have not moved.
            RanksDifferError: If the ranks of a process group hold different multipliers or slack; none has moved.
            InputError: If nothing was observed, or the target can't bound a loss: a negative one, except with α in the
                difference form, or in the ratio form one of 0.
        """
        warm = self.warm
        self.steps += 1
        self._totals += self._pending
        self._pending.zero_()
        if not warm:
            self._totals.zero_()
            return False
        if self.every == "epoch" or (self.steps - self.warmup) % self.every or not self.problem.constrained:
            return False
        moved, observed = (
            self._ascend(),
            self._observed,
        )  # ascend first: it has a collective, which all ranks must enter
        self._observed = False
        if not moved and not observed:
            raise InputError("no losses to step on: call observe(losses.detach()) before step().")
        return moved

    def skip(self) -> None:
        """Drop the losses observed since the last step, because the primal step was not taken."""
        self._pending.zero_()
        self._observed = False

    def end_epoch(self) -> None:
        """Take the dual step of an epoch's schedule, and restart explicit slack at 0."""
        self._totals += self._pending
        self._pending.zero_()
        if self.every == "epoch":
            self._ascend()
        self._slack.restart()

    def state_dict(self) -> dict[str, Any]:
        """The full state: a run that resumes from it is bit-identical."""
        # Copy here and in loading: torch's optimizers return references to their state and change it in place.
        return deepcopy(
            {
                "kind": self._kind,
                "multipliers": self._multipliers.state_dict(),
                "slack": self._slack.state_dict(),
                "steps": self.steps,
                "warmup": self.warmup,
                "totals": self._totals,
                "pending": self._pending,
                "reference": self._reference,
                "referred": self._referred,
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`.

        Raises:
            InputError: If the state has another depth, other constraints, or another optimizer or kind of slack.
                Nothing is changed then.
        """
        if state["kind"] != self._kind:
            raise InputError(
                f"the saved state is that of {state['kind']}; this run has {self._kind}. Resume with the "
                "settings of the run that saved it."
            )
        state = deepcopy(state)
        self._multipliers.load_state_dict(state["multipliers"])
        self._slack.load_state_dict(state["slack"])
        self.steps = state["steps"]
        self.warmup = state["warmup"]
        self._totals = state["totals"]
        self._pending = state["pending"]
        self._reference = state["reference"]
        self._referred = state["referred"]

    def _ascend(self) -> bool:
        """Take the dual step with the mean losses over all ranks; return False if no rank has observed any."""
        totals, self._totals = self._totals, torch.zeros_like(self._totals)
        if distributed.is_available() and distributed.is_initialized():
            held = self._multipliers.values
            check = fingerprint(held, self._slack.values(held))
            shared = torch.cat([totals, check]).to(self._device)  # NCCL adds on the GPU
            distributed.all_reduce(shared)
            totals, prints = shared.cpu().split([len(totals), 2])
            refuse_differing(prints, held)
        if not totals[-1] > 0:
            return False
        losses = totals[:-1] / totals[-1]
        if not losses.isfinite().all():
            layers = [int(layer) for layer in (~losses.isfinite()).nonzero()]
            raise NonFiniteLossError(f"the loss of layer {layers} is not finite: {losses.tolist()}.")
        memory = self.problem.memory if self._referred else 0.0
        reference = memory * self._reference + (1 - memory) * losses
        gap = self.problem.violations(losses, reference) / self.problem.units(reference)
        if not gap.isfinite().all():
            raise InputError(f"the ratio form needs positive losses; got {losses.tolist()}. Use form='difference'.")
        self._reference, self._referred = reference, True
        values = self._multipliers.values.clone()
        self._multipliers.ascend(gap - self._slack.values(values))
        moved = self._multipliers.values
        if not moved.isfinite().all():
            message = f"the multipliers would overflow: from {values.tolist()} (the cap's first) to {moved.tolist()}"
            moved.copy_(values)
            raise NonFiniteLossError(f"{message}. They have not moved. Lower the dual learning rate.")
        self._slack.descend(values)
        return True


def _whole(value: object) -> bool:
    """Whether a value is an int, but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
