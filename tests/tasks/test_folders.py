"""A folder for each class, of images and of texts: what is found in it, and bad folders."""

import os
from pathlib import Path

import pytest

from descend import InputError
from descend.tasks.images.sources import read_images
from descend.tasks.text import read_labelled
from tests.support.sources import grow

BOTH = "train/cats/{0,1,2,3}. train/dogs/{0,1,2,3}. test/cats/{0,1}. test/dogs/0."
"""A tree of files; each . stands for the suffix of the kind of data."""

SUFFIX = {"image": ".png", "text": ".txt"}


def files(kind: str, root: Path) -> dict[str, list[str]]:
    """Side → its files, each with its class before it."""
    if kind == "image":
        found = read_images(str(root))
        rows = {
            side: [(str(file), found.classes[n]) for file, n in zip(*each, strict=True)]
            for side, each in found.sides.items()
        }
    else:
        sides = read_labelled(root)
        names = sides["train"].features["label"].names
        rows = {side: [(row["source"], names[row["label"]]) for row in each] for side, each in sides.items()}
    return {
        side: [f"{name}:{os.path.relpath(file, root).split('.')[0]}" for file, name in each]
        for side, each in rows.items()
    }


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize(
    ("tree", "found"),
    [
        (BOTH, "train 8 test 3"),
        (BOTH + " val/dogs/0.", "train 8 test 3 validation 1"),
        ("train/cats/{0,1}. train/dogs/0. validation/dogs/0.", "train 3 test 1"),
        (BOTH + " train/.hidden/0. train/@eaDir/cats/0. train/cats/._0. train/cats/__MACOSX/0.", "train 8 test 3"),
        (BOTH + " train/cats/more/0.", "train 9 test 3"),
    ],
)
def test_the_files_of_each_class_and_side_are_found(tmp_path, kind, tree, found):
    sides = files(kind, grow(tmp_path, tree, SUFFIX[kind]))
    assert " ".join(f"{side} {len(each)}" for side, each in sides.items()) == found
    assert all(each.startswith(each.split("/")[1] + ":") for side in sides.values() for each in side)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_classes_that_are_numbers_keep_their_order(tmp_path, kind):
    found = files(kind, grow(tmp_path, " ".join(f"{number}/{{0,1,2,3,4,5}}." for number in range(12)), SUFFIX[kind]))
    assert list(dict.fromkeys(each.split(":")[0] for each in found["train"])) == [str(number) for number in range(12)]


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("other.", r"at least 2 classes; it has no folder"),
        ("train/cats/0.", r"train must hold a folder of .* files for each of at least 2 classes; it has only cats"),
        ("test/cats/0. test/dogs/0.", r"has test and no train\. Put the files to train on in"),
        ("train/cats/0. val/cats/0. validation/cats/0.", r"both val and validation, .*Remove or rename"),
        (BOTH + " test/cows/0.", r"test/cows is a class that .*train lacks; it has cats, dogs\. Rename or remove"),
        (BOTH + " val/cows/0.", r"val/cows is a class that .*train lacks"),
        ("train/cats/0. train/dogs/0. train/cows/.hidden.", r"train/cows holds no .*files\. Add some, or remove"),
        ("train/cats/0. train/dogs/0. test/cats/.hidden.", r"test/cats holds no .*files"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, kind, tree, message):
    with pytest.raises(InputError, match=message) as refused:
        files(kind, grow(tmp_path, tree, SUFFIX[kind]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_no_link_leads_out(tmp_path, kind):
    grow(tmp_path / "data", BOTH, SUFFIX[kind])
    (tmp_path / "data/train/cats/6.txt").symlink_to("/etc/hostname")
    (tmp_path / "data/train/cats/6.png").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match=r"cats/6.* leads out of"):
        files(kind, tmp_path / "data")
