"""The names of a run's files and folders."""

from contextlib import suppress
from pathlib import Path

from descend.results.base import GROUPS_FILE, SUMMARY_FILE
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


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint of Descend, of any name; it may be damaged, or hold other files too."""
    return (path / LEDGER_FILE).is_file() and any(path.glob("descent_*"))
