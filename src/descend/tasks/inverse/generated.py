"""Generated signals: sparse codes, and small images of rectangles. They depend on their seeds alone."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset


class Measured(Dataset):
    """Signals and their measurements; a sample has the fields ``y`` and ``labels``.

    Args:
        signals: x, (N, …).
        measure: y of signals (N, …), without noise.
    """

    def __init__(self, signals: Tensor, measure: Callable[[Tensor], Tensor]):
        self.signals = signals
        self.measurements = measure(signals)

    def __len__(self) -> int:
        """N, the number of signals."""
        return len(self.signals)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """A measurement and its signal."""
        return {"y": self.measurements[index], "labels": self.signals[index]}

    @property
    def sigma(self) -> float:
        """The standard deviation of the measurements."""
        return self.measurements.std(correction=0).item()


def dictionary(rows: int, columns: int, seed: int = 0) -> Tensor:
    """A of normal numbers with columns of length 1, (m, n)."""
    return F.normalize(torch.randn(rows, columns, generator=_generator(seed)), dim=0)


def sparse_codes(count: int, columns: int, share: float, seed: int) -> Tensor:
    """Codes (count, n) of normal numbers, of which a share is not zero on average."""
    generator = _generator(seed)
    values = torch.randn(count, columns, generator=generator)
    return values * (torch.rand(count, columns, generator=generator) < share)


def images(count: int, side: int, rectangles: int, seed: int) -> Tensor:
    """Grey images (count, 1, side, side) in [0, 1]: rectangles of one grey level each, one above the other.

    Args:
        count: How many.
        side: Height and width in pixels.
        rectangles: How many there are in each image.
        seed: Of the draws.
    """
    generator = _generator(seed)
    drawn = torch.rand(count, 1, 1, 1, generator=generator).expand(-1, 1, side, side).clone()
    pixels = torch.arange(side)
    for _ in range(rectangles):
        ends = (torch.rand(count, 2, 2, generator=generator) * side).sort(-1).values
        inside = (pixels >= ends[..., :1]) & (pixels < ends[..., 1:])
        mask = inside[:, 0, :, None] & inside[:, 1, None, :]
        levels = torch.rand(count, 1, 1, generator=generator)
        drawn[:, 0] = torch.where(mask, levels, drawn[:, 0])
    return drawn


def _generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)
