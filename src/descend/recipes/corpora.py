"""Text classification data sets by name: read or generate them, and their tokenizer."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, DatasetDict

from descend.errors import InputError
from descend.tasks.folders import files_read, folders_in, sides_in
from descend.tasks.splits import split_off, tell_shared
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
from descend.tasks.text.sources import pair_files, side_tables

PLAIN_FOLDERS = {"imdb", "aclimdb", "mnli", "glue_format", "glue_data", "jsonl", "nyu_tsv", "multinli_1.0"}
"""Folder names that add nothing to the name of the data set."""


class Corpus(NamedTuple):
    """A value of ``--dataset``.

    Attributes:
        read: Reads its files, or its data set on the Hub; the second argument is ``keep_markup``.
        generate: Generates rows that stand in where no files are given; None if it can't.
        labels: Names of the classes, in the order of their numbers; empty where the files name them.
        read_test: Reads files that are only evaluated; None if it is no other reader.
    """

    read: Callable[[str, bool], DatasetDict]
    generate: Callable[[int, int], list[dict[str, Any]]] | None = None
    labels: tuple[str, ...] = ()
    read_test: Callable[[str, bool], DatasetDict] | None = None


CORPORA = {
    "imdb": Corpus(read_imdb, generate_reviews, IMDB_LABELS),
    "mnli": Corpus(read_mnli, generate_pairs, MNLI_LABELS),
    "labelled": Corpus(read_labelled, read_test=partial(read_labelled, to_test=True)),
}


def kind_of(place: Path) -> str:
    """The name in `CORPORA` that the layout of a folder, or a file, fits.

    Raises:
        InputError: If it fits none.
    """
    if place.is_file():
        return "labelled"
    train = _training_folder(place)
    for folder in (train, _training_folder(place / "aclImdb")):
        if {"pos"} <= {inner.name.casefold() for inner in folders_in(folder)} <= {*IMDB_LABELS, "unsup"}:
            return "imdb"
    if side_tables(place, "train", "test") or any(train.glob("*/*.txt")):
        return "labelled"
    if place.is_dir() and pair_files(place):
        return "mnli"
    if any(place.glob("*/*.txt")):
        return "labelled"
    inside = (
        " Expected folders of .txt files, or training data in .csv, .tsv, .jsonl, .json or .parquet."
        if place.is_dir()
        else ""
    )
    raise InputError(f"{place} looks like none of {', '.join(CORPORA)}; choose one by --dataset.{inside}")


def _training_folder(place: Path) -> Path:
    """The folder of the training side, which may be missing."""
    return sides_in(folders_in(place)).get("train", place / "train")


def read_parts(dataset: str, data: str | None, validation_share: float, keep_markup: bool = False) -> DatasetDict:
    """``train``, ``validation`` and ``test`` texts of a data set; generated texts if ``data`` is None."""
    kind = CORPORA[dataset]
    if data is not None:
        found = kind.read(data, keep_markup)
        tell_shared({side: _keys(rows) for side, rows in found.items()}, "texts")
        return split_off(found, validation_share, by_class=not kind.labels)
    if kind.generate is None:
        raise InputError(f"there are no generated {dataset} texts; give yours by --data.")
    return split_off(corpus(kind.generate), validation_share)


def _keys(rows: Dataset) -> list[tuple[str, ...]]:
    """What equal texts, or equal pairs of texts, have in common."""
    columns = [rows[name][:] for name in ("text", "pair") if name in rows.column_names]
    return [*zip(*columns, strict=True)]


def sources_read(data: str | None, parts: Iterable[Dataset]) -> str:
    """What of a folder of texts was read, see `files_read`; empty for other data."""
    if data is None or not (root := Path(data).expanduser()).is_dir():
        return ""
    places = {place for part in parts if "source" in part.column_names for place in part["source"][:]}
    return files_read(root, {re.sub(r", (line|row) \d+$", "", place) for place in places})


def labels_of(dataset: str, texts: Dataset) -> tuple[str, ...]:
    """The names of the classes of texts, in the order of their numbers."""
    return CORPORA[dataset].labels or tuple(texts.features["label"].names)


def data_name(dataset: str, data: str | None) -> str:
    """The data set's name, with the folder's name if it differs, to tell two folders apart."""
    if data is None:
        return f"generated {dataset}"
    folder = Path(data).name
    return dataset if folder.lower() in PLAIN_FOLDERS else f"{dataset}, {folder}"
