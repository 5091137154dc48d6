"""Denoise frames with a trained model, by all of its layers or by the first K."""

from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoModel

from descend.errors import InputError, refuse, refusing
from descend.models import DUST, UT, ViTDenoiser, load_model
from descend.noise import GaussianNoise
from descend.reading import read_json
from descend.results import CONFIG_FILE, read_config
from descend.tasks.video import SIZE, array_frames, find_clips, patchify, unpatchify


class DescentDenoiser:
    """A denoiser of grey frames of 160×160 pixels; layers after the chosen one are not computed.

    Args:
        model: A trained `UT`, `DUST` or `ViTDenoiser`.
        window: T, the number of frames that the model was trained to see together.
        noise: The training noise with its σ_x; None if it is not known.
        device: The device to move the model to; None leaves it where it is.

    Raises:
        InputError: If the model is no denoiser, or the window is below 1.
    """

    def __init__(
        self,
        model: UT | DUST | ViTDenoiser,
        window: int = 5,
        noise: GaussianNoise | None = None,
        device: torch.device | str | None = None,
    ):
        refuse(
            (
                not isinstance(model, UT | DUST | ViTDenoiser),
                f"expected a UT, a DUST or a ViTDenoiser; got {type(model).__name__}.",
            ),
            (window < 1, f"window must be at least 1 frame; got {window}."),
        )
        self.model, self.window, self.noise = model, window, noise
        if device is not None:
            torch.nn.Module.to(self.model, device)

    @classmethod
    def from_pretrained(cls, source: str | Path, device: torch.device | str | None = None) -> Self:
        """Load a trained denoiser, with the window and the noise of its training if a run folder or an export has them.

        Args:
            source: A run folder, a folder of one of its models such as ``runs/a/best_feasible``, another folder that
                `save_pretrained` or ``descend export`` wrote, or a name on the Hub.
            device: The device to move the model to; None for the CPU.

        Raises:
            InputError: If it can't be loaded, or is no denoiser.
        """
        folder = Path(source).expanduser()
        # A run folder also has a config.json: that of the run.
        place = next((str(each) for each in (folder / "model", folder) if each.is_dir()), str(source))
        expected = "a run folder of a video recipe, a folder with a denoiser, or a name on the Hub"
        model, loading = load_model(AutoModel, place, "a denoiser", expected, output_loading_info=True)
        if isinstance(model, UT | DUST | ViTDenoiser) and loading["missing_keys"]:
            raise InputError(f"{source} lacks weights: {', '.join(sorted(loading['missing_keys']))}. Copy it again.")
        window, noise = _training(Path(place).absolute().parent, model)
        return cls(model, window, noise, device)

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return self.model.depth

    @property
    def noise_std(self) -> float | None:
        """The standard deviation of the training noise in grey levels, out of 255; None if it is not known."""
        return None if self.noise is None or self.noise.sigma is None else 255 * self.noise.std(self.noise.sigma)

    def layer_of(self, layer: int | None) -> int:
        """The layer that `denoise` reads: the last one for None.

        Raises:
            InputError: If the model has no such layer.
        """
        layer = self.depth if layer is None else layer
        if not 1 <= layer <= self.depth:
            raise InputError(f"layer must be 1 to {self.depth}, the layers of the model; got {layer}.")
        return layer

    @torch.no_grad()
    def denoise(self, frames: Any, layer: int | None = None, batch_size: int = 16) -> np.ndarray:
        """Denoise consecutive frames of one clip; the model is put into eval mode.

        Frames are brought to the model's size and to grey as in training, then cut into windows of T. The last window
        overlaps the one before it. A clip shorter than T is one window.

        Args:
            frames: A video file, a folder of images, or an array (F, H, W) or, in RGB, (F, H, W, 3): uint8, or floats
                in [0, 1], which noise may have moved out of these bounds.
            layer: K = 1 … L, the layer that is read; None for the last.
            batch_size: Windows per batch.

        Returns:
            uint8 (F, 160, 160).

        Raises:
            InputError: If the frames can't be read, or an argument is out of range.
        """
        layer = self.layer_of(layer)
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1; got {batch_size}.")
        if isinstance(frames, str | Path):
            clips = find_clips(frames, None)
            if len(clips) > 1:
                raise InputError(
                    f"{frames} holds {len(clips)} clips; expected one video or one folder of images. Give them one by "
                    "one, or use descend denoise."
                )
            noisy = np.stack(list(clips[0].frames()))
        else:
            noisy = array_frames(frames)
        weight = next(self.model.eval().parameters())
        last = max(0, len(noisy) - self.window)
        starts = [*range(0, last, self.window), last]
        denoised = np.empty((len(noisy), SIZE, SIZE), np.uint8)
        for place in range(0, len(starts), batch_size):
            batch = starts[place : place + batch_size]
            windows = torch.from_numpy(np.stack([noisy[start : start + self.window] for start in batch]))
            scale = 255 if noisy.dtype == np.uint8 else 1
            patches = patchify(windows).to(weight.device, torch.float32).div_(scale).to(weight.dtype)
            read = next(islice(self.model.predictions(patches), layer, None))
            pixels = unpatchify(read.float()).mul_(255).round_().clamp_(0, 255).to(torch.uint8).cpu().numpy()
            for start, window in zip(batch, pixels, strict=True):
                denoised[start : start + self.window] = window
        return denoised


def _training(run: Path, model: Any) -> tuple[int, GaussianNoise | None]:
    """The window and the noise of a run or of its export; the default and None for another model."""
    file = run / CONFIG_FILE
    content = read_json(file) if file.is_file() else None
    if isinstance(content, dict) and str(content.get("recipe")).startswith("video-"):
        origin: Any = read_config(run).export_entries
    else:
        file, origin = Path(model.config.name_or_path), getattr(model.config, "descend", None) or {}
    if "trained_on" not in origin:
        return 5, None
    known = origin["trained_on"]
    with refusing(f"{file} has no usable window and noise", "Train the run again."):
        noise = GaussianNoise(known["noise"], known["sigma"], known["seed"], known.get("noise_is", "std"))
        return int(known["window"]), noise
