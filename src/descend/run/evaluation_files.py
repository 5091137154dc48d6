"""Where an evaluation writes."""

import os
from pathlib import Path

from descend.records.schema import ELSEWHERE


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
