"""When the dual step is taken: the callback in Transformers' training loop."""

import math
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, has_length

from descend.results.ownership import FEASIBLE_FOLDER, forget_results, remove

if TYPE_CHECKING:
    from descend.training.trainer import DescentMixin


def steps_of_epoch(args: TrainingArguments, state: TrainerState, loader: DataLoader) -> int:
    """The number of optimizer steps in an epoch; for a stream, which has no epochs, in the run."""
    batches = len(loader) if has_length(loader) else state.max_steps * args.gradient_accumulation_steps
    return math.ceil(batches / args.gradient_accumulation_steps)


class DualStep(TrainerCallback):
    """Takes the dual step when the training loop ends a step or an epoch."""

    def __init__(self, trainer: "DescentMixin"):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the warm-up and the horizon, and reset for a new run."""
        # The numbers of steps in an epoch and in the run are not known earlier.
        self.steps = steps_of_epoch(args, state, kwargs["train_dataloader"])
        # Warm-up never starts again, not even in a longer run.
        if not (self.trainer.dual.steps and self.trainer.dual.warm):
            self.trainer.dual.warmup = args.warmup(state.max_steps, self.steps)
        epochs = math.ceil(state.max_steps / self.steps)
        self.trainer.dual.plan(epochs if self.trainer.dual.every == "epoch" else state.max_steps)
        self.postponed = False
        if state.global_step:
            args.eval_on_start = False  # it was done before the interruption
            return
        self.trainer._begin()
        if state.is_world_process_zero:  # delete the results of an earlier run
            self.trainer.records.truncate_after(-1)
            remove(args.folder / FEASIBLE_FOLDER)
            forget_results(args.folder)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Do the end-of-epoch work of the epoch before."""
        # End-of-epoch work is done at the start of the next epoch, so that a run resumed from the last step's
        # checkpoint does it too. The slack after the last epoch stays for the record.
        if state.global_step and state.global_step % self.steps == 0:
            self.trainer._ascend(self.trainer.dual.end_epoch)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Store the gradient scaler's scale, to see whether it skips the step."""
        self.trainer._scale_before = self.trainer._scale

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
