"""Images with classes: a folder for each class, MNIST's IDX files, scikit-learn's digits, or generated ones."""

import gzip
import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from descend.declared import DIGITS
from descend.errors import InputError, refusing
from descend.extras import required
from descend.progress import counted, progress
from descend.reading import MOST_BYTES, is_litter, refuse_large, refuse_ways_out
from descend.tasks.folders import class_files, files_read
from descend.tasks.pictures import FORMATS, SUFFIXES, opaque
from descend.tasks.splits import TEST_SHARE, numbered, split_classes, tell_shared

_IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_GENERATED = {"train": 40, "test": 20}
"""Generated images of each class."""

Picture = Path | np.ndarray
"""A file, or grey (height, width) or colours (height, width, 3) in bytes."""

_LARGE, _ALONE = Lock(), 2**22
"""A picture of more pixels is decoded alone, whatever the number of threads."""

MOST_UNPACKED = 256
"""Most bytes of a gzipped IDX file for each of its bytes on disk; those of MNIST have ten or fewer."""


class Side(NamedTuple):
    """The pictures of one side of a data set.

    Attributes:
        pictures: The pictures.
        labels: The number of each one's class.
        digests: What equal pictures have in common, once they are `compared`.
    """

    pictures: Sequence[Picture]
    labels: np.ndarray
    digests: Sequence[bytes] = ()

    def part(self, places: Sequence[int]) -> "Side":
        """Some of them."""
        pictures = [self.pictures[place] for place in places]
        digests = [self.digests[place] for place in places] if self.digests else ()
        return Side(pictures, self.labels[list(places)], digests)

    def compared(self) -> "Side":
        """The same side with its digests."""
        if len(self.digests) == len(self.pictures):
            return self
        with ThreadPoolExecutor() as pool:
            found = counted(pool.map(_digest, self.pictures), "comparing", "image", len(self.pictures))
            return self._replace(digests=list(found))


class Pictures(NamedTuple):
    """A data set of pictures.

    Attributes:
        sides: ``train``, and ``test`` and ``validation`` where they are given; others are split off the first.
        classes: Names of the classes, in the order of their numbers.
        read: What of a folder was read, see `files_read`.
    """

    sides: dict[str, Side]
    classes: tuple[str, ...]
    read: str = ""

    def parts(self, validation_share: float) -> dict[str, Side]:
        """``train``, ``validation`` and ``test``, with a share of each class, split in the same way in every run.

        Equal images are all in one part, but for those that are on several sides as they are given.

        Raises:
            InputError: If a class has too few images.
        """
        sides = {name: side.compared() for name, side in self.sides.items()}
        tell_shared({name: side.digests for name, side in sides.items()}, "images")
        for name, share in (("test", TEST_SHARE), ("validation", validation_share)):
            if name in sides:
                continue
            train = sides["train"]
            off, rest = split_classes(train.digests, train.labels.tolist(), share)
            sides |= {name: train.part(off), "train": train.part(rest)}
            in_both = set(sides[name].labels.tolist()).intersection(sides["train"].labels)
            if few := [self.classes[number] for number in {*train.labels.tolist()} - in_both]:
                raise InputError(
                    f"expected different images of each class to train on, and others for {name}; {few[0]} has too "
                    "few. Add some, or leave the class out."
                )
        return {name: sides[name] for name in ("train", "validation", "test")}


def _digest(picture: Picture) -> bytes:
    """What equal pictures have in common."""
    if isinstance(picture, Path):
        return sha256(picture.read_bytes()).digest()
    return sha256(repr(picture.shape).encode() + picture.tobytes()).digest()


class Images(Dataset):
    """Pictures made ready for a model when they are fetched.

    An item has ``pixel_values`` (C, height, width), ``labels``, and a ``group``, the same for all equal pictures.

    Args:
        side: The pictures, with a model's numbers of their classes.
        processor: An image processor of Transformers, which resizes and normalizes.
    """

    def __init__(self, side: Side, processor: Callable[..., Any]):
        self.side, self.processor = side.compared(), processor
        self.groups = numbered(self.side.digests)

    def __len__(self) -> int:
        return len(self.side.labels)

    def __getitem__(self, place: int) -> dict[str, Any]:
        pixels = self.processor(upright(self.side.pictures[place]), return_tensors="pt")["pixel_values"][0]
        return {"pixel_values": pixels, "labels": int(self.side.labels[place]), "group": self.groups[place]}


def upright(picture: Picture, least: int | None = None) -> Image.Image:
    """A picture in three channels, turned upright; a transparent one is laid on white.

    Args:
        picture: The picture.
        least: A size that is enough to see whether it can be read; None for the whole picture.

    Raises:
        InputError: If it can't be read; the message names the file.
    """
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture).convert("RGB")
    with (
        refusing(f"{picture} can't be read as an image", "Remove it or copy it again."),
        Image.open(picture, formats=FORMATS) as image,
    ):
        refuse_large(image.size, str(picture))
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"it has mode {image.mode}, and 8 bits per channel are expected")
        if least is not None:
            image.draft("RGB", (least, least))
        with _LARGE if math.prod(image.size) > _ALONE else nullcontext():
            return opaque(ImageOps.exif_transpose(image)).convert("RGB")


