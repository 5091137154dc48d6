"""Read the data of embedding models: triplets, pairs with scores, pairs alone, and pairs with labels as MNLI's."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from descend.declared import SCORED, TRIPLETS
from descend.errors import InputError, refuse
from descend.progress import counted
from descend.reading import plain_text, shown
from descend.tasks.splits import TEST_SHARE, split_groups, tell_shared
from descend.tasks.text.sources import MNLI_LABELS, NUMBERS, TABLES, pair_sides, records, unread_words
from descend.tasks.text.tokens import cleaned

FIRST = ("anchor", "query", "question", "question1", "sentence1", "sentence_a", "premise", "text1", "text", "first")
SECOND = (
    *("positive", "answer", "passage", "question2", "sentence2", "sentence_b", "hypothesis", "text2", "pair", "second"),
)
NEGATIVE = ("negative", "negative_1", "hard_negative")
SCORE = ("score", "scores", "similarity_score", "similarity", "relatedness_score")
LABEL = ("gold_label", "label", "labels", "is_duplicate")
"""The names of columns in files, in small letters; the first that is there counts."""

SCORES_OF_LABELS = dict(zip(MNLI_LABELS, (1.0, 0.5, 0.0), strict=True))
"""The score of a pair with a label of MNLI's."""

TRUTH = {"true": 1.0, "false": 0.0}
"""The scores of labels that are true or false, such as in a column ``is_duplicate``."""

MOST_CANDIDATES = 20_000
"""Texts among which negatives are looked for, evenly taken."""

_CLASS_NUMBERS = {-1.0, 0.0, 1.0, 2.0}
"""MNLI's classes as numbers, and -1 where its annotators did not agree."""

_MIXED = (
    "{place} has another kind of label than the rows before it: {value!r}. Give all rows scores, or all rows one of "
    f"{', '.join(MNLI_LABELS)}."
)

ROWS_AT_ONCE = 256
"""Anchors whose negatives are looked for at once."""


@dataclass(frozen=True)
class Pairs:
    """What was read.

    Attributes:
        kind: `TRIPLETS` or `SCORED`.
        sides: ``train`` and ``test``, and ``validation`` where it is given, each with ``texts`` (3 or 2 of them),
            ``label`` (the score; 1 of a triplet), ``group`` and ``source``. Rows of one group share a text, or are
            linked by rows that do.
        notes: Sentences on what was passed over or made.
    """

    kind: str
    sides: DatasetDict
    notes: tuple[str, ...]


def read_pairs(path: str | Path, kind: str | None = None, keep_markup: bool = False) -> Pairs:
    """Read triplets, or pairs of texts with scores.

    The columns may have several names, see `FIRST` and those after it. Where no text has one, two or three columns are
    taken in their order, as SentenceTransformers does. A row of texts (first, second, negative) is a triplet. A row
    (first, second, score) is a pair with a score; so is one whose label is a number. A row (first, second) alone
    becomes a triplet, and so does a pair that MNLI labels *entailment*: its negative is a text that contradicts the
    same premise, or else the second text of another training row that shares most words with the first one, see
    `hard_negatives`.

    Args:
        path: A file of one of the kinds `TABLES`, or a folder with such files for the sides that their names say. A
            file alone, or a folder without a test side, is split at random, the same way in every run; texts that are
            linked stay on one side.
        kind: `TRIPLETS` or `SCORED`; None for what the columns say. With `SCORED`, labels as MNLI's are scores of 1, ½
            and 0.
        keep_markup: Leave ``<br />`` in the texts; otherwise a blank takes its place.

    Raises:
        InputError: If the data are missing or have another layout; the message names the file and the line.
    """
    root, files = _files(path)
    passed: Counter[str] = Counter()
    sides = {side: _rows(file, kind, keep_markup, passed) for side, file in files.items()}
    kinds = {found for found, _ in sides.values()}
    refuse(
        (
            len(kinds) > 1,
            f"the files of {root} have different columns: one has scores, another has none. Give them the same.",
        ),
    )
    return _prepared(kinds.pop(), {side: rows for side, (_, rows) in sides.items()}, str(root), passed)


