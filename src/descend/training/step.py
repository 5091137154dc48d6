"""A training step around the optimizer's: its losses are checked before it, and move the multipliers after it."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy

from descend.core import LossSums, Outlook
from descend.errors import InputError, NonFiniteLossError
from descend.objective import LOSS_IS_OURS
from descend.results.ownership import FEASIBLE_FOLDER, forget_results, remove
from descend.training.divergence import Stopping
from descend.training.order import steps_of_epoch


class Stepping(Stopping):
    """A trainer that checks losses and gradient before every optimizer step, and takes the dual step after it."""

    other_sums = 0
    """K, the number of further sums in a batch's `LossSums`."""
    scale_before = 1.0
    """The gradient scaler's scale before the optimizer's step."""

    def begin_run(self) -> None:
        """Reset logs, model selection and calibration for a new run; multipliers keep their state."""
        self.outlook = Outlook(self.dual.problem)
        depth = self.dual.problem.depth
        self.since_log, self.logged = LossSums(depth, self.other_sums), LossSums(depth, self.other_sums)
        self.sums.clear()
        self._best = float("inf")  # the lowest loss of a feasible model
        self._best_meets = False  # whether the best model so far is feasible
        self.temperature = 1.0
        self.summary = None  # set by `descend.evaluate`, for the model card
        self._began, self._earlier = time.monotonic(), 0.0

    def check_step(self, model: nn.Module, norm: Any) -> None:
        """Check losses and gradient before the optimizer step; an error on one rank stops all ranks."""
        if not self.computed:  # Transformers calls `compute_loss` before every step
            raise InputError(LOSS_IS_OURS.format("did not call super().compute_loss(...)"))
        of_loss, of_gradient, size = self.sums.fault, None, None
        suspect = of_loss is not None or (self.dual.problem.constrained and bool((self.sums.values < 0).any()))
        if norm is not None and self.accelerator.scaler is None:  # a scaler checks gradients itself and skips the step
            size = norm.full_tensor() if hasattr(norm, "full_tensor") else torch.as_tensor(norm)  # sharded by FSDP2
        if self.accelerator.num_processes == 1:
            failed = suspect or not (size is None or math.isfinite(size))
        else:  # one reduction for both checks
            bad = torch.tensor(float(suspect)).to(self.args.device, non_blocking=True)
            bad = bad if size is None else bad + (~size.to(bad).isfinite()).to(bad)
            failed = self.accelerator.reduce(bad).item() > 0
        if failed:
            if size is not None and not math.isfinite(size):
                of_gradient = f"the gradient is not finite (its norm is {float(size)})"
            # A loss below 0 on one rank is no fault yet: the mean over all ranks may be above.
            self.stop_step(model, of_loss or of_gradient, of_loss is not None)

    def _dual_step(self) -> None:
        """Take the dual step, unless a gradient scaler skipped the primal step."""
        if self.accelerator.optimizer_step_was_skipped or self.scale < self.scale_before:
            self._drop()
            return
        counts = self.since_log.counts
        if self.sums.counts[0] and counts[0] < counts[-1]:
            # Warm-up, which reads the last exit only, has just ended: average all layers over the same steps.
            self.since_log.restart()
        self.since_log.add(self.sums)
        self.dual.observe(self.sums)
        self.sums.clear()
        self.ascend(self.dual.step)

    def ascend(self, move: Callable[[], Any]) -> None:
        """Move the multipliers; a non-finite result stops all ranks, because all use the same sums."""
        try:
            move()
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"step {self.state.global_step}: {error} {self._way_on()}") from None

    @property
    def scale(self) -> float:
        """The gradient scaler's scale, which falls at a skipped step; Accelerate misses it with a fused optimizer."""
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else scaler.get_scale()


class DualStep(TrainerCallback):
    """Takes the dual step when the training loop ends a step or an epoch."""

    def __init__(self, trainer: Stepping):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the warm-up and the horizon, and reset for a new run."""
        # The numbers of steps in an epoch and in the run are not known earlier.
        self.steps, dual = steps_of_epoch(args, state, kwargs["train_dataloader"]), self.trainer.dual
        # Warm-up never starts again, not even in a longer run.
        if not (dual.steps and dual.warm):
            dual.warmup = args.warmup(state.max_steps, self.steps)
        dual.plan(math.ceil(state.max_steps / self.steps) if dual.every == "epoch" else state.max_steps)
        self.postponed = False
        if state.global_step:
            args.eval_on_start = False  # it was done before the interruption
            return
        self.trainer.begin_run()
        if state.is_world_process_zero:  # delete the results of an earlier run
            self.trainer.records.truncate_after(-1)
            remove(args.folder / FEASIBLE_FOLDER)
            forget_results(args.folder)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the epoch before, if there was one: so a run resumed from an epoch's last checkpoint ends it too."""
        if state.global_step and state.global_step % self.steps == 0:
            self.trainer.ascend(self.trainer.dual.end_epoch)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Store the gradient scaler's scale, to see whether it skips the step."""
        self.trainer.scale_before = self.trainer.scale

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the dual step, and postpone a save at the end of an epoch."""
        self.trainer._dual_step()
        # Save after the evaluation and the log at the end of the epoch, which a resumed run does not repeat.
        measured = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and measured and state.global_step % self.steps == 0:
            control.should_save, self.postponed = False, True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Do the postponed save."""
        if self.postponed:
            control.should_save, self.postponed = True, False
