"""Data, loss and metric of each task. No task knows a model."""

from descend.tasks.base import Task

__all__ = ["Task"]