def kind_of_pairs(path: str | Path) -> str:
    """The kind of the data that `read_pairs` finds, `TRIPLETS` or `SCORED`, by the first training row alone.

    Raises:
        InputError: As `read_pairs`, as far as that row shows it.
    """
    _, files = _files(path)
    return next((kind for kind, _ in _labelled(files["train"], None, False, Counter())), TRIPLETS)


def _files(path: str | Path) -> tuple[Path, dict[str, Path]]:
    """The place of data, and side → its file there."""
    root = Path(path).expanduser()
    if root.is_file() and root.suffix.lower() in TABLES:
        return root, {"train": root}
    if root.is_dir():
        return root, pair_sides(root, suffixes=TABLES)
    raise InputError(
        f"{root} must be a file {', '.join(TABLES)} with two texts in a row, or a folder with such files for its "
        "sides, such as train.tsv and test.tsv."
    )


def generated_pairs(rows: dict[str, list[dict[str, Any]]]) -> Pairs:
    """The same of rows in memory, of ``anchor``, ``positive`` and ``negative``, by side."""
    made = {
        side: [_row(row["anchor"], row["positive"], row["negative"], source=f"{side} {place}") for place, row in each]
        for side, each in ((side, list(enumerate(rows))) for side, rows in rows.items())
    }
    return _prepared(TRIPLETS, made, "the generated texts", Counter())


def split_validation(pairs: Pairs, share: float) -> DatasetDict:
    """Split the training side into ``train`` and ``validation``, unless that is given; linked texts stay together.

    Raises:
        InputError: If a side would have fewer than 2 rows, or equal scores alone.
    """
    sides = pairs.sides
    if "validation" in sides:
        return sides
    rows = sides["train"]
    validation, train = _split(rows["group"][:], share, "validation")
    labels = rows["label"][:]
    for side, places in (("validation", validation), ("train", train)) if pairs.kind == SCORED else ():
        _refuse_equal([labels[place] for place in places], f"the {side} side")
    return DatasetDict(
        {"train": rows.select(train), "validation": rows.select(validation), "test": sides["test"]},
    )


def hard_negatives(anchors: Sequence[str], refused: Mapping[str, set[str]], candidates: Sequence[str]) -> list[str]:
    """For each anchor the candidate that shares most words with it, by the number of shared words over all of both.

    Args:
        anchors: The texts.
        refused: Anchor → the other texts that can't be its negative.
        candidates: Distinct texts.

    Raises:
        InputError: If an anchor has no candidate left.
    """
    known: dict[str, int] = {}
    first, second = (_counts(texts, known) for texts in (candidates, anchors))
    first.resize(len(candidates), len(known))
    sizes, ours = first.sum(1), second.sum(1)
    place = {text: at for at, text in enumerate(candidates)}
    found: list[str] = []
    for start in counted(range(0, len(anchors), ROWS_AT_ONCE), "finding negatives", "part"):
        part = slice(start, start + ROWS_AT_ONCE)
        shared = (second[part] @ first.T).toarray()
        likeness = shared / np.maximum(ours[part, None] + sizes[None] - shared, 1)
        for row, anchor in zip(likeness, anchors[part], strict=True):
            row[[place[text] for text in (anchor, *refused.get(anchor, ())) if text in place]] = -1
            best = int(row.argmax())
            if row[best] < 0:
                raise InputError("a pair has no negative: all other texts are linked to it. Give more different texts.")
            found.append(candidates[best])
    return found


def _counts(texts: Sequence[str], known: dict[str, int]) -> csr_array:
    """Which words each text has, (texts, words), 0 or 1; new words are added to the known ones."""
    words = [{known.setdefault(word, len(known)) for word in re.findall(r"\w+", text.casefold())} for text in texts]
    columns = [word for each in words for word in each]
    ends = np.cumsum([0, *map(len, words)])
    return csr_array((np.ones(len(columns), np.int32), columns, ends), shape=(len(texts), len(known)))


