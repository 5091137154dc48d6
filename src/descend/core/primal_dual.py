"""Algorithm 1: the dual side of primal-dual training, around any training loop."""

import math
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, distributed

from descend.core.losses import LossSums
from descend.core.problem import Problem
from descend.core.rules import LEARNING_RATES, rule
from descend.errors import InputError, NonFiniteLossError, RanksDifferError, refuse

SLACK_SHARE = 0.1
"""The share of its distance to ρλ that explicit slack goes in a step by default."""


P = TypeVar("P", bound=Problem)


class PrimalDual(Generic[P]):
    r"""The multipliers λ ≥ 0 of a `Problem`, the slack u of its constraints, and when they move.

    .. math::
        \lambda \leftarrow [\lambda + \mathrm{step}(g - u)]_+

    where g are the violations over their `Target.units`, with the step of SGD (η g: Algorithm 1 as written), Adam (the
    paper's runs; its step is about ±η whatever the violation's size), νPI, or `PriceAscent`. Slack (resilience, App.
    A.5; Hounie et al., 2023) relaxes constraint l to g_l ≤ u_l at the cost (1/(2ρ))‖u‖², so that the dual has a
    solution even where the constraints have none:

    .. math::
        \text{implicit (38): } u = \rho\lambda, \qquad
        \text{explicit (36): } u \leftarrow [u - \mathrm{step}(u/\rho - \lambda)]_+

    Implicit slack is an L2 term inside the dual gradient, not decoupled weight decay: with Adam the two differ.
    Explicit slack restarts at 0 after every epoch, as in the paper.

    It calls neither backward nor zero_grad, so that any trainer fits around it. `DescentTrainer` differentiates
    Σ w_l f_l with the `weights`, known before the forward pass. In a loop of your own one training step is::

        dual.lagrangian(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
        dual.step(losses.detach())

    With accumulation call `observe` once per micro-batch, and `step` without losses once per optimizer step, or `skip`
    if a gradient scaler skipped it. In a process group sums and counts are added over the ranks, so every rank holds
    the same multipliers; each dual step checks that. Losses are any V values, multipliers and slack K numbers, one per
    constraint, on the CPU in double precision. Of a `DescentProblem` both are L+1, and entry 0 is the cap's.

    Args:
        problem: The constrained problem, such as a `DescentProblem`.
        lr: η_λ, the dual learning rate; by default 0.03, or 500 per run for ``"price"``.
        optimizer: ``"sgd"``, ``"adam"`` (the paper's, whose λ cycles at 0.03), ``"nupi"`` or ``"price"`` (for a
            `GeometricTarget`).
        resilience: ρ: the larger, the cheaper is slack; 0 for hard constraints.
        slack: ``"implicit"``, eq. (38), or ``"explicit"``, eq. (36).
        slack_lr: Learning rate of explicit slack; by default 0.1 ρ, whatever ``lr`` is. The slack's own problem,
            min ‖u‖²/(2ρ) − λᵀu, has the curvature 1/ρ: a gradient step at the rate η leaves the share 1 − η/ρ of the
            distance to its optimum ρλ, so by default u is there in some dozens of steps. A rate above 2ρ diverges.
        slack_optimizer: Of explicit slack: ``"sgd"``, as in Hounie et al. (2023), ``"adam"``, whose step has no share
            of that distance, or ``"nupi"``.
        warmup: Steps on the objective alone before the multipliers begin to move (the paper: one epoch of ERM).
        every: A dual step after every k primal steps, on the mean losses since the last one, or ``"epoch"`` for one at
            each `end_epoch`.
        options: Further arguments of the dual optimizer, such as ``{"kp": 5.0}`` of νPI.
        horizon: The number of primal steps of the run, see `plan`.

    Raises:
        InputError: If an argument is outside its range.
    """

    def __init__(
        self,
        problem: P,
        lr: float | None = None,
        optimizer: str = "sgd",
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
        refuse(
            (
                every != "epoch" and not (type(every) is int and every >= 1),
                f"every (--dual-every) must be a number of steps, at least 1, or 'epoch'; got {every!r}.",
            ),
            (
                not (type(warmup) is int and warmup >= 0),
                f"warmup must be a number of steps, 0 for none; got {warmup}.",
            ),
            (slack not in ("implicit", "explicit"), f"slack must be 'implicit' or 'explicit'; got {slack!r}."),
            (
                not 0 <= resilience < math.inf,
                f"resilience must be 0 (hard constraints) or positive; got {resilience}.",
            ),
            (
                optimizer == "fixed" and (slack == "explicit" or resilience > 0),
                f"a fixed penalty is on where a constraint is missed, without slack; got a resilience of {resilience} "
                f"and slack {slack!r}. Leave them out.",
            ),
            (
                slack == "explicit" and not resilience,
                f"explicit slack needs a positive resilience; got {resilience}. For hard constraints use "
                "slack='implicit'.",
            ),
            (
                slack == "explicit" and every == "epoch",
                "explicit slack restarts at 0 after every epoch, so with one dual step an epoch it would stay at 0. "
                "Use slack='implicit', or a number of steps for every.",
            ),
        )
        self.problem = problem
        self.warmup = warmup
        self.every = every
        self.resilience = resilience
        self.steps = 0
        self.seen = 0
        """The primal steps up to the last dual step."""
        self.moved = False  # whether a dual step was taken, in this run or in the one that it resumes
        lr = LEARNING_RATES.get(optimizer, 0.0) if lr is None else lr  # `rule` names an unknown optimizer
        self._multipliers = torch.zeros(len(problem.in_force), dtype=torch.float64, device="cpu")
        self._ascent = rule(self._multipliers, optimizer, lr, options or {}, maximize=True)
        self._multipliers[problem.in_force] = getattr(self._ascent, "start", 0.0)
        if horizon is not None:
            self.plan(horizon)
        # Stored in a saved state and compared on loading: an optimizer can't use the state of another kind.
        self._kind = f"optimizer={optimizer!r}, slack={slack!r}"
        self._explicit = slack == "explicit"
        if self._explicit:
            self._slack_rule = slack_optimizer or "sgd"
            self._slack_lr = SLACK_SHARE * resilience if slack_lr is None else slack_lr
            self._kind += f", slack_optimizer={self._slack_rule!r}"
            self._restart_slack()
        # The losses at which a target takes its coefficients; ones before the first losses.
        self._reference = torch.ones_like(problem.objective)
        # Σ f and the number of targets, (V+1,), on this rank: since the last dual step, and in the current primal step.
        self._totals = torch.zeros(len(problem.objective) + 1, dtype=torch.float64, device="cpu")
        self._pending = torch.zeros_like(self._totals)
        self._observed = False

    @property
    def multipliers(self) -> Tensor:
        """λ ≥ 0, (K,); 0 where a constraint is not in force."""
        return self._multipliers.clone()

    @property
    def slack(self) -> Tensor:
        """u, (K,), in the `Target.units` of the violations."""
        return self._slack.clone() if self._explicit else self.resilience * self._multipliers

    def plan(self, steps: int) -> None:
        """Set the length of the run in primal steps, warm-up included; with ``every="epoch"`` in epochs."""
        if not (type(steps) is int and steps >= 0):
            raise InputError(f"the length of the run must be a number of steps; got {steps}.")
        dual_steps = steps if self.every == "epoch" else steps // self.every
        for group in self._ascent.param_groups:
            if "horizon" in group:
                group["horizon"] = max(1, dual_steps)

    @property
    def warm(self) -> bool:
        """Whether warm-up is over, so that the constraints take part."""
        return self.steps >= self.warmup

    @property
    def inner(self) -> bool:
        """Whether the next primal step needs the losses of inner exits, 0 … L−1."""
        return self.problem.inner or (self.problem.constrained and self.warm)

    @property
    def weights(self) -> Tensor:
        """w_0 … w_L, (V,), the next primal step's weight of each loss, known before the forward pass.

        A constraint that is not linear is linearized at the last step's losses, and a `GeometricTarget` at their
        running mean; so the gradient of `lagrangian`, taken at the current losses, may differ from these.
        """
        if not self.warm:
            return self.problem.objective.clone()
        return self.problem.weights(self._multipliers, self._reference)

    def lagrangian(self, losses: Tensor) -> Tensor:
        """L̂ at the current multipliers, eq. (5), a scalar for ``backward``; during warm-up the objective only.

        The slack's own terms, λᵀu and its cost, do not depend on the model and are left out.
        """
        if not self.warm:
            return self.problem.goal(losses)
        return self.problem.lagrangian(losses, self._multipliers, self._reference)

    def observe(self, sums: Tensor | LossSums, count: Tensor | float = 1.0) -> None:
        """Add a batch's losses to those that the next dual step averages: Σ sums / Σ count over batches and ranks.

        Mean losses with the count 1 do if all batches have the same size.

        Args:
            sums: Detached losses summed over the batch's targets, (V,), or with their counts.
            count: The number of targets in the sums; 0 for a batch without any. Not used with `LossSums`.

        Raises:
            InputError: If the losses are not detached, or the count is no number of samples.
        """
        if isinstance(sums, LossSums):
            count = sums.targets
            sums = sums.values
        self.problem.check_shape(sums)
        number = float(count)
        refuse(
            (sums.requires_grad, "observe takes detached losses: pass losses.detach()."),
            (
                not 0 <= number < math.inf,
                f"count must be the number of samples in the sums, at least 0; got {number}.",
            ),
            (
                not number and bool(sums.any()),
                "a count of 0 needs sums of 0; got others. Give the number of samples.",
            ),
        )
        self._observed = True
        self._pending += torch.cat([_double(sums), _double([number])])

    def step(self, losses: Tensor | LossSums | None = None) -> bool:
        """Count a primal step, and take the dual step if it is due.

        Args:
            losses: Detached mean losses of the batch, (V,), to `observe` first; None if they were observed.

        Returns:
            Whether the multipliers moved.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite, or a multiplier would be; the multipliers have not moved.
            RanksDifferError: If the ranks of a process group hold different multipliers or slack; none has moved.
            InputError: If nothing was observed, or the target can't bound a loss.
        """
        if losses is not None:
            self.observe(losses)
        warm = self.warm
        self.steps += 1
        self._close_step()
        if not (warm and self.problem.constrained):
            self._totals.zero_()
            return False
        if self.every == "epoch" or (self.steps - self.warmup) % self.every:
            return False
        moved = self._ascend()  # before the check below: it has a collective, which all ranks must enter
        observed = self._observed
        self._observed = False
        if not moved and not observed:
            raise InputError("no losses to step on: call step(losses.detach()), or observe(losses.detach()) before it.")
        return moved

    def skip(self) -> None:
        """Drop the losses observed since the last step, because the primal step was not taken."""
        self._pending.zero_()
        self._observed = False

    def end_epoch(self) -> None:
        """Take the dual step of an epoch's schedule, and restart explicit slack at 0."""
        self._close_step()
        if self.every == "epoch":
            self._ascend()
        if self._explicit:
            self._restart_slack()

    def state_dict(self) -> dict[str, Any]:
        """The full state: a run that resumes from it, or from its JSON, is bit-identical."""
        state: dict[str, Any] = {"kind": self._kind, "in_force": self.problem.in_force.clone()}
        state |= {"steps": self.steps, "seen": self.seen, "warmup": self.warmup, "referred": self.moved}
        state |= {name: vector.clone() for name, vector in self._vectors.items()}
        for name, (vector, optimizer) in self._optimizers.items():
            state[name] = {key: value.to(torch.float64, copy=True) for key, value in optimizer.state[vector].items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`, or its JSON. Settings of the optimizers stay those of this object.

        Raises:
            InputError: If it is that of other constraints, or another optimizer or kind of slack; nothing is changed.
        """
        state = {"seen": state.get("steps"), **state}  # an older version's lacks it
        lacks = sorted(self.state_dict().keys() - state.keys())
        refuse(
            (
                state.get("kind", self._kind) != self._kind,
                f"the saved state is that of {state.get('kind')}; this run has {self._kind}. Resume with the settings "
                "of the run that saved it.",
            ),
            (bool(lacks), f"expected a state of PrimalDual; got one that lacks {', '.join(lacks)}."),
        )
        saved = torch.as_tensor(state["in_force"], device="cpu")
        here = self.problem.in_force
        refuse(
            (
                not torch.equal(saved, here),
                f"the saved multipliers constrain {saved.nonzero().flatten().tolist()} of {len(saved) - 1} layers (0 "
                f"is the cap); this problem {here.nonzero().flatten().tolist()} of {len(here) - 1}. Use the depth, the "
                "first layer and the cap of the run that saved them.",
            ),
        )
        self.steps = state["steps"]
        self.seen = state["seen"]
        self.warmup = state["warmup"]
        self.moved = state["referred"]
        for name, vector in self._vectors.items():
            vector.copy_(_double(state[name]))
        for name, (vector, optimizer) in self._optimizers.items():
            optimizer.state[vector] = {key: _double(value) for key, value in state[name].items()}

    @property
    def _vectors(self) -> dict[str, Tensor]:
        """The vectors of the state by name."""
        slack = {"slack": self._slack} if self._explicit else {}
        sums = {"totals": self._totals, "pending": self._pending}
        return {"multipliers": self._multipliers, "reference": self._reference, **sums, **slack}

    @property
    def _optimizers(self) -> dict[str, tuple[Tensor, torch.optim.Optimizer]]:
        """What moves, and its optimizer."""
        slack = {"descent": (self._slack, self._descent)} if self._explicit else {}
        return {"ascent": (self._multipliers, self._ascent), **slack}

    def _close_step(self) -> None:
        """Count the losses of this primal step among those of the next dual step."""
        self._totals += self._pending
        self._pending.zero_()

    def _restart_slack(self) -> None:
        self._slack = torch.zeros_like(self._multipliers)
        self._descent = rule(self._slack, self._slack_rule, self._slack_lr, {}, maximize=False)

    def _move(self, values: Tensor, optimizer: torch.optim.Optimizer, gradient: Tensor) -> None:
        """One projected step of the constraints in force."""
        values.grad = torch.where(self.problem.in_force, gradient, 0.0)
        with torch.device("cpu"):  # Adam creates its step counter on the default device
            optimizer.step()
        values.grad = None
        values.clamp_(min=0.0)

    def _over_ranks(self) -> Tensor:
        """The sums since the last dual step over all ranks, (V+1,); all ranks must hold the same λ and u.

        They do if a weighted sum s of λ and u obeys R Σs² = (Σs)² over the R ranks, up to rounding on different
        processors; a rank that differs by √R millionths of s raises an error on all.
        """
        totals = self._totals.clone()
        if not (distributed.is_available() and distributed.is_initialized()):
            return totals
        dual = torch.cat([self._multipliers, self.slack])
        device = "cpu" if "gloo" in distributed.get_backend() else torch.accelerator.current_accelerator() or "cpu"
        # All weights differ, so that two differences do not cancel by chance.
        mark = dual @ torch.linspace(1, 2, len(dual), dtype=torch.float64, device="cpu")
        shared = torch.cat([totals, torch.stack([mark, mark.square()])]).to(device)  # NCCL adds on the GPU
        distributed.all_reduce(shared)
        *summed, total, squares = shared.tolist()
        ranks = distributed.get_world_size()
        if not ranks * squares - total**2 <= 1e-12 * total**2:
            values = [f"{value:.6g}" for value in self._multipliers.tolist()]
            raise RanksDifferError(
                f"expected the same multipliers on all {ranks} processes; they differ, and process "
                f"{distributed.get_rank()} holds {', '.join(values)} (the cap's first). Give every process the same "
                "settings, and go on from a checkpoint that all of them can read."
            )
        return torch.tensor(summed, dtype=torch.float64, device="cpu")

    def _ascend(self) -> bool:
        """Take the dual step with the mean losses over all ranks; return False if no rank has observed any."""
        since, self.seen = self.steps - self.seen, self.steps
        totals = self._over_ranks()
        self._totals.zero_()
        if not totals[-1] > 0:
            return False
        losses = totals[:-1] / totals[-1]
        memory = self.problem.target.memory ** max(1, since) if self.moved else 0.0
        reference = memory * self._reference + (1 - memory) * losses
        units = self.problem.target.units(reference)
        gap = self.problem.violations(losses, reference) / torch.where(self.problem.in_force, units, 1.0)
        if not torch.cat([losses, gap]).isfinite().all():
            raise NonFiniteLossError(f"a loss or a violation is not finite: {losses.tolist()}, {gap.tolist()}.")
        self._reference = reference
        self.moved = True
        before = self._multipliers.clone()
        self._move(self._multipliers, self._ascent, gap - self.slack)
        if not self._multipliers.isfinite().all():
            message = f"from {before.tolist()} (the cap's first) to {self._multipliers.tolist()}"
            self._multipliers.copy_(before)
            raise NonFiniteLossError(
                f"the multipliers would overflow: {message}. They have not moved. Lower the dual learning rate."
            )
        if self._explicit:
            self._move(self._slack, self._descent, self._slack / self.resilience - before)
        return True


def _double(values: Any) -> Tensor:
    """A copy of numbers, of a tensor or of JSON, as a tensor in double precision on the CPU."""
    return torch.as_tensor(values, dtype=torch.float64, device="cpu").clone()
