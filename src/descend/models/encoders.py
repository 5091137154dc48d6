"""Hugging Face models that read a whole text: a table of families, the base of their heads, and heads for tokens."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from descend.errors import refuse
from descend.models.library import LOOKS, LibraryModel
from descend.models.linear_readout import MeanPooledConfig, masked_mean
from descend.models.text_ut import TextUTConfig

Norm = Callable[[Tensor], Tensor]
"""A final norm, or the identity."""


def last_token(config: Any, inputs: Mapping[str, Tensor]) -> Tensor | None:
    """The place (B,) of each text's last token that is not padding, as Transformers finds it; None without tokens."""
    if "input_ids" not in inputs:
        return inputs.get(LOOKS)
    ids = inputs["input_ids"]
    places = torch.arange(ids.shape[1], device=ids.device, dtype=torch.int32)
    return (places * (ids != config.pad_token_id)).argmax(-1)


def first(config: Any, norm: Norm, hidden: Tensor, looks: Tensor | None) -> Tensor:
    """The first token (B, H), normed."""
    return norm(hidden[:, 0])


def _last(config: Any, norm: Norm, hidden: Tensor, looks: Tensor | None) -> Tensor:
    rows = torch.arange(len(hidden), device=hidden.device)
    return norm(hidden[:, -1] if looks is None else hidden[rows, looks])


def _first_or_mean(config: Any, norm: Norm, hidden: Tensor, looks: Tensor | None) -> Tensor:
    return masked_mean(norm(hidden), looks) if config.classifier_pooling == "mean" else norm(hidden[:, 0])


def _alone(pooled: Tensor) -> Tensor:
    """A text (B, 1, H) of the first token alone, for a head that takes this token itself."""
    return pooled[:, None]


def _positions_after_padding(config: Any) -> int:
    return config.max_position_embeddings - config.pad_token_id - 1


_positions = attrgetter("max_position_embeddings")

Head = tuple[str | Callable[[Tensor], Tensor], ...]
"""The parts of a head in the order of their calls: dotted names of modules of the Hugging Face model, or functions.

A name that starts with a dot is that of a module of its ``base_model``."""


class Family(NamedTuple):
    """A row of `FAMILIES`: the parts of a model that have different names in each model family.

    Attributes:
        pool: (configuration, norm, hidden state (B, T, H), what ``looks`` gives) → the head's input (B, H), normed.
        head: The parts that make the logits (B, C) of the head's input.
        blocks: The dotted name of the blocks, from the model's ``base_model``.
        longest: Configuration → the longest text in tokens; None if the model has no positions.
        looks: (configuration, inputs) → which tokens the head looks at: a mask (B, T) or places (B,); None for the
            first token, or for all.
        norm: The dotted name of the norm after the last block, from ``base_model``; None if there is none.
        after_first: The dotted name, from ``base_model``, of a module that runs after block 1 and gives h_1; in most
            models of such a family it is None.
        token_head: The parts that read each token of ``ForTokenClassification``.
        answer_head: The same for ``ForQuestionAnswering``. Empty for a family without such a class.
    """

    pool: Callable[[Any, Norm, Tensor, Tensor | None], Tensor]
    head: Head
    blocks: str
    longest: Callable[[Any], int] | None
    looks: Callable[[Any, Mapping[str, Tensor]], Tensor | None] = lambda config, inputs: inputs.get("attention_mask")
    norm: str | None = None
    after_first: str | None = None
    token_head: Head = ()
    answer_head: Head = ()


_TOKENS: dict[str, Any] = {"token_head": ("dropout", "classifier"), "answer_head": ("qa_outputs",)}
_MODERNBERT = ("head", "drop", "classifier")
_DEBERTA = Family(first, (_alone, "pooler", "dropout", "classifier"), "encoder.layer", _positions, **_TOKENS)
_BERT = _DEBERTA._replace(head=(_alone, ".pooler", "dropout", "classifier"))
_ELECTRA = _DEBERTA._replace(head=(_alone, "classifier"))
_ROBERTA = _ELECTRA._replace(longest=_positions_after_padding)
_LLAMA = Family(_last, ("score",), "layers", _positions, last_token, norm="norm")
_GPT2 = _LLAMA._replace(blocks="h", norm="ln_f")
_PHI = _LLAMA._replace(norm="final_layernorm")

