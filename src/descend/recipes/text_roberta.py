"""Text classification with RoBERTa."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.recipes.encoder import EncoderRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class RoBERTaRecipe(EncoderRecipe):
    """Text classification with RoBERTa."""

    name = "text-roberta"
    help = "text classification with RoBERTa (Liu et al., 2019), small from scratch or pretrained"
    order = 50
    family = "RoBERTa"
    model_type = "roberta"

    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small RoBERTa, whose positions start after the padding token's number."""
        from transformers import RobertaConfig

        encoder = RobertaConfig(
            vocab_size=words,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.depth,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.hidden_size,
            max_position_embeddings=self.max_length + padding + 1,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            pad_token_id=padding,
            type_vocab_size=1,
        )
        return self._read(encoder)
