"""Checkpoints with a manifest of hashes, and run state without pickles."""

import hashlib
import json
import logging
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, contiguous_format
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from descend.errors import InputError, reason
from descend.reading import PICKLES, parse_json, read_json
from descend.results import PART
from descend.results.ownership import MANIFEST_FILE, is_checkpoint, written_by_descend

WEIGHTS = ("model", "adapter_model", "pytorch_model_fsdp")
"""Prefixes of the files or folders that hold a model's weights."""
DAMAGED = "damaged-"
"""Prefix of a checkpoint that was damaged and renamed."""
STOPPED = "stopped-"
"""Prefix of the folder with the state before a step that failed; the number of that state's step follows."""

logger = logging.getLogger(__name__)


def seal(checkpoint: Path) -> None:
    """Write the manifest: the SHA-256 of each file."""
    digests = {str(path.relative_to(checkpoint)): _digest(path) for path in _files(checkpoint)}
    (checkpoint / MANIFEST_FILE).write_text(json.dumps({"sha256": digests}, indent=2) + "\n", encoding="utf-8")


def damage(checkpoint: Path) -> str | None:
    """Describe what is wrong with a checkpoint of Descend; None if it matches its manifest."""
    try:
        manifest = read_json(checkpoint / MANIFEST_FILE)
        digests = manifest["sha256"] if isinstance(manifest, dict) else None
    except (InputError, KeyError):
        digests = None
    if not isinstance(digests, dict):
        return f"its {MANIFEST_FILE} can't be read"
    files = {str(path.relative_to(checkpoint)): path for path in _files(checkpoint)}
    for name in sorted(files.keys() - digests.keys()):
        if Path(name).suffix in PICKLES:
            return f"{Path(name).name} in it is a pickle that training did not write there"
    # The manifest must list the trainer's state and a model: an incomplete one proves nothing.
    for name in (TRAINER_STATE_NAME, *digests):
        if name not in files or name not in digests:
            return f"it has no {name[:60]}"
    if not any(Path(name).name.startswith(WEIGHTS) for name in digests):
        return "it has no model"
    try:
        for name, digest in digests.items():
            if _digest(files[name]) != digest:
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
    newest = sorted(checkpoints(folder), key=_sealed, reverse=True)  # another trainer's are not counted
    if not newest or not limit or limit < 0:
        return
    stays = {newest[0]} | ({Path(best)} if best else set())
    stays |= set([each for each in newest if each not in stays][: max(0, limit - len(stays))])
    (folder / PART).mkdir(exist_ok=True)
    for checkpoint in newest:
        if checkpoint in stays:
            continue
        if not written_by_descend(checkpoint):
            _warn_kept(checkpoint)
        else:
            shutil.rmtree(checkpoint.rename(folder / PART / checkpoint.name), ignore_errors=True)
    shutil.rmtree(folder / PART, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints that Descend wrote in a folder, including damaged ones."""
    return [path for path in any_checkpoints(folder) if is_checkpoint(path)]


def any_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in a folder by step, those of other trainers too."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir() and step_of(path) >= 0]
    return sorted(found, key=step_of)


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
            f"{checkpoint} is no checkpoint of Descend: it has no {MANIFEST_FILE} of Descend, and no multipliers to "
            "resume with. "
            "If another trainer wrote it, load the model from it, and train into another folder without "
            "resume_from_checkpoint."
        )
    if fault := damage(checkpoint):
        return f"{checkpoint} is damaged: {fault}. Go on from another checkpoint."
    return None


def save_state(path: Path, state: Any) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers and strings.

    Tensors are stored as safetensors, all else as JSON in the file's header.
    """
    tensors: dict[str, Tensor] = {}
    save_file(tensors, path, {"state": json.dumps(_take_out(state, tensors))})


def load_state(path: Path) -> Any:
    """Read a file of `save_state`.

    Raises:
        InputError: If the file has another format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return _put_back(
                parse_json(file.metadata()["state"]), {name: file.get_tensor(name) for name in file.offset_keys()}
            )
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not state that training wrote: {reason(error)}.") from None


def _take_out(state: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(state, Tensor):
        name = str(len(tensors))
        tensors[name] = state.clone(memory_format=contiguous_format)
        return {"tensor": name}
    if isinstance(state, dict):  # as a list of pairs, because a key may be a number
        return {"dict": [[key, _take_out(value, tensors)] for key, value in state.items()]}
    if isinstance(state, tuple):
        return {"tuple": [_take_out(value, tensors) for value in state]}
    return [_take_out(value, tensors) for value in state] if isinstance(state, list) else state


def _put_back(state: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(state, list):
        return [_put_back(value, tensors) for value in state]
    if not isinstance(state, dict):
        return state
    ((kind, content),) = state.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _put_back(value, tensors) for key, value in content}
    return tuple(_put_back(value, tensors) for value in content)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name; −1 if there is none."""
    number = checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    return int(number) if number.isdecimal() else -1


@cache
def _warn_kept(checkpoint: Path) -> None:
    """Warn once of a checkpoint that is not deleted."""
    logger.warning("%s holds what Descend did not write. It stays, and save_total_limit passes over it.", checkpoint)


def _sealed(checkpoint: Path) -> tuple[int, int]:
    """Sort key: when a checkpoint was written, then its step."""
    return (checkpoint / MANIFEST_FILE).stat().st_mtime_ns, step_of(checkpoint)


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
