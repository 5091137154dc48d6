"""Pictures: a network's input and the output of each layer."""

import base64
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from descend.errors import InputError

# WebP at this quality keeps a noisy 160×160 frame near 7 kB, and a viewer sees no difference at the size of the page.
QUALITY = 60

# Of frames.npz: what an evaluation keeps of a few frames of 160×160 is some MB.
MOST_BYTES = 2**28
MOST_SIDE = 4096


@dataclass(frozen=True)
class Frames:
    """Pictures of one evaluation of K clips at G noise levels, uint8.

    ``clean`` is (K, H, W), ``noisy`` (G, K, H, W) and ``reconstruction`` (G, L+1, K, H, W).
    """

    noise: list[float]
    clean: np.ndarray
    noisy: np.ndarray
    reconstruction: np.ndarray

    @classmethod
    def load(cls, path: Path) -> "Frames":
        """Read ``frames.npz``.

        Raises:
            InputError: If the file is damaged or its arrays do not fit together.
        """
        try:
            clean, noisy, reconstruction, levels = _arrays(path)
            noise = [float(level) for level in levels]
        except InputError:
            raise
        # All exceptions: numpy's and zipfile's readers meet damage with a dozen kinds, depending on where it is.
        except Exception as error:
            raise InputError(f"{path} is damaged; remove it, and run `descend evaluate` again.") from error
        count = len(noise)
        if (
            clean.ndim != 3
            or noisy.shape != (count, *clean.shape)
            or reconstruction.ndim != 5
            or reconstruction.shape[:1] + reconstruction.shape[2:] != noisy.shape
            or any(array.dtype != np.uint8 for array in (clean, noisy, reconstruction))
            or not reconstruction.size
            or max(clean.shape) > MOST_SIDE
            or not all(map(isfinite, noise))
        ):
            raise InputError(
                f"{path} must hold uint8 clean (K,H,W), noisy (G,K,H,W) and reconstruction (G,L+1,K,H,W), "
                f"G = {count} noise levels, none empty and no side above {MOST_SIDE}; got {clean.shape}, "
                f"{noisy.shape} and {reconstruction.shape}. Remove it, and run `descend evaluate` again."
            )
        return cls(noise, clean, noisy, reconstruction)

    def same_input(self, other: "Frames") -> bool:
        """Whether both show the same clips under the same noise, so that their outputs compare."""
        return self.noise == other.noise and np.array_equal(self.clean, other.clean)

    def choose(self, levels: Sequence[int], clips: int) -> "Frames":
        """The same pictures at fewer noise levels and of fewer clips."""
        index = list(levels)
        return Frames(
            [self.noise[level] for level in index],
            self.clean[:clips],
            self.noisy[index, :clips],
            self.reconstruction[index, :, :clips],
        )


def _arrays(path: Path) -> list[np.ndarray]:
    """The arrays of ``frames.npz``, without pickles; the unpacked size is bounded."""
    with zipfile.ZipFile(path) as archive:
        if (size := sum(member.file_size for member in archive.infolist())) > MOST_BYTES:
            raise InputError(f"{path} unpacks to {size} bytes; expected at most {MOST_BYTES}. Keep fewer --frames.")
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in ("clean", "noisy", "reconstruction", "noise")]


def embed(frames: Mapping[str, Frames], budget: int, trained: float | None = None) -> dict[str, Any] | None:
    """Pictures as data for the page: panels of nested lists of data URIs, with the RMSE of each.

    A panel's ``axes`` name its lists from the outside in; the page walks them with the positions of its
    sliders. What does not fit the budget is thinned, to one clip first, then to every other noise
    level. The level of the training stays.

    Args:
        frames: Label → pictures of the same clips under the same noise, in order of appearance.
        budget: Most characters that the data may take.
        trained: The training noise; the first level unless given.

    Returns:
        ``{"noise": [γ…], "clips": K, "layers": L, "panels": [{"label", "axes", "images", "rmse"}…]}``, or
        None if not even two noise levels fit.
    """
    first = next(iter(frames.values()))
    levels, clips = list(range(len(first.noise))), len(first.clean)
    start = first.noise[0] if trained is None else trained
    kept = min(levels, key=lambda place: abs(first.noise[place] - start))
    while True:
        data = _panels({label: item.choose(levels, clips) for label, item in frames.items()})
        if sum(_size(panel["images"]) for panel in data["panels"]) <= budget:
            return data
        if clips > 1:
            clips = 1
        elif len(levels) > 2:
            ends = {kept, levels[-1] if kept != levels[-1] else levels[0]}
            every_other = levels[levels.index(kept) % 2 :: 2]
            levels = sorted({*every_other, *ends}) if len(levels) > 3 else sorted(ends)
        else:
            return None


def _panels(frames: Mapping[str, Frames]) -> dict[str, Any]:
    first = next(iter(frames.values()))
    panels = [
        _panel("Clean", ["clip"], first.clean, None),
        _panel("Noisy input", ["noise", "clip"], first.noisy, first.clean),
    ]
    for label, item in frames.items():
        panels.append(_panel(label, ["noise", "layer", "clip"], item.reconstruction, item.clean))
    return {
        "noise": first.noise,
        "clips": len(first.clean),
        "layers": max(item.reconstruction.shape[1] for item in frames.values()) - 1,
        "panels": panels,
    }


def _panel(label: str, axes: list[str], images: np.ndarray, clean: np.ndarray | None) -> dict[str, Any]:
    rmse = None
    if clean is not None:
        error = images.astype(np.float32) - clean
        rmse = np.sqrt(np.square(error).mean(axis=(-1, -2))).round(2).tolist()
    return {"label": label, "axes": axes, "images": _encode(images), "rmse": rmse}


def _encode(images: np.ndarray) -> Any:
    if images.ndim > 2:
        return [_encode(image) for image in images]
    buffer = io.BytesIO()
    Image.fromarray(images).save(buffer, "WEBP", quality=QUALITY)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _size(images: Any) -> int:
    return len(images) if isinstance(images, str) else sum(map(_size, images))
