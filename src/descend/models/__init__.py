"""Layered models: every layer's output can be read as a prediction."""

from descend.models.causal import LayeredCausalLM
from descend.models.classifiers import LayeredClassifier
from descend.models.denoiser import Reconstruction, dct_dictionary
from descend.models.dust import DUST, DUSTConfig
from descend.models.encoders import LayeredQuestionAnswerer, LayeredTokenClassifier
from descend.models.hooked import HookedModel, layered
from descend.models.images import LayeredImageClassifier
from descend.models.layered import LayeredModel
from descend.models.linear_readout import (
    MeanPooledConfig,
    MeanPooledForSequenceClassification,
    TextUTConfig,
    TextUTForSequenceClassification,
)
from descend.models.ut import UT, UTConfig
from descend.models.vit import ViTDenoiser, ViTDenoiserConfig

__all__ = [
    "DUST",
    "UT",
    "DUSTConfig",
    "HookedModel",
    "LayeredCausalLM",
    "LayeredClassifier",
    "LayeredImageClassifier",
    "LayeredModel",
    "LayeredQuestionAnswerer",
    "LayeredTokenClassifier",
    "MeanPooledConfig",
    "MeanPooledForSequenceClassification",
    "Reconstruction",
    "TextUTConfig",
    "TextUTForSequenceClassification",
    "UTConfig",
    "ViTDenoiser",
    "ViTDenoiserConfig",
    "dct_dictionary",
    "layered",
]
