"""Sides, classes and what is passed over, in one way for images, texts and videos."""

import os
import shutil
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from descend import configure
from descend.cli import main
from descend.errors import InputError
from descend.recipes import RECIPES
from descend.recipes.corpora import read_parts, sources_read
from descend.tasks.folders import files_read, side_of, sides_in
from descend.tasks.images.sources import read_images
from descend.tasks.text import read_imdb, read_labelled, read_mnli
from descend.tasks.video import find_clips, load_video
from tests.support.sources import grow, imdb, mnli, write_frames


@pytest.mark.parametrize(
    ("names", "side"),
    [
        ("train Train TRAINING Training_Videos trainset TrainSet train2017 train_images", "train"),
        ("test Testing TEST testing_videos test-set", "test"),
        ("val VALID validation dev eval Validation-Set validation_matched", "validation"),
        ("Test001 training_vol trainval trainer testimony cats seg_train contest unsup", None),
    ],
)
def test_a_name_says_its_side(names, side):
    assert {name: side_of(name) for name in names.split()} == dict.fromkeys(names.split(), side)


@pytest.mark.parametrize(
    ("names", "sides"),
    [
        ("seg_train seg_test seg_pred", {"train": "seg_train", "test": "seg_test"}),
        ("train other_test", {"train": "train"}),
        ("Train001 Test001", {}),  # clips
        ("train dev", {"train": "train", "test": "dev"}),  # validation stands in for test
        ("train dev testing", {"train": "train", "test": "testing", "validation": "dev"}),
    ],
)
def test_sides_share_their_other_words(tmp_path, names, sides):
    grow(tmp_path, " ".join(f"{name}/" for name in names.split()))
    assert {side: folder.name for side, folder in sides_in(tmp_path.iterdir()).items()} == sides


def read(kind: str, root: Path) -> tuple[list[str], dict[str, int]]:
    """The classes, and the number of samples of each side."""
    if kind == "image":
        found = read_images(str(root))
        return [*found.classes], {side: len(each.labels) for side, each in found.sides.items()}
    sides = read_labelled(root)
    return sides["train"].features["label"].names, {side: len(each) for side, each in sides.items()}


SUFFIX = {"image": ".png", "text": ".txt"}


@pytest.mark.parametrize("kind", SUFFIX)
@pytest.mark.parametrize(
    "names", ["Training Testing", "TRAIN VAL", "train dev", "seg_train seg_test", "Train Valid Test"]
)
def test_sides_of_any_name_are_never_classes(tmp_path, kind, names):
    for side in names.split():
        grow(tmp_path, f"{side}/cyst/{{0,1}}. {side}/none/{{0,1}}.", SUFFIX[kind])
    classes, sides = read(kind, tmp_path)
    assert classes == ["cyst", "none"] and list(sides) == ["train", "test", "validation"][: len(sides)]
    assert set(sides.values()) == {4} and len(sides) == len(names.split())


@pytest.mark.parametrize("kind", SUFFIX)
def test_a_class_may_be_called_train_or_valid(tmp_path, kind):
    for name in ("bus", "train", "car"):
        grow(tmp_path / "vehicles", f"{name}/{{0,1,2,3,4}}.", SUFFIX[kind])
    for name in ("valid", "invalid"):
        grow(tmp_path / "forms", f"{name}/{{0,1,2,3,4}}.", SUFFIX[kind])
    assert read(kind, tmp_path / "vehicles")[0] == ["bus", "car", "train"]
    assert read(kind, tmp_path / "forms")[0] == ["invalid", "valid"]


