"""The base recipe of video denoising."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from descend.declared import Layers, setting
from descend.errors import InputError
from descend.recipes.base import Data, Recipe, absolute

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from descend.models import LayeredModel
    from descend.tasks.video import VideoDenoising


@dataclass(frozen=True)
class VideoRecipe(Recipe):
    """The base recipe of video denoising: settings and data that are the same for all models."""

    has_head = False
    in_paper = True
    data_help = "PATH, a folder or file of videos"
    packages = ("av", "PIL")

    data: str = field(kw_only=True, metadata={"help": "videos, made grey 160x160; or: generated"})
    cache_dir: str | None = setting(None, "folder of decoded frames [~/.cache/descend]")
    depth: Layers = setting(7, "L, the number of layers")
    window: int = setting(5, "T, frames in a window")
    stride: int = setting(1, "frames from one training window to the next")

    # Settings of UT and DUST were chosen on validation clips of UCSD Ped2 at γ = 0.8: reproduction/records/lessons.md.
    training = Recipe.training | {
        "max_steps": 400,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 16,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "linear",
        "eval_strategy": "steps",
        "eval_steps": 100,
        "save_steps": 100,
        "strength": 0.7,
    }

    def completed(self) -> Self:
        """The recipe with absolute paths."""
        cache_dir = None if self.cache_dir is None else absolute(self.cache_dir)
        return replace(self, data=absolute(self.data), cache_dir=cache_dir)

    def load(self, model: LayeredModel | None = None, tokenizer: Any = None) -> Data:
        """Load windows of frames, which are the same for every model."""
        from descend.tasks.video import load_video

        video = load_video(
            self.source,
            self.window,
            stride=self.stride,
            cache_dir=self.cache_dir,
            validation_share=self.validation_share,
        )
        if len(video.validation) < 2:
            raise InputError(
                f"{video.name} leaves {len(video.validation)} window of {self.window} frames to validate on; expected "
                "at least 2. Choose a shorter --window, a larger --validation-share, or give more clips."
            )
        return Data(
            video.train,
            video.validation,
            video.test,
            video.name,
            measure_sigma=lambda: video.sigma,
            frame_sizes=video.sizes,
            read=video.read,
        )

    def about(self, data: Data) -> tuple[list[str], list[str]]:
        """The clips of each part, and the size of their frames."""
        from descend.results import ENOUGH_GROUPS
        from descend.tasks.video import SIZE

        train, validation, test = map(_clips, (data.train, data.validation, data.test))
        lines = [f"{data.name}: {train} to train on, {validation} for validation, {test} for test{data.passed_over}."]
        if 1 < len(getattr(data.test, "names", ())) < ENOUGH_GROUPS:
            lines.append(f"So few clips for test certify nothing: at least {ENOUGH_GROUPS} are needed. Add clips.")
        if data.frame_sizes is not None and (sizes := [f"{width}x{height}" for width, height in data.frame_sizes()]):
            some = ", ".join(sizes[:3]) + (" and others" if len(sizes) > 3 else "")
            lines.append(f"Frames of {some} pixels become grey and {SIZE}x{SIZE}, whatever their shape.")
        return lines, []

    def about_noise(self, data: Data) -> tuple[list[str], list[str]]:
        """The noise in grey levels, and whether it hides the frames."""
        sigma = float(data.sigma or 0)
        std = float(self.corruption(sigma, seed=0).std(sigma))
        levels = f"standard deviation {255 * std:,.0f} of 255 grey levels"
        lines = [f"Training noise: {levels} (γ = {self.noise:g}, σ_x = {sigma:.2g})."]
        if std <= min(1, 3 * sigma):
            return lines, []
        unit = "γ is in units of σ_x" if self.noise_is == "std" else "γσ_x is the noise's variance"
        wanted = ""
        if self.noise_is == "std" and 1 <= self.noise <= 255 and sigma:
            wanted = f" For {self.noise:g} grey levels give --noise {self.noise / (255 * sigma):.2g}."
        return lines, [f"the training noise hides the frames: it has {levels}. {unit}.{wanted}"]

    def load_test(self, data: str, model: LayeredModel, tokenizer: Any) -> tuple[Dataset, str]:
        """Load the test windows of another data set, and its name."""
        from descend.tasks.video import load_test

        return load_test(data, self.window, cache_dir=self.cache_dir)

    def task(self) -> VideoDenoising:
        """Mean L2 loss of a window, and RMSE."""
        from descend.tasks.video import VideoDenoising

        return VideoDenoising()


def _clips(windows: Dataset) -> str:
    """The number of clips of a part, with their names, or the first and the last one's."""
    from descend.tasks.video import VideoWindows

    names = list(windows.names) if isinstance(windows, VideoWindows) else []
    shown = ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]}"
    return f"{len(names)} clip{'s' * (len(names) != 1)} ({shown})"
