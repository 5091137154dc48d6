"""Deblurring with unfolded proximal gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from descend.declared import GENERATED, Allowed, Count, Layers, Positive, setting
from descend.recipes.base import Data
from descend.recipes.inverse import SEEDS, SIZES, InverseRecipe

if TYPE_CHECKING:
    from descend.models import PGD
    from descend.tasks.inverse import Measured, Reconstruction

Side = Annotated[int, Allowed("be at least 8 pixels", lambda value: value >= 8)]

WIDER = 1.5
"""Times the width of the blur in ``other-operator``."""

RECTANGLES, FINER = 4, 16
"""In an image, and in one of ``finer``."""


@dataclass(frozen=True)
class PGDRecipe(InverseRecipe):
    """Deblurring with unfolded proximal gradient descent, on generated images of rectangles.

    Attributes:
        side: Height and width of an image in pixels.
        channels: Of the network in the place of a proximal step.
        blur: The standard deviation of the Gaussian blur in pixels.
    """

    name = "pgd"
    help = "deblurring with unfolded proximal gradient descent"
    order = 91
    family = architecture = "PGD"
    signals = "images of rectangles"
    names_of_data = ("other-operator", "finer")

    depth: Layers = setting(5, "L, the number of iterations")
    side: Side = setting(16, "height and width of an image")
    channels: Count = setting(8, "channels of a layer's network")
    blur: Positive = setting(1.2, "std of the blur in pixels")

    training = InverseRecipe.training | {"max_steps": 1000, "per_device_train_batch_size": 32}

    def measured(self, part: str, shift: str = GENERATED) -> Measured:
        """Images and blurred ones."""
        from functools import partial

        from descend.models import blurred
        from descend.tasks.inverse import Measured, images

        count = FINER if shift == "finer" else RECTANGLES
        std = self.blur * (WIDER if shift == "other-operator" else 1.0)
        return Measured(images(SIZES[part], self.side, count, SEEDS[part]), partial(blurred, std=std))

    def task(self) -> Reconstruction:
        """The mean squared error of a pixel."""
        from descend.tasks.inverse import Reconstruction

        return Reconstruction(self.side**2, "mse")

    def network(self, data: Data | None) -> PGD:
        """A new network."""
        from descend.models import PGD, PGDConfig

        return PGD(PGDConfig(self.depth, self.tied, self.side, self.channels, self.blur))
