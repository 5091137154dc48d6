"""The folders of checkpoints: what is whole by its ledger, the run's state without pickles, rotation."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from descend.errors import InputError
from descend.reading import PICKLES, read_json
from descend.results import ALONE, LEDGER_FILE, free_name, is_checkpoint, is_ours, matches, read_ledger
from descend.writing import private_folder

STATE_FILE = "descent_{}.json"
"""A rank's state of the run that Transformers does not save, such as the multipliers."""
WEIGHTS = ("model", "adapter_model", "pytorch_model_fsdp")
"""Prefixes of the files or folders that hold a model's weights."""
DAMAGED = "damaged-"
"""Prefix of a checkpoint that was damaged and renamed."""
STOPPED = "stopped-"
"""Prefix of the folder with the state before a step that failed; the number of that state's step follows."""

logger = logging.get_logger(__name__)


def damage(checkpoint: Path) -> str | None:
    """Describe what is wrong with a checkpoint of Descend; None if it matches its ledger."""
    listed = read_ledger(checkpoint)
    if listed is None:
        return f"its {LEDGER_FILE} can't be read"
    files = {str(path.relative_to(checkpoint)): path for path in _files(checkpoint)}
    for name in sorted(files.keys() - listed.keys()):
        if Path(name).suffix in PICKLES:
            return f"{Path(name).name} in it is a pickle that training did not write there"
    # The ledger must list the trainer's state and a model: an incomplete one proves nothing.
    for name in (TRAINER_STATE_NAME, *listed):
        if name not in files or name not in listed:
            return f"it has no {name[:60]}"
    if not any(Path(name).name.startswith(WEIGHTS) for name in listed):
        return "it has no model"
    try:
        for name, entry in listed.items():
            if not matches(files[name], entry):
                return f"{name} in it is not what was written"
    except OSError as error:
        return f"{Path(error.filename or checkpoint).name} in it can't be read: {error.strerror}"
    return None


def newest_whole(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """A run's newest undamaged checkpoint, or None; and each newer damaged one with a description of the damage.

    Other trainers' checkpoints are passed over.
    """
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(checkpoints(folder)):
        fault = damage(checkpoint)
        if fault is None:
            return checkpoint, damaged
        damaged[checkpoint] = fault
    return None, damaged


def rotate(folder: Path, limit: int | None, best: str | None) -> None:
    """Delete all but a run's newest checkpoints and its best one, as Transformers does, but each atomically.

    A checkpoint with files that Descend did not write stays, with a warning.

    Args:
        folder: The run's folder.
        limit: The number of checkpoints to keep, including the best; None for all.
        best: The best checkpoint, which is never deleted.
    """
    ours = checkpoints(folder)  # another trainer's are not counted
    newest = sorted(ours, key=lambda each: ((each / LEDGER_FILE).stat().st_mtime_ns, step_of(each)), reverse=True)
    if not newest or not limit or limit < 0:
        return
    stays = {newest[0]} | ({Path(best)} if best else set())
    others = [each for each in newest if each not in stays]
    for checkpoint in others[max(0, limit - len(stays)) :]:
        if not is_ours(checkpoint):
            logger.warning_once(
                "%s holds what Descend did not write. It stays, and save_total_limit passes over it.", checkpoint
            )
        else:
            with private_folder(folder, ALONE) as away:
                checkpoint.rename(away / checkpoint.name)


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints that Descend wrote in a folder, including damaged ones."""
    return [path for path in any_checkpoints(folder) if is_checkpoint(path)]


def any_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in a folder by step, those of other trainers too."""
    paths = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir() and step_of(path) >= 0]
    return sorted(paths, key=step_of)


def unusable(checkpoint: Path) -> str | None:
    """Why training can't be resumed from a path, and what to do; None if it can.

    Args:
        checkpoint: The path of a checkpoint, or of whatever a person takes for one.
    """
    inside = any_checkpoints(checkpoint)
    if not checkpoint.exists():
        there = any_checkpoints(checkpoint.parent)
        choice = f"Give {there[-1]}, the newest there." if there else "Give one that is there, or leave it out."
        return f"the checkpoint {checkpoint} does not exist. {choice}"
    if inside and not is_checkpoint(checkpoint):
        return f"{checkpoint} is a folder of checkpoints. Give one of them, such as {inside[-1]}."
    if not is_checkpoint(checkpoint):
        return (
            f"{checkpoint} is no checkpoint of Descend: it has no {LEDGER_FILE} of Descend, and no multipliers to "
            "resume with. If another trainer wrote it, load the model from it, and train into another folder without "
            "resume_from_checkpoint."
        )
    if fault := damage(checkpoint):
        return f"{checkpoint} is damaged: {fault}. Go on from another checkpoint."
    return None


def write_state(checkpoint: Path, rank: int, state: dict[str, Any]) -> None:
    """Write a rank's run state into a checkpoint, as JSON: numbers and lists, which lose nothing."""
    text = json.dumps(state, indent=1, default=Tensor.tolist) + "\n"
    (checkpoint / STATE_FILE.format(rank)).write_text(text, encoding="utf-8")


def read_state(checkpoint: Path, rank: int, ranks: int) -> dict[str, Any]:
    """Read what `write_state` wrote.

    Args:
        checkpoint: The checkpoint's folder.
        rank: This process's rank.
        ranks: The number of processes.

    Raises:
        InputError: If the checkpoint is that of another number of processes, or of another version.
    """
    file = checkpoint / STATE_FILE.format(rank)
    if not file.is_file():
        raise InputError(
            f"{checkpoint} has no {file.name}: fewer processes or Descend 0.1 saved it. Go on with as many, or with "
            "that version."
        )
    state = read_json(file)
    needed = {"dual", "since_log", "logged", "outlook", "processes"}
    if not isinstance(state, dict) or not state.keys() >= needed:
        raise InputError(f"{file} is not state that this version of Descend wrote. Go on from another checkpoint.")
    if state["processes"] != ranks:
        raise InputError(
            f"{checkpoint} is that of {state['processes']} processes, each with its own noise and losses; go on "
            f"with as many. Got {ranks}."
        )
    return state


def rename_damaged(checkpoint: Path, fault: str) -> None:
    """Rename a damaged checkpoint, and warn; it may be gone."""
    if not is_checkpoint(checkpoint):
        logger.warning("%s is gone.", checkpoint)
        return
    renamed = free_name(checkpoint.with_name(DAMAGED + checkpoint.name))
    checkpoint.rename(renamed)
    logger.warning("%s is damaged: %s. It is now %s and is not used.", checkpoint, fault, renamed.name)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name; −1 if there is none."""
    number = checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    return int(number) if number.isdecimal() else -1


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != LEDGER_FILE)
