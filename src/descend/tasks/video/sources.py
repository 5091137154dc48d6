"""Find the clips of a data set on disk, in the published layouts."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from descend.errors import InputError
from descend.reading import is_litter, read_text, refuse_ways_out, shown
from descend.tasks.folders import folders_in, side_of, sides_in
from descend.tasks.pictures import SUFFIXES
from descend.tasks.video.decoding import announced_frames, image_pictures, page_count, resized, video_pictures

VIDEO_SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm"})

SPLITS = {"train": "training", "test": "testing", "validation": "validation"}
"""A side of a data set → how its clips are named: training/01."""

DAVIS_LISTS = {"train": "ImageSets/2017/train.txt", "test": "ImageSets/2017/val.txt"}

_MASKS = "gt|masks?|annotations?|labels?|ground ?truths?"

LAYOUTS = """\
  UCSD          UCSDpedN/{Train,Test}/CLIP/NNN.tif
  frames        {training,testing}/frames/CLIP/NNN.jpg (or .png, .tif)
  Avenue        {training,testing}_videos/CLIP.avi
  ShanghaiTech  {training,testing}/{videos/CLIP.avi (or .mp4),frames/CLIP/NNN.jpg}
  DAVIS         JPEGImages/480p/CLIP/NNNNN.jpg, and ImageSets/2017/{train,val}.txt for the sides
  any           a folder of videos (sub-folders too), a folder of clip folders, one clip folder or one video file
  stacks        as videos: TIFF or animated PNG files with several pages each
Folders of sides may be written in any case, with the words that descend.tasks.folders.SIDES lists."""


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
        if _is_video(self.files[0]):
            return announced_frames(self.files[0])
        return page_count(self.files[0]) if len(self.files) == 1 else len(self.files)

    def size(self) -> tuple[int, int]:
        """Width and height of the upright frames on disk, by the first one.

        Raises:
            InputError: The first frame can't be decoded.
        """
        return next(self._pictures())[1].size

    def _pictures(self) -> Iterator[tuple[str, Image.Image]]:
        return video_pictures(self.files[0]) if _is_video(self.files[0]) else image_pictures(self.files)


Split = Literal["train", "test", "validation"]


def sides_of(path: str | Path) -> dict[Split, Path]:
    """Side → its folder, or its list of clips, for the sides that a path has; empty for one collection of clips.

    Raises:
        InputError: If two folders are for one side.
    """
    path = Path(path).expanduser().absolute()
    if any(folder.name.lower() == "jpegimages" for folder in folders_in(path)):
        return {side: path / name for side, name in DAVIS_LISTS.items() if (path / name).is_file()}  # type: ignore[misc]
    return sides_in(folders_in(path))  # type: ignore[return-value]


def find_clips(path: str | Path, split: Split | None) -> list[Clip]:
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
            no frame; it has both videos and clip folders, or two files for one frame or clip; or a link leads out of
            it.
    """
    path = Path(path).expanduser().absolute()
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a folder of clips or a video file")
    sides, prefix, place = sides_of(path), "", path
    if split is not None:
        side = SPLITS[split]
        if not sides:
            raise InputError(
                f"{path} has no training and testing sides to take the {side} clips from. Known layouts:\n{LAYOUTS}"
            )
        if split not in sides:
            other, folder = next(iter(sides.items()))
            raise InputError(
                f"{path} holds {SPLITS[other]} clips but no {side} clips; pass {_collection(folder)} to "
                "take those clips as a collection without sides"
            )
        prefix, place = f"{side}/", sides[split]
    elif sides:
        raise InputError(
            f"{path} has {' and '.join(SPLITS[side] for side in sides)} sides; expected one collection of clips. "
            f"Pass one of them: {', '.join(str(folder) for folder in sides.values())}"
        )
    listed = place if split is not None and place.is_file() else None  # DAVIS
    folder = _collection(path if listed else place)
    clips = _clips_in(folder, prefix + shown(folder.stem if folder.is_file() else folder.name), prefix, set())
    if listed:
        names = read_text(listed).split()
        clips = [clip for clip in clips if clip.name.removeprefix(prefix) in names]
    _check_one_set(folder, clips, listed is None)
    refuse_ways_out(path, (file for clip in clips for file in clip.files))
    return clips


