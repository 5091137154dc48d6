"""Video denoising with the unrolled transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.declared import setting
from descend.recipes.base import Data
from descend.recipes.video import VideoRecipe

if TYPE_CHECKING:
    from descend.models import UT


@dataclass(frozen=True)
class UTRecipe(VideoRecipe):
    """Video denoising with the unrolled transformer."""

    name = "video-ut"
    help = "video denoising with the unrolled transformer UT (Yang et al., 2022)"
    order = 0
    family = architecture = "UT"

    tied: bool = setting(True, "one set of weights for all layers")
    heads: int = setting(1, "attention heads")
    attention_size: int = setting(32, "dimension of attention, over all heads")
    kernel: str = setting("softmax", "of attention, eq. (47) or (49)", ("softmax", "gaussian"))

    def network(self, data: Data | None) -> UT:
        """A new UT."""
        from descend.models import UT, UTConfig

        return UT(
            UTConfig(
                depth=self.depth,
                tied=self.tied,
                heads=self.heads,
                attention_size=self.attention_size,
                kernel=self.kernel,
            )
        )
