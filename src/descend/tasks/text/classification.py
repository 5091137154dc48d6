"""The classification task: its loss and its metric."""

from typing import Any

from torch import Tensor

from descend.errors import InputError, SampleError, reason
from descend.tasks.base import LABELS
from descend.tasks.text.logits import LogitTask, at_least_single
from descend.tasks.text.tokens import column, fields, readable, refuse_missing, refuse_rows


class Classification(LogitTask):
    """Classify texts.

    The loss is the cross-entropy; the metric is the accuracy over a data set, in [0, 1].
    """

    metric = "accuracy"

    def disagreement(self, logits: Tensor, others: Tensor) -> Tensor:
        """½ [KL(p‖q) + KL(q‖p)] between the class probabilities of two predictions, shape (B,).

        Args:
            logits: The first prediction, (B, C).
            others: The second one, (B, C).
        """
        log_p, log_q = at_least_single(logits).log_softmax(-1), at_least_single(others).log_softmax(-1)
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Raise an error if a classifier can't take a sample.

        Args:
            dataset: Tokenized samples: a `datasets.Dataset` or a list. Other types are not checked.
            limits: The classifier's number of ``labels``, its ``vocabulary`` size and its longest ``length`` in tokens.

        Raises:
            InputError: If tokens or labels are missing or out of range; the message names the sample.
        """
        if not readable(dataset):
            return
        for name in [each for each in LABELS if each in fields(dataset)][:1]:
            _check_labels(dataset, name, limits["labels"])
        refuse_rows(dataset, limits)
        refuse_missing(dataset, *LABELS)


def _check_labels(dataset: Any, name: str, classes: int) -> None:
    try:
        labels = column(dataset, name)
    except (KeyError, ValueError) as error:
        raise InputError(f"every sample must have one {name}; {type(error).__name__}: {reason(error)}.") from None
    if labels.dtype.kind not in "iu" or len(labels) != len(dataset):
        raise InputError(
            f"{name} must be whole numbers, one for each sample; got {labels.dtype} and {len(labels)} for "
            f"{len(dataset)} samples."
        )
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        sample = int(wrong.argmax())
        raise SampleError(
            f"sample {sample} has label {labels[sample]}; expected 0 … {classes - 1}, as the model's head has "
            f"{classes} labels. Choose a model with another head, or correct the label.",
            sample,
        )
