"""Load a video data set: its training, validation and test windows, and σ_x.

Decoded frames are cached in one memory-mapped file for a set of clips. It holds the frames of all clips in order, uint8
(ΣF, SIZE, SIZE), then the clips' lengths (int64 each), then a stamp: a hash of the source files' sizes and times.
Frames are written as they are decoded, so their number need not be known in advance. The file's name identifies the
clips and the stamp their state, so new frames of a changed source replace the old ones.
"""

import errno
import hashlib
import logging
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from descend.errors import InputError
from descend.progress import Progress, progress
from descend.tasks.folders import files_read
from descend.tasks.splits import tell_shared
from descend.tasks.video.decoding import SIZE
from descend.tasks.video.scenes import generate_scenes
from descend.tasks.video.sources import Clip, Split, find_clips, sides_of
from descend.tasks.video.windows import VideoWindows
from descend.writing import locked, remove_parts, replacing

logger = logging.getLogger(__name__)

SCENES_TRAIN, TRAIN_FRAMES = 8, 30
"""The generated data set: clips for training and validation, and frames of each."""

SCENES_TEST, TEST_FRAMES = 16, 10
"""Clips for test, which are more than `ENOUGH_GROUPS`, so that a verdict is not open; and frames of each."""

_LOOKED_AT = 16

# Names of a layout's folders and clips, which do not name a data set: training_videos, frames, Test001, 01_0014.
_GENERIC = re.compile(r"(?:train(?:ing)?|test(?:ing)?)(?:_videos?)?|frames?|videos?|(?:train|test)?[\d\W_]*")

FORMAT = 3
"""Version of the cache file's layout and of decoding. Raise it when either changes."""

_FRAME_BYTES = SIZE * SIZE

