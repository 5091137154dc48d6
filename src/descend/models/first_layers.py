"""Cut a model after its first K layers: the result is of the same class, and its output is exit K's."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.denoiser import Denoiser, UnrolledModel
from descend.models.layered import LayeredModel
from descend.models.library import PER_LAYER, LibraryModel, logits_of

PER_LAYER_TENSORS = ("projection", "feedforward", "dictionary", "leading")
"""Tensors of an untied UT or DUST with a row for each layer."""


def keep_first(model: LayeredModel, layers: int) -> None:
    """Remove all layers after the first K, in place; embeddings, final norm and head stay, unless layer K has its own.

    The configuration gets K as its number of layers, and its lists with one entry for each layer get shorter. A model
    that shares one set of weights between all layers keeps its weights and runs K of L times.

    Args:
        model: A model around one of Transformers' without adapters, a `ViTDenoiser`, a `UT` or a `DUST`.
        layers: K, from 1 to the model's depth.

    Raises:
        InputError: If K is out of range.
    """
    depth = model.depth
    if not 1 <= layers <= depth:
        raise InputError(f"layers must be 1 to {depth}, the number of layers of the model; got {layers}.")
    if isinstance(model, LibraryModel):
        model.keep_exits(layers)
    blocks = model.layer_modules
    # A model whose layers share weights has fewer modules than layers: all of them stay.
    if isinstance(blocks, nn.ModuleList) and len(blocks) == depth:
        del blocks[layers:]
    if isinstance(model, UnrolledModel) and not model.config.tied:
        for name in PER_LAYER_TENSORS:
            if (tensor := getattr(model, name, None)) is not None:
                rows = tensor.detach()[:layers].clone()
                setattr(model, name, nn.Parameter(rows) if isinstance(tensor, nn.Parameter) else rows)
    # Of a mean-pooled classifier it is the encoder's; in all others base model and model have the same.
    config: Any = model.saved.base_model.config
    for name in PER_LAYER:
        if value := getattr(config, name, None):
            setattr(config, name, value[:layers])
    # ESM's head for contacts reads the attention of every block.
    if contacts := getattr(model.saved.base_model, "contact_head", None):
        inputs = layers * config.num_attention_heads
        contacts.in_features = contacts.regression.in_features = inputs
        contacts.regression.weight = nn.Parameter(contacts.regression.weight.detach()[:, :inputs].clone())
    setattr(config, "depth" if hasattr(config, "depth") else "num_hidden_layers", layers)
    if stages := getattr(config, "stage_names", None):  # DINOv2's names of the embedding's and the blocks' outputs
        config.stage_names = stages[: layers + 1]
        config.set_output_features_output_indices(None, None)


def train_last(model: LibraryModel, blocks: int) -> None:
    """Freeze a model but for its readout and its last blocks, in place: no gradient is computed below these.

    The readout is the final norm and the head. A language model's head that shares its weight with the word embedding
    gets a weight of its own, because the embedding is frozen.

    Args:
        model: A model around one of Transformers' without adapters.
        blocks: How many blocks learn; all, if the model has no more.

    Raises:
        InputError: If the layers share their weights, so that none can be frozen alone.
    """
    layers = list(model.layer_modules)
    if len(layers) != model.depth:
        raise InputError(
            f"the last blocks can't be trained alone: all {model.depth} layers of {type(model.saved).__name__} share "
            "one block. Train all of it."
        )
    model.separate_head()
    model.library.requires_grad_(False)
    readout = [model.library.get_submodule(name) for name in model.copied]
    for part in (*readout, model.last_of_head, *layers[-blocks:]):
        part.requires_grad_()


def merged(network: Any) -> PreTrainedModel:
    """The model of Transformers with PEFT's adapters added to its weights; a model without adapters as it is.

    Where input embedding and head share a weight that has an adapter, they are separated first: adding the adapter to
    the shared weight would change both.
    """
    if not hasattr(network, "merge_and_unload"):
        return network
    library = network.get_base_model()
    ends = [library.get_input_embeddings(), library.get_output_embeddings()]
    plain = [getattr(each, "base_layer", each) for each in ends]
    if any(hasattr(each, "base_layer") for each in ends) and plain[0].weight is plain[1].weight:
        plain[1].weight = nn.Parameter(plain[1].weight.detach().clone())
        library.config.tie_word_embeddings = False
    return network.merge_and_unload()


@torch.no_grad()
def plain_output(network: nn.Module, inputs: Any) -> Tensor:
    """What a model's ``forward`` predicts, without any of our readouts.

    Args:
        network: A model of Transformers, or a denoiser.
        inputs: What `probe_inputs` of its layered model gives.

    Returns:
        The logits, or the reconstruction (B, T, N, P).
    """
    if isinstance(network, Denoiser):
        return network(inputs).reconstruction
    logits: Any = logits_of(network(**inputs))
    return logits
