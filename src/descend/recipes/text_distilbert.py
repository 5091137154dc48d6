"""Text classification with DistilBERT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.recipes.encoder import EncoderRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class DistilBERTRecipe(EncoderRecipe):
    """Text classification with DistilBERT."""

    name = "text-distilbert"
    help = "text classification with DistilBERT (Sanh et al., 2019), small from scratch or pretrained"
    order = 40
    family = "DistilBERT"
    model_type = "distilbert"

    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small DistilBERT."""
        from transformers import DistilBertConfig

        encoder = DistilBertConfig(
            vocab_size=words,
            dim=self.hidden_size,
            n_layers=self.depth,
            n_heads=self.heads,
            hidden_dim=4 * self.hidden_size,
            max_position_embeddings=self.max_length,
            dropout=self.dropout,
            attention_dropout=self.dropout,
            seq_classif_dropout=self.dropout,
            pad_token_id=padding,
        )
        return self._read(encoder)
