"""Read IMDb and MNLI from their usual files or from the Hub, and texts with classes of one's own, as `datasets`."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_dataset

from descend.errors import InputError, reason, refuse, refusing
from descend.reading import is_litter, is_path, json_objects, lines, plain_text, read_text, refuse_ways_out
from descend.tasks.splits import TEST_SHARE, class_files, class_order, split_classes

TABLES = (".csv", ".tsv", ".jsonl")
"""Suffixes of files with a text in each row."""

MOST_REVIEW = 2**24
"""Largest file of a review, in bytes."""

IMDB_LABELS = ("neg", "pos")
MNLI_LABELS = ("entailment", "neutral", "contradiction")
"""The classes in GLUE's order."""

# Our name for a column → its names in the known file formats.
_COLUMNS = {"text": ("sentence1", "premise"), "pair": ("sentence2", "hypothesis"), "label": ("gold_label", "label")}
_LABELLED = {"text": ("text",), "label": ("label",)}


def read_imdb(path: str | Path) -> DatasetDict:
    """Read movie reviews and their sentiment.

    Args:
        path: The official ``aclImdb`` folder (``train`` and ``test``, each with ``pos/*.txt`` and ``neg/*.txt``), the
            folder that holds it, or a name on the Hub, such as ``stanfordnlp/imdb``.

    Returns:
        ``train`` and ``test``, each with ``text``, ``label`` (0 neg, 1 pos) and, if read from files, ``source``.

    Raises:
        InputError: If the data are missing or have another layout, or a review is empty or not UTF-8.
    """
    root = Path(path).expanduser()
    if not root.exists():
        return _of_hub(path, {"text": "text"})
    inside = root / "aclImdb" if (root / "aclImdb").is_dir() else root
    for side, name in product(("train", "test"), IMDB_LABELS):
        if not (inside / side / name).is_dir():
            raise InputError(
                f"{inside} must be laid out as aclImdb, with train/pos, train/neg, test/pos and test/neg; there is no "
                f"{side}/{name}. Texts of one's own classes are read by --dataset labelled. A run keeps its kind."
            )
    _, files = class_files(inside, {".txt"}, IMDB_LABELS)
    return DatasetDict({side: Dataset.from_list(_texts(files[side], root)) for side in ("train", "test")})


def read_mnli(path: str | Path) -> DatasetDict:
    """Read pairs of sentences, and whether the second follows from the first.

    Rows without a label that the annotators agreed on (label ``-``) are left out, as is usual.

    Args:
        path: A folder with a training file (``train`` in its name) and a test file (``dev_matched``,
            ``validation_matched``, ``val`` or ``test``), in GLUE's tsv, MultiNLI's jsonl or a tsv of ``sentence1,
            sentence2, label, genre``; or a name on the Hub, such as ``nyu-mll/multi_nli``.

    Returns:
        ``train`` and ``test``, each with ``text``, ``pair``, ``label`` (0 entailment, 1 neutral, 2 contradiction) and,
        if read from files, ``source``.

    Raises:
        InputError: If the data are missing or have another layout; the message names the file and the line.
    """
    root = Path(path).expanduser()
    if not root.exists():
        return _of_hub(path, {"text": "premise", "pair": "hypothesis"}, test="validation_matched")
    if not root.is_dir():
        raise InputError(f"{root} must be a folder with a training and a test file; got a file.")
    files = pair_files(root)
    # GLUE's archive also has a subfolder with the original files; prefer the files at the top.
    files = [file for file in files if file.parent == root] or files
    refuse_ways_out(root, files)
    sides = {
        "train": [file for file in files if re.search(r"train", file.stem.lower())],
        "test": [file for file in files if re.search(r"(dev|validation)_matched|val$|test$|dev$", file.stem.lower())],
    }
    for side, candidates in sides.items():
        if len(candidates) != 1:
            names = ", ".join(str(file.relative_to(root)) for file in candidates) or "none"
            raise InputError(
                f"{root} must hold one {side} file, .tsv or .jsonl, such as train.tsv and dev_matched.tsv; got "
                f"{names}. Give the folder of one format."
            )
    return DatasetDict({side: _pairs(file) for side, (file,) in sides.items()})


