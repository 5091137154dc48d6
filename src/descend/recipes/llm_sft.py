"""Instruction tuning of a small new language model, or of a pretrained one of its family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from descend.declared import SMALL, Count, Dropout, NoiseLevel, setting
from descend.errors import InputError
from descend.recipes.base import NewModelSettings, absolute, absolute_or_name, check_heads
from descend.recipes.language import LanguageRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class InstructionRecipe(NewModelSettings, LanguageRecipe):
    """Instruction tuning of a small new model, or of a pretrained one with its own depth, width and heads."""

    name = "llm-sft"
    help = "instruction tuning of a Llama-like language model, small from scratch or pretrained"
    order = 70
    family = "Llama"

    heads: Count = setting(4, "attention heads of a small model")
    dropout: Dropout = setting(0.0, "of attention; 0 leaves a pretrained model's")
    noise: NoiseLevel = setting(1.5, "training noise γ, in std of the embeddings")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)
        if self.model == SMALL and self.lora is not None:
            raise InputError(
                "--lora needs a pretrained --model: only the adapters are saved, and a new model's weights would be "
                "lost. Leave out --lora."
            )

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own depth and width."""
        recipe = replace(self, data=absolute(self.data))
        if self.model == SMALL:
            return recipe
        config, model = self._config(), absolute_or_name(self.model)
        return replace(recipe, model=model, depth=config.num_hidden_layers, hidden_size=config.hidden_size)

    def _network(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        if self.model != SMALL:
            return self._pretrained(tokenizer, **({"attention_dropout": self.dropout} if self.dropout else {}))
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=self.hidden_size,
                intermediate_size=4 * self.hidden_size,
                num_hidden_layers=self.depth,
                num_attention_heads=self.heads,
                max_position_embeddings=max(512, self.max_length),
                attention_dropout=self.dropout,
                tie_word_embeddings=True,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id or tokenizer.cls_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
