"""The folder of a run: what was asked, what was measured, in formats that anything can read."""

import fcntl
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from descend import reading
from descend.errors import InputError, SaveError

PART = ".part"
"""In a run's folder: where its own folders are written, before they are put in place."""

LOCK_FILE = ".lock"
MOST_HOLDER = 300
"""Characters of a lock's file: a process and its machine."""

logger = logging.getLogger(__name__)


@contextmanager
def locked(place: Path, name: str = LOCK_FILE, *, wait: bool = False) -> Iterator[None]:
    """Inside the ``with`` block no other process may write a run's folder, or a file; the lock dies with this process.

    Args:
        place: The folder, or the file.
        name: The lock's file in it: a lock of the same name is the same lock.
        wait: For its holder to let it go, however long that takes.

    Raises:
        InputError: If another process holds it, unless that is waited for.
    """
    path = place / name if place.is_dir() else place.with_name(place.name + name)
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                # A lock of the process alone: workers that it forks and that outlive it do not hold it.
                fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except (BlockingIOError, PermissionError):
                file.seek(0)
                holder = file.read(MOST_HOLDER).strip()
                raise InputError(
                    f"{place} is in use by process {holder}; wait for its end or stop it, or choose another place."
                ) from None
            except OSError as error:
                _tell_unlocked(path.parent, error.strerror)
            try:
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    continue  # its holder has removed it since it was opened
            except FileNotFoundError:
                continue
            with suppress(OSError):  # a full disk: the lock holds, and who holds it is not told
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), f"{os.getpid()} on {os.uname().nodename}\n".encode())
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


@cache
def _tell_unlocked(folder: Path, why: str) -> None:
    logger.warning("%s can't be locked (%s): see to it yourself that no other process writes there.", folder, why)


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """Write a folder in one piece: inside the ``with`` block what it gives, after it the folder as a whole.

    Raises:
        SaveError: If it can't be written; the folder is as it was.
    """
    part = folder.parent / PART / folder.name
    try:
        shutil.rmtree(part.parent, ignore_errors=True)  # what a kill has left
        part.mkdir(parents=True)
        yield part
        for path in (*part.rglob("*"), part):
            _flush(path)
        if folder.exists():
            folder.rename(old := part.parent / "old")
            try:
                part.rename(folder)
            except OSError:
                old.rename(folder)
                raise
        else:
            part.rename(folder)
        _flush(folder.parent)
    except Exception as error:
        if not of_disk(error):
            raise
        raise SaveError.at(folder, error) from error
    finally:
        shutil.rmtree(part.parent, ignore_errors=True)


def put(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file in one piece: a reader sees the old file or the new one, never half of it.

    Args:
        path: The file.
        write: Writes the file that it is given.

    Raises:
        SaveError: If it can't be written; the file is as it was.
    """
    part = path.with_name(f"{path.stem}{PART}{path.suffix}")
    try:
        write(part)
        _flush(part)
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink()
        raise SaveError.at(path, error) from error


def of_disk(error: Exception) -> bool:
    """Whether a library's error tells of a disk: torch's writer of zip files has no kind of its own for that."""
    return isinstance(error, OSError | SafetensorError) or (
        isinstance(error, RuntimeError) and ("PytorchStreamWriter" in str(error) or "inline_container" in str(error))
    )


def _flush(path: Path) -> None:
    """To the disk itself: else a power cut could leave the name without the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write JSON in one piece.

    A number that is not finite, as a diverged model has, becomes null.
    """
    text = json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"
    put(path, lambda part: part.write_text(text, encoding="utf-8"))


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_json(path: Path) -> Any:
    """Read a file that `write_json` wrote.

    Raises:
        InputError: If it is missing or not JSON.
    """
    if path.parent.is_file():
        raise InputError(f"{path} can't be read: {path.parent} is a file.")
    if not path.exists():
        raise InputError(f"expected a run folder with {path.name}; {path.parent} has none.")
    return reading.read_json(path)


class Records:
    """Append-only rows ``run, step, split, layer, noise, metric, value`` in a run's ``records.jsonl``.

    Args:
        path: The file; made with its first row.
        run: The run's name, the same in every row.
    """

    def __init__(self, path: Path, run: str):
        self.path, self.run = path, run
        self._written: set[tuple[int, str, str]] = set()  # of the last step

    def rows(
        self, values: Mapping[str, Iterable[float]], *, step: int, split: str, noise: float | None, first: int = 0
    ) -> None:
        """Append one row per metric and layer; a metric that has its rows at this step and split keeps them.

        Args:
            values: For each metric its values by layer.
            step: The training step.
            split: ``train``, ``validation`` or ``test``.
            noise: γ.
            first: The layer of each metric's first value.
        """
        if self._written and step > next(iter(self._written))[0]:
            self._written.clear()  # steps don't go back
        lines = []
        for metric, series in values.items():
            if (step, split, metric) in self._written:
                continue
            self._written.add((step, split, metric))
            for layer, value in enumerate(series, start=first):
                row = {
                    "run": self.run,
                    "step": step,
                    "split": split,
                    "layer": layer,
                    "noise": noise,
                    "metric": metric,
                    "value": _finite(float(value)),
                }
                lines.append(json.dumps(row) + "\n")
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            raise SaveError.at(self.path, error) from error

    def truncate_after(self, step: int) -> None:
        """Drop rows later than ``step``: what a resumed run will measure again, and a half-written last line."""
        self._written.clear()
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().split(b"\n"):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                continue
            if row["step"] <= step:
                kept.append(line + b"\n")
                if row["step"] == step:
                    self._written.add((step, row.get("split", ""), row.get("metric", "")))
        put(self.path, lambda part: part.write_bytes(b"".join(kept)))

    def flush(self) -> None:
        """Bring the rows to the disk itself, before a checkpoint that counts on them."""
        if self.path.exists():
            _flush(self.path)
