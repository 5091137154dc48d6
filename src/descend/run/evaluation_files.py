"""Where an evaluation writes in a run's folder, and what it writes."""

import os
from contextlib import suppress
from pathlib import Path

from descend.records.schema import DECISIONS_FILE, ELSEWHERE, GROUPS_FILE, SUMMARY_FILE, TRAIN_LOSSES_FILE

FRAMES_FILE = "frames.npz"
PAGE_FILE = "report.html"
RESULTS = (SUMMARY_FILE, GROUPS_FILE, DECISIONS_FILE, FRAMES_FILE, PAGE_FILE, TRAIN_LOSSES_FILE)
"""What an evaluation writes."""


def results_folder(folder: Path, data: str | None = None, task: str | None = None) -> Path:
    """Where an evaluation writes: the run's folder, or for other data than its own a folder in it.

    Args:
        folder: The run; or with ``task`` a model of Transformers, which has no data of its own.
        data: Other data, as `descend.run.evaluate` takes them.
        task: As `descend.run.evaluate` takes it.
    """
    if data is None or task is not None:
        return folder
    return folder / f"{ELSEWHERE}{Path(os.path.abspath(Path(data).expanduser())).name}"


def forget_results(folder: Path) -> bool:
    """Remove a run's evaluations, on other data too, and their pages; returns whether there was one."""
    places = [folder, *folder.glob(f"{ELSEWHERE}*")]
    found = [place / name for place in places for name in RESULTS if (place / name).is_file()]
    for file in found:
        file.unlink()
    for place in places[1:]:
        with suppress(OSError):  # it holds something else, too
            place.rmdir()
    return bool(found)
