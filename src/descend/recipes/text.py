"""Text classification with any pretrained encoder, and with UT on word embeddings, DistilBERT and RoBERTa."""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from datasets import Dataset
from transformers import (
    MODEL_MAPPING,
    AutoModel,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    DistilBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
)

from descend.declared import SMALL
from descend.errors import InputError
from descend.inference import DescentClassifier
from descend.models import (
    LayeredClassifier,
    LayeredModel,
    MeanPooledConfig,
    MeanPooledForSequenceClassification,
    TextUTConfig,
    check_family,
    encoders,
    family_of,
    keep_first,
)
from descend.recipes.base import (
    Data,
    Recipe,
    Restored,
    absolute_or_name,
    check_heads,
    check_words,
    config_of,
    has_classifier,
    head_numbers,
    load_pretrained,
    tell,
)
from descend.recipes.corpora import CORPORA, data_name, kind_of, labels_of, read_parts, sources_read
from descend.settings import (
    ClassifierSettings,
    EncoderSettings,
    NewTextSettings,
    TextSettings,
    TextUTSettings,
)
from descend.tasks.text import Classification, learn_tokenizer, load_tokenizer, tokenize
from descend.tasks.text.tokens import KEEP_MARKUP, count_cut

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


class TextRecipe(TextSettings, Recipe):
    """The base recipe of text classification: settings and data that are the same for all models.

    ``dataset`` is the kind of the texts and their classes, and ``data`` is where they are.
    """

    model: str

    @property
    def defaults(self) -> dict[str, Any]:
        """Training arguments of these settings: small steps for a pretrained model."""
        return self.training if self.model == SMALL else self.pretrained

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own sizes."""
        return replace(self, data=absolute_or_name(self.data))

    def load(self, restored: Restored | None = None) -> Data:
        """Load and tokenize the texts."""
        parts = read_parts(self.dataset, self.source, self.validation_share, self.keep_markup)
        if restored is not None:
            tokenizer, config = restored.tokenizer, restored.model.saved.config
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

    def load_test(self, data: str, restored: Restored) -> tuple[Dataset, str]:
        """Load the test side of another data set, and its name."""
        parts = CORPORA[self.dataset].read(data, self.keep_markup)
        texts, name = parts["test"], data_name(self.dataset, data)
        encoded = self._encode(texts, restored.tokenizer, restored.model.saved.config)
        cut = count_cut(texts, encoded, restored.tokenizer, self.max_length)
        tell(name, sources_read(data, parts.values()), *self._notes(cut, len(texts)))
        return encoded, name

    def _notes(self, cut: int, texts: int) -> tuple[str, ...]:
        """How many of the texts are cut."""
        if not cut:
            return ()
        return (f"{cut:,} of {texts:,} texts are cut at {self.max_length} tokens. --max-length N reads longer ones.",)

    def _encode(self, texts: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Dataset:
        """Texts → ``input_ids`` and the tokenizer's other columns, not padded, and ``labels`` of the model's head."""
        numbers = head_numbers(config, labels_of(self.dataset, texts), self.model, self.dataset)
        return tokenize(texts, tokenizer, self.max_length, truncate=self.truncate, numbers=numbers)

    def collate(self, tokenizer: Any) -> DataCollatorWithPadding:
        """Pad texts to the longest of their batch."""
        return DataCollatorWithPadding(tokenizer)

    def task(self) -> Classification:
        """Cross-entropy and accuracy."""
        return Classification()

    def restore(self, folder: str) -> Restored:
        """Load a classifier that `save_pretrained` wrote, and its tokenizer."""
        classifier = DescentClassifier.from_pretrained(folder, certified=False)
        classifier.tokenizer.model_input_names = inputs_of(classifier.model.config)
        return Restored(classifier.model, classifier.tokenizer)

    def _config(self) -> PreTrainedConfig:
        """The configuration of a pretrained model whose head is trained further; one without a head if it is new."""
        return PreTrainedConfig()

    def network(self, data: Data) -> LayeredClassifier:
        """A classifier of the data's classes."""
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
        longest = family_of(config, encoders.FAMILIES).longest
        if longest is not None and self.max_length > longest(config):
            raise InputError(
                f"{self.model} takes texts of at most {longest(config)} tokens; got --max-length {self.max_length}."
            )

    def _pretrained(self, config: PreTrainedConfig, words: int, names: dict[int, str]) -> PreTrainedModel:
        """The pretrained model with a configuration, in float32, with a new head for the classes if it has none."""
        check_words(words, config.vocab_size, self.model)
        new = not has_classifier(config)
        if new:
            config.id2label, config.label2id = names, {name: label for label, name in names.items()}
        if isinstance(config, MeanPooledConfig) and new:
            encoder = load_pretrained(AutoModel, self.model, config=config.encoder, dtype="float32")
            return MeanPooledForSequenceClassification(config, encoder)
        return load_pretrained(AutoModelForSequenceClassification, self.model, config=config, dtype="float32")


