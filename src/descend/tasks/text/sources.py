"""Read IMDb and MNLI from their usual files or from the Hub, and texts with classes of one's own, as `datasets`."""

import csv
import io
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_dataset

from descend.errors import InputError, reason, refuse, refusing
from descend.progress import counted
from descend.reading import (
    is_litter,
    is_path,
    json_objects,
    lines,
    plain_text,
    read_text,
    refuse_ways_out,
    shown,
    suggestion,
)
from descend.tasks.folders import class_files, class_name, class_order, folders_in, side_and_other_words, sides_in
from descend.tasks.splits import TEST_SHARE, split_classes
from descend.tasks.text.tokens import cleaned

logger = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""Suffixes of files with a text in each row."""

MNLI_FILES = (".tsv", ".jsonl")
"""Suffixes of the files that MNLI comes in."""

MOST_REVIEW = 2**24
"""Largest file of a review, in bytes."""

MOST_TABLE = 2**30
"""Largest part (row group) of a file in Parquet, unpacked, in bytes."""

NUMBERS = ("", "id", "idx", "index", "pairid", "uid", "unnamed: 0")
"""The names of columns that only number rows."""

MOST_NAMED = 5
"""A note names so many of the columns that are not read."""

TABLE_ROWS = 64
"""Rows of such a file that are read at once."""

IMDB_LABELS = ("neg", "pos")
MNLI_LABELS = ("entailment", "neutral", "contradiction")
"""The classes in GLUE's order."""

# Our name for a column → its names in the known file formats.
_COLUMNS = {"text": ("sentence1", "premise"), "pair": ("sentence2", "hypothesis"), "label": ("gold_label", "label")}
_LABELLED = {"text": ("text",), "label": ("label",)}


def read_imdb(path: str | Path, keep_markup: bool = False) -> DatasetDict:
    """Read movie reviews and their sentiment.

    Args:
        path: The official ``aclImdb`` folder (``train`` and ``test``, each with ``pos/*.txt`` and ``neg/*.txt``), the
            folder that holds it, or a name on the Hub, such as ``stanfordnlp/imdb``.
        keep_markup: Leave ``<br />`` in the texts; otherwise a blank takes its place.

    Returns:
        ``train`` and ``test``, and ``validation`` where it is given, each with ``text``, ``label`` (0 neg, 1 pos) and,
        if read from files, ``source``.

    Raises:
        InputError: If the data are missing or have another layout, or a review is empty or not UTF-8.
    """
    root = Path(path).expanduser()
    if not root.exists():
        return _of_hub(path, {"text": "text"}, keep_markup)
    inside = root / "aclImdb" if (root / "aclImdb").is_dir() else root
    sides = sides_in(folders_in(inside))
    for side in ("train", "test"):
        names = {folder.name.casefold() for folder in folders_in(sides[side])} if side in sides else set()
        if lacking := [name for name in IMDB_LABELS if name not in names]:
            raise InputError(
                f"{inside} must be laid out as aclImdb, with train/pos, train/neg, test/pos and test/neg; there is no "
                f"{side}/{lacking[0]}. Texts of one's own classes are read by --dataset labelled. A run keeps its kind."
            )
    _, files = class_files(inside, ".txt", {".txt"}, IMDB_LABELS)
    return DatasetDict({side: Dataset.from_list(_texts(each, root, keep_markup)) for side, each in files.items()})


def read_mnli(path: str | Path, keep_markup: bool = False) -> DatasetDict:
    """Read pairs of sentences, and whether the second follows from the first.

    Rows without a label that the annotators agreed on (label ``-``) are left out, as is usual.

    Args:
        path: A folder with a file for each side that its name says, such as ``train.tsv`` and ``dev_matched.tsv``, in
            GLUE's tsv, MultiNLI's jsonl or a tsv of ``sentence1, sentence2, label, genre``; or a name on the Hub, such
            as ``nyu-mll/multi_nli``. GLUE's mismatched pairs, and its test file, which has no labels, are passed over.
        keep_markup: As in `read_imdb`.

    Returns:
        ``train`` and ``test``, and ``validation`` where there are both others, each with ``text``, ``pair``, ``label``
        (0 entailment, 1 neutral, 2 contradiction) and, if read from files, ``source``.

    Raises:
        InputError: If the data are missing or have another layout; the message names the file and the line.
    """
    root = Path(path).expanduser()
    if not root.exists():
        return _of_hub(path, {"text": "premise", "pair": "hypothesis"}, keep_markup, test="validation_matched")
    if not root.is_dir():
        raise InputError(f"{root} must be a folder with a training and a test file; got a file.")
    return DatasetDict({side: _pairs(file, keep_markup) for side, file in pair_sides(root, "test").items()})


