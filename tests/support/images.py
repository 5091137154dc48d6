"""Made-up images in a folder for each class."""

from pathlib import Path

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def picture(height: int = 20, width: int = 30, mode: str = "RGB") -> Image.Image:
    """Dark, with a bright upper half."""
    values = RNG.integers(0, 40, (height, width), dtype=np.uint8)
    values[: height // 2] += 200
    return Image.fromarray(values).convert(mode)


def folder(
    root: Path, sides: tuple[str, ...] = ("train", "test"), classes: tuple[str, ...] = ("cats", "dogs"), count: int = 5
) -> Path:
    """Images below a folder for each side and class; returns the root."""
    for side in sides:
        for name in classes:
            (root / side / name).mkdir(parents=True)
            for place in range(count):
                picture().save(root / side / name / f"{place}.png")
    return root
