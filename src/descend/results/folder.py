"""The ledger of a folder, ``written.json``: which of its files Descend wrote. It replaces and removes no others.

Each folder that Descend writes has one. It gives the size and the SHA-256 of every file of ours by its path, and so
answers three questions: whose a file is, whether it is whole, and which files a card describes. A file that differs
from its entry was edited: before Descend writes such a file anew it renames the edited one. A file without an entry is
somebody else's. A folder without a ledger is read, never replaced and never cleaned.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python
from safetensors import SafetensorError

from descend import reading
from descend.errors import InputError, SaveError, refuse
from descend.writing import LOCK_FILE, PART, flush, is_empty, locked, open_to, private_folder, remove_parts, replacing

LEDGER_FILE = "written.json"

CARD_FILE = "README.md"
"""A model's card. One that somebody edited stays as it is: it is theirs from then on."""

ELSEWHERE = "on-"
"""How the folder in a run begins that holds its evaluation on other data; the rest is these data's own name."""

ALONE = "folder-"
"""The kind of temporary folders that one process at a time makes in a folder, such as those of checkpoints."""

Entry = dict[str, Any]
"""``size`` in bytes and ``sha256`` of a file; ``before``, the same of the file that it replaced; and ``appended`` if it
grows, so that the entry is that of its beginning."""

logger = logging.getLogger(__name__)


# --- the ledger


def read_ledger(folder: Path) -> dict[str, Entry] | None:
    """Path → entry of a folder's files, relative to it; None without a ledger that can be read."""
    path = folder / LEDGER_FILE
    try:
        content = reading.read_json(path, reading.MOST_RECORD) if path.is_file() and not path.is_symlink() else None
    except InputError:
        return None
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        return None
    return files


def seal(folder: Path) -> None:
    """Write the ledger of a folder that was just filled, and that nobody else knows yet: all of its files are ours."""
    files = {str(path.relative_to(folder)): _entry(path) for path in _files(folder)}
    (folder / LEDGER_FILE).write_text(_text(files), encoding="utf-8")


@contextmanager
def _locked_ledger(folder: Path) -> Iterator[dict[str, Entry]]:
    """The entries of a folder's ledger; no other process changes them inside the ``with`` block.

    Raises:
        InputError: If ``written.json`` there is none of Descend's.
    """
    with locked(folder, f"{LOCK_FILE}-{LEDGER_FILE}", wait=True):
        _refuse_foreign_ledger(folder)
        yield read_ledger(folder) or {}


def _refuse_foreign_ledger(folder: Path) -> None:
    path = folder / LEDGER_FILE
    foreign = read_ledger(folder) is None and (path.exists() or path.is_symlink())
    refuse((foreign, f"{path} is no ledger of Descend, or is damaged. Move it, or choose another folder."))


def _write_ledger(folder: Path, files: dict[str, Entry]) -> None:
    with replacing(folder / LEDGER_FILE) as part:
        part.write_text(_text(files), encoding="utf-8")


def _text(files: dict[str, Entry]) -> str:
    return json.dumps({"schema": 1, "files": dict(sorted(files.items()))}, indent=1) + "\n"


def _entry(path: Path) -> Entry:
    return {"size": path.stat().st_size, "sha256": digest(path)}


_DIGESTS: dict[tuple[int, ...], str] = {}
"""Device, inode, size and times of a file → its SHA-256: a file that does not change is read once by a process."""


def digest(path: Path) -> str:
    """A file's SHA-256."""
    status = path.stat()
    state = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if state not in _DIGESTS:
        with path.open("rb") as file:
            _DIGESTS[state] = hashlib.file_digest(file, "sha256").hexdigest()
    return _DIGESTS[state]


def matches(path: Path, entry: Entry) -> bool:
    """Whether a file is what its entry says, or what it said before the last write, which a kill may have stopped."""
    size, listed = path.stat().st_size, entry.get("size")
    if entry.get("appended"):
        if type(listed) is not int or not 0 <= listed <= size:
            return False
        with path.open("rb") as file:
            return hashlib.sha256(file.read(listed)).hexdigest() == entry.get("sha256")
    known = [each for each in (entry, entry.get("before")) if isinstance(each, dict) and each.get("size") == size]
    return any(digest(path) == each.get("sha256") for each in known)


# --- whose files