def read_labelled(path: str | Path) -> DatasetDict:
    """Read texts with classes of one's own.

    Args:
        path: A folder with a folder of ``.txt`` files for each class, or with ``train`` and perhaps ``test`` and
            ``val`` of this kind; or a ``.csv``, ``.tsv`` or ``.jsonl`` file with the columns ``text`` and ``label``.
            Without a test side, ``val`` becomes one, or a fifth of each class, the same in every run.

    Returns:
        ``train`` and ``test``, and ``validation`` where it is given, each with ``text``, ``label``, whose feature has
        the classes' names, and ``source``.

    Raises:
        InputError: If the data are missing or have another layout, there is one class only, or the training side lacks
            a class of another side.
    """
    root = Path(path).expanduser()
    if root.is_file() and root.suffix.lower() in TABLES:
        texts = [values | {"source": place} for place, values in _rows(root, _LABELLED)]
        labels = class_order({row["label"] for row in texts})
        if len(labels) < 2:
            raise InputError(f"{root} must have texts of at least 2 classes; got {', '.join(labels) or 'none'}.")
        numbers = {name: number for number, name in enumerate(labels)}
        rows: dict[str, list[dict[str, Any]]] = {"train": [row | {"label": numbers[row["label"]]} for row in texts]}
    elif root.is_dir():
        labels, files = class_files(root, {".txt"})
        rows = {side: _texts(each, root) for side, each in files.items()}
    else:
        raise InputError(
            f"{root} must be a folder with a folder of .txt files for each class, or a file {', '.join(TABLES)} with "
            "the columns text and label."
        )
    if "test" not in rows:
        every = rows["train"]
        parts = split_classes([row["text"] for row in every], [row["label"] for row in every], TEST_SHARE)
        rows = {side: [every[row] for row in part] for side, part in zip(("test", "train"), parts, strict=True)}
        if not rows["test"]:
            raise InputError(f"{root} has one text for each class, so none to test on. Add some, or a test side.")
    features = Features(text=Value("string"), label=ClassLabel(names=labels), source=Value("string"))
    return DatasetDict({side: Dataset.from_list(each, features) for side, each in rows.items()})


def pair_files(root: Path) -> list[Path]:
    """The files below a folder that may hold pairs of sentences, by their suffixes."""
    return sorted(
        file
        for file in root.rglob("*")
        if file.suffix.lower() in (".tsv", ".jsonl") and not is_litter(file.relative_to(root))
    )


def _texts(files: Iterable[tuple[Path, int]], root: Path) -> list[dict[str, Any]]:
    """The texts in files, each with the number of its class."""
    refuse_ways_out(root, (file for file, _ in files))
    rows = []
    for file, label in files:
        text = read_text(file, MOST_REVIEW).replace("<br />", " ").strip()
        if not text:
            raise InputError(f"{file} is empty; expected a text. Remove it.")
        rows.append({"text": text, "label": label, "source": str(file)})
    return rows


def _pairs(file: Path) -> Dataset:
    rows = []
    for place, values in _rows(file, _COLUMNS):
        if values["label"] not in MNLI_LABELS:
            raise InputError(f"{place}: the label must be one of {', '.join(MNLI_LABELS)}; got {values['label']!r}.")
        rows.append(values | {"label": MNLI_LABELS.index(values["label"]), "source": place})
    if not rows:
        raise InputError(f"{file} holds no labelled rows.")
    return Dataset.from_list(rows)


def _rows(file: Path, columns: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a file with their places, and the texts in some columns; only a label may be a whole number.

    Args:
        file: A file with one of the suffixes `TABLES`.
        columns: Our name for a column → its names in files.
    """
    for place, row in json_objects(file) if file.suffix.lower() == ".jsonl" else _table(file):
        values = {}
        for name, names in columns.items():
            column = next((each for each in names if each in row), None)
            if column is None:
                raise InputError(f"{place} has no column {' or '.join(names)}; it has {', '.join(row)}.")
            value: Any = "" if row[column] is None else row[column]
            if name == "label" and isinstance(value, int):
                value = str(value)
            if not plain_text(value):
                raise InputError(f"{place}: {column} must be text; got {repr(value)[:60]}. Correct or remove the row.")
            values[name] = value.strip()
        if "pair" in columns and values["label"] == "-":  # MNLI's annotators did not agree
            continue
        if empty := [name for name in columns if not values[name]]:
            raise InputError(f"{place}: {columns[empty[0]][0]} is empty. Remove the row.")
        yield place, values


def _table(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    # QUOTE_NONE: in a tsv a quote is part of the sentence and does not start a field that spans lines.
    form: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if file.suffix.lower() == ".tsv" else {}
    rows = csv.reader(lines(file, newline=""), **form)
    try:
        header = next(rows, [])
        for row in filter(None, rows):  # without empty lines
            place = f"{file}, line {rows.line_num}"
            if len(row) != len(header):
                raise InputError(f"{place}, must have the {len(header)} columns of the header; got {len(row)}.")
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{file}, line {rows.line_num}, can't be read: {reason(error)}. Correct or remove it."
        ) from None


def _of_hub(name: str | Path, columns: dict[str, str], test: str = "test") -> DatasetDict:
    """Load a data set from the Hub and rename its columns to ours."""
    refuse((is_path(name), f"there is no file or folder {name}; expected one, or the name of a data set on the Hub."))
    with refusing(f"{name} is no folder, and as a name on the Hub it can't be loaded", "Give the folder of the data."):
        loaded = load_dataset(str(name))
        sides = DatasetDict({"train": loaded["train"], "test": loaded[test]})
        wanted = columns | {"label": "label"}
        return sides.select_columns(list(wanted.values())).rename_columns(
            {theirs: ours for ours, theirs in wanted.items() if ours != theirs}
        )
