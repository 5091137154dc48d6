"""The base recipes of text classification."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from descend.declared import SMALL, TEXTS, Dropout, NoiseLevel, TextLength, setting
from descend.errors import InputError
from descend.recipes.base import (
    Data,
    NewModelSettings,
    Recipe,
    absolute_or_name,
    check_words,
    class_numbers,
    has_classifier,
    head_numbers,
    load_pretrained,
    tell,
)
from descend.settings import PRETRAINED_DUAL

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from descend.models import LayeredClassifier, LayeredModel, MeanPooledConfig
    from descend.tasks.text import Classification

TELL_PAIRS_APART = ("bert", "albert", "electra", "deberta-v2")
"""Families that are told by ``token_type_ids`` which tokens are of the second text of a pair."""


def inputs_of(config: PreTrainedConfig) -> list[str]:
    """The fields of a tokenizer that a model takes."""
    encoder = getattr(config, "encoder", config)
    tells = encoder.model_type in TELL_PAIRS_APART and encoder.type_vocab_size > 1
    return ["input_ids", "attention_mask", *["token_type_ids"] * tells]


def family_name(config: PreTrainedConfig) -> str:
    """A family's name in tables, such as BERT."""
    return type(getattr(config, "encoder", config)).__name__.removesuffix("Config").replace("Bert", "BERT")


