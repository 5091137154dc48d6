"""The cache of decoded frames: reused, never stale, never half there."""

import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from descend.errors import InputError
from descend.tasks.video import SIZE, Clip, cache, cached, default_cache_dir, find_clips


@pytest.fixture
def collection(tmp_path) -> Path:
    """Two clips of 3 and 5 frames; frame k of clip c is a plain grey of level 10·c + k."""
    for name, frames in (("1", 3), ("2", 5)):
        folder = tmp_path / "collection" / name
        folder.mkdir(parents=True)
        for k in range(frames):
            Image.new("L", (20, 10), 10 * int(name) + k).save(folder / f"{k}.png")
    return tmp_path / "collection"


def levels(views: list[np.ndarray]) -> list[list[int]]:
    assert all((view == view[:, :1, :1]).all() for view in views)
    return [view[:, 0, 0].tolist() for view in views]


EXPECTED = [[10, 11, 12], [20, 21, 22, 23, 24]]


def overwrite_unnoticed(file: Path) -> None:
    """Make a file undecodable while its size and time stay."""
    before = file.stat()
    file.write_bytes(b"\0" * before.st_size)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_views_are_the_frames_on_disk_and_read_only(collection, tmp_path):
    views = cached(find_clips(collection, None), tmp_path / "cache")
    assert levels(views) == EXPECTED
    for view in views:
        assert isinstance(view, np.memmap)
        assert view.dtype == np.uint8 and view.shape[1:] == (SIZE, SIZE)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 0
    (file,) = (tmp_path / "cache").iterdir()
    assert file.suffix == ".frames"
    assert cached([], tmp_path / "cache") == []


def test_a_second_call_decodes_nothing(collection, tmp_path):
    clips = find_clips(collection, None)
    cached(clips, tmp_path / "cache")
    for clip in clips:
        for file in clip.files:
            overwrite_unnoticed(file)
    assert levels(cached(clips, tmp_path / "cache")) == EXPECTED
    with pytest.raises(InputError, match=r"1/0\.png"):
        cached(clips, tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_changed_source_is_decoded_again_in_place_of_the_old(collection, tmp_path):
    first = cached(find_clips(collection, None), tmp_path / "cache")
    Image.new("L", (20, 10), 99).save(collection / "1/1.png")
    os.utime(collection / "1/1.png", ns=(0, 0))  # even a time that goes backwards is a change
    assert levels(cached(find_clips(collection, None), tmp_path / "cache")) == [[10, 99, 12], EXPECTED[1]]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert levels(first) == EXPECTED  # who reads the old frames keeps them

    (collection / "2/4.png").unlink()
    assert levels(cached(find_clips(collection, None), tmp_path / "cache")) == [[10, 99, 12], EXPECTED[1][:4]]


def test_another_format_version_is_another_cache(collection, tmp_path, monkeypatch):
    clips = find_clips(collection, None)
    cached(clips, tmp_path)
    overwrite_unnoticed(clips[0].files[0])
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    with pytest.raises(InputError, match="decoded"):
        cached(clips, tmp_path)


@pytest.mark.parametrize("damage", ["empty", "short", "long", "zeros", "noise"])
def test_a_damaged_cache_is_rebuilt(collection, tmp_path, damage):
    clips = find_clips(collection, None)
    cached(clips, tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()
    file.write_bytes(
        {
            "empty": b"",
            "short": content[:-1],
            "long": content + b"\0",
            "zeros": b"\0" * len(content),
            "noise": np.random.default_rng(0).bytes(100),
        }[damage]
    )
    assert levels(cached(clips, tmp_path / "cache")) == EXPECTED
    assert file.read_bytes() == content


def test_two_processes_build_at_once(collection, tmp_path):
    """Both wait for the other to be in the middle of decoding, so that the builds do overlap."""
    program = """
import sys, time
from pathlib import Path
from descend.tasks.video import cached, find_clips
from descend.tasks.video.sources import Clip

collection, folder, me, other = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
plain = Clip.frames
def frames(clip):
    if clip.name == "2":
        (folder / me).touch()
        while not (folder / other).exists():
            time.sleep(0.01)
    yield from plain(clip)
Clip.frames = frames
views = cached(find_clips(collection, None), folder / "cache")
print([view[:, 0, 0].tolist() for view in views])
"""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, collection, tmp_path, *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for names in (("a", "b"), ("b", "a"))
    ]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")  # no bar either, where there is no terminal
        assert out.strip() == str(EXPECTED)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_a_killed_builder_left_is_removed_and_what_another_writes_is_not(collection, tmp_path, monkeypatch):
    """One builder is killed while it decodes, another goes on decoding meanwhile."""
    clips = find_clips(collection, None)
    fork = multiprocessing.get_context("fork")
    decoding = fork.Queue()

    def build():
        monkeypatch.setattr(Clip, "frames", lambda clip: decoding.put(clip.name) or time.sleep(600))
        cached(clips, tmp_path / "cache")

    builders = [fork.Process(target=build) for _ in range(2)]
    try:
        for builder in builders:
            builder.start()
            assert decoding.get(timeout=60) == "1"
        builders[0].kill()
        builders[0].join()
        left = list((tmp_path / "cache").iterdir())
        for part in left:
            os.utime(part, (0, 0))
        assert levels(cached(clips, tmp_path / "cache")) == EXPECTED
        assert len(left) == 2 and sum(part.exists() for part in left) == 1
    finally:
        for builder in builders:
            builder.kill()
            builder.join()


def test_no_space_is_seen_before_decoding(collection, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, 8 * SIZE * SIZE - 1))
    clips = find_clips(collection, None)
    with pytest.raises(InputError, match=rf"0\.2 MB.*{tmp_path}/cache.*0\.2 MB.*--cache-dir"):
        cached(clips, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 0, 10**9))
    assert levels(cached(clips, tmp_path / "cache")) == EXPECTED


@pytest.mark.parametrize(
    ("failure", "raised", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InputError, "space"),
        (OSError(errno.EIO, "Input/output error"), InputError, "Input/output error"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_failure_on_the_way_leaves_nothing(collection, tmp_path, monkeypatch, failure, raised, says):
    written = []

    def write(clip, part, bar):
        part.write(b"\0" * SIZE * SIZE)
        written.append(clip.name)
        if len(written) == 2:
            raise failure
        return 1

    monkeypatch.setattr(cache, "_write", write)
    with pytest.raises(raised, match=says):
        cached(find_clips(collection, None), tmp_path / "cache")
    assert written == ["1", "2"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_made(collection, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"written.*--cache-dir"):
        cached(find_clips(collection, None), tmp_path / "file" / "cache")


def test_a_source_that_is_gone(tmp_path):
    with pytest.raises(InputError, match=r"gone\.avi.*No such file"):
        cached([Clip("gone", (tmp_path / "gone.avi",))], tmp_path)


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("DESCEND_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache/descend"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg/descend"
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
