"""Text classification with UT on word embeddings, DistilBERT and RoBERTa."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from datasets import Dataset
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    DistilBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
)

from descend.errors import InputError
from descend.inference import DescentClassifier
from descend.models import DistilBertLinearConfig, LayeredClassifier, LayeredModel, RobertaLinearConfig, TextUTConfig
from descend.models.encoders import FAMILIES
from descend.models.linear_readout import with_linear_readout
from descend.recipes.base import PRETRAINED_DUAL, Data, Recipe, Restored, TrainingDefaults, absolute, setting
from descend.recipes.corpora import (
    CORPORA,
    Encoding,
    check_dataset,
    class_numbers,
    data_name,
    encoded,
    has_classifier,
    read_parts,
    tokenizer_of,
)
from descend.recipes.pretrained import SMALL, config_of, load_pretrained
from descend.tasks.text import Classification


@dataclass(frozen=True)
class TextRecipe(Recipe):
    """The base recipe of text classification: settings and data that are the same for all models.

    ``dataset`` is the kind of the texts and their classes, and ``data`` is where they are. A pretrained model has its
    own depth, width and dropout.
    """

    dataset: str = setting("imdb", "reviews, or pairs of sentences", ("imdb", "mnli"))
    data: str = field(kw_only=True, metadata={"help": "folder or Hub name of its texts, or: generated"})
    model: str = setting(SMALL, "small: a new one; or folder or Hub name [small]")
    tokenizer: str | None = setting(None, "folder or Hub name [the model's, or learned]")
    max_length: int = setting(128, "longest text, in tokens")
    truncate: bool = setting(True, "cut longer texts, or refuse them")
    depth: int = setting(6, "L, layers of a small model")
    hidden_size: int = setting(128, "width of a small model")
    dropout: float = setting(0.3, "dropout of a small model")
    noise: float = setting(1.0, "training noise γ, in std of the embeddings")
    validation_share: float = setting(0.2, "share of the training texts to validate on")

    usual_noise = 1.0
    inputs: ClassVar[list[str]] = ["input_ids", "attention_mask"]
    training = TrainingDefaults(
        num_train_epochs=4,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=5e-4,
        lr_scheduler_type="linear",
        warmup_steps=0.1,
        eval_strategy="epoch",
        save_strategy="epoch",
        train_sampling_strategy="group_by_length",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dataset(self.dataset)
        for name, value in self._sizes().items():
            if value < 1:
                raise InputError(f"{name} must be at least 1; got {value}.")
        if self.max_length < 3:
            raise InputError(f"max_length must be at least 3, for a word between two marks; got {self.max_length}.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must lie in [0, 1); got {self.dropout}.")

    def _sizes(self) -> dict[str, int]:
        """Sizes that must be at least 1, by name."""
        return {"depth": self.depth, "hidden_size": self.hidden_size}

    @property
    def defaults(self) -> TrainingDefaults:
        """Training arguments of these settings: small steps for a pretrained model."""
        if self.model == SMALL:
            return self.training
        return replace(self.training, learning_rate=3e-5, num_train_epochs=3, dual_optim_args=PRETRAINED_DUAL)

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own sizes."""
        if self.source is None or not Path(self.data).expanduser().exists():  # generated, or a name on the Hub
            return self
        return replace(self, data=absolute(self.data))

    def load(self, restored: Restored | None = None) -> Data:
        """Load and tokenize the texts."""
        parts = read_parts(self.dataset, self.source, self.validation_share)
        tokenizer = restored.tokenizer if restored else None
        if tokenizer is None:
            source = self.tokenizer or (None if self.model == SMALL else self.model)
            tokenizer = tokenizer_of(source, parts["train"])
            tokenizer.model_input_names = list(self.inputs)
            tokenizer.model_max_length = self.max_length  # saved, so that inference cuts texts as training does
        return encoded(self.dataset, self.source, parts, self._encoding(tokenizer, restored))

    def load_test(self, data: str, restored: Restored) -> tuple[Dataset, str]:
        """Load the test side of another data set, and its name."""
        assert restored.tokenizer is not None
        texts = CORPORA[self.dataset].read(data)["test"]
        return self._encoding(restored.tokenizer, restored).encode(texts), data_name(self.dataset, data)

    def _encoding(self, tokenizer: PreTrainedTokenizerBase, restored: Restored | None) -> Encoding:
        config = restored.model.saved.config if restored else self._config_with_classes()
        numbers = None if config is None else class_numbers(config, self.dataset, self.model)
        return Encoding(tokenizer, self.max_length, self.truncate, numbers)

    def _config_with_classes(self) -> PreTrainedConfig | None:
        """The configuration of a pretrained model whose head is trained further; None if the head is new."""
        return None

    def collate(self, tokenizer: PreTrainedTokenizerBase | None) -> DataCollatorWithPadding:
        """Pad texts to the longest of their batch."""
        assert tokenizer is not None
        return DataCollatorWithPadding(tokenizer)

    def task(self) -> Classification:
        """Cross-entropy and accuracy."""
        return Classification()

    def network(self, data: Data) -> LayeredClassifier:
        """A small new classifier, or a pretrained one."""
        assert data.tokenizer is not None
        names = dict(enumerate(data.labels))
        make = self._new if self.model == SMALL else self._pretrained
        return LayeredClassifier(make(len(data.tokenizer), names, data.tokenizer.pad_token_id))

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
    def _pretrained(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        """A pretrained model, with a new head for these classes if it has none."""

    def restore(self, folder: str) -> Restored:
        """Load a classifier that `save_pretrained` wrote, and its tokenizer."""
        classifier = DescentClassifier.from_pretrained(folder, certified=False)
        classifier.tokenizer.model_input_names = list(self.inputs)
        return Restored(classifier.model, classifier.tokenizer)


@dataclass(frozen=True)
class TextUTRecipe(TextRecipe):
    """Text classification with the unrolled transformer on word embeddings."""

    depth: int = setting(5, "L, the number of layers")
    model: str = setting(SMALL, "small, or whose embeddings to use [small]")
    dropout: float = setting(0.5, "dropout of embeddings and mean token")
    attention_size: int = setting(64, "dimension of attention")
    tied: bool = setting(True, "one set of weights for all layers")

    family = "UT"
    training = replace(TextRecipe.training, num_train_epochs=3, learning_rate=3e-3)

    def _sizes(self) -> dict[str, int]:
        return {**super()._sizes(), "attention_size": self.attention_size}

    @property
    def blocks(self) -> int:
        """One block for all layers if they are tied."""
        return 1 if self.tied else self.depth

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

    def _pretrained(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        embedding = load_pretrained(AutoModel, self.model).get_input_embeddings()
        if words > embedding.num_embeddings:
            raise too_many_words(words, embedding.num_embeddings, self.model)
        wide = replace(self, hidden_size=embedding.embedding_dim)
        network = wide._new(embedding.num_embeddings, names, padding)
        network.get_input_embeddings().load_state_dict(embedding.state_dict())
        return network

    def fitted(self, model: LayeredModel) -> Self:
        """The recipe with the width of the pretrained word embeddings."""
        return self if self.model == SMALL else replace(self, hidden_size=model.saved.config.hidden_size)


@dataclass(frozen=True)
class EncoderRecipe(TextRecipe):
    """Text classification with an encoder of Transformers that is read at [CLS].

    The readout is Transformers' two layers (``own``), or one layer as in the paper (``linear``), which replaces the
    head that a pretrained model may have.
    """

    heads: int = setting(4, "attention heads of a small model")
    readout: str = setting("own", "the classifier; the paper's is linear", ("own", "linear"))

    configs: ClassVar[dict[str, type[Any]]]
    """The model's configuration, by readout."""

    def __post_init__(self) -> None:
        if self.readout not in self.configs:
            raise InputError(f"readout must be one of {', '.join(self.configs)}; got {self.readout!r}.")
        super().__post_init__()
        if self.model == SMALL and self.hidden_size % self.heads:
            raise InputError(f"hidden_size must be a multiple of heads; got {self.hidden_size} and {self.heads}.")

    def _sizes(self) -> dict[str, int]:
        return {**super()._sizes(), "heads": self.heads}

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own depth and width."""
        recipe = super().completed()
        if self.model == SMALL:
            return recipe
        config = self._config()
        expected = self.configs[self.readout].model_type
        if config.model_type != expected:
            kinds = dict.fromkeys([self.configs["own"].model_type, expected])  # the first gets a linear readout
            raise InputError(
                f"expected a {self.family}, model_type {' or '.join(map(repr, kinds))}; {self.model} is of model_type "
                f"{config.model_type!r}. Choose another model, or its own recipe and --readout."
            )
        class_numbers(config, self.dataset, self.model)  # raises where the head does not fit the data
        longest = FAMILIES[config.model_type].longest
        if longest is not None and self.max_length > longest(config):
            raise InputError(
                f"{self.model} takes texts of at most {longest(config)} tokens; got --max-length {self.max_length}."
            )
        return replace(recipe, depth=config.num_hidden_layers, hidden_size=config.hidden_size)

    def _config(self) -> PreTrainedConfig:
        """The configuration of the pretrained model, with another head where the readout is to be linear."""
        config = config_of(self.model)
        if self.readout == "linear" and config.model_type == self.configs["own"].model_type:
            return with_linear_readout(config, self.configs["linear"])
        return config

    def _config_with_classes(self) -> PreTrainedConfig | None:
        return None if self.model == SMALL else self._config()

    def _pretrained(self, words: int, names: dict[int, str], padding: int) -> PreTrainedModel:
        config = self._config()
        if words > config.vocab_size:
            raise too_many_words(words, config.vocab_size, self.model)
        if not has_classifier(config):
            config.id2label, config.label2id = names, {name: label for label, name in names.items()}
        return load_pretrained(AutoModelForSequenceClassification, self.model, config=config)


@dataclass(frozen=True)
class DistilBERTRecipe(EncoderRecipe):
    """Text classification with DistilBERT."""

    family = "DistilBERT"
    configs = {"own": DistilBertConfig, "linear": DistilBertLinearConfig}  # noqa: RUF012

    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small DistilBERT."""
        return self.configs[self.readout](
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


@dataclass(frozen=True)
class RoBERTaRecipe(EncoderRecipe):
    """Text classification with RoBERTa."""

    family = "RoBERTa"
    configs = {"own": RobertaConfig, "linear": RobertaLinearConfig}  # noqa: RUF012

    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small RoBERTa, whose positions start after the padding token's number."""
        return self.configs[self.readout](
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


def too_many_words(words: int, room: int, source: str) -> InputError:
    """The error for a tokenizer with more words than a pretrained model has embeddings."""
    return InputError(
        f"the tokenizer has {words} words, the word embedding of {source} {room}. Give the model's own tokenizer."
    )