def is_ours(path: Path) -> bool:
    """Whether Descend wrote a file or folder, and nobody changed or added anything since.

    Args:
        path: A file whose folder has the ledger; or a folder with a ledger of its own.
    """
    return not strangers(path)


def strangers(path: Path, *, runs: bool = False) -> list[Path]:
    """The files that Descend did not write, or that somebody changed since; a file that is not there is nobody's.

    Args:
        path: A file, or a folder with all that is in it; temporary files and locks don't count.
        runs: Whether folders in it are ours by their own ledgers, as in a run. In a model's folder they are copies
            that somebody put there.
    """
    if path.is_symlink() or not path.is_dir():
        entry = (read_ledger(path.parent) or {}).get(path.name)
        ours = entry is not None and _whole(path, entry)
        return [path] if path.is_symlink() or (path.exists() and not ours) else []
    listed = read_ledger(path) or {}
    folders = [each for each in path.iterdir() if runs and not each.is_symlink() and read_ledger(each) is not None]
    found = [each for folder in folders for each in strangers(folder, runs=True)]
    for file in _files(path):
        if not any(file.is_relative_to(folder) for folder in folders):
            entry = listed.get(str(file.relative_to(path)))
            if entry is None or not _whole(file, entry):
                found.append(file)
    return sorted(found)


def _whole(path: Path, entry: Entry) -> bool:
    with suppress(OSError):
        return not path.is_symlink() and path.is_file() and matches(path, entry)
    return False


def is_foreign(path: Path) -> bool:
    """Whether somebody else wrote a file, or filled a folder: it has no entry, or no ledger. An edited file is ours."""
    if path.is_symlink():
        return True
    if path.is_dir():
        return read_ledger(path) is None and any(path.iterdir())
    return path.exists() and path.name not in (read_ledger(path.parent) or {})


def refuse_foreign(paths: Iterable[Path], choice: str) -> None:
    """Refuse to start where a file or folder of somebody else would be removed or written over.

    Args:
        paths: What is about to be written.
        choice: What to choose instead, such as "another folder with --out".

    Raises:
        InputError: If Descend did not write one of them; it names all of these. Or if ``written.json`` beside them is
            none of Descend's.
    """
    paths = [*paths]
    foreign = [path for path in paths if is_foreign(path)]
    if foreign:
        names = ", ".join(path.name for path in foreign)
        raise InputError(
            f"{foreign[0].parent} holds {names}, which Descend may replace and did not write: no "
            f"{LEDGER_FILE} there lists {'it' if len(foreign) == 1 else 'them'}. Choose {choice}, or move "
            f"{'it' if len(foreign) == 1 else 'them'}."
        )
    for folder in {path.parent for path in paths}:
        _refuse_foreign_ledger(folder)


def free_name(path: Path) -> Path:
    """The path, or the first of ``NAME-2``, ``NAME-3`` … that does not exist."""
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in range(1, 10**6))
    return next(each for each in names if not each.exists() and not each.is_symlink())


def edited_name(path: Path) -> Path:
    """The first of ``NAME.edited-1.SUFFIX``, ``NAME.edited-2.SUFFIX`` … that does not exist."""
    names = (path.with_name(f"{path.stem}.edited-{number}{path.suffix}") for number in range(1, 10**6))
    return next(each for each in names if not each.exists() and not each.is_symlink())


def set_aside(path: Path) -> Path:
    """Rename a file that somebody edited, and say so; returns its new path."""
    aside = edited_name(path)
    path.rename(aside)
    logger.warning("%s was edited. It is now %s.", path, aside.name)
    return aside


# --- writing


def put(path: Path, write: Callable[[Path], Any], *, listed: bool = True, appended: bool = False) -> None:
    """Write a file in one piece, see `replacing`, and list it in its folder's ledger.

    A file of ours that somebody edited is renamed before.

    Args:
        path: The file.
        write: Writes the file that it is given.
        listed: False for a file that is never replaced, such as one that a person names by ``--out``.
        appended: Whether rows will be appended to the file.

    Raises:
        SaveError: If it can't be written; the file is as it was.
        InputError: If there is a file that Descend did not write.
    """

    @contextmanager
    def enter(part: Path) -> Iterator[None]:
        with _locked_ledger(path.parent) as files:
            refuse_foreign([path], "another place")
            known, entry = files.get(path.name), _entry(part)
            if path.exists() and known is not None:
                if _whole(path, known):
                    entry["before"] = _entry(path)
                else:
                    set_aside(path)
            files[path.name] = entry | ({"appended": True} if appended else {})
            _write_ledger(path.parent, files)  # before the file: a kill between the two leaves the one before
            yield

    try:
        with replacing(path, around=enter if listed else None) as part:
            write(part)
    except (OSError, SafetensorError) as error:
        raise SaveError.at(path, error) from error


