"""Copy numbers to a device without synchronizing."""

from collections.abc import Sequence

import torch
from torch import Tensor


def uploaded(values: Sequence[float], like: Tensor) -> Tensor:
    """A vector (N,) with the dtype and device of ``like``, copied to a GPU without synchronizing."""
    return sent(torch.tensor(values, dtype=like.dtype, device="cpu"), like.device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on another device, copied to a GPU without synchronizing."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