def read_images(data: str | None) -> Pictures:
    """Read a data set of images.

    Args:
        data: A folder with a folder of images for each class, or with such folders in those of sides, as `class_files`
            reads them; a folder with MNIST's IDX files, gzipped or not, or one of these files; ``digits`` for
            scikit-learn's; None for generated ones.

    Raises:
        InputError: If it holds none of these, a class or an image is missing, or an image can't be read.
    """
    if data is None:
        return _generated()
    if data == DIGITS:
        return _digits()
    given = Path(data).expanduser()
    root = given.parent if given.is_file() and _IDX.fullmatch(given.name) else given
    if not root.is_dir():
        raise InputError(f"expected a folder of images, or MNIST's IDX files; got {given}.")
    files = _idx_files(root)
    return _of_idx(root, files) if files else _of_folder(root)


def _of_folder(root: Path) -> Pictures:
    classes, files = class_files(root, "image", SUFFIXES)
    every = [file for side in files.values() for file, _ in side]
    refuse_ways_out(root, every)
    with ThreadPoolExecutor() as pool, progress(len(every), "checking", "image", leave=False) as bar:
        for _ in pool.map(lambda file: upright(file, least=1), every):
            bar.update()
    sides = {
        side: Side([file for file, _ in found], np.array([label for _, label in found]))
        for side, found in files.items()
    }
    return Pictures(sides, tuple(classes), files_read(root, every))


def _idx_files(root: Path) -> dict[tuple[str | Any, ...], Path]:
    """The names of a side and of what it holds → its IDX file, in the folder itself if there are some."""
    below = sorted(root.rglob("*-ubyte*"), reverse=True)  # the unpacked file stands for its archive
    files = [file for file in below if file.is_file() and not is_litter(file.relative_to(root))]
    found: dict[tuple[str | Any, ...], Path] = {}
    for file in [file for file in files if file.parent == root] or files:
        if match := _IDX.fullmatch(file.name):
            earlier = found.get(match.group(1, 2), file)
            if earlier.parent != file.parent:
                raise InputError(f"{root} holds IDX files in {earlier.parent} and in {file.parent}. Choose one folder.")
            found[match.group(1, 2)] = file
    return found


def _of_idx(root: Path, files: dict[tuple[str | Any, ...], Path]) -> Pictures:
    sides: dict[str, Side] = {}
    for name, side in (("train", "train"), ("t10k", "test"), ("test", "test")):
        pair = [files[name, what] for what in ("images", "labels") if (name, what) in files]
        if len(pair) == 1 or (not pair and name == "train"):
            raise InputError(
                f"{root} must hold the images and the labels of each side, such as {name}-images-idx3-ubyte.gz and "
                f"{name}-labels-idx1-ubyte.gz; it has {', '.join(sorted(file.name for file in files.values()))}."
            )
        if pair:
            images, labels = map(_idx, pair, (3, 1))
            if len(images) != len(labels):
                raise InputError(f"{pair[0]} has {len(images)} images, and {pair[1]} {len(labels)} labels.")
            if side in sides:
                raise InputError(f"{root} has t10k and test files, sides of one kind. Remove or rename one.")
            sides[side] = Side([*images], labels)
    numbers = np.unique(sides["train"].labels)
    if len(numbers) < 2:
        raise InputError(f"{root} must hold images of at least 2 classes; the labels are all {numbers[0]}.")
    if len(unknown := np.setdiff1d(sides.get("test", sides["train"]).labels, numbers)):
        raise InputError(f"{root}: class {unknown[0]} is among the test labels and not among those to train on.")
    found = {name: Side(side.pictures, np.searchsorted(numbers, side.labels)) for name, side in sides.items()}
    return Pictures(found, tuple(map(str, numbers)), files_read(root, files.values()))


def _idx(file: Path, axes: int) -> np.ndarray:
    """The bytes of an IDX file with so many axes."""
    with (
        refusing(f"{file} can't be read as an IDX file", "Copy or download it again."),
        gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content,
    ):
        head = content.read(4 + 4 * axes)
        shape = np.frombuffer(head[4:], ">u4").astype(int).tolist()
        if head[:4] != bytes([0, 0, 8, axes]) or len(shape) != axes or not 0 < math.prod(shape) <= MOST_BYTES:
            raise ValueError(f"it does not begin as one of bytes with {axes} axes")
        if math.prod(shape) > MOST_UNPACKED * file.stat().st_size:
            raise ValueError(f"it announces {math.prod(shape)} bytes, and has {file.stat().st_size}")
        return np.frombuffer(content.read(math.prod(shape) + 1), np.uint8).reshape(shape)


def _digits() -> Pictures:
    with required(f"--data {DIGITS}"):
        from sklearn.datasets import load_digits
    found = load_digits()
    pictures = [*(found.images * (255 / 16)).round().astype(np.uint8)]
    return Pictures({"train": Side(pictures, found.target)}, tuple(map(str, range(10))))


def _generated() -> Pictures:
    """Stripes of three directions, in colours, with noise."""
    rng, classes = np.random.default_rng(0), ("diagonal", "horizontal", "vertical")
    rows, columns = np.mgrid[:32, :32]
    sides = {}
    for side, count in _GENERATED.items():
        labels = np.repeat(np.arange(3), count)
        pictures = []
        for label in labels:
            place = (rows + columns, rows, columns)[label] + rng.uniform(0, 8)
            stripes = (np.sin(place * (math.pi / 4)) > 0)[..., None]
            light, dark = rng.uniform(130, 255, 3), rng.uniform(0, 120, 3)
            noise = rng.normal(0, 25, (32, 32, 3))
            pictures.append((np.where(stripes, light, dark) + noise).clip(0, 255).astype(np.uint8))
        sides[side] = Side(pictures, labels)
    return Pictures(sides, classes)
