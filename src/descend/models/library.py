"""The base class of wrappers around Hugging Face models."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from descend.errors import InputError, refuse
from descend.models.layered import PLACES
from descend.models.linear_readout import EncoderInside
from descend.models.modules import WrappedModel, changed, close, cuda_devices, evaluating
from descend.models.own_exits import EXITS, MARK, TRANSLATOR, key_of, load_saved

TRUSTED = ("transformers", "descend", "peft", "torch")
"""Packages whose models are known to compute backbone, then head, then cross-entropy."""

LOOKS = "looks"
"""The field of a batch that says which tokens a classifier's head looks at, if the batch has no token numbers."""

MOST_PROBES = 64

PROBED_LOGITS = 3.0
"""The size of logits, as the root of their mean square, at which losses are compared; a new head's are near 0."""

PER_LAYER = ("layer_types", "no_rope_layers")
"""Fields of a configuration with one entry for each block. A copy of the first K blocks has ``num_hidden_layers`` = K
(every family has that name, some as an alias) and the first K entries of these."""


def check_family(config: Any, families: Mapping[str, Any]) -> None:
    """Raise an error if the layers of a Hugging Face model can't be read by its head, or no row says how.

    Args:
        config: The model's configuration.
        families: ``config.model_type`` → the model family.
    """
    kind = config.model_type
    unreadable = f"the layers of {kind!r} can't be read by its head:"
    refuse(
        (
            getattr(config, "is_encoder_decoder", False),
            f"{unreadable} it has an encoder and a decoder, whose layers form no chain from one input embedding to one "
            "head.",
        ),
        (
            bool(getattr(getattr(config, "text_config", config), "hidden_size_per_layer_input", 0)),
            f"{unreadable} every block reads an embedding of its own beside the hidden states, which noise on the "
            "input can't reach.",
        ),
        (
            getattr(config, "output_router_logits", False),
            f"{unreadable} its loss has a term that balances the experts, which layers do not have. To train without "
            "it set config.output_router_logits = False, or for DescentSFTTrainer router_aux_loss_coef=0.",
        ),
        (kind == "funnel", f"{unreadable} its blocks shorten the text, so one head can't read every layer."),
        (
            kind == "opt" and not (config.do_layer_norm_before and config.word_embed_proj_dim == config.hidden_size),
            f"{unreadable} it has no norm after the last block, or projects what that gives, as opt-350m alone does.",
        ),
        (
            kind == "beit" and not config.use_mean_pooling,
            f"{unreadable} it reads [CLS]. Give it the mean patch: config.use_mean_pooling = True.",
        ),
        (kind not in families, unknown(kind, families)),
    )


def unknown(kind: str, families: Iterable[str]) -> str:
    """The error of a model of no known family: which families are known, and how to name the blocks of another one.

    Args:
        kind: The model's ``model_type``.
        families: The known ones.
    """
    return (
        f"model_type must be one of {', '.join(families)}; got {kind!r}. For another family name the parts in Python, "
        "as print(model) shows them: descend.layered(model, blocks='encoder.layer', readout=lambda hidden: "
        "model.classifier(hidden[:, 0]), embeddings='embeddings.word_embeddings'). Or give its table FAMILIES a row."
    )


def family_of(config: Any, families: Mapping[str, Any]) -> Any:
    """The row of a configuration; one with an encoder inside has the blocks, norm and longest text of that encoder.

    Args:
        config: The model's configuration.
        families: ``config.model_type`` → the model family.

    Raises:
        InputError: If the model's family or the encoder's is not in the table, see `check_family`.
    """
    check_family(config, families)
    row = families[config.model_type]
    if not isinstance(config, EncoderInside):
        return row
    encoder = family_of(config.encoder, families)
    longest = encoder.longest
    return row._replace(
        blocks=encoder.blocks,
        longest=None if longest is None else lambda config: longest(config.encoder),
        norm=encoder.norm,
        after_first=encoder.after_first,
    )


