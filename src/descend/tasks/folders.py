"""Data sets on disk with a folder for each class, and the order of classes."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from descend.errors import InputError
from descend.reading import is_litter

ClassFiles = dict[str, list[tuple[Path, int]]]
"""Side of a data set → its files, each with the number of its class."""


def class_order(names: Iterable[str]) -> list[str]:
    """Names of classes in the order of their numbers: by the alphabet, but 2 before 10 where all are whole numbers."""
    ordered = sorted(names)
    return sorted(ordered, key=int) if all(re.fullmatch(r"-?\d+", name) for name in ordered) else ordered


def folders_in(folder: Path) -> list[str]:
    """The names of a folder's folders, without hidden ones and those that archives add."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return [each.name for each in inside if each.is_dir() and not is_litter(Path(each.name))]


def class_files(
    root: Path, suffixes: Collection[str], classes: Sequence[str] | None = None
) -> tuple[Sequence[str], ClassFiles]:
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
    known = class_order(folders_in(sides["train"])) if classes is None else classes
    kinds = ", ".join(sorted(suffixes))
    if len(known) < 2:
        raise InputError(
            f"{sides['train']} must hold a folder of {kinds} files for each of at least 2 classes; it has "
            f"{f'only {known[0]}' if known else 'no folder'}."
        )
    files: ClassFiles = {}
    for side, folder in sides.items():
        if unknown := [name for name in folders_in(folder) if name not in known and classes is None]:
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
        lacking = [name for number, name in enumerate(known) if number not in {label for _, label in files[side]}]
        if lacking and (side == "train" or not files[side]):
            raise InputError(f"{folder / lacking[0]} holds no {kinds} files. Add some, or remove the folder.")
    return known, files
