"""Files of unknown origin: whatever is in them, a reader gives what was written or one `InputError`, within bounds.

`benchmarks/fuzz.py` does the same to whole inputs, many times over.
"""

import json
import os
import resource
import struct
import zlib
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from descend import InputError, reading
from descend.reading import FOLLOW_LINKS, json_lines, parse_json, read_json, read_text
from descend.report import write_completions
from descend.results import Frames, Results
from descend.run.completing import _prompts
from descend.run.loading import read_dual
from descend.tasks.images.sources import read_images
from descend.tasks.text import read_imdb, read_instructions, read_labelled, read_mnli
from descend.tasks.video import Clip, find_clips
from tests.support.cases import slow_but
from tests.support.pages import fake_run
from tests.support.sources import encode, grow, image_folder, imdb, mnli, write_frames, write_video

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
trees = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
words = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


@contextmanager
def little_memory():
    """What is done inside takes less than 50 MB, at any time."""

    def memory(kind: str) -> int:
        return int(Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0]) // 1024

    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before = memory("VmRSS")
    yield
    assert memory("VmHWM") - before < 50


# --- whatever a file holds


def frames_file(**arrays) -> bytes:
    content = BytesIO()
    whole = {
        "clean": np.zeros((1, 4, 4), np.uint8),
        "noisy": np.zeros((2, 1, 4, 4), np.uint8),
        "reconstruction": np.zeros((2, 3, 1, 4, 4), np.uint8),
        "noise": np.array([0.0, 1.0]),
    }
    np.savez_compressed(content, **(whole | arrays))
    return content.getvalue()


READERS = {
    "a.json": (read_json, read_text, read_instructions, lambda file: list(_prompts(file))),
    "b.json": (lambda file: write_completions([file, file], file.with_name("page.html")),),
    "a.jsonl": (read_instructions, lambda file: list(json_lines(file))),
    "mnli/train.tsv": (lambda file: read_mnli(file.parent),),
    "pairs/multinli_1.0_train.jsonl": (lambda file: read_mnli(file.parent),),
    "imdb/train/pos/0_1.txt": (lambda file: read_imdb(file.parents[2]),),
    "run/summary.json": (lambda file: Results.read(file.parent),),
    "run/records.jsonl": (lambda file: Results.read(file.parent).history,),
    "run/frames.npz": (Frames.load,),
    "dual.safetensors": (lambda file: read_dual(file),),
    **{
        f"{kind}/1.{kind}": (lambda file: [list(clip.frames()) for clip in find_clips(file.parent, None)],)
        for kind in ("avi", "mp4", "jpg", "png", "tif")
    },
}
"""A file that can be read → its readers."""

QUICKEST = ("run/summary", "dual", "avi/")