def read_labelled(path: str | Path, keep_markup: bool = False, *, to_test: bool = False) -> DatasetDict:
    """Read texts with classes of one's own.

    Args:
        path: A folder with a folder of ``.txt`` files for each class, or with such folders in those of sides, as
            `class_files` reads them; a file of one of the kinds `TABLES` with the columns ``text`` and ``label``; or a
            folder with such files for the sides that their names say, such as ``train.csv`` and ``dev.csv``. Without a
            test side, a validation side becomes one, or a fifth of each class, the same in every run.
        keep_markup: As in `read_imdb`.
        to_test: To evaluate alone: without sides all texts are the test side; a file of that side needs no other, and
            may be of one class.

    Returns:
        ``train`` and ``test``, and ``validation`` where it is given, each with ``text``, ``label``, whose feature has
        the classes' names, and ``source``.

    Raises:
        InputError: If the data are missing or have another layout, there is one class only, or the training side lacks
            a class of another side.
    """
    root, fewest = Path(path).expanduser(), 1 if to_test else 2
    tables = side_tables(root, "train", "test")
    if root.is_file() and root.suffix.lower() in TABLES:
        labels, rows = _labelled({"test" if to_test else "train": root}, keep_markup, fewest)
    elif tables:
        if "train" not in tables and not to_test:
            raise InputError(f"{root} has a test file and no training file. Give one, such as train.csv.")
        refuse_ways_out(root, tables.values())
        labels, rows = _labelled(tables, keep_markup, fewest)
    elif root.is_dir():
        labels, files = class_files(root, ".txt", {".txt"})
        rows = {side: _texts(each, root, keep_markup) for side, each in files.items()}
    else:
        raise InputError(
            f"{root} must be a folder with a folder of .txt files for each class, or a file {', '.join(TABLES)} with "
            "the columns text and label, or a folder with such files for its sides. Unpack or convert other files."
        )
    if "test" not in rows and to_test and not tables and not sides_in(folders_in(root)):
        rows = {"test": rows["train"]}
    if "test" not in rows:
        every = rows["train"]
        parts = split_classes([row["text"] for row in every], [row["label"] for row in every], TEST_SHARE)
        rows = {side: [every[row] for row in part] for side, part in zip(("test", "train"), parts, strict=True)}
        if not rows["test"]:
            raise InputError(f"{root} has one text for each class, so none to test on. Add some, or a test side.")
    features = Features(text=Value("string"), label=ClassLabel(names=labels), source=Value("string"))
    return DatasetDict({side: Dataset.from_list(each, features) for side, each in rows.items()})


def side_tables(root: Path, *sides: str) -> dict[str, Path]:
    """Side → its file of labelled texts in a folder; empty where no file of these sides has a ``text`` column."""
    tables = [
        file
        for file in (sorted(root.iterdir()) if root.is_dir() else ())
        if file.suffix.lower() in TABLES and file.is_file() and not is_litter(Path(file.name))
    ]
    needed = [file for file in tables if side_and_other_words(file.stem)[0] in sides]
    if not any("text" in {name.casefold() for name in columns(file)} for file in needed):
        return {}
    return sides_in(tables)


def columns(file: Path) -> list[str]:
    """The names of the columns of a file of one of the kinds `TABLES`, by its first row; none if it has no row."""
    _, row = next(records(file), ("", {}))
    return [*row]


def pair_files(root: Path, suffixes: tuple[str, ...] = MNLI_FILES) -> list[Path]:
    """The files below a folder that may hold pairs of sentences, by their suffixes."""
    return sorted(
        file
        for file in root.rglob("*")
        if file.suffix.lower() in suffixes and file.is_file() and not is_litter(file.relative_to(root))
    )


