"""Windows of consecutive frames, cut into patches: the samples of video recipes, and the task of denoising them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from descend.errors import InputError, refuse
from descend.tasks.base import Task
from descend.tasks.video.decoding import SIZE

PATCH = 16
"""Height and width of a patch, in pixels."""

_GRID = SIZE // PATCH
_BLOCK = 64  # frames that sigma reads at a time, so that memory does not grow with a clip's length


def patchify(frames: Tensor) -> Tensor:
    """Cut frames into patches, row by row.

    Patch n covers rows 16·(n // 10) … and columns 16·(n % 10) …; its pixels are in row-major order too.

    Args:
        frames: (…, SIZE, SIZE) of any dtype.

    Returns:
        (…, N, P) = (…, 100, 256).

    Raises:
        ValueError: Frames of another size.
    """
    if frames.shape[-2:] != (SIZE, SIZE):
        raise ValueError(f"frames must have shape (…, {SIZE}, {SIZE}); got {tuple(frames.shape)}")
    tiles = frames.unflatten(-1, (_GRID, PATCH)).unflatten(-3, (_GRID, PATCH))  # row, y, column, x
    return tiles.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def unpatchify(patches: Tensor) -> Tensor:
    """Put patches together to frames: the exact inverse of `patchify`.

    Args:
        patches: (…, N, P) = (…, 100, 256) of any dtype.

    Returns:
        (…, SIZE, SIZE).

    Raises:
        ValueError: Another number or size of patches.
    """
    if patches.shape[-2:] != (_GRID**2, PATCH**2):
        raise ValueError(f"patches must have shape (…, {_GRID**2}, {PATCH**2}); got {tuple(patches.shape)}")
    tiles = patches.unflatten(-1, (PATCH, PATCH)).unflatten(-3, (_GRID, _GRID))  # row, column, y, x
    return tiles.transpose(-3, -2).flatten(-2).flatten(-3, -2)


class VideoWindows(Dataset[dict[str, Tensor | int]]):
    """All windows of T consecutive frames in some clips; none spans two clips.

    An item is `{"patches": float32 (T, N, P) in [0, 1], "group": int}`: the window and its clip's index. Windows of one
    clip are not independent samples. Frames stay uint8, and memory-mapped if they were, until a window is fetched.

    Args:
        clips: uint8 (F, SIZE, SIZE) each.
        window: T, in frames.
        stride: Frames from one window's start to the next one's.
        names: The clips' names in error messages; by default their indices.

    Raises:
        InputError: T or the stride is below 1, or a clip is shorter than T.
    """

    def __init__(
        self,
        clips: Sequence[np.ndarray],
        window: int,
        stride: int = 1,
        names: Sequence[str] | None = None,
    ) -> None:
        if window < 1 or stride < 1:
            raise InputError(f"window and stride must be at least 1 frame; got {window} and {stride}")
        names = names if names is not None else [f"number {position}" for position in range(len(clips))]
        for name, clip in zip(names, clips, strict=True):
            refuse(
                (
                    clip.shape[1:] != (SIZE, SIZE) or clip.dtype != np.uint8,
                    f"clip {name} must be uint8 (F, {SIZE}, {SIZE}); got {clip.dtype} {clip.shape}.",
                ),
                (
                    len(clip) < window,
                    f"clip {name} has {len(clip)} frames; expected at least one window of {window}. "
                    f"Choose a window of at most {len(clip)} frames or leave the clip out",
                ),
            )
        self.clips, self.window, self.stride, self.names = list(clips), window, stride, list(names)
        counts = [(len(clip) - window) // stride + 1 for clip in clips]
        self._first = np.cumsum([0, *counts])  # each clip's first window among all windows; last the number of windows

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> dict[str, Tensor | int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor | int]]:
        """Fetch a batch with one copy and one conversion; torch's data loader calls this if it exists."""
        frames = torch.from_numpy(np.stack([self.frames(index) for index in indices]))
        patches = patchify(frames).to(torch.float32).div_(255)
        return [
            {"patches": window, "group": self._clip_of(index)} for window, index in zip(patches, indices, strict=True)
        ]

    def frames(self, index: int) -> np.ndarray:
        """The frames of one window, uint8 (T, SIZE, SIZE); a view."""
        clip = self._clip_of(index)
        start = (index - int(self._first[clip])) * self.stride
        return self.clips[clip][start : start + self.window]

    def _clip_of(self, index: int) -> int:
        """The index of a window's clip."""
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        return int(np.searchsorted(self._first, index, side="right")) - 1

    def sigma(self) -> float:
        """σ_x: standard deviation of all pixels of the clips, in units of [0, 1].

        Each frame counts once, however many windows it is in. The result is exact: it comes from the histogram of the
        256 grey levels, so it does not depend on the order of summation.
        """
        counts = np.zeros(256, np.int64)
        for clip in self.clips:
            for start in range(0, len(clip), _BLOCK):
                counts += np.bincount(clip[start : start + _BLOCK].ravel(), minlength=256)
        levels = np.arange(256) / 255
        mean = np.average(levels, weights=counts)
        return float(np.sqrt(np.average((levels - mean) ** 2, weights=counts)))


class VideoDenoising(Task):
    """Reconstruct clean patches from noisy ones.

    The loss is the paper's, f = ½ Σ_t ‖x_t − x̂_t‖₂ over a sequence (one patch position over T frames), averaged over
    the N positions of a window. The norm is not squared, so the factor 1−α applies to an error in grey levels.
    The metric is the RMSE on the 0–255 scale over all pixels of a data set.
    """

    metric = "rmse"
    higher_is_better = False
    root = True
    separable = True

    def inputs(self, batch: dict[str, Any]) -> Tensor:
        """The patches, (B, T, N, P) in [0, 1]."""
        return batch["patches"]

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The clean patches, (B, T, N, P) in [0, 1]."""
        return batch["patches"]

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """f of every sample, shape (B,)."""
        return _Loss.apply(prediction, target)

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of every sample in grey levels, shape (B,)."""
        return (prediction - target).float().mul(255).square().mean((1, 2, 3))

    def picture(self, patches: Tensor) -> np.ndarray:
        """The middle frame of each window (B, T, N, P) as an image: uint8 (B, SIZE, SIZE)."""
        frames = unpatchify(patches[:, patches.shape[1] // 2].float())
        return frames.mul(255).round().clamp(0, 255).to(torch.uint8).numpy()

    def sigma(self, embedding: Any, dataset: VideoWindows) -> float:
        """σ_x of all pixels: a denoiser's input embedding is the pixels themselves."""
        return dataset.sigma()


class _Loss(torch.autograd.Function):
    """½ Σ_t ‖p − x‖₂ averaged over positions; the backward pass computes p − x again.

    With an exit at every layer, storing the differences would be the largest memory cost of the constraints; p and x
    are in memory anyway. The gradient at p = x is 0.
    """

    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor) -> Tensor:
        difference = prediction - target
        # Half precision is too coarse for a sum over 256 pixels.
        wide = torch.promote_types(difference.dtype, torch.float32)
        distance = torch.linalg.vector_norm(difference, dim=-1, dtype=wide)
        ctx.save_for_backward(prediction, target, distance)
        return distance.sum((1, 2)) / (2 * distance.shape[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        prediction, target, distance = ctx.saved_tensors
        share = (grads[0] / (2 * distance.shape[2]))[:, None, None]
        scale = torch.where(distance > 0, share / distance, 0.0)
        return (prediction - target).mul_(scale[..., None].to(prediction.dtype)), None