def list_appended(path: Path) -> None:
    """List a file of rows in its folder's ledger, with its present beginning; call it before the first row.

    Raises:
        InputError: If there is such a file that Descend did not write.
    """
    refuse_foreign([path], "another folder")
    with _locked_ledger(path.parent) as files:
        if path.name in files and path.exists() and not _whole(path, files[path.name]):
            return  # it was edited: its entry stays, so that it is renamed before it is written anew
        nothing = {"size": 0, "sha256": hashlib.sha256().hexdigest()}
        files[path.name] = (_entry(path) if path.exists() else nothing) | {"appended": True}
        _write_ledger(path.parent, files)


def of_disk(error: Exception) -> bool:
    """Whether an error of a writer comes from the disk; torch's zip writer raises a plain `RuntimeError` for that."""
    return isinstance(error, OSError | SafetensorError) or (
        isinstance(error, RuntimeError) and ("PytorchStreamWriter" in str(error) or "inline_container" in str(error))
    )


def write_json(path: Path, content: Any, indent: int | None = 2, *, listed: bool = True) -> None:
    """Write JSON in one piece.

    A number that is not finite, as a diverged model has, becomes null. Without an ``indent`` it is one line.
    """
    text = json.dumps(to_jsonable_python(content, inf_nan_mode="null"), indent=indent) + "\n"
    put(path, lambda part: part.write_text(text, encoding="utf-8"), listed=listed)


@contextmanager
def atomic_folder(folder: Path, *, alone: bool = True) -> Iterator[Path]:
    """Write a folder in one piece: fill the folder that it yields; after the ``with`` block that is put in place.

    It gets a ledger. Of a folder of ours that is there already, files that somebody added stay, and those that somebody
    edited are renamed; a folder of somebody else is renamed as a whole. Both is said. An empty folder that a person
    made is filled where it is, file by file: it may be a link, the root of a disk, or where a shell stands.

    Args:
        folder: The folder.
        alone: Whether no other process writes beside it, as in a locked run folder; what a killed process left there is
            removed then.

    Raises:
        SaveError: If it can't be written; the folder is as it was.
    """
    try:
        if not alone:
            folder = Path(os.path.realpath(folder))  # nothing can be written beside `.`, or in the place of a link
            if folder.is_dir() and is_empty(folder):
                remove_parts(folder)  # which a killed process left
                with merged_folder(folder, empty=True) as part:
                    yield part
                return
        folder.parent.mkdir(parents=True, exist_ok=True)
        if alone:
            remove_parts(folder.parent, kind=ALONE)
        with private_folder(folder.parent, ALONE if alone else "") as private:
            part = private / folder.name
            part.mkdir()
            yield part
            for path in _files(part):
                open_to(path, part.stat().st_mode)
            seal(part)
            ours = not is_foreign(folder) and _carry(folder, part)
            for path in (*part.rglob("*"), part):
                if not path.is_symlink():
                    flush(path)
            _put_in_place(part, folder, ours)
            flush(folder.parent)
    except Exception as error:
        if not of_disk(error):
            raise
        raise SaveError.at(folder, error) from error


def _carry(folder: Path, part: Path) -> bool:
    """Give a new folder what somebody added to the old one or edited in it; returns whether all of it could be."""
    try:
        for path in strangers(folder):
            place = part / path.relative_to(folder)
            if place.exists() and place.name != CARD_FILE:
                place = edited_name(place)
                logger.warning("%s was edited. It is now %s.", path, place.name)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)  # both are there until the new folder is
    except OSError:  # such as a pipe, or a file in the place of a folder
        return False
    return True


def _put_in_place(part: Path, folder: Path, ours: bool) -> None:
    """Rename a new folder, and before it an old one of that name, which is removed if it is ours."""
    old = part.parent / "old"
    if folder.exists() or folder.is_symlink():
        if not ours:
            old = free_name(folder.with_name(f"kept-{folder.name}"))
            logger.warning("%s holds what Descend did not write. It is now %s.", folder, old.name)
        folder.rename(old)
    try:
        part.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise


