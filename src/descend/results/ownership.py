"""Which files and folders Descend wrote. It removes and replaces no others.

A file is recognised by its content: the schema of a JSON file, the arrays of an archive, a mark in a page. Files of
older versions have the same schemas, and are recognised too.
"""

import json
import logging
import shutil
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open

from descend import reading
from descend.errors import InputError, SaveError
from descend.results.base import CONFIG_FILE, ELSEWHERE, GROUPS_FILE, RECORDS_FILE, SUMMARY_FILE, ByLevel, Part
from descend.results.card import CARD_FILE, edited_card, has_mark
from descend.results.config import CERTIFIED_FILE, CertifiedExit, RunConfig
from descend.results.evaluated import DECISIONS_FILE, Decisions, Groups
from descend.results.folder import of_disk
from descend.results.records import Record
from descend.results.summary import Provenance
from descend.results.sweeps import SWEEP_FILE, SweepFile
from descend.writing import LOCK_FILE, PART, flush, open_to, private_folder, remove_parts

DATABASE_FILE = "sweep.db"
DUAL_FILE = "dual.safetensors"
FEASIBLE_FOLDER = "best_feasible"
FRAMES_FILE = "frames.npz"
MODEL_FOLDER = "model"
MANIFEST_FILE = "manifest.json"
"""In a checkpoint: the SHA-256 of each file. Other trainers write none."""
PAGE_FILE = "report.html"

RESULTS = (SUMMARY_FILE, GROUPS_FILE, DECISIONS_FILE, FRAMES_FILE, PAGE_FILE)
"""What an evaluation writes."""

GENERATOR = b'<meta name="generator" content="Descend">'
"""The mark in the head of a page."""

_OLD_PAGES = (
    b"content=\"default-src 'none'; img-src data: blob:; script-src 'unsafe-inline'; style-src 'unsafe-inline'\"",
    b"<title>Descend: completions</title>",
)
"""What the heads of all pages have that were written before `GENERATOR`."""

ALONE = "folder-"
"""The kind of temporary folders that one process at a time makes in a folder, such as those of checkpoints."""

_HEAD = 2000
"""Bytes of a page that hold its mark."""


class _Measured(Provenance):
    """What the summaries of all versions have."""

    metric: str
    noise: list[float]
    layer_losses: ByLevel


class _Compared(Part):
    """What the comparisons of all versions have."""

    runs: list[_Measured]
    folders: list[str]


_SCHEMAS: dict[str, Any] = {
    CONFIG_FILE: RunConfig,
    SUMMARY_FILE: _Measured | _Compared,  # older versions measured less
    GROUPS_FILE: Groups,
    DECISIONS_FILE: Decisions,
    SWEEP_FILE: SweepFile,
    CERTIFIED_FILE: CertifiedExit,
}
"""JSON file → the type of its content."""

_TABLES = {"studies", "version_info", "alembic_version"}
"""Tables of Optuna's databases."""

_UNREADABLE: tuple[type[Exception], ...] = (OSError, ValueError, OverflowError, RecursionError)
_UNREADABLE += (SafetensorError, zipfile.BadZipFile, sqlite3.Error)
"""Errors of readers, which show that a file is none of Descend's."""

logger = logging.getLogger(__name__)


def written_by_descend(path: Path) -> bool:
    """Whether Descend wrote a file or folder, by its content; an empty one is nobody's loss.

    Args:
        path: A file of a run, a comparison or a sweep, or a page of any name; ``model``, ``best_feasible`` or
            a checkpoint.
    """
    try:
        if path.is_dir():
            return not any(path.iterdir()) or _is_our_folder(path)
        return path.is_file() and (path.stat().st_size == 0 or _is_our_file(path))
    except _UNREADABLE:
        return False


def refuse_foreign(paths: Iterable[Path], choice: str) -> None:
    """Refuse to start where a file or folder of somebody else would be removed or written over.

    Args:
        paths: What is about to be written.
        choice: What to choose instead, such as "another folder with --out".

    Raises:
        InputError: If Descend did not write one of them; it names all of these.
    """
    foreign = [path for path in paths if path.exists() and not written_by_descend(path)]
    if foreign:
        names = [name for path in foreign for name in (_added_to(path)[:3] or [path.name])]
        raise InputError(
            f"{foreign[0].parent} holds {', '.join(names)}, which Descend may replace and did not write, or can't read "
            f"any more. Choose {choice}, or move {'it' if len(names) == 1 else 'them'}."
        )


def clear(folder: Path, choice: str) -> None:
    """Remove the folder of a run, if it is there and Descend wrote all of it.

    Args:
        folder: The folder.
        choice: As in `refuse_foreign`.

    Raises:
        InputError: If it holds a file of somebody else; it stays as it is.
    """
    if folder.is_dir():
        refuse_foreign(sorted(folder.iterdir()), choice)
        shutil.rmtree(folder)


def remove(path: Path) -> bool:
    """Remove a file or folder if Descend wrote it; returns whether it did."""
    if not path.exists() or not written_by_descend(path):
        return False
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return True


def forget_results(folder: Path) -> bool:
    """Remove a run's evaluations, on other data too, and their pages; returns whether there was one."""
    places = [folder, *folder.glob(f"{ELSEWHERE}*")]
    removed = [remove(place / name) for place in places for name in RESULTS]
    for place in places[1:]:
        with suppress(OSError):  # it holds something else, too
            place.rmdir()
    return any(removed)


