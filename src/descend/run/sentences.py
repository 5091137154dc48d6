"""An export as an embedding model, a folder that SentenceTransformers reads."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from descend.declared import SENTENCES, SMALL
from descend.errors import InputError, refuse
from descend.models import (
    LayeredClassifier,
    LayeredEmbedder,
    beside_encoder,
)
from descend.progress import silent
from descend.recipes.base import folder_of
from descend.run.formats import LEAVE_OUT, Format, check_able, refusal

_TAKES = "encoders of texts"


class SentenceTransformers(Format):
    """The encoder of the first K layers, with the pooling, dense layers, normalization and prompts of its start.

    An embedding model has them itself. The start of a classifier is the model that training, or the fitting of
    readouts, began with; where that is no SentenceTransformer, the embedding is what the classifier reads: the mean
    over tokens, or the first token's state. The encoder and the tokenizer are Descend's own; nothing is loaded of the
    start but the modules that `beside_encoder` names.
    """

    name = SENTENCES
    compared_in = torch.float32  # as the modules behind the encoder compute
    metadata = {  # noqa: RUF012  # an embedding model has no accuracy
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "metrics": [],
        "eval_results": [],
    }
    holds = "without their readout."
    timed = " as a classifier"
    instead = f" {LEAVE_OUT}"

    def __init__(self, network: Any, tokenizer: Any, layers: int, start: str | None):
        super().__init__(network, tokenizer, layers, start)
        embeds = isinstance(network, LayeredEmbedder)
        texts = embeds or (isinstance(network, LayeredClassifier) and network.main_input_name == "input_ids")
        refuse(
            (
                not texts or (network.is_decoder and not embeds),
                refusal(SENTENCES, _TAKES, type(network.saved).__name__),
            ),
            (tokenizer is None, f"--format {SENTENCES} needs the tokenizer: export_model(model, K, out, tokenizer)."),
        )
        self.embeds = embeds
        self.measured = getattr(tokenizer, "model_max_length", None)
        if embeds:
            self.holds = (
                f"with the modules after the encoder. It gives the embedding of layer {layers} of the whole model."
            )
            self.timed = ""  # it has no readout that could be left out
            config = network.config
            self.later: Any = [*network.library.later]
            self.longest = config.longest or self.measured
            self.beside = config.beside
            return
        self.longest, self.later, self.beside = _beside_encoder(start)
        if self.later is None:
            from sentence_transformers.sentence_transformer.modules import Pooling

            how = getattr(network.config, "classifier_pooling", "cls")
            self.later = [Pooling(network.saved.base_model.config.hidden_size, pooling_mode=how)]
            self.longest = self.measured

    @classmethod
    def check(cls, recipe: str = "", start: str | None = None) -> None:
        """Refuse recipes of no encoder of texts, a start that can't be kept, and a missing package."""
        from descend.recipes.classification import TextRecipe
        from descend.recipes.embed import EmbedRecipe

        check_able(SENTENCES, _TAKES, TextRecipe | EmbedRecipe, "embed", recipe)
        if recipe and recipe != EmbedRecipe.name:
            _beside_encoder(start)

    def expected(self, network: Any, inputs: Any) -> Tensor:
        """The embedding (B, D) that the modules behind the encoder give of layer K."""
        state = network.norm(self.layers)(network.layer_outputs(inputs)[self.layers])
        features = {"token_embeddings": state.float(), "attention_mask": inputs["attention_mask"]}
        for module in self.later:
            features = module(features)
        return features["sentence_embedding"]

    def write(self, plain: PreTrainedModel, folder: Path) -> Callable[[Any], Tensor]:
        """Write the SentenceTransformer of the cut encoder, and read it again."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Transformer

        base: Any = plain.base_model
        with silent():
            with TemporaryDirectory() as encoder:
                base.save_pretrained(encoder)
                self.tokenizer.save_pretrained(encoder)
                modules = [Transformer(encoder, max_seq_length=self.longest), *self.later]
                made = SentenceTransformer(modules=modules, device="cpu", **self.beside)
            made.save(str(folder), create_model_card=False)
            again = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float().eval()
        return lambda inputs: again(dict(inputs))["sentence_embedding"]

    def note(self, plain: PreTrainedModel) -> str:
        """What the folder holds."""
        parts = ", ".join(["Transformer", *(type(module).__name__ for module in self.later)])
        compared = "" if self.measured == self.longest else f"; layers were compared on at most {self.measured}"
        cut = "" if self.longest is None else f" It cuts texts after {self.longest} tokens{compared}."
        if self.embeds:
            return f"Load it with `SentenceTransformer`. It holds {parts}.{cut}"
        return (
            f"Load it with `SentenceTransformer`. It holds {parts}, and no readout: it gives the embeddings of layer "
            f"{self.layers}. Layers were compared by readouts; metrics below, if there are any, are theirs.{cut}"
        )

    def serving_line(self, plain: PreTrainedModel, folder: Path) -> str:
        """The line that embeds texts."""
        return f"SentenceTransformer({json.dumps(str(folder))}).encode(texts)"


def _beside_encoder(start: str | None) -> tuple[int | None, list[Any] | None, dict[str, Any]]:
    """What the start of a classifier has beside its encoder, see `beside_encoder`; nothing of a new model.

    Raises:
        InputError: If it is gone, or has modules that can't be kept.
    """
    if start in (None, SMALL):
        return None, None, {}
    try:
        return beside_encoder(folder_of(str(start)))
    except InputError as error:
        raise InputError(f"{error} {LEAVE_OUT}") from None
