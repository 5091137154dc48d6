"""The task of telling classes of images apart."""

from typing import Any

import numpy as np

from descend.errors import InputError
from descend.tasks.text.classification import Classification
from descend.tasks.text.tokens import fields, readable


class ImageClassification(Classification):
    """Classify images: samples hold ``pixel_values`` (C, height, width) and one of ``labels``.

    The loss is the cross-entropy; the metric is the accuracy over a data set, in [0, 1].
    """

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Raise an error if a model can't take a sample.

        Args:
            dataset: Samples with their labels: a `datasets.Dataset` or a list. Other types are not checked.
            limits: The model's number of ``channels`` and of ``labels``, as far as they are known.

        Raises:
            InputError: If pixels or labels are missing, or out of range.
        """
        if not readable(dataset):
            return
        shape = tuple(np.shape(dataset[0]["pixel_values"])) if "pixel_values" in fields(dataset) else ()
        channels = limits.get("channels")
        if len(shape) != 3 or channels not in (None, shape[0]):
            of = "" if channels is None else f" of {channels} channels"
            raise InputError(
                f"samples must have pixel_values{of}, (C, height, width), as the model's "
                f"image processor makes them; got {f'the shape {shape}' if shape else ', '.join(fields(dataset))}."
            )
        self.check_targets(dataset, np.array([]), limits)
