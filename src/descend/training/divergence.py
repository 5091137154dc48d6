"""Stopping before a step on a loss or gradient that is not finite, or a loss below 0; the state before it is kept."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from descend.core import refuse_negative
from descend.errors import InputError, NonFiniteLossError
from descend.training.checkpoints import STOPPED
from descend.training.order import Ordered


class Stopping(Ordered):
    """A trainer that says in which step, sample and rank a loss went wrong, and keeps the state before it."""

    def _over_ranks(self, local: Tensor) -> Tensor:
        """A tensor summed over the ranks, on the host."""
        return self.accelerator.reduce(local.to(self.args.device)).cpu()

    def _drop(self) -> None:
        """Forget the losses of a step that is not taken."""
        self.sums.clear()
        self.dual.skip()

    def stop_step(self, model: nn.Module, fault: str | None, of_loss: bool) -> None:
        """Save the state before the step, and raise an error on all ranks; go on if all means are finite and ≥ 0."""
        numbers, data = self.step_samples(), cast(Any, self.train_dataset)
        samples = ", ".join(map(str, numbers)) or "unknown"
        if fault and (broken := [str(number) for number in numbers if not _finite(data, number)]):
            samples += f" (NaN or infinity in the data of {', '.join(broken)})"
        faults = gather_object([(of_loss, f"{self._rank}{fault}; samples {samples}")] if fault else [])
        step = f"step {self.state.global_step + 1}"
        if faults:
            self._drop()
            # A non-finite loss on one rank makes the gradient non-finite on all: report the loss only.
            causes = [cause for of_loss, cause in faults if of_loss] or [cause for _, cause in faults]
            raise NonFiniteLossError(
                f"{step}: {'; '.join(causes)}. {self._keep(model)} Look at these samples. {self._way_on()}"
            )
        whole = self.sums.with_numbers(self._over_ranks(self.sums.numbers))
        try:
            refuse_negative(whole.means, whole.first)
        except InputError as error:
            self._drop()
            raise InputError(f"{step}: {error} {self._keep(model)}") from None

    def _keep(self, model: nn.Module) -> str:
        """Save the state before the step, if it can be of use, and say what was done."""
        step, folder = self.state.global_step, self.args.folder
        saved = self._from_main((folder / f"{PREFIX_CHECKPOINT_DIR}-{step}").exists)
        if self._broken():
            state = "; they were not all finite before it"
        elif step and self.args.save_strategy != "no" and not saved:
            # Not saved as a checkpoint: rotation would delete an earlier one, which is a better start after divergence.
            self.write_checkpoint(folder / f"{STOPPED}{step}", model)
            state = f", and the state before it is saved in {STOPPED}{step}"
        else:
            state = ""
        return f"No parameter has moved in this step{state}."


def _finite(data: Any, number: int) -> bool:
    """Whether the numbers of a sample's fields are finite; other fields, and a sample that fails, are not looked at."""
    try:
        sample = data[number]
    except Exception:  # the user's own code, which must not hide why training stopped
        return True
    for value in sample.values() if isinstance(sample, Mapping) else ():
        with suppress(TypeError, ValueError, RuntimeError):  # no array of numbers
            if not torch.as_tensor(value).isfinite().all():
                return False
    return True
