"""The base recipe of text classification with one family of encoders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from descend.declared import SMALL, Count, setting
from descend.errors import InputError
from descend.recipes.base import check_heads, config_of
from descend.recipes.classification import NewTextRecipe, linearly_read

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class EncoderRecipe(NewTextRecipe):
    """Text classification with an encoder of Transformers that is read at [CLS].

    The readout is Transformers' two layers (``own``), or one layer as in the paper (``linear``), which replaces the
    head that a pretrained model may have.
    """

    heads: Count = setting(4, "attention heads of a small model")
    readout: str = setting("own", "the classifier; the paper's is linear", ("own", "linear"))

    model_type: ClassVar[str]
    """The encoder's type in its ``config.json``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own depth and width."""
        recipe = super().completed()
        if self.model == SMALL:
            return recipe
        config = self._config()
        encoder, pooling = getattr(config, "encoder", config), getattr(config, "classifier_pooling", None)
        linear = self.readout == "linear"
        if encoder.model_type != self.model_type or pooling != ("cls" if linear else None):
            own = f"model_type {self.model_type!r}{', or one with a linear readout of its first token' * linear}"
            raise InputError(
                f"expected a {self.family}, {own}; {self.model} is of model_type {config.model_type!r}. Choose another "
                "model, or its own recipe and --readout."
            )
        self._check_length(config)
        return replace(recipe, depth=encoder.num_hidden_layers, hidden_size=encoder.hidden_size)

    def _config(self) -> PreTrainedConfig:
        """The configuration of a pretrained model, with another head where the readout is to be linear."""
        if self.model == SMALL:
            return super()._config()
        config = config_of(self.model)
        return self._read(config) if config.model_type == self.model_type else config

    def _read(self, encoder: PreTrainedConfig) -> PreTrainedConfig:
        """The configuration of an encoder with the readout."""
        return linearly_read(encoder, "cls") if self.readout == "linear" else encoder

    def _started(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        return self._pretrained(self._config(), words, names)
