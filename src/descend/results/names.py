"""The names of a run's files and folders."""

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from descend.reading import is_inside
from descend.results.base import GROUPS_FILE, SUMMARY_FILE
from descend.results.config import MODELS
from descend.results.evaluated import DECISIONS_FILE
from descend.results.folder import ELSEWHERE, LEDGER_FILE, remove, remove_empty

DATABASE_FILE = "sweep.db"
DUAL_FILE = "dual.safetensors"
FEASIBLE_FOLDER = "best_feasible"
FRAMES_FILE = "frames.npz"
PAGE_FILE = "report.html"

RESULTS = (SUMMARY_FILE, GROUPS_FILE, DECISIONS_FILE, FRAMES_FILE, PAGE_FILE)
"""What an evaluation writes."""


def forget_results(folder: Path) -> bool:
    """Remove a run's evaluations, on other data too, and their pages; returns whether there was one."""
    places = [folder, *(each for each in folder.glob(f"{ELSEWHERE}*") if not each.is_symlink())]
    removed = [remove(place / name) for place in places for name in RESULTS]
    for place in places[1:]:
        with suppress(OSError):  # it holds something else, too
            remove_empty(place)
    return any(removed)


def forget_models(run: Path, root: Path, keep: Collection[str] = ()) -> None:
    """Remove a run's models and checkpoints; a copy of another name stays.

    Args:
        run: The run's folder.
        root: A folder above it; nothing is removed that a link leads out of that.
        keep: Names of models that stay.
    """
    for path in run.glob("*"):
        weights = path.name in MODELS or re.fullmatch(r"(checkpoint|stopped)-\d+", path.name)
        if weights and path.name not in keep and is_inside(root, path):
            remove(path)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint of Descend, of any name; it may be damaged, or hold other files too."""
    return (path / LEDGER_FILE).is_file() and any(path.glob("descent_*"))
