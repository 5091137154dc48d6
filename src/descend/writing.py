"""Write and lock files: each is there as a whole or not at all.

Every file of Descend is written by one of these. A file is begun in a folder that this process alone can enter and
whose name nobody can guess, so no link that lies in wait is followed; then it is flushed and renamed.
"""

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from descend.errors import InputError, refuse

PART = ".descend-part"
"""The beginning of the names of temporary folders."""

LOCK_FILE = ".descend-lock"

STALE = 3600
"""Seconds after which a temporary folder is no longer being written."""

Around = Callable[[Path], AbstractContextManager[None]]

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""What disks answer on which a file can't be locked."""


@contextmanager
def locked(place: Path, name: str = LOCK_FILE, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder, or a file, against other processes for the length of the ``with`` block.

    The lock ends with this process, however it ends; on a disk that locks no files a file stands for it, which a killed
    process leaves behind. Processes forked from it, such as data loader workers, do not hold it. It can't be taken
    twice in one process.

    Args:
        place: The folder, or the file.
        name: The lock file's name in it: two locks of one name exclude each other.
        wait: Wait as long as another process holds the lock.

    Raises:
        InputError: If another process holds the lock, unless ``wait``; or if a link lies in the lock's place.
    """
    path = place / name if place.is_dir() else place.with_name(place.name + name)
    refuse_link(path)
    lock: BaseFileLock = FileLock(path)
    try:
        try:
            lock.acquire(blocking=wait)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            lock = SoftFileLock(f"{path}-made")  # a network disk without a lock server; `path` was made in vain
            lock.acquire(blocking=wait)
    except Timeout:
        advice = f" If none is at work there, delete {lock.lock_file}." if isinstance(lock, SoftFileLock) else ""
        raise InputError(
            f"{place} is in use by another process; wait for its end or stop it, or choose another place.{advice}"
        ) from None
    except OSError as error:  # the folder can't be written
        error.filename = error.filename or str(path)
        raise
    if place.is_dir():
        remove_parts(place, STALE)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows keeps an open file
            path.unlink()
        lock.release()


def remove_parts(folder: Path, age: float = 0, kind: str = "") -> None:
    """Remove temporary folders that killed processes left; a link of such a name stays.

    Args:
        folder: The folder that they lie in.
        age: Only those that nobody has written for so many seconds.
        kind: Only those that `private_folder` made with this kind.
    """
    for left in folder.glob(f"{PART}-{kind}*"):
        with suppress(OSError):
            status = left.lstat()
            if stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime >= age:
                shutil.rmtree(left, ignore_errors=True)


def refuse_link(path: Path) -> None:
    """Refuse to write through a link.

    Raises:
        InputError: If there is one.
    """
    refuse((path.is_symlink(), f"{path} is a link, through which nothing is written. Remove it."))


@contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Lock a file that does not exist yet for the length of the ``with`` block, which writes it; its folder is made.

    Raises:
        InputError: If it exists, or another process writes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        refuse((path.exists() or path.is_symlink(), f"{path} exists; choose another with --out."))
        yield


def refuse_full(folder: Path, choice: str = "another with --out") -> None:
    """Refuse a folder that exists and is not empty.

    Args:
        folder: The folder to write.
        choice: What to choose instead.
    """
    refuse(
        (
            folder.exists() and (not folder.is_dir() or not is_empty(folder)),
            f"{folder} must be a new or an empty folder; it is not. Choose {choice}.",
        )
    )


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but locks and temporary folders, of a process at work or of a killed one."""
    return all(each.name.startswith((PART, LOCK_FILE)) for each in folder.iterdir())


@contextmanager
def private_folder(parent: Path, kind: str = "") -> Iterator[Path]:
    """A new folder that only this user can enter, with a random name; it is removed after the ``with`` block.

    Args:
        parent: The folder to make it in.
        kind: A part of its name, by which `remove_parts` knows it.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PART}-{kind}", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(path: Path, kind: str = "", around: Around | None = None) -> Iterator[Path]:
    """Write a file in one piece: a reader sees the old file or the new one, never half of it, whoever else writes it.

    Args:
        path: The file. A link in its place is replaced, and not followed.
        kind: As in `private_folder`.
        around: Makes of the whole new file a context, inside which it is renamed.

    Yields:
        The empty file that the ``with`` block writes; after it that is flushed and renamed.
    """
    with private_folder(path.parent, kind) as folder:
        part = folder / path.name
        part.touch(exist_ok=False)
        usual = part.stat().st_mode
        yield part
        open_to(part, usual)
        flush(part)
        with nullcontext() if around is None else around(part):
            os.replace(part, path)


@contextmanager
def appending(path: Path) -> Iterator[TextIO]:
    """Open a text file to append to it, made if it is missing; a link is an error."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    refuse_link(path)
    with open(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        yield file


def open_to(path: Path, usual: int) -> None:
    """Let those read and write a file who may do so with others by the umask: safetensors writes for the user alone.

    Args:
        path: The file.
        usual: The mode of a file or folder that the umask made.
    """
    path.chmod(path.stat().st_mode | usual & 0o666)


def flush(path: Path) -> None:
    """Bring a file or folder to the disk itself: otherwise a power cut could leave the name without the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
