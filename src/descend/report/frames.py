"""Pictures: a network's input and the output of each layer, and their viewer with sliders for noise and layer."""

import base64
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from descend.errors import InputError

# WebP at this quality keeps a noisy 160×160 frame near 7 kB, and a viewer sees no difference at the size of the page.
QUALITY = 60

# Of frames.npz: what an evaluation keeps of a few frames of 160×160 is some MB.
MOST_BYTES = 2**28
MOST_SIDE = 4096

_FRAMES = """The same clip through each network. Move along the layers to watch it being cleaned, and along
the noise to see where a network gives up. RMSE is its distance from the clean picture, on 0–255."""


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


def _arrays(path: Path) -> list[np.ndarray]:
    """The arrays of ``frames.npz``, without pickles; the unpacked size is bounded."""
    with zipfile.ZipFile(path) as archive:
        if (size := sum(member.file_size for member in archive.infolist())) > MOST_BYTES:
            raise InputError(f"{path} unpacks to {size} bytes; expected at most {MOST_BYTES}. Keep fewer --frames.")
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in ("clean", "noisy", "reconstruction", "noise")]


class Slider(NamedTuple):
    """A slider over levels, on the one nearest to where it starts."""

    ident: str
    control: str
    label: str
    levels: Sequence[float]
    start: float

    @property
    def place(self) -> int:
        """The level on which it stands."""
        return min(range(len(self.levels)), key=lambda index: abs(self.levels[index] - self.start))


def pictures_view(
    index: int, pictures: Mapping[str, Frames], trained: float, budget: int, heading: str = "", note: str = ""
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The pictures of some runs side by side.

    Args:
        index: The section's number on the page.
        pictures: Label → pictures.
        trained: The training noise, where the slider starts.
        budget: Most characters that they may take.
        heading: Their heading; none if empty.
        note: Added to the words above them.

    Returns:
        Data for the page's script, None if there is nothing to show, and the values of the template's ``pictures``.
    """
    first = next(iter(pictures.values()))
    alike = all(first.same_input(other) for other in pictures.values())
    data = embed(pictures, budget, trained) if alike else None
    if data is None:
        apart = "The runs show different clips or noise, so they are not put side by side."
        large = "They would make the page too large; a report of fewer runs shows them."
        return None, {"heading": heading, "words": large if alike else apart, "labels": []}
    layers = list(range(data["layers"] + 1))
    sliders = [
        Slider(f"frames-noise-{index}", "noise", "Noise γ", data["noise"], trained),
        Slider(f"frames-layer-{index}", "layer", "Layer", layers, layers[-1]),
    ]
    labels = [panel["label"] for panel in data["panels"]]
    view = {"heading": heading, "words": _FRAMES + note, "labels": labels, "sliders": sliders}
    return data, view | {"section": index, "clips": data["clips"]}


def embed(frames: Mapping[str, Frames], budget: int, trained: float) -> dict[str, Any] | None:
    """Pictures as data for the page: panels of nested lists of data URIs, with the RMSE of each.

    A panel's ``axes`` name its lists from the outside in; the page walks them with the positions of its
    sliders. What does not fit the budget is thinned, to one clip first, then to every other noise
    level. The level of the training stays.

    Args:
        frames: Label → pictures of the same clips under the same noise, in order of appearance.
        budget: Most characters that the data may take.
        trained: The training noise.

    Returns:
        ``{"noise": [γ…], "clips": K, "layers": L, "panels": [{"label", "axes", "images", "rmse"}…]}``, or
        None if not even two noise levels fit.
    """
    first = next(iter(frames.values()))
    levels, clips = list(range(len(first.noise))), len(first.clean)
    trained_at = min(levels, key=lambda place: abs(first.noise[place] - trained))
    while True:
        panels = _panels(frames, levels, clips)
        if sum(_size(panel["images"]) for panel in panels) <= budget:
            layers = max(item.reconstruction.shape[1] for item in frames.values()) - 1
            noise = [first.noise[level] for level in levels]
            return {"noise": noise, "clips": clips, "layers": layers, "panels": panels}
        if clips > 1:
            clips = 1
        elif len(levels) > 2:
            ends = {trained_at, levels[-1] if trained_at != levels[-1] else levels[0]}
            every_other = levels[levels.index(trained_at) % 2 :: 2]
            levels = sorted({*every_other, *ends}) if len(levels) > 3 else sorted(ends)
        else:
            return None


def _panels(frames: Mapping[str, Frames], levels: list[int], clips: int) -> list[dict[str, Any]]:
    first = next(iter(frames.values()))
    clean = first.clean[:clips]
    shown = [("Clean", ["clip"], clean), ("Noisy input", ["noise", "clip"], first.noisy[levels, :clips])]
    for label, item in frames.items():
        shown.append((label, ["noise", "layer", "clip"], item.reconstruction[levels, :, :clips]))
    panels = []
    for label, axes, images in shown:
        error = np.sqrt(np.square(images.astype(np.float32) - clean).mean(axis=(-1, -2))).round(2).tolist()
        rmse = None if images is clean else error
        panels.append({"label": label, "axes": axes, "images": _encode(images), "rmse": rmse})
    return panels


def _encode(images: np.ndarray) -> Any:
    if images.ndim > 2:
        return [_encode(image) for image in images]
    buffer = io.BytesIO()
    Image.fromarray(images).save(buffer, "WEBP", quality=QUALITY)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _size(images: Any) -> int:
    return len(images) if isinstance(images, str) else sum(map(_size, images))
