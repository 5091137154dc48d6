"""Early stopping: a run ends where its evaluations have not become better for a while."""

import logging
from typing import Any, Protocol

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState

logger = logging.getLogger(__name__)


class Chooses(Protocol):
    """A trainer that knows whether what it has just measured is the best so far."""

    chooses: bool
    """Whether it was measured on the trainer's own evaluation data."""

    @property
    def in_warmup(self) -> bool:
        """Whether the model is no candidate yet."""

    def beats_best(self, metrics: dict[str, float]) -> bool:
        """Whether it is better than the best so far."""


class EarlyStopping(EarlyStoppingCallback):
    """The library's, with the trainer's own choice of the best, and a count that a resumed run goes on with.

    The library stores the count in every checkpoint, and takes it up only together with flags of its loop that would
    end a run of more steps at once.
    """

    def __init__(self, patience: int, trainer: Chooses):
        super().__init__(patience)
        self.trainer = trainer

    @property
    def ended(self) -> bool:
        """Whether enough evaluations were no better."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take up the count of the checkpoint that training goes on from; at its end, end training again."""
        super().on_train_begin(args, state, control, **kwargs)
        states: Any = state.stateful_callbacks
        stored = states.get(type(self).__name__) if state.global_step else None
        self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"] if stored else 0
        states[type(self).__name__] = self.state()  # the library saves what has an entry
        control.should_training_stop |= self.ended

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Count, and end training where it is enough; neither a warm-up nor other data count."""
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