def _natural(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a path's name in which numbers count as numbers: 2 before 10, 010 beside 10."""
    parts = re.findall(r"\d+|\D+", path.name)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def _collection(folder: Path) -> Path:
    """The folder that holds the clips: the folder itself, its frames/ or its videos/, or a size of DAVIS's frames.

    If both exist, frames/ is used only if it has every clip of videos/: users of ShanghaiTech often extract the frames
    of some clips only.
    """
    frames, videos, davis = folder / "frames", folder / "videos", folder / "JPEGImages"
    if davis.is_dir():  # of YouTube-VOS it holds the clips
        sizes = (entry for entry in _visible(davis) if re.fullmatch(r"\d+p|Full-Resolution", entry.name))
        return next(sizes, davis)  # the smallest, 480p
    if frames.is_dir() and videos.is_dir():
        as_videos = {file.stem for file in _visible(videos) if file.suffix.lower() in VIDEO_SUFFIXES}
        return frames if as_videos <= {clip.name for clip in _visible(frames)} else videos
    return next((inner for inner in (frames, videos) if inner.is_dir()), folder)


def _clips_in(path: Path, name: str, prefix: str, seen: set[Path]) -> list[Clip]:
    """The clips of a video, of a folder of frames, or of a folder of such, to any depth.

    Args:
        path: The video or the folder.
        name: Its name as a clip.
        prefix: What stands before the names of clips in it.
        seen: The folders that were read, links followed: each is read once, so links in a circle end.
    """
    seen.add(path.resolve())
    entries = [path] if path.is_file() else _visible(path)
    images = tuple(entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file())
    files = {entry for entry in entries if _is_video(entry) and entry.is_file()}
    with suppress(InputError):  # a damaged image is named when it is decoded
        if images and not files and page_count(images[0]) > 1:  # each image is a clip
            files = {*images}
    for pair in [] if path.is_file() else _pairs([entry for entry in entries if entry in files]):
        raise InputError(f"{path} holds {pair}, two files for one clip. Move one of each pair away")
    clips: list[Clip] = []
    names = {_words(entry.name) for entry in entries}
    empty = None
    for entry in entries:
        if entry in files:
            clips.append(Clip(prefix + shown(entry.stem), (entry,)))
        elif entry.is_dir() and not _holds_masks(entry, names) and entry.resolve() not in seen:
            inner = _clips_in(entry, prefix + shown(entry.name), f"{prefix}{shown(entry.name)}/", seen)
            empty = empty if inner else entry
            clips += inner
    frames = {clip.files[0].parent.parent for clip in clips if not _is_video(clip.files[0])}
    if empty and path in frames and not any(_is_video(clip.files[0]) for clip in clips):
        raise InputError(f"clip {empty} holds no frames; expected images. Fill the folder or move it away")
    if images and not files and frames:
        raise InputError(
            f"{path} holds both images ({images[0].name}) and folders of images ({clips[0].files[0].parent.name}); "
            "expected either. Move one kind away"
        )
    if images and not files and not path.is_file():
        _check_frames(path, images)
        clips.append(Clip(name, images))
    return clips


def _check_frames(folder: Path, images: Sequence[Path]) -> None:
    """Refuse images of several formats, and pairs of which one is a copy or a mask of the other."""
    formats = Counter(Image.registered_extensions()[image.suffix.lower()] for image in images)
    for pair in _pairs(images):
        raise InputError(f"clip {folder} holds {pair}, two images for one frame. Keep one of each pair")
    if len(formats) > 1:
        found = " and ".join(f"{count} {name}" for name, count in formats.most_common())
        raise InputError(f"clip {folder} holds {found} images; expected one format. Keep one, and move the others away")


def _pairs(files: Sequence[Path]) -> Iterator[str]:
    """Files of one name: with two suffixes, or one with letters behind it, as "000_mask.png" beside "000.jpg"."""
    by_name: dict[str, Path] = {}
    for file in files:
        if file.stem in by_name:
            yield f"{by_name[file.stem].name} and {file.name}"
        by_name[file.stem] = file
    for name, file in by_name.items():
        before = re.sub(r"[^\w\d]*[^\W\d]+\W*$", "", name)
        if before != name and before in by_name:
            yield f"{by_name[before].name} and {file.name}"


def _words(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.casefold()).strip()


def _holds_masks(folder: Path, names: Collection[str]) -> bool:
    """Whether a folder's name says that it holds masks: of all clips, or of another one in the same place.

    Args:
        folder: The folder.
        names: The names in its place, as `_words` gives them.
    """
    match = re.fullmatch(rf"(?:(.+) )?(?:{_MASKS})", _words(folder.name))
    return match is not None and (match[1] is None or match[1] in names)


def _check_one_set(folder: Path, clips: list[Clip], unlisted: bool) -> None:
    """Refuse a folder without clips, with two kinds of them, or with several data sets unless a list names clips."""
    if folder.is_file() and not clips:
        suffixes = ", ".join(sorted(VIDEO_SUFFIXES))
        raise InputError(
            f"{folder} is not a video; expected a folder of clips, {suffixes}, or an image with several pages"
        )
    if not clips:
        problem = "holds no clips of a known layout" if _visible(folder) else "is an empty folder"
        raise InputError(f"{folder} {problem}. Known layouts:\n{LAYOUTS}")
    inside = [file.relative_to(folder) for clip in clips for file in clip.files[:1]]
    # A list names clips, and one of DAVIS' is called train.
    above = [place for file in inside if unlisted for place in file.parents if side_of(place.name)]
    if sets := dict.fromkeys(str(folder / place.parent) for place in above):
        # The training and test clips of a data set must not be mixed.
        raise InputError(f"{folder} is not one data set; choose one in it: {', '.join(sets)}")
    videos, frames = ([file for file in inside if _is_video(file) == kind] for kind in (True, False))
    if videos and frames:  # the frames may be those of a video, and a clip must not be in training and test
        of = "" if frames[0].parent == Path() else f" ({frames[0].parent})"
        raise InputError(
            f"{folder} holds both videos ({videos[0]}) and folders of frames{of}; expected clips of one kind. "
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
