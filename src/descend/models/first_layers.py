"""Cut a model after its first K layers, so that its output is exit K's."""

from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.denoiser import Denoiser, UnrolledModel
from descend.models.hooked import HookedModel
from descend.models.layered import LayeredModel
from descend.models.library import PER_LAYER, LibraryModel, logits_of
from descend.models.modules import changed

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
    _refuse_number(layers, depth)
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


def first(model: HookedModel, layers: int) -> "FirstLayers":
    """The network that stops after block K: its output is that of exit K.

    Args:
        model: A model that `layered` has made, of one block that runs several times or of several blocks. It stays as
            it is.
        layers: K, the number of block calls, from 1 to the model's depth.

    Raises:
        InputError: If K is out of range, or the model was not made by `layered`.
    """
    if not isinstance(model, HookedModel):
        raise InputError(
            f"expected a model that descend.layered has made; got a {type(model).__name__}. Of a run with another "
            "model, descend export RUN --layers K writes the first layers."
        )
    _refuse_number(layers, model.depth)
    return FirstLayers(model, layers)


class FirstLayers(nn.Module):
    """A copy of a user's network that runs its first K blocks. Create one with `first`.

    The network's forward pass stays its own: a call after the K-th returns what the K-th returned. So what follows the
    last block, such as a head, reads h_K.

    Args:
        model: See `first`.
        layers: K.
    """

    def __init__(self, model: HookedModel, layers: int):
        super().__init__()
        self.layers = layers
        self.model = deepcopy(model)
        """The copy, whose blocks that never run have no weights."""
        self.training = model.training
        for block in self.model.layer_modules[len(self.model.blocks_of(layers)) :]:
            for part in ("_parameters", "_buffers", "_modules"):
                getattr(block, part).clear()

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The output of the network after K block calls, for the arguments of its ``forward``."""
        outputs: list[Any] = []

        def shortened(run: Any) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                if len(outputs) < self.layers:
                    outputs.append(run(*given, **named))
                return outputs[-1]

            return call

        with ExitStack() as patches:
            for block in self.model.layer_modules:
                patches.enter_context(changed(block, forward=shortened(block.forward)))
            return self.model(*args, **inputs)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """The weights of the network under its own names, without those of blocks that never run."""
        return self.model.network.state_dict(*args, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Load what `state_dict` gives."""
        return self.model.network.load_state_dict(state_dict, *args, **options)


def _refuse_number(layers: Any, depth: int) -> None:
    """Raise an error unless K is a whole number from 1 to L."""
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= depth:
        raise InputError(f"layers must be 1 to {depth}, the number of layers of the model; got {layers!r}.")


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
        network: A model of Transformers, a denoiser, or an unrolled solver.
        inputs: What `probe_inputs` of its layered model gives.

    Returns:
        The logits, the reconstruction (B, T, N, P), or the signal (B, …).
    """
    if isinstance(network, Denoiser):
        return network(inputs).reconstruction
    output = network(**inputs)
    logits: Any = output if isinstance(output, Tensor) else logits_of(output)
    return logits
