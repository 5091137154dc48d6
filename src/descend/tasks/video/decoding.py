"""Decode a clip's files into grey frames, one at a time; a damaged file raises an `InputError`."""

import struct
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import TiffImageFile

from descend.errors import InputError

SIZE = 160
"""Height and width of every frame, in pixels."""

MOST_PIXELS = 2**26
"""Most pixels of a frame on disk: twice those of 8K video."""

_LUMA = (0.299, 0.587, 0.114)
"""BT.601 weights of red, green and blue, as Pillow has them."""

IMAGE_FORMATS = ("TIFF", "JPEG", "PNG")
VIDEO_FORMATS = "avi,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"
"""Pillow's names of the formats that are read; the content decides, not the file's suffix."""


_BESIDE = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.dependent
"""Streams of pictures that go with a video and are not one: covers, thumbnails, depth maps."""

_SUBFILE, _NOT_A_PAGE = 254, 0b101
"""TIFF's tag NewSubfileType, and its bits for a smaller copy of another page and a mask for one."""

_Turn = Image.Transpose
_EXIF_TURNS = {
    2: _Turn.FLIP_LEFT_RIGHT,
    3: _Turn.ROTATE_180,
    4: _Turn.FLIP_TOP_BOTTOM,
    5: _Turn.TRANSPOSE,
    6: _Turn.ROTATE_270,
    7: _Turn.TRANSVERSE,
    8: _Turn.ROTATE_90,
}
"""What turns a picture upright, by EXIF's orientation."""

_MATRIX_TURNS = {
    (1, 0, 0, 1): None,
    (0, 0, 0, 0): None,  # some writers leave the matrix empty
    (-1, 0, 0, 1): _Turn.FLIP_LEFT_RIGHT,
    (-1, 0, 0, -1): _Turn.ROTATE_180,
    (1, 0, 0, -1): _Turn.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): _Turn.TRANSPOSE,
    (0, 1, -1, 0): _Turn.ROTATE_270,
    (0, -1, -1, 0): _Turn.TRANSVERSE,
    (0, -1, 1, 0): _Turn.ROTATE_90,
}
"""The same for a video's display matrix: (x, y) is shown at (a·x + c·y, b·x + d·y); the keys are (a, b, c, d)."""

_SIDEWAYS = {_Turn.TRANSPOSE, _Turn.ROTATE_270, _Turn.TRANSVERSE, _Turn.ROTATE_90}


def image_frames(files: tuple[Path, ...]) -> Iterator[np.ndarray]:
    """Decode a clip stored as one image per frame, or as the pages of one image; see `Clip.frames` for the result."""
    first_size = None
    for file in files:
        with _image(file) as (image, pages):
            if len(pages) > 1 and len(files) > 1:
                raise InputError(
                    f"frame {file} has {len(pages)} pages; expected one, because {files[0].name} has one. Each file of "
                    "a folder is one frame, or each is a clip: move the others away."
                )
            for page in pages:
                what = f"page {page} of {file}" if len(pages) > 1 else f"frame {file}"
                with _without_warnings():
                    image.seek(page)
                    turn = _exif_turn(image)
                    size = _turned(image.size, turn)
                    first_size = first_size or size
                    _not_too_large(size, what)
                    _same_size(size, first_size, what, files[0].name)
                    if image.mode.startswith(("I", "F")):
                        raise InputError(f"{what} has mode {image.mode}; expected 8 bits per channel")
                    frame = _resized(_upright(image.convert("L"), turn))
                yield frame


def page_count(file: Path) -> int:
    """The number of frames in an image: 1, or the pages of a TIFF stack or an animated PNG."""
    with _image(file) as (_, pages):
        return len(pages)


def video_frames(file: Path) -> Iterator[np.ndarray]:
    """Decode a clip stored as one video; see `Clip.frames` for the result.

    Frames that an edit list leaves out are not decoded: a video may have been trimmed without encoding it again.
    """
    decoded, end, length, first_size = 0, 0, 0, None
    with _reading(file), _opened(file) as container:
        stream = _video_stream(container, file)
        stream.thread_type = "AUTO"
        for packet in container.demux(stream):
            if packet.is_corrupt:  # the file ends inside this packet
                raise _truncated(file, decoded, stream.frames)
            for image in packet.decode():
                turn = _matrix_turn(image, file)
                size = _turned((image.width, image.height), turn)
                first_size = first_size or size
                _same_size(size, first_size, f"frame {decoded} of {file}", "frame 0")
                length = image.duration or 0
                end = max(end, (decoded if image.pts is None else image.pts) + length)
                decoded += 1
                yield _resized(_upright(Image.fromarray(image.to_ndarray(format="gray")), turn))
        # By time, since a header's number of frames includes those that are left out. An AVI's ticks are frames, and
        # its duration is a guess where the file was cut. A trim may end inside a frame, and codecs drop a few.
        whole = stream.frames if container.format.name == "avi" else stream.duration or 0
        if not decoded or end - (stream.start_time or 0) < 0.99 * whole - length:
            raise _truncated(file, decoded, stream.frames)


