"""Find the clips of a data set on disk, in the published layouts."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from descend.errors import InputError
from descend.reading import is_litter, refuse_ways_out
from descend.tasks.video.decoding import announced_frames, image_pictures, page_count, resized, video_pictures

VIDEO_SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm"})
IMAGE_SUFFIXES = frozenset({".tif", ".tiff", ".jpg", ".jpeg", ".png"})  # not .bmp: UCSD's anomaly masks

# Side of a data set → the names of its folder in the published data sets, in lower case.
SIDES = {
    "training": ("training", "training_videos", "train"),
    "testing": ("testing", "testing_videos", "test"),
}
SIDE_OF_SPLIT = {"train": "training", "test": "testing"}

LAYOUTS = """\
  UCSD          UCSDpedN/{Train,Test}/CLIP/NNN.tif
  frames        {training,testing}/frames/CLIP/NNN.jpg (or .png, .tif)
  Avenue        {training,testing}_videos/CLIP.avi
  ShanghaiTech  {training,testing}/{videos/CLIP.avi (or .mp4),frames/CLIP/NNN.jpg}
  any           a folder of videos (sub-folders too), a folder of clip folders, one clip folder or one video file
  stacks        as videos: TIFF or animated PNG files with several pages each
Training and testing folders may be written in any case, and train or test for short."""


@dataclass(frozen=True)
class Clip:
    """One clip: consecutive frames of one camera.

    Attributes:
        name: Name for messages: "training/01", or "01" in a collection without sides. That of a video in a sub-folder
            has the sub-folder's name before it: "holiday/01".
        files: The clip's files in frame order: one video, one image per frame, or one image with all frames as pages.
    """

    name: str
    files: tuple[Path, ...]

    @property
    def is_video(self) -> bool:
        """Whether the clip is one video, and not a folder of frames."""
        return _is_video(self.files[0])

    def frames(self) -> Iterator[np.ndarray]:
        """Decode the clip, one frame in memory at a time.

        Yields:
            uint8 (SIZE, SIZE): BT.601 luma, full range, turned upright as its container or EXIF says, resized
            bilinearly whatever the aspect ratio.

        Raises:
            InputError: A file is damaged or truncated, or the frames differ in size.
        """
        return resized(self._pictures())

    def announced(self) -> int:
        """The number of frames, read without decoding; 0 if the video's header has none.

        That of a trimmed video includes the frames that are left out.

        Raises:
            InputError: The video or the stack can't be opened.
        """
        if self.is_video:
            return announced_frames(self.files[0])
        return page_count(self.files[0]) if len(self.files) == 1 else len(self.files)

    def size(self) -> tuple[int, int]:
        """Width and height of the upright frames on disk, by the first one.

        Raises:
            InputError: The first frame can't be decoded.
        """
        return next(self._pictures())[1].size

    def _pictures(self) -> Iterator[tuple[str, Image.Image]]:
        return video_pictures(self.files[0]) if self.is_video else image_pictures(self.files)


def has_sides(path: str | Path) -> bool:
    """Whether a path has training or test folders, or is one collection of clips.

    Raises:
        InputError: The path does not exist.
    """
    return bool(_side_folders(_existing(path)))


def find_clips(path: str | Path, split: Literal["train", "test"] | None) -> list[Clip]:
    """Find the clips of one side of a data set, or of a collection that has no sides.

    Args:
        path: A data set in one of the `LAYOUTS`.
        split: The side to read; None for a collection: a folder of videos with its sub-folders, a folder of clip
            folders, or one clip.

    Returns:
        At least one clip, in natural order of their names (2 before 10). Videos of a sub-folder stand at its name's
        place.

    Raises:
        InputError: The path is missing, empty or has another layout; it lacks the requested side; a clip folder has
            no frame; it has both videos and clip folders; or a link leads out of it.
    """
    path = _existing(path)
    sides = _side_folders(path)
    if split is None:
        if sides:
            raise InputError(
                f"{path} has {' and '.join(sides)} sides; expected one collection of clips. "
                f"Pass one of them: {', '.join(str(folder) for folder in sides.values())}"
            )
        folder, prefix = path if path.is_file() else _collection(path), ""
    else:
        side = SIDE_OF_SPLIT[split]
        if not sides:
            raise InputError(
                f"{path} has no training and testing sides to take the {side} clips from. Known layouts:\n{LAYOUTS}"
            )
        if side not in sides:
            ((other, folder),) = sides.items()
            raise InputError(
                f"{path} holds {other} clips but no {side} clips; pass {_collection(folder)} to "
                "take those clips as a collection without sides"
            )
        folder, prefix = _collection(sides[side]), f"{side}/"
    clips = _clips_in(folder, prefix)
    if not clips:
        raise InputError(_nothing_found(folder))
    refuse_ways_out(path, (file for clip in clips for file in clip.files))
    return clips


def _natural(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a path's name in which numbers count as numbers: 2 before 10, 010 beside 10."""
    parts = re.findall(r"\d+|\D+", path.name)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser().absolute()
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a folder of clips or a video file")
    return path


def _side_folders(path: Path) -> dict[str, Path]:
    """Side → its folder, for the sides that a path has."""
    folders = [entry for entry in _visible(path) if entry.is_dir()] if path.is_dir() else []
    named = {folder.name.lower(): folder for folder in folders}
    candidates = {side: [named[name] for name in names if name in named] for side, names in SIDES.items()}
    return {side: matches[0] for side, matches in candidates.items() if matches}


