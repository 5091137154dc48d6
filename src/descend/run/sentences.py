"""An export as an embedding model, a folder that SentenceTransformers reads."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from descend.declared import SENTENCES
from descend.errors import InputError, reason, refuse
from descend.extras import required
from descend.models import LayeredClassifier
from descend.models.loading import refuse_unsafe
from descend.reading import read_json
from descend.run.formats import Format

MODULES_FILE = "modules.json"
"""The file by which SentenceTransformers knows its folders."""

_INSTEAD = "Leave --format out."


class SentenceTransformers(Format):
    """The encoder of the first K layers, with the pooling, normalization and prompts of the model that it comes from.

    The embedding of an encoder that is no SentenceTransformer is the mean over tokens, or the first token's state,
    as its classifier reads it. A classifier's readout is no part of the folder.
    """

    name = SENTENCES
    metadata = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}  # noqa: RUF012
    timed = " as a classifier"
    instead = f" {_INSTEAD}"

    def __init__(self, network: Any, tokenizer: Any, layers: int, start: str | None):
        super().__init__(network, tokenizer, layers, start)
        texts = isinstance(network, LayeredClassifier) and network.main_input_name == "input_ids"
        refuse((not texts or network.is_decoder, _refusal(type(network.saved).__name__)))
        self.whole = self._sentence_model(network.saved)

    @classmethod
    def check(cls, recipe: str = "") -> None:
        """Refuse recipes of no encoder of texts, and a missing package."""
        from descend.recipes import RECIPES
        from descend.recipes.classification import TextRecipe

        encodes = recipe not in RECIPES or issubclass(RECIPES[recipe].settings, TextRecipe)
        refuse((not encodes, _refusal(f"a model of {recipe}")))
        with required(f"--format {SENTENCES}"):
            import sentence_transformers  # noqa: F401

    def _sentence_model(self, saved: PreTrainedModel) -> Any:
        """The model's SentenceTransformer, whose first module is the encoder."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        if self.start is not None and (Path(self.start) / MODULES_FILE).is_file():
            refuse_modules(Path(self.start))
            try:
                return SentenceTransformer(self.start, device="cpu", local_files_only=True)
            except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
                raise InputError(f"{self.start} can't be read as a SentenceTransformer: {reason(error)}") from error
        with TemporaryDirectory() as folder:
            base: Any = saved.base_model
            base.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            encoder: Any = Transformer(folder, model_kwargs={"dtype": torch.float32})
        how = getattr(saved.config, "classifier_pooling", "cls")
        modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=how)]
        return SentenceTransformer(modules=modules, device="cpu")

    def expected(self, network: Any, inputs: Any) -> Tensor:
        """The embedding (B, D) that the model's pooling gives of layer K."""
        state = network.norm(self.layers)(network.layer_outputs(inputs)[self.layers])
        features = {"token_embeddings": state.float(), "attention_mask": inputs["attention_mask"]}
        for module in list(self.whole)[1:]:
            features = module(features)
        return features["sentence_embedding"]

    def write(self, plain: PreTrainedModel, folder: Path) -> Callable[[Any], Tensor]:
        """Write the SentenceTransformer around the cut encoder, and read it again."""
        from sentence_transformers import SentenceTransformer

        encoder: Any = plain.base_model
        if self.start is not None and getattr(encoder, "pooler", encoder) is None:  # which the library would miss
            encoder.pooler = getattr(self.whole[0].model, "pooler", None)
        self.whole[0].model = encoder
        self.whole.save(str(folder), create_model_card=False)
        again = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float().eval()
        return lambda inputs: again(dict(inputs))["sentence_embedding"]

    def note(self, plain: PreTrainedModel) -> str:
        """What the folder holds."""
        parts = ", ".join(type(module).__name__ for module in self.whole)
        longest = self.whole.max_seq_length
        cut = "" if longest is None else f" It cuts texts after {longest} tokens."
        return (
            f"Load it with `SentenceTransformer`. It holds {parts}, and no readout: its embeddings are those of layer "
            f"{self.layers}.{cut}"
        )

    def serving_line(self, plain: PreTrainedModel, folder: Path) -> str:
        """The line that embeds texts."""
        return f"SentenceTransformer({json.dumps(str(folder))}).encode(texts)"


def refuse_modules(folder: Path) -> None:
    """Refuse a SentenceTransformer whose modules are not that library's own, lie elsewhere, or are pickles.

    Raises:
        InputError: In these cases, or if its first module is not its encoder, before anything of the folder is loaded.
    """
    modules = read_json(folder / MODULES_FILE)
    named = isinstance(modules, list) and all(isinstance(each, dict) for each in modules)
    kinds = [str(each.get("type")) for each in modules] if named else []
    foreign = [kind for kind in kinds if not kind.startswith("sentence_transformers.")]
    places = [folder / str(each.get("path", "")) for each in modules] if named else []
    elsewhere = [str(place) for place in places if not place.resolve().is_relative_to(folder.resolve())]
    refuse((bool(elsewhere), f"{folder} names modules outside of it: {', '.join(elsewhere)}."))
    for place in places:
        if place.is_dir():
            refuse_unsafe(place)
    refuse(
        (bool(foreign), f"{folder} has modules of other code, which Descend does not run: {', '.join(foreign)}."),
        (
            not kinds or kinds[0].rpartition(".")[2] != "Transformer",
            f"{folder} must begin with one Transformer; its modules are {', '.join(kinds) or 'none'}. Name an encoder.",
        ),
    )


def _refusal(what: str) -> str:
    return f"--format {SENTENCES} takes encoders of texts; got {what}. {_INSTEAD}"
