"""Text classification with the unrolled transformer on word embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from descend.declared import SMALL, Count, Dropout, Layers, setting
from descend.recipes.base import check_words, load_pretrained
from descend.recipes.classification import NewTextRecipe, TextRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from descend.models import LayeredModel, TextUTConfig


@dataclass(frozen=True)
class TextUTRecipe(NewTextRecipe):
    """Text classification with the unrolled transformer on word embeddings."""

    name = "text-ut"
    help = "text classification with the unrolled transformer UT on word embeddings"
    order = 30
    family = "UT"

    depth: Layers = setting(5, "L, the number of layers")
    model: str = setting(SMALL, "small, or whose embeddings to use [small]")  # type: ignore[misc]  # ClassVar before
    dropout: Dropout = setting(0.5, "dropout of embeddings and mean token")
    attention_size: Count = setting(64, "dimension of attention")
    tied: bool = setting(True, "one set of weights for all layers")

    training = TextRecipe.training | {"num_train_epochs": 3, "learning_rate": 3e-3}

    def small(self, words: int, padding: int) -> TextUTConfig:
        """The configuration of a new UT."""
        from descend.models import TextUTConfig

        return TextUTConfig(
            vocab_size=words,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.depth,
            attention_size=self.attention_size,
            tied=self.tied,
            dropout=self.dropout,
            pad_token_id=padding,
        )

    def _started(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        from transformers import AutoModel

        embedding = load_pretrained(AutoModel, self.model).get_input_embeddings()
        check_words(words, embedding.num_embeddings, self.model)
        wide = replace(self, hidden_size=embedding.embedding_dim)
        network = wide._new(embedding.num_embeddings, names, padding)
        network.get_input_embeddings().load_state_dict(embedding.state_dict())
        return network

    def fitted(self, model: LayeredModel) -> Self:
        """The recipe with the width of the pretrained word embeddings."""
        return self if self.model == SMALL else replace(self, hidden_size=model.saved.config.hidden_size)