def pair_sides(root: Path, *needed: str, suffixes: tuple[str, ...] = MNLI_FILES) -> dict[str, Path]:
    """Side → its file of pairs below a folder. Without a test side, validation stands in for it.

    GLUE's mismatched pairs, and its test file, which has no labels, are passed over.

    Args:
        root: The folder.
        *needed: The sides that must be there beside ``train``.
        suffixes: Those of the files.

    Raises:
        InputError: If a side that is needed is missing, or there are several files for one.
    """
    files = pair_files(root, suffixes)
    # GLUE's archive also has a subfolder with the original files; prefer the files at the top.
    files = [file for file in files if file.parent == root] or files
    refuse_ways_out(root, files)
    sides: dict[str, list[Path]] = {"train": [], "test": [], "validation": []}
    for file in files:
        side, _ = side_and_other_words(file.stem)
        if side is not None and not file.stem.lower().endswith(("mismatched", "test_matched")):
            sides[side].append(file)
    if not sides["test"]:
        sides["test"] = sides.pop("validation")
    for side, candidates in sides.items():
        if len(candidates) > 1 or (not candidates and side in ("train", *needed)):
            names = ", ".join(shown(file.relative_to(root)) for file in candidates) or "none"
            raise InputError(
                f"{root} must hold one {side} file, {' or '.join(suffixes)}, such as train.tsv and dev_matched.tsv; "
                f"got {names}. Give the folder of one format."
            )
    return {side: file for side, candidates in sides.items() for file in candidates}


def _texts(files: Iterable[tuple[Path, int]], root: Path, keep_markup: bool) -> list[dict[str, Any]]:
    """The texts in files, each with the number of its class."""
    refuse_ways_out(root, (file for file, _ in files))
    rows = []
    for file, label in counted(files, "reading", "text"):
        text = cleaned(read_text(file, MOST_REVIEW), keep_markup)
        if not text:
            raise InputError(f"{file} is empty; expected a text. Remove it.")
        rows.append({"text": text, "label": label, "source": shown(file)})
    return rows


def _labelled(
    tables: Mapping[str, Path], keep_markup: bool, fewest: int
) -> tuple[list[str], dict[str, list[dict[str, Any]]]]:
    """The classes of the training file, or of the only one, and each file's rows with the numbers of their classes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for side, file in tables.items():
        unread: dict[str, None] = {}
        rows = [values | {"source": place} for place, values in _rows(file, _LABELLED, keep_markup, unread)]
        found[side] = [row | {"label": class_name(row["label"])} for row in rows]
        if unread:
            logger.warning("%s: %s.", file.name, unread_words(unread))
    first = "train" if "train" in found else next(iter(found))
    numbers = {name: number for number, name in enumerate(class_order({row["label"] for row in found[first]}))}
    if len(numbers) < fewest:
        got = ", ".join(numbers) or "none"
        raise InputError(f"{tables[first]} must have texts of at least {fewest} class{'es' * (fewest > 1)}; got {got}.")
    for row in (row for rows in found.values() for row in rows):
        if row["label"] not in numbers:
            raise InputError(
                f"{row['source']}: {row['label']} is a class that {tables[first]} lacks; it has "
                f"{', '.join([*numbers][:10])}. Correct or remove the row."
            )
        row["label"] = numbers[row["label"]]
    return [*numbers], found


def _pairs(file: Path, keep_markup: bool) -> Dataset:
    rows = []
    for place, values in _rows(file, _COLUMNS, keep_markup):
        if values["label"] not in MNLI_LABELS:
            raise InputError(f"{place}: the label must be one of {', '.join(MNLI_LABELS)}; got {values['label']!r}.")
        rows.append(values | {"label": MNLI_LABELS.index(values["label"]), "source": place})
    if not rows:
        raise InputError(f"{file} holds no labelled rows.")
    return Dataset.from_list(rows)


def unread_words(columns: Iterable[str]) -> str:
    """That columns are not read."""
    names = [*columns]
    more = f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED)
    return f"{'Columns that are' if names[1:] else 'A column that is'} not read: {', '.join(names[:MOST_NAMED])}{more}"


def _rows(
    file: Path, columns: Mapping[str, tuple[str, ...]], keep_markup: bool, unread: dict[str, None] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a file with their places, and the texts in some columns; only a label may be a whole number.

    Args:
        file: A file with one of the suffixes `TABLES`.
        columns: Our name for a column → its names in files.
        keep_markup: As in `read_imdb`.
        unread: Gets the names of the other columns.
    """
    for place, row in records(file):
        values, read = {}, set()
        written = {name.casefold(): name for name in row} | {name: name for name in row}  # an exact name counts most
        for name, names in columns.items():
            column = next((written[each] for each in names if each in written), None)
            if column is None:
                raise InputError(
                    f"{place} has no column {' or '.join(names)}; it has {', '.join(row)}. Rename the column."
                )
            read.add(column)
            value: Any = "" if row[column] is None else row[column]
            if name == "label" and isinstance(value, int):
                value = str(value)
            if not plain_text(value):
                raise InputError(f"{place}: {column} must be text; got {repr(value)[:60]}. Correct or remove the row.")
            values[name] = cleaned(value, keep_markup or name == "label")
        if "pair" in columns and values["label"] == "-":  # MNLI's annotators did not agree
            continue
        if empty := [name for name in columns if not values[name]]:
            raise InputError(f"{place}: {columns[empty[0]][0]} is empty. Remove the row.")
        if unread is not None:
            unread |= dict.fromkeys(name for name in row if name not in read and name.casefold() not in NUMBERS)
        yield place, values


