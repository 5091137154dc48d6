"""Use trained models: texts → classes; and in `descend.inference.denoiser`, with packages for videos, noisy frames."""

from descend.inference.classifier import DescentClassifier, Prediction

__all__ = ["DescentClassifier", "Prediction"]
