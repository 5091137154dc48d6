"""The sides of a data set: folders on disk with a folder for each class, and random parts.

Random parts share no text, prompt or image.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import InputError, refuse
from descend.reading import is_litter

if TYPE_CHECKING:
    from datasets import DatasetDict


ClassFiles = dict[str, list[tuple[Path, int]]]
"""Side of a data set → its files, each with the number of its class."""

MOST_CLASSES = 2**16
"""Most classes of a data set."""

TEST_SHARE = 0.2
"""Share of each class to test on where there is no test side."""


def class_order(names: Iterable[str]) -> list[str]:
    """Names of classes in the order of their numbers: by the alphabet, but 2 before 10 where all are whole numbers.

    Raises:
        InputError: If they are more than `MOST_CLASSES`.
    """
    ordered = sorted(names)
    refuse((len(ordered) > MOST_CLASSES, f"expected at most {MOST_CLASSES:,} classes; got {len(ordered):,}."))
    return sorted(ordered, key=int) if all(re.fullmatch(r"-?\d+", name) for name in ordered) else ordered


def folders_in(folder: Path) -> list[str]:
    """The names of a folder's folders, without hidden ones and those that archives add."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return [each.name for each in inside if each.is_dir() and not is_litter(Path(each.name))]


def class_files(
    root: Path, suffixes: Collection[str], classes: Sequence[str] | None = None
) -> tuple[list[str], ClassFiles]:
    """Find the files of a data set that has a folder for each class.

    Args:
        root: A folder of such folders, or one with ``train`` and perhaps ``test`` and ``val`` (or ``validation``), each
            with such folders. Without ``test``, ``val`` stands in for it.
        suffixes: What the names of files end with, in lower case; other files are passed over.
        classes: The classes to read; by default all that ``train`` has.

    Returns:
        The classes in the order of their numbers, and the files of ``train``, and of ``test`` and ``validation`` where
        they are given.

    Raises:
        InputError: If there are no training files, fewer than two classes, a training class without a file or a class
            of another side that is not among them, or two folders for one side.
    """
    train, *others = [root / name for name in ("train", "test", "val", "validation")]
    held = [folder for folder in others if folder.is_dir()]
    if len(held) > 2 or (len(held) == 2 and held[0].name != "test"):
        raise InputError(f"{root} has both val and validation, sides of one kind. Remove or rename one.")
    if held and not train.is_dir():
        raise InputError(f"{root} has {held[0].name} and no train. Put the files to train on in {train}.")
    sides = {"train": train if train.is_dir() else root} | dict(zip(("test", "validation"), held, strict=False))
    known = class_order(folders_in(sides["train"])) if classes is None else list(classes)
    names = set(known)
    kinds = ", ".join(sorted(suffixes))
    if len(known) < 2:
        raise InputError(
            f"{sides['train']} must hold a folder of {kinds} files for each of at least 2 classes; it has "
            f"{f'only {known[0]}' if known else 'no folder'}."
        )
    files: ClassFiles = {}
    for side, folder in sides.items():
        if unknown := [name for name in folders_in(folder) if name not in names and classes is None]:
            raise InputError(
                f"{folder / unknown[0]} is a class that {sides['train']} lacks; it has {', '.join(known[:10])}. Rename "
                "or remove it, or give files to train on."
            )
        files[side] = [
            (file, number)
            for number, name in enumerate(known)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in suffixes and file.is_file() and not is_litter(file.relative_to(root))
        ]
        present = {label for _, label in files[side]}
        lacking = [name for number, name in enumerate(known) if number not in present]
        if lacking and (side == "train" or not files[side]):
            raise InputError(f"{folder / lacking[0]} holds no {kinds} files. Add some, or remove the folder.")
    return known, files


def split_groups(keys: Sequence[Hashable], counts: Sequence[int]) -> list[list[int]]:
    """Split rows at random, the same way in every run, with all rows of one key in one part.

    Groups of rows are drawn, each as likely as any other. So a part may have more or fewer rows than asked for.

    Args:
        keys: What rows of one group have in common, for each row.
        counts: Rows of each part but the last.

    Returns:
        The numbers of each part's rows; the last part has all others.

    Raises:
        InputError: If a part is empty.
    """
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    members = list(groups.values())
    order = np.random.default_rng(0).permutation(len(members))
    ends = np.cumsum([len(members[group]) for group in order])
    cuts = [int(np.abs(ends - target).argmin()) + 1 for target in np.cumsum(counts)]
    parts = [[row for group in part for row in members[group]] for part in np.split(order, cuts)]
    if not all(parts):
        raise InputError(
            f"expected {len(parts)} parts with rows in each, where rows of one text or prompt stay together; got "
            f"{len(keys)} rows with {len(groups)} different ones, and parts of {', '.join(map(str, map(len, parts)))}. "
            "Give rows with more different texts."
        )
    return parts


def split_classes(keys: Sequence[Hashable], labels: Iterable[int], share: float) -> tuple[list[int], list[int]]:
    """Split a share of each class off, at least one group of each and never all, by `split_groups`.

    A class with a single group stays whole.

    Args:
        keys: What rows of one group have in common, for each row.
        labels: The class of each row; a group counts to that of its first row.
        share: The share to split off.

    Returns:
        The numbers of the rows that are split off, and of the rest, in order.
    """
    classes: dict[Hashable, int] = {}
    rows: dict[int, list[int]] = {}
    for row, (key, label) in enumerate(zip(keys, labels, strict=True)):
        rows.setdefault(classes.setdefault(key, label), []).append(row)
    drawn: list[int] = []
    for _, members in sorted(rows.items()):
        groups = [keys[row] for row in members]
        if len(set(groups)) > 1:
            count = min(max(round(len(members) * share), 1), len(members) - 1)
            drawn += [members[place] for place in split_groups(groups, [count])[0]]
    return sorted(drawn), sorted({*range(len(keys))}.difference(drawn))


def split_off(texts: "DatasetDict", validation_share: float, *, by_class: bool = False) -> "DatasetDict":
    """Split the training side into ``train`` and ``validation``, with the same random split in every run.

    Rows with the same ``text``, such as MNLI's pairs with one premise, are all in one of the two. Texts that have a
    ``validation`` side keep it.

    Args:
        texts: The sides ``train`` and ``test``, and perhaps ``validation``.
        validation_share: The share of the training side.
        by_class: Whether to take this share of each class.

    Raises:
        InputError: If the share leaves a part empty.
    """
    if "validation" in texts:
        return texts
    rows = texts["train"]
    keys = rows["text"][:]
    size = round(len(rows) * validation_share)
    if by_class:
        validation, train = split_classes(keys, rows["label"][:], validation_share)
    else:
        validation, train = split_groups(keys, [size]) if size > 1 else ([], [])
    if len(validation) < 2:
        raise InputError(
            f"validation needs at least 2 of the {len(rows)} training texts, and training the rest; got {size} of "
            f"{len(set(keys))} different ones. Change --validation-share or give more texts."
        )
    return type(texts)({"train": rows.select(train), "validation": rows.select(validation), "test": texts["test"]})