FAMILIES: dict[str, Family] = {
    "distilbert": Family(
        first,
        ("pre_classifier", F.relu, "dropout", "classifier"),
        "transformer.layer",
        _positions,
        token_head=("dropout", "classifier"),
        answer_head=("dropout", "qa_outputs"),
    ),
    **dict.fromkeys(("bert", "ernie", "fnet", "mobilebert", "rembert", "roc_bert"), _BERT),
    **dict.fromkeys(("luke", "markuplm"), _BERT._replace(longest=_positions_after_padding)),
    "megatron-bert": _BERT._replace(norm="encoder.ln"),
    "layoutlm": _BERT._replace(answer_head=()),
    **dict.fromkeys(("gte", "nomic_bert"), _BERT._replace(blocks="layers", answer_head=())),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet"), _ROBERTA),
    "xlm-roberta-xl": _ROBERTA._replace(norm="encoder.LayerNorm"),
    "roberta-prelayernorm": _ROBERTA._replace(norm="LayerNorm"),
    "esm": _ROBERTA._replace(norm="encoder.emb_layer_norm_after", answer_head=()),
    **dict.fromkeys(("electra", "convbert", "roformer", "yoso"), _ELECTRA),
    "jina_embeddings_v3": _ELECTRA._replace(blocks="layers"),
    "albert": _BERT._replace(
        head=(".pooler", ".pooler_activation", "dropout", "classifier"),
        blocks="encoder.albert_layer_groups",
    ),
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA._replace(after_first="encoder.conv"),
    "modernbert": Family(
        _first_or_mean,
        _MODERNBERT,
        "layers",
        _positions,
        norm="final_norm",
        token_head=_MODERNBERT,
        answer_head=_MODERNBERT,
    ),
    "modernbert-decoder": _LLAMA._replace(head=_MODERNBERT, norm="final_norm"),
    **dict.fromkeys(
        (
            "llama",
            "arcee",
            "diffllama",
            "exaone4",
            "gemma",
            "gemma2",
            "gemma3_text",
            "glm",
            "glm4",
            "gpt_oss",
            "helium",
            "hunyuan_v1_dense",
            "ministral",
            "ministral3",
            "mistral",
            "mixtral",
            "nemotron",
            "olmo",
            "olmo2",
            "olmo3",
            "phi3",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "seed_oss",
            "smollm3",
            "stablelm",
            "starcoder2",
        ),
        _LLAMA,
    ),
    **dict.fromkeys(("phi", "persimmon"), _PHI),
    **dict.fromkeys(("gpt2", "falcon", "gpt_bigcode", "gptj"), _GPT2),
    "mpt": _LLAMA._replace(blocks="blocks", norm="norm_f", longest=attrgetter("max_seq_len")),
    "gpt_neox": _LLAMA._replace(norm="final_layer_norm"),
    "biogpt": _LLAMA._replace(norm="layer_norm"),
    "opt": _LLAMA._replace(blocks="decoder.layers", norm="decoder.final_layer_norm"),
    # The rest is its encoder's, see `family_of`.
    MeanPooledConfig.model_type: Family(_first_or_mean, ("dropout", "score"), "", None),
    TextUTConfig.model_type: Family(_first_or_mean, ("dropout", "classifier"), "layers", None),
}
"""``config.model_type`` → the model family. Transformers has common names for embeddings and hidden states, but not for
heads and blocks."""


