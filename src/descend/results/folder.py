"""Write and lock the files of a run: each file is there as a whole or not at all."""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout
from pydantic_core import to_jsonable_python
from safetensors import SafetensorError

from descend.errors import InputError, SaveError, refuse

PART = ".descend-part"
"""Where files and folders are written before they are put in place: a folder, or the beginning of a file's name."""

STALE = 3600
"""Seconds after which such a file is no longer being written."""

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""What disks answer on which a file can't be locked."""

LOCK_FILE = ".descend-lock"


@contextmanager
def locked(place: Path, name: str = LOCK_FILE, *, wait: bool = False) -> Iterator[None]:
    """Lock a run's folder, or a file, against other processes for the length of the ``with`` block.

    The lock ends with this process, however it ends; on a disk that locks no files a file stands for it, which a killed
    process leaves behind. Processes forked from it, such as data loader workers, do not hold it. It can't be taken
    twice in one process.

    Args:
        place: The folder, or the file.
        name: The lock file's name in it: two locks of one name exclude each other.
        wait: Wait as long as another process holds the lock.

    Raises:
        InputError: If another process holds the lock, unless ``wait``.
    """
    path = place / name if place.is_dir() else place.with_name(place.name + name)
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
    for left in place.glob(f"{PART}-*"):  # of a process that was killed
        if left.is_file() and time.time() - left.stat().st_mtime > STALE:
            left.unlink(missing_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows keeps an open file
            path.unlink()
        lock.release()


@contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Lock a file that does not exist yet for the length of the ``with`` block, which writes it; its folder is made.

    Raises:
        InputError: If it exists, or another process writes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        refuse((path.exists(), f"{path} exists; choose another with --out."))
        yield


def refuse_full(folder: Path, choice: str = "another with --out") -> None:
    """Refuse a folder that exists and is not empty.

    Args:
        folder: The folder to write.
        choice: What to choose instead.
    """
    refuse(
        (
            folder.exists() and (not folder.is_dir() or any(folder.iterdir())),
            f"{folder} must be a new or an empty folder; it is not. Choose {choice}.",
        )
    )


def put(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file in one piece: a reader sees the old file or the new one, never half of it, whoever else writes it.

    Args:
        path: The file.
        write: Writes the file that it is given.

    Raises:
        SaveError: If it can't be written; the file is as it was.
    """
    part = path.with_name(f"{PART}-{os.getpid()}-{path.name}")
    try:
        part.touch()
        usual = part.stat().st_mode
        write(part)
        open_to(part, usual)
        flush(part)
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink()
        raise SaveError.at(path, error) from error


def open_to(path: Path, usual: int) -> None:
    """Let those read and write a file who may do so with others by the umask: safetensors writes for the user alone.

    Args:
        path: The file.
        usual: The mode of a file or folder that the umask made.
    """
    path.chmod(path.stat().st_mode | usual & 0o666)


def of_disk(error: Exception) -> bool:
    """Whether an error of a writer comes from the disk; torch's zip writer raises a plain `RuntimeError` for that."""
    return isinstance(error, OSError | SafetensorError) or (
        isinstance(error, RuntimeError) and ("PytorchStreamWriter" in str(error) or "inline_container" in str(error))
    )


def flush(path: Path) -> None:
    """Bring a file or folder to the disk itself: otherwise a power cut could leave the name without the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Write JSON in one piece.

    A number that is not finite, as a diverged model has, becomes null. Without an ``indent`` it is one line.
    """
    text = json.dumps(to_jsonable_python(content, inf_nan_mode="null"), indent=indent) + "\n"
    put(path, lambda part: part.write_text(text, encoding="utf-8"))