@contextmanager
def merged_folder(folder: Path, *, empty: bool = False) -> Iterator[Path]:
    """Write files into a folder that may hold others: fill the folder that it yields, whose files are then put there.

    A file of that name that somebody else wrote or edited is renamed, and that is said; a card stays.

    Args:
        folder: The folder; it is made.
        empty: Whether it must be empty still: then it has all files or, if one can't be put there, none.

    Raises:
        SaveError: If it can't be written.
        InputError: If another process has filled the empty folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with private_folder(folder) as private:
        part = private / "part"
        part.mkdir()
        yield part
        os.utime(private)  # as others remove what nobody has written for long
        with _locked_ledger(folder) as files:
            refuse((empty and not is_empty(folder), f"{folder} was filled by another process. Choose another folder."))
            for path in sorted(each for each in part.rglob("*") if each.is_dir()):
                place = folder / path.relative_to(part)
                if place.is_symlink() or (place.exists() and not place.is_dir()):
                    set_aside(place)
            new = {str(path.relative_to(part)): path for path in _files(part)}
            for name, path in [*new.items()]:
                place, entry = folder / name, _entry(path)
                if place.exists() or place.is_symlink():
                    if name in files and _whole(place, files[name]):
                        entry["before"] = _entry(place)
                    elif name == CARD_FILE:
                        del new[name]
                        continue
                    else:
                        set_aside(place)
                files[name] = entry
            _write_ledger(folder, files)
            try:
                for name, path in new.items():
                    place = folder / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    open_to(path, part.stat().st_mode)
                    flush(path)
                    os.replace(path, place)
                for place in {folder, *((folder / name).parent for name in new)}:
                    flush(place)
            except OSError:
                if empty:
                    for path in folder.iterdir():
                        if not path.name.startswith((PART, LOCK_FILE)):
                            shutil.rmtree(path) if path.is_dir() else path.unlink()
                raise


# --- removing


def remove(path: Path) -> bool:
    """Remove a file or folder if Descend wrote it; returns whether it did.

    A file that somebody edited is renamed. A folder to which somebody added a file, or in which one was edited, stays.
    """
    if not path.exists() or is_foreign(path):
        return False
    if path.is_dir():
        if left := strangers(path):
            logger.warning("%s stays: %s in it is not what Descend wrote.", path, left[0].relative_to(path))
        else:
            shutil.rmtree(path, ignore_errors=True)
        return not left
    with _locked_ledger(path.parent) as files:
        entry = files.pop(path.name, None)
        if entry is None or not path.exists():  # another process removed it
            return False
        if _whole(path, entry):
            path.unlink()
        else:
            set_aside(path)
        _write_ledger(path.parent, files)
    return True


def remove_empty(folder: Path) -> None:
    """Remove a folder that holds nothing but an empty ledger."""
    if read_ledger(folder) == {} and [path.name for path in folder.iterdir()] == [LEDGER_FILE]:
        (folder / LEDGER_FILE).unlink()
        folder.rmdir()


def clear(folder: Path, choice: str) -> None:
    """Remove the folder of a run, if it is there and Descend wrote all of it.

    Args:
        folder: The folder.
        choice: As in `refuse_foreign`.

    Raises:
        InputError: If it holds a file of somebody else, or an edited one; it stays as it is.
    """
    refuse_strangers(folder, choice)
    shutil.rmtree(folder, ignore_errors=True)


def refuse_strangers(folder: Path, choice: str) -> None:
    """Refuse a folder of runs that holds a file of somebody else, or an edited one, at any depth.

    Raises:
        InputError: If it does.
    """
    names = [str(path.relative_to(folder)) for path in strangers(folder, runs=True)] if folder.is_dir() else []
    words = f"{folder} holds {', '.join(names[:3])}, which Descend did not write, or which was edited since"
    refuse((bool(names), f"{words}. Choose {choice}, or move {'it' if len(names) == 1 else 'them'}."))


def _files(folder: Path) -> list[Path]:
    """The files below a folder, but for its ledger, temporary ones and locks."""
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    inside = [path for path in files if not path.relative_to(folder).parts[0].startswith((PART, LOCK_FILE))]
    return sorted(path for path in inside if path != folder / LEDGER_FILE)
