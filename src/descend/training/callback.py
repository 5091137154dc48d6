"""Callbacks of the training loop: the dual step after each primal step, and early stopping."""

import logging
import math
from collections.abc import Callable
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy

from descend.training.loader import steps_of_epoch
from descend.training.selection import Selection
from descend.training.step import Step

logger = logging.getLogger(__name__)


class DualStep(TrainerCallback):
    """Takes the dual step when the training loop ends a step or an epoch.

    Args:
        step: The steps of the run.
        begin: Called at the start of a run that does not resume another.
    """

    def __init__(self, step: Step, begin: Callable[[], None]):
        self.step = step
        self.begin = begin

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the warm-up and the horizon, which are not known earlier, and begin a new run."""
        self.steps = steps_of_epoch(args, state, kwargs["train_dataloader"])
        dual = self.step.dual
        # Warm-up never starts again, not even in a longer run.
        if not (dual.steps and dual.warm):
            dual.warmup = args.warmup(state.max_steps, self.steps)
        dual.plan(math.ceil(state.max_steps / self.steps) if dual.every == "epoch" else state.max_steps)
        self.postponed = False
        if state.global_step:
            args.eval_on_start = False  # it was done before the interruption
        else:
            self.begin()

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the epoch before, if there was one: so a run resumed from an epoch's last checkpoint ends it too."""
        if state.global_step and state.global_step % self.steps == 0:
            self.step.end_epoch(state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the dual step, and postpone a save at the end of an epoch."""
        self.step.end(state.global_step)
        # Save after the evaluation and the log at the end of the epoch, which a resumed run does not repeat.
        measured = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and measured and state.global_step % self.steps == 0:
            control.should_save, self.postponed = False, True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Do the postponed save."""
        if self.postponed:
            control.should_save, self.postponed = True, False


class EarlyStopping(EarlyStoppingCallback):
    """Transformers' callback with the comparison of `Selection`, and a count that resuming restores.

    Transformers stores the count in every checkpoint, but restores it only together with control flags that would end
    a resumed run with more steps immediately.
    """

    def __init__(self, patience: int, selection: Selection):
        super().__init__(patience)
        self.selection = selection

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
        if not self.selection.chooses:
            return
        better = self.selection.in_warmup or self.selection.beats_best(metrics, state.best_metric)
        self.early_stopping_patience_counter = 0 if better else self.early_stopping_patience_counter + 1
        ended = control.should_training_stop
        control.should_training_stop |= self.ended
        if control.should_training_stop and not ended and state.is_world_process_zero:
            logger.warning(
                f"step {state.global_step} of {state.max_steps}: {args.metric_for_best_model} has not become better in "
                f"{self.early_stopping_patience} evaluations; training ends."
            )
