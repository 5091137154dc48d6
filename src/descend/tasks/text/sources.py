"""Read IMDb and MNLI from their usual files or from the Hub, as `datasets`."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset

from descend.errors import InputError, reason
from descend.reading import is_litter, json_objects, lines, plain_text, read_text, refuse_ways_out

MOST_REVIEW = 2**24
"""Largest file of a review, in bytes."""

IMDB_LABELS = ("neg", "pos")
MNLI_LABELS = ("entailment", "neutral", "contradiction")
"""The classes in GLUE's order."""

# Our name for a column → its names in the known file formats.
_COLUMNS = {"text": ("sentence1", "premise"), "pair": ("sentence2", "hypothesis"), "label": ("gold_label", "label")}


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
    return DatasetDict({side: _reviews(inside / side, root) for side in ("train", "test")})


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


def pair_files(root: Path) -> list[Path]:
    """The files below a folder that may hold pairs of sentences, by their suffixes."""
    return sorted(
        file
        for file in root.rglob("*")
        if file.suffix.lower() in (".tsv", ".jsonl") and not is_litter(file.relative_to(root))
    )


def _reviews(folder: Path, root: Path) -> Dataset:
    rows = []
    for label, name in enumerate(IMDB_LABELS):
        if not (folder / name).is_dir():
            raise InputError(
                f"{folder.parent} must be laid out as aclImdb, with train/pos, train/neg, test/pos and test/neg; there "
                f"is no {folder.name}/{name}."
            )
        files = sorted(file for file in (folder / name).glob("*.txt") if not is_litter(Path(file.name)))
        refuse_ways_out(root, files)
        for file in files:
            text = read_text(file, MOST_REVIEW).replace("<br />", " ").strip()
            if not text:
                raise InputError(f"{file} is empty; expected a review. Remove it.")
            rows.append({"text": text, "label": label, "source": str(file)})
    if not rows:
        raise InputError(f"{folder} holds no reviews: expected pos/*.txt and neg/*.txt.")
    return Dataset.from_list(rows)


def _pairs(file: Path) -> Dataset:
    rows = []
    for place, row in _tsv(file) if file.suffix.lower() == ".tsv" else json_objects(file):
        values = {}
        for name, columns in _COLUMNS.items():
            column = next((each for each in columns if each in row), None)
            if column is None:
                raise InputError(f"{place} has no column {' or '.join(columns)}; it has {', '.join(row)}.")
            value = "" if row[column] is None else row[column]
            if not plain_text(value):
                raise InputError(f"{place}: {column} must be text; got {repr(value)[:60]}. Correct or remove the row.")
            values[name] = value.strip()
        if values["label"] == "-":
            continue
        if values["label"] not in MNLI_LABELS:
            raise InputError(f"{place}: the label must be one of {', '.join(MNLI_LABELS)}; got {values['label']!r}.")
        for name in ("text", "pair"):
            if not values[name]:
                raise InputError(f"{place}: {_COLUMNS[name][0]} is empty. Remove the row.")
        rows.append(values | {"label": MNLI_LABELS.index(values["label"]), "source": place})
    if not rows:
        raise InputError(f"{file} holds no labelled rows.")
    return Dataset.from_list(rows)


def _tsv(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    # QUOTE_NONE: a quote is part of the sentence and does not start a field that spans lines.
    rows = csv.reader(lines(file, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
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
    try:
        loaded = load_dataset(str(name))
        sides = DatasetDict({"train": loaded["train"], "test": loaded[test]})
        wanted = columns | {"label": "label"}
        return sides.select_columns(list(wanted.values())).rename_columns(
            {theirs: ours for ours, theirs in wanted.items() if ours != theirs}
        )
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} is no folder, and as a name on the Hub it can't be loaded: {reason(error)} Give the "
            "folder of the data."
        ) from None