def records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file of one of the kinds `TABLES`, with their places."""
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return _parquet(file)
    return json_objects(file) if suffix.startswith(".json") else _table(file)


def _parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file in Parquet; classes of `datasets` by their names, and ``-`` for none."""
    import pyarrow.parquet

    with refusing(f"{file} can't be read as Parquet", "Was its download cut off?"):
        number = 0
        with pyarrow.parquet.ParquetFile(file) as table:
            schema, about = table.schema_arrow, table.metadata
            largest = max((about.row_group(place).total_byte_size for place in range(about.num_row_groups)), default=0)
            refuse(
                (largest > MOST_TABLE, f"{file} has a part of {largest:,} bytes, above {MOST_TABLE:,}. Split it."),
                (len({*schema.names}) < len(schema.names), f"{file} has two columns of one name. Rename one."),
            )
            features = Features.from_arrow_schema(schema)
            classes = {name: kind.names for name, kind in features.items() if isinstance(kind, ClassLabel)}
            columns = [name for name in schema.names if not name.startswith("__index_level_")]  # those of pandas
            for batch in table.iter_batches(TABLE_ROWS, columns=columns):
                for row in batch.to_pylist():
                    for name, names in classes.items():
                        known = row[name] is not None and 0 <= row[name] < len(names)
                        row[name] = names[row[name]] if known else "-"
                    yield f"{file}, row {number}", row
                    number += 1


def _table(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    form: dict[str, Any] = {"strict": True, "skipinitialspace": True}
    if file.suffix.lower() == ".tsv":
        form = {"delimiter": "\t"} | ({"strict": True} if _quotes(file) else {"quoting": csv.QUOTE_NONE})
    rows = csv.reader(lines(file, newline=""), **form)
    try:
        header = next(rows, [])
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise InputError(f"{file} has two columns named {twice[0]!r}. Rename or remove one.")
        for row in filter(None, rows):  # without empty lines
            place = f"{file}, line {rows.line_num}"
            if len(row) != len(header):
                raise InputError(f"{place}, must have the {len(header)} columns of the header; got {len(row)}.")
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{file}, line {rows.line_num}, can't be read: {reason(error)}. Correct or remove it."
        ) from None


def _quotes(file: Path) -> bool:
    """Whether what wrote a .tsv file puts fields in quotes, as Python's csv and pandas do and GLUE does not.

    It does if the names of columns are in quotes, or if every row with a quote in it would be written the same again.
    """
    taken: list[str] = []  # the lines of a row

    def take() -> Iterator[str]:
        for line in lines(file, newline=""):
            taken.append(line)
            yield line

    quoted = False
    try:
        for number, row in enumerate(csv.reader(take(), delimiter="\t", strict=True)):
            written = "".join(taken).rstrip("\r\n")
            taken.clear()
            if '"' not in written:
                continue
            if number == 0:
                return True
            again = io.StringIO()
            csv.writer(again, delimiter="\t").writerow(row)
            if again.getvalue().rstrip("\r\n") != written:
                return False
            quoted = True
    except csv.Error:
        return False
    return quoted


def _of_hub(name: str | Path, columns: dict[str, str], keep_markup: bool, test: str = "test") -> DatasetDict:
    """Load a data set from the Hub and rename its columns to ours."""
    words = f"there is no file or folder {name}; expected one, or the name of a data set on the Hub."
    refuse((is_path(name), words + suggestion(name)))
    with refusing(f"{name} is no folder, and as a name on the Hub it can't be loaded", "Give the folder of the data."):
        loaded = load_dataset(str(name))
        sides = DatasetDict({"train": loaded["train"], "test": loaded[test]})
        wanted = columns | {"label": "label"}
        sides = sides.select_columns(list(wanted.values())).rename_columns(
            {theirs: ours for ours, theirs in wanted.items() if ours != theirs}
        )
        return sides.map(lambda row: {name: cleaned(row[name], keep_markup) for name in columns})
