"""Use trained models: texts → classes, and noisy frames → clean frames."""

from typing import TYPE_CHECKING

from descend.extras import lazy_names

if TYPE_CHECKING:
    from descend.inference.classifier import DescentClassifier, Prediction
    from descend.inference.denoiser import DescentDenoiser

__all__ = ["DescentClassifier", "DescentDenoiser", "Prediction"]

# Loaded on first use: decoding videos needs packages that texts don't.
_MODULES = {"classifier": ("DescentClassifier", "Prediction"), "denoiser": ("DescentDenoiser",)}

__getattr__ = lazy_names("descend.inference", _MODULES)
