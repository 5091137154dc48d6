"""A training step: the Lagrangian of its micro-batches, a check before the optimizer's step, the dual step after it."""

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy

from descend.core import DescentProblem, LossSums, PrimalDual, refuse_negative
from descend.errors import InputError, NonFiniteLossError
from descend.methods import Method
from descend.objective import LOSS_IS_OURS, BatchLosses, Objective
from descend.training.checkpoints import way_on
from descend.training.loader import IDLE, steps_of_epoch
from descend.training.outlook import Outlook
from descend.training.ranks import Ranks

logger = logging.getLogger(__name__)


class Step(TrainerCallback):
    """Takes the steps of a run, and keeps what they leave: the multipliers, and the losses for the log.

    `compute_loss` calls `loss`, and the training loop calls this callback when it ends a step or an epoch.

    The training loss is the Lagrangian, eq. (5); after every optimizer step comes the dual step, Algorithm 1. A layer's
    loss is the sum over all targets of the step, in all micro-batches and on all ranks, divided by their number. A loss
    or gradient that is not finite, or a mean loss below 0, stops training before the optimizer's step.

    Args:
        objective: The layer losses of a batch.
        method: The method, which gives their weights.
        dual: The multipliers.
        accelerator: Accelerate's, which knows whether a gradient scaler skipped the optimizer's step.
        ranks: The processes of the run.
        folder: The run's folder, whose newest checkpoint an error names.
        other_sums: K, the number of further sums in a batch's `LossSums`.
    """

    def __init__(
        self,
        objective: Objective,
        method: Method,
        dual: PrimalDual[DescentProblem],
        accelerator: Accelerator,
        ranks: Ranks,
        folder: Path,
        other_sums: int = 0,
    ):
        self.objective = objective
        self.method = method
        self.dual = dual
        self.accelerator = accelerator
        self.ranks = ranks
        self.folder = folder
        self.other_sums = other_sums
        self.sums = LossSums(dual.problem.depth, other_sums)
        """Of the current step, on this rank."""
        self.micro_batches = 0
        """The number of this step's micro-batches that went through the model."""
        self.restart()

    def restart(self) -> None:
        """Reset the logs for a new run; the multipliers keep their state."""
        problem = self.dual.problem
        self.outlook = Outlook(problem)
        self.since_log = LossSums(problem.depth, self.other_sums)
        """Of the steps since the last log, on this rank."""
        self.logged = LossSums(problem.depth, self.other_sums)
        """Of all logs so far, over all ranks."""
        self.sums.clear()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the warm-up and the horizon, which are not known earlier."""
        self.steps_of_epoch = steps_of_epoch(args, state, kwargs["train_dataloader"])
        self.save_is_postponed = False
        # Warm-up never starts again, not even in a longer run.
        if not (self.dual.steps and self.dual.warm):
            self.dual.warmup = args.warmup(state.max_steps, self.steps_of_epoch)
        # No dual step follows the last epoch: no primal step would use it.
        epochs = math.ceil(state.max_steps / self.steps_of_epoch)
        self.dual.plan(max(1, epochs - 1) if self.dual.every == "epoch" else state.max_steps)
        if state.global_step:
            args.eval_on_start = False  # it was done before the interruption
        elif self.dual.steps:
            self._ascend(self.dual.end_epoch, 0)  # the last one of the training before

    def loss(
        self, model: nn.Module, inputs: dict[str, Any], targets: Tensor | int | None, state: TrainerState
    ) -> tuple[Tensor, BatchLosses]:
        """A micro-batch's part of the Lagrangian, w·(f_0 … f_L), to call ``backward`` on, and its layer losses.

        Args:
            model: The objective, as Accelerate has prepared it.
            inputs: The fields of the micro-batch.
            targets: The number of targets in the step over all ranks; None for a micro-batch that is a step.
            state: The trainer's, which counts the steps.
        """
        idle = inputs.pop(IDLE, False)
        step, steps = state.global_step, state.max_steps
        self.objective.begin(step, self.micro_batches)
        self.method.before_pass(step, steps, self.micro_batches)
        inner = self.method.inner or self.objective.own
        batch = model(weights=self.method.weights(step, steps), inner=inner, **inputs)
        self.micro_batches += 1
        self.sums.add(batch.losses, idle=idle)
        if not batch.lagrangian.requires_grad and batch.targets:
            raise InputError(
                "there is nothing to train: the loss of the last layer depends on no parameter with requires_grad. "
                "Look for torch.no_grad or detach in the model or its readout."
            )
        # An idle rank computes too, because every rank must take part in the collectives.
        lagrangian = batch.lagrangian * 0 if idle else batch.lagrangian
        total = batch.targets if targets is None else targets
        # Parallel training averages gradients over ranks; multiply by their number to get the sum.
        ranks = self.ranks.number
        share = ranks / total.clamp(min=1) if isinstance(total, Tensor) else ranks / max(total, 1)
        return lagrangian * share, batch

    def fails(self, norm: Any) -> bool:
        """Whether a loss or the gradient is at fault on any rank. Called before the optimizer's step, on all ranks.

        Args:
            norm: The gradient's norm, a tensor or a number; None if it is not known.
        """
        if not self.micro_batches:  # Transformers calls `compute_loss` before every step
            raise InputError(LOSS_IS_OURS.format("did not call super().compute_loss(...)"))
        scaler = self.accelerator.scaler
        self.scale = 1.0 if scaler is None else scaler.get_scale()
        self.norm = None
        if norm is not None and scaler is None:  # a scaler checks gradients itself, and skips the step
            self.norm = norm.full_tensor() if hasattr(norm, "full_tensor") else torch.as_tensor(norm)  # FSDP2 shards it
        suspect = self.sums.fault is not None
        if self.dual.problem.constrained:
            suspect |= bool((self.sums.values < 0).any())
        if self.ranks.number == 1:
            return suspect or not (self.norm is None or math.isfinite(self.norm))
        bad = torch.tensor(float(suspect)).to(self.ranks.device, non_blocking=True)
        if self.norm is not None:  # one reduction for both checks
            bad = bad + (~self.norm.to(bad).isfinite()).to(bad)
        return self.ranks.sum(bad).item() > 0

    def stop(self, step: int, samples: Callable[[], str], keep: Callable[[], str]) -> None:
        """Raise an error on all ranks for a step that `fails`; return if all means are finite and at least 0.

        Args:
            step: The steps before this one.
            samples: Names this rank's samples of the step.
            keep: Saves the state before the step, and says what it did. All ranks call it.

        Raises:
            NonFiniteLossError: If a loss or the gradient is not finite on a rank.
            InputError: If a mean loss is negative.
        """
        of_loss = self.sums.fault
        fault = of_loss
        if fault is None and self.norm is not None and not math.isfinite(self.norm):
            fault = f"the gradient is not finite (its norm is {float(self.norm)})"
        # A loss below 0 on one rank is no fault yet: the mean over all ranks may be above.
        faults = [] if fault is None else [(of_loss is not None, f"{self.ranks.prefix}{fault}; samples {samples()}")]
        if faults := gather_object(faults):
            self.drop()
            # A non-finite loss on one rank makes the gradient non-finite on all: report the loss only.
            causes = [cause for is_loss, cause in faults if is_loss] or [cause for _, cause in faults]
            raise NonFiniteLossError(
                f"step {step + 1}: {'; '.join(causes)}. {keep()} Look at these samples. "
                f"{way_on(self.folder, self.ranks)}"
            )
        whole = self.sums.with_numbers(self.ranks.sum(self.sums.numbers))
        try:
            refuse_negative(whole.means, whole.first)
        except InputError as error:
            self.drop()
            raise InputError(f"step {step + 1}: {error} {keep()}") from None

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the dual step after the optimizer's, unless a gradient scaler skipped that one; may postpone a save.

        Raises:
            NonFiniteLossError: If a multiplier would not be finite; it stops all ranks, which use the same sums.
        """
        scaler = self.accelerator.scaler  # whose scale falls at a skipped step; Accelerate misses a fused optimizer's
        if self.accelerator.optimizer_step_was_skipped or (scaler is not None and scaler.get_scale() < self.scale):
            self.drop()
        else:
            counts = self.since_log.counts
            if self.sums.counts[0] and counts[0] < counts[-1]:
                # Warm-up, which reads the last exit only, has just ended: average all layers over the same steps.
                self.since_log.restart()
            self.since_log.add(self.sums)
            self._ascend(partial(self.dual.step, self.sums), state.global_step)
            self.sums.clear()
        # Save after the evaluation and the log at the end of the epoch, which a resumed run does not repeat.
        measured = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and measured and state.global_step % self.steps_of_epoch == 0:
            control.should_save = False
            self.save_is_postponed = True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Do a postponed save."""
        control.should_save |= self.save_is_postponed
        self.save_is_postponed = False

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the epoch before, if there was one: so a run resumed from an epoch's last checkpoint ends it too."""
        if state.global_step and state.global_step % self.steps_of_epoch == 0:
            self._ascend(self.dual.end_epoch, state.global_step)

    def _ascend(self, move: Callable[[], Any], step: int) -> None:
        try:
            move()
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"step {step}: {error} {way_on(self.folder, self.ranks)}") from None

    def drop(self) -> None:
        """Forget the losses of a step that is not taken."""
        self.sums.clear()
        self.dual.skip()

    def report(self, state: TrainerState) -> tuple[LossSums, dict[str, tuple[int, list[float]]]]:
        """End an interval of the log, and warn of constraints that will not be met. All ranks must call this.

        Returns:
            The interval's sums over all ranks; and the rows of the log by name, each the layer of its first value and
            the values.
        """
        sums = self.since_log.with_numbers(self.ranks.sum(self.since_log.numbers))
        self.since_log.clear()
        self.logged.add(sums)
        first = sums.first
        losses = sums.means
        weights = self.method.weights(state.global_step, state.max_steps)
        rows: dict[str, tuple[int, list[float]]] = {"loss": (first, losses.tolist()), "weight": (0, weights)}
        if not self.dual.problem.constrained:
            return sums, rows
        rows["multiplier"] = 0, self.dual.multipliers.tolist()
        rows["slack"] = 1, self.dual.slack[1:].tolist()
        if first:
            return sums, rows
        rows["violation"] = 1, self.dual.problem.violations(losses)[1:].tolist()
        if self.dual.warm and self.ranks.is_main and losses.isfinite().all():
            for sentence in self.outlook.report(losses, self.dual.multipliers):
                logger.warning(f"step {state.global_step}: {sentence}")
        return sums, rows

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: the multipliers, the sums for the log, and the warnings so far."""
        return {
            "dual": self.dual.state_dict(),
            "since_log": self.since_log.numbers,
            "logged": self.logged.numbers,
            "outlook": self.outlook.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`, or its JSON."""
        self.dual.load_state_dict(state["dual"])
        self.sums.clear()
        self.since_log = self.since_log.with_numbers(state["since_log"])
        self.logged = self.logged.with_numbers(state["logged"])
        self.outlook.load_state_dict(state["outlook"])
