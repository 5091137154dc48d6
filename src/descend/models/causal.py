"""Hugging Face causal language models whose every layer is read by the model's final norm and head."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.library import LibraryModel
from descend.models.own_exits import TRANSLATOR


def _capped(config: Any, logits: Tensor) -> Tensor:
    cap = config.final_logit_softcapping
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _divided(config: Any, logits: Tensor) -> Tensor:
    return logits / config.logits_scaling


def _multiplied(config: Any, logits: Tensor) -> Tensor:
    return logits * config.logit_scale


class Family(NamedTuple):
    """A row of `FAMILIES`: the parts of a language model that differ between model families.

    Attributes:
        scale: (configuration, the head's output) → logits.
        blocks: The dotted name of the blocks, from the model's ``base_model``.
        norm: The dotted name of the final norm, from there.
        drafts: Whether the model runs ``config.num_hidden_layers`` blocks and no more, as
            ``generate(assistant_early_exit=k)`` needs to draft with k layers.
    """

    scale: Callable[[Any, Tensor], Tensor] = lambda config, logits: logits
    blocks: str = "layers"
    norm: str = "norm"
    drafts: bool = True


FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "llama",
            "apertus",
            "arcee",
            "bitnet",
            "cwm",
            "diffllama",
            "ernie4_5",
            "flex_olmo",
            "gemma",
            "glm",
            "glm4",
            "helium",
            "hunyuan_v1_dense",
            "ministral",
            "ministral3",
            "mistral",
            "mixtral",
            "olmo",
            "olmo2",
            "olmo3",
            "olmoe",
            "phi3",
            "phimoe",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "seed_oss",
            "smollm3",
            "starcoder2",
        ),
        Family(),
    ),
    **dict.fromkeys(("exaone4", "gpt_oss", "nemotron", "stablelm"), Family(drafts=False)),
    **dict.fromkeys(("gemma2", "gemma3_text", "vaultgemma"), Family(_capped)),
    **dict.fromkeys(("granite", "granitemoe"), Family(_divided)),
    "cohere": Family(_multiplied),
    "cohere2": Family(_multiplied, drafts=False),
    "phi": Family(norm="final_layernorm"),
    "persimmon": Family(norm="final_layernorm", drafts=False),
    **dict.fromkeys(("gpt2", "falcon", "gpt_bigcode", "gptj"), Family(blocks="h", norm="ln_f", drafts=False)),
    "gpt_neox": Family(norm="final_layer_norm", drafts=False),
    **dict.fromkeys(("biogpt", "xglm"), Family(norm="layer_norm", drafts=False)),
    "opt": Family(blocks="decoder.layers", norm="decoder.final_layer_norm", drafts=False),
}
"""``config.model_type`` → the model family. In all of them the final norm and `get_output_embeddings` read h_L."""


class LayeredCausalLM(LibraryModel):
    """A Hugging Face causal language model whose every layer's output is read by its final norm and head.

    h_0 is the first block's input and h_l the output of block l before the final norm, which belongs to the readout.
    In Transformers' ``output_hidden_states`` the last one is after the norm.

    Args:
        network: A model of one of `FAMILIES`, as `AutoModelForCausalLM` loads it, with or without PEFT
            adapters.

    Raises:
        InputError: If the model's family is not in the table, or it has no head.
    """

    families = FAMILIES
    is_decoder = True

    def __init__(self, network: PreTrainedModel):
        if not hasattr(network, "get_output_embeddings"):
            raise InputError(f"expected a causal language model; got {type(network).__name__}.")
        super().__init__(network)
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
    def head(self) -> nn.ModuleList:
        """The parts of the readout, which are the final norm and the head."""
        return nn.ModuleList([self.library.base_model.get_submodule(self.family.norm), self.last_of_head])

    translates = True

    @property
    def copied(self) -> list[str]:
        """The final norm."""
        return [f"{self.library.base_model_prefix}.{self.family.norm}"]

    def adopt(self, exit: nn.ModuleDict) -> None:
        """Put an own exit in the place of the model's: its norm, and its square matrix multiplied into the head.

        A head that shares its weight with the word embedding gets a weight of its own.
        """
        super().adopt(exit)
        self.separate_head()
        head: Any = self.last_of_head
        matrix: Any = exit[TRANSLATOR].weight
        with torch.no_grad():
            head.weight.copy_(head.weight.double() @ matrix.double())

    def separate_head(self) -> None:
        """Give a head that shares its weight with the word embedding a weight of its own; others stay."""
        head: Any = self.last_of_head
        head.weight = nn.Parameter(head.weight.detach().clone())
        self.config.tie_word_embeddings = False

    @property
    def last_of_head(self) -> nn.Module:
        """The module that turns hidden states into logits, before they are scaled."""
        return self.library.get_output_embeddings()

    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """The tokens themselves, each the target of the one before."""
        return {"labels": tokens}

    def cross_entropy(self, logits: Tensor, labels: Mapping[str, Tensor]) -> Tensor:
        """The mean cross-entropy over next tokens."""
        return super().cross_entropy(logits[:, :-1], {"labels": labels["labels"][:, 1:]})

    def readout(self, hidden: Tensor, *, layer: int | None = None) -> Tensor:
        """The logits (…, V) that final norm and head read from one layer's output (…, H).

        Args:
            hidden: h_l.
            layer: l, to read it by its own exit; None to read it as the last layer is.
        """
        return self.logits(self.head_input(hidden, layer))

    def head_input(self, hidden: Tensor, layer: int | None) -> Tensor:
        """The head's input (…, H): a layer's output after its norm, and after the square matrix of an own exit."""
        normed = self.part(self.copied[0], layer)(hidden)
        own = self.own_exit(layer)
        return normed if own is None else own[TRANSLATOR](normed)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (…, V) that the head makes of its input (…, H)."""
        return self.family.scale(self.config, self.last_of_head(hidden))
