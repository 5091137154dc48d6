"""Embedding models: an encoder with what SentenceTransformers puts behind it, whose every layer is read alike."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from descend.errors import InputError, reason, refuse
from descend.models.encoders import FAMILIES, Family, LayeredEncoder, first
from descend.models.linear_readout import EncoderInside
from descend.models.loading import refuse_unsafe
from descend.progress import silent
from descend.reading import read_json

MODULES_FILE = "modules.json"
"""The file by which SentenceTransformers knows its folders."""

LATER = ("Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")
"""The modules that may follow an encoder: what they do is said by numbers and safetensors alone."""

BESIDE = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
"""What is kept of a SentenceTransformer beside its modules, by the names of its arguments."""

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
"""The values of ``similarity_fn_name``."""

_ENCODERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
OF_TRANSFORMER = tuple(f"sentence_{name}_config.json" for name in _ENCODERS)
"""Files of a SentenceTransformer's first module; the first that is there counts."""

MOST_TOKENS = 1_000_000
"""A tokenizer without a longest text has a ``model_max_length`` above this."""


class EmbedderConfig(EncoderInside):
    """Configuration of an `Embedder`.

    Args:
        encoder: The encoder's configuration, or its entries with ``model_type``.
        later: The modules behind the encoder: a dictionary each, with ``type``, one of `LATER`, and its ``config``.
        prompts: Name → text that SentenceTransformers puts before a text.
        default_prompt_name: The prompt that is used unless another is asked for; None for none.
        longest: The longest text in tokens; None if it is not said.
        similarity_fn_name: How SentenceTransformers compares embeddings; None for its default, the cosine.
        truncate_dim: How many of an embedding's first numbers are used; None for all.

    Raises:
        ValueError: If a module behind the encoder is another one.
    """

    model_type = "descend-embedder"

    def __init__(
        self,
        encoder: PreTrainedConfig | dict[str, Any],
        later: Sequence[dict[str, Any]] = (),
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        longest: int | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        **kwargs: Any,
    ):
        for entry in later:
            if entry.get("type") not in LATER or not isinstance(entry.get("config"), dict):
                raise ValueError(
                    f"the modules behind an encoder must be some of {', '.join(LATER)} with a config; got {entry!r}."
                )
        if not later or later[0]["type"] != "Pooling":
            raise ValueError(f"the first module behind an encoder must be Pooling; got {[*later]!r}.")
        self.later, self.prompts, self.default_prompt_name = [*later], {**(prompts or {})}, default_prompt_name
        self.longest, self.similarity_fn_name, self.truncate_dim = longest, similarity_fn_name, truncate_dim
        super().__init__(encoder, **kwargs)

    @property
    def beside(self) -> dict[str, Any]:
        """Prompts, similarity and the numbers that are used, by the names of SentenceTransformer's arguments."""
        return {name: getattr(self, name) for name in BESIDE}


@dataclass
class EmbedderOutput(ModelOutput):
    """What an `Embedder` gives.

    Attributes:
        sentence_embedding: (B, D).
    """

    sentence_embedding: Tensor | None = None


