"""The classification task: its loss and its metric."""

from typing import Any

from torch import Tensor

from descend.errors import InputError, reason
from descend.tasks.text.logits import LogitTask, at_least_single
from descend.tasks.text.tokens import column, fields, refuse_rows, stored


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
        if not (stored(dataset) or isinstance(dataset, list)) or not len(dataset):
            return
        targets = ("labels", "label", "label_ids")
        for names in (("input_ids",), targets):
            if not set(names) & set(fields(dataset)):
                raise InputError(
                    f"samples must have {' or '.join(names)}; got {', '.join(fields(dataset))}. Tokenize the texts and "
                    "name their classes label."
                )
        name = next(each for each in targets if each in fields(dataset))
        try:
            labels = column(dataset, name)
        except (KeyError, ValueError) as error:
            raise InputError(f"every sample must have one {name}; {type(error).__name__}: {reason(error)}.") from None
        if labels.dtype.kind not in "iu" or len(labels) != len(dataset):
            raise InputError(
                f"{name} must be whole numbers, one for each sample; got {labels.dtype} and {len(labels)} for "
                f"{len(dataset)} samples."
            )
        wrong = (labels < 0) | (labels >= limits["labels"])
        if wrong.any():
            sample = int(wrong.argmax())
            raise InputError(
                f"sample {sample} has label {labels[sample]}; expected 0 … {limits['labels'] - 1}, as the model's head "
                f"has {limits['labels']} labels. Choose a model with another head, or correct the label."
            )
        refuse_rows(dataset, limits)