def _row(first: str, second: str, negative: str | None = None, label: float | str = 1.0, source: str = "") -> dict:
    return {"first": first, "second": second, "negative": negative, "label": label, "source": source}


def _rows(file: Path, kind: str | None, keep_markup: bool, passed: Counter[str]) -> tuple[str, list[dict[str, Any]]]:
    """The kind of a file's rows, and the rows; a label of MNLI's stays a word.

    Args:
        file: The file.
        kind: As in `read_pairs`.
        keep_markup: As in `read_pairs`.
        passed: Counts what a note should say of rows, such as that they are left out.
    """
    rows: list[dict[str, Any]] = []
    found: str | None = None
    for this, row in _labelled(file, kind, keep_markup, passed):
        if found not in (None, this):
            raise InputError(_MIXED.format(place=row["source"], value=row["label"]))
        found = this
        texts = [row[name] for name in ("first", "second", "negative") if row[name] is not None]
        if len({*texts}) < len(texts):
            passed["Rows that have twice the same text are left out"] += 1
        else:
            rows.append(row)
    refuse((not rows, f"{file} holds no pairs of different texts with a label. Give at least two columns of texts."))
    assert found is not None
    return found, rows


def _labelled(
    file: Path, kind: str | None, keep_markup: bool, passed: Counter[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kind of each row, and the row; see `_rows`.

    Raises:
        InputError: If a row has other columns or values; or the labels are the whole numbers of MNLI's classes.
    """
    numbers: set[float] = set()
    unread: dict[str, None] = {}
    with_further = 0
    types: set[type] = set()
    ordered: Sequence[str] = ()
    for place, row in records(file):
        names = {str(name).casefold(): name for name in row if name}
        first, second, negative, score, label = (
            next((names[each] for each in known if each in names), None)
            for known in (FIRST, SECOND, NEGATIVE, SCORE, LABEL)
        )
        if first is second is negative is None:
            ordered = ordered or _in_order(row, score or label)
            first, second, negative = [*(name for name in ordered if name in row), None, None, None][:3]
        if first is None or second is None:
            known = FIRST if first is None else SECOND
            raise InputError(
                f"{place} must have a column named one of {', '.join(known)}; it has {', '.join(map(str, row))}. "
                "Rename the column of the texts."
            )
        if ordered:
            roles = zip(ordered, ("the first text", "the second", "the negative"), strict=False)
            told = ", ".join(f"{name} is {role}" for name, role in roles)
            passed[f"No column has a known name: {told}; rows"] += 1
        texts = [_text(row[name], place, name, keep_markup) for name in (first, second, negative) if name is not None]
        value: Any = 1.0
        if negative is not None and kind != SCORED:
            this = TRIPLETS
        elif score is not None or label is not None:
            given = row[str(score or label)]
            if given == "-" and score is None:  # MNLI's annotators did not agree
                passed["Rows that have a label on which the annotators did not agree are left out"] += 1
                continue
            if score is None:
                given = TRUTH.get(str(given).casefold(), given)
            value = given if score is None and given in MNLI_LABELS else _number(given, place)
            types.add(type(value))
            if len(types) > 1:
                raise InputError(_MIXED.format(place=place, value=value))
            if score is None and isinstance(value, float):
                numbers.add(value)
            this = kind or (TRIPLETS if isinstance(value, str) else SCORED)
            if this == SCORED and isinstance(value, str):
                value = SCORES_OF_LABELS[value]
            if this == TRIPLETS and not isinstance(value, str):
                raise InputError(
                    f"{place} has a score, {value:g}; expected triplets, as --dataset or the first training row says. "
                    "Give all rows scores and no --dataset, or all rows a negative."
                )
        else:
            this = kind or TRIPLETS
            refuse(
                (
                    kind == SCORED,
                    f"{place} must have a column named one of {', '.join((*SCORE, *LABEL))}; it has "
                    f"{', '.join(map(str, row))}. Rename the column of the scores, or leave --dataset out.",
                )
            )
        graded = score or label if negative is None or kind == SCORED else None
        used = {first, second, graded, negative if this == TRIPLETS else None}
        further = [name for name in map(str, row) if name not in used and name.casefold() not in NUMBERS]
        unread |= dict.fromkeys(further)
        with_further += bool(further)
        pair = texts[0], texts[1], None if this == SCORED or negative is None else texts[2]
        yield this, _row(*pair, value, shown(place))
    if unread:
        passed[f"{unread_words(unread)}; rows"] += with_further
    refuse(
        (
            numbers <= _CLASS_NUMBERS and 2 in numbers,
            f"{file} has labels up to 2, which may be MNLI's classes, where 0 is the nearest. Write them as "
            f"{', '.join(MNLI_LABELS)}; or name the column score, if more is nearer.",
        )
    )


def _in_order(row: dict[str, Any], scored: str | None) -> list[str]:
    """The columns of a file's texts in their order, by its first row; none if they can't be told from others.

    Args:
        row: The row.
        scored: The column of its score or label; with one there are two texts.
    """
    names = [name for name in row if name.casefold() not in (*SCORE, *LABEL, *NUMBERS)]
    texts = all(plain_text(row[name]) and _float(row[name]) is None for name in names)
    return names if texts and len(names) in ((2,) if scored else (2, 3)) else []


def _text(value: Any, place: str, name: str, keep_markup: bool) -> str:
    """A text of a row."""
    value = "" if value is None else value
    if not plain_text(value):
        raise InputError(f"{place}: {name} must be text; got {repr(value)[:60]}. Correct or remove the row.")
    text = cleaned(value, keep_markup)
    if not text:
        raise InputError(f"{place}: {name} is empty. Expected a text in each row; correct or remove this one.")
    return text


def _float(value: Any) -> float | None:
    """A value as a number; None if it is none."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _number(value: Any, place: str) -> float:
    """A score of a row."""
    number = _float(value)
    if number is None or not math.isfinite(number):
        raise InputError(
            f"{place}: a score must be a finite number, or a label one of {', '.join(MNLI_LABELS)}; got "
            f"{repr(value)[:60]}. Correct or remove the row."
        )
    return number


def _prepared(kind: str, sides: dict[str, list[dict[str, Any]]], name: str, passed: Counter[str]) -> Pairs:
    """Groups, a test side, negatives and scores in [−1, 1] of rows."""
    for rows in sides.values():
        groups = _groups(rows)
        for row in rows:
            row["group"] = groups[row["first"]]
    if "test" not in sides:
        every = sides["train"]
        test, train = _split([row["group"] for row in every], TEST_SHARE, "test")
        sides = {"train": [every[row] for row in train], "test": [every[row] for row in test]}
    else:
        named = ("first", "second", "negative")
        tell_shared(
            {side: {row[name] for row in rows for name in named} - {None} for side, rows in sides.items()}, "texts"
        )
    notes = [f"{what}: {count:,}." for what, count in passed.items()]
    notes += _with_negatives(sides, name) if kind == TRIPLETS else _scaled(sides, name)
    texts = ("first", "second", "negative")[: 3 if kind == TRIPLETS else 2]
    parts = {
        side: Dataset.from_list(
            [
                {
                    "texts": [row[each] for each in texts],
                    "label": float(row["label"]),
                    "group": row["group"],
                    "source": row["source"],
                }
                for row in rows
            ]
        )
        for side, rows in sides.items()
    }
    return Pairs(kind, DatasetDict(parts), tuple(notes))


def _groups(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The group of each first text: rows with a text in common are of one group, and so are chains of such rows."""
    numbers: dict[str, int] = {}
    ends: list[tuple[int, int]] = []
    for row in rows:
        first, *others = (
            numbers.setdefault(row[name], len(numbers))
            for name in ("first", "second", "negative")
            if row[name] is not None
        )
        ends += [(first, other) for other in others]
    one, two = np.array(ends).T
    links = csr_array((np.ones(len(ends), np.int8), (one, two)), shape=(len(numbers), len(numbers)))
    _, group = connected_components(links, directed=False)
    return {text: int(group[number]) for text, number in numbers.items()}


def _split(groups: Sequence[int], share: float, side: str) -> list[list[int]]:
    """The rows of a part, and the others; groups stay whole."""
    count = round(len(groups) * share)
    different = len({*groups})
    parts = split_groups(groups, [count]) if count > 1 and different > 1 else [[]]
    if min(map(len, parts)) < 2:
        raise InputError(
            f"{len(groups)} pairs with {different} different groups of texts are too few to split a {side} side off: "
            "pairs that share a text stay on one side, and each side needs 2. Give more pairs, or a file for each side."
        )
    return parts


def _with_negatives(sides: dict[str, list[dict[str, Any]]], name: str) -> list[str]:
    """Give each row of triplets a negative, in place; says what was made.

    Args:
        sides: The rows of each side, of which those with another label than MNLI's *entailment* go.
        name: What the data are called.
    """
    candidates = [*dict.fromkeys(row["second"] for row in sides["train"])]
    step = max(1, math.ceil(len(candidates) / MOST_CANDIDATES))
    candidates = candidates[::step]
    kept, made, own, left = 0, 0, 0, 0
    partners: dict[str, set[str]] = {}
    for row in (row for rows in sides.values() for row in rows):
        partners.setdefault(row["first"], set()).add(row["second"])
        partners.setdefault(row["second"], set()).add(row["first"])
    for side, rows in sides.items():
        against: dict[str, list[str]] = {}
        for row in rows:
            if row["label"] == MNLI_LABELS[2]:
                against.setdefault(row["first"], []).append(row["second"])
        positive = [row for row in rows if row["label"] in (1.0, MNLI_LABELS[0])]
        left += len(rows) - len(positive)
        lacking = []
        for row in positive:
            if row["negative"] is None and (own_negatives := against.get(row["first"])):
                row["negative"] = own_negatives[0]
                own += 1
            elif row["negative"] is None:
                lacking.append(row)
            row["label"] = 1.0
        for row, negative in zip(
            lacking, hard_negatives([row["first"] for row in lacking], partners, candidates), strict=True
        ):
            row["negative"] = negative
        made, kept = made + len(lacking), kept + len(positive)
        refuse(
            (
                not positive,
                f"the {side} side of {name} has no pair labelled {MNLI_LABELS[0]}, so no triplet. Give some, or take "
                f"--dataset {SCORED}.",
            )
        )
        sides[side] = positive
    notes = []
    if left:
        notes.append(
            f"{kept:,} triplets are made of the pairs labelled {MNLI_LABELS[0]}; the other {left:,} pairs give texts "
            "for negatives alone."
        )
    if own:
        notes.append(f"{own:,} negatives contradict the same first text.")
    if made:
        notes.append(
            f"{made:,} pairs have no negative in the data: theirs is the second text of another training row that "
            "shares most words with the first text."
        )
    return notes


def _scaled(sides: dict[str, list[dict[str, Any]]], name: str) -> list[str]:
    """Bring scores into [−1, 1], in place, by those of the training side; says so."""
    scores = [row["label"] for row in sides["train"]]
    low, high = min(scores), max(scores)
    for side, rows in sides.items():
        _refuse_equal([row["label"] for row in rows], f"the {side} side of {name}")
    if low >= -1 and high <= 1:
        return []
    for row in (row for rows in sides.values() for row in rows):
        row["label"] = (row["label"] - low) / (high - low)
    return [f"Scores from {low:g} to {high:g} are scaled to 0 … 1 for the loss. Spearman's ρ does not change."]


def _refuse_equal(scores: list[float], side: str) -> None:
    """Refuse a side whose scores rank no pairs."""
    told = f"all scores of {side} are equal, so they rank no pairs. Give pairs of other scores, or remove their column."
    refuse((len({*scores}) < 2, told))
