"""Text classification with UT on word embeddings, DistilBERT and RoBERTa."""

from abc import abstractmethod
from dataclasses import dataclass, replace
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
from descend.recipes.base import (
    PRETRAINED_DUAL,
    Data,
    Recipe,
    Restored,
    Workload,
    absolute,
    check_heads,
    check_words,
    config_of,
    load_pretrained,
)
from descend.recipes.corpora import (
    CORPORA,
    Encoding,
    class_numbers,
    data_name,
    encoded,
    has_classifier,
    kind_of,
    read_parts,
    tokenizer_of,
)
from descend.settings import SMALL, EncoderSettings, NoiseLevel, TextSettings, TextUTSettings, TrainingDefaults, setting
from descend.tasks.text import Classification

VALIDATION_SHARE = 0.2
"""Share of the training texts for the selection of linear probes of a classifier that Descend did not train."""

LONGEST = 512
"""Longest text in tokens of such a classifier, unless it takes fewer."""


class ClassifierWorkload(Workload):
    """Texts with classes, of the kind ``dataset``, and a classifier of them, ``model``."""

    dataset: str
    model: str

    usual_noise = 1.0
    inputs: ClassVar[list[str]] = ["input_ids", "attention_mask"]

    @abstractmethod
    def _encoding(self, tokenizer: PreTrainedTokenizerBase, restored: Restored | None) -> Encoding:
        """How texts become tokens for a model; None for a new one."""

    def load_test(self, data: str, restored: Restored) -> tuple[Dataset, str]:
        """Load the test side of another data set, and its name."""
        assert restored.tokenizer is not None
        texts = CORPORA[self.dataset].read(data)["test"]
        return self._encoding(restored.tokenizer, restored).encode(texts), data_name(self.dataset, data)

    def collate(self, tokenizer: PreTrainedTokenizerBase | None) -> DataCollatorWithPadding:
        """Pad texts to the longest of their batch."""
        assert tokenizer is not None
        return DataCollatorWithPadding(tokenizer)

    def task(self) -> Classification:
        """Cross-entropy and accuracy."""
        return Classification()

    def restore(self, folder: str) -> Restored:
        """Load a classifier that `save_pretrained` wrote, and its tokenizer."""
        classifier = DescentClassifier.from_pretrained(folder, certified=False)
        # BERT needs them to tell the two texts of a pair apart.
        more = ["token_type_ids"] if classifier.model.config.model_type == "bert" else []
        classifier.tokenizer.model_input_names = [*self.inputs, *more]
        return Restored(classifier.model, classifier.tokenizer)


@dataclass(frozen=True)
class PlainClassifier(ClassifierWorkload):
    """A classifier that Descend did not train, and the data to evaluate it on.

    It is taken to be trained without noise.

    Attributes:
        dataset: The kind of the data, ``imdb`` or ``mnli``.
        model: The folder of the classifier.
    """

    dataset: str = setting("imdb", "reviews, or pairs of sentences", tuple(CORPORA))
    model: str = setting("", "folder of the classifier")
    noise: NoiseLevel = setting(0.0, "training noise γ")

    @classmethod
    def of(cls, folder: Path, data: str, dataset: str | None = None) -> Self:
        """The workload of a classifier in a folder.

        Args:
            folder: The classifier's folder, as `save_pretrained` wrote it.
            data: The data set.
            dataset: The kind of the data; None to infer it from the files.

        Raises:
            InputError: If there is no model's configuration, or the kind of the data is unknown.
        """
        config_of(str(folder))
        return cls(data=data, dataset=dataset or kind_of(Path(data).expanduser()), model=str(folder))

    def load(self, restored: Restored | None = None) -> Data:
        """Load and tokenize the texts, for linear probes."""
        assert restored is not None and restored.tokenizer is not None
        parts = read_parts(self.dataset, self.source, VALIDATION_SHARE)
        return encoded(self.dataset, self.source, parts, self._encoding(restored.tokenizer, restored))

    def _encoding(self, tokenizer: PreTrainedTokenizerBase, restored: Restored | None) -> Encoding:
        assert restored is not None
        config = restored.model.saved.config
        family = FAMILIES.get(config.model_type)
        longest = min(family.longest(config), LONGEST) if family and family.longest else LONGEST
        return Encoding(tokenizer, longest, class_numbers=class_numbers(config, self.dataset, self.model))

    def name_of(self, model: LayeredModel) -> str:
        """The model's name in tables, such as BERT-12."""
        family = type(model.saved.config).__name__.removesuffix("Config").replace("Bert", "BERT")
        return f"{family}-{model.depth}"


class TextRecipe(TextSettings, Recipe, ClassifierWorkload):
    """The base recipe of text classification: settings and data that are the same for all models.

    ``dataset`` is the kind of the texts and their classes, and ``data`` is where they are. A pretrained model has its
    own depth, width and dropout.
    """

    @property
    def defaults(self) -> TrainingDefaults:
        """Training arguments of these settings: small steps for a pretrained model."""
        if self.model == SMALL:
            return self.training
        return self.training.but(learning_rate=3e-5, num_train_epochs=3, dual_optim_args=PRETRAINED_DUAL)

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

    def _encoding(self, tokenizer: PreTrainedTokenizerBase, restored: Restored | None) -> Encoding:
        config = restored.model.saved.config if restored else self._config_with_classes()
        numbers = None if config is None else class_numbers(config, self.dataset, self.model)
        return Encoding(tokenizer, self.max_length, self.truncate, numbers)

    def _config_with_classes(self) -> PreTrainedConfig | None:
        """The configuration of a pretrained model whose head is trained further; None if the head is new."""
        return None

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


class TextUTRecipe(TextUTSettings, TextRecipe):
    """Text classification with the unrolled transformer on word embeddings."""

    family = "UT"

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
        check_words(words, embedding.num_embeddings, self.model)
        wide = replace(self, hidden_size=embedding.embedding_dim)
        network = wide._new(embedding.num_embeddings, names, padding)
        network.get_input_embeddings().load_state_dict(embedding.state_dict())
        return network

    def fitted(self, model: LayeredModel) -> Self:
        """The recipe with the width of the pretrained word embeddings."""
        return self if self.model == SMALL else replace(self, hidden_size=model.saved.config.hidden_size)


class EncoderRecipe(EncoderSettings, TextRecipe):
    """Text classification with an encoder of Transformers that is read at [CLS].

    The readout is Transformers' two layers (``own``), or one layer as in the paper (``linear``), which replaces the
    head that a pretrained model may have.
    """

    configs: ClassVar[dict[str, type[Any]]]
    """The model's configuration, by readout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)

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
        check_words(words, config.vocab_size, self.model)
        if not has_classifier(config):
            config.id2label, config.label2id = names, {name: label for label, name in names.items()}
        return load_pretrained(AutoModelForSequenceClassification, self.model, config=config)


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
