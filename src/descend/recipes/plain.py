"""Evaluate text classifiers that Descend did not train."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch.utils.data import Dataset
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from descend.errors import InputError
from descend.inference import DescentClassifier
from descend.models import LayeredModel
from descend.models.encoders import FAMILIES
from descend.recipes.base import Data, Restored, Workload, config_of
from descend.recipes.corpora import (
    CORPORA,
    Encoding,
    class_numbers,
    data_name,
    encoded,
    kind_of,
    read_parts,
)
from descend.settings import NoiseLevel, setting
from descend.tasks.text import Classification

VALIDATION_SHARE = 0.2
"""Share of the training texts for the selection of linear probes."""

LONGEST = 512
"""Longest text in tokens, unless the model takes fewer."""


@dataclass(frozen=True)
class PlainClassifier(Workload):
    """A classifier that Descend did not train, and the data to evaluate it on.

    It is taken to be trained without noise.

    Attributes:
        dataset: The kind of the data, ``imdb`` or ``mnli``.
        model: The folder of the classifier.
    """

    dataset: str = setting("imdb", "reviews, or pairs of sentences", tuple(CORPORA))
    model: str = setting("", "folder of the classifier")
    noise: NoiseLevel = setting(0.0, "training noise γ")

    usual_noise = 1.0

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
        parts = read_parts(self.dataset, self.source, VALIDATION_SHARE)
        return encoded(self.dataset, self.source, parts, self._encoding(restored))

    def load_test(self, data: str, restored: Restored) -> tuple[Dataset, str]:
        """Load the test side of a data set, and its name."""
        texts = CORPORA[self.dataset].read(data)["test"]
        return self._encoding(restored).encode(texts), data_name(self.dataset, data)

    def _encoding(self, restored: Restored | None) -> Encoding:
        if restored is None or restored.tokenizer is None:
            raise InputError("a classifier that is evaluated needs its own tokenizer; load it by restore first.")
        config = restored.model.saved.config
        family = FAMILIES.get(config.model_type)
        longest = min(family.longest(config), LONGEST) if family and family.longest else LONGEST
        return Encoding(restored.tokenizer, longest, class_numbers=class_numbers(config, self.dataset, self.model))

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
        names = ["input_ids", "attention_mask"]
        if classifier.model.config.model_type == "bert":  # BERT needs them to tell the two texts of a pair apart
            names.append("token_type_ids")
        classifier.tokenizer.model_input_names = names
        return Restored(classifier.model, classifier.tokenizer)

    def name_of(self, model: LayeredModel) -> str:
        """The model's name in tables, such as BERT-12."""
        family = type(model.saved.config).__name__.removesuffix("Config").replace("Bert", "BERT")
        return f"{family}-{model.depth}"
