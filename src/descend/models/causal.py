"""Hugging Face causal language models whose every layer is read by the model's final norm and head."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.library import LibraryModel


def _plain(config: Any, logits: Tensor) -> Tensor:
    return logits


def _capped(config: Any, logits: Tensor) -> Tensor:
    cap = config.final_logit_softcapping
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _divided(config: Any, logits: Tensor) -> Tensor:
    return logits / config.logits_scaling


def _multiplied(config: Any, logits: Tensor) -> Tensor:
    return logits * config.logit_scale


LOGITS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "llama": _plain,
    "mistral": _plain,
    "ministral": _plain,
    "qwen2": _plain,
    "qwen3": _plain,
    "gemma": _plain,
    "gemma2": _capped,
    "gemma3_text": _capped,
    "phi3": _plain,
    "olmo2": _plain,
    "smollm3": _plain,
    "granite": _divided,
    "cohere": _multiplied,
}
"""``config.model_type`` → what the family does to its head's output. All families have blocks, then
``base_model.norm``, then `get_output_embeddings`."""


class LayeredCausalLM(LibraryModel):
    """A Hugging Face causal language model whose every layer's output is read by its final norm and head.

    h_0 is the first block's input and h_l the output of block l before the final norm, which belongs to the readout.
    In Transformers' ``output_hidden_states`` the last one is after the norm.

    Args:
        network: A model of one of the families in `LOGITS`, as `AutoModelForCausalLM` loads it, with or without PEFT
            adapters.

    Raises:
        InputError: If the model's family is not in the table, or it has no head.
    """

    def __init__(self, network: PreTrainedModel):
        if not hasattr(network, "get_output_embeddings"):
            raise InputError(f"expected a causal language model; got {type(network).__name__}.")
        super().__init__(network)
        kind = self.config.model_type
        if kind not in LOGITS:
            raise InputError(
                f"model_type must be one of {', '.join(LOGITS)}; got {kind!r}. To add a family whose final norm is "
                "base_model.norm, give descend.models.causal.LOGITS a row: what it does to its head's output."
            )
        if self.library.get_output_embeddings() is None:
            raise InputError(
                f"expected a causal language model; got {type(self.library).__name__}. Load it with "
                "AutoModelForCausalLM."
            )

    @property
    def limits(self) -> dict[str, int]:
        """The size of the vocabulary, and the longest text in tokens."""
        return {"vocabulary": self.config.vocab_size, "length": self.config.max_position_embeddings}

    @property
    def layer_modules(self) -> Iterable[nn.Module]:
        """The blocks of the Hugging Face model."""
        return self.library.base_model.layers

    @property
    def head(self) -> nn.ModuleList:
        """The parts of the readout: the final norm and the head."""
        return nn.ModuleList([self.library.base_model.norm, self.library.get_output_embeddings()])

    def probe(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Two short texts."""
        embedding: Tensor = self.library.get_input_embeddings().weight
        tokens = torch.arange(12, device=embedding.device).reshape(2, 6) % (len(embedding) - 4) + 4
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        *_, read = self.predictions(inputs)
        return inputs, tokens, read

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy over next tokens."""
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())

    def layer_outputs(self, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """h_0 … h_L, each (B, T, H), of a tokenizer's fields, such as ``input_ids`` and ``attention_mask``."""
        base = self.library.base_model
        last: list[Tensor] = []
        handle = base.norm.register_forward_pre_hook(lambda module, args: last.append(args[0]))
        try:
            given = {name: value for name, value in inputs.items() if name != "places"}
            hidden = base(**given, use_cache=False, output_hidden_states=True).hidden_states
        finally:
            handle.remove()
        return (*hidden[:-1], *last)

    def readout(self, hidden: Tensor) -> Tensor:
        """The logits (…, V) that final norm and head read from one layer's output (…, H)."""
        norm, head = self.head
        return LOGITS[self.config.model_type](self.config, head(norm(hidden)))

    def predictions(self, inputs: Mapping[str, Any]) -> Iterator[Tensor]:
        """The logits of every layer: (N, V) at the N ``places`` of B·T if ``inputs`` has them, otherwise (B, T, V)."""
        places = inputs.get("places")
        states = self.layer_outputs(inputs)
        return (self.readout(state if places is None else state.flatten(0, 1)[places]) for state in states)
