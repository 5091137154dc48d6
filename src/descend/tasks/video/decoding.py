"""One clip's files → its grey frames, one at a time; whatever is wrong with a file becomes an InputError."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from PIL import Image

from descend.errors import InputError

SIZE = 160
"""Height and width of every frame, in pixels."""

MOST_PIXELS = 2**26
"""Of a frame as it lies on disk: twice 8K video."""

IMAGE_FORMATS = ("TIFF", "JPEG", "PNG")
VIDEO_FORMATS = "avi,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"
"""What is read, whatever a file's name says."""


def image_frames(files: tuple[Path, ...]) -> Iterator[np.ndarray]:
    """Decode a clip that lies as one image per frame; Clip.frames says what comes out."""
    first_size = None
    for file in files:
        with _reading(file), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged metadata; what matters is the pixels
            with Image.open(file, formats=IMAGE_FORMATS) as image:  # its header alone
                first_size = first_size or image.size
                _not_too_large(image.size, f"frame {file}")
                _same_size(image.size, first_size, f"frame {file}", files[0].name)
                if image.mode.startswith(("I", "F")):
                    raise InputError(f"frame {file} has mode {image.mode}; expected 8 bits per channel")
                frame = _resized(image.convert("L"))
        yield frame


def video_frames(file: Path) -> Iterator[np.ndarray]:
    """Decode a clip that lies as one video; Clip.frames says what comes out."""
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
        # An avi's header may count frames that its codec dropped, so a few may lack; a cut file lacks many.
        if decoded < 0.99 * stream.frames - 1 or not decoded:
            raise _truncated(file, decoded, stream.frames)


def announced_frames(file: Path) -> int:
    """Number of frames that a video's header announces; 0 if it doesn't say."""
    with _reading(file), _opened(file) as container:
        return _video_stream(container, file).frames


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn whatever a decoder raises over FILE into an InputError that names it.

    All exceptions: Pillow's and PyAV's readers meet damaged files with OSError, SyntaxError, struct.error,
    TypeError, …, depending on where the damage is.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # MemoryError too: a header asks for more than there is
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(
            f"{file} can't be decoded: {reason}. Is it truncated or damaged? Copy or download it again, or move it away"
        ) from error


def _opened(file: Path) -> InputContainer:
    """A video by its own bytes alone: a playlist by the name of an avi would have others opened, or the network."""
    if not file.is_file():  # opening a pipe would wait
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


def _same_size(size: tuple[int, int], first: tuple[int, int], frame: str, reference: str) -> None:
    if size != first:
        raise InputError(
            f"{frame} is {size[0]}x{size[1]} but {reference} is {first[0]}x{first[1]}; "
            "expected frames of one size in a clip. Is it a frame of another clip?"
        )


def _resized(image: Image.Image) -> np.ndarray:
    """One resize for images and videos, so that a clip looks the same from either."""
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
