"""Video denoising with the deep unfolded sequential transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.declared import setting
from descend.recipes.base import Data
from descend.recipes.video import VideoRecipe

if TYPE_CHECKING:
    from descend.models import DUST


@dataclass(frozen=True)
class DUSTRecipe(VideoRecipe):
    """Video denoising with the deep unfolded sequential transformer."""

    name = "video-dust"
    help = "video denoising with the deep unfolded sequential transformer DUST (De Weerdt et al., 2023)"
    order = 10
    family = architecture = "DUST"

    tied: bool = setting(True, "one dictionary for all layers")
    atoms: int = setting(1024, "size of the sparse code, a square number")
    layer: str = setting("alternating", "eq. (75)-(76), or one step of (74)", ("alternating", "proximal"))
    l1: float = setting(0.02, "λ₁, the weight of sparsity")
    l2: float = setting(1.0, "λ₂, the weight of the attention energy")
    margin: float = setting(1.01, "c / ‖D‖², the inverse step of a layer")
    c: float | None = setting(None, "the inverse step, a constant [by the margin]")

    training = VideoRecipe.training | {"learning_rate": 2e-3, "max_steps": 150, "per_device_train_batch_size": 2}

    def network(self, data: Data | None) -> DUST:
        """A new DUST."""
        from descend.models import DUST, DUSTConfig

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
