"""Algorithm 1: the dual side of primal-dual training, around any training loop."""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, distributed

from descend.core.multipliers import LEARNING_RATE, LEARNING_RATES, Multipliers
from descend.core.problem import DescentProblem
from descend.core.slack import ExplicitSlack, ImplicitSlack
from descend.errors import InputError, NonFiniteLossError, RanksDifferError


class PrimalDual:
    """The multipliers of a `DescentProblem` and when they move.

    It calls neither backward nor zero_grad, so that accumulation, clipping, mixed precision and any trainer
    fit around it. One training step is::

        dual.lagrangian(losses).backward()
        optimizer.step(); optimizer.zero_grad()
        dual.observe(losses.detach()); dual.step()

    With accumulation call `observe` once per micro-batch, with its sums and its count, and `step` once per optimizer
    step. In a process group the observed sums and counts are added over the ranks, so every rank holds the same
    multipliers; each dual step checks that, at the cost of two more numbers. Where a gradient scaler skips the primal
    step, call `skip` in place of `step`.

    Everything that a PrimalDual holds is on the CPU in double precision, whatever torch's defaults are.

    Args:
        problem: The constrained problem.
        lr: η_λ, the dual learning rate; 0.03 unless given, or 500 per run for ``"price"``.
        optimizer: ``"sgd"``, ``"adam"`` (the paper's), ``"nupi"`` or ``"price"`` (`PriceAscent`).
        resilience: ρ, the price of slack; 0 for hard constraints.
        slack: ``"implicit"``, eq. (38), or ``"explicit"``, eq. (36).
        slack_lr: Learning rate of explicit slack; ``resilience * lr`` unless given, so that u keeps pace with
            its optimum ρλ, or 0.03 ``resilience`` for the price rule. With SGD a rate above 2ρ diverges.
        slack_optimizer: Its optimizer; ``optimizer`` unless given, but ``"sgd"`` for νPI and the price rule, which
            are for multipliers.
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
        # What a saved state must agree with: one optimizer's state means nothing to another.
        self._kind = f"optimizer={optimizer!r}, slack={slack!r}"
        if slack == "explicit":
            name = slack_optimizer or ("sgd" if optimizer in ("nupi", "price") else optimizer)
            pace = LEARNING_RATE if optimizer == "price" else lr  # a price's rate is that of a whole run
            rate = resilience * pace if slack_lr is None else slack_lr
            self._slack: ImplicitSlack = ExplicitSlack(resilience, problem.in_force, name, rate)
            self._kind += f", slack_optimizer={name!r}"
        else:
            self._slack = ImplicitSlack(resilience)
        # Where the problem takes its coefficients: the last losses seen or their running mean; ones before any.
        self._reference = torch.ones(problem.depth + 1, dtype=torch.float64, device="cpu")
        self._referred = False
        # Σ losses and, last, Σ count on this rank since the last dual step.
        self._totals = torch.zeros(problem.depth + 2, dtype=torch.float64, device="cpu")
        # The same of the current primal step.
        self._pending = torch.zeros_like(self._totals)
        self._observed = False
        self._device = torch.device("cpu")

    @property
    def multipliers(self) -> Tensor:
        """λ ≥ 0, shape (L+1,): entry 0 is the cap's, entry l layer l's; 0 where a constraint is not in force."""
        return self._multipliers.values.clone()

    @property
    def slack(self) -> Tensor:
        """u, shape (L+1,), aligned with `multipliers`, in units of the violations."""
        return self._slack.values(self._multipliers.values).clone()

    def plan(self, steps: int) -> None:
        """Set the length of the run, in primal steps; with ``every="epoch"`` in epochs.

        Raises:
            InputError: If it is not a whole number of at least 0.
        """
        if not (_whole(steps) and steps >= 0):
            raise InputError(f"the length of the run must be a number of steps; got {steps}.")
        self._multipliers.set_horizon(steps if self.every == "epoch" else -(-steps // self.every))

    @property
    def warm(self) -> bool:
        """Whether warm-up is over and the constraints take part."""
        return self.steps >= self.warmup

    @property
    def inner(self) -> bool:
        """Whether the next primal step has to know more than the last loss."""
        return self.problem.inner or (self.problem.constrained and self.warm)

    @property
    def weights(self) -> Tensor:
        """w_0 … w_L, shape (L+1,): the next primal step's weight of each loss, known before the forward pass.

        In the ratio form they are taken at the last losses seen, of a `GeometricTarget` at their running mean.
        """
        if not self.warm:
            return self.problem.objective.clone()
        return self.problem.weights(self._multipliers.values, self._reference)

    def lagrangian(self, losses: Tensor) -> Tensor:
        """L̂ at the current multipliers, eq. (5): a scalar to call ``backward`` on; in warm-up the objective alone.

        The slack's own terms, λᵀu and its cost, do not depend on the model and are left out.

        Args:
            losses: f_0 … f_L, shape (L+1,), of this batch.
        """
        if not self.warm:
            return self.problem.goal(losses)
        return self.problem.lagrangian(losses, self._multipliers.values, self._reference)

    def observe(self, sums: Tensor, count: Tensor | float = 1.0) -> None:
        """Add a batch's losses to those that the next dual step averages.

        The dual step is taken on Σ sums / Σ count, over micro-batches and ranks. Batches of unequal size thus weigh
        as their samples do. A batch's mean losses with the count 1 weigh as one sample: that is the same where all
        batches have one size.

        Args:
            sums: Detached losses summed over the batch's samples (or tokens), shape (L+1,).
            count: The number of samples (or tokens) in the sums; 0 for a batch without any.

        Raises:
            InputError: If the shape is another, the losses are not detached, the count is negative or not finite, or
                it is 0 and the sums are not.
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
            Whether the multipliers moved: not in warm-up, between dual steps, without a constraint, or where no batch
            since the last dual step had anything to count.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite, or a multiplier would be; the multipliers have not moved.
            RanksDifferError: If the ranks of a process group hold different multipliers or slack; none has moved.
            InputError: If nothing was observed, or the ratio form meets a loss that is not positive.
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
        moved, observed = self._ascend(), self._observed  # ascend first: it holds a collective, which all ranks enter
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
        """All that a resumed run needs to go on bit-equal."""
        # Copy here and in loading: torch's optimizers hand out their state and then change it in place.
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
        """Restore what `state_dict` gave.

        Raises:
            InputError: If the state is that of another depth, of other constraints, or of another optimizer or slack;
                nothing has changed then.
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
        """Take the dual step, on the mean losses over all ranks; False if no rank has observed any."""
        totals, self._totals = self._totals, torch.zeros_like(self._totals)
        if distributed.is_available() and distributed.is_initialized():
            shared = torch.cat([totals, self._fingerprint()]).to(self._device)  # NCCL adds on the GPU
            distributed.all_reduce(shared)
            totals, prints = shared.cpu().split([len(totals), 2])
            self._compare(*prints.tolist())
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

    def _fingerprint(self) -> Tensor:
        """A weighted sum s of λ and u, and s², shape (2,): ranks with other multipliers have another s."""
        values = self._multipliers.values
        state = torch.cat([values, self._slack.values(values)])
        # All entries are ≥ 0 and all weights differ, so that no two differences cancel by chance.
        total = state @ torch.linspace(1, 2, len(state), dtype=torch.float64, device="cpu")
        return torch.stack([total, total.square()])

    def _compare(self, total: float, squares: float) -> None:
        """Raise where ranks differ: R Σs² = (Σs)² only where each of R ranks has the same s.

        Both sums are over the ranks, so every rank comes to the same result. Rounding on unlike processors, some
        1e-15 of s, passes; a rank that is off by more than √R millionths of s does not.
        """
        ranks = distributed.get_world_size()
        if not ranks * squares - total**2 <= 1e-12 * total**2:
            values = [f"{value:.6g}" for value in self._multipliers.values.tolist()]
            raise RanksDifferError(
                f"expected the same multipliers on all {ranks} processes; they differ, and process "
                f"{distributed.get_rank()} holds {', '.join(values)} (the cap's first). Give every process the same "
                "settings, and go on from a checkpoint that all of them can read."
            )


def _whole(value: object) -> bool:
    """Whether a value is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)
