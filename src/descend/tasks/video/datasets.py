"""Load a video data set: its training, validation and test windows, and σ_x."""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from descend.errors import InputError
from descend.tasks.video.cache import cached
from descend.tasks.video.scenes import generate_scenes
from descend.tasks.video.sources import Clip, find_clips, has_sides
from descend.tasks.video.windows import VideoWindows

logger = logging.getLogger(__name__)

SCENES_TRAIN, SCENES_TEST, SCENES_FRAMES = 8, 3, 30
"""The generated data set: clips for training and validation, clips for test, frames per clip."""

_LOOKED_AT = 16

# Names of a layout's folders and clips, which do not name a data set: training_videos, frames, Test001, 01_0014.
_GENERIC = re.compile(r"(?:train(?:ing)?|test(?:ing)?)(?:_videos?)?|frames?|videos?|(?:train|test)?[\d\W_]*")


@dataclass(frozen=True)
class VideoData:
    """The parts of a video data set.

    Attributes:
        train: Training windows; they may overlap.
        validation: Windows of other frames of the training side; they don't overlap.
        test: Windows of the test side; they don't overlap.
        name: The data set's name, for records and reports.
        clips: The clips on disk; empty for generated scenes.
    """

    train: VideoWindows
    validation: VideoWindows
    test: VideoWindows
    name: str
    clips: Sequence[Clip] = ()

    @cached_property
    def sigma(self) -> float:
        """σ_x of the frames in `train`, in units of [0, 1].

        Computed on first use, because it reads every training frame.
        """
        return self.train.sigma()

    def sizes(self) -> list[tuple[int, int]]:
        """The different (width, height) of frames on disk, of at most `_LOOKED_AT` evenly spaced clips."""
        step = max(1, math.ceil(len(self.clips) / _LOOKED_AT))
        return list(dict.fromkeys(clip.size() for clip in self.clips[::step]))


Footage: TypeAlias = list[tuple[str, np.ndarray]]
"""Clips, or parts of them: a name and frames, uint8 (F, SIZE, SIZE), of each."""


def load_video(
    path: str | Path | None,
    window: int,
    *,
    stride: int = 1,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    validation_share: float = 0.2,
) -> VideoData:
    """Load a video data set.

    A data set with a training and a test side uses both. In a collection without sides, the last third of the clips, in
    natural order of their names, is the test set. The last share of the training clips is the validation set. A single
    clip is divided by frames instead: its last frames form the later part, at least two windows, or one if the clip is
    too short. Clips shorter than a window are left out with a warning.

    Args:
        path: A data set in a layout that `find_clips` reads; None for generated scenes.
        window: T, in frames.
        stride: Frames from one training window's start to the next one's.
        seed: The seed of the generated scenes; real data don't depend on it.
        cache_dir: Folder of the cache of decoded frames; by default `default_cache_dir()`.
        validation_share: Share of the training clips, in (0, 1).

    Raises:
        InputError: PATH can't be read, all clips of a side are shorter than T, or T or the stride is below 1.
    """
    if path is None:
        scenes = generate_scenes(SCENES_TRAIN + SCENES_TEST, SCENES_FRAMES, seed)
        footage = [(f"scene {number}", frames) for number, frames in enumerate(scenes)]
        clips, first, name = [], SCENES_TRAIN, "scenes"
    else:
        sides: tuple[Literal["train", "test"] | None, ...] = ("train", "test") if has_sides(path) else (None,)
        by_side = [find_clips(path, side) for side in sides]
        clips = [clip for side in by_side for clip in side]
        # Decode both sides together: one cache file and one progress bar for a data set.
        footage = _decoded(clips, cache_dir)
        first, name = len(by_side[0]), dataset_name(path)
    training, test = map(partial(_long_enough, window), (footage[:first], footage[first:]))
    if not test:
        training, test = _split_off(training, max(1, len(training) // 3), 1 / 3, window, before=2)
    if not 0 < validation_share < 1:
        raise InputError(f"validation_share must lie between 0 and 1; got {validation_share}.")
    count = math.ceil(validation_share * len(training))
    training, validation = _split_off(training, count, validation_share, window, before=1)
    return VideoData(
        train=_windows(training, window, stride),
        validation=_windows(validation, window, window),
        test=_windows(test, window, window),
        name=name,
        clips=clips,
    )


def load_test(
    path: str | Path,
    window: int,
    *,
    cache_dir: str | Path | None = None,
) -> tuple[VideoWindows, str]:
    """Load a data set to test a model that was trained on other data.

    The windows are those of the test side; its training side may be missing. A collection without sides is used as a
    whole. Clips shorter than a window are left out with a warning.

    Args:
        path: A data set in a layout that `find_clips` reads.
        window: T, in frames.
        cache_dir: Folder of the cache of decoded frames; by default `default_cache_dir()`.

    Returns:
        Windows that don't overlap, and the data set's name.

    Raises:
        InputError: PATH can't be read or has only a training side, or all clips are shorter than T.
    """
    clips = find_clips(path, "test" if has_sides(path) else None)
    return _windows(_long_enough(window, _decoded(clips, cache_dir)), window, window), dataset_name(path)


def dataset_name(path: str | Path) -> str:
    """The data set's name: the last name in a path that is not a layout's folder or one of its numbered clips.

    "holiday" for "mine/holiday", "avenue" for "Avenue Dataset/testing_videos".
    """
    path = Path(path).expanduser().absolute()
    for part in (path.stem if path.is_file() else path.name, *(parent.name for parent in path.parents)):
        name = part.lower()
        if not _GENERIC.fullmatch(name):
            return re.sub(r"[\W_]+dataset$", "", name)
    return "video"


def _decoded(clips: Sequence[Clip], cache_dir: str | Path | None) -> Footage:
    return list(zip((clip.name for clip in clips), cached(clips, cache_dir), strict=True))


def _long_enough(window: int, footage: Footage) -> Footage:
    """The clips of at least a window, and a warning for each other one; all of them if none is that long."""
    kept = [(name, frames) for name, frames in footage if len(frames) >= window]
    for name, frames in footage if kept else ():
        if len(frames) < window:
            logger.warning(
                "clip %s is left out: it has fewer frames (%d) than a window (%d).", name, len(frames), window
            )
    return kept or footage


def _split_off(footage: Footage, count: int, share: float, window: int, *, before: int) -> tuple[Footage, Footage]:
    """Split clips into the first ones and the last ``count``; a single clip into its first and last frames.

    A single clip's last part is ``share`` of its frames, but at least two windows, because one window has no spread.
    It is made smaller if the ``before`` parts that come before it would otherwise be too short: they need two windows
    each, and the training part one.
    """
    if len(footage) > 1:
        cut = max(1, len(footage) - count)
        return footage[:cut], footage[cut:]
    ((name, frames),) = footage
    total = len(frames)
    needed = (before + 1) * window
    if total < needed:
        raise InputError(
            f"clip {name} has {total} frames; expected at least {needed} to divide it into {before + 1} "
            f"parts of at least one window of {window} each. Choose a shorter window or give more clips"
        )
    wanted = max(math.ceil(share * total), 2 * window)
    cut = total - max(window, min(wanted, total - (2 * before - 1) * window))
    return [(f"{name}[0:{cut}]", frames[:cut])], [(f"{name}[{cut}:{total}]", frames[cut:])]


def _windows(footage: Footage, window: int, stride: int) -> VideoWindows:
    names, clips = zip(*footage, strict=True)
    return VideoWindows(clips, window, stride, names)
