"""Checkpoints: written whole or not at all, checked by their ledger, with the run's state without pickles, rotated."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy
from transformers.utils import logging

from descend.errors import InputError, SaveError
from descend.models import changed
from descend.reading import PICKLES, read_json
from descend.results import (
    ALONE,
    FEASIBLE_FOLDER,
    LEDGER_FILE,
    RECORDS_FILE,
    atomic_folder,
    free_name,
    is_checkpoint,
    is_ours,
    matches,
    of_disk,
    read_ledger,
    refuse_foreign,
)
from descend.training.config import DescentArguments
from descend.training.ranks import Ranks
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


def way_on(folder: Path, ranks: Ranks) -> str:
    """What the user can do after training diverged, as a sentence; all ranks must call this."""
    newest = ranks.from_main(lambda: newest_whole(folder)[0])
    goes_on = "there is no checkpoint to go on from" if newest is None else f"--resume goes on from {newest.name}"
    return f"Lower learning_rate or dual_lr and train into another folder; {goes_on}."


class Stateful(Protocol):
    """A part of a run with state of its own, as JSON content; tensors become lists."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`, or its JSON."""


class Checkpoints:
    """Writes a run's checkpoints, and reads in them the state that Transformers does not save.

    Args:
        args: The training arguments, with the run's folder.
        ranks: The processes of the run.
        parts: What has such a state; their entries have names of their own.
    """

    def __init__(self, args: DescentArguments, ranks: Ranks, parts: Sequence[Stateful]):
        self.args = args
        self.ranks = ranks
        self.parts = parts
        self.parent: Path | None = None
        """The temporary folder of the checkpoint that is being written; None otherwise."""
        self.unwritten: Exception | None = None
        """The I/O error with which this rank failed to write the model into a checkpoint."""
        self.start_clock()

    def start_clock(self, earlier: float = 0.0) -> None:
        """Count the seconds of training from now on, after those of ``earlier``."""
        self._began, self._earlier = time.monotonic(), earlier

    def stop_clock(self) -> None:
        """Count no more seconds."""
        self._began, self._earlier = math.inf, self.seconds

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before an interruption."""
        return self._earlier + max(time.monotonic() - self._began, 0.0)

    def write(
        self, folder: Path, state: TrainerState, transformers_part: Callable[[], None], flush: Callable[[], None]
    ) -> None:
        """Write a checkpoint with its ledger, atomically: all ranks write into a temporary folder that is renamed.

        Args:
            folder: The checkpoint's folder.
            state: The trainer's.
            transformers_part: Writes Transformers' part into a folder of its own name in `parent`.
            flush: Writes the records to the disk.

        Raises:
            SaveError: On all ranks, if one can't write its part.
        """
        writes, entered = self.args.should_save, [""]

        def enter() -> None:
            if writes:
                entered[0] = str(stack.enter_context(atomic_folder(folder)).parent)

        def write() -> None:
            self.unwritten = None
            with changed(self, parent=temporary):
                transformers_part()
            if state.best_model_checkpoint == str(part):
                state.best_model_checkpoint = str(folder)  # its path after the rename, on every rank
            if self.unwritten is not None:
                raise self.unwritten
            text = json.dumps(self._state(), indent=1, default=Tensor.tolist) + "\n"  # numbers lose nothing in JSON
            (part / STATE_FILE.format(self.args.process_index)).write_text(text, encoding="utf-8")

        def finish() -> None:
            state.save_to_json(str(part / TRAINER_STATE_NAME))
            flush()
            part.rename(temporary / folder.name)
            stack.close()

        with ExitStack() as stack:
            self._all_or_none(folder, enter)
            temporary = Path(self.ranks.broadcast(entered[0]))
            part = temporary / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"  # Transformers' name for it
            self._all_or_none(folder, write)
            self._all_or_none(folder, finish if writes else lambda: None)

    def _all_or_none(self, folder: Path, work: Callable[[], Any]) -> None:
        """Do this rank's part in writing a folder, and wait for the others; an I/O error is raised on all ranks."""
        errors = []
        try:
            work()
        except Exception as error:
            if not (isinstance(error, SaveError) or of_disk(error)):
                raise
            cause = error if isinstance(error, SaveError) else SaveError.at(folder, error)
            errors = [f"{self.ranks.prefix}{cause}"]
        if errors := gather_object(errors):
            raise SaveError(" ".join(errors))

    def _state(self) -> dict[str, Any]:
        """This rank's state of the run."""
        state: dict[str, Any] = {"seconds": self.seconds, "processes": self.ranks.number}
        for part in self.parts:
            state |= part.state_dict()
        return state

    def read(self, checkpoint: str) -> dict[str, Any]:
        """This rank's state in a checkpoint.

        Raises:
            InputError: If the checkpoint is that of another number of processes, or of another version.
        """
        file = Path(checkpoint) / STATE_FILE.format(self.args.process_index)
        if not file.is_file():
            raise InputError(
                f"{checkpoint} has no {file.name}: fewer processes or Descend 0.1 saved it. Go on with as many, or "
                "with that version."
            )
        state = read_json(file)
        needed = {"dual", "since_log", "logged", "outlook", "processes"}
        if not isinstance(state, dict) or not state.keys() >= needed:
            raise InputError(f"{file} is not state that this version of Descend wrote. Go on from another checkpoint.")
        if state["processes"] != self.ranks.number:
            raise InputError(
                f"{checkpoint} is that of {state['processes']} processes, each with its own noise and losses; go on "
                f"with as many. Got {self.ranks.number}."
            )
        return state

    def load(self, checkpoint: str) -> None:
        """Restore this rank's state of the run from a checkpoint."""
        state = self.read(checkpoint)
        for part in self.parts:
            part.load_state_dict(state)
        self.start_clock(state["seconds"])

    def newest(self) -> str | None:
        """The newest undamaged checkpoint of the run; newer damaged ones are reported and renamed."""

        def look() -> str | None:
            newest, damaged = newest_whole(self.args.folder)
            for checkpoint, fault in damaged.items():
                rename_damaged(checkpoint, fault)
            return None if newest is None else str(newest)

        return self.ranks.from_main(look)

    def chosen(self, resume: str | bool | None) -> str | None:
        """The checkpoint to resume from.

        Args:
            resume: Its path, or True for the newest undamaged one of the run.

        Raises:
            InputError: If it is damaged or another trainer's, or there is none.
        """
        checkpoint = resume or None
        if checkpoint is True:
            checkpoint = self.newest()
            others = self.ranks.from_main(lambda: any_checkpoints(self.args.folder))  # another trainer's: said below
            if checkpoint is None and not others:
                raise InputError(f"{self.args.folder} has no whole checkpoint to go on from.")
            checkpoint = checkpoint or str(others[-1])
        if checkpoint is not None and (fault := self.ranks.from_main(lambda: unusable(Path(checkpoint)))):
            raise InputError(fault)
        return checkpoint

    def rename_damaged_best(self, best: Path, instead: str) -> bool:
        """Rename the best checkpoint and warn, if it is damaged or missing; whether it is.

        Args:
            best: The checkpoint.
            instead: What is used instead, as a sentence.
        """

        def look() -> bool:
            fault = damage(best) if is_checkpoint(best) else "it is gone"
            if fault:
                rename_damaged(best, fault)
                logger.warning("%s was the best model so far. %s", best.name, instead)
            return fault is not None

        return self.ranks.from_main(look)

    def refuse_foreign(self, checkpoint: str | None, asks: bool, trains: bool) -> None:
        """Raise an error on all ranks if the folder holds files that this run would replace and Descend did not write.

        Args:
            checkpoint: The checkpoint that training resumes from; None for a run from the start.
            asks: Whether the run saves its best feasible model.
            trains: Whether checkpoints would be replaced too.
        """
        folder = self.args.folder

        def look() -> str | None:
            paths, step = [folder / RECORDS_FILE], -1
            if checkpoint is not None:
                step = json.loads((Path(checkpoint) / TRAINER_STATE_NAME).read_text())["global_step"]
            elif asks:
                paths.append(folder / FEASIBLE_FOLDER)
            if trains and self.args.save_strategy != SaveStrategy.NO:
                paths += [path for path in any_checkpoints(folder) if step_of(path) > step]
            try:
                refuse_foreign(paths, "another output_dir")
            except InputError as error:
                return str(error)
            return None

        if fault := self.ranks.from_main(look):
            raise InputError(fault)


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