@contextmanager
def before_norm(base: Any, norm: str | None) -> Iterator[Callable[[Sequence[Tensor]], tuple[Tensor, ...]]]:
    """Let the last of a Hugging Face model's hidden states be h_L, before the final norm, inside the ``with`` block.

    Args:
        base: The model without its head.
        norm: The dotted name in it of the norm after the last block; None if there is none.

    Yields:
        A function: the hidden states that the last forward pass lists → h_0 … h_L, each (B, T, H).
    """
    collected = "hidden_states" in (base._can_record_outputs or {})
    altered = {} if base.config.return_dict else {"return_dict": True}  # else a model's parts return tuples, too
    if norm is not None and collected:
        altered["tie_last_hidden_states"] = False  # a saved configuration has no such entry
    last: list[Tensor] = []
    with ExitStack() as during:
        if altered:
            during.enter_context(changed(base.config, **altered))
        if norm is not None and not collected:
            # A forward pass that lists its hidden states by hand puts the final norm's output in h_L's place.
            hook = base.get_submodule(norm).register_forward_pre_hook(lambda module, args: last.append(args[0]))
            during.enter_context(hook)
        yield lambda states: (*states[:-1], last[-1]) if last else tuple(states)


def logits_of(outputs: Any) -> Tensor | None:
    """The logits among the outputs of a Hugging Face model; those of start and end as one tensor (B, T, 2).

    None if there are none.
    """
    if not isinstance(outputs, Mapping):
        return None
    start, end = outputs.get("start_logits"), outputs.get("end_logits")
    return outputs.get("logits") if start is None or end is None else torch.stack([start, end], -1)