def announced_frames(file: Path) -> int:
    """The number of frames in a video's header, with those that are trimmed off; 0 if it has none."""
    with _reading(file), _opened(file) as container:
        return _video_stream(container, file).frames


def image_size(file: Path) -> tuple[int, int]:
    """Width and height of an upright image, read without decoding."""
    with _image(file) as (image, _), _without_warnings():
        return _turned(image.size, _exif_turn(image))


def video_size(file: Path) -> tuple[int, int]:
    """Width and height of a video's upright frames, by its first one."""
    with _reading(file), _opened(file) as container:
        image = next(container.decode(_video_stream(container, file)), None)
        if image is None:
            raise _truncated(file, 0, container.streams.video[0].frames)
        return _turned((image.width, image.height), _matrix_turn(image, file))


def array_frames(frames: Any) -> np.ndarray:
    """Bring frames in memory to the form in which clips on disk are read.

    Args:
        frames: (F, H, W) in grey or (F, H, W, 3) in RGB: uint8, or floats in [0, 1], which noise may have moved out of
            these bounds.

    Returns:
        (F, SIZE, SIZE): uint8 from uint8, else float32 in units of [0, 1].

    Raises:
        InputError: Another shape or type, or floats that are not in these units.
    """
    given = np.asarray(frames)
    colour = given.ndim == 4 and given.shape[-1] == 3
    if not (colour or (given.ndim == 3 and given.shape[-1] > 4)) or 0 in given.shape:
        raise InputError(
            f"frames must have shape (F, H, W), or (F, H, W, 3) in RGB; got {given.shape}. One frame is frames[None]."
        )
    if given.dtype == np.uint8:
        return np.stack([_resized(Image.fromarray(frame).convert("L")) for frame in given])
    if given.dtype.kind != "f":
        raise InputError(f"frames must be uint8, or floats in [0, 1]; got {given.dtype}.")
    given = given.astype(np.float32)
    grey = given @ np.array(_LUMA, np.float32) if colour else given
    if not -1 <= float(grey.mean()) <= 2:  # also of frames that are not finite
        raise InputError(f"frames of floats must be in [0, 1]; got a mean of {grey.mean():.3g}. Divide by 255.")
    return np.stack([_resized(Image.fromarray(frame)) for frame in grey])


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn any exception of a decoder into an `InputError` that names the file.

    On damaged files Pillow and PyAV raise OSError, SyntaxError, struct.error, TypeError and more, depending on where
    the damage is.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # MemoryError too: a damaged header may ask for too much
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(
            f"{file} can't be decoded: {reason}. Is it truncated or damaged? Copy or download it again, or move it away"
        ) from error


@contextmanager
def _image(file: Path) -> Iterator[tuple[Image.Image, list[int]]]:
    """Open an image, of which only headers are read, and list its frames; see `_pages`."""
    with _reading(file), ExitStack() as stack:
        if not file.is_file():  # opening a pipe would block
            raise InputError(f"{file} must be a file of an image.")
        content = stack.enter_context(file.open("rb"))  # by its name Pillow maps a TIFF that lies on its side wrongly
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            image = stack.enter_context(Image.open(content, formats=IMAGE_FORMATS))
            pages = _pages(image, file)
            image.seek(pages[0])
        if image.format == "TIFF" and any("Corrupt EXIF data" in str(each.message) for each in raised):
            raise ValueError("its list of pages breaks off")
        yield image, pages


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence Pillow's warnings of damaged metadata; a damaged picture is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pages(image: Image.Image, file: Path) -> list[int]:
    """The numbers of an image's frames: several in a TIFF stack or an animated PNG."""
    pages = list(range(getattr(image, "n_frames", 1)))
    if image.format == "PNG":  # a picture for programs that know no animations may come first
        return pages[bool(getattr(image, "default_image", False)) :]
    if len(pages) == 1:
        return pages
    sizes, copies = [], []
    for page in pages:
        image.seek(page)
        sizes.append(image.size)
        copies.append(isinstance(image, TiffImageFile) and image.tag_v2.get(_SUBFILE, 0) & _NOT_A_PAGE)
    if isinstance(image, TiffImageFile):
        return [page for page in pages if not copies[page]] or pages[:1]
    # A JPEG with others behind it: previews and gain maps are smaller, what another lens saw is not.
    if sizes.count(sizes[0]) > 1:
        raise InputError(f"{file} holds {len(pages)} pictures; expected one. Save each as a file of its own.")
    return pages[:1]


