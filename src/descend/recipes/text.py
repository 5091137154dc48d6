"""Text classification with UT on word embeddings, DistilBERT and RoBERTa."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from datasets import Dataset, DatasetDict
from transformers import (
    AutoConfig,
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
from descend.models import DistilBertLinearConfig, LayeredClassifier, RobertaLinearConfig, TextUTConfig
from descend.models.classifiers import FAMILIES
from descend.models.linear import with_linear_readout
from descend.models.loading import load_config, load_model
from descend.recipes.base import GENTLE, Recipe, absolute, setting
from descend.tasks.text import (
    IMDB_LABELS,
    MNLI_LABELS,
    Classification,
    TextData,
    corpus,
    generate_pairs,
    generate_reviews,
    learn_tokenizer,
    load_tokenizer,
    read_imdb,
    read_mnli,
    split_off,
    tokenize,
)

SMALL = "small"

_EXPECTED = "a folder with config.json and model.safetensors, or a name on the Hub, which needs a network at first"

USUAL_FOLDERS = {"imdb", "aclimdb", "mnli", "glue_format", "glue_data", "jsonl", "nyu_tsv", "multinli_1.0"}
"""Names of folders that say no more than the name of the data set."""


class Corpus(NamedTuple):
    """What ``--dataset`` names: how files are read, what stands in where there are none, and the classes."""

    read: Callable[[str], DatasetDict]
    generate: Callable[[int, int], list[dict[str, Any]]]
    labels: tuple[str, ...]


CORPORA = {
    "imdb": Corpus(read_imdb, generate_reviews, IMDB_LABELS),
    "mnli": Corpus(read_mnli, generate_pairs, MNLI_LABELS),
}


@dataclass
class TextRecipe(Recipe):
    """Text classification: what all models share."""

    dataset: str = setting("imdb", "imdb or mnli: reviews, or pairs of sentences.")
    data: str | None = setting(None, "Folder of the data set, or its name on the Hub; generated texts unless given.")
    model: str = setting(SMALL, "small: a new small model. Or a pretrained one, by folder or by its name on the Hub.")
    tokenizer: str | None = setting(
        None,
        "Folder of a tokenizer or its name on the Hub; the model's own, or one learned from the texts, unless given.",
    )
    max_length: int = setting(128, "Longest text, in tokens.")
    truncate: bool = setting(True, "Cut longer texts; otherwise they are refused.")
    depth: int = setting(6, "L, the number of layers of the small model; a pretrained model has its own.")
    hidden_size: int = setting(128, "Width of the small model.")
    dropout: float = setting(0.3, "Dropout of the small model.")
    noise: float = setting(1.0, "Training noise γ on the word embeddings, of their std σ_x, as --noise-is says.")
    validation_share: float = setting(0.2, "Share of the training texts kept for validation.")

    usual_noise = 1.0
    fields: ClassVar[list[str]] = ["input_ids", "attention_mask"]
    training = Recipe.training | {
        "num_train_epochs": 4,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 64,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.1,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "train_sampling_strategy": "group_by_length",
        "metric_for_best_model": "merit",
    }

    def check(self) -> None:
        """Refuse what can't be, before any work is done."""
        super().check()
        if self.dataset not in CORPORA:
            raise InputError(f"dataset must be one of {', '.join(CORPORA)}; got {self.dataset!r}.")
        if self.data is not None and Path(self.data).expanduser().exists():  # or else a name on the Hub
            self.data = absolute(self.data)
        for name in ("depth", "hidden_size", "heads", "attention_size"):
            if getattr(self, name, 1) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.hidden_size % getattr(self, "heads", 1):
            raise InputError(f"hidden_size must be a multiple of heads; got {self.hidden_size} and {self.heads}.")  # type: ignore[attr-defined]
        if self.max_length < 3:
            raise InputError(f"max_length must leave room for a word between two marks; got {self.max_length}.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must lie in [0, 1); got {self.dropout}.")
        if self.model != SMALL:
            self._check_pretrained(self._config())

    def _config(self) -> PreTrainedConfig:
        """The configuration of the pretrained model."""
        return library_config(self.model)

    def _check_pretrained(self, config: PreTrainedConfig) -> None:
        """Refuse a pretrained model of another kind; any will do where only its word embeddings are used."""

    def _labels_of(self, config: PreTrainedConfig) -> list[int] | None:
        """The number that a model's own head gives each class of the data; None for one without a head of its own.

        Raises:
            InputError: If it has another number of classes, or others by name.
        """
        if not any("ForSequenceClassification" in each for each in config.architectures or ()):
            return None
        ours = CORPORA[self.dataset].labels
        if config.num_labels != len(ours):
            raise InputError(
                f"{self.model} has a head of {config.num_labels} labels; {self.dataset} has {len(ours)}: "
                f"{', '.join(ours)}. Choose a model without a head, or other data."
            )
        theirs = {str(name).lower(): int(label) for label, name in (config.id2label or {}).items()}
        if all(name.startswith("label_") for name in theirs):  # it does not say: in the order of the data
            return None
        # "NEGATIVE" is neg.
        order = [next((label for name, label in theirs.items() if name.startswith(each)), None) for each in ours]
        found = [label for label in order if label is not None]
        if sorted(found) != list(range(len(ours))):
            raise InputError(
                f"the labels of {self.model} are {', '.join(theirs)}; those of {self.dataset} {', '.join(ours)}. Name "
                "them alike in the model's config.json, id2label."
            )
        return found

    @property
    def otherwise(self) -> dict[str, Any]:
        """A pretrained model is changed with care."""
        return {} if self.model == SMALL else {"learning_rate": 3e-5, "num_train_epochs": 3, **GENTLE}

    def load(self) -> TextData:
        """The data set; it does not depend on the run's seed, so that seeds are compared on the same data."""
        kind = CORPORA[self.dataset]
        texts = kind.read(self.data) if self.data is not None else corpus(kind.generate)
        parts = split_off(texts, self.validation_share)
        if "_words" not in vars(self):
            self._words = self._tokenizer(parts["train"])
        tokenized = {side: self._tokenize(rows) for side, rows in parts.items()}
        return TextData(
            **{side: rows for side, (rows, _) in tokenized.items()},
            name=self._name,
            labels=kind.labels,
            cut=sum(cut for _, cut in tokenized.values()) / sum(len(rows) for rows in parts.values()),
        )

    def load_test(self) -> tuple[Dataset, str]:
        """The test side of data that the model was not trained on."""
        texts = CORPORA[self.dataset].read(str(self.data))
        return self._tokenize(texts["test"])[0], self._name

    @property
    def _name(self) -> str:
        """The data set, and the folder where its name says more: two folders are no seeds of one."""
        if self.data is None:
            return f"generated {self.dataset}"
        folder = Path(self.data).name
        return self.dataset if folder.lower() in USUAL_FOLDERS else f"{self.dataset}, {folder}"

    def _tokenizer(self, texts: Dataset) -> PreTrainedTokenizerBase:
        source = self.tokenizer or (None if self.model == SMALL else self.model)
        if source is None:
            columns = [name for name in ("text", "pair") if name in texts.column_names]
            tokenizer: PreTrainedTokenizerBase = learn_tokenizer(text for name in columns for text in texts[name])
        else:
            tokenizer = load_tokenizer(source)
        tokenizer.model_input_names = list(self.fields)
        tokenizer.model_max_length = self.max_length  # whoever loads it later cuts texts as training did
        return tokenizer

    @property
    def words(self) -> PreTrainedTokenizerBase:
        """The tokenizer, known once the data or a model are loaded; it is saved with the model."""
        return self._words

    @property
    def collate(self) -> DataCollatorWithPadding:
        """Texts are padded to the longest of their batch."""
        return DataCollatorWithPadding(self.words)

    def _tokenize(self, texts: Dataset) -> tuple[Dataset, int]:
        tokenized, cut = tokenize(texts, self.words, self.max_length, truncate=self.truncate)
        order = vars(self).get("_order")
        if order is not None:
            tokenized = tokenized.map(lambda rows: {"labels": [order[label] for label in rows["labels"]]}, batched=True)
        return tokenized, cut

    def task(self) -> Classification:
        """The loss and the metric."""
        return Classification()

    def network(self, data: Any) -> LayeredClassifier:
        """A small new classifier, or a pretrained one."""
        names = dict(enumerate(data.labels))
        words = len(self.words)
        if self.model == SMALL:
            return LayeredClassifier(self._new(words, names))
        return LayeredClassifier(self._pretrained(words, names))

    def _new(self, words: int, names: dict[int, str]) -> PreTrainedModel:
        config = self.small(words, self.words.pad_token_id)
        config.id2label, config.label2id = names, {name: label for label, name in names.items()}
        return AutoModelForSequenceClassification.from_config(config)

    @abstractmethod
    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small new model, with a vocabulary of so many words and this token for padding."""

    def _pretrained(self, words: int, names: dict[int, str]) -> PreTrainedModel:
        config = self._config()
        classifies = any("ForSequenceClassification" in each for each in config.architectures or ())
        if words > config.vocab_size:
            raise InputError(
                f"the tokenizer has {words} words, the word embedding of {self.model} {config.vocab_size}. Give the "
                "model's own tokenizer."
            )
        if not classifies:
            config.id2label, config.label2id = names, {name: label for label, name in names.items()}
        return loaded(AutoModelForSequenceClassification, self.model, config=config)

    def restore(self, folder: str) -> LayeredClassifier:
        """The model that `save_pretrained` put into a folder, and its tokenizer."""
        loaded = DescentClassifier.from_pretrained(folder)
        self._words = loaded.tokenizer
        self._words.model_input_names = list(self.fields)
        self._order = self._labels_of(loaded.model.config)
        return loaded.model


@dataclass
class TextUTRecipe(TextRecipe):
    """Text classification with the unrolled transformer on word embeddings."""

    depth: int = setting(5, "L, the number of layers.")
    model: str = setting(
        SMALL, "small: new word embeddings. Or a pretrained model whose word embeddings to start from."
    )
    dropout: float = setting(0.5, "Dropout of the word embeddings and of the mean token.")
    attention_size: int = setting(64, "Dimension of the attention's projection.")
    tied: bool = setting(True, "One set of weights for all layers, or one for each.")

    family = "UT"
    about = "text classification with the unrolled transformer UT on word embeddings"
    training = TextRecipe.training | {
        "num_train_epochs": 3,
        "learning_rate": 3e-3,
    }

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

    def _pretrained(self, words: int, names: dict[int, str]) -> PreTrainedModel:
        embedding = loaded(AutoModel, self.model).get_input_embeddings()
        if words > embedding.num_embeddings:
            raise InputError(
                f"the tokenizer has {words} words, the word embedding of {self.model} {embedding.num_embeddings}. Give "
                "the model's own tokenizer."
            )
        self.hidden_size = embedding.embedding_dim
        network = self._new(embedding.num_embeddings, names)
        network.get_input_embeddings().load_state_dict(embedding.state_dict())
        return network


@dataclass
class EncoderRecipe(TextRecipe):
    """Text classification with an encoder of Transformers that is read at [CLS]."""

    heads: int = setting(4, "Attention heads of the small model.")
    readout: str = setting(
        "own",
        "The classifier on [CLS]: own, Transformers' two layers, or linear, one layer as in the paper, which replaces "
        "the head that a pretrained model may have.",
    )

    configs: ClassVar[dict[str, type[Any]]]
    """The model's configuration, by readout."""

    def check(self) -> None:
        """Refuse what can't be, before any work is done."""
        if self.readout not in self.configs:
            raise InputError(f"readout must be one of {', '.join(self.configs)}; got {self.readout!r}.")
        super().check()

    def _config(self) -> PreTrainedConfig:
        """The configuration of the pretrained model, with another head where the readout is to be linear."""
        config = library_config(self.model)
        if self.readout == "linear" and config.model_type == self.configs["own"].model_type:
            return with_linear_readout(config, self.configs["linear"])
        return config

    def _check_pretrained(self, config: PreTrainedConfig) -> None:
        expected = self.configs[self.readout].model_type
        if config.model_type != expected:
            kinds = dict.fromkeys([self.configs["own"].model_type, expected])  # the first gets a linear readout
            raise InputError(
                f"expected a {self.family}, model_type {' or '.join(map(repr, kinds))}; {self.model} is of model_type "
                f"{config.model_type!r}. Choose another model, or its own recipe and --readout."
            )
        # A pretrained model has its own sizes.
        self.depth, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self._order = self._labels_of(config)
        longest = FAMILIES[config.model_type].longest
        if longest is not None and self.max_length > longest(config):
            raise InputError(
                f"{self.model} takes texts of at most {longest(config)} tokens; got --max-length {self.max_length}."
            )


