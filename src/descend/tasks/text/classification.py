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

    def disagreement(self, one: Tensor, other: Tensor) -> Tensor:
        """½ [KL(p‖q) + KL(q‖p)] of the classes that two predictions (B, C) give each text, shape (B,)."""
        one, other = at_least_single(one).log_softmax(-1), at_least_single(other).log_softmax(-1)
        return ((one.exp() - other.exp()) * (one - other)).sum(-1) / 2

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Refuse samples that a classifier can't take.

        Args:
            dataset: Tokenized samples: a `datasets.Dataset` or a list. Others can't be looked through beforehand.
            limits: The classifier's number of ``labels``, its ``vocabulary`` and its greatest ``length`` in tokens.

        Raises:
            InputError: If there are no tokens or labels, or one is out of range, naming the sample.
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
