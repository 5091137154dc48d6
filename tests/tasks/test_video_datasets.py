"""Patches, windows, the loss of a denoiser, the parts of a data set, and the cache of its decoded frames."""

import errno
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from descend.errors import InputError
from descend.tasks.video import (
    PATCH,
    SIZE,
    Clip,
    VideoDenoising,
    VideoWindows,
    cached,
    dataset_name,
    datasets,
    default_cache_dir,
    find_clips,
    generate_scenes,
    load_test,
    load_video,
    patchify,
    unpatchify,
)


def numbered(*lengths: int) -> list[np.ndarray]:
    """Clips whose frames are plain: level 100·clip + frame, so that a frame says where it comes from."""
    return [
        np.broadcast_to((100 * clip + np.arange(length, dtype=np.uint8))[:, None, None], (length, SIZE, SIZE))
        for clip, length in enumerate(lengths)
    ]


def origin(patches: torch.Tensor) -> list[int]:
    return (patches[:, 0, 0] * 255).round().int().tolist()


# --- patches


@settings(max_examples=25, deadline=None)
@given(
    lead=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_patches_are_row_major_and_put_together_again(lead, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, 256, (*lead, SIZE, SIZE), generator=generator).to(dtype)
    patches = patchify(frames)
    assert patches.shape == (*lead, 100, 256) and patches.dtype == dtype
    for n in (0, 9, 10, 37, 99):
        row, column = PATCH * (n // 10), PATCH * (n % 10)
        tile = frames[..., row : row + PATCH, column : column + PATCH]
        assert torch.equal(patches[..., n, :], tile.flatten(-2))
    assert torch.equal(unpatchify(patches), frames)


# --- windows


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=2),
    window=st.integers(1, 20),
    stride=st.integers(1, 25),
)
def test_windows_are_all_runs_of_frames_within_one_clip(lengths, window, stride):
    clips = numbered(*lengths)
    if min(lengths) < window:
        with pytest.raises(InputError, match=r"frames.*window"):
            VideoWindows(clips, window, stride)
        return
    windows = VideoWindows(clips, window, stride)
    expected = [
        list(range(100 * clip + start, 100 * clip + start + window))
        for clip, length in enumerate(lengths)
        for start in range(0, length - window + 1, stride)
    ]
    assert [origin(item["patches"]) for item in windows] == expected
    assert [item["group"] for item in windows] == [frames[0] // 100 for frames in expected]
    for outside in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows[outside]


def test_sigma_is_numpys_over_frames_not_windows():
    clips = generate_scenes(2, 70, seed=3)
    clips[1] = clips[1][:5]
    expected = np.concatenate(clips).astype(np.float64).std() / 255
    assert VideoWindows(clips, 5, 2).sigma() == pytest.approx(expected, rel=1e-12)


# --- the loss


@pytest.mark.parametrize(
    ("of_prediction", "of_target", "near"),
    [
        (torch.float32, torch.float32, {}),
        (torch.bfloat16, torch.float32, {"rtol": 0.02, "atol": 1e-5}),
        (torch.bfloat16, torch.bfloat16, {"rtol": 0.02, "atol": 1e-5}),
    ],
)
def test_the_loss_has_the_value_and_gradient_of_plain_autograd(of_prediction, of_target, near):
    """In half precision only the difference is rounded, not the sum; where nothing differs the gradient is 0."""
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(2, 3, 100, 256, generator=generator).to(of_target)
    noisy = (target + 0.1 * torch.randn(target.shape, generator=generator)).to(of_prediction)
    noisy[0, 0] = target[0, 0]
    upstream = torch.randn(2, generator=generator)
    values, gradients = [], []
    for losses in (VideoDenoising().losses, lambda p, x: (p - x).float().norm(dim=-1).sum(1).mean(-1) / 2):
        prediction = noisy.clone().requires_grad_()
        values.append(losses(prediction, target))
        values[-1].backward(upstream)
        gradients.append(prediction.grad)
    assert values[0].dtype == torch.float32 and gradients[0].dtype == of_prediction
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients, **near)
    assert of_prediction != of_target or not gradients[0][0, 0].any()


# --- data sets


def clips_on_disk(root: Path, lengths: dict[str, int]) -> Path:
    """One folder per name; frame k of clip number c is plain grey of level 60·c + k."""
    for number, (name, frames) in enumerate(lengths.items()):
        (root / name).mkdir(parents=True)
        for k in range(frames):
            Image.new("L", (16, 16), 60 * number + k).save(root / name / f"{k}.png")
    return root


PED9 = {"training/frames/01": 6, "training/frames/02": 7, "training/frames/10": 8, "testing/frames/01": 9}