@dataclass
class DistilBERTRecipe(EncoderRecipe):
    """Text classification with DistilBERT."""

    family = "DistilBERT"
    configs = {"own": DistilBertConfig, "linear": DistilBertLinearConfig}  # noqa: RUF012
    about = "text classification with DistilBERT (Sanh et al., 2019), small from scratch or pretrained"

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


@dataclass
class RoBERTaRecipe(EncoderRecipe):
    """Text classification with RoBERTa."""

    family = "RoBERTa"
    configs = {"own": RobertaConfig, "linear": RobertaLinearConfig}  # noqa: RUF012
    about = "text classification with RoBERTa (Liu et al., 2019), small from scratch or pretrained"

    def small(self, words: int, padding: int) -> PreTrainedConfig:
        """The configuration of a small RoBERTa, whose positions are counted from behind the padding's token."""
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


def library_config(source: str) -> PreTrainedConfig:
    """The configuration in a folder or by a name on the Hub."""
    return load_config(AutoConfig, source, _EXPECTED)


def loaded(kind: Any, source: str, **settings: Any) -> Any:
    """What one of the library's Auto classes makes of a folder or a name on the Hub."""
    return load_model(kind, source, "a model", _EXPECTED, **settings)


@dataclass
class PlainTextRecipe(TextRecipe):
    """A classifier that Descend never trained, to be judged."""

    noise: float = setting(0.0, "It is taken to be trained on clean texts.")

    @classmethod
    def of(cls, folder: Path, data: str, dataset: str | None) -> Self:
        """What is known of a classifier in a folder, and of data whose kind is told from the files unless given."""
        config = library_config(str(folder))
        recipe = cls(data=data, dataset=dataset or _kind(Path(data).expanduser()), model=str(folder))
        if recipe.dataset not in CORPORA:
            raise InputError(f"dataset must be one of {', '.join(CORPORA)}; got {recipe.dataset!r}.")
        if config.model_type == "bert":
            recipe.fields = [*recipe.fields, "token_type_ids"]  # type: ignore[misc]
        recipe.family = type(config).__name__.removesuffix("Config").replace("Bert", "BERT")  # type: ignore[misc]
        known = FAMILIES.get(config.model_type)
        recipe.max_length = min(known.longest(config), 512) if known and known.longest else 512
        return recipe


def _kind(path: Path) -> str:
    """Which of `CORPORA` a folder looks like."""
    if any((path / inside / "train" / "pos").is_dir() for inside in (".", "aclImdb")):
        return "imdb"
    if path.is_dir() and any(file.suffix in (".tsv", ".jsonl") for file in path.rglob("*")):
        return "mnli"
    raise InputError(f"{path} looks like none of {', '.join(CORPORA)}; say which by --dataset.")
