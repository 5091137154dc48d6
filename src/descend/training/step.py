"""A training step around the optimizer's: its losses are checked before it, and move the multipliers after it.

A loss or gradient that is not finite, or a mean loss below 0, stops training before the step; the state is kept.
"""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import nn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy

from descend.core import refuse_negative
from descend.errors import InputError, NonFiniteLossError
from descend.objective import LOSS_IS_OURS
from descend.results import FEASIBLE_FOLDER, forget_results, remove
from descend.training.checkpoints import STOPPED
from descend.training.checks import tell_idle_heads, try_metrics
from descend.training.order import Ordered, steps_of_epoch

logger = logging.getLogger(__name__)


class Stepping(Ordered):
    """A trainer that checks losses and gradient before every optimizer step, and takes the dual step after it."""

    scale_before = 1.0
    """The gradient scaler's scale before the optimizer's step."""

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
        if not self.state.global_step and not failed:
            tell_idle_heads(self)
        if failed:
            if size is not None and not math.isfinite(size):
                of_gradient = f"the gradient is not finite (its norm is {float(size)})"
            # A loss below 0 on one rank is no fault yet: the mean over all ranks may be above.
            self.stop_step(model, of_loss or of_gradient, of_loss is not None)

    def _drop(self) -> None:
        """Forget the losses of a step that is not taken."""
        self.sums.clear()
        self.dual.skip()

    def stop_step(self, model: nn.Module, fault: str | None, of_loss: bool) -> None:
        """Save the state before the step, and raise an error on all ranks; go on if all means are finite and ≥ 0."""
        numbers, data = self.step_samples(), cast(Any, self.train_dataset)
        samples = ", ".join(map(str, numbers)) or "unknown"
        if fault and (broken := [str(number) for number in numbers if not _finite(data, number)]):
            samples += f" (NaN or infinity in the data of {', '.join(broken)})"
        faults = gather_object([(of_loss, f"{self._rank}{fault}; samples {samples}")] if fault else [])
        step = f"step {self.state.global_step + 1}"
        if faults:
            self._drop()
            # A non-finite loss on one rank makes the gradient non-finite on all: report the loss only.
            causes = [cause for of_loss, cause in faults if of_loss] or [cause for _, cause in faults]
            raise NonFiniteLossError(
                f"{step}: {'; '.join(causes)}. {self._keep(model)} Look at these samples. {self._way_on()}"
            )
        whole = self.sums.with_numbers(self._over_ranks(self.sums.numbers))
        try:
            refuse_negative(whole.means, whole.first)
        except InputError as error:
            self._drop()
            raise InputError(f"{step}: {error} {self._keep(model)}") from None

    def _keep(self, model: nn.Module) -> str:
        """Save the state before the step, if it can be of use, and say what was done."""
        step, folder = self.state.global_step, self.args.folder
        saved = self._from_main((folder / f"{PREFIX_CHECKPOINT_DIR}-{step}").exists)
        if self._broken():
            state = "; they were not all finite before it"
        elif step and self.args.save_strategy != "no" and not saved:
            # Not saved as a checkpoint: rotation would delete an earlier one, which is a better start after divergence.
            self.write_checkpoint(folder / f"{STOPPED}{step}", model)
            state = f", and the state before it is saved in {STOPPED}{step}"
        else:
            state = ""
        return f"No parameter has moved in this step{state}."

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


def _finite(data: Any, number: int) -> bool:
    """Whether the numbers of a sample's fields are finite; other fields, and a sample that fails, are not looked at."""
    try:
        sample = data[number]
    except Exception:  # the user's own code, which must not hide why training stopped
        return True
    for value in sample.values() if isinstance(sample, Mapping) else ():
        with suppress(TypeError, ValueError, RuntimeError):  # no array of numbers
            if not torch.as_tensor(value).isfinite().all():
                return False
    return True


class DualStep(TrainerCallback):
    """Takes the dual step when the training loop ends a step or an epoch."""

    def __init__(self, trainer: Stepping):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the warm-up and the horizon, and reset for a new run."""
        if not state.global_step:
            try_metrics(self.trainer)
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


class EarlyStopping(EarlyStoppingCallback):
    """Transformers' callback with the trainer's own comparison, and a count that resuming restores.

    Transformers stores the count in every checkpoint, but restores it only together with control flags that would end
    a resumed run with more steps immediately.
    """

    def __init__(self, patience: int, trainer: Stepping):
        super().__init__(patience)
        self.trainer = trainer

    @property
    def ended(self) -> bool:
        """Whether ``patience`` evaluations in a row found no better model."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore the count from the checkpoint; if it had ended training, end training again."""
        super().on_train_begin(args, state, control, **kwargs)
        states: Any = state.stateful_callbacks
        stored = states.get(type(self).__name__) if state.global_step else None
        self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"] if stored else 0
        states[type(self).__name__] = self.state()  # Transformers saves callbacks that have an entry
        control.should_training_stop |= self.ended

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Count evaluations without a better model, except in warm-up and on other data, and end training."""
        if not self.trainer.chooses:
            return
        better = self.trainer.in_warmup or self.trainer.beats_best(metrics)
        self.early_stopping_patience_counter = 0 if better else self.early_stopping_patience_counter + 1
        ended = control.should_training_stop
        control.should_training_stop |= self.ended
        if control.should_training_stop and not ended and state.is_world_process_zero:
            logger.warning(
                f"step {state.global_step} of {state.max_steps}: {args.metric_for_best_model} has not become better in "
                f"{self.early_stopping_patience} evaluations; training ends."
            )
