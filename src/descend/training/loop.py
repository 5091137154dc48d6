"""What is added to Transformers' training loop: the dual step and early stopping."""

import logging
import math
from typing import Any

from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, has_length

from descend.results.ownership import FEASIBLE_FOLDER, forget_results, remove
from descend.training.divergence import Stepping

logger = logging.getLogger(__name__)


def steps_of_epoch(args: TrainingArguments, state: TrainerState, loader: DataLoader) -> int:
    """The number of optimizer steps in an epoch; for a stream, which has no epochs, in the run."""
    batches = len(loader) if has_length(loader) else state.max_steps * args.gradient_accumulation_steps
    return math.ceil(batches / args.gradient_accumulation_steps)


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
        """Do the end-of-epoch work of the epoch before."""
        # End-of-epoch work is done at the start of the next epoch, so that a run resumed from the last step's
        # checkpoint does it too. The slack after the last epoch stays for the record.
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
