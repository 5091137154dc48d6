"""The cache of decoded frames: reused, never stale, never half there."""

import errno
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from descend.errors import InputError
from descend.tasks.video import SIZE, Clip, cached, datasets, default_cache_dir, find_clips

EXPECTED = [[10, 11, 12], [20, 21, 22, 23, 24]]


@pytest.fixture
def collection(tmp_path) -> Path:
    """Two clips of 3 and 5 frames; frame k of clip c is a plain grey of level 10·c + k."""
    for name, levels in zip(("1", "2"), EXPECTED, strict=True):
        (tmp_path / "collection" / name).mkdir(parents=True)
        for k, level in enumerate(levels):
            Image.new("L", (20, 10), level).save(tmp_path / "collection" / name / f"{k}.png")
    return tmp_path / "collection"


def levels(views: list[np.ndarray]) -> list[list[int]]:
    assert all(view.shape[1:] == (SIZE, SIZE) and (view == view[:, :1, :1]).all() for view in views)
    return [view[:, 0, 0].tolist() for view in views]


def files(folder: Path) -> list[str]:
    return [file.suffix for file in folder.iterdir() if file.suffix != ".lock"]


def test_frames_are_decoded_once_for_each_format_into_read_only_views(collection, tmp_path, monkeypatch):
    clips = find_clips(collection, None)
    for view in cached(clips, tmp_path / "cache"):
        assert isinstance(view, np.memmap) and view.dtype == np.uint8
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 0
    for file in [file for clip in clips for file in clip.files]:  # undecodable, of the same size and time
        before = file.stat()
        file.write_bytes(b"\0" * before.st_size)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert levels(cached(clips, tmp_path / "cache")) == EXPECTED
    monkeypatch.setattr(datasets, "FORMAT", datasets.FORMAT + 1)
    for folder, left in (("cache", [".frames"]), ("elsewhere", [])):
        with pytest.raises(InputError, match=r"1/0\.png can't be decoded"):
            cached(clips, tmp_path / folder)
        assert files(tmp_path / folder) == left


def test_a_changed_source_is_decoded_again_in_place_of_the_old(collection, tmp_path):
    first = cached(find_clips(collection, None), tmp_path / "cache")
    Image.new("L", (20, 10), 99).save(collection / "1/1.png")
    os.utime(collection / "1/1.png", ns=(0, 0))  # even a time that goes backwards is a change
    assert levels(cached(find_clips(collection, None), tmp_path / "cache")) == [[10, 99, 12], EXPECTED[1]]
    (collection / "2/4.png").unlink()
    assert files(tmp_path / "cache") == [".frames"]
    assert levels(cached(find_clips(collection, None), tmp_path / "cache")) == [[10, 99, 12], EXPECTED[1][:4]]
    assert levels(first) == EXPECTED  # who reads the old frames keeps them


@pytest.mark.parametrize("damage", ["empty", "short", "long", "zeros", "noise"])
def test_a_damaged_cache_is_rebuilt(collection, tmp_path, damage):
    clips = find_clips(collection, None)
    cached(clips, tmp_path / "cache")
    (file,) = (tmp_path / "cache").glob("*.frames")
    content = file.read_bytes()
    damaged = {"empty": b"", "short": content[:-1], "long": content + b"\0", "zeros": b"\0" * len(content)}
    file.write_bytes(damaged.get(damage, np.random.default_rng(0).bytes(100)))
    assert levels(cached(clips, tmp_path / "cache")) == EXPECTED
    assert file.read_bytes() == content


def test_one_process_decodes_for_all_and_another_goes_on_if_it_is_killed(collection, tmp_path, monkeypatch):
    fork, frames = multiprocessing.get_context("fork"), Clip.frames
    decoded = fork.Queue()

    def build(seconds):
        monkeypatch.setattr(Clip, "frames", lambda clip: [decoded.put(clip.name), time.sleep(seconds)] and frames(clip))
        assert levels(cached(find_clips(collection, None), tmp_path / "cache")) == EXPECTED

    builders = [fork.Process(target=build, args=(seconds,)) for seconds in (600, 0, 0)]
    try:
        builders[0].start()
        assert decoded.get(timeout=60) == "1"
        for builder in builders[1:]:
            builder.start()
        time.sleep(0.5)
        assert decoded.empty()
        builders[0].kill()
        for builder in builders[1:]:
            builder.join(60)
        assert [builder.exitcode for builder in builders[1:]] == [0, 0]
        assert [decoded.get(timeout=60), decoded.get(timeout=60), decoded.empty()] == ["1", "2", True]
        assert files(tmp_path / "cache") == [".frames"]
    finally:
        for builder in builders:
            builder.kill()


def test_no_space_is_seen_before_decoding(collection, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=8 * SIZE * SIZE - 1))
    with pytest.raises(InputError, match=rf"0\.2 MB.*{tmp_path}/cache.*0\.2 MB.*--cache-dir"):
        cached(find_clips(collection, None), tmp_path / "cache")
    assert files(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("failure", "raised", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InputError, "space"),
        (OSError(errno.EIO, "Input/output error"), InputError, "Input/output error"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_failure_on_the_way_leaves_nothing(collection, tmp_path, monkeypatch, failure, raised, says):
    def write(clip, part, bar):
        part.write(b"\0" * SIZE * SIZE)
        if clip.name == "2":
            raise failure
        return 1

    monkeypatch.setattr(datasets, "_write_frames", write)
    with pytest.raises(raised, match=says):
        cached(find_clips(collection, None), tmp_path / "cache")
    assert files(tmp_path / "cache") == []


def test_a_folder_that_cannot_be_made_and_a_source_that_is_gone(collection, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"written.*--cache-dir"):
        cached(find_clips(collection, None), tmp_path / "file" / "cache")
    with pytest.raises(InputError, match=r"gone\.avi.*No such file"):
        cached([Clip("gone", (tmp_path / "gone.avi",))], tmp_path)


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value, folder in (
        ("XDG_CACHE_HOME", "", ".cache/descend"),
        ("XDG_CACHE_HOME", "xdg", "xdg/descend"),
        ("DESCEND_CACHE", "own", "own"),
    ):
        monkeypatch.setenv("DESCEND_CACHE", "")
        monkeypatch.setenv(name, value and str(tmp_path / value))
        assert default_cache_dir() == tmp_path / folder
