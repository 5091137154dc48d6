"""Writing checkpoints atomically, and resuming a run from them."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from descend.core import Outlook, PrimalDual
from descend.errors import InputError, NonFiniteLossError, SaveError
from descend.models.modules import save_module, tied_names
from descend.records import PART, aside, of_disk
from descend.records.rows import Records
from descend.training.checkpoints import DAMAGED, damage, load_state, newest_whole, rotate, save_state, seal, step_of
from descend.training.config import DescentConfig
from descend.training.hf_hooks import TrainerHooks
from descend.training.state import StepSums

logger = logging.getLogger(__name__)

STATE_FILE = "descent_{}.safetensors"  # one for each rank: its noise and its losses since the last dual step


class Resumable(TrainerHooks):
    """A trainer whose checkpoints hold the full state of a run: model, multipliers, noise and sums."""

    args: DescentConfig
    dual: PrimalDual
    records: Records
    sums: StepSums
    _outlook: Outlook
    _best: float
    _best_meets: bool
    _began: float
    _earlier: float
    temperature: float
    _unwritten: Exception | None

    def calibrate(self) -> None:
        """Called at the end of training."""
        raise NotImplementedError

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, *, calibrate: bool = True, **kwargs: Any
    ) -> Any:
        """Train, as Transformers' Trainer does.

        A second call without a checkpoint is a new run in the same folder, from the model as it is: records,
        ``best_feasible`` and the choice of the best model start over. As the optimizer keeps its state, the
        multipliers keep theirs, and there is no second warm-up.

        Args:
            resume_from_checkpoint: A checkpoint to resume from, or True for the newest undamaged one.
            calibrate: Whether to call `calibrate` at the end.
            **kwargs: Further arguments of Transformers' ``train``.

        Raises:
            InputError: If the checkpoint is damaged, or there is none.
            SaveError: If a checkpoint or the records can't be written; earlier checkpoints are not affected.
        """
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = self.last_checkpoint()
            if checkpoint is None:
                raise InputError(f"{self.args.folder} has no whole checkpoint to go on from.")
        elif checkpoint is not None:
            self._check(checkpoint)
        try:
            output = super().train(checkpoint, **kwargs)
        except UnpicklingError as error:
            raise InputError(f"{checkpoint} holds a pickle that is more than tensors; it is not loaded.") from error
        if self.args.should_save:  # a run killed between saving and rotating has one checkpoint too many
            rotate(self.args.folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        if calibrate:
            self.calibrate()
        return output

    def last_checkpoint(self) -> str | None:
        """The newest undamaged checkpoint of the run; newer damaged ones are reported and renamed."""

        def look() -> Path | None:
            newest, damaged = newest_whole(self.args.folder)
            for checkpoint, fault in damaged.items():
                _rename_damaged(checkpoint, fault)
            return newest

        newest = self._from_main(look)
        return None if newest is None else str(newest)

    def _check(self, checkpoint: str) -> None:
        """Raise an error if a checkpoint does not match its manifest."""
        if fault := self._from_main(lambda: damage(Path(checkpoint))):
            raise InputError(f"{checkpoint} is damaged: {fault}. Go on from another checkpoint.")

    def _from_main(self, look: Callable[[], Any]) -> Any:
        """Call ``look`` on the main process only and return its result on all ranks, so that files are read once."""
        return self._broadcast(look() if self.is_world_process_zero() else None)

    @staticmethod
    def _broadcast(value: Any) -> Any:
        """Return the main process's value on all ranks."""
        values = [value]
        broadcast_object_list(values)
        return values[0]

    def _gather(self, values: list[Any]) -> list[Any]:
        """Return all ranks' values as one list, on each rank."""
        return gather_object(values) if self.args.world_size > 1 else values

    @property
    def _rank(self) -> str:
        """The prefix of a rank's message; empty with a single process."""
        return f"process {self.args.process_index}: " if self.args.world_size > 1 else ""

    def state_restored(self, checkpoint: str) -> None:
        """Correct the path of the best checkpoint, in case the run's folder was moved."""
        best = self.args.folder / Path(_state_of(checkpoint)["best_model_checkpoint"] or "").name
        if best != self.args.folder and best.is_dir():
            self.state.best_model_checkpoint = str(best)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint != checkpoint:
            self._forget_damaged_best("The best model is chosen from later ones.")

    def _forget_damaged_best(self, instead: str) -> None:
        """Rename a best checkpoint that is damaged or missing, and warn; the run goes on."""
        best = self.state.best_model_checkpoint
        if best is None:
            return

        def look() -> bool:
            if fault := damage(Path(best)):
                _rename_damaged(Path(best), fault)
                logger.warning("%s was the best model so far. %s", Path(best).name, instead)
            return fault is not None

        if self._from_main(look):
            self.state.best_model_checkpoint = self.state.best_metric = self.state.best_global_step = None
            self._best_meets = False

    def save_checkpoint(self, model: nn.Module) -> None:
        """Save a checkpoint and delete old ones.

        Raises:
            NonFiniteLossError: If a parameter is not finite; nothing is saved.
        """
        if self._broken():
            raise NonFiniteLossError(
                f"step {self.state.global_step}: parameters are no longer finite, and are not saved. {self._way_on()}"
            )
        run = self.args.folder
        checkpoint = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._write_checkpoint(checkpoint, model)
        if self.args.push_to_hub:
            self.push_checkpoint(checkpoint)
        if self.args.should_save:
            rotate(run, self.args.save_total_limit, self.state.best_model_checkpoint)

    def _write_checkpoint(self, folder: Path, model: nn.Module) -> None:
        """Write a checkpoint with its manifest, atomically: all ranks write into a temporary folder that is renamed."""
        writes, temporary = self.args.should_save, folder.parent / PART
        with ExitStack() as stack:
            self._all_or_none(folder, lambda: stack.enter_context(aside(folder)) if writes else None)
            self._all_or_none(folder, lambda: self._write_files(temporary, model))
            part = temporary / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"  # Transformers' name for it
            if self.state.best_model_checkpoint == str(part):
                self.state.best_model_checkpoint = str(folder)  # its path after the rename

            def finish() -> None:
                self.state.save_to_json(str(part / TRAINER_STATE_NAME))
                self.records.flush()
                seal(part)
                part.rename(temporary / folder.name)
                stack.close()

            self._all_or_none(folder, finish if writes else lambda: None)

    def _write_files(self, place: Path, model: nn.Module) -> None:
        self.checkpoint_parent, self._unwritten = place, None
        try:
            self.write_checkpoint_files(model)
        finally:
            self.checkpoint_parent = None
        if self._unwritten is not None:
            raise self._unwritten

    @contextmanager
    def io_deferred(self) -> Iterator[None]:
        """Defer I/O errors to the next collective, so that all ranks fail together."""
        try:
            yield
        except Exception as error:
            if not of_disk(error):
                raise
            self._unwritten = self._unwritten or error

    def _all_or_none(self, folder: Path, work: Callable[[], Any]) -> None:
        """Do this rank's part in writing a folder, and wait for the others; an I/O error is raised on all ranks."""
        errors = []
        try:
            work()
        except Exception as error:
            if not (isinstance(error, SaveError) or of_disk(error)):
                raise
            errors = [f"{self._rank}{error if isinstance(error, SaveError) else SaveError.at(folder, error)}"]
        if errors := self._gather(errors):
            raise SaveError(" ".join(errors))

    def _broken(self) -> bool:
        """Whether a parameter is not finite on any rank."""
        parameters = [each for each in self.objective.parameters() if each.requires_grad]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in parameters]
        fault = not all(bool(each.detach().isfinite().all()) for each in local)
        return bool(self.accelerator.reduce(torch.tensor(float(fault), device=self.args.device)))

    def _way_on(self) -> str:
        """What the user can do after training diverged, as a sentence; the same on all ranks."""
        newest = self._from_main(lambda: newest_whole(self.args.folder)[0])
        goes_on = "there is no checkpoint to go on from" if newest is None else f"--resume goes on from {newest.name}"
        return f"Lower learning_rate or dual_lr and train into another folder; {goes_on}."

    def save_weights(self, folder: Path, state_dict: dict[str, Tensor] | None) -> None:
        """Save the model in the format of `from_pretrained`, without the objective around it.

        Args:
            folder: The folder to write.
            state_dict: The weights, if they were gathered already.
        """
        if not self.args.should_save:
            return
        if state_dict is not None:
            # DeepSpeed gathers the weights under their names in the objective.
            (place,) = (name for name, module in self.objective.named_modules() if module is self.users_model)
            if all(name.startswith(f"{place}.") for name in state_dict):
                state_dict = {name.removeprefix(f"{place}."): value for name, value in state_dict.items()}
        with self.io_deferred() if self.checkpoint_parent else nullcontext():
            self.save_pretrained(folder, state_dict)  # does not write training_args.bin, which is a pickle

    def save_pretrained(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model and its tokenizer, if there is one, in the format of `from_pretrained`.

        All ranks must call this, because each may hold a shard; the main process writes.
        """
        if state_dict is None and hasattr(self.objective, "reshard"):
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state_dict = get_model_state_dict(self.users_model, options=whole)
        if not self.args.should_save:
            return
        saved, names = self.users_model, {}
        if self.checkpoint_parent is not None and isinstance(saved, PreTrainedModel):
            # A checkpoint uses the names of weights in the model, for resuming; other folders use those of the Hub.
            names = {"save_original_format": False}
        save_module(saved, folder, state_dict, **names)
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)

    def weights_loaded(self, checkpoint: str) -> None:
        """Delete the records of steps after the checkpoint."""
        if self.is_world_process_zero():
            self.records.truncate_after(_state_of(checkpoint)["global_step"])

    def check_loaded(self, missing: list[str], unexpected: list[str]) -> None:
        """Raise an error if the weights are those of another model; a tied weight may be missing."""
        saved = self.users_model
        left_out = {*(getattr(saved, "all_tied_weights_keys", None) or ()), *tied_names(saved)}
        left_out |= {*(getattr(saved, "_keys_to_ignore_on_save", None) or ())}
        strange = sorted({*missing, *unexpected} - left_out)
        if strange:
            raise InputError(f"the checkpoint is that of another model: they do not share {', '.join(strange[:3])}.")

    @property
    def kept_step(self) -> int:
        """The step of the final model: that of the best checkpoint if it was loaded at the end, else the last step."""
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return self.state.global_step
        return step_of(Path(best))

    def load_best(self) -> None:
        """Load the best model, and the multipliers of its checkpoint."""
        self._forget_damaged_best("The last model is used instead.")
        best = self.state.best_model_checkpoint
        if best is None:
            return
        self.load_weights(best)
        self.dual.load_state_dict(self._descent_state(best)["dual"])

    def save_run_state(self, folder: Path) -> None:
        """Write this rank's state: multipliers, sums since the last log, generators and the best result so far."""
        state: dict[str, Any] = {
            "dual": self.dual.state_dict(),
            **self.sums.state_dict(),
            "best": self._best,
            "best_meets": self._best_meets,
            "seconds": self.seconds,
            "outlook": self._outlook.state_dict(),
            "processes": self.args.world_size,
        }
        for name, drawn in self._drawn.items():
            state[name] = drawn.state_dict()
        folder.mkdir(parents=True, exist_ok=True)
        save_state(folder / STATE_FILE.format(self.args.process_index), state)

    def load_run_state(self, checkpoint: str) -> None:
        """Restore the state that `save_run_state` wrote."""
        state = self._descent_state(checkpoint)
        self.dual.load_state_dict(state["dual"])
        self.sums.load_state_dict(state)
        self._best = state["best"]
        self._best_meets = state.get("best_meets", False)  # missing in older checkpoints
        self._outlook.load_state_dict(state["outlook"])
        self._began, self._earlier = time.monotonic(), state["seconds"]
        self.temperature = 1.0  # a checkpoint's model is not calibrated
        for name, drawn in self._drawn.items():
            if name not in state:
                raise InputError(
                    f"{checkpoint} is that of a run without {name}; go on with the settings that saved it."
                )
            drawn.load_state_dict(state[name])

    @property
    def _drawn(self) -> dict[str, Any]:
        """Name → the objects with their own random generator, whose state belongs to a checkpoint."""
        drawn = {"noise": self.objective.noise, "sample": self.objective.sample}
        return {name: each for name, each in drawn.items() if each is not None}

    def _descent_state(self, checkpoint: str) -> dict[str, Any]:
        file = Path(checkpoint) / STATE_FILE.format(self.args.process_index)
        if not file.is_file():
            raise InputError(f"{checkpoint} is that of fewer processes; go on with as many as saved it.")
        state = load_state(file)
        if state["processes"] != self.args.world_size:
            raise InputError(
                f"{checkpoint} is that of {state['processes']} processes, each with noise and losses of its own; go on "
                f"with as many. Got {self.args.world_size}."
            )
        return state

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before an interruption."""
        return self._earlier + time.monotonic() - self._began


def _state_of(checkpoint: str) -> dict[str, Any]:
    return json.loads((Path(checkpoint) / TRAINER_STATE_NAME).read_text())


def _rename_damaged(checkpoint: Path, fault: str) -> None:
    renamed = checkpoint.with_name(DAMAGED + checkpoint.name)
    shutil.rmtree(renamed, ignore_errors=True)
    if checkpoint.exists():
        checkpoint.rename(renamed)
    logger.warning("%s is damaged: %s. It is now %s and is not used.", checkpoint, fault, renamed.name)