def _collection(folder: Path) -> Path:
    """The folder that holds the clips: the folder itself, its frames/ or its videos/.

    If both exist, frames/ is used only if it has every clip of videos/: users of ShanghaiTech often extract the frames
    of some clips only.
    """
    frames, videos = folder / "frames", folder / "videos"
    if frames.is_dir() and videos.is_dir():
        as_videos = {file.stem for file in _visible(videos) if file.suffix.lower() in VIDEO_SUFFIXES}
        return frames if as_videos <= {clip.name for clip in _visible(frames)} else videos
    return next((inner for inner in (frames, videos) if inner.is_dir()), folder)


def _clips_in(path: Path, prefix: str = "") -> list[Clip]:
    """The clips of a folder of videos, of a folder of clip folders, of one clip folder or of one video.

    Sub-folders of a folder of videos are read too, to any depth; their names are part of the clips' names.
    """
    entries = [path] if path.is_file() else _visible(path)
    videos = {entry for entry in entries if _is_video(entry) and not entry.is_dir()} or {*_stacks_in(entries)}
    folders = [entry for entry in entries if entry.is_dir() and not entry.name.endswith("_gt")]
    frames = {folder: _images_in(folder) for folder in folders}
    if path.is_file():
        return [Clip(prefix + path.stem, (path,))] if videos else []
    if any(frames.values()) and not videos:
        others = [folder for folder in folders if not frames[folder]]
        if video := next((clip.files[0] for each in others for clip in _clips_in(each) if clip.is_video), None):
            raise _two_kinds(path, video, next(folder for folder in folders if frames[folder]))
        if others:
            raise InputError(
                f"clip {others[0]} holds no frames; expected images "
                f"({', '.join(sorted(IMAGE_SUFFIXES))}). Fill the folder or move it away"
            )
        return [Clip(prefix + folder.name, images) for folder, images in frames.items()]
    data_sets = _data_sets_in(path)
    if data_sets and not videos:
        raise InputError(_nothing_found(path))
    clips = []
    for entry in entries:
        if entry in videos:
            clips.append(Clip(prefix + entry.stem, (entry,)))
        elif entry in frames and not path.resolve().is_relative_to(entry.resolve()):  # a link may lead back up
            inner = _clips_in(entry, f"{prefix}{entry.name}/")
            if inner and entry in data_sets:  # its training and test clips must not be mixed
                raise InputError(_nothing_found(path))
            clips += inner
    images = _images_in(path)
    # Not both: the frames may be extracted from the video, and a clip must not be in training and test.
    as_frames = next((clip.files[0].parent for clip in clips if not clip.is_video), None)
    as_video = next((clip.files[0] for clip in clips if clip.is_video), None)
    if as_video and (as_frames or (images and not videos)):
        raise _two_kinds(path, as_video, as_frames or path)
    return clips or ([Clip(prefix + path.name, images)] if images else [])


def _two_kinds(path: Path, video: Path, frames: Path) -> InputError:
    of = "" if frames == path else f" ({frames.relative_to(path)})"
    return InputError(
        f"{path} holds both videos ({video.relative_to(path)}) and folders of frames{of}; expected clips of one kind. "
        "Pass the folder that holds one kind, or move the other kind away"
    )


def _is_video(file: Path) -> bool:
    return file.suffix.lower() in VIDEO_SUFFIXES


def _visible(folder: Path) -> list[Path]:
    """The entries of a folder in natural order, without hidden ones such as .DS_Store and UCSD's ._ files."""
    try:
        return sorted((entry for entry in folder.iterdir() if not is_litter(Path(entry.name))), key=_natural)
    except OSError as error:
        raise InputError(f"{folder} can't be listed: {error.strerror}. Check its permissions") from error


def _images_in(folder: Path) -> tuple[Path, ...]:
    """The frames of a clip's folder; none if its images are stacks."""
    entries = _visible(folder)
    return () if _stacks_in(entries) else _images(entries)


def _images(entries: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES)


def _stacks_in(entries: Sequence[Path]) -> tuple[Path, ...]:
    """The images among a folder's entries if each is a clip, as the first one's pages show; else none."""
    images = _images(entries)
    with suppress(InputError):  # a damaged image is named when it is decoded
        if images and page_count(images[0]) > 1:
            return images
    return ()


def _nothing_found(path: Path) -> str:
    if path.is_file():
        suffixes = ", ".join(sorted(VIDEO_SUFFIXES))
        return f"{path} is not a video; expected a folder of clips, {suffixes}, or a TIFF or PNG with several pages"
    if datasets := _data_sets_in(path):
        return f"{path} is not one data set; choose one in it: {', '.join(map(str, datasets))}"
    problem = "holds no clips of a known layout" if _visible(path) else "is an empty folder"
    return f"{path} {problem}. Known layouts:\n{LAYOUTS}"


def _data_sets_in(path: Path, levels: int = 2) -> list[Path]:
    """The data sets with sides in a path's folders, to a depth of ``levels``, for an error message."""
    folders = []
    for folder in (entry for entry in _visible(path) if entry.is_dir()):
        with suppress(InputError):  # skip a folder that can't be listed
            if _side_folders(folder):
                folders.append(folder)
            elif levels > 1:
                folders += _data_sets_in(folder, levels - 1)
    return folders
