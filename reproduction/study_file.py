"""Read ``study.json``: which figures and tables a study was asked for, and at which scale."""

from collections.abc import Iterable
from pathlib import Path

from descend.errors import InputError
from reproduction.grid import cells, names
from reproduction.records import STUDY_FILE, StudyFile, read_study
from reproduction.scales import SCALES

FIGURES_FOLDER = "figures"
"""In a study's folder: the folder of its figures and tables."""


def read_request(out: Path) -> StudyFile | None:
    """The content of a folder's ``study.json``; None if it has none.

    Raises:
        InputError: If it is damaged, or names a scale, figure or table that does not exist.
    """
    study = read_study(out)
    if study is None:
        return None
    path = out / STUDY_FILE
    if study.scale not in ("", *SCALES):
        raise InputError(f"{path} must have a scale, one of {', '.join(SCALES)}; got {study.scale!r:.40}.")
    try:
        names(study.what)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return study


def scale_of(known: Iterable[str]) -> str:
    """The scale whose grid contains most of these cells, by name; empty if none contains any."""
    known = set(known)
    shared = {scale: len(known & {cell.name for cell in cells(names(["all"]), scale)}) for scale in SCALES}
    most = max(shared, key=lambda scale: shared[scale])
    return most if shared[most] else ""
