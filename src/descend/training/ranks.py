"""The ranks of a run: what one of them reads or finds, all of them know."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, reduce
from torch import Tensor, nn
from transformers import TrainingArguments


class Ranks:
    """This process among those of a run.

    Args:
        args: The training arguments, which know the process group.
    """

    def __init__(self, args: TrainingArguments):
        self.number = args.world_size
        self.is_main = args.process_index == 0
        self.device = args.device
        self.prefix = f"process {args.process_index}: " if self.number > 1 else ""
        """The prefix of a rank's message; empty with a single process."""

    def from_main(self, look: Callable[[], Any]) -> Any:
        """Call ``look`` on the main process only and return its result on all ranks, so that files are read once."""
        return self.broadcast(look() if self.is_main else None)

    @staticmethod
    def broadcast(value: Any) -> Any:
        """Return the main process's value on all ranks."""
        return broadcast_object_list([value])[0]

    def sum(self, local: Tensor) -> Tensor:
        """A tensor summed over the ranks, on the host."""
        if self.number == 1:
            return local.cpu()
        return reduce(local.to(self.device), "sum").cpu()

    def all_finite(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Whether all trained parameters are finite on all ranks."""
        trained = [each for each in parameters if each.requires_grad]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in trained]
        fault = not all(bool(each.detach().isfinite().all()) for each in local)
        return not self.sum(torch.tensor(float(fault)))