def free_name(path: Path) -> Path:
    """The path, or the first of ``NAME-2``, ``NAME-3`` … that does not exist."""
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in range(1, 10**6))
    return next(each for each in names if not each.exists())


@contextmanager
def atomic_folder(folder: Path, *, alone: bool = True) -> Iterator[Path]:
    """Write a folder in one piece: fill the folder that it yields; after the ``with`` block that is put in place.

    A folder that is there already is replaced if Descend wrote it; else it is renamed, with a warning.

    Args:
        folder: The folder.
        alone: Whether no other process writes beside it, as in a locked run folder; what a killed process left there is
            removed then.

    Raises:
        SaveError: If it can't be written; the folder is as it was.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if alone:
            remove_parts(folder.parent, kind=ALONE)
        with private_folder(folder.parent, ALONE if alone else "") as private:
            part = private / folder.name
            part.mkdir()
            yield part
            for path in (*part.rglob("*"), part):
                if path.is_file():
                    open_to(path, part.stat().st_mode)
                flush(path)
            _put_in_place(part, folder)
            flush(folder.parent)
    except Exception as error:
        if not of_disk(error):
            raise
        raise SaveError.at(folder, error) from error


def _put_in_place(part: Path, folder: Path) -> None:
    """Rename a new folder, and before it an old one of that name."""
    old = part.parent / "old"
    if folder.exists():
        if not written_by_descend(folder):
            old = free_name(folder.with_name(f"kept-{folder.name}"))
            logger.warning("%s holds what Descend did not write. It is now %s.", folder, old.name)
        folder.rename(old)
    try:
        part.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint of Descend, of any name; it may be damaged, or hold other files too."""
    return digests(path) is not None or ((path / MANIFEST_FILE).is_file() and any(path.glob("descent_*")))


def digests(checkpoint: Path) -> dict[str, Any] | None:
    """File → SHA-256 in a checkpoint's manifest; None without a manifest of ours, or if it can't be read."""
    try:
        content = reading.read_json(checkpoint / MANIFEST_FILE)
    except InputError:
        return None
    listed = content.get("sha256") if isinstance(content, dict) else None
    return listed if isinstance(listed, dict) else None


def _is_our_folder(path: Path) -> bool:
    """Whether Descend wrote a folder that is not empty."""
    if path.name.startswith(PART):
        return True
    if path.name.startswith(ELSEWHERE):
        return all(map(written_by_descend, path.iterdir()))
    if path.name == FEASIBLE_FOLDER:
        ours = written_by_descend(path / DUAL_FILE) and edited_card(path) is None
    elif path.name == MODEL_FOLDER:  # a user may have edited its card
        ours = has_mark(path) or written_by_descend(path.parent / DUAL_FILE)
    else:  # a damaged manifest says of no file that it is ours
        ours = digests(path) is not None
    return ours and not _added_to(path)


def _added_to(path: Path) -> list[str]:
    """The files that somebody added to a folder of a model, where Descend listed its own; older runs did not.

    A file that a killed process had begun, such as a card, is nobody's.
    """
    listed = None
    with suppress(*_UNREADABLE):
        if path.name in (FEASIBLE_FOLDER, MODEL_FOLDER):
            dual = (path if path.name == FEASIBLE_FOLDER else path.parent) / DUAL_FILE
            with safe_open(dual, framework="np") as file:
                names = (file.metadata() or {}).get("files")
            listed = [*json.loads(names), DUAL_FILE, CARD_FILE, CERTIFIED_FILE] if names else None
        elif (digested := digests(path)) is not None:
            listed = [*digested, MANIFEST_FILE]
    if listed is None:
        return []
    files = (each.relative_to(path) for each in path.rglob("*") if not each.is_dir())
    added = {str(each) for each in files if not each.parts[0].startswith(PART)}.difference(listed)
    return [f"{path.name}/{name}" for name in sorted(added)]


def _is_our_file(path: Path) -> bool:
    """Whether a file that is not empty holds what Descend writes under its name; readers may raise `_UNREADABLE`."""
    name = path.name
    if path.suffix in (".html", ".htm"):
        with path.open("rb") as page:
            head = page.read(_HEAD)
        return any(mark in head for mark in (GENERATOR, *_OLD_PAGES))
    if name in _SCHEMAS:
        TypeAdapter(_SCHEMAS[name]).validate_python(reading.read_json(path))
        return True
    if name == RECORDS_FILE:
        first = next(iter(reading.lines(path)))
        if first.endswith("\n"):
            Record.model_validate(reading.parse_json(first))
        return first.endswith("\n") or first.startswith('{"run": ')  # a kill may have cut it off
    if name == DATABASE_FILE:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = {table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return not tables or not tables.isdisjoint(_TABLES)
    if name == DUAL_FILE:
        with safe_open(path, framework="np") as tensors:
            return {"multipliers", "slack"}.issubset(tensors.keys())
    if name == FRAMES_FILE:
        with zipfile.ZipFile(path) as archive:
            return {"clean.npy", "noisy.npy", "reconstruction.npy"}.issubset(archive.namelist())
    return name.startswith((PART, LOCK_FILE))