class ClassifierRecipe(ClassifierSettings, TextRecipe):
    """Text classification with any pretrained encoder, or a decoder.

    A model's own head is trained further where ``pooling`` is what it reads; otherwise it gets a new head.
    """

    def completed(self) -> Self:
        """The recipe with absolute paths, the kind of the texts, the head's pooling and the number of blocks."""
        recipe = super().completed()
        if recipe.dataset is None:
            recipe = replace(recipe, dataset="imdb" if self.source is None else kind_of(Path(recipe.data)))
        config = config_of(self.model)
        check_family(config, encoders.FAMILIES)
        pooling = self.pooling or _pooling_of(config) or "mean"
        layers = self.keep_layers or config.num_hidden_layers
        recipe = replace(recipe, model=absolute_or_name(self.model), keep_layers=layers, pooling=pooling)
        recipe._check_length(recipe._config())
        return recipe

    @property
    def label(self) -> str:
        """The model's name in tables, such as BERT-6."""
        return f"{family_name(self._config())}-{self.depth}"

    def _config(self) -> PreTrainedConfig:
        """The configuration of the pretrained model, with the head that ``pooling`` asks for."""
        config = config_of(self.model)
        head = _pooling_of(config)
        if config.model_type == "modernbert" and head is None:
            config.classifier_pooling = self.pooling
            return config
        if head == self.pooling or (head is None and self.pooling == "cls"):
            return config
        if head == "mean" or type(config) not in MODEL_MAPPING:
            raise InputError(f"the head of {self.model} can't be replaced; leave out --pooling {self.pooling}.")
        return _linear(config, "mean")

    def network(self, data: Data) -> LayeredClassifier:
        """The pretrained model, cut to its first blocks where ``keep_layers`` says so."""
        model = super().network(data)
        keep_first(model, self.depth)
        return model

    def _network(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        config = self._config()
        if getattr(config, "pad_token_id", padding) is None:
            config.pad_token_id = padding
        return self._pretrained(config, words, names)


class LinearlyReadRecipe(ClassifierRecipe):
    """A text classifier whose head is one linear layer whatever the family, so that it can be fitted.

    Descend's own models have such a head; any other model gets one on the mean of its tokens.
    """

    def _config(self) -> PreTrainedConfig:
        config = config_of(self.model)
        return _linear(config, "mean") if type(config) in MODEL_MAPPING else config


def _linear(encoder: PreTrainedConfig, pooling: str) -> MeanPooledConfig:
    """The configuration of a new linear head on an encoder's tokens, with the dropout of its own head."""
    names = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
    rates = (getattr(encoder, name, None) for name in names)
    return MeanPooledConfig(encoder, next((rate for rate in rates if rate is not None), 0.1), pooling)


def _pooling_of(config: PreTrainedConfig) -> str | None:
    """What the head of a pretrained model reads; None for a model without a head."""
    if not has_classifier(config):
        return None
    if config.model_type == TextUTConfig.model_type:
        return "mean"
    return str(getattr(config, "classifier_pooling", "cls"))


class NewTextRecipe(NewTextSettings, TextRecipe):
    """The base recipe of text classification with a small new model, or one that starts from a pretrained one."""

    def _network(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        make = self._new if self.model == SMALL else self._started
        return make(words, names, padding)

    def _new(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
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


class TextUTRecipe(TextUTSettings, NewTextRecipe):
    """Text classification with the unrolled transformer on word embeddings."""

    family = "UT"

    def small(self, words: int, padding: int) -> TextUTConfig:
        """The configuration of a new UT."""
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
        embedding = load_pretrained(AutoModel, self.model).get_input_embeddings()
        check_words(words, embedding.num_embeddings, self.model)
        wide = replace(self, hidden_size=embedding.embedding_dim)
        network = wide._new(embedding.num_embeddings, names, padding)
        network.get_input_embeddings().load_state_dict(embedding.state_dict())
        return network

    def fitted(self, model: LayeredModel) -> Self:
        """The recipe with the width of the pretrained word embeddings."""
        return self if self.model == SMALL else replace(self, hidden_size=model.saved.config.hidden_size)


class EncoderRecipe(EncoderSettings, NewTextRecipe):
    """Text classification with an encoder of Transformers that is read at [CLS].

    The readout is Transformers' two layers (``own``), or one layer as in the paper (``linear``), which replaces the
    head that a pretrained model may have.
    """

    kind: ClassVar[type[PreTrainedConfig]]
    """The encoder's configuration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own depth and width."""
        recipe = super().completed()
        if self.model == SMALL:
            return recipe
        config = self._config()
        encoder, pooling = getattr(config, "encoder", config), getattr(config, "classifier_pooling", None)
        linear = self.readout == "linear"
        if encoder.model_type != self.kind.model_type or pooling != ("cls" if linear else None):
            own = f"model_type {self.kind.model_type!r}{', or one with a linear readout of its first token' * linear}"
            raise InputError(
                f"expected a {self.family}, {own}; {self.model} is of model_type {config.model_type!r}. Choose another "
                "model, or its own recipe and --readout."
            )
        self._check_length(config)
        return replace(recipe, depth=encoder.num_hidden_layers, hidden_size=encoder.hidden_size)

    def _config(self) -> PreTrainedConfig:
        """The configuration of a pretrained model, with another head where the readout is to be linear."""
        if self.model == SMALL:
            return super()._config()
        config = config_of(self.model)
        return self._read(config) if config.model_type == self.kind.model_type else config

    def _read(self, encoder: PreTrainedConfig) -> PreTrainedConfig:
        """The configuration of an encoder with the readout."""
        return _linear(encoder, "cls") if self.readout == "linear" else encoder

    def _started(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        return self._pretrained(self._config(), words, names)


class DistilBERTRecipe(EncoderRecipe):
    """Text classification with DistilBERT."""

    family = "DistilBERT"
    kind = DistilBertConfig

    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small DistilBERT."""
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


class RoBERTaRecipe(EncoderRecipe):
    """Text classification with RoBERTa."""

    family = "RoBERTa"
    kind = RobertaConfig

    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small RoBERTa, whose positions start after the padding token's number."""
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
