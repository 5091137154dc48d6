"""The sides and classes of a data set on disk: one reader for texts, tables, images and videos."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from descend.errors import InputError, refuse
from descend.reading import is_litter, plain_text, shown

ClassFiles = dict[str, list[tuple[Path, int]]]
"""Side of a data set → its files, each with the number of its class."""

SIDES = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "validation": ("validation", "val", "valid", "validate", "dev", "devel", "development", "eval", "evaluation"),
}
"""A side → the words that name it, in any case."""

_SIDE_OF = {word: side for side, words in SIDES.items() for word in words}
# Words that may stand beside a side's: training_videos, TestSet, dev_matched.
_PLAIN = "set|split|data|dataset|images?|imgs?|videos?|frames?|clips?|texts?|files?|samples?|matched"
_WORD = re.compile(rf"({'|'.join(sorted(_SIDE_OF, key=len, reverse=True))})(?:{_PLAIN})*")
_NOTHING = re.compile(rf"(?:{_PLAIN})+|(?:19|20)\d\d")  # train2017

MOST_CLASSES = 2**16
"""Most classes of a data set."""

MOST_NAMES = 5
"""Kinds of files that were passed over, and are named."""


def class_order(names: Iterable[str]) -> list[str]:
    """Names of classes in the order of their numbers: by the alphabet, but 2 before 10 where all are whole numbers.

    Raises:
        InputError: If they are more than `MOST_CLASSES`.
    """
    ordered = sorted(names)
    refuse((len(ordered) > MOST_CLASSES, f"expected at most {MOST_CLASSES:,} classes; got {len(ordered):,}."))
    return sorted(ordered, key=int) if all(re.fullmatch(r"-?\d+", name) for name in ordered) else ordered


def class_name(name: str) -> str:
    """A class's name in Unicode's composed form: an archive of another system may have decomposed it."""
    return unicodedata.normalize("NFC", name)


def folders_in(folder: Path) -> list[Path]:
    """A folder's folders in order, without hidden ones and those that archives add."""
    try:
        inside = [*folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise InputError(f"{shown(folder)} can't be listed: {error.strerror}. Check its permissions") from error
    return sorted(each for each in inside if each.is_dir() and not is_litter(Path(each.name)))


def side_and_other_words(name: str) -> tuple[str | None, str]:
    """The side that a name says, such as ``train`` for ``seg_Train``, and its other words, such as ``seg``."""
    name = re.sub(r"-\d{5}-of-\d{5}$", "", name)  # a shard of Hugging Face
    words = re.findall(r"[^\W\d_]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold())
    sides, others = set(), []
    for word in words:
        if match := _WORD.fullmatch(word):
            sides.add(_SIDE_OF[match[1]])
        elif not _NOTHING.fullmatch(word):
            others.append(word)
    return (sides.pop() if len(sides) == 1 else None), " ".join(others)


def side_of(name: str) -> str | None:
    """The side that is all a name says: ``train``, ``test`` or ``validation``; None for another name."""
    side, others = side_and_other_words(name)
    return None if others else side


def sides_in(entries: Iterable[Path]) -> dict[str, Path]:
    """The folders or files of a data set's sides.

    They are named by one of the words in `SIDES` alone, or all with the same other words: ``seg_train`` and
    ``seg_test``. Without a test side, validation stands in for it.

    Args:
        entries: The folders or files in one place.

    Returns:
        Side → its folder or file, in the order of `SIDES`; empty if none is named so.

    Raises:
        InputError: If two of them are for one side.
    """
    groups: dict[str, dict[str, Path]] = {}
    for entry in entries:
        side, others = side_and_other_words(entry.name if entry.is_dir() else entry.stem)
        if side is None:
            continue
        earlier = groups.setdefault(others, {}).setdefault(side, entry)
        if earlier != entry:
            raise InputError(
                f"{entry.parent} has both {earlier.name} and {entry.name}, sides of one kind. Join them, or "
                "remove or rename one."
            )
    alike = [
        group
        for others, group in groups.items()
        if re.search(r"[^\W\d]", others) and "train" in group and len(group) > 1  # Train001 and Test001 are clips
    ]
    if "" not in groups and len(alike) > 1:
        first, second = (group["train"] for group in alike[:2])
        raise InputError(f"{first.parent} holds several data sets: {first.name}, {second.name}. Choose one.")
    found = groups.get("") or next(iter(alike), {})
    if "test" not in found and "validation" in found:
        found["test"] = found.pop("validation")
    return {side: found[side] for side in SIDES if side in found}


def class_files(
    root: Path, kind: str, suffixes: Collection[str], classes: Sequence[str] | None = None
) -> tuple[list[str], ClassFiles]:
    """Find the files of a data set that has a folder for each class.

    Args:
        root: A folder of such folders, or one with folders of sides, as `sides_in` names them, each with such folders.
        kind: What files to read are called in errors, such as ``image``.
        suffixes: What the names of files end with, in lower case; other files are passed over.
        classes: The classes to read, whose folders may be written in any case; by default all that ``train`` has.

    Returns:
        The classes in the order of their numbers, and the files of ``train``, and of ``test`` and ``validation`` where
        they are given.

    Raises:
        InputError: If there are no training files, fewer than two classes, a training class without a file or a class
            of another side that is not among them, two folders for one side or class, sides inside classes, or a class
            whose name is not UTF-8.
    """
    sides = _class_sides(root)
    folders = {side: _class_folders(folder, classes) for side, folder in sides.items()}
    known = class_order(folders["train"]) if classes is None else list(classes)
    if len(known) < 2:
        raise InputError(
            f"{sides['train']} must hold a folder of {kind} files for each of at least 2 classes; it has "
            f"{f'only {known[0]}' if known else 'no folder'}."
        )
    names = set(known)
    files: ClassFiles = {}
    for side, folder in sides.items():
        if unknown := [name for name in folders[side] if name not in names and classes is None]:
            raise InputError(
                f"{folder / unknown[0]} is a class that {sides['train']} lacks; it has {', '.join(known[:10])}. Rename "
                "or remove it, or give files to train on."
            )
        files[side] = [
            (file, number)
            for number, name in enumerate(known)
            if name in folders[side]
            for file in sorted(folders[side][name].rglob("*"))
            if file.suffix.lower() in suffixes and file.is_file() and not is_litter(file.relative_to(root))
        ]
        present = {label for _, label in files[side]}
        lacking = [name for number, name in enumerate(known) if number not in present]
        if lacking and (side == "train" or not files[side]):
            raise InputError(f"{folder / lacking[0]} holds no {kind} files. Add some, or remove the folder.")
    return known, files


def _class_sides(root: Path) -> dict[str, Path]:
    """Side → the folder of its classes' folders."""
    folders = folders_in(root)
    sides = sides_in(folders)
    said = {folder.name: side_and_other_words(folder.name)[0] for folder in folders}
    # Beside folders of another kind, one that holds no folders may be a class: train, bus and car.
    if None in said.values() and not any(folders_in(folder) for folder in sides.values()):
        return {"train": root}
    if not sides and len({*said.values()}) > 1:
        raise InputError(
            f"{root} has {' and '.join(said)}, which seem to be sides. Rename them: train, test, validation."
        )
    if not sides:
        return {"train": root}
    if "train" not in sides:
        (name, *_) = (folder.name for folder in sides.values())
        raise InputError(f"{root} has {name} and no train. Put the files to train on in {root / 'train'}.")
    return sides


def _class_folders(folder: Path, classes: Sequence[str] | None) -> dict[str, Path]:
    """The name of a class → its folder."""
    written = {name.casefold(): name for name in classes or ()}
    found: dict[str, Path] = {}
    for inner in folders_in(folder):
        if not plain_text(inner.name):
            raise InputError(f"{shown(inner)} is a class whose name is not UTF-8. Rename it, as the convmv tool does.")
        name = class_name(inner.name)
        name = written.get(name.casefold(), name)
        if name in found:
            raise InputError(
                f"{folder} has two folders for the class {name}, whose names are written differently. Join them."
            )
        if (nested := folders_in(inner)) and all(side_of(each.name) for each in nested):
            raise InputError(
                f"{inner} has {nested[0].name}, a side inside a class; expected classes inside sides, such as "
                f"{folder / nested[0].name / inner.name}. Move the folders."
            )
        found[name] = inner
    return found


def files_read(root: Path, read: Iterable[Path | str]) -> str:
    """What of a folder is read, such as "8 of 20 files read; 12 passed over: .jfif, notes/"; empty if all of it is.

    Args:
        root: The folder that the person named.
        read: The files that are read, as paths or as `shown` paths.
    """
    used = {shown(file) for file in read}
    homes = {os.path.dirname(file) for file in used}
    homes |= {str(parent) for home in homes for parent in Path(home).parents}
    kinds = {"", *(os.path.splitext(file)[1].lower() for file in used)}  # of these a suffix tells nothing
    left: Counter[str] = Counter()
    for place, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not is_litter(Path(name))]
        below = Path(place).relative_to(root)
        chain = [*reversed(below.parents), below]
        unread = next((each for each in chain[1:] if shown(root / each) not in homes), None)
        for name in files:
            if not is_litter(Path(name)) and shown(file := Path(place, name)) not in used:
                kind = file.suffix.lower()
                left[f"{unread.name}/" if unread else file.name if kind in kinds else kind] += 1
    if not left:
        return ""
    names = map(shown, sorted(left, key=lambda name: (-left[name], name))[:MOST_NAMES])
    others = " and others" if len(left) > MOST_NAMES else ""
    total = len(used) + left.total()
    return f"{len(used):,} of {total:,} files read; {left.total():,} passed over: {', '.join(names)}{others}"