def test_the_embedded_scenes(monkeypatch):
    counted, sigma = [], VideoWindows.sigma
    monkeypatch.setattr(VideoWindows, "sigma", lambda windows: counted.append(windows) or sigma(windows))
    data = load_video(None, window=5, stride=2, seed=4)
    assert data.name == "scenes" and counted == []
    assert [len(part.clips) for part in (data.train, data.validation, data.test)] == [6, 2, 16]
    assert (data.train.stride, data.validation.stride, data.test.stride) == (2, 5, 5)
    scenes = generate_scenes(8, 30, seed=4)
    np.testing.assert_array_equal([*data.train.clips, *data.validation.clips], scenes)
    np.testing.assert_array_equal(data.test.clips, generate_scenes(24, 10, seed=4)[8:])
    assert data.sigma == data.sigma == pytest.approx(np.std(scenes[:6]) / 255, rel=1e-12)
    assert counted == [data.train]


ONE = {"a": 30}
"""One clip, which is divided by its frames: a later part has two windows, or one where there are too few frames."""


@pytest.mark.parametrize(
    ("lengths", "window", "share", "names", "counts", "left_out"),
    [
        (PED9, 3, 0.2, ["training/01 training/02", "training/10", "testing/01"], [4 + 5, 2, 3], ""),
        (PED9, 7, 0.2, ["training/02", "training/10", "testing/01"], [1, 1, 1], "training/01"),
        (dict.fromkeys("abcdef", 4), 2, 0.2, ["a b c", "d", "e f"], [9, 2, 4], ""),
        (dict.fromkeys("abcdef", 4) | {"e": 1, "b": 1}, 2, 0.2, ["a c", "d", "f"], [6, 2, 2], "b e"),
        (ONE | {"b": 4}, 5, 0.2, ["a[0:20][0:10]", "a[0:20][10:20]", "a[20:30]"], [6, 2, 2], "b"),
        (ONE, 1, 0.2, ["a[0:20][0:16]", "a[0:20][16:20]", "a[20:30]"], [16, 4, 10], ""),
        (ONE, 1, 0.5, ["a[0:20][0:10]", "a[0:20][10:20]", "a[20:30]"], [10, 10, 10], ""),
        (ONE, 3, 0.9, ["a[0:20][0:3]", "a[0:20][3:20]", "a[20:30]"], [1, 5, 3], ""),
        (ONE, 6, 0.2, ["a[0:18][0:6]", "a[0:18][6:18]", "a[18:30]"], [1, 2, 2], ""),
        (ONE, 7, 0.2, ["a[0:21][0:7]", "a[0:21][7:21]", "a[21:30]"], [1, 2, 1], ""),
        (ONE, 10, 0.2, ["a[0:20][0:10]", "a[0:20][10:20]", "a[20:30]"], [1, 1, 1], ""),
    ],
)
def test_a_data_set_has_three_parts_without_clips_that_are_too_short(
    tmp_path, caplog, lengths, window, share, names, counts, left_out
):
    clips_on_disk(tmp_path / "ped9", lengths)
    data = load_video(tmp_path / "ped9", window, cache_dir=tmp_path / "cache", validation_share=share)
    parts = (data.train, data.validation, data.test)
    assert [" ".join(part.names) for part in parts] == names and data.name == "ped9"
    assert [len(part) for part in parts] == counts
    if lengths == ONE:
        assert [frame for part in parts for frame in part.clips[0][:, 0, 0]] == list(range(30))
    assert [line.split()[1] for line in caplog.messages] == left_out.split()
    assert len(list((tmp_path / "cache").glob("*.frames"))) == 1


