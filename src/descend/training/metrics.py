"""Gather the last layer's predictions for ``compute_metrics``, as Transformers' `Trainer` does."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import EvalPrediction, TrainingArguments
from transformers.trainer_pt_utils import EvalLoopContainer
from transformers.trainer_utils import denumpify_detensorize


class Predictions:
    """Gathers predictions and labels of an evaluation set, batch by batch.

    ``eval_do_concat_batches``, ``batch_eval_metrics`` and ``include_for_metrics`` work as in Transformers.

    Args:
        args: The training arguments.
        compute: The user's ``compute_metrics``.
        preprocess: The user's ``preprocess_logits_for_metrics``: called with the logits and labels of each batch, it
            may return a tensor or a tuple of tensors. None for the logits as they are.
    """

    def __init__(
        self,
        args: TrainingArguments,
        compute: Callable[..., dict[str, Any]],
        preprocess: Callable[[Tensor, Tensor], Any] | None,
    ):
        self.args, self.compute, self.preprocess = args, compute, preprocess
        self._columns = [EvalLoopContainer(args.eval_do_concat_batches, padding_index=-100) for _ in range(3)]
        self._last: list[Any] | None = None

    def add(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Add the last layer's logits and losses of a batch, and its labels."""
        predictions = logits if self.preprocess is None else self.preprocess(logits, labels)
        batch = [predictions, labels, losses]
        if self.args.batch_eval_metrics:
            # compute_result is True for the last batch only, so hold each batch until the next one arrives.
            if self._last is not None:
                self._compute(*self._last, compute_result=False)
            self._last = batch
            return
        for column, values in zip(self._columns, batch, strict=True):
            column.add(values)
            column.to_cpu_and_numpy()

    def metrics(self) -> dict[str, Any]:
        """The user's metrics over all batches, as numbers that JSON can hold."""
        if self._last is not None:
            values = self._compute(*self._last, compute_result=True)
        else:
            values = self._compute(*(column.get_arrays() for column in self._columns))
        return denumpify_detensorize(values)

    def _compute(self, predictions: Any, labels: Any, losses: Any, **options: bool) -> dict[str, Any]:
        asked = "loss" in (self.args.include_for_metrics or ())
        return self.compute(EvalPrediction(predictions, labels, losses=losses if asked else None), **options)
