"""Video denoising with a vision transformer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from descend.declared import Layers, setting
from descend.recipes.base import Data, absolute_or_name, config_of
from descend.recipes.video import VideoRecipe

if TYPE_CHECKING:
    from descend.models import ViTDenoiser, ViTDenoiserConfig


@dataclass(frozen=True)
class ViTRecipe(VideoRecipe):
    """Video denoising with a vision transformer, frame by frame.

    A layer is read by a norm and a linear layer (``decoder``), or its tokens are the pixels (``pixels``).
    """

    name = "video-vit"
    help = "video denoising with a vision transformer ViT, frame by frame (Dosovitskiy et al., 2021)"
    order = 20
    architecture = "ViTDenoiser"

    depth: Layers = setting(12, "L, the blocks; of a pretrained ViT the first L")
    window: int = setting(5, "T, frames in a window; each is read alone")
    pretrained: str | None = setting(None, "Hub name or folder of a ViT or DINOv2 [a small new one]")
    hidden_size: int | None = setting(None, "width of a new ViT [128; for pixels 768]")
    readout: str = setting("decoder", "how a layer is read", ("decoder", "pixels"))

    # Not tuned. The larger strength is for its early layers, which ERM leaves far behind.
    training = VideoRecipe.training | {"learning_rate": 1e-3, "warmup_steps": 20, "max_steps": 200, "strength": 0.75}

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
        from descend.models import ViTDenoiserConfig

        ViTDenoiserConfig.of_pretrained(self.pretrained, self.depth, self.readout)
        return replace(super().completed(), pretrained=absolute_or_name(self.pretrained))

    def network(self, data: Data | None) -> ViTDenoiser:
        """A ViT with its pretrained blocks, or a small new one."""
        from descend.models import ViTDenoiser

        if self.pretrained is not None:
            return ViTDenoiser.from_vit(self.pretrained, self.depth, self.readout)
        return ViTDenoiser(self._small())

    def _small(self) -> ViTDenoiserConfig:
        from descend.models import ViTDenoiserConfig

        width = self.hidden_size
        if width is None:
            width = 3 * 16**2 if self.readout == "pixels" else 128
        return ViTDenoiserConfig(
            num_hidden_layers=self.depth, hidden_size=width, intermediate_size=4 * width, readout=self.readout
        )
