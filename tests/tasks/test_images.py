"""Images on disk as people have them, and what of them is refused."""

import gzip
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import ViTImageProcessorPil

from descend.errors import InputError, MissingPackageError
from descend.tasks.images.sources import Images, read_images, upright
from descend.tasks.video import Clip
from tests.support.sources import grow, image_folder


def picture(height, width, mode="RGB"):
    """Dark, with a bright upper half."""
    values = np.random.default_rng(0).integers(0, 40, (height, width), dtype=np.uint8)
    values[: height // 2] += 200
    return Image.fromarray(values).convert(mode)


def idx(root, name, values, *, zipped=False):
    root.mkdir(exist_ok=True)
    content = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()
    file = root / f"{name}-ubyte{'.gz' if zipped else ''}"
    file.write_bytes(gzip.compress(content) if zipped else content)


def noise(seed):
    return np.random.default_rng(seed).integers(0, 255, (10, 6, 6))


def mnist(root, *, zipped=False, sides=("train", "t10k"), labels=(3, 7)):
    for number, side in enumerate(sides):
        idx(root, f"{side}-images-idx3", noise(number), zipped=zipped)
        idx(root, f"{side}-labels-idx1", np.array(labels * 5), zipped=zipped)
    return root


def samples(side, size=8):
    plain = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    return list(Images(side, ViTImageProcessorPil(size={"height": size, "width": size}, **plain)))


def test_any_image_is_upright_in_three_channels_and_of_one_size(tmp_path):
    turned = Image.Exif()
    turned[274] = 6  # turn by 90° to see it upright
    upright = picture(64, 96)
    files = {
        "colour.png": (upright, {}),
        "grey.png": (picture(11, 40, "L"), {}),
        "palette.gif": (picture(30, 30, "P"), {}),
        "clear.png": (picture(9, 9, "RGBA"), {}),
        "photo.jpeg": (upright.transpose(Image.Transpose.ROTATE_90), {"exif": turned, "quality": 95}),
        "cmyk.JPG": (picture(64, 64, "CMYK"), {}),
    }
    root = grow(tmp_path, "cats/ dogs/")
    for name, (each, options) in files.items():
        for kind in ("cats", "dogs"):
            each.save(root / kind / name, **options)
    (root / "cats" / "Thumbs.db").write_text("no image")
    found = read_images(str(root))
    assert found.classes == ("cats", "dogs") and len(found.sides["train"].pictures) == 2 * len(files)
    for sample in samples(found.sides["train"]):
        pixels = sample["pixel_values"]
        assert pixels.shape == (3, 8, 8) and pixels[:, :3].min() > 0.6 > 0.4 > pixels[:, -3:].max()
        assert (pixels[0] - pixels[2]).abs().max() < 0.1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_laid_on_white_whatever_colour_it_hides(tmp_path, mode):
    seen = []
    for hidden in (0, 90):
        pixels = np.full((16, 16, 4), hidden, np.uint8)
        pixels[4:12, 4:12], pixels[:2] = (60, 60, 60, 255), (0, 0, 0, 128)
        pixels[2:, :, 3] = np.where(pixels[2:, :, 0] == 60, 255, 0)
        Image.fromarray(pixels).convert(mode).save(tmp_path / f"{hidden}.png")
        (clip,) = Clip("", (tmp_path / f"{hidden}.png",)).frames()
        seen.append((np.asarray(upright(tmp_path / f"{hidden}.png")), clip))
    (picture, frame), (other, _) = seen
    assert (picture[14, 14] == 255).all() and (picture[8, 8] == 60).all() and frame[140, 140] == 255
    assert np.array_equal(picture[2:], other[2:])
    if mode != "P":
        assert abs(int(picture[0, 0, 0]) - 127) <= 1


@pytest.mark.parametrize("held", ["test", "val", None])
def test_parts_are_disjoint_hold_every_class_and_are_the_same_in_every_run(tmp_path, held):
    root = image_folder(tmp_path, sides=("train", held) if held else ("train",), count=10)
    parts, again = (read_images(str(root)).parts(0.25) for _ in range(2))
    assert list(parts) == ["train", "validation", "test"]
    files = [file for side in parts.values() for file in side.pictures]
    assert len(files) == len(set(files)) == (40 if held else 20)
    for name, side in parts.items():
        assert side.pictures == again[name].pictures and len(set(np.bincount(side.labels))) == 1
        assert all(
            file.parent.name == ("cats", "dogs")[label] for file, label in zip(side.pictures, side.labels, strict=True)
        )
        if held:
            assert all(file.is_relative_to(root / held) == (name == "test") for file in side.pictures)


def test_equal_images_are_on_one_side(tmp_path, caplog):
    root = image_folder(tmp_path / "data", sides=(".",), count=10)
    for name in ("cats", "dogs"):
        for place in range(10):
            shutil.copy(root / name / f"{place}.png", root / name / f"again-{place}.png")
    arrays = mnist(tmp_path / "idx", sides=["train"])
    images = np.repeat(noise(0), 2, 0)
    idx(arrays, "train-images-idx3", images)
    idx(arrays, "train-labels-idx1", np.array([3] * 10 + [7] * 10))
    for data in (root, arrays):
        parts = read_images(str(data)).parts(0.25)
        contents = [
            {each.read_bytes() if isinstance(each, Path) else each.tobytes() for each in side.pictures}
            for side in parts.values()
        ]
        assert (
            sum(map(len, contents)) == len(set.union(*contents)) == sum(len(side.labels) for side in parts.values()) / 2
        )
        assert all(len(set(side.labels)) == 2 for side in parts.values())
        for side in parts.values():
            groups = [sample["group"] for sample in samples(side)]
            assert len(set(zip(side.digests, groups, strict=True))) == len(set(groups)) == len(groups) / 2
    assert not caplog.text
    both = image_folder(tmp_path / "both", sides=("train", "test", "val"))
    shutil.copy(both / "train" / "cats" / "0.png", both / "test" / "cats" / "0.png")
    shutil.copy(both / "train" / "dogs" / "0.png", both / "val" / "dogs" / "0.png")
    parts = read_images(str(both)).parts(0.25)
    assert "2 images to train on are also among those to test or validate on" in caplog.text
    for side, name in (("train", "train"), ("validation", "val"), ("test", "test")):  # a given validation side is used
        assert parts[side].pictures == sorted((both / name).rglob("*.png"))


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_with_or_without_a_test_side(tmp_path, zipped):
    found = read_images(str(mnist(tmp_path / "whole", zipped=zipped)))
    assert found.classes == ("3", "7") and list(found.sides) == ["train", "test"]
    assert [sample["labels"] for sample in samples(found.sides["train"])] == [0, 1] * 5
    mnist(tmp_path / "whole" / "again")
    assert read_images(str(tmp_path / "whole")).read == "4 of 8 files read; 4 passed over: again/"
    one = mnist(tmp_path / "one", zipped=zipped, sides=["train"])
    (file,) = one.glob("train-images*")
    assert len(read_images(str(file)).parts(0.2)["test"].labels) == 2


def test_digits_and_generated_images_are_there_without_files(monkeypatch):
    assert len(read_images("digits").sides["train"].labels) == 1797
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPackageError, match=r"--data digits needs.*pip install pillow scikit-learn"):
        read_images("digits")
    assert [len(side.labels) for side in read_images(None).parts(0.2).values()] == [96, 24, 60]


