"""Decode a clip's files into grey frames, one at a time; a damaged file raises an `InputError`."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from PIL import Image

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


def image_frames(files: tuple[Path, ...]) -> Iterator[np.ndarray]:
    """Decode a clip stored as one image per frame; see `Clip.frames` for the result."""
    first_size = None
    for file in files:
        with _reading(file), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged metadata, which we don't use
            with Image.open(file, formats=IMAGE_FORMATS) as image:  # reads the header only
                first_size = first_size or image.size
                _not_too_large(image.size, f"frame {file}")
                _same_size(image.size, first_size, f"frame {file}", files[0].name)
                if image.mode.startswith(("I", "F")):
                    raise InputError(f"frame {file} has mode {image.mode}; expected 8 bits per channel")
                frame = _resized(image.convert("L"))
        yield frame


def video_frames(file: Path) -> Iterator[np.ndarray]:
    """Decode a clip stored as one video; see `Clip.frames` for the result."""
    decoded, first_size = 0, None
    with _reading(file), _opened(file) as container:
        stream = _video_stream(container, file)
        stream.thread_type = "AUTO"
        for packet in container.demux(stream):
            if packet.is_corrupt:  # the file ends inside this packet
                raise _truncated(file, decoded, stream.frames)
            for image in packet.decode():
                size = (image.width, image.height)
                first_size = first_size or size
                _same_size(size, first_size, f"frame {decoded} of {file}", "frame 0")
                decoded += 1
                yield _resized(Image.fromarray(image.to_ndarray(format="gray")))
        # An AVI header may count frames that the codec dropped, so allow for a few; a truncated file lacks many.
        if decoded < 0.99 * stream.frames - 1 or not decoded:
            raise _truncated(file, decoded, stream.frames)


def announced_frames(file: Path) -> int:
    """The number of frames in a video's header; 0 if it has none."""
    with _reading(file), _opened(file) as container:
        return _video_stream(container, file).frames


def image_size(file: Path) -> tuple[int, int]:
    """Width and height of an image, read without decoding."""
    with _reading(file), Image.open(file, formats=IMAGE_FORMATS) as image:
        return image.size


def video_size(file: Path) -> tuple[int, int]:
    """Width and height of a video's frames, read without decoding."""
    with _reading(file), _opened(file) as container:
        stream = _video_stream(container, file)
        return stream.width, stream.height


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


def _opened(file: Path) -> InputContainer:
    """Open a video without following references: a playlist named .avi could open other files or the network."""
    if not file.is_file():  # opening a pipe would block
        raise InputError(f"{file} must be a file of a video.")
    options = {"protocol_whitelist": "file", "format_whitelist": VIDEO_FORMATS, "max_pixels": str(MOST_PIXELS)}
    return av.open(str(file.absolute()), options=options)


def _video_stream(container: InputContainer, file: Path) -> VideoStream:
    if not container.streams.video:
        raise ValueError("no video stream in it")
    stream = container.streams.video[0]
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
