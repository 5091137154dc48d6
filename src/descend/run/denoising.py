"""Denoise clips with a run's model, and write the frames as pictures."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

from descend.errors import InputError, refuse
from descend.inference.denoiser import DescentDenoiser
from descend.progress import progress
from descend.results import MODELS, atomic_folder
from descend.seeds import Stream, generator_of
from descend.tasks.video import Clip, find_clips
from descend.writing import refuse_full

_WINDOWS = 16
"""Windows that are in memory at a time."""


def denoise(
    run: Path,
    data: Path,
    out: Path,
    *,
    layer: int | None = None,
    noise: float | None = None,
    model: str = "model",
    limit: int | None = None,
) -> list[str]:
    """Denoise clips, and write each frame as a grey PNG of 160×160 pixels, ``OUT/CLIP/00000.png`` and so on.

    Args:
        run: A run of a video recipe, or an export of one.
        data: A video, a folder of videos, a folder of images, or a folder of such folders.
        out: The folder to write; it must be empty or not exist.
        layer: K = 1 … L, the layer that is read; None for the last.
        noise: Add Gaussian noise of this level γ first, for a trial: the error is measured beside that of a blur, and
            the noisy frames are written as ``00000_noisy.png`` beside the others.
        model: The run's model: ``model`` or ``best_feasible``.
        limit: So many first frames of each clip; None for all.

    Returns:
        What was written, in words.

    Raises:
        InputError: If the run, the data or a setting can't be used; nothing is written then.
        SaveError: If the pictures can't be written.
    """
    refuse_full(out)
    alone = not (run / model).is_dir()  # as an export is
    if alone and model != MODELS[0]:
        raise InputError(f"{run} has no model {model!r}; an export is one model. Leave out --model, or give the run.")
    clips = find_clips(data, None)
    announced = sum(min(count, limit or count) for count in (clip.announced() for clip in clips))
    device = "cuda" if torch.cuda.is_available() else None
    denoiser = DescentDenoiser.from_pretrained(run if alone else run / model, device)
    layer = denoiser.layer_of(layer)
    refuse(
        (
            limit is not None and limit < denoiser.window,
            f"--limit must be at least {denoiser.window} frames, the model's window; got {limit}.",
        ),
        (
            noise is not None and denoiser.noise_std is None,
            "noise needs the σ_x of the training data, and the run has none. Train the run again.",
        ),
    )
    shaken = None if noise is None or denoiser.noise is None else denoiser.noise.at(noise)
    # Of each clip: frames; over them sums of squared errors in grey levels, noisy, denoised and blurred.
    sums = {clip.name: np.zeros(4) for clip in clips}
    with (
        atomic_folder(out, alone=False) as part,
        progress(announced or None, "denoising", "frame") as bar,
    ):
        for number, clip in enumerate(clips):
            folder = part / clip.name
            folder.mkdir(parents=True, exist_ok=True)  # another clip may lie in a folder of this name
            draws = generator_of(Stream.SAMPLE_NOISE, 0, number)
            first = 0
            for clean in _blocks(clip, denoiser.window, limit):
                given = clean
                if shaken is not None:
                    std = shaken.std(shaken.sigma or 0.0)
                    pixels = torch.from_numpy(clean) / 255
                    given = shaken.applied(pixels, shaken.draw(pixels, draws), std).numpy()
                denoised = denoiser.denoise(given, layer)
                _save(folder, "", denoised, first)
                if shaken is not None:
                    _save(folder, "_noisy", (given * 255).round().clip(0, 255).astype(np.uint8), first)
                    shown = given * 255, denoised, gaussian_filter(given * 255, 1)
                    sums[clip.name][1:] += [np.square(each - clean.astype(float)).mean((1, 2)).sum() for each in shown]
                first += len(clean)
                bar.update(len(clean))
            sums[clip.name][0] = first
    total = np.sum([*sums.values()], axis=0)
    count = f"{_some(int(total[0]), 'frame')} of {_some(len(clips), 'clip')}"
    lines = [f"{out}: {count} after layer {layer} of {denoiser.depth}."]
    if (trained := denoiser.noise_std) is not None:
        weaker = " Frames with less may get worse; --noise adds some, for a trial." if shaken is None else ""
        lines.append(f"The model was trained to remove noise of standard deviation {trained:.0f} of 255.{weaker}")
    if shaken is not None:
        before, after, blur = np.sqrt(total[1:] / total[0])
        lines.append(
            f"RMSE against the frames before noise was added: {before:.1f} with it, {after:.1f} denoised, {blur:.1f} "
            "blurred (Gaussian, over 1 frame and 1 pixel, not tuned)."
        )
        for name, (frames, *squares) in sums.items() if len(clips) > 1 else ():
            lines.append(f"  {name}: {', '.join(f'{(each / frames) ** 0.5:.1f}' for each in squares)}")
    return lines


def _save(folder: Path, end: str, frames: np.ndarray, first: int) -> None:
    for place, frame in enumerate(frames, first):
        Image.fromarray(frame).save(folder / f"{place:05}{end}.png")


def _blocks(clip: Clip, window: int, limit: int | None) -> Iterator[np.ndarray]:
    """A clip's first frames in blocks of whole windows; the last block is longer rather than shorter than a window."""
    frames = islice(clip.frames(), limit)
    block: list[np.ndarray] = []
    while more := list(islice(frames, _WINDOWS * window)):
        if len(block) and len(more) >= window:
            yield np.stack(block)
            block = []
        block += more
    yield np.stack(block)


def _some(count: int, name: str) -> str:
    """A number of things: "1 clip", "2 clips"."""
    return f"{count} {name}{'s' * (count != 1)}"
