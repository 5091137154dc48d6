"""Layered models: every layer's output can be read as a prediction."""

from descend.models.calls import Calls, first_tensor
from descend.models.causal import LayeredCausalLM
from descend.models.classifiers import LayeredClassifier, decide, leave_at
from descend.models.denoiser import Denoiser, Reconstruction, UnrolledModel, dct_dictionary
from descend.models.dust import DUST, DUSTConfig
from descend.models.embedder import (
    MOST_TOKENS,
    Embedder,
    EmbedderConfig,
    LayeredEmbedder,
    beside_encoder,
    entries_of,
)
from descend.models.encoders import LayeredQuestionAnswerer, LayeredTokenClassifier
from descend.models.first_layers import FirstLayers, first, keep_first, merged, plain_output, train_last
from descend.models.hooked import PAGE, HookedModel, layered
from descend.models.images import LayeredImageClassifier, resized
from descend.models.layered import PLACES, LayeredModel
from descend.models.library import LibraryModel, before_norm, check_family, family_of
from descend.models.linear_readout import LinearReadout, MeanPooledConfig, MeanPooledForSequenceClassification
from descend.models.loading import MOST_LAYERS, broken, load_model, refuse_broken, refuse_claims, refuse_unsafe
from descend.models.modules import changed, check_savable, close, cuda_devices, evaluating, save_module, tied_names
from descend.models.own_exits import MARK, TRANSLATOR, heard
from descend.models.text_ut import TextUTConfig, TextUTForSequenceClassification
from descend.models.unfolded import LISTA, PGD, LISTAConfig, PGDConfig, UnfoldedModel, blurred
from descend.models.ut import UT, UTConfig
from descend.models.vit import ViTDenoiser, ViTDenoiserConfig

__all__ = [
    "DUST",
    "LISTA",
    "MARK",
    "MOST_LAYERS",
    "MOST_TOKENS",
    "PAGE",
    "PGD",
    "PLACES",
    "TRANSLATOR",
    "UT",
    "Calls",
    "DUSTConfig",
    "Denoiser",
    "Embedder",
    "EmbedderConfig",
    "FirstLayers",
    "HookedModel",
    "LISTAConfig",
    "LayeredCausalLM",
    "LayeredClassifier",
    "LayeredEmbedder",
    "LayeredImageClassifier",
    "LayeredModel",
    "LayeredQuestionAnswerer",
    "LayeredTokenClassifier",
    "LibraryModel",
    "LinearReadout",
    "MeanPooledConfig",
    "MeanPooledForSequenceClassification",
    "PGDConfig",
    "Reconstruction",
    "TextUTConfig",
    "TextUTForSequenceClassification",
    "UTConfig",
    "UnfoldedModel",
    "UnrolledModel",
    "ViTDenoiser",
    "ViTDenoiserConfig",
    "before_norm",
    "beside_encoder",
    "blurred",
    "broken",
    "changed",
    "check_family",
    "check_savable",
    "close",
    "cuda_devices",
    "dct_dictionary",
    "decide",
    "entries_of",
    "evaluating",
    "family_of",
    "first",
    "first_tensor",
    "heard",
    "keep_first",
    "layered",
    "leave_at",
    "load_model",
    "merged",
    "plain_output",
    "refuse_broken",
    "refuse_claims",
    "refuse_unsafe",
    "resized",
    "save_module",
    "tied_names",
    "train_last",
]
