"""Cache the decoded frames of a set of clips in one memory-mapped file.

The file holds the frames of all clips in order, uint8 (ΣF, SIZE, SIZE), then the clips' lengths (int64 each), then a
stamp: a hash of the source files' sizes and times. Frames are written as they are decoded, so their number need not be
known in advance. The file's name identifies the clips and the stamp their state, so new frames of a changed source
replace the old ones.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import FileLock

from descend.errors import InputError
from descend.progress import Progress, progress
from descend.tasks.video.decoding import SIZE
from descend.tasks.video.sources import Clip

FORMAT = 2
"""Version of the file's layout and of decoding. Raise it when either changes."""

_FRAME_BYTES = SIZE * SIZE
_STAMP_BYTES = hashlib.sha256().digest_size
_FULL = (errno.ENOSPC, errno.EDQUOT)


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
    views = _open(file, len(clips), stamp)
    if views is None:
        _build(file, clips, stamp)
        views = _open(file, len(clips), stamp)
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


def _open(file: Path, clips: int, stamp: bytes) -> list[np.ndarray] | None:
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


def _build(file: Path, clips: Sequence[Clip], stamp: bytes) -> None:
    """Decode the clips into a temporary file, and rename it to FILE when it is complete."""
    folder, part = file.parent, file.with_suffix(".part")
    announced = sum(clip.announced() for clip in clips)
    needed = announced * _FRAME_BYTES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if _open(file, len(clips), stamp) is not None:  # another process has built it meanwhile
                return
            if shutil.disk_usage(folder).free < needed:
                raise OSError(errno.ENOSPC, "No space left on device")
            try:
                with part.open("wb") as stream:
                    with progress(announced or None, "decoding", "frame", leave=False) as bar:
                        lengths = [_write(clip, stream, bar) for clip in clips]
                    stream.write(np.array(lengths, dtype="<i8").tobytes() + stamp)
                    stream.flush()
                    os.fsync(stream.fileno())  # otherwise a power cut could leave the name without the content
                os.replace(part, file)
            except BaseException:  # Ctrl-C too
                with suppress(OSError):
                    part.unlink()
                raise
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


def _write(clip: Clip, part: BinaryIO, bar: Progress) -> int:
    """Append a clip's frames; returns their number."""
    count = 0
    for frame in clip.frames():
        part.write(frame.tobytes())
        count += 1
        bar.update()
    return count
