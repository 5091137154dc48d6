"""Text classification with any pretrained encoder, or a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from descend.declared import TEXTS, setting
from descend.errors import InputError, refuse
from descend.recipes.base import (
    USEFUL_LAYERS,
    Data,
    PretrainedSettings,
    absolute_or_name,
    config_of,
    has_classifier,
)
from descend.recipes.classification import TextRecipe, family_name, linearly_read

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from descend.models import LayeredClassifier


@dataclass(frozen=True)
class ClassifierRecipe(PretrainedSettings, TextRecipe):
    """Text classification with any pretrained encoder, or a decoder.

    A model's own head is trained further where ``pooling`` is what it reads; otherwise it gets a new head.
    """

    name = "text"
    help = "text classification with a pretrained model: BERT, RoBERTa, ModernBERT and others"
    order = 80

    dataset: str = setting(None, "kind of the texts [by the files]", TEXTS)
    tokenizer: str | None = setting(None, "folder or Hub name [the model's]")
    pooling: str | None = setting(None, "what a head reads [its own head's; of a new head mean]", ("cls", "mean"))

    training = pretrained = TextRecipe.pretrained | USEFUL_LAYERS

    def completed(self) -> Self:
        """The recipe with absolute paths, the kind of the texts, the head's pooling and the number of blocks."""
        from descend.models import EmbedderConfig, check_family, encoders
        from descend.recipes.corpora import kind_of

        recipe = super().completed()
        if recipe.dataset is None:
            recipe = replace(recipe, dataset="imdb" if self.source is None else kind_of(Path(recipe.data)))
        config = config_of(self.model)
        refuse(
            (
                isinstance(config, EmbedderConfig),
                f"{self.model} is an embedding model, trained by descend train embed. Export it, and train on that.",
            )
        )
        check_family(config, encoders.FAMILIES)
        pooling = self.pooling or _pooling_of(config) or "mean"
        recipe = replace(
            recipe, model=absolute_or_name(self.model), keep_layers=self.layers_of(config), pooling=pooling
        )
        recipe._check_length(recipe._config())
        return recipe

    @property
    def label(self) -> str:
        """The model's name in tables, such as BERT-6."""
        return f"{family_name(self._config())}-{self.depth}"

    def _config(self) -> PreTrainedConfig:
        """The configuration of the pretrained model, with the head that ``pooling`` asks for."""
        from transformers import MODEL_MAPPING

        config = config_of(self.model)
        head = _pooling_of(config)
        if config.model_type == "modernbert" and head is None:
            config.classifier_pooling = self.pooling
            return config
        if head == self.pooling or (head is None and self.pooling == "cls"):
            return config
        if head == "mean" or type(config) not in MODEL_MAPPING:
            raise InputError(f"the head of {self.model} can't be replaced; leave out --pooling {self.pooling}.")
        return linearly_read(config, "mean")

    def network(self, data: Data) -> LayeredClassifier:
        """The pretrained model, cut to its first blocks where ``keep_layers`` says so."""
        model = super().network(data)
        self.cut(model)
        return model

    def _network(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        config = self._config()
        if getattr(config, "pad_token_id", padding) is None:
            config.pad_token_id = padding
        return self._pretrained(config, words, names)


@dataclass(frozen=True)
class LinearlyReadRecipe(ClassifierRecipe):
    """A text classifier whose head is one linear layer whatever the family, so that it can be fitted.

    Descend's own models have such a head; any other model gets one on the mean of its tokens.
    """

    def _config(self) -> PreTrainedConfig:
        from transformers import MODEL_MAPPING

        config = config_of(self.model)
        return linearly_read(config, "mean") if type(config) in MODEL_MAPPING else config


def _pooling_of(config: PreTrainedConfig) -> str | None:
    """What the head of a pretrained model reads; None for a model without a head."""
    from descend.models import TextUTConfig

    if not has_classifier(config):
        return None
    if config.model_type == TextUTConfig.model_type:
        return "mean"
    return str(getattr(config, "classifier_pooling", "cls"))
