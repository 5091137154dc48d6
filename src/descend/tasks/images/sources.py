"""Images with classes: a folder for each class, MNIST's IDX files, scikit-learn's digits, or generated ones."""

import gzip
import logging
import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from descend.errors import InputError, reason
from descend.extras import required
from descend.progress import progress
from descend.reading import MOST_BYTES, is_litter, refuse_ways_out
from descend.settings import DIGITS
from descend.tasks.text.splits import class_order, sides_of, split_classes

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Suffixes of images; other files beside them are passed over."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are read."""

TEST_SHARE = 0.2
"""Share of each class to test on where there is no test side."""

_IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_GENERATED = {"train": 40, "test": 20}
"""Generated images of each class."""

Picture = Path | np.ndarray
"""A file, or grey (height, width) or colours (height, width, 3) in bytes."""


logger = logging.getLogger(__name__)


class Side(NamedTuple):
    """The pictures of one side of a data set, and the number of each one's class."""

    pictures: Sequence[Picture]
    labels: np.ndarray

    def part(self, places: Sequence[int]) -> "Side":
        """Some of them."""
        return Side([self.pictures[place] for place in places], self.labels[list(places)])


class Pictures(NamedTuple):
    """A data set of pictures.

    Attributes:
        train: Pictures to train on, and to split others off.
        test: Pictures to test on; None if they must be split off.
        classes: Names of the classes, in the order of their numbers.
        validation: Pictures to validate on; None if they must be split off.
    """

    train: Side
    test: Side | None
    classes: tuple[str, ...]
    validation: Side | None = None

    def parts(self, validation_share: float) -> dict[str, Side]:
        """``train``, ``validation`` and ``test``, with a share of each class, split in the same way in every run.

        Equal images are all in one part, but for those that are on several sides as they are given.

        Raises:
            InputError: If the share is out of range, or a class has too few images.
        """
        if not 0 < validation_share < 1:
            raise InputError(f"validation_share must lie between 0 and 1; got {validation_share}.")
        train, test, validation = self.train, self.test, self.validation
        with ThreadPoolExecutor() as pool:
            keys = list(pool.map(_digest, train.pictures))
            held = {*pool.map(_digest, [each for side in (test, validation) if side for each in side.pictures])}
        if shared := held.intersection(keys):
            logger.warning("%d images to train on are also among those to test or validate on.", len(shared))
        different = dict(zip(reversed(keys), train.labels[::-1].tolist(), strict=True))  # each in its first class
        counts = np.bincount(list(different.values()), minlength=len(self.classes))
        uses = ["train", *["validate"] * (validation is None), *["test"] * (test is None)]
        if counts.min() < len(uses):
            few = self.classes[int(counts.argmin())]
            raise InputError(
                f"expected at least {len(uses)} different images of each class, to {', '.join(uses)} on; {few} has "
                f"{counts.min()}. Add some, or leave the class out."
            )
        rest: Sequence[int] = range(len(keys))
        if test is None:
            off, rest = split_classes(keys, train.labels.tolist(), TEST_SHARE)
            test = train.part(off)
        if validation is None:
            labels = train.labels[rest].tolist()
            off, left = split_classes([keys[place] for place in rest], labels, validation_share)
            validation, rest = train.part([rest[place] for place in off]), [rest[place] for place in left]
        train = train.part(rest)
        return {"train": train, "validation": validation, "test": test}


def _digest(picture: Picture) -> bytes:
    """What equal pictures have in common."""
    if isinstance(picture, Path):
        return sha256(picture.read_bytes()).digest()
    return sha256(repr(picture.shape).encode() + picture.tobytes()).digest()


class Images(Dataset):
    """Pictures made ready for a model when they are fetched: ``pixel_values`` (C, height, width), and ``labels``.

    Args:
        side: The pictures, with a model's numbers of their classes.
        processor: An image processor of Transformers, which resizes and normalizes.
    """

    def __init__(self, side: Side, processor: Callable[..., Any]):
        self.side, self.processor = side, processor

    def __len__(self) -> int:
        return len(self.side.labels)

    def __getitem__(self, place: int) -> dict[str, Any]:
        pixels = self.processor(upright(self.side.pictures[place]), return_tensors="pt")["pixel_values"][0]
        return {"pixel_values": pixels, "labels": int(self.side.labels[place])}


def upright(picture: Picture, least: int | None = None) -> Image.Image:
    """A picture in three channels, turned upright, without transparency.

    Args:
        picture: The picture.
        least: A size that is enough to see whether it can be read; None for the whole picture.

    Raises:
        InputError: If it can't be read; the message names the file.
    """
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture).convert("RGB")
    try:
        with Image.open(picture, formats=FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"it has mode {image.mode}, and 8 bits per channel are expected")
            if least is not None:
                image.draft("RGB", (least, least))
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise InputError(
            f"{picture} can't be read as an image: {reason(error).rstrip('.')}. Remove it or copy it again."
        ) from None


