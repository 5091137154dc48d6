"""Cut a model after its first K layers: the result is a plain checkpoint whose output is exit K's."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.dust import DUST
from descend.models.layered import LayeredModel
from descend.models.library import PER_LAYER, LibraryModel
from descend.models.unrolled import UnrolledModel
from descend.models.ut import UT
from descend.models.vit import ViTDenoiser


def keep_first(model: LayeredModel, layers: int) -> None:
    """Remove all layers after the first K, in place; embeddings, final norm and head stay.

    The configuration gets K as its number of layers, and its lists with one entry for each layer get shorter. A model
    that shares one set of weights between all layers keeps its weights and runs K of L times.

    Args:
        model: A model around one of Transformers' without adapters, a `ViTDenoiser`, a `UT` or a `DUST`.
        layers: K, from 1 to the model's depth.

    Raises:
        InputError: If K is out of range, or the model is of another kind.
    """
    depth = model.depth
    if not 1 <= layers <= depth:
        raise InputError(f"layers must be 1 to {depth}, the number of layers of the model; got {layers}.")
    if isinstance(model, UnrolledModel):
        _cut_unrolled(model, layers)
    elif isinstance(model, LibraryModel):
        _cut_blocks(model.layer_modules, depth, layers)
    elif isinstance(model, ViTDenoiser):
        _cut_blocks(model.vit.layers, depth, layers)
    else:
        raise InputError(
            f"expected a model of Transformers, a ViTDenoiser, a UT or a DUST; got {type(model).__name__}."
        )
    config: Any = model.saved.config
    for name in PER_LAYER:
        if value := getattr(config, name, None):
            setattr(config, name, value[:layers])
    setattr(config, "depth" if hasattr(config, "depth") else "num_hidden_layers", layers)


def _cut_blocks(blocks: Any, depth: int, layers: int) -> None:
    # A model whose layers share weights has fewer modules than layers: all of them stay.
    if isinstance(blocks, nn.ModuleList) and len(blocks) == depth:
        del blocks[layers:]


def _cut_unrolled(model: UnrolledModel, layers: int) -> None:
    """UT and DUST keep the weights of all layers in one tensor, a layer a row; DUST has one more row, the readout."""
    if model.config.tied:
        return
    rows = list(range(layers))
    names: tuple[str, ...] = ("projection", "feedforward")
    if isinstance(model, DUST):
        rows.append(model.depth)
        names = ("dictionary", "leading") if model.tracked else ("dictionary",)
    else:
        assert isinstance(model, UT)
    for name in names:
        tensor: Tensor = getattr(model, name)
        shorter = tensor.detach()[rows].clone()
        setattr(model, name, nn.Parameter(shorter) if isinstance(tensor, nn.Parameter) else shorter)


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
def probe_inputs(model: LayeredModel) -> Any:
    """A small made-up input of a model, in the form that its `layer_outputs` takes."""
    if isinstance(model, LibraryModel):
        return model.probe()[0]
    config: Any = model.saved.config
    if isinstance(model, ViTDenoiser):
        shape = ((config.frame_size // config.frame_patch) ** 2, config.frame_patch**2)
    else:
        shape = (4, config.patch_size**2)
    weight = next(model.parameters())
    drawn = torch.rand(1, 2, *shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(weight.device, weight.dtype)


@torch.no_grad()
def own_output(network: nn.Module, inputs: Any) -> Tensor:
    """What a model's ``forward`` predicts, without any of our readouts: logits, or a reconstruction."""
    if isinstance(network, UnrolledModel | ViTDenoiser):
        return network(inputs).reconstruction
    return network(**inputs).logits
