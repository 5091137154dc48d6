"""Train a run in its folder, from the start or from one of its checkpoints."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from tqdm import tqdm

from descend.errors import InputError
from descend.models.modules import check_savable
from descend.training.checkpoints import (
    any_checkpoints,
    newest_whole,
    outdated,
    rename_damaged,
    rotate,
    step_of,
    unusable,
)
from descend.training.step import Stepping


class Resumable(Stepping):
    """A trainer that resumes from its checkpoints, and never from a damaged one."""

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
            checkpoint = self.last_checkpoint()
            others = self._from_main(lambda: any_checkpoints(self.args.folder))  # another trainer's: said below
            if checkpoint is None and not others:
                raise InputError(f"{self.args.folder} has no whole checkpoint to go on from.")
            checkpoint = checkpoint or str(others[-1])
        if checkpoint is not None and (fault := self._from_main(lambda: unusable(Path(checkpoint)))):
            raise InputError(fault)
        self.refuse_foreign_files(checkpoint)
        check_savable(self.users_model, self._tokenizer_to_save)
        self.refuse_short_loader()
        try:
            with self.method.installed():
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
        """The newest undamaged checkpoint of the run; newer damaged ones are reported and renamed.

        Raises:
            InputError: If an older version of Descend wrote it.
        """

        def look() -> tuple[str | None, str | None]:
            newest, damaged = newest_whole(self.args.folder)
            for checkpoint, fault in damaged.items():
                rename_damaged(checkpoint, fault)
            return (None, None) if newest is None else (str(newest), outdated(newest))

        newest, fault = self._from_main(look)
        if fault:
            raise InputError(fault)
        return newest

    @property
    def kept_step(self) -> int:
        """The step of the final model: that of the best checkpoint if it was loaded at the end, else the last step."""
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return self.state.global_step
        return step_of(Path(best))
