"""A training step around the optimizer's: its losses are checked before it, and move the multipliers after it."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from descend.core import LossSums, Outlook, refuse_negative
from descend.errors import InputError, NonFiniteLossError
from descend.objective import LOSS_IS_OURS
from descend.training.checkpoints import STOPPED
from descend.training.order import Ordered


class Stepping(Ordered):
    """A trainer that checks losses and gradient before every optimizer step, and takes the dual step after it."""

    other_sums = 0
    """K, the number of further sums in a batch's `LossSums`."""
    scale_before = 1.0
    """The gradient scaler's scale before the optimizer's step."""

    def begin_run(self) -> None:
        """Reset logs, model selection and calibration for a new run; multipliers keep their state."""
        self._outlook = Outlook(self.dual.problem)
        depth = self.dual.problem.depth
        self.since_log, self.logged = LossSums(depth, self.other_sums), LossSums(depth, self.other_sums)
        self.sums.clear()
        self._best = float("inf")  # the lowest loss of a feasible model
        self._best_meets = False  # whether the best model so far is feasible
        self.temperature = 1.0
        self.summary = None  # set by `descend.evaluate`, for the model card
        self._began, self._earlier = time.monotonic(), 0.0

    def check_step(self, model: nn.Module, norm: Any) -> None:
        """Check losses and gradient before the optimizer step; an error on one rank stops all ranks."""
        if not self.computed:  # Transformers calls `compute_loss` before every step
            raise InputError(LOSS_IS_OURS.format("did not call super().compute_loss(...)"))
        of_loss, of_gradient, size = self.sums.fault, None, None
        suspect = of_loss is not None or (self.dual.problem.constrained and bool((self.sums.values < 0).any()))
        if norm is not None and self.accelerator.scaler is None:  # a scaler checks gradients itself and skips the step
            size = norm.full_tensor() if hasattr(norm, "full_tensor") else torch.as_tensor(norm)  # sharded by FSDP2
        if self.accelerator.num_processes == 1:
            failed = suspect or not (size is None or math.isfinite(size))
        else:  # one reduction for both checks
            bad = torch.tensor(float(suspect)).to(self.args.device, non_blocking=True)
            bad = bad if size is None else bad + (~size.to(bad).isfinite()).to(bad)
            failed = self.accelerator.reduce(bad).item() > 0
        if failed:
            if size is not None and not math.isfinite(size):
                of_gradient = f"the gradient is not finite (its norm is {float(size)})"
            self._stop(model, of_loss or of_gradient, of_loss is not None)

    def _dual_step(self) -> None:
        """Take the dual step, unless a gradient scaler skipped the primal step."""
        if self.accelerator.optimizer_step_was_skipped or self.scale < self.scale_before:
            self._drop()
            return
        counts = self.since_log.counts
        if self.sums.counts[0] and counts[0] < counts[-1]:
            # Warm-up, which reads the last exit only, has just ended: average all layers over the same steps.
            self.since_log.restart()
        self.since_log.add(self.sums)
        self.dual.observe(self.sums)
        self.sums.clear()
        self.ascend(self.dual.step)

    def ascend(self, move: Callable[[], Any]) -> None:
        """Move the multipliers; a non-finite result stops all ranks, because all use the same sums."""
        try:
            move()
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"step {self.state.global_step}: {error} {self._way_on()}") from None

    @property
    def scale(self) -> float:
        """The gradient scaler's scale, which falls at a skipped step; Accelerate misses it with a fused optimizer."""
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else scaler.get_scale()

    def _over_ranks(self, local: Tensor) -> Tensor:
        """A tensor summed over the ranks, on the host."""
        return self.accelerator.reduce(local.to(self.args.device)).cpu()

    def _drop(self) -> None:
        """Forget the losses of a step that is not taken."""
        self.sums.clear()
        self.dual.skip()

    def _stop(self, model: nn.Module, fault: str | None, of_loss: bool) -> None:
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
