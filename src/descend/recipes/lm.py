"""Instruction tuning of a pretrained language model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from descend.declared import setting
from descend.errors import InputError
from descend.recipes.base import USEFUL_LAYERS, PretrainedSettings, absolute, absolute_or_name
from descend.recipes.language import LanguageRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LanguageModelRecipe(PretrainedSettings, LanguageRecipe):
    """Instruction tuning of a pretrained language model, plain unless a method is given."""

    name = "lm"
    help = "instruction tuning of a pretrained language model: Llama, Qwen and others"
    order = 90

    tokenizer: str | None = setting(None, "folder or Hub name [the model's]")

    training = pretrained = LanguageRecipe.pretrained | USEFUL_LAYERS | {"method": "erm", "exit_share": 1 / 16}

    @property
    def defaults(self) -> dict[str, Any]:
        """Plain training, with adapters too; a model that is healed has no own exits."""
        return super().defaults | {"method": "erm"} | ({"head_lr_ratio": 1.0} if self.heal else {})

    def completed(self) -> Self:
        """The recipe with absolute paths and the number of blocks.

        Raises:
            InputError: If it has adapters on a cut model.
        """
        config = self._config()
        layers = self.layers_of(config)
        if self.lora is not None and layers < config.num_hidden_layers:
            raise InputError(
                "--keep-layers and --lora exclude each other: only the adapters are saved, and the cut model would be "
                "lost. Leave one out."
            )
        return replace(self, data=absolute(self.data), model=absolute_or_name(self.model), keep_layers=layers)

    def about_model(self) -> list[str]:
        """What of a cut model is trained, and how many parameters a head has that no longer shares them."""
        config = self._config()
        if not (self.heal and config.tie_word_embeddings):
            return super().about_model()
        return [
            *super().about_model(),
            "The head shared its weight with the word embedding, which is frozen. It gets its own: "
            f"{config.vocab_size * config.hidden_size:,} parameters more.",
        ]

    def _network(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        from descend.models import LayeredCausalLM

        network = self._pretrained(tokenizer)
        self.cut(LayeredCausalLM(network))
        return network
