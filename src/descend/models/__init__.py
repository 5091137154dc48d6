"""Layered models: every layer's output can be read as a prediction."""

from descend.models.causal import LayeredCausalLM
from descend.models.classifiers import LayeredClassifier
from descend.models.denoiser import Reconstruction
from descend.models.dust import DUST, DUSTConfig
from descend.models.hooked import HookedModel, layered
from descend.models.layered import LayeredModel
from descend.models.linear import (
    DistilBertLinearConfig,
    DistilBertLinearForSequenceClassification,
    RobertaLinearConfig,
    RobertaLinearForSequenceClassification,
)
from descend.models.text_ut import TextUTConfig, TextUTForSequenceClassification
from descend.models.token_heads import LayeredQuestionAnswerer, LayeredTokenClassifier
from descend.models.unrolled import dct_dictionary
from descend.models.ut import UT, UTConfig
from descend.models.vit import ViTDenoiser, ViTDenoiserConfig

__all__ = [
    "DUST",
    "UT",
    "DUSTConfig",
    "DistilBertLinearConfig",
    "DistilBertLinearForSequenceClassification",
    "HookedModel",
    "LayeredCausalLM",
    "LayeredClassifier",
    "LayeredModel",
    "LayeredQuestionAnswerer",
    "LayeredTokenClassifier",
    "Reconstruction",
    "RobertaLinearConfig",
    "RobertaLinearForSequenceClassification",
    "TextUTConfig",
    "TextUTForSequenceClassification",
    "UTConfig",
    "ViTDenoiser",
    "ViTDenoiserConfig",
    "dct_dictionary",
    "layered",
]