@pytest.mark.parametrize(
    ("lengths", "path", "window", "expected"),
    [
        ({"a": 4, "b": 5, "c": 4}, "frames", 2, ("yard", ["a", "b", "c"], 6)),
        ({"a": 4, "b": 5, "c": 4}, "frames/b", 5, ("b", ["b"], 1)),  # the one clip is whole
        ({"a": 4, "b": 5, "c": 4}, "frames", 5, ("yard", ["b"], 1)),
        (PED9, ".", 3, ("yard", ["testing/01"], 3)),
        ({"testing/01": 9, "testing/02": 4, "training/01": 0}, ".", 3, ("yard", ["testing/01", "testing/02"], 4)),
        ({"training/a": 3, "training/b": 3}, "training", 3, ("yard", ["a", "b"], 2)),
    ],
)
def test_a_model_is_tested_on_the_test_side_or_on_a_whole_collection(tmp_path, lengths, path, window, expected):
    root = tmp_path / "yard"
    clips_on_disk(root / "frames" if path.startswith("frames") else root, lengths)
    windows, name = load_test(root / path, window, cache_dir=tmp_path / "cache")
    assert (name, windows.names, len(windows)) == expected
    assert windows.stride == window


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda root: patchify(torch.zeros(2, 160, 150)), r"\(…, 160, 160\).*\(2, 160, 150\)"),
        (ValueError, lambda root: unpatchify(torch.zeros(100, 196)), r"\(…, 100, 256\).*\(100, 196\)"),
        (
            InputError,
            lambda root: VideoWindows(numbered(9, 5), 6, names=["testing/07", "testing/08"]),
            r"testing/08.*5 frames.*6",
        ),
        (InputError, lambda root: VideoWindows(numbered(9), 0), "0 and 1"),
        (InputError, lambda root: VideoWindows(numbered(9), 1, 0), "1 and 0"),
        (InputError, lambda root: load_video(root / "nowhere", 5), "does not exist"),
        (InputError, lambda root: load_video(None, 31), r"scene 0.*30 frames.*31"),
        (
            InputError,
            lambda root: load_video(clips_on_disk(root, ONE), 11, cache_dir=root),
            r"clip a has 30 frames.*33",
        ),
        (InputError, lambda root: load_test(clips_on_disk(root, {"a": 4, "b": 5, "c": 4}), 6), r"clip a .*4 frames.*6"),
        (
            InputError,
            lambda root: load_test(clips_on_disk(root, {"training/a": 3, "training/b": 3}), 3),
            r"testing.*/training",
        ),
        (InputError, lambda root: cached([Clip("gone", (root / "gone.avi",))], root), r"gone\.avi.*No such file"),
        (
            InputError,
            lambda root: cached(find_clips(clips_on_disk(root, ONE), None), Path(__file__) / "cache"),
            r"written.*--cache-dir",
        ),
    ],
)
def test_what_can_not_be_read_or_kept_is_named(tmp_path, monkeypatch, error, call, message):
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path / "cache"))
    with pytest.raises(error, match=message):
        call(tmp_path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/ped2", "ped2"),
        ("/data/UCSD_Anomaly_Dataset.v1p2/UCSDped1", "ucsdped1"),
        ("/data/UCSD_Anomaly_Dataset.v1p2/UCSDped1/Test/Test001", "ucsdped1"),
        ("/data/Avenue Dataset", "avenue"),
        ("/data/Avenue Dataset/testing_videos", "avenue"),
        ("/data/shanghaitech/testing/videos", "shanghaitech"),
        ("/data/shanghaitech/testing/frames/01_0014", "shanghaitech"),
        ("/data/dataset", "dataset"),
        ("/data/mine/clips", "clips"),
        ("/data/mine/frames2", "frames2"),
        ("/data/mine/training/frames", "mine"),
        ("/", "video"),
    ],
)
def test_names(path, name):
    assert dataset_name(path) == name


def test_real_ped2(real_data, tmp_path):
    data = load_video(real_data / "video/ped2", window=10, stride=5, cache_dir=tmp_path)
    assert data.name == "ped2"
    assert (len(data.train), len(data.validation), len(data.test)) == (8 * 9, 2 * 5, 7 * 5)
    assert 44 < data.sigma * 255 < 48  # the paper's σ_x ≈ 46


# --- the cache of decoded frames

EXPECTED = [[0, 1, 2], [60, 61, 62, 63, 64]]


@pytest.fixture
def collection(tmp_path) -> Path:
    return clips_on_disk(tmp_path / "collection", {"1": 3, "2": 5})


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
    Image.new("L", (16, 16), 99).save(collection / "1/1.png")
    os.utime(collection / "1/1.png", ns=(0, 0))  # even a time that goes backwards is a change
    assert levels(cached(find_clips(collection, None), tmp_path / "cache")) == [[0, 99, 2], EXPECTED[1]]
    (collection / "2/4.png").unlink()
    assert files(tmp_path / "cache") == [".frames"]
    assert levels(cached(find_clips(collection, None), tmp_path / "cache")) == [[0, 99, 2], EXPECTED[1][:4]]
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


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "home/.cache/descend"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/descend"),
        ({"XDG_CACHE_HOME": "xdg", "DESCEND_CACHE": "own"}, "own"),
    ],
)
def test_default_folder(monkeypatch, tmp_path, variables, folder):
    for name in ("HOME", "XDG_CACHE_HOME", "DESCEND_CACHE"):
        value = ({"HOME": "home"} | variables).get(name)
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    assert default_cache_dir() == tmp_path / folder