def _exif_turn(image: Image.Image) -> Image.Transpose | None:
    """What turns an image upright; None if it is."""
    if image.format == "TIFF":  # Pillow does it as it decodes
        return None
    with suppress(Exception):  # damaged metadata must not cost the picture
        return _EXIF_TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return None


def _matrix_turn(image: VideoFrame, file: Path) -> Image.Transpose | None:
    """What turns a video's frame upright, as its display matrix says; None if it is.

    Raises:
        InputError: If the matrix turns by other than quarters.
    """
    data: Any = image.side_data.get("DISPLAYMATRIX")
    if data is None:
        return None
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data))
    largest = max(map(abs, (a, b, c, d))) or 1
    signs = tuple(round(value / largest) for value in (a, b, c, d))
    if signs not in _MATRIX_TURNS:
        raise InputError(f"{file} is to be shown turned by {image.rotation}°; expected quarter turns. Encode it again.")
    return _MATRIX_TURNS[signs]


def _turned(size: tuple[int, int], turn: Image.Transpose | None) -> tuple[int, int]:
    return size[::-1] if turn in _SIDEWAYS else size


def _upright(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    return image if turn is None else image.transpose(turn)


def _opened(file: Path) -> InputContainer:
    """Open a video without following references: a playlist named .avi could open other files or the network."""
    if not file.is_file():  # opening a pipe would block
        raise InputError(f"{file} must be a file of a video.")
    options = {"protocol_whitelist": "file", "format_whitelist": VIDEO_FORMATS, "max_pixels": str(MOST_PIXELS)}
    return av.open(str(file.absolute()), options=options)


def _video_stream(container: InputContainer, file: Path) -> VideoStream:
    """The one video of a file: not its cover, and of several the one that the file marks as its default.

    Raises:
        InputError: If it has several and no default, is too large, or announces more frames than it can hold.
    """
    streams = [stream for stream in container.streams.video if not stream.disposition & _BESIDE]
    if not streams:
        raise ValueError("no video stream in it")
    if len(streams) > 1:
        marked = [stream for stream in streams if stream.disposition & Disposition.default]
        if len(marked) != 1:
            raise InputError(
                f"{file} holds {len(streams)} videos and marks {len(marked)} as its default; expected one. Take one "
                "out, for example: ffmpeg -i FILE -map 0:v:0 -c copy OUT."
            )
        streams = marked
    stream = streams[0]
    _not_too_large((stream.width, stream.height), str(file))
    if stream.frames > (size := file.stat().st_size):
        raise InputError(f"{file} announces {stream.frames} frames in {size} bytes. Copy or download it again.")
    return stream


def _not_too_large(size: tuple[int, int], what: str) -> None:
    if size[0] * size[1] > MOST_PIXELS:
        raise InputError(
            f"{what} is {size[0]}x{size[1]}, and would take as many bytes and more; expected at most {MOST_PIXELS} "
            "pixels. Scale it down."
        )


def _truncated(file: Path, decoded: int, announced: int) -> InputError:
    return InputError(
        f"{file} is truncated: it announces {announced} frames and {decoded} could be decoded. "
        "Copy or download it again, or move it away"
    )


def _same_size(size: tuple[int, int], expected: tuple[int, int], frame: str, reference: str) -> None:
    if size != expected:
        raise InputError(
            f"{frame} is {size[0]}x{size[1]} but {reference} is {expected[0]}x{expected[1]}; "
            "expected frames of one size in a clip. Is it a frame of another clip?"
        )


def _resized(image: Image.Image) -> np.ndarray:
    """The resize for both images and videos, so that a clip gives the same frames from either."""
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