class LibraryModel(WrappedModel):
    """A Hugging Face model whose layers are read by the model's head.

    The Hugging Face model itself, `network`, is trained and saved, with or without PEFT adapters.

    Raises:
        InputError: If the model's family is not in the table, or adapters add virtual tokens before the text.
    """

    main_input_name = "input_ids"

    families: ClassVar[Mapping[str, Any]]
    """The table of families: ``config.model_type`` → the names of the family's parts."""

    def __init__(self, network: PreTrainedModel):
        super().__init__(network)
        if getattr(getattr(network, "active_peft_config", None), "is_prompt_learning", False):
            raise InputError(
                "expected adapters in the layers, such as LoRA's; got virtual tokens before the text, whose layers "
                "can't be read by the head alone."
            )
        self.family = family_of(self.config, self.families)
        if getattr(self.config, MARK, False) and self.own_exits is None:
            self.give_own_exits()
            load_saved(self.library)

    @property
    def library(self) -> Any:
        """The Hugging Face model, without PEFT's wrapper."""
        inside = getattr(self.network, "get_base_model", None)
        return inside() if inside else self.network

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.library.config

    @property
    def depth(self) -> int:
        """L, the number of blocks."""
        return self.config.num_hidden_layers

    @property
    def layer_modules(self) -> Iterable[nn.Module]:
        """The blocks of the Hugging Face model; one if all layers share it."""
        return self.library.base_model.get_submodule(self.family.blocks)

    def running(self, iterations: int) -> AbstractContextManager[None]:
        """Let the one block that all layers share run another number of times inside the ``with`` block.

        Args:
            iterations: At least 1.

        Raises:
            InputError: If there are several blocks, or exits with a readout of their own, which further ones lack.
        """
        if not self.iterative:
            return super().running(iterations)
        if self.own_exits is not None:
            raise InputError(
                f"{type(self.library).__name__} has own exits for {self.depth} layers and none for further ones; leave "
                "iterations out."
            )
        return changed(self.library.base_model.config, num_hidden_layers=iterations)

    @property
    @abstractmethod
    def is_decoder(self) -> bool:
        """Whether the model can generate, so that it keeps a cache unless told not to."""

    def get_input_embeddings(self) -> nn.Module:
        """The word embedding, before positions and any norm."""
        return self.library.get_input_embeddings()

    def layer_outputs(self, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """h_0 … h_L, each (B, T, H), of a tokenizer's fields, such as ``input_ids`` and ``attention_mask``."""
        base = self.library.base_model
        given = {name: value for name, value in inputs.items() if name not in (LOOKS, PLACES)}
        if self.is_decoder:
            given["use_cache"] = False
        with before_norm(base, self.family.norm) as states:
            return states(base(**given, output_hidden_states=True).hidden_states)

    # --- the readout, and own exits

    @property
    def own_exits(self) -> Any:
        """The own readouts of layers 0 … L−1, if they have some, see `descend.models.own_exits`; None if not."""
        return getattr(self.library, EXITS, None)

    @property
    @abstractmethod
    def copied(self) -> list[str]:
        """The dotted names of the modules that an own exit has a copy of."""

    translates: ClassVar[bool] = False
    """Whether an own exit has a square matrix besides, at first the identity, because the head is too wide to copy."""

    def give_own_exits(self) -> None:
        """Give every inner layer an own readout, a copy of the last one's, unless it has one.

        Raises:
            InputError: If the model has adapters, beside which own exits would not be saved.
        """
        if self.library is not self.network:
            raise InputError(
                "own exits would not be saved beside adapters, which are saved alone. Train the whole model, or choose "
                "shared exits."
            )
        if self.own_exits is not None:
            return
        network, exits = self.library, nn.ModuleList()
        for _ in range(self.depth):
            parts = {key_of(name): deepcopy(network.get_submodule(name)) for name in self.copied}
            if self.translates:
                like, width = next(iter(network.parameters())), self.config.hidden_size
                matrix = nn.Linear(width, width, bias=False, dtype=like.dtype, device=like.device)
                nn.init.eye_(matrix.weight)
                parts[TRANSLATOR] = matrix
            exits.append(nn.ModuleDict(parts))
        setattr(network, EXITS, exits.requires_grad_().train(network.training))
        setattr(network.config, MARK, True)

    def keep_exits(self, layers: int) -> None:
        """Make the own exit of layer K the model's readout, and keep those of the layers before it."""
        if self.own_exits is not None and layers < self.depth:
            self.adopt(self.own_exits[layers])
            del self.own_exits[layers:]

    def separate_head(self) -> None:
        """Give a head that shares its weight with the word embedding a weight of its own; others stay."""

    def share_readout(self) -> None:
        """Take own exits away: all layers are read as the last one is."""
        if self.own_exits is not None:
            delattr(self.library, EXITS)
            delattr(self.config, MARK)

    def adopt(self, exit: nn.ModuleDict) -> None:
        """Put the parts of an own exit in the place of the model's."""
        for name in self.copied:
            self.library.set_submodule(name, exit[key_of(name)])

    def part(self, name: str, layer: int | None = None) -> nn.Module:
        """A module of the readout of a layer by its dotted name; of the last layer's for None."""
        own = self.own_exit(layer)
        return self.library.get_submodule(name) if own is None or name not in self.copied else own[key_of(name)]

    def own_exit(self, layer: int | None) -> Any:
        """The own exit of a layer; None for the last layer, for no layer, and where layers share one readout."""
        shared = self.own_exits is None or layer is None or layer == self.depth
        return None if shared else self.own_exits[layer]

    def head_parameters(self) -> list[nn.Parameter]:
        """The parameters of own exits."""
        return [] if self.own_exits is None else list(self.own_exits.parameters())

    @abstractmethod
    def readout(self, hidden: Tensor, *, layer: int | None = None) -> Tensor:
        """The logits read from one layer's output, by its own exit if the layer is named and has one."""

    def predictions(self, inputs: Mapping[str, Any]) -> Iterator[Tensor]:
        """The logits of every layer: (N, C) at the N ``places`` of B·T if ``inputs`` has them, otherwise (B, T, C)."""
        return self.read(self.layer_outputs(inputs), inputs)

    def read(self, states: Sequence[Tensor], inputs: Mapping[str, Any]) -> Iterator[Tensor]:
        """The same of given layer outputs h_0 … h_L."""
        places = inputs.get(PLACES)
        return (
            self.readout(hidden if places is None else hidden.flatten(0, 1)[places], layer=layer)
            for layer, hidden in enumerate(states)
        )

    def probe_inputs(self) -> dict[str, Tensor]:
        """A small batch of 4 tokens a text without padding: one text for each class, up to `MOST_PROBES`."""
        embedding: Tensor = self.library.get_input_embeddings().weight
        count = min(self.config.num_labels, MOST_PROBES)
        tokens = torch.arange(4 * count, device=embedding.device).reshape(count, 4) % (len(embedding) - 4) + 4
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    @abstractmethod
    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """Labels for the tokens (B, 4) of `probe_inputs`: of every class, so that class weights change the loss."""

    def cross_entropy(self, logits: Tensor, labels: Mapping[str, Tensor]) -> Tensor:
        """The mean loss by which such a model is trained by default, of its logits and of `probe_labels`."""
        return F.cross_entropy(logits.float().flatten(0, -2), labels["labels"].flatten())

    @property
    @abstractmethod
    def last_of_head(self) -> nn.Module:
        """The module of the head that runs last, whose output the logits are made of."""

    @torch.no_grad()
    def refuse_own_outputs(self, *, loss: bool) -> None:
        """Raise an error for a subclass with custom logits or a custom loss, which training would ignore.

        Layers are read by the head only and trained on cross-entropy. A subclass whose ``forward`` scales the logits
        or weights the classes would silently be trained without that. This method compares its outputs with ours on a
        few made-up tokens, once more with logits of the size `PROBED_LOGITS`: near 0 a penalty on logits would differ
        from none by less than rounding. A subclass that changes nothing passes, and so does one whose change does not
        show on these tokens.

        Args:
            loss: Whether to compare losses too; False if the user gives a task.

        Raises:
            InputError: If they differ.
        """
        network = self.library
        if not _overridden(network) or any(each.is_meta for each in network.parameters()):
            return
        with evaluating(self.network), torch.random.fork_rng(devices=cuda_devices(network)):
            size = self._compare(loss=False)
            factor = PROBED_LOGITS / size if size > 0 else 1.0
            with self.last_of_head.register_forward_hook(lambda module, args, output: output * factor):
                self._compare(loss=loss)

    def _compare(self, *, loss: bool) -> float:
        """Compare the Hugging Face model's outputs with ours once; returns the root mean square of the logits."""
        network = self.library
        name = type(network).__name__
        inputs = self.probe_inputs()
        labels = self.probe_labels(inputs[self.main_input_name])
        *_, read = self.predictions(inputs)
        try:
            with changed(network.config, return_dict=True):
                outputs = network(**inputs, **labels)
        except Exception as error:
            raise InputError(
                f"{name} overrides what its parent class computes, and can't be called with "
                f"{', '.join([*inputs, *labels])}: {type(error).__name__}: {error}. Keep its parent's arguments, "
                "or use descend.layered(model, ...)."
            ) from error
        logits, model_loss = logits_of(outputs), outputs.get("loss") if isinstance(outputs, Mapping) else None
        if logits is None or not close(logits, read):
            raise InputError(
                f"{name} computes logits in another way: they differ from those that its head reads from the last "
                "layer's output, which is how every layer is read. Move the change into the head, or use "
                "descend.layered(model, ...) with a readout that does the same."
            )
        expected = self.cross_entropy(read, labels)
        if loss and model_loss is not None and not close(model_loss, expected):
            raise InputError(
                f"{name} computes another loss: {model_loss.item():.4g} on a probe where the cross-entropy is "
                f"{expected.item():.4g}. Training uses the task's loss at every layer, so give yours as task=...: "
                "derive it from descend.Task and return one loss per sample."
            )
        return read.float().square().mean().sqrt().item()


def _overridden(network: nn.Module) -> bool:
    """Whether code outside the known packages computes the model's outputs or its loss."""
    if "forward" in vars(network) or "_loss_function" in vars(network):
        return True
    classes = type(network).__mro__
    owners = [next(each for each in classes if name in vars(each)) for name in ("forward", "loss_function")]
    return any(owner.__module__.split(".")[0] not in TRUSTED for owner in owners)
