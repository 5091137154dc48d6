"""Generated clips of a fixed surveillance camera, so that video recipes run without downloaded data.

All clips share a background. People walk at different speeds behind a tree, and the camera adds noise: most of a frame
can be denoised along time, and moving edges are hard. The number, speed and contrast of the people were set to match
UCSD Ped2: the standard deviation of a patch's change over four frames is 21, 29 and 37 grey levels at the 90th, 95th
and 99th percentile of patches.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from descend.tasks.video.decoding import SIZE

CAMERA_NOISE = 0.7
"""Standard deviation of the camera's noise, in grey levels."""

_BACKGROUND_MEAN, _BACKGROUND_STD = 120.0, 44.0  # grey levels; UCSD Ped2 has a std of 46
_FINE = 4  # oversampling of the drawing, so that slow figures move by less than a pixel per frame
_HORIZON = 52  # the row that separates the wall above from the path below


def generate_scenes(clips: int, frames: int, seed: int, *, first: int = 0) -> list[np.ndarray]:
    """Generate clips of one fixed camera.

    Args:
        clips: The number of clips; the first ones are the same for every number.
        frames: The number of frames in each clip.
        seed: The seed of the background and of all people.
        first: The number of clips of this camera that come before them, and are others.

    Returns:
        One uint8 (frames, SIZE, SIZE) per clip; the same for the same arguments.
    """
    background, tree, tree_shape = _camera_view(np.random.default_rng([seed, 0]))
    scenes = []
    for clip in range(first, first + clips):
        rng = np.random.default_rng([seed, 1, clip])
        walkers = sorted((_Walker(rng, frames) for _ in range(rng.integers(12, 21))), key=lambda walker: walker.y)
        scene = np.empty((frames, SIZE, SIZE), np.uint8)
        for time in range(frames):
            canvas = background.copy()
            for walker in walkers:  # nearer people are lower in the picture and are drawn later
                walker.draw(ImageDraw.Draw(canvas), time)
            canvas.paste(tree, mask=tree_shape)
            clean = np.asarray(canvas.reduce(_FINE), np.float32)
            noise = CAMERA_NOISE * rng.standard_normal((SIZE, SIZE), np.float32)
            scene[time] = np.clip(np.rint(clean + noise), 0, 255)
        scenes.append(scene)
    return scenes


class _Walker:
    """A person who is in the picture in the middle of the clip; nearer people are larger.

    Lengths are in pixels of the frame, time in frames.
    """

    def __init__(self, rng: np.random.Generator, frames: int):
        nearness = rng.uniform(0.05, 1.0)
        self.height = 15 + 18 * nearness
        pace = rng.uniform(0.008, 0.025) * self.height
        self.speed = pace * rng.choice([-1, 1])
        self.drift = 0.15 * pace * rng.uniform(-1, 1)  # speed down the picture
        middle = (frames - 1) / 2
        self.x = rng.uniform(0, SIZE) - self.speed * middle
        self.y = _HORIZON + 10 + (SIZE - _HORIZON - 14) * nearness - self.drift * middle  # of the feet
        self.cadence = 7.0 * pace / self.height + 0.1  # radians per frame
        self.phase = rng.uniform(0, 2 * np.pi)
        self.shirt = int(rng.choice([rng.integers(60, 100), rng.integers(120, 180)]))
        self.trousers = int(rng.integers(60, 120))
        self.skin = int(rng.integers(90, 200))

    def draw(self, pen: ImageDraw.ImageDraw, time: int) -> None:
        """Draw the person at a time, oversampled by `_FINE`."""
        h = self.height * _FINE
        step = np.sin(self.cadence * time + self.phase)
        x = (self.x + self.speed * time) * _FINE
        ground = (self.y + self.drift * time) * _FINE
        y = ground - 0.02 * h * (1 - abs(step))  # the body rises when the legs pass each other
        for side in (-1, 1):
            foot = (x + side * 0.16 * h * step, ground)
            pen.line([(x, y - 0.47 * h), foot], fill=self.trousers, width=max(2, round(0.09 * h)))
        pen.ellipse([x - 0.12 * h, y - 0.86 * h, x + 0.12 * h, y - 0.42 * h], fill=self.shirt)
        hand = (x - 0.14 * h * step, y - 0.48 * h)
        pen.line([(x, y - 0.78 * h), hand], fill=self.skin, width=max(2, round(0.05 * h)))
        pen.ellipse([x - 0.07 * h, y - h, x + 0.07 * h, y - 0.86 * h], fill=self.skin)


def _camera_view(rng: np.random.Generator) -> tuple[Image.Image, Image.Image, Image.Image]:
    """The background, the tree and the tree's mask, all oversampled by `_FINE`."""
    side = SIZE * _FINE
    canvas = Image.fromarray(128 + 26 * _texture(rng, cells=(3, 6, 12, 30, 80)))
    pen = ImageDraw.Draw(canvas)

    horizon = _HORIZON * _FINE
    wall = rng.uniform(40, 70)
    pen.rectangle([0, 0, side, horizon], fill=wall)
    for left in range(int(rng.integers(-80, 0)), side, int(rng.integers(90, 140))):
        pen.rectangle([left, 0.3 * horizon, left + 45, 0.75 * horizon], fill=wall + rng.uniform(-25, 60))

    path_left, path_width = rng.uniform(-0.1, 0.3) * side, rng.uniform(0.5, 0.7) * side
    far_left, far_width = rng.uniform(0.2, 0.5) * side, rng.uniform(0.2, 0.35) * side
    path = [
        (far_left, horizon),
        (far_left + far_width, horizon),
        (path_left + path_width, side),
        (path_left, side),
    ]
    pen.polygon(path, fill=rng.uniform(185, 215))

    view = np.asarray(canvas) + 10 * _texture(rng, cells=(5, 40, 120))
    view = (view - view.mean()) / view.std() * _BACKGROUND_STD + _BACKGROUND_MEAN
    background = Image.fromarray(np.clip(view, 5, 250).astype(np.uint8))

    shape = Image.new("L", (side, side))
    pen = ImageDraw.Draw(shape)
    trunk, width = rng.uniform(0.15, 0.85) * side, rng.uniform(0.03, 0.05) * side
    pen.polygon(
        [(trunk - width / 2, 0), (trunk + width / 2, 0), (trunk + width, side), (trunk - width, side)],
        fill=255,
    )
    for _ in range(14):  # the crown
        x, y, radius = (
            trunk + rng.normal(0, 0.1) * side,
            rng.uniform(-0.05, 0.2) * side,
            rng.uniform(0.03, 0.08) * side,
        )
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=255)
    bark = 45 + 15 * _texture(rng, cells=(8, 30, 90))
    return background, Image.fromarray(np.clip(bark, 5, 250).astype(np.uint8)), shape


def _texture(rng: np.random.Generator, cells: Sequence[int]) -> np.ndarray:
    """Smooth noise of several scales, zero mean and unit std: float32 (SIZE·_FINE, SIZE·_FINE)."""
    side = SIZE * _FINE
    total = np.zeros((side, side), np.float32)
    for scale in cells:
        grid = Image.fromarray(rng.standard_normal((scale, scale), np.float32))
        total += np.asarray(grid.resize((side, side), Image.Resampling.BICUBIC)) / np.sqrt(scale)
    return (total - total.mean()) / total.std()