class Embedder(PreTrainedModel):
    """An encoder and the modules behind it, as a SentenceTransformer has them: pooling, dense layers, normalization.

    Args:
        config: Its configuration.
        encoder: The pretrained encoder; None for a new one.
        later: The modules behind it; None to make them as the configuration says.
    """

    config_class = EmbedderConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True  # the encoder chooses its attention itself
    config: EmbedderConfig

    def __init__(
        self,
        config: EmbedderConfig,
        encoder: PreTrainedModel | None = None,
        later: Iterable[nn.Module] | None = None,
    ):
        super().__init__(config)
        self.encoder: Any = (
            AutoModel.from_config(config.encoder, trust_remote_code=False) if encoder is None else encoder
        )
        config.take(self.encoder.config)  # its own knows its attention, which makes its mask
        if hasattr(self.encoder, "pooler"):
            self.encoder.pooler = nn.Identity()
        self.later = nn.ModuleList(_made(each) for each in config.later) if later is None else nn.ModuleList(later)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the modules as they were made: those of the encoder are its own, those behind it PyTorch's."""

    def embedding(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """The embedding (B, D) of states (B, T, H), of which ``truncate_dim`` keeps the first numbers.

        Args:
            tokens: The states of a layer.
            mask: 0 for padding, (B, T); None for none.
        """
        if mask is None:
            mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        features: dict[str, Any] = {"token_embeddings": tokens, "attention_mask": mask}
        for module in self.later:
            features = module(features)
        return features["sentence_embedding"][:, : self.config.truncate_dim]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> EmbedderOutput:
        """Embed.

        Args:
            input_ids: Tokens (B, T).
            attention_mask: 0 for padding, (B, T).
            inputs_embeds: Embeddings (B, T, H) instead of tokens.
            **kwargs: Arguments of the encoder.
        """
        encoded = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        return EmbedderOutput(sentence_embedding=self.embedding(encoded.last_hidden_state, attention_mask))


class LayeredEmbedder(LayeredEncoder):
    """An embedding model whose every layer's output passes through the modules behind the encoder.

    Args:
        network: The model, with or without PEFT adapters.

    Raises:
        InputError: If the encoder's family is not in the table.
    """

    # The rest is its encoder's, see `family_of`.
    families = {**FAMILIES, EmbedderConfig.model_type: Family(first, ("later",), "", None)}  # noqa: RUF012

    task_class = "Embedder"
    head_field = "head"

    @property
    def limits(self) -> dict[str, int]:
        """The size of the vocabulary, and the longest text in tokens."""
        return {name: value for name, value in super().limits.items() if name != "labels"}

    @property
    def copied(self) -> list[str]:
        """The norm; what is behind the encoder is shared by all layers."""
        return [*filter(None, [self._norm_name])]

    def head_parameters(self) -> list[nn.Parameter]:
        """The parameters of the modules behind the encoder."""
        return [*self.library.later.parameters()]

    def readout(self, hidden: Tensor, looks: Tensor | None = None, *, layer: int | None = None) -> Tensor:
        """The embedding (B, D) of one layer's output (B, T, H).

        Args:
            hidden: h_l.
            looks: The attention mask, (B, T); None for no padding.
            layer: l; all layers are read alike.
        """
        return self.library.embedding(self.norm(layer)(hidden), looks)

    def read(self, states: Sequence[Tensor], inputs: Mapping[str, Tensor]) -> Iterable[Tensor]:  # type: ignore[override]
        """The embeddings (B, D) of every layer."""
        looks = self.looks(inputs)
        return (self.readout(hidden, looks, layer=layer) for layer, hidden in enumerate(states))

    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """None: an embedding model has no labels."""
        return {}


def beside_encoder(folder: Path) -> tuple[int | None, list[Any] | None, dict[str, Any]]:
    """What a SentenceTransformer has beside its encoder.

    Args:
        folder: Its folder.

    Returns:
        Its longest text, the modules behind the encoder (None if it is no SentenceTransformer), and `BESIDE`.

    Raises:
        InputError: If it has modules that can't be kept.
    """
    if not (folder / MODULES_FILE).is_file():
        return None, None, {}
    listed = read_json(folder / MODULES_FILE)
    named = isinstance(listed, list) and all(isinstance(each, dict) for each in listed)
    kinds = [str(each.get("type")) for each in listed] if named else []
    names = [kind.rpartition(".")[2] for kind in kinds]
    wrong = [
        kind
        for kind, name in zip(kinds[1:], names[1:], strict=True)
        if name not in LATER or not kind.startswith("sentence_transformers.")
    ]
    places = [str(each.get("path")) for each in listed[1:]] if named else []
    inside = str(listed[0].get("path") or ".") if named and listed else "."
    elsewhere = [place for place in places if not (folder / place).resolve().is_relative_to(folder.resolve())]
    refuse(
        (
            names[:1] != ["Transformer"] or not kinds[0].startswith("sentence_transformers."),
            f"{folder} must begin with one Transformer; its modules are {', '.join(kinds) or 'none'}. A router, "
            "several encoders and bags of words have no one chain of layers.",
        ),
        (
            bool(wrong),
            f"{folder} has {', '.join(wrong)} behind its encoder; what can be kept is {', '.join(LATER)}.",
        ),
        (
            Path(inside) != Path("."),
            f"{folder} has its encoder in {inside}, by {MODULES_FILE}; expected it in the folder itself, as "
            "SentenceTransformer(FOLDER).save(OTHER) writes it.",
        ),
        (bool(elsewhere), f"{folder} names modules outside of it: {', '.join(elsewhere)}."),
    )
    of_transformer: dict[str, Any] = next(filter(None, (_settings(folder / name) for name in OF_TRANSFORMER)), {})
    refuse(
        (
            bool(of_transformer.get("do_lower_case")),
            f"{folder} asks for texts in small letters (do_lower_case), which is not read. Save its tokenizer with "
            "do_lower_case instead.",
        ),
    )
    longest = of_transformer.get("max_seq_length")
    longest = longest or _settings(folder / "tokenizer_config.json").get("model_max_length")
    about = _settings(folder / "config_sentence_transformers.json")
    prompts = about.get("prompts") or {}
    texts = isinstance(prompts, dict) and all(isinstance(each, str) for each in [*prompts, *prompts.values()])
    default, similarity = about.get("default_prompt_name"), about.get("similarity_fn_name")
    numbers = about.get("truncate_dim")
    known = ", ".join(map(str, prompts)) or "none"
    refuse(
        (not texts, f"the prompts of {folder} must be texts by their names; got {prompts!r}."),
        (
            texts and default not in (None, *prompts),
            f"{folder} has no prompt {default!r}, its default_prompt_name; it has {known}.",
        ),
        (
            similarity not in (None, *SIMILARITIES),
            f"the similarity_fn_name of {folder} must be one of {', '.join(SIMILARITIES)}; got {similarity!r}.",
        ),
        (
            numbers is not None and (type(numbers) is not int or numbers < 1),
            f"the truncate_dim of {folder} must be a whole number from 1 on; got {numbers!r}.",
        ),
    )
    given = dict(zip(BESIDE, (prompts, default, similarity, numbers), strict=True))
    later = [_read(folder, place, name) for place, name in zip(places, names[1:], strict=True)]
    refuse(
        (
            names[1:2] != ["Pooling"],
            f"{folder} has {', '.join(names[1:]) or 'nothing'} behind its encoder; expected a Pooling first, which "
            "makes one embedding of a text's tokens. Save the model with one.",
        ),
    )
    return (longest if isinstance(longest, int) and 0 < longest < MOST_TOKENS else None), later, given


def entries_of(later: Iterable[Any]) -> list[dict[str, Any]]:
    """The entries of a configuration for the modules behind an encoder."""
    return [{"type": type(module).__name__, "config": module.get_config_dict()} for module in later]


def _made(entry: dict[str, Any]) -> nn.Module:
    """A module behind the encoder as a configuration says it."""
    import sentence_transformers.sentence_transformer.modules as modules

    config = {**entry["config"]}
    activation = config.get("activation_function")
    if activation is not None:
        config["activation_function"] = _activation(str(activation), "the configuration")
    return getattr(modules, entry["type"])(**config)


def _activation(name: str, where: str) -> nn.Module:
    """An activation of torch by its full name."""
    package, _, last = name.rpartition(".")
    kind = nn.Identity if last == "Identity" else getattr(nn.modules.activation, last, None)
    known = package == "torch.nn" or package.startswith("torch.nn.modules.")
    if not known or not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise InputError(f"{where} asks for {name}, which is not run. Expected one of torch.nn's activations.")
    return kind()


def _read(folder: Path, place: str, name: str) -> Any:
    """A module behind the encoder, in float32."""
    import sentence_transformers.sentence_transformer.modules as modules

    refuse((not (folder / place).is_dir() and name != "Normalize", f"{folder} has no folder {place} of its {name}."))
    if (folder / place).is_dir():
        refuse_unsafe(folder / place)
    if activation := _settings(folder / place / "config.json").get("activation_function"):
        _activation(str(activation), str(folder / place))
    try:
        with silent():
            made = getattr(modules, name).load(str(folder), subfolder=place, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise InputError(f"{folder / place} can't be read as a {name}: {reason(error)}.") from error
    return made.float().eval()


def _settings(file: Path) -> dict[str, Any]:
    """The entries of a JSON file; none where it is missing or holds something else."""
    content = read_json(file) if file.is_file() else {}
    return content if isinstance(content, dict) else {}


AutoConfig.register(EmbedderConfig.model_type, EmbedderConfig)
AutoModel.register(EmbedderConfig, Embedder)
