"""Copy numbers between host and device without synchronizing."""

from collections.abc import Iterator, Sequence
from typing import overload

import torch
from torch import Tensor


class LateNumbers(Sequence[float]):
    """The values of a tensor as Python numbers, copied to the host in the background.

    Reading a number waits for the copy. This class is not a tensor because FSDP2 in mixed precision casts the tensors
    that a forward pass returns to half precision.

    Args:
        values: A vector (N,) on any device. The copy starts at once, so later changes have no effect.
    """

    def __init__(self, values: Tensor):
        values = values.detach()
        self._size = len(values)
        self._numbers: list[float] | None = None
        self._event: torch.Event | None = None
        if values.device.type == "cpu":
            self._copy = values.clone()
            return
        self._copy = values.to("cpu", non_blocking=True)  # into pinned memory
        self._event = torch.Event(device=values.device)
        self._event.record()

    def read(self) -> list[float]:
        """All numbers."""
        if self._numbers is None:
            if self._event is not None:
                self._event.synchronize()
            self._numbers = self._copy.tolist()
        return self._numbers

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> list[float]: ...

    def __getitem__(self, index: int | slice) -> float | list[float]:
        return self.read()[index]

    def __iter__(self) -> Iterator[float]:
        return iter(self.read())

    def __repr__(self) -> str:
        return f"LateNumbers({self.read()})"


def uploaded(values: Sequence[float], like: Tensor) -> Tensor:
    """A vector (N,) with the dtype and device of ``like``, copied to a GPU without synchronizing."""
    return sent(torch.tensor(values, dtype=like.dtype, device="cpu"), like.device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on another device, copied to a GPU without synchronizing."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
