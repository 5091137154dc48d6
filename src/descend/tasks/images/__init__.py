"""Image classification: the task. Images are read by `descend.tasks.images.sources`, which needs the extra `image`."""

from descend.tasks.images.classification import ImageClassification

__all__ = ["ImageClassification"]
