"""Decode a clip's files into grey frames, one at a time; a damaged file raises an `InputError`."""

import struct
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import TiffImageFile

from descend.errors import InputError
from descend.reading import MOST_PIXELS, refuse_large
from descend.tasks.pictures import FORMATS, opaque

SIZE = 160
"""Height and width of every frame, in pixels."""

_LUMA = (0.299, 0.587, 0.114)
"""BT.601 weights of red, green and blue, as Pillow has them."""

VIDEO_FORMATS = "avi,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"
"""FFmpeg's names of the formats that are read."""

_SUBFILE, _NOT_A_PAGE = 254, 0b101
"""TIFF's tag NewSubfileType, and its bits for a smaller copy of another page and a mask for one."""


def image_pictures(files: tuple[Path, ...]) -> Iterator[tuple[str, Image.Image]]:
    """Decode a clip stored as one image per frame, or as the pages of one image.

    Yields:
        A frame's name for messages, and its upright grey picture.
    """
    for file in files:
        with _image(file) as (image, pages):
            if len(pages) > 1 and len(files) > 1:
                raise InputError(
                    f"frame {file} has {len(pages)} pages; expected one, because {files[0].name} has one. Each file of "
                    "a folder is one frame, or each is a clip: move the others away."
                )
            for page in pages:
                name = f"page {page} of {file}" if len(pages) > 1 else f"frame {file}"
                with warnings.catch_warnings(action="ignore"):  # of damaged metadata; a damaged picture is an error
                    image.seek(page)
                    refuse_large(image.size, name)
                    if image.mode.startswith(("I", "F")):
                        raise InputError(f"{name} has mode {image.mode}; expected 8 bits per channel")
                    picture: Image.Image = image
                    with suppress(Exception):  # damaged metadata must not cost the picture
                        picture = ImageOps.exif_transpose(image)
                    picture = opaque(picture).convert("L")
                yield name, picture


def page_count(file: Path) -> int:
    """The number of frames in an image: 1, or the pages of a TIFF stack or an animation."""
    with _image(file) as (_, pages):
        return len(pages)


def video_pictures(file: Path) -> Iterator[tuple[str, Image.Image]]:
    """Decode a clip stored as one video.

    Frames that an edit list leaves out are not decoded: a video may have been trimmed without encoding it again.

    Yields:
        A frame's name for messages, and its upright grey picture.
    """
    decoded, end, length, cut = 0, 0, 0, False
    with _video(file) as (container, stream):
        stream.thread_type = "AUTO"
        for packet in container.demux(stream):
            if packet.is_corrupt:  # the file ends inside this packet
                cut = True
                break
            for image in packet.decode():
                length = image.duration or 0
                end = max(end, (decoded if image.pts is None else image.pts) + length)
                yield f"frame {decoded} of {file}", _upright(image)
                decoded += 1
        # By time, since a header's number of frames includes those that are left out. An AVI's ticks are frames, and
        # its duration is a guess where the file was cut. A trim may end inside a frame, and codecs drop a few.
        whole = stream.frames if container.format.name == "avi" else stream.duration or 0
        if cut or not decoded or end - (stream.start_time or 0) < 0.99 * whole - length:
            raise InputError(
                f"{file} is truncated: it announces {stream.frames} frames and {decoded} could be decoded. "
                "Copy or download it again, or move it away"
            )


def announced_frames(file: Path) -> int:
    """The number of frames in a video's header, with those that are trimmed off; 0 if it has none."""
    with _video(file) as (_, stream):
        return stream.frames


def resized(pictures: Iterable[tuple[str, Image.Image]]) -> Iterator[np.ndarray]:
    """The frames of a clip, all resized to (SIZE, SIZE); see `Clip.frames`.

    Args:
        pictures: The clip's, each with its name for messages.

    Raises:
        InputError: If they differ in size.
    """
    first = None
    for name, picture in pictures:
        first = first or (name, picture.size)
        if picture.size != first[1]:
            sizes = ["x".join(map(str, size)) for size in (picture.size, first[1])]
            raise InputError(
                f"{name} is {sizes[0]} but {first[0]} is {sizes[1]}; expected frames of one size in a clip. Is it a "
                "frame of another clip?"
            )
        yield _resized(picture)


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
    if not file.is_file():  # opening a pipe would block
        raise InputError(f"{file} must be a file of a video or an image.")
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
        content = stack.enter_context(file.open("rb"))  # by its name Pillow maps a TIFF that lies on its side wrongly
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            image = stack.enter_context(Image.open(content, formats=FORMATS))
            pages = _pages(image)
            image.seek(pages[0])
        if image.format == "TIFF" and any("Corrupt EXIF data" in str(each.message) for each in raised):
            raise ValueError("its list of pages breaks off")
        yield image, pages


def _pages(image: Image.Image) -> list[int]:
    """The numbers of an image's frames: several in a TIFF stack or an animation."""
    pages = list(range(getattr(image, "n_frames", 1)))
    if image.format == "PNG":  # a picture for programs that know no animations may come first
        return pages[bool(getattr(image, "default_image", False)) :]
    if image.format in ("JPEG", "MPO"):
        return pages[:1]  # behind it lie previews and gain maps
    if not isinstance(image, TiffImageFile):
        return pages
    copies = set()
    for page in pages:
        image.seek(page)
        if image.tag_v2.get(_SUBFILE, 0) & _NOT_A_PAGE:
            copies.add(page)
    return [page for page in pages if page not in copies] or pages[:1]


def _upright(frame: VideoFrame) -> Image.Image:
    """A video's frame in grey, turned as its display matrix says: the pixel (x, y) is shown at (a·x + c·y, b·x + d·y).

    Only quarter turns and flips are made; those nearest to another matrix.
    """
    picture = frame.to_ndarray(format="gray")
    data: Any = frame.side_data.get("DISPLAYMATRIX")
    if data is not None:
        a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data))  # some writers leave it empty
        if abs(b) > abs(a):
            picture, a, d = picture.T, c, b
        picture = picture[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
    return Image.fromarray(picture)


@contextmanager
def _video(file: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video and choose its stream as FFmpeg does: not its cover, and of several the default.

    No references are followed: a playlist named .avi could open other files or the network.

    Raises:
        InputError: If it has none, is too large, or announces more frames than it can hold.
    """
    with _reading(file):
        options = {"protocol_whitelist": "file", "format_whitelist": VIDEO_FORMATS, "max_pixels": str(MOST_PIXELS)}
        with av.open(str(file.absolute()), options=options) as container:
            stream = container.streams.best("video")
            if not isinstance(stream, VideoStream):
                raise ValueError("no video stream in it")
            refuse_large((stream.width, stream.height), str(file))
            if stream.frames > (size := file.stat().st_size):
                raise InputError(f"{file} announces {stream.frames} frames in {size} bytes. Copy or download it again.")
            yield container, stream


def _resized(image: Image.Image) -> np.ndarray:
    """The resize for both images and videos, so that a clip gives the same frames from either."""
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
