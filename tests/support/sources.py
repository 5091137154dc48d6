"""Small data sets on disk: videos, folders of frames, reviews and pairs of sentences."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
from PIL import Image

ROWS = [("it is a dog .", 'an animal, "so', "entailment"), ("it runs", "it's red", "neutral"), ("a", "b", "-")]


def encode(
    file: Path,
    *streams: tuple[bool, Sequence[np.ndarray]],
    step: int = 1,
    codec: str = "mpeg4",
    pixels: str = "yuv420p",
    **options: str,
) -> Path:
    """A video of streams, each with whether it is the default and its pictures in RGB, one every ``step`` ticks."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w", options=options) as container:
        made = [container.add_stream(codec, rate=25) for _ in streams]
        for stream, (default, pictures) in zip(made, streams, strict=True):
            stream.height, stream.width, stream.pix_fmt = *pictures[0].shape[:2], pixels
            stream.disposition = av.stream.Disposition.default if default else av.stream.Disposition(0)
        for stream, (_, pictures) in zip(made, streams, strict=True):
            for place, picture in enumerate(pictures):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts = place * step
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return file


def write_video(file: Path, frames: int = 12, *, size: tuple[int, int] = (64, 48), **options: str) -> Path:
    """A video whose frame k is grey of level 20·k (mod 256) above textured rows that don't compress away."""
    pictures = np.random.default_rng(0).integers(0, 256, (frames, size[1], size[0], 3), np.uint8)
    for k, picture in enumerate(pictures):
        picture[: size[1] // 2] = 20 * k % 256
    return encode(file, (True, pictures), **options)


def box(kind: bytes, content: bytes) -> bytes:
    """A box of an MP4."""
    return struct.pack(">I4s", 8 + len(content), kind) + content


def add_box(file: Path, parents: tuple[bytes, ...], new: bytes, *, first: bool = False) -> Path:
    """Add a box to the innermost of an MP4's boxes, as its last or first; its index must lie behind its frames."""
    content, start, grown = bytearray(file.read_bytes()), 0, []
    for parent in parents:
        while content[start + 4 : start + 8] != parent:
            start += struct.unpack_from(">I", content, start)[0]
        grown.append(start)
        start += 8
    place = start if first else grown[-1] + struct.unpack_from(">I", content, grown[-1])[0]
    content[place:place] = new
    for outer in grown:
        struct.pack_into(">I", content, outer, struct.unpack_from(">I", content, outer)[0] + len(new))
    file.write_bytes(content)
    return file


def trim(file: Path, *parts: tuple[int, int]) -> Path:
    """Keep frames FIRST … LAST of a video of 25 frames a second for each part, by an edit list alone."""
    ticks, seconds = 12800 // 25, 1000 // 25  # of the track, and of the whole file
    edits = [struct.pack(">IiI", seconds * (last - first + 1), ticks * first, 1 << 16) for first, last in parts]
    file.write_bytes(file.read_bytes().replace(b"edts", b"free"))
    table = box(b"elst", struct.pack(">II", 0, len(edits)) + b"".join(edits))
    return add_box(file, (b"moov", b"trak"), box(b"edts", table))


def write_frames(
    folder: Path,
    frames: int = 3,
    *,
    suffix: str = ".jpg",
    size: tuple[int, int] = (24, 16),
    seed: int = 0,
    shade: int = 256,
    **options: str,
) -> Path:
    """A folder of still images of random grey, below a shade."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for k in range(frames):
        Image.fromarray(rng.integers(0, shade, (size[1], size[0]), np.uint8)).save(folder / f"{k}{suffix}", **options)
    return folder


def clips(folder: Path, count: int = 4, frames: int = 8, shade: int = 255) -> Path:
    """A folder of clips, each a folder of frames of random grey, unlike the generated scenes."""
    for clip in range(count):
        write_frames(folder / f"clip{clip}", frames, suffix=".png", size=(160, 160), seed=clip, shade=shade)
    return folder


def imdb(folder: Path, reviews: tuple[str, str] = ("bad <br /><br />film", "good film")) -> Path:
    """IMDb as unpacked: for each side one negative and one positive review."""
    for side in ("train", "test"):
        for name, text in zip(("neg", "pos"), reviews, strict=True):
            (folder / side / name).mkdir(parents=True)
            (folder / side / name / "0_1.txt").write_text(text)
    return folder


def mnli(folder: Path, form: str = "glue", rows: list[tuple[str, str, str]] = ROWS) -> Path:
    """MNLI in one of its three published forms: "glue", "four" (columns) or "jsonl"; or "list", one of JSON."""
    folder.mkdir(exist_ok=True)
    names = ("sentence1", "sentence2", "gold_label")
    forms = {
        "glue": (
            ("train.tsv", "dev_matched.tsv"),
            ["\t".join(("index", *names)), *("\t".join((str(place), *row)) for place, row in enumerate(rows))],
        ),
        "four": (
            ("mnli_train.tsv", "mnli_val.tsv"),
            ["sentence1\tsentence2\tlabel\tgenre", *("\t".join((*row, "slate")) for row in rows)],
        ),
        "jsonl": (
            ("multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl"),
            [json.dumps(dict(zip(names, row, strict=True))) for row in rows],
        ),
    }
    forms["list"] = (("TRAIN.JSONL", "dev.jsonl"), [f"[{','.join(forms['jsonl'][1])}]"])
    files, lines = forms[form]
    for file in files:
        (folder / file).write_text("\n".join(lines) + "\n")
    return folder


def grow(root: Path, tree: str, suffix: str = "") -> Path:
    """Make the files of a tree such as ``train/{a,b}.png``, and the folders whose names end with a slash.

    Args:
        root: The folder.
        tree: The names.
        suffix: What stands for a dot at the end of a name.
    """
    for name in tree.split():
        before, _, rest = name.partition("{")
        inside, _, after = rest.partition("}")
        for each in inside.split(","):
            path = f"{before}{each}{after}"
            file = root / (path.removesuffix(".") + suffix if path.endswith(".") else path)
            (file if name.endswith("/") else file.parent).mkdir(parents=True, exist_ok=True)
            if file.suffix.lower() in (".avi", ".mp4", ".mov"):
                write_video(file, frames=2)
            elif file.suffix in (".jpg", ".png", ".tif", ".bmp"):
                rng = np.random.default_rng([*path.encode()])  # another picture in every file
                Image.fromarray(rng.integers(0, 256, (16, 24), np.uint8)).save(file)
            elif not name.endswith("/"):
                file.write_text({"train": "bear\nblackswan\n", "val": "camel\n"}.get(file.stem, f"a text, {file}"))
    return root


def image_folder(
    root: Path, sides: tuple[str, ...] = ("train", "test"), classes: tuple[str, ...] = ("cats", "dogs"), count: int = 5
) -> Path:
    """Images below a folder for each side and class; returns the root."""
    names = ",".join(f"{place}.png" for place in range(count))
    return grow(root, " ".join(f"{side}/{name}/{{{names}}}" for side in sides for name in classes))
