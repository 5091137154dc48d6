"""Stop training on all ranks, in the state before the step, when its losses or its gradient can't be used."""

import math
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from descend.core import refuse_negative
from descend.errors import InputError, NonFiniteLossError
from descend.objective import LOSS_IS_OURS
from descend.training.checkpoints import STOPPED
from descend.training.measuring import Measuring
from descend.training.state import ExitSums


class Guarded(Measuring):
    """A trainer that checks losses and gradient before every optimizer step."""

    def check_step(self, model: nn.Module, norm: Any) -> None:
        """Check losses and gradient before the optimizer step; an error on one rank stops all ranks."""
        if not self.sums.added:  # Transformers calls `compute_loss` before every step
            raise InputError(LOSS_IS_OURS.format("did not call super().compute_loss(...)"))
        of_loss = self.sums.fault()
        suspect = of_loss is not None or (self.dual.problem.constrained and bool((self.sums.step.losses < 0).any()))
        # A gradient scaler checks the gradients itself and skips the step.
        looked_at = None if self.accelerator.scaler is not None else norm
        if self.accelerator.num_processes == 1:
            failed = suspect or not (looked_at is None or math.isfinite(_number(looked_at)))
        else:  # one reduction for both checks
            bad = torch.tensor(float(suspect)).to(self.args.device, non_blocking=True)
            if looked_at is not None:
                whole = looked_at.full_tensor() if hasattr(looked_at, "full_tensor") else torch.as_tensor(looked_at)
                bad = bad + (~whole.to(bad).isfinite()).to(bad)
            failed = self.accelerator.reduce(bad).item() > 0
        if failed:
            of_gradient = None
            if looked_at is not None and not math.isfinite(_number(looked_at)):
                of_gradient = f"the gradient is not finite (its norm is {_number(looked_at)})"
            self._stop(model, of_loss or of_gradient, of_loss is not None)

    def _stop(self, model: nn.Module, fault: str | None, of_loss: bool) -> None:
        """Save the state before the step, and raise an error on all ranks; go on if all means are finite and ≥ 0."""
        numbers, data = self._samples(), cast(Any, self.train_dataset)
        samples = ", ".join(map(str, numbers)) or "unknown"
        if fault and (broken := [str(number) for number in numbers if not _finite(data, number)]):
            samples += f" (NaN or infinity in the data of {', '.join(broken)})"
        faults = gather_object([(of_loss, f"{self._rank}{fault}; samples {samples}")] if fault else [])
        if not faults:
            self._refuse_negative(model)
            return
        self.sums.skip()
        # A non-finite loss on one rank makes the gradient non-finite on all: report the loss only.
        causes = [cause for of_loss, cause in faults if of_loss] or [cause for _, cause in faults]
        raise NonFiniteLossError(
            f"step {self.state.global_step + 1}: {'; '.join(causes)}. {self._keep(model)} Look at these samples. "
            f"{self._way_on()}"
        )

    def _refuse_negative(self, model: nn.Module) -> None:
        """Save the state before the step, and raise an error on all ranks, if a mean over all ranks is negative."""
        step = ExitSums(self.dual.problem.depth, len(self.sums.step.others))
        step.values = self.accelerator.reduce(self.sums.step.values.to(self.args.device)).cpu()
        try:
            refuse_negative(step.means, step.first)
        except InputError as error:
            self.sums.skip()
            raise InputError(f"step {self.state.global_step + 1}: {error} {self._keep(model)}") from None

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

    def _samples(self) -> list[int]:
        """The indices of this step's samples on this rank; none for a stream."""
        loader: Any = self.callback_handler.train_dataloader
        batches = getattr(loader, "batch_sampler", None)
        if batches is None or not has_length(loader):
            return []
        size = self.args.gradient_accumulation_steps
        epoch, step = divmod(self.state.global_step, math.ceil(len(loader) / size))
        sampler: Any = getattr(batches, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return [number for batch in islice(batches, step * size, (step + 1) * size) for number in batch]


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


def _number(norm: Any) -> float:
    """A gradient norm as a number; under FSDP2 it is a distributed tensor."""
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