class LayeredEncoder(LibraryModel):
    """The base of models whose head reads the whole text: classifiers, token classifiers, question answering.

    h_0 is the embedding output and h_l the output of block l, as in Transformers' ``output_hidden_states``. The output
    of the last block comes before a final norm, which belongs to the readout.

    Raises:
        InputError: If the model's family is not in the table, or its class has another head.
    """

    families = FAMILIES

    task_class: ClassVar[str]
    """The end of the names of Transformers' classes with this head, such as ``ForSequenceClassification``."""

    head_field: ClassVar[str]
    """The field of `Family` that holds this head."""

    def __init__(self, network: PreTrainedModel):
        super().__init__(network)
        config = self.library.base_model.config
        groups = {name: getattr(config, name, 1) for name in ("num_hidden_groups", "inner_group_num")}
        able = [name for name, family in FAMILIES.items() if getattr(family, self.head_field)]
        refuse(
            (
                not any(each.__name__.endswith(self.task_class) for each in type(self.library).__mro__),
                f"expected a model {self.task_class}; got {type(self.library).__name__}. Load it with "
                f"AutoModel{self.task_class}.",
            ),
            (
                any(count != 1 for count in groups.values()),
                "expected an ALBERT whose layers all share one block, as in the published models; got "
                f"{', '.join(f'{name} {count}' for name, count in groups.items())}.",
            ),
            (
                not self.head,
                f"model_type must be one of {', '.join(able)} for a model {self.task_class}; got "
                f"{self.config.model_type!r}. Use descend.layered(model, ...).",
            ),
        )

    @property
    def limits(self) -> dict[str, int]:
        """The number of labels, the size of the vocabulary, and the longest text in tokens."""
        longest = {} if self.family.longest is None else {"length": self.family.longest(self.config)}
        return {"labels": self.config.num_labels, "vocabulary": self.config.vocab_size, **longest}

    @property
    def head(self) -> Head:
        """The parts of the head."""
        base = self.library.base_model_prefix
        parts: Head = getattr(self.family, self.head_field)
        return tuple(f"{base}{part}" if isinstance(part, str) and part[0] == "." else part for part in parts)

    @property
    def last_of_head(self) -> nn.Module:
        """The module that gives the logits."""
        return self.library.get_submodule(self.head[-1])

    @property
    def _norm_name(self) -> str | None:
        """The dotted name of the norm after the last block; None if there is none."""
        return None if self.family.norm is None else f"{self.library.base_model_prefix}.{self.family.norm}"

    @property
    def copied(self) -> list[str]:
        """The norm and the head."""
        return [*filter(None, [self._norm_name]), *(part for part in self.head if isinstance(part, str))]

    def head_parameters(self) -> list[nn.Parameter]:
        """The parameters of the head and of own exits."""
        parts = [self.library.get_submodule(part) for part in self.head if isinstance(part, str)]
        return [*super().head_parameters(), *(parameter for part in parts for parameter in part.parameters())]

    def norm(self, layer: int | None) -> Norm:
        """The norm that reads a layer, see `part`."""
        return nn.Identity() if self._norm_name is None else self.part(self._norm_name, layer)

    def readout(self, hidden: Tensor, *, layer: int | None = None) -> Tensor:
        """The logits (…, C) that the head reads from tokens (…, H) of one layer's output."""
        return self.read_by_head(self.norm(layer)(hidden), layer)

    def read_by_head(self, hidden: Tensor, layer: int | None) -> Tensor:
        """The logits that the head of a layer makes of its input."""
        for part in self.head:
            hidden = self.part(part, layer)(hidden) if isinstance(part, str) else part(hidden)
        return hidden

    @property
    def is_decoder(self) -> bool:
        """Whether the head reads the last token, as it does of decoders."""
        return self.family.looks is last_token

    def looks(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Which tokens of a batch the head looks at, see `Family`."""
        return self.family.looks(self.config, inputs)

    def embedded(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of the same forward pass with words' embeddings, ``inputs_embeds``, in place of ``input_ids``."""
        others = {name: value for name, value in inputs.items() if name != "input_ids"}
        if "input_ids" not in inputs:
            return others
        ids, base = inputs["input_ids"], self.library.base_model
        padding = getattr(getattr(base, "embeddings", None), "padding_idx", None)
        if padding is not None and "position_ids" not in others:  # RoBERTa and MPNet count what is no padding
            is_text = ids.ne(padding).long()
            others["position_ids"] = padding + is_text.cumsum(1) * is_text
        looks = self.looks(inputs)
        if self.is_decoder and looks is not None:
            others[LOOKS] = looks
        words = self.get_input_embeddings()(ids)
        if getattr(base.config, "token_dropout", False):
            words = _rescaled(words, ids, inputs.get("attention_mask"), base.config.mask_token_id)
        return others | {"inputs_embeds": words}


def _rescaled(words: Tensor, ids: Tensor, mask: Tensor | None, masked: int) -> Tensor:
    """The words (B, T, H) of ESM as it scales them where it knows their numbers, as if 12 % of a text were masked."""
    gone = ids == masked
    lengths = ids.shape[1] if mask is None else mask.sum(1)
    scale = (1 - 0.15 * 0.8) / (1 - gone.sum(1) / lengths)
    return words.masked_fill(gone[..., None], 0.0) * scale[:, None, None].to(words.dtype)


class LayeredTokenClassifier(LayeredEncoder):
    """A Hugging Face token classifier whose every layer's output is read by its head.

    Args:
        network: A model of one of `FAMILIES` with a ``token_head``, as `AutoModelForTokenClassification` loads it, with
            or without PEFT adapters.

    Raises:
        InputError: If the model's family is not in the table, or it is no token classifier.
    """

    task_class = "ForTokenClassification"
    head_field = "token_head"

    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """Each class in turn, (B, T)."""
        labels = torch.arange(tokens.numel(), device=tokens.device) % self.config.num_labels
        return {"labels": labels.reshape(tokens.shape)}


class LayeredQuestionAnswerer(LayeredEncoder):
    """A Hugging Face model that marks where an answer starts and ends, whose every layer's output is read by its head.

    A prediction is (B, T, 2): logits of the start and of the end at each token.

    Args:
        network: A model of one of `FAMILIES` with an ``answer_head``, as `AutoModelForQuestionAnswering` loads it, with
            or without PEFT adapters.

    Raises:
        InputError: If the model's family is not in the table, or it answers no questions.
    """

    task_class = "ForQuestionAnswering"
    head_field = "answer_head"

    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """Answers of two tokens, each text's at another place."""
        starts = torch.arange(len(tokens), device=tokens.device) % 3
        return {"start_positions": starts, "end_positions": starts + 1}

    def cross_entropy(self, logits: Tensor, labels: Mapping[str, Tensor]) -> Tensor:
        """The mean of the cross-entropies of start and end."""
        places = torch.stack([labels["start_positions"], labels["end_positions"]], 1)
        return super().cross_entropy(logits.transpose(1, 2), {"labels": places})