@pytest.mark.parametrize("kind", SUFFIX)
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("Training/{0,1}. Testing/{0,1}.", r"Training must hold a folder of .* it has no folder"),
        ("train/{0,1}. test1/{0,1}.", r"train must hold a folder of .* it has no folder"),
        ("train_a/{0,1}. test_b/{0,1}.", r"test_b and train_a, which seem to be sides\. Rename them"),
        ("train/a/0. train/b/0. val/a/0. dev/a/0.", r"has both dev and val, sides of one kind"),
        ("cat/train/{0,1}. cat/test/0. dog/train/{0,1}.", r"cat has test, a side inside a class; .*test/cat"),
    ],
)
def test_sides_that_cant_be_told_apart_are_one_line(tmp_path, kind, tree, message):
    with pytest.raises(InputError, match=message) as refused:
        read(kind, grow(tmp_path, tree, SUFFIX[kind]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", SUFFIX)
def test_classes_in_two_unicode_forms_are_one_and_twice_they_are_refused(tmp_path, kind):
    for side, form in (("train", "NFC"), ("test", "NFD")):
        for name in ("café", "bar"):
            grow(tmp_path / "data" / side / unicodedata.normalize(form, name), "{0,1}.", SUFFIX[kind])
    assert read(kind, tmp_path / "data") == (["bar", "café"], {"train": 4, "test": 4})
    shutil.copytree(tmp_path / "data/test" / unicodedata.normalize("NFD", "café"), tmp_path / "data/train/cafe\u0301")
    with pytest.raises(InputError, match="two folders for the class café"):
        read(kind, tmp_path / "data")


@pytest.mark.parametrize("kind", SUFFIX)
def test_names_that_are_not_utf8_are_read_but_for_those_of_classes(tmp_path, kind):
    latin = os.fsdecode(b"caf\xe9")
    grow(tmp_path, "bar/{0,1,2,3,4}. other/{0,1,2,3,4}.", SUFFIX[kind])
    (tmp_path / f"bar/1{SUFFIX[kind]}").rename(tmp_path / f"bar/{latin}{SUFFIX[kind]}")
    assert sum(read(kind, tmp_path)[1].values()) == 10
    (tmp_path / "other").rename(tmp_path / latin)
    with pytest.raises(InputError, match=r"caf\\xe9 is a class whose name is not UTF-8") as refused:
        read(kind, tmp_path)
    str(refused.value).encode()


def test_clips_whose_names_are_not_utf8_are_named_by_escapes(tmp_path):
    for number in range(5):
        write_frames(tmp_path / os.fsdecode(b"caf\xe9%d" % number), frames=3, seed=number)
    assert load_video(tmp_path, 2).train.names == [r"caf\xe90", r"caf\xe91", r"caf\xe92"]


def test_a_path_of_a_run_that_is_not_utf8_is_refused_before_it_trains(tmp_path, capsys):
    latin = tmp_path / os.fsdecode(b"caf\xe9")
    latin.mkdir()
    for given in ({"data": str(latin)}, {"data": "generated", "output_dir": str(latin / "run")}):
        with pytest.raises(InputError, match=r"expected a path in UTF-8; got .*caf\\xe9"):
            configure("video-ut", **{"output_dir": str(tmp_path / "run")} | given).recipe.completed()
    assert main(["evaluate", str(latin)]) == 2
    assert r"expected arguments in UTF-8; got" in capsys.readouterr().err


def test_what_is_passed_over_is_counted_and_named(tmp_path):
    grow(tmp_path, "a/{0,1}.png b/{0,1}.png a/{0,1}.heic b/x.SVG README a/notes/deep/{1,2,3}.md")
    grow(tmp_path, ".hidden a/Thumbs.db __MACOSX/a/0.png")
    pictures = sorted(tmp_path.glob("?/*.png"))
    expected = "4 of 11 files read; 7 passed over: notes/, .heic, .svg, README"
    assert files_read(tmp_path, pictures) == read_images(str(tmp_path)).read == expected
    everything = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files_read(tmp_path, everything) == ""


def test_texts_and_clips_say_what_they_passed_over(tmp_path):
    root = grow(imdb(tmp_path / "texts"), "train/unsup/{0,1}.txt train/urls_pos.txt imdb.vocab val/pos/0.txt")
    parts = read_parts("imdb", str(root), 0.5)
    assert sources_read(str(root), parts.values()) == "5 of 9 files read; 4 passed over: unsup/, .vocab, urls_pos.txt"
    for number in range(4):
        write_frames(tmp_path / "clips" / str(number), seed=number)
        write_frames(tmp_path / "clips" / str(number) / "masks", suffix=".png")
    grow(tmp_path / "clips", "notes.txt")
    data = load_video(tmp_path / "clips", 2)
    settings = {"dataset": "imdb", "max_length": 4, "validation_share": 0.5}
    recipe = RECIPES["text-ut"].kind(data=str(root), **settings)
    loaded = recipe.load()
    assert recipe.about(loaded)[0][0].endswith(
        "for test (5 of 9 files read; 4 passed over: unsup/, .vocab, urls_pos.txt)."
    )
    assert loaded.notes == ("1 of 5 texts are cut at 4 tokens. --max-length N reads longer ones.",)
    assert data.read == "12 of 25 files read; 13 passed over: masks/, .txt"
    assert len(data.train.names) + len(data.validation.names) + len(data.test.names) == 4


def test_a_validation_side_is_used_by_every_reader(tmp_path):
    for name, label in (("pos", 1), ("neg", 0)):
        (imdb(tmp_path / name) / "Val" / name.upper()).mkdir(parents=True)
        (tmp_path / name / "Val" / name.upper() / "0.txt").write_text("in between")
        assert read_imdb(tmp_path / name)["validation"]["label"][:] == [label]
    (mnli(tmp_path / "mnli") / "train.tsv").rename(tmp_path / "mnli" / "TRAIN.tsv")
    shutil.copy(tmp_path / "mnli" / "dev_matched.tsv", tmp_path / "mnli" / "testing.tsv")
    assert [*read_mnli(tmp_path / "mnli")] == ["train", "test", "validation"]
    for number, side in enumerate(("train", "valid", "test")):
        for clip in range(2):
            write_frames(tmp_path / "clips" / side / f"{side}{clip}", seed=10 * number + clip)
    data = load_video(tmp_path / "clips", 2)
    assert data.validation.names == ["validation/valid0", "validation/valid1"]
    assert [clip.name for clip in find_clips(tmp_path / "clips", "validation")] == data.validation.names


TABLE = "text,label\n" + "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(10))


def test_tables_of_sides_are_read_as_folders_of_sides_are(tmp_path):
    for name in ("train-00000-of-00001.csv", "validation.csv", "TEST.csv"):
        (tmp_path / name).write_text(TABLE.replace("text ", f"{name} "))
    sides = read_labelled(tmp_path)
    assert {side: len(rows) for side, rows in sides.items()} == {"train": 10, "test": 10, "validation": 10}
    (tmp_path / "TEST.csv").write_text("text,label\nnew,c\n")
    with pytest.raises(InputError, match=r"TEST\.csv, line 2: c is a class that .*train.* lacks; it has a, b"):
        read_labelled(tmp_path)


def test_equal_samples_on_two_sides_are_told(tmp_path, caplog):
    for side in ("train", "val", "test"):
        for name in ("a", "b"):
            (tmp_path / "texts" / side / name).mkdir(parents=True)
            for number in range(4):
                shared = number < {"train": 4, "val": 1, "test": 2}[side]
                text = f"{name} {number}" if shared else f"{side} {name} {number}"
                (tmp_path / "texts" / side / name / f"{number}.txt").write_text(text)
    read_parts("labelled", str(tmp_path / "texts"), 0.2)
    assert "4 texts to train on are also among those to test or validate on." in caplog.text
    assert "2 texts to validate on are also among those to test on." in caplog.text
    caplog.clear()
    for number, side in enumerate(("train", "test")):
        for clip in range(3):
            write_frames(tmp_path / "clips" / side / str(clip), suffix=".bmp", seed=clip + 2 * number)
    load_video(tmp_path / "clips", 2)
    assert "1 clips to train on are also among those to test or validate on." in caplog.text
    caplog.clear()
    for clip in range(3):
        write_frames(tmp_path / "clips" / "test" / str(clip), suffix=".bmp", seed=10 + clip)
    load_video(tmp_path / "clips", 2)
    assert not caplog.text


def test_every_safe_format_is_an_image(tmp_path):
    from PIL import features

    suffixes = [".jfif", ".jpe", ".pgm", ".bmp", ".dib", ".webp", ".gif", ".png", ".tif", ".apng", ".qoi"]
    suffixes += [".avif"] * features.check("avif") + [".jp2"] * features.check("jpg_2000")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for suffix in suffixes:
            Image.new("RGB", (16, 16), "red").save(tmp_path / name / f"0{suffix}")
    found = read_images(str(tmp_path))
    assert len(found.sides["train"].labels) == 2 * len(suffixes) and not found.read
