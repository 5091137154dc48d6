"""Embedding models: any pretrained encoder, read at every layer by what SentenceTransformers puts behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from descend.declared import GENERATED, PAIRS, SCORED, SENTENCES, TRIPLETS, TextLength, setting
from descend.errors import InputError, reason, refuse
from descend.recipes.base import (
    Collate,
    Data,
    PretrainedSettings,
    Recipe,
    absolute,
    absolute_or_name,
    check_words,
    config_of,
    folder_of,
    load_pretrained,
    tell,
)

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

    from descend.models import LayeredEmbedder, LayeredModel
    from descend.tasks.text.embedding import EmbeddingTask
    from descend.tasks.text.pairs import Pairs

USUAL_LENGTH = 128
"""Longest text in tokens of an encoder that is no SentenceTransformer."""


@dataclass(frozen=True)
class EmbedRecipe(PretrainedSettings, Recipe):
    """Embedding models: a SentenceTransformer, or any encoder with the mean of its tokens.

    All layers are read alike, by the modules behind the encoder: pooling, dense layers, normalization.

    Attributes:
        dataset: `TRIPLETS` or `SCORED`; None for what the columns of the data say.
        max_length: The longest text in tokens; None for the SentenceTransformer's own, or `USUAL_LENGTH`.
    """

    name = "embed"
    help = "embedding models: a SentenceTransformer, or any encoder with mean pooling"
    order = 85
    has_head = False
    packages = ("datasets", "sentence_transformers")
    data_help = "a file of pairs or triplets, or a folder with one for each side"

    data: str = field(kw_only=True, metadata={"help": "file or folder of pairs or triplets, or: generated"})
    dataset: str = setting(None, "kind of the data [by its columns]", PAIRS)
    max_length: TextLength | None = setting(None, "longest text, in tokens [the model's, or 128]")
    keep_markup: bool = setting(False, "leave <br /> in texts; else it becomes a blank")

    export_format: ClassVar[str] = SENTENCES
    training = Recipe.training | {
        "num_train_epochs": 1,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 64,
        "learning_rate": 5e-5,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.1,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "method": "linear",
        "calibrate": False,
    }

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """Refuse what needs own exits as well: all layers are read alike."""
        super().check_given(given)
        refuse(
            (
                given.get("method") == "probe" or given.get("exits") == "own",
                "the layers of an embedding model are read alike, without own exits. Choose exits shared, and not the "
                "method probe.",
            ),
        )

    def completed(self) -> Self:
        """The recipe with absolute paths, the kind of the data, the longest text and the number of blocks."""
        from descend.models import check_family, encoders, family_of
        from descend.tasks.text.pairs import kind_of_pairs

        config = config_of(self.model)
        inside = getattr(config, "encoder", config)
        refuse(
            (
                getattr(config, "is_encoder_decoder", False),
                f"{self.model} has an encoder and a decoder, whose layers form no one chain. Choose an encoder.",
            ),
        )
        check_family(inside, encoders.FAMILIES)
        longest = family_of(inside, encoders.FAMILIES).longest
        most = None if longest is None else longest(inside)
        first, others = self._prompts(None)
        prompt = first or others
        refuse(
            (
                bool(prompt) and any(each["config"].get("include_prompt") is False for each in self._later),
                f"{self.model} puts {prompt!r} before texts and leaves it out of the pooling (include_prompt: false), "
                "as no layer is read. Save the model without its default_prompt_name.",
            ),
        )
        usual = self._beside_encoder[0] or USUAL_LENGTH
        length = self.max_length or (usual if most is None else min(usual, most))
        if most is not None and length > most:
            raise InputError(f"{self.model} takes texts of at most {most} tokens; got --max-length {length}.")
        data = absolute(self.data)
        return replace(
            self,
            data=data,
            dataset=self.dataset or (TRIPLETS if data == GENERATED else kind_of_pairs(data)),
            model=absolute_or_name(self.model),
            keep_layers=self.layers_of(inside),
            max_length=length,
        )

    @property
    def label(self) -> str:
        """The model's name in tables, such as BERT-6."""
        from descend.recipes.classification import family_name

        return f"{family_name(config_of(self.model))}-{self.depth}"

    @cached_property
    def _beside_encoder(self) -> tuple[int | None, list[Any] | None, dict[str, Any]]:
        """What a SentenceTransformer has beside its encoder; of a saved embedder all but the modules."""
        from descend.models import EmbedderConfig, beside_encoder

        config = config_of(self.model)
        if isinstance(config, EmbedderConfig):
            return config.longest, None, config.beside
        return beside_encoder(folder_of(self.model))

    @property
    def _later(self) -> list[dict[str, Any]]:
        """The modules behind the encoder as a configuration has them; none of an encoder alone."""
        from descend.models import EmbedderConfig, entries_of

        config = config_of(self.model)
        return config.later if isinstance(config, EmbedderConfig) else entries_of(self._beside_encoder[1] or ())

    def _read(self, data: str) -> Pairs:
        """The pairs or triplets of a file or folder, or generated ones."""
        from descend.tasks.text.pairs import generated_pairs, read_pairs

        if data == GENERATED:
            from descend.tasks.text.corpus import TEST, TRAIN, generate_triplets

            return generated_pairs({"train": generate_triplets(TRAIN, 0), "test": generate_triplets(TEST, 1)})
        return read_pairs(data, self.dataset, self.keep_markup)

    def load(self, model: LayeredModel | None = None, tokenizer: Any = None) -> Data:
        """Load and tokenize the texts."""
        from descend.tasks.text import load_tokenizer
        from descend.tasks.text.pairs import split_validation

        found = self._read(self.data)
        if tokenizer is None:
            tokenizer = load_tokenizer(self.model)
            tokenizer.model_max_length = self.max_length
        encoded, notes = self._encoded(split_validation(found, self.validation_share), tokenizer, self._prompts(model))
        notes = [*found.notes, *notes, *self._measured_otherwise(model)]
        return Data(**encoded, name=self._name(self.data), tokenizer=tokenizer, notes=tuple(notes))

    def load_test(self, data: str, model: LayeredModel, tokenizer: Any) -> tuple[Dataset, str]:
        """Load the test side of other data of the same kind, all rows of a file alone, and their name."""
        from datasets import concatenate_datasets

        from descend.tasks.text.pairs import kind_of_pairs

        if self.dataset == TRIPLETS and data != GENERATED and kind_of_pairs(data) != TRIPLETS:
            raise InputError(f"{data} holds pairs with scores; expected triplets, which the run was trained on.")
        found = self._read(data)
        rows = concatenate_datasets([*found.sides.values()]) if Path(data).is_file() else found.sides["test"]
        encoded, notes = self._encoded({"test": rows}, tokenizer, self._prompts(model))
        name = self._name(data)
        tell(name, *found.notes, *notes)
        return encoded["test"], name

    def _name(self, data: str) -> str:
        """The name of the data set."""
        return "generated triplets" if data == GENERATED else f"{self.dataset}, {Path(data).name}"

    def _prompts(self, model: LayeredModel | None) -> tuple[str, str]:
        """What SentenceTransformers puts before the first text of a row, and before the others.

        That is the default prompt. Without one the first text of a triplet is a query, and the others are documents.
        """
        settings = self._settings(model)
        prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
        if default:
            return (str(prompts.get(default, "")),) * 2
        if self.dataset == TRIPLETS and prompts.get("query"):
            return str(prompts["query"]), str(prompts.get("document") or prompts.get("passage") or "")
        return "", ""

    def _settings(self, model: LayeredModel | None) -> dict[str, Any]:
        """The prompts and the similarity of a trained model, or of the one that is to be trained."""
        return self._beside_encoder[2] if model is None else model.library.config.beside  # type: ignore[attr-defined]

    def _measured_otherwise(self, model: LayeredModel | None) -> list[str]:
        """A note on a model that is used with another similarity than the one that is measured."""
        similarity = self._settings(model).get("similarity_fn_name") or "cosine"
        notes = []
        if similarity != "cosine":
            notes.append(f"The model compares texts by {similarity}; here cosines are measured.")
        first, others = self._prompts(model)
        if first != others:
            notes.append(f"The first text of a triplet is read with the prompt {first!r}, the others with {others!r}.")
        named = [name for name, prompt in (self._settings(model).get("prompts") or {}).items() if prompt]
        if named and not first and not others:
            notes.append(f"The model has prompts ({', '.join(named)}), of which none is the default: none is used.")
        return notes

    def _encoded(
        self, sides: DatasetDict | dict[str, Dataset], tokenizer: PreTrainedTokenizerBase, prompts: tuple[str, str]
    ) -> tuple[dict[str, Dataset], list[str]]:
        """Texts → ``input_ids``, a list of k lists of tokens, and ``labels`` and ``group``; and what was cut."""
        from descend.tasks.text.tokens import encoded_rows

        cut, total = 0, 0

        def encode(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
            nonlocal cut, total
            texts = [f"{prompts[place > 0]}{text}" for each in rows["texts"] for place, text in enumerate(each)]
            found = tokenizer(texts, truncation=True, max_length=self.max_length, verbose=False)
            cut += sum(bool(each.overflowing) for each in found.encodings or ())
            total += len(texts)
            ids, k = found["input_ids"], len(rows["texts"][0])
            return {
                "input_ids": [ids[start : start + k] for start in range(0, len(ids), k)],
                "labels": rows["label"],
                "group": rows["group"],
            }

        encoded = {side: encoded_rows(rows, encode) for side, rows in sides.items()}
        note = f"{cut:,} of {total:,} texts are cut at {self.max_length} tokens. --max-length N reads longer ones."
        return encoded, [note] if cut else []

    def collate(self, tokenizer: Any) -> Collate:
        """Pad texts to the longest of their batch: ``input_ids`` and ``attention_mask`` (B, k, T)."""
        import torch
        from transformers import DataCollatorWithPadding

        pad = DataCollatorWithPadding(tokenizer)

        def padded(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
            count = len(samples[0]["input_ids"])
            texts = [{"input_ids": text} for sample in samples for text in sample["input_ids"]]
            found = pad(texts)
            batch = {name: found[name].unflatten(0, (-1, count)) for name in ("input_ids", "attention_mask")}
            return batch | {name: torch.tensor([sample[name] for sample in samples]) for name in ("labels", "group")}

        return padded

    def task(self) -> EmbeddingTask:
        """The task of the data's kind."""
        from descend.tasks.text.embedding import ScoredPairs, Triplets

        return ScoredPairs() if self.dataset == SCORED else Triplets()

    def network(self, data: Data) -> LayeredEmbedder:
        """The pretrained model with what is behind its encoder, cut where ``keep_layers`` says so."""
        import torch
        from transformers import AutoModel

        from descend.models import Embedder, EmbedderConfig, LayeredEmbedder, entries_of

        config = config_of(self.model)
        check_words(len(data.tokenizer), config.vocab_size, self.model)
        if isinstance(config, EmbedderConfig):
            embedder = load_pretrained(Embedder, self.model, dtype="float32")
        else:
            from sentence_transformers.sentence_transformer.modules import Pooling

            longest, later, beside = deepcopy(self._beside_encoder)  # its modules are about to learn
            encoder = load_pretrained(AutoModel, self.model, dtype="float32")
            if later is None:
                later = [Pooling(encoder.config.hidden_size, pooling_mode="mean")]
            named = EmbedderConfig(encoder.config, entries_of(later), longest=longest, **beside)
            embedder = Embedder(named, encoder, later)
        try:
            with torch.no_grad():
                embedder.embedding(torch.zeros(1, 2, embedder.config.encoder.hidden_size), None)
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"what {self.model} has behind its encoder does not fit it: {reason(error)}. Save the model again."
            ) from None
        model = LayeredEmbedder(embedder)
        self.cut(model)
        return model

    def restore(self, folder: str) -> tuple[LayeredModel, Any]:
        """Load an embedder that `save_pretrained` wrote, and its tokenizer."""
        from descend.models import Embedder, LayeredEmbedder
        from descend.tasks.text import load_tokenizer

        return LayeredEmbedder(load_pretrained(Embedder, folder, dtype="float32")), load_tokenizer(folder)

    def about_model(self) -> list[str]:
        """What is behind the encoder, and what is trained of a cut model."""
        names = ", ".join(each["type"] for each in self._later) or "the mean over tokens"
        return [f"Every layer is read by what is behind the encoder: {names}.", *super().about_model()]