def read_images(data: str | None) -> Pictures:
    """Read a data set of images.

    Args:
        data: A folder with a folder of images for each class, or with such ``train``, ``test`` and ``val`` folders; a
            folder with MNIST's IDX files, gzipped or not, or one of these files; ``digits`` for scikit-learn's; None
            for generated ones.

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
    files = {match.group(1, 2): file for file in sorted(root.rglob("*-ubyte*")) if (match := _IDX.fullmatch(file.name))}
    return _of_idx(root, files) if files else _of_folder(root)


def _of_folder(root: Path) -> Pictures:
    sides = sides_of(root, Path.is_dir)
    if sides and "train" not in sides:
        other = next(iter(sides.values())).name
        raise InputError(f"{root} has {other} and no train. Put the images to train on in {root / 'train'}.")
    train, *held = sides.values() or [root]
    classes = tuple(class_order(each.name for each in _folders(train)))
    if len(classes) < 2:
        only = f"only {classes[0]}" if classes else "no folder"
        raise InputError(f"{train} must hold a folder of images for each of at least 2 classes; it has {only}.")
    found = [_side(folder, root, classes) for folder in [train, *held]]
    if len(np.unique(found[0].labels)) < len(classes):
        empty = next(name for number, name in enumerate(classes) if number not in found[0].labels)
        raise InputError(f"{train / empty} holds no images; expected {', '.join(sorted(SUFFIXES))}.")
    every = [file for side in found for file in side.pictures if isinstance(file, Path)]
    refuse_ways_out(root, every)
    with ThreadPoolExecutor() as pool, progress(len(every), "checking", "image", leave=False) as bar:
        for _ in pool.map(lambda file: upright(file, least=1), every):
            bar.update()
    others = dict(zip(("test", "validation"), found[1:], strict=False))
    return Pictures(found[0], others.get("test"), classes, others.get("validation"))


def _side(folder: Path, root: Path, classes: Sequence[str]) -> Side:
    """The images below a folder with one folder for each class."""
    if unknown := [each.name for each in _folders(folder) if each.name not in classes]:
        raise InputError(
            f"{folder / unknown[0]} is a class that the training images lack; they have {', '.join(classes[:10])}. "
            "Rename or remove it."
        )
    files: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        inside = sorted(
            file
            for file in (folder / name).rglob("*")
            if file.suffix.lower() in SUFFIXES and file.is_file() and not is_litter(file.relative_to(root))
        )
        files += inside
        labels += [number] * len(inside)
    if not files:
        raise InputError(f"{folder} holds no images; expected {', '.join(sorted(SUFFIXES))}.")
    return Side(files, np.array(labels))


def _folders(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir() and not is_litter(Path(each.name))]


def _of_idx(root: Path, files: dict[tuple[str | Any, ...], Path]) -> Pictures:
    sides: list[tuple[np.ndarray, np.ndarray]] = []
    for name in ("train", "t10k", "test"):
        pair = [files.get((name, what)) for what in ("images", "labels")]
        if pair == [None, None] and name != "train":
            continue
        if None in pair:
            names = ", ".join(sorted(file.name for file in files.values()))
            raise InputError(
                f"{root} must hold the images and the labels of each side, such as {name}-images-idx3-ubyte.gz and "
                f"{name}-labels-idx1-ubyte.gz; it has {names}."
            )
        images, labels = (_idx(file, axes) for file, axes in zip(pair, (3, 1), strict=True) if file is not None)
        if len(images) != len(labels):
            raise InputError(f"{pair[0]} has {len(images)} images, and {pair[1]} {len(labels)} labels.")
        sides.append((images, labels))
    numbers = np.unique(sides[0][1])
    if len(numbers) < 2:
        raise InputError(f"{root} must hold images of at least 2 classes; the labels are all {numbers[0]}.")
    if len(sides) > 1 and len(unknown := np.setdiff1d(sides[1][1], numbers)):
        raise InputError(f"{root}: class {unknown[0]} is among the test labels and not among those to train on.")
    found = [Side([*images], np.searchsorted(numbers, labels)) for images, labels in sides]
    return Pictures(found[0], found[1] if len(found) > 1 else None, tuple(map(str, numbers)))


def _idx(file: Path, axes: int) -> np.ndarray:
    """The bytes of an IDX file with so many axes."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
            head = content.read(4 + 4 * axes)
            shape = np.frombuffer(head[4:], ">u4").astype(int).tolist()
            if head[:4] != bytes([0, 0, 8, axes]) or len(shape) != axes or not 0 < math.prod(shape) <= MOST_BYTES:
                raise ValueError(f"it does not begin as one of bytes with {axes} axes")
            values = np.frombuffer(content.read(math.prod(shape) + 1), np.uint8)
            return values.reshape(shape)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{file} can't be read as an IDX file: {reason(error)}. Copy or download it again.") from None


def _digits() -> Pictures:
    with required(f"--data {DIGITS}"):
        from sklearn.datasets import load_digits
    found = load_digits()
    pictures = [*(found.images * (255 / 16)).round().astype(np.uint8)]
    return Pictures(Side(pictures, found.target), None, tuple(map(str, range(10))))


def _generated() -> Pictures:
    """Stripes of three directions, in colours, with noise."""
    rng, classes = np.random.default_rng(0), ("diagonal", "horizontal", "vertical")
    rows, columns = np.mgrid[:32, :32]
    sides = []
    for count in _GENERATED.values():
        labels = np.repeat(np.arange(3), count)
        pictures = []
        for label in labels:
            place = (rows + columns, rows, columns)[label] + rng.uniform(0, 8)
            stripes = (np.sin(place * (math.pi / 4)) > 0)[..., None]
            light, dark = rng.uniform(130, 255, 3), rng.uniform(0, 120, 3)
            noise = rng.normal(0, 25, (32, 32, 3))
            pictures.append((np.where(stripes, light, dark) + noise).clip(0, 255).astype(np.uint8))
        sides.append(Side(pictures, labels))
    train, test = sides
    return Pictures(train, test, classes)