_STAMP_BYTES = hashlib.sha256().digest_size

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class VideoData:
    """The parts of a video data set.

    Attributes:
        train: Training windows; they may overlap.
        validation: Windows of other frames of the training side; they don't overlap.
        test: Windows of the test side; they don't overlap.
        name: The data set's name, for records and reports.
        clips: The clips on disk; empty for generated scenes.
        read: What of a folder was read, see `files_read`.
    """

    train: VideoWindows
    validation: VideoWindows
    test: VideoWindows
    name: str
    clips: Sequence[Clip] = ()
    read: str = ""

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

    A data set with sides uses them. In a collection without sides, the last third of the clips, in natural order of
    their names, is the test set. Without a validation side, it is the last share of the training clips. A single
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
        scenes = generate_scenes(SCENES_TRAIN, TRAIN_FRAMES, seed)
        scenes += generate_scenes(SCENES_TEST, TEST_FRAMES, seed, first=SCENES_TRAIN)
        made = [(f"scene {number}", frames) for number, frames in enumerate(scenes)]
        footage = {"train": made[:SCENES_TRAIN], "test": made[SCENES_TRAIN:]}
        clips, name, read = [], "scenes", ""
    else:
        named = sides_of(path)
        both: tuple[Split, ...] = ("train", "test", *(("validation",) if "validation" in named else ()))
        sides: dict[str, list[Clip]] = {side: find_clips(path, side) for side in both if named}
        sides = sides or {"train": find_clips(path, None)}
        tell_shared(_keys(sides), "clips")
        clips = [clip for side in sides.values() for clip in side]
        # Decode all sides together: one cache file and one progress bar for a data set.
        decoded = iter(_decoded(clips, cache_dir))
        footage = {side: list(islice(decoded, len(found))) for side, found in sides.items()}
        name, read = dataset_name(path), _read(path, clips)
    training, test, validation = (
        _long_enough(window, footage.get(side, [])) for side in ("train", "test", "validation")
    )
    if not test:
        training, test = _split_off(training, max(1, len(training) // 3), 1 / 3, window, before=2)
    if not 0 < validation_share < 1:
        raise InputError(f"validation_share must lie between 0 and 1; got {validation_share}.")
    if not validation:
        count = math.ceil(validation_share * len(training))
        training, validation = _split_off(training, count, validation_share, window, before=1)
    return VideoData(
        train=_windows(training, window, stride),
        validation=_windows(validation, window, window),
        test=_windows(test, window, window),
        name=name,
        clips=clips,
        read=read,
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
    clips = find_clips(path, "test" if sides_of(path) else None)
    if read := _read(path, clips):
        logger.warning("%s: %s.", dataset_name(path), read)
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


def _read(path: str | Path, clips: Sequence[Clip]) -> str:
    """What of a folder was read; a file is read as a whole."""
    root = Path(path).expanduser().absolute()
    return files_read(root, (file for clip in clips for file in clip.files)) if root.is_dir() else ""


def _keys(sides: Mapping[str, Sequence[Clip]]) -> dict[str, list[Hashable]]:
    """What equal clips have in common: the sizes of their files and, where two clips have the same, their content."""
    sizes = {
        side: [tuple(file.stat().st_size for file in clip.files) for clip in clips] for side, clips in sides.items()
    }
    known = Counter(size for each in sizes.values() for size in each)
    return {
        side: [(size, _digest(clip) if known[size] > 1 else b"") for clip, size in zip(clips, sizes[side], strict=True)]
        for side, clips in sides.items()
    }


def _digest(clip: Clip) -> bytes:
    content = hashlib.sha256()
    for path in clip.files:
        with path.open("rb") as file:
            content.update(hashlib.file_digest(file, "sha256").digest())
    return content.digest()


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


def default_cache_dir() -> Path:
    """$DESCEND_CACHE, else $XDG_CACHE_HOME/descend, else ~/.cache/descend."""
    if folder := os.environ.get("DESCEND_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "descend"


def cached(clips: Sequence[Clip], cache_dir: str | Path | None = None) -> list[np.ndarray]:
    """Return the frames of clips; decode them only if the cache does not hold them.

    Several processes may ask for the same clips at once: one decodes them, and the others wait for it.

    Args:
        clips: The clips.
        cache_dir: The cache's folder, created if missing; by default `default_cache_dir()`.

    Returns:
        One read-only memory-mapped uint8 (F, SIZE, SIZE) per clip.

    Raises:
        InputError: If a clip can't be decoded, or the cache can't be written.
    """
    folder = Path(cache_dir).expanduser() if cache_dir is not None else default_cache_dir()
    names = [(clip.name, [str(file) for file in clip.files]) for clip in clips]
    file = folder / f"video-{hashlib.sha256(repr(names).encode()).hexdigest()[:32]}.frames"
    stamp = _stamp(clips)
    views = _open_cache(file, len(clips), stamp)
    if views is None:
        _build_cache(file, clips, stamp)
        views = _open_cache(file, len(clips), stamp)
    if views is None:
        raise InputError(f"the cache {file} was changed while it was opened; run the command again")
    return views


def _stamp(clips: Sequence[Clip]) -> bytes:
    """A hash of the sizes and times of the clips' files, which are not read."""
    state: list[object] = [FORMAT, SIZE]
    for file in (file for clip in clips for file in clip.files):
        try:
            status = file.stat()
        except OSError as error:
            raise InputError(f"{file} can't be read: {error.strerror}") from error
        state.append((status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(state).encode()).digest()


def _open_cache(file: Path, clips: int, stamp: bytes) -> list[np.ndarray] | None:
    """One view per clip into a cache file; None if the file is missing, damaged or out of date."""
    try:
        content = np.memmap(file, dtype=np.uint8, mode="r")
    except (OSError, ValueError):  # missing, unreadable, empty
        return None
    end = len(content) - _STAMP_BYTES - 8 * clips
    if end < 0 or content[-_STAMP_BYTES:].tobytes() != stamp:
        return None
    lengths = np.frombuffer(content[end:-_STAMP_BYTES].tobytes(), dtype="<i8")
    if lengths.min() < 1 or sum(lengths.tolist()) * _FRAME_BYTES != end:  # in numbers that don't wrap
        return None
    frames = content[:end].reshape(-1, SIZE, SIZE)
    return np.split(frames, np.cumsum(lengths)[:-1])


def _build_cache(file: Path, clips: Sequence[Clip], stamp: bytes) -> None:
    """Decode the clips into a temporary file, and rename it to FILE when it is complete."""
    folder = file.parent
    announced = sum(clip.announced() for clip in clips)
    needed = announced * _FRAME_BYTES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(file, wait=True):
            if _open_cache(file, len(clips), stamp) is not None:  # another process has built it meanwhile
                return
            if shutil.disk_usage(folder).free < needed:
                raise OSError(errno.ENOSPC, "No space left on device")
            remove_parts(folder, kind=f"{file.stem}-")
            with replacing(file, f"{file.stem}-") as part, part.open("wb") as stream:
                with progress(announced or None, "decoding", "frame", leave=False) as bar:
                    lengths = [_write_frames(clip, stream, bar) for clip in clips]
                stream.write(np.array(lengths, dtype="<i8").tobytes() + stamp)
    except OSError as error:
        if error.errno in _FULL:
            free = shutil.disk_usage(folder).free
            raise InputError(
                f"no space for the cache of decoded frames: about {needed / 1e6:,.1f} MB needed in {folder}, "
                f"{free / 1e6:,.1f} MB free. Choose another folder with --cache-dir"
            ) from error
        raise InputError(
            f"the cache of decoded frames can't be written to {folder}: {error.strerror}. "
            "Choose another folder with --cache-dir"
        ) from error


def _write_frames(clip: Clip, part: BinaryIO, bar: Progress) -> int:
    """Append a clip's frames; returns their number."""
    count = 0
    for frame in clip.frames():
        part.write(frame.tobytes())
        count += 1
        bar.update()
    return count
