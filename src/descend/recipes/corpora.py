"""Text classification data sets by name: read or generate them, and their tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, DatasetDict

from descend.errors import InputError
from descend.tasks.splits import folders_in, split_off
from descend.tasks.text import (
    IMDB_LABELS,
    MNLI_LABELS,
    generate_pairs,
    generate_reviews,
    read_imdb,
    read_labelled,
    read_mnli,
)
from descend.tasks.text.corpus import corpus
from descend.tasks.text.sources import TABLES, pair_files

PLAIN_FOLDERS = {"imdb", "aclimdb", "mnli", "glue_format", "glue_data", "jsonl", "nyu_tsv", "multinli_1.0"}
"""Folder names that add nothing to the name of the data set."""


class Corpus(NamedTuple):
    """A value of ``--dataset``.

    Attributes:
        read: Reads its files, or its data set on the Hub; the second argument is ``keep_markup``.
        generate: Generates rows that stand in where no files are given; None if it can't.
        labels: Names of the classes, in the order of their numbers; empty where the files name them.
    """

    read: Callable[[str, bool], DatasetDict]
    generate: Callable[[int, int], list[dict[str, Any]]] | None = None
    labels: tuple[str, ...] = ()


CORPORA = {
    "imdb": Corpus(read_imdb, generate_reviews, IMDB_LABELS),
    "mnli": Corpus(read_mnli, generate_pairs, MNLI_LABELS),
    "labelled": Corpus(read_labelled),
}


def kind_of(place: Path) -> str:
    """The name in `CORPORA` that the layout of a folder, or a file, fits.

    Raises:
        InputError: If it fits none.
    """
    if any(
        {"pos"} <= {*folders_in(place / inside / "train")} <= {*IMDB_LABELS, "unsup"} for inside in (".", "aclImdb")
    ):
        return "imdb"
    if place.suffix.lower() in TABLES or any(place.glob("train/*/*.txt")):
        return "labelled"
    if place.is_dir() and pair_files(place):
        return "mnli"
    if any(place.glob("*/*.txt")):
        return "labelled"
    raise InputError(f"{place} looks like none of {', '.join(CORPORA)}; choose one by --dataset.")


def read_parts(dataset: str, data: str | None, validation_share: float, keep_markup: bool = False) -> DatasetDict:
    """``train``, ``validation`` and ``test`` texts of a data set; generated texts if ``data`` is None."""
    kind = CORPORA[dataset]
    if data is not None:
        return split_off(kind.read(data, keep_markup), validation_share, by_class=not kind.labels)
    if kind.generate is None:
        raise InputError(f"there are no generated {dataset} texts; give yours by --data.")
    return split_off(corpus(kind.generate), validation_share)


def labels_of(dataset: str, texts: Dataset) -> tuple[str, ...]:
    """The names of the classes of texts, in the order of their numbers."""
    return CORPORA[dataset].labels or tuple(texts.features["label"].names)


def data_name(dataset: str, data: str | None) -> str:
    """The data set's name, with the folder's name if it differs, to tell two folders apart."""
    if data is None:
        return f"generated {dataset}"
    folder = Path(data).name
    return dataset if folder.lower() in PLAIN_FOLDERS else f"{dataset}, {folder}"
