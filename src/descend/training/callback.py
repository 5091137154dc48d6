"""Early stopping, by the comparison of models that chooses the best one."""

import logging
from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState

from descend.training.selection import Selection

logger = logging.getLogger(__name__)


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
