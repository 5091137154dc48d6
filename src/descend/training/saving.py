"""Saving and going on: checkpoints that are whole or not there, and a run that was cut off taken up again."""

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
from torch import nn
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

STATE_FILE = "descent_{}.safetensors"  # of each process: its own noise, and its own losses since the last dual step


class Resumable(TrainerHooks):
    """A trainer that writes and reads its checkpoints, the model, the multipliers and what else a run goes on with."""

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
    _aside: Path | None
    _unwritten: Exception | None

    def calibrate(self) -> None:
        """What is still to be done to a model that is trained."""
        raise NotImplementedError

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, *, calibrate: bool = True, **kwargs: Any
    ) -> Any:
        """Train, as Transformers' Trainer does.

        A second call without a checkpoint is a new run in the same folder, from the model as it is: records,
        ``best_feasible`` and the choice of the best model start over. As the optimizer keeps its state, the
        multipliers keep theirs, and there is no second warm-up.

        Args:
            resume_from_checkpoint: A checkpoint to go on from, or True for the newest that is whole.
            calibrate: Whether to call `calibrate` at the end, of a classifier.
            **kwargs: As the library's.

        Raises:
            InputError: If the checkpoint is damaged, or there is none.
            SaveError: If a checkpoint or the records can't be written; earlier checkpoints are whole.
        """
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = self.last_checkpoint()
            if checkpoint is None:
                raise InputError(f"{self.args.folder} has no whole checkpoint to go on from.")
        elif checkpoint is not None:
            self._check(checkpoint)
        try:
            found = super().train(checkpoint, **kwargs)
        except UnpicklingError as error:
            raise InputError(f"{checkpoint} holds a pickle that is more than tensors; it is not loaded.") from error
        if self.args.should_save:  # a run that was killed after its last checkpoint has one too many
            rotate(self.args.folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        if calibrate:
            self.calibrate()
        return found

    def last_checkpoint(self) -> str | None:
        """The newest checkpoint of the run that is whole; damaged ones after it are named, and put aside."""

        def look() -> Path | None:
            newest, damaged = newest_whole(self.args.folder)
            for checkpoint, fault in damaged.items():
                _put_aside(checkpoint, fault)
            return newest

        found = self._told_by_first(look)
        return None if found is None else str(found)

    def _check(self, checkpoint: str) -> None:
        """Refuse a checkpoint that does not fit its manifest."""
        if fault := self._told_by_first(lambda: damage(Path(checkpoint))):
            raise InputError(f"{checkpoint} is damaged: {fault}. Go on from another checkpoint.")

    def _told_by_first(self, look: Callable[[], Any]) -> Any:
        """What the first process finds on the disk: a checkpoint is read and hashed once, whatever the ranks."""
        return self._of_first(look() if self.is_world_process_zero() else None)

    @staticmethod
    def _of_first(found: Any) -> Any:
        """What the first process has, on all of them."""
        one = [found]
        broadcast_object_list(one)
        return one[0]

    def _of_all(self, found: list[Any]) -> list[Any]:
        """What all processes have found, on each of them."""
        return gather_object(found) if self.args.world_size > 1 else found

    @property
    def _rank(self) -> str:
        """How a sentence begins that is of one process among several."""
        return f"process {self.args.process_index}: " if self.args.world_size > 1 else ""

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """The library's; the best checkpoint is found where the run's folder is now, by whatever name it went."""
        found = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is not None:
            best = self.args.folder / Path(_state_of(resume_from_checkpoint)["best_model_checkpoint"] or "").name
            if best != self.args.folder and best.is_dir():
                self.state.best_model_checkpoint = str(best)
            if self.args.load_best_model_at_end and self.state.best_model_checkpoint != resume_from_checkpoint:
                self._forget_damaged_best("The best is chosen from those that come.")
        return found

    def _forget_damaged_best(self, instead: str) -> None:
        """Put a best checkpoint that is damaged, or gone, aside, and say so: no run ends for it."""
        best = self.state.best_model_checkpoint
        if best is None:
            return

        def look() -> bool:
            if fault := damage(Path(best)):
                _put_aside(Path(best), fault)
                logger.warning("%s was the best model so far. %s", Path(best).name, instead)
            return fault is not None

        if self._told_by_first(look):
            self.state.best_model_checkpoint = self.state.best_metric = self.state.best_global_step = None
            self._best_meets = False

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._aside is None else str(self._aside)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """The library's checkpoint, if there is something in it to go on from; then older ones may go."""
        run = Path(self._get_output_dir(trial))
        if self._broken():
            raise NonFiniteLossError(
                f"step {self.state.global_step}: parameters are no longer finite, and are not saved. {self._way_on()}"
            )
        checkpoint = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._write_checkpoint(checkpoint, model, trial)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))
        if self.args.should_save:
            rotate(run, self.args.save_total_limit, self.state.best_model_checkpoint)

    def _write_checkpoint(self, folder: Path, model: nn.Module, trial: Any = None) -> None:
        """The library's checkpoint, written aside: its folder appears whole, with a manifest, or not at all."""
        first, aside_of_all = self.args.should_save, folder.parent / PART
        with ExitStack() as stack:
            self._together(folder, lambda: stack.enter_context(aside(folder)) if first else None)
            self._together(folder, lambda: self._write_aside(aside_of_all, model, trial))
            part = aside_of_all / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"  # as the library calls it
            if self.state.best_model_checkpoint == str(part):
                self.state.best_model_checkpoint = str(folder)  # where it will stand

            def finish() -> None:
                self.state.save_to_json(str(part / TRAINER_STATE_NAME))
                self.records.flush()
                seal(part)
                part.rename(aside_of_all / folder.name)
                stack.close()

            self._together(folder, finish if first else lambda: None)

    def _write_aside(self, place: Path, model: nn.Module, trial: Any) -> None:
        self._aside, self._unwritten = place, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._aside = None
        if self._unwritten is not None:
            raise self._unwritten

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Keep a disk's fault until all processes are where they tell each other: some wait for this one till then."""
        try:
            yield
        except Exception as error:
            if not of_disk(error):
                raise
            self._unwritten = self._unwritten or error

    def _together(self, folder: Path, work: Callable[[], Any]) -> None:
        """Do this process's part in writing a folder, and wait for the others'; a disk's fault on one stops all."""
        found = []
        try:
            work()
        except Exception as error:
            if not (isinstance(error, SaveError) or of_disk(error)):
                raise
            found = [f"{self._rank}{error if isinstance(error, SaveError) else SaveError.at(folder, error)}"]
        if found := self._of_all(found):
            raise SaveError(" ".join(found))

    def _broken(self) -> bool:
        """Whether a parameter is no longer finite, on any process: no state to go on from."""
        parameters = [each for each in self.objective.parameters() if each.requires_grad]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in parameters]
        fault = not all(bool(each.detach().isfinite().all()) for each in local)
        return bool(self.accelerator.reduce(torch.tensor(float(fault), device=self.args.device)))

    def _way_on(self) -> str:
        """What can be done after training has come apart; the same on all processes."""
        newest = self._told_by_first(lambda: newest_whole(self.args.folder)[0])
        goes_on = "there is no checkpoint to go on from" if newest is None else f"--resume goes on from {newest.name}"
        return f"Lower learning_rate or dual_lr and train into another folder; {goes_on}."

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._aside is None:  # not before it has its name
            super()._push_from_checkpoint(checkpoint_folder)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Save the model by itself, as `from_pretrained` reads it, not the objective around it."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.folder)
        if state_dict is not None:
            # DeepSpeed's are named as in the objective.
            (place,) = (name for name, module in self.objective.named_modules() if module is self.users_model)
            if all(name.startswith(f"{place}.") for name in state_dict):
                state_dict = {name.removeprefix(f"{place}."): value for name, value in state_dict.items()}
        with self._noted() if self._aside else nullcontext():
            self.save_pretrained(folder, state_dict)  # without the library's training_args.bin, a pickle

    def save_pretrained(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model, and the tokenizer if there is one, as `from_pretrained` reads them.

        Where each process holds a shard, all must call this; one writes.
        """
        if state_dict is None and hasattr(self.objective, "reshard"):
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state_dict = get_model_state_dict(self.users_model, options=whole)
        if not self.args.should_save:
            return
        saved, names = self.users_model, {}
        if self._aside is not None and isinstance(saved, PreTrainedModel):
            # In a checkpoint by their names in the model, which training loads; elsewhere by those of the Hub.
            names = {"save_original_format": False}
        save_module(saved, folder, state_dict, **names)
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, self.users_model)
        if self.is_world_process_zero():
            self.records.truncate_after(_state_of(resume_from_checkpoint)["global_step"])

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse the weights of another model, instead of a warning; a tied weight is stored once."""
        saved = self.users_model
        left_out = {*(getattr(saved, "all_tied_weights_keys", None) or ()), *tied_names(saved)}
        left_out |= {*(getattr(saved, "_keys_to_ignore_on_save", None) or ())}
        strange = sorted({*load_result.missing_keys, *load_result.unexpected_keys} - left_out)
        if strange:
            raise InputError(f"the checkpoint is that of another model: they do not share {', '.join(strange[:3])}.")

    @property
    def kept_step(self) -> int:
        """The step of the model that training ended with: of the best one, where that is loaded at the end."""
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return self.state.global_step
        return step_of(Path(best))

    def _load_best_model(self) -> None:
        """The best model, and the multipliers that it was trained with."""
        self._forget_damaged_best("The last model is kept in its place.")
        best = self.state.best_model_checkpoint
        if best is None:
            return
        super()._load_from_checkpoint(best, self.users_model)
        self.dual.load_state_dict(self._descent_state(best)["dual"])

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
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
        with self._noted():
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            save_state(Path(output_dir) / STATE_FILE.format(self.args.process_index), state)
        with self._noted():
            super()._save_optimizer_and_scheduler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        with self._noted():
            super()._save_rng_state(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = self._descent_state(checkpoint)
        self.dual.load_state_dict(state["dual"])
        self.sums.load_state_dict(state)
        self._best = state["best"]
        self._best_meets = state.get("best_meets", False)  # older ones have none
        self._outlook.load_state_dict(state["outlook"])
        self._began, self._earlier = time.monotonic(), state["seconds"]
        self.temperature = 1.0  # what a checkpoint holds is not calibrated
        for name, drawn in self._drawn.items():
            if name not in state:
                raise InputError(
                    f"{checkpoint} is that of a run without {name}; go on with the settings that saved it."
                )
            drawn.load_state_dict(state[name])

    @property
    def _drawn(self) -> dict[str, Any]:
        """What draws random numbers of its own, which a resumed run goes on with."""
        found = {"noise": self.objective.noise, "sample": self.objective.sample}
        return {name: one for name, one in found.items() if one is not None}

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
        """Seconds since training began, those before an interruption included."""
        return self._earlier + time.monotonic() - self._began


def _state_of(checkpoint: str) -> dict[str, Any]:
    return json.loads((Path(checkpoint) / TRAINER_STATE_NAME).read_text())


def _put_aside(checkpoint: Path, fault: str) -> None:
    kept = checkpoint.with_name(DAMAGED + checkpoint.name)
    shutil.rmtree(kept, ignore_errors=True)
    if checkpoint.exists():
        checkpoint.rename(kept)
    logger.warning("%s is damaged: %s. It is now %s and is not used.", checkpoint, fault, kept.name)