@dataclass(frozen=True)
class TextRecipe(Recipe):
    """The base recipe of text classification: settings and data that are the same for all models.

    ``dataset`` is the kind of the texts and their classes, and ``data`` is where they are.
    """

    in_paper = True
    data_help = "NAME, a folder of texts with classes or its name on the Hub"
    takes_hub_data = True
    packages = ("datasets",)

    dataset: str = setting("imdb", "kind of texts", TEXTS)
    data: str = field(kw_only=True, metadata={"help": "folder or Hub name of its texts, or: generated"})
    tokenizer: str | None = setting(None, "folder or Hub name [the model's, or learned]")
    max_length: TextLength = setting(128, "longest text, in tokens")
    truncate: bool = setting(True, "cut longer texts, or refuse them")
    keep_markup: bool = setting(False, "leave <br /> in texts; else it becomes a blank, for inference too")

    model: ClassVar[str]
    """Its model; a setting of each recipe."""

    training = Recipe.training | {
        "num_train_epochs": 4,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 64,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.1,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "train_sampling_strategy": "group_by_length",
    }
    pretrained: ClassVar[dict[str, Any]] = training | {
        "learning_rate": 3e-5,
        "num_train_epochs": 3,
        "dual_optim_args": PRETRAINED_DUAL,
    }

    @property
    def defaults(self) -> dict[str, Any]:
        """Training arguments of these settings: small steps for a pretrained model."""
        return self.training if self.model == SMALL else self.pretrained

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own sizes."""
        return replace(self, data=absolute_or_name(self.data))

    def load(self, model: LayeredModel | None = None, tokenizer: Any = None) -> Data:
        """Load and tokenize the texts."""
        from descend.recipes.corpora import data_name, labels_of, read_parts, sources_read
        from descend.tasks.text import learn_tokenizer, load_tokenizer
        from descend.tasks.text.tokens import KEEP_MARKUP, count_cut

        parts = read_parts(self.dataset, self.source, self.validation_share, self.keep_markup)
        if model is not None:
            config = model.saved.config
        else:
            source, config = self.tokenizer or (None if self.model == SMALL else self.model), self._config()
            train = parts["train"]
            words = (text for name in ("text", "pair") if name in train.column_names for text in train[name])
            tokenizer = learn_tokenizer(words) if source is None else load_tokenizer(source)
            tokenizer.model_input_names = inputs_of(config)
            # Saved, so that inference cuts texts and reads markup as training does.
            tokenizer.model_max_length = self.max_length
            tokenizer.init_kwargs[KEEP_MARKUP] = self.keep_markup
        encoded = {side: self._encode(texts, tokenizer, config) for side, texts in parts.items()}
        cut = sum(count_cut(texts, encoded[side], tokenizer, self.max_length) for side, texts in parts.items())
        return Data(
            **encoded,
            name=data_name(self.dataset, self.source),
            tokenizer=tokenizer,
            labels=labels_of(self.dataset, parts["train"]),
            notes=self._notes(cut, sum(map(len, parts.values()))),
            read=sources_read(self.source, parts.values()),
        )

    def load_test(self, data: str, model: LayeredModel, tokenizer: Any) -> tuple[Dataset, str]:
        """Load the test side of another data set, and its name."""
        from descend.recipes.corpora import CORPORA, data_name, labels_of, sources_read
        from descend.tasks.text import tokenize
        from descend.tasks.text.tokens import count_cut

        corpus = CORPORA[self.dataset]
        parts = (corpus.read_test or corpus.read)(data, self.keep_markup)
        texts, name = parts["test"], data_name(self.dataset, data)
        config, classes = model.saved.config, labels_of(self.dataset, texts)
        numbers = class_numbers(config, classes, config.name_or_path or "the model", self.dataset)
        encoded = tokenize(texts, tokenizer, self.max_length, truncate=self.truncate, numbers=numbers)
        cut = count_cut(texts, encoded, tokenizer, self.max_length)
        whole = f"all {len(texts):,} texts are test samples; training must not have seen them" * ([*parts] == ["test"])
        tell(name, whole, sources_read(data, parts.values()), *self._notes(cut, len(texts)))
        return encoded, name

    def _notes(self, cut: int, texts: int) -> tuple[str, ...]:
        """How many of the texts are cut."""
        if not cut:
            return ()
        return (f"{cut:,} of {texts:,} texts are cut at {self.max_length} tokens. --max-length N reads longer ones.",)

    def _encode(self, texts: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Dataset:
        """Texts → ``input_ids`` and the tokenizer's other columns, not padded, and ``labels`` of the model's head."""
        from descend.recipes.corpora import labels_of
        from descend.tasks.text import tokenize

        numbers = head_numbers(config, labels_of(self.dataset, texts), self.model, self.dataset)
        return tokenize(texts, tokenizer, self.max_length, truncate=self.truncate, numbers=numbers)

    def collate(self, tokenizer: Any) -> DataCollatorWithPadding:
        """Pad texts to the longest of their batch."""
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(tokenizer)

    def task(self) -> Classification:
        """Cross-entropy and accuracy."""
        from descend.tasks.text import Classification

        return Classification()

    def restore(self, folder: str) -> tuple[LayeredModel, Any]:
        """Load a classifier that `save_pretrained` wrote, and its tokenizer."""
        from descend.inference import DescentClassifier

        classifier = DescentClassifier.from_pretrained(folder, certified=False)
        classifier.tokenizer.model_input_names = inputs_of(classifier.model.config)
        return classifier.model, classifier.tokenizer

    def _config(self) -> PreTrainedConfig:
        """The configuration of a pretrained model whose head is trained further; one without a head if it is new."""
        from transformers import PreTrainedConfig

        return PreTrainedConfig()

    def network(self, data: Data) -> LayeredClassifier:
        """A classifier of the data's classes."""
        from descend.models import LayeredClassifier

        names = dict(enumerate(data.labels))
        return LayeredClassifier(self._network(len(data.tokenizer), names, data.tokenizer.pad_token_id))

    @abstractmethod
    def _network(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        """A model that can be trained.

        Args:
            words: Size of the vocabulary.
            names: The classes.
            padding: Number of the padding token.
        """

    def _check_length(self, config: PreTrainedConfig) -> None:
        """Refuse a pretrained model that takes shorter texts."""
        from descend.models import encoders, family_of

        longest = family_of(config, encoders.FAMILIES).longest
        if longest is not None and self.max_length > longest(config):
            raise InputError(
                f"{self.model} takes texts of at most {longest(config)} tokens; got --max-length {self.max_length}."
            )

    def _pretrained(self, config: PreTrainedConfig, words: int, names: dict[int, str]) -> PreTrainedModel:
        """The pretrained model with a configuration, in float32, with a new head for the classes if it has none."""
        from transformers import AutoModel, AutoModelForSequenceClassification

        from descend.models import MeanPooledConfig, MeanPooledForSequenceClassification

        check_words(words, config.vocab_size, self.model)
        new = not has_classifier(config)
        if new:
            config.id2label, config.label2id = names, {name: label for label, name in names.items()}
        if isinstance(config, MeanPooledConfig) and new:
            encoder = load_pretrained(AutoModel, self.model, config=config.encoder, dtype="float32")
            return MeanPooledForSequenceClassification(config, encoder)
        return load_pretrained(AutoModelForSequenceClassification, self.model, config=config, dtype="float32")


@dataclass(frozen=True)
class NewTextRecipe(NewModelSettings, TextRecipe):
    """The base recipe of text classification with a small new model, or one that starts from a pretrained one.

    A pretrained model has its own depth, width and dropout.
    """

    dropout: Dropout = setting(0.3, "dropout of a small model")
    noise: NoiseLevel = setting(1.0, "training noise γ, in std of the embeddings")

    def _network(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        make = self._new if self.model == SMALL else self._started
        return make(words, names, padding)

    def _new(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        from transformers import AutoModelForSequenceClassification

        config = self.small(words, padding)
        config.id2label, config.label2id = names, {name: label for label, name in names.items()}
        return AutoModelForSequenceClassification.from_config(config)

    @abstractmethod
    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small new model.

        Args:
            words: Size of the vocabulary.
            padding: Number of the padding token.
        """

    @abstractmethod
    def _started(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        """The model, started from a pretrained one."""


def linearly_read(encoder: PreTrainedConfig, pooling: str) -> MeanPooledConfig:
    """The configuration of a new linear head on an encoder's tokens, with the dropout of its own head."""
    from descend.models import MeanPooledConfig

    names = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
    rates = (getattr(encoder, name, None) for name in names)
    return MeanPooledConfig(encoder, next((rate for rate in rates if rate is not None), 0.1), pooling)
