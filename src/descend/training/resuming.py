"""Resume a run from its checkpoints."""

import json
import logging
import time
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from tqdm import tqdm
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from descend.errors import InputError
from descend.models.modules import check_savable, tied_names
from descend.results import RECORDS_FILE
from descend.results.ownership import FEASIBLE_FOLDER, free_name, is_checkpoint, refuse_foreign
from descend.training.checkpoints import (
    DAMAGED,
    any_checkpoints,
    damage,
    load_state,
    newest_whole,
    rotate,
    step_of,
    unusable,
)
from descend.training.saving import STATE_FILE, Saving

logger = logging.getLogger(__name__)


class Resumable(Saving):
    """A trainer that resumes from its checkpoints, and never from a damaged one."""

    def calibrate(self) -> None:
        """Called at the end of training."""
        raise NotImplementedError

    def refuse_short_loader(self) -> None:
        """Called before training: raise an error for a `get_eval_dataloader` that can't be measured."""
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
            calibrate: Whether to call `calibrate` at the end, which ``DescentConfig.calibrate`` switches on.
            **kwargs: Further arguments of Transformers' ``train``.

        Returns:
            Transformers' ``TrainOutput``; its ``metrics`` also have the ``temperature`` of a calibrated classifier.

        Raises:
            InputError: If the checkpoint is damaged or another trainer's, or there is none; if the folder holds files
                that the run would replace and Descend did not write; if the model's settings or its tokenizer can't
                be saved; if there is no batch to train on.
            SaveError: If a checkpoint or the records can't be written; earlier checkpoints are not affected.
        """
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = self.last_checkpoint() or self._newest_of_others()
            if checkpoint is None:
                raise InputError(f"{self.args.folder} has no whole checkpoint to go on from.")
        if checkpoint is not None:
            self._check(checkpoint)
        self.refuse_foreign_files(checkpoint)
        check_savable(self.users_model, self._tokenizer_to_save)
        self.refuse_short_loader()
        try:
            with self.method.on():
                output = super().train(checkpoint, **kwargs)
        except UnpicklingError as error:
            raise InputError(f"{checkpoint} holds a pickle that is more than tensors; it is not loaded.") from error
        if self.args.should_save:  # a run killed between saving and rotating has one checkpoint too many
            rotate(self.args.folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        if calibrate:
            self.calibrate()
        self.mark_model()
        if calibrate and self.temperature != 1:
            output.metrics["temperature"] = self.temperature
            if self.args.should_log:
                tqdm.write(
                    f"temperature {self.temperature:.4g}: the head's last weights are divided by it, to fit the "
                    "evaluation data."
                )
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

    def _newest_of_others(self) -> str | None:
        """The newest checkpoint in the folder where none is Descend's; None if there is none at all."""
        return self._from_main(lambda: next((str(each) for each in any_checkpoints(self.args.folder)[::-1]), None))

    def _check(self, checkpoint: str) -> None:
        """Raise an error if training can't be resumed from a path."""
        if fault := self._from_main(lambda: unusable(Path(checkpoint))):
            raise InputError(fault)

    def refuse_foreign_files(self, checkpoint: str | None = None) -> None:
        """Raise an error on all ranks if the folder holds files that this run would replace and Descend did not write.

        Args:
            checkpoint: The checkpoint that training resumes from; None for a run from the start.
        """
        folder, problem = self.args.folder, self.dual.problem

        def look() -> str | None:
            step = -1 if checkpoint is None else _state_of(checkpoint)["global_step"]
            paths = [folder / RECORDS_FILE]
            if problem.constrained and checkpoint is None:
                paths.append(folder / FEASIBLE_FOLDER)
            if self.args.save_strategy != SaveStrategy.NO:
                paths += [each for each in any_checkpoints(folder) if step_of(each) > step]
            try:
                refuse_foreign(paths, "another output_dir")
            except InputError as error:
                return str(error)
            return None

        if fault := self._from_main(look):
            raise InputError(fault)

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
            fault = damage(Path(best)) if is_checkpoint(Path(best)) else "it is gone"
            if fault:
                _rename_damaged(Path(best), fault)
                logger.warning("%s was the best model so far. %s", Path(best).name, instead)
            return fault is not None

        if self._from_main(look):
            self.state.best_model_checkpoint = self.state.best_metric = self.state.best_global_step = None
            self._best_meets = False

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

    def load_best(self) -> None:
        """Load the best model, and the multipliers of its checkpoint."""
        self._forget_damaged_best("The last model is used instead.")
        best = self.state.best_model_checkpoint
        if best is None:
            return
        self.load_weights(best)
        self.dual.load_state_dict(self._descent_state(best)["dual"])

    def load_run_state(self, checkpoint: str) -> None:
        """Restore the state that `save_run_state` wrote."""
        state = self._descent_state(checkpoint)
        self.dual.load_state_dict(state["dual"])
        self.sums.clear()
        self.since_log = self.since_log.with_numbers(state["since_log"])
        self.logged = self.logged.with_numbers(state["logged"])
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


def _state_of(checkpoint: str) -> dict[str, Any]:
    return json.loads((Path(checkpoint) / TRAINER_STATE_NAME).read_text())


def _rename_damaged(checkpoint: Path, fault: str) -> None:
    if not is_checkpoint(checkpoint):
        logger.warning("%s is gone.", checkpoint)
        return
    renamed = free_name(checkpoint.with_name(DAMAGED + checkpoint.name))
    checkpoint.rename(renamed)
    logger.warning("%s is damaged: %s. It is now %s and is not used.", checkpoint, fault, renamed.name)
