"""Video denoising with the unrolled transformers and ViT."""

from dataclasses import replace
from typing import ClassVar, Self

from torch.utils.data import Dataset
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models import DUST, UT, DUSTConfig, UTConfig, ViTDenoiser, ViTDenoiserConfig
from descend.recipes.base import Data, Recipe, Restored, absolute, absolute_or_name, config_of, load_pretrained
from descend.results import ENOUGH_GROUPS
from descend.settings import DUSTSettings, UTSettings, VideoSettings, ViTSettings
from descend.tasks.video import SIZE, VideoDenoising, VideoWindows, load_test, load_video


class VideoRecipe(VideoSettings, Recipe):
    """The base recipe of video denoising: settings and data that are the same for all models."""

    architecture: ClassVar[type[PreTrainedModel]]

    def completed(self) -> Self:
        """The recipe with absolute paths."""
        cache_dir = None if self.cache_dir is None else absolute(self.cache_dir)
        return replace(self, data=absolute(self.data), cache_dir=cache_dir)

    def load(self, restored: Restored | None = None) -> Data:
        """Load windows of frames, which are the same for every model."""
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
        """The clips of each part, the size of their frames, and the noise in grey levels."""
        train, validation, test = map(_clips, (data.train, data.validation, data.test))
        lines = [f"{data.name}: {train} to train on, {validation} for validation, {test} for test{data.passed_over}."]
        if 1 < len(getattr(data.test, "names", ())) < ENOUGH_GROUPS:
            lines.append(f"So few clips for test certify nothing: at least {ENOUGH_GROUPS} are needed.")
        if data.frame_sizes is not None and (sizes := [f"{width}x{height}" for width, height in data.frame_sizes()]):
            some = ", ".join(sizes[:3]) + (" and others" if len(sizes) > 3 else "")
            lines.append(f"Frames of {some} pixels become grey and {SIZE}x{SIZE}, whatever their shape.")
        sigma = float(data.sigma or 0)
        std = float(self.corruption(sigma, seed=0).std(sigma))
        levels = f"standard deviation {255 * std:,.0f} of 255 grey levels"
        lines.append(f"Training noise: {levels} (γ = {self.noise:g}, σ_x = {sigma:.2g}).")
        if std <= min(1, 3 * sigma):
            return lines, []
        unit = "γ is in units of σ_x" if self.noise_is == "std" else "γσ_x is the noise's variance"
        wanted = ""
        if self.noise_is == "std" and 1 <= self.noise <= 255 and sigma:
            wanted = f" For {self.noise:g} grey levels give --noise {self.noise / (255 * sigma):.2g}."
        return lines, [f"the training noise hides the frames: it has {levels}. {unit}.{wanted}"]

    def load_test(self, data: str, restored: Restored) -> tuple[Dataset, str]:
        """Load the test windows of another data set, and its name."""
        return load_test(data, self.window, cache_dir=self.cache_dir)

    def task(self) -> VideoDenoising:
        """Mean L2 loss of a window, and RMSE."""
        return VideoDenoising()

    def restore(self, folder: str) -> Restored:
        """Load a model that `save_pretrained` wrote."""
        return Restored(load_pretrained(self.architecture, folder))


class UTRecipe(UTSettings, VideoRecipe):
    """Video denoising with the unrolled transformer."""

    family = "UT"
    architecture = UT

    def network(self, data: Data | None) -> UT:
        """A new UT."""
        return UT(
            UTConfig(
                depth=self.depth,
                tied=self.tied,
                heads=self.heads,
                attention_size=self.attention_size,
                kernel=self.kernel,
            )
        )


class DUSTRecipe(DUSTSettings, VideoRecipe):
    """Video denoising with the deep unfolded sequential transformer."""

    family = "DUST"
    architecture = DUST

    def network(self, data: Data | None) -> DUST:
        """A new DUST."""
        return DUST(
            DUSTConfig(
                depth=self.depth,
                tied=self.tied,
                atoms=self.atoms,
                layer=self.layer,
                l1=self.l1,
                l2=self.l2,
                margin=self.margin,
                c=self.c,
            )
        )


class ViTRecipe(ViTSettings, VideoRecipe):
    """Video denoising with a vision transformer, frame by frame.

    A layer is read by a norm and a linear layer (``decoder``), or its tokens are the pixels (``pixels``).
    """

    architecture = ViTDenoiser

    @property
    def label(self) -> str:
        """The model's name in tables, such as ViT-12 or DINOv2-12."""
        dino = self.pretrained is not None and config_of(self.pretrained).model_type == "dinov2"
        return f"{'DINOv2' if dino else 'ViT'}-{self.depth}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained is None:
            self._small()  # raises for a width or readout that is not allowed

    def completed(self) -> Self:
        """The recipe with absolute paths.

        Raises:
            InputError: If the pretrained ViT can't be used with these settings.
        """
        if self.pretrained is None:
            return super().completed()
        ViTDenoiserConfig.of_pretrained(self.pretrained, self.depth, self.readout)
        return replace(super().completed(), pretrained=absolute_or_name(self.pretrained))

    def network(self, data: Data | None) -> ViTDenoiser:
        """A ViT with its pretrained blocks, or a small new one."""
        if self.pretrained is not None:
            return ViTDenoiser.from_vit(self.pretrained, self.depth, self.readout)
        return ViTDenoiser(self._small())

    def _small(self) -> ViTDenoiserConfig:
        width = self.hidden_size
        if width is None:
            width = 3 * 16**2 if self.readout == "pixels" else 128
        return ViTDenoiserConfig(
            num_hidden_layers=self.depth, hidden_size=width, intermediate_size=4 * width, readout=self.readout
        )


def _clips(windows: Dataset) -> str:
    """The number of clips of a part, with their names, or the first and the last one's."""
    names = list(windows.names) if isinstance(windows, VideoWindows) else []
    shown = ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]}"
    return f"{len(names)} clip{'s' * (len(names) != 1)} ({shown})"