RECORD = {"run": "a", "step": 1, "split": "train", "layer": 1, "noise": 0.1, "metric": "multiplier", "value": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for name in ("a.json", "b.json", "a.jsonl"):
        (root / name).write_text(json.dumps({"instruction": "a", "output": "b", "dataset": "c", "generator": "d"}))
    mnli(root / "mnli")
    mnli(root / "pairs", "jsonl")
    imdb(root / "imdb")
    fake_run(root / "run", "constrained", frames=False)
    (root / "run" / "records.jsonl").write_text(json.dumps(RECORD) + "\n")
    (root / "run" / "frames.npz").write_bytes(frames_file())
    dual = {"multipliers": (2,), "slack": (2,), "cap_multiplier": (), "sigma": ()}
    save_file({name: torch.zeros(shape) for name, shape in dual.items()}, root / "dual.safetensors")
    for kind in ("avi", "mp4"):
        write_video(root / kind / f"1.{kind}", 3)
    for kind in ("jpg", "png", "tif"):
        write_frames(root / kind, suffix=f".{kind}")
    for name, readers in READERS.items():
        assert all(read(root / name) for read in readers), name
    return root


rows = st.lists(
    st.dictionaries(st.sampled_from(["instruction", "input", "output", "dataset"]), trees)
    | st.fixed_dictionaries({"sentence1": leaves, "sentence2": leaves, "gold_label": st.sampled_from(["neutral", 3])})
)
contents = st.binary() | st.text().map(str.encode) | (trees | rows).map(lambda tree: json.dumps(tree).encode())


def damaged(whole):
    """A file with other bytes at some places, and perhaps cut off."""

    def changed(changes, end):
        content = bytearray(whole)
        for place, byte in changes.items():
            content[place] = byte
        return bytes(content[:end])

    places = st.integers(0, len(whole) - 1)
    return st.builds(changed, st.dictionaries(places, st.integers(0, 255), max_size=30), st.none() | places)


def edited(whole):
    """A JSON object with other values."""
    entries = json.loads(whole)
    names = st.sampled_from([*entries, "ratios", "probe", "settled_layer"])
    return st.dictionaries(names, trees).map(lambda more: json.dumps(entries | more).encode())


@quick
@given(data=st.data())
@pytest.mark.parametrize("name", slow_but([name for name in READERS if name.startswith(QUICKEST)], READERS))
def test_whatever_a_file_holds_its_reader_refuses_it_in_words_or_reads_it(files, name, data):
    file = files / name
    whole = file.read_bytes()
    content = contents | damaged(whole)
    if name in ("run/summary.json", "run/records.jsonl"):
        content |= edited(whole)
    file.write_bytes(data.draw(content))
    try:
        for read in READERS[name]:
            with suppress(InputError):  # and nothing else may be raised
                read(file)
    finally:
        file.write_bytes(whole)


# --- JSON and text


DEEP = "[" * reading.MOST_DEPTH + "]" * reading.MOST_DEPTH


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, f"[{DEEP}]", '{"a":' * 100 + "1" + "}" * 100, "1" * 5000, "", "\0", "[1,", "\ufeff{"],
)
def test_json_that_is_none_or_too_deep_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json.*JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_text(f'{{"a": 1}}\n{{"b": {content}\n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 2"):
        list(json_lines(tmp_path / "a.jsonl"))


def test_deep_json_up_to_the_bound_is_read():
    assert json.dumps(parse_json(DEEP)) == DEEP


@pytest.mark.parametrize(
    ("call", "name", "message"),
    [
        (lambda file: list(json_lines(file)), "a.jsonl", "line 2.*100 characters"),
        (lambda file: read_text(file, 100), "a.jsonl", "110 bytes.*100"),
        *((read_text, name, "must be a file") for name in (".", "pipe.avi", "nowhere", "/dev/zero")),
        (lambda file: list(Clip("pipe", (file,)).frames()), "pipe.avi", "file of a video"),
    ],
)
def test_absurd_lines_files_and_things_that_are_no_files_are_refused(tmp_path, monkeypatch, call, name, message):
    monkeypatch.setattr(reading, "MOST_LINE", 100)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' + "x" * 101)
    os.mkfifo(tmp_path / "pipe.avi")  # opening it would wait for ever
    with pytest.raises(InputError, match=message):
        call(tmp_path / name)


@quick
@given(st.lists(st.fixed_dictionaries({"instruction": words, "input": words | st.none(), "output": words}), min_size=1))
def test_instructions_are_read_as_they_were_written(tmp_path, rows):
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("a.json", "a.jsonl"):
        assert read_instructions(tmp_path / name).rows.to_list() == [
            {**row, "input": row["input"] or ""} for row in rows
        ]


# --- pictures


def test_pictures_that_hold_a_pickle_or_unpack_to_more_than_there_is_are_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    file = tmp_path / "frames.npz"
    file.write_bytes(frames_file())
    assert Frames.load(file).noise == [0, 1]
    for array in (np.array([Bomb(), Bomb()], object), np.array([0.0, np.nan])):
        file.write_bytes(frames_file(noise=array))
        with pytest.raises(InputError):
            Frames.load(file)
    assert not (tmp_path / "ran").exists()
    file.write_bytes(frames_file(clean=np.zeros(2**28 + 1, np.uint8)))
    assert file.stat().st_size < 2**20
    with little_memory(), pytest.raises(InputError, match="26843"):
        Frames.load(file)


@pytest.mark.parametrize("side", [9000, 60_000])
def test_a_picture_that_claims_to_be_huge_takes_no_memory(tmp_path, side):
    file = tmp_path / "0.png"
    Image.new("L", (16, 16)).save(file)
    content = bytearray(file.read_bytes())
    content[16:24] = struct.pack(">II", side, side)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    file.write_bytes(content)
    with little_memory(), pytest.raises(InputError, match=r"67108864 pixels|decompression bomb"):
        list(Clip("huge", (file,)).frames())


def test_a_video_that_claims_to_be_huge_or_endless_takes_no_memory(tmp_path):
    file = tmp_path / "a.avi"
    encode(file, (True, np.zeros((3, 48, 64, 3), np.uint8)), codec="mjpeg", pixels="yuvj420p")
    whole, clip = file.read_bytes(), Clip("huge", (file,))
    assert len(list(clip.frames())) == 3
    small, large = (b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", *sides) for sides in ((48, 64), (30_000, 30_000)))
    place = whole.index(b"strh") + 8 + 32  # dwLength
    assert small in whole and struct.unpack_from("<I", whole, place) == (3,)
    endless = whole[:place] + struct.pack("<I", 2**31 - 1) + whole[place + 4 :]
    for content, read, message in (
        (whole.replace(small, large), lambda: list(clip.frames()), r"a\.avi"),
        (endless, clip.announced, "2147483647 frames"),
    ):
        file.write_bytes(content)
        with little_memory(), pytest.raises(InputError, match=message):
            read()


def test_a_playlist_by_the_name_of_a_video_opens_no_other_file(tmp_path):
    write_video(tmp_path / "secret" / "other.avi", 4)
    listed = tmp_path / "list.avi"
    listed.write_text("ffconcat version 1.0\nfile secret/other.avi\n")
    with av.open(str(listed)) as container:  # the library alone would
        assert container.format.name == "concat" and len(list(container.decode(video=0))) == 4
    with pytest.raises(InputError, match=r"list\.avi"):
        list(Clip("list", (listed,)).frames())
    postscript = tmp_path / "0.png"
    Image.new("L", (16, 16)).save(postscript, format="EPS")  # which Pillow hands to another program
    with pytest.raises(InputError, match=r"0\.png"):
        list(Clip("postscript", (postscript,)).frames())


# --- links


def test_a_data_set_may_be_a_link_and_links_inside_it_may_stay_inside(tmp_path):
    real = imdb(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    (real / "train" / "pos" / "1.txt").symlink_to(real / "train" / "neg" / "0_1.txt")
    assert read_imdb(tmp_path / "link")["train"].num_rows == 3


@pytest.mark.parametrize(
    ("read", "make", "link", "leads"),
    [
        (lambda root: find_clips(root, "train"), Path.mkdir, "training/01", "frames/01"),
        (lambda root: find_clips(root, "test"), Path.mkdir, "testing/frames", "frames"),
        (lambda root: find_clips(root, None), Path.mkdir, "a.avi", "a.avi"),
        (read_mnli, mnli, "train.tsv", "mnli/train.tsv"),
        (read_imdb, Path.mkdir, "aclImdb", "imdb"),  # the folder that the archive unpacks to
        (read_imdb, imdb, "train/pos/2.txt", "imdb/train/pos/0_1.txt"),
        (read_labelled, partial(grow, tree="{cats,dogs}/{0,1,2}.txt"), "cats/6.txt", "imdb/train/pos/0_1.txt"),
        (lambda root: read_images(str(root)), image_folder, "train/cats/6.png", "frames/01/0.jpg"),
    ],
)
def test_no_reader_of_data_sets_is_led_out_unless_it_is_allowed(tmp_path, monkeypatch, read, make, link, leads):
    outside, root = tmp_path / "outside", tmp_path / "data"
    write_frames(outside / "frames" / "01")
    write_video(outside / "a.avi", 3)
    mnli(outside / "mnli")
    imdb(outside / "imdb", ("bad film", "a secret"))
    make(root)
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).unlink(missing_ok=True)
    (root / link).symlink_to(outside / leads)
    with pytest.raises(InputError, match=rf"{link}.* leads out of") as caught:
        read(root)
    assert "a secret" not in str(caught.value)
    if link in ("training/01", "a.avi"):
        assert find_clips(root / link, None)[0].announced() == 3  # named by the person
    monkeypatch.setenv(FOLLOW_LINKS, "1")
    assert read(root)


@pytest.mark.parametrize(
    "text",
    ["[[" + "[]," * 2**21 + "[]]]", '{"a": [' + '{"":{}},' * 2**20 + "1]}", "[" + '["[[]]"],' * 2**21 + "1]"],
    ids=["lists", "objects", "with strings"],
)
def test_json_of_little_text_and_many_containers_is_refused_before_it_is_read(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"more than 1048576 lists and objects"):
        reading.read_json(tmp_path / "a.json")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # kB


def test_brackets_in_strings_and_many_rows_of_usual_length_are_no_containers_too_many():
    assert reading.parse_json(json.dumps(["[" * 2**21])) == ["[" * 2**21]
    rows = [{"instruction": "say it " * 8, "output": "it"}] * 3000
    assert reading.parse_json(json.dumps(rows)) == rows
