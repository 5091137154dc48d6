"""Early stopping: a run ends after a number of evaluations without a better model."""

import logging
from typing import Any, Protocol

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState

logger = logging.getLogger(__name__)


class Chooses(Protocol):
    """A trainer that compares an evaluation with the best so far."""

    chooses: bool
    """Whether it was measured on the trainer's own evaluation data."""

    @property
    def in_warmup(self) -> bool:
        """Whether no model can be the best yet."""

    def beats_best(self, metrics: dict[str, float]) -> bool:
        """Whether the evaluated model is better than the best so far."""


class EarlyStopping(EarlyStoppingCallback):
    """Transformers' callback, by the trainer's own choice of the best, with a count that survives resuming.

    Transformers stores the count in every checkpoint, but restores it only together with flags of its loop that would
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
        """Restore the count of the checkpoint; if it had ended training, end it again."""
        super().on_train_begin(args, state, control, **kwargs)
        states: Any = state.stateful_callbacks
        stored = states.get(type(self).__name__) if state.global_step else None
        self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"] if stored else 0
        states[type(self).__name__] = self.state()  # Transformers saves callbacks that have an entry
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