def _cut(root):
    file = root / "train" / "dogs" / "2.png"
    file.write_bytes(file.read_bytes()[:-60])


def _alike(root):
    for place in range(1, 5):
        shutil.copy(root / "train" / "dogs" / "0.png", root / "train" / "dogs" / f"{place}.png")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_cut, r"dogs/2\.png can't be read as an image.*Remove it or copy it again"),
        (
            lambda root: Image.fromarray(np.zeros((5, 5), np.uint16)).save(root / "train" / "cats" / "deep.png"),
            r"deep\.png can't be read.*8 bits",
        ),
        (_alike, r"different images of each class.*for validation; dogs has too few"),
        (lambda root: mnist(root, sides=["t10k"]), r"images and the labels.*train-images.*it has t10k"),
        (lambda root: mnist(root, sides=["train", "t10k", "test"]), "t10k and test files, sides of one kind"),
        (lambda root: (mnist(root / "a"), mnist(root / "b")), r"IDX files in .*b and in .*a\. Choose one folder"),
        (lambda root: mnist(root, labels=(4,)), r"10 images, and .* 5 labels"),
        (lambda root: mnist(root, labels=(4, 4)), r"at least 2 classes; the labels are all 4"),
        (lambda root: (mnist(root), idx(root, "t10k-labels-idx1", np.array([8] * 10))), r"class 8 is among the test"),
        (lambda root: (mnist(root), idx(root, "train-images-idx3", np.zeros((3, 4)))), r"train-images.*IDX file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_training(tmp_path, harm, message):
    root = image_folder(tmp_path)
    harm(root)
    with pytest.raises(InputError, match=message) as refused:
        read_images(str(root)).parts(0.2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("suffix", ["png", "gif", "tif"])
def test_a_picture_of_too_many_pixels_is_refused_by_its_header(tmp_path, suffix):
    image_folder(tmp_path / "data")
    place = next((tmp_path / "data").rglob("*.png")).parent / f"large.{suffix}"
    Image.new("1", (9000, 9000)).save(place)
    with pytest.raises(InputError, match=rf"large\.{suffix} is 9000x9000.*at most 67108864"):
        read_images(str(tmp_path / "data"))


def test_an_idx_file_holds_what_it_announces(tmp_path):
    images, labels = (2**15, 2**7, 2**7), (2**15,)
    for name, shape in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write(head + bytes(2**20))
    with pytest.raises(InputError, match="announces 536870912 bytes, and has"):
        read_images(str(tmp_path))
