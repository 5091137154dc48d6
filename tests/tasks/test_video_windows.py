"""Patches, windows and the parts of a data set."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from descend.errors import InputError
from descend.tasks.video import (
    PATCH,
    SIZE,
    VideoWindows,
    dataset_name,
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
def test_patchify_and_unpatchify_are_inverse(lead, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, 256, (*lead, SIZE, SIZE), generator=generator).to(dtype)
    patches = patchify(frames)
    assert patches.shape == (*lead, 100, 256) and patches.dtype == dtype
    assert torch.equal(unpatchify(patches), frames)
    assert torch.equal(patchify(unpatchify(patches)), patches)


def test_patches_are_row_major():
    frame = torch.arange(SIZE * SIZE).view(SIZE, SIZE)
    patches = patchify(frame)
    for n in (0, 9, 10, 37, 99):
        row, column = PATCH * (n // 10), PATCH * (n % 10)
        assert torch.equal(patches[n].view(PATCH, PATCH), frame[row : row + PATCH, column : column + PATCH])


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(…, 160, 160\).*\(2, 160, 150\)"):
        patchify(torch.zeros(2, 160, 150))
    with pytest.raises(ValueError, match=r"\(…, 100, 256\).*\(100, 196\)"):
        unpatchify(torch.zeros(100, 196))


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


def test_items_are_patches_of_the_frames_in_0_to_1():
    clips = generate_scenes(2, 6, seed=0)
    windows = VideoWindows(clips, window=4, stride=2)
    item = windows[3]
    assert item["patches"].dtype == torch.float32 and item["patches"].shape == (4, 100, 256)
    assert torch.equal(unpatchify(item["patches"]), torch.from_numpy(clips[1][2:6]).float() / 255)
    assert (windows.frames(3) == clips[1][2:6]).all()
    batch = windows.__getitems__([3, 0, 3])
    for one, index in zip(batch, [3, 0, 3], strict=True):
        assert one.keys() == {"patches", "group"}
        assert one["group"] == windows[index]["group"] == index // 2
        assert torch.equal(one["patches"], windows[index]["patches"])


def test_a_data_loader_takes_them():
    (batch,) = DataLoader(VideoWindows(numbered(4, 3), 3), batch_size=3)
    assert batch["patches"].shape == (3, 3, 100, 256)
    assert batch["group"].tolist() == [0, 0, 1]


def test_a_short_clip_and_bad_sizes_are_named():
    with pytest.raises(InputError, match=r"testing/08.*5 frames.*6"):
        VideoWindows(numbered(9, 5), 6, names=["testing/07", "testing/08"])
    for window, stride in ((0, 1), (1, 0), (-3, 1)):
        with pytest.raises(InputError, match=f"{window} and {stride}"):
            VideoWindows(numbered(9), window, stride)
    with pytest.raises(ValueError, match=r"0.*uint8.*float64"):
        VideoWindows([np.zeros((3, SIZE, SIZE))], 1)


def test_sigma_is_numpys_over_frames_not_windows():
    clips = generate_scenes(2, 70, seed=3)
    clips[1] = clips[1][:5]
    expected = np.concatenate(clips).astype(np.float64).std() / 255
    for window, stride in ((1, 1), (5, 1), (5, 5), (2, 3)):
        assert VideoWindows(clips, window, stride).sigma() == pytest.approx(expected, rel=1e-12)


# --- data sets


def clips_on_disk(root: Path, **lengths: int) -> Path:
    """One folder per name; frame k of clip number c is plain grey of level 60·c + k."""
    for number, (name, frames) in enumerate(lengths.items()):
        (root / name).mkdir(parents=True)
        for k in range(frames):
            Image.new("L", (16, 16), 60 * number + k).save(root / name / f"{k}.png")
    return root


def frames_of(windows: VideoWindows) -> list[int]:
    return [frame for clip in windows.clips for frame in clip[:, 0, 0].tolist()]


def test_the_embedded_scenes():
    data = load_video(None, window=5, stride=2, seed=4)
    assert data.name == "scenes"
    assert [len(part.clips) for part in (data.train, data.validation, data.test)] == [6, 2, 3]
    assert (data.train.stride, data.validation.stride, data.test.stride) == (2, 5, 5)
    scenes = generate_scenes(11, 30, seed=4)
    used = [*data.train.clips, *data.validation.clips, *data.test.clips]
    assert all((a == b).all() for a, b in zip(used, scenes, strict=True))
    assert data.sigma == pytest.approx(np.std(scenes[:6]) / 255, rel=1e-12)
    with pytest.raises(InputError, match=r"scene 0.*30 frames.*31"):
        load_video(None, window=31)


def test_sides_are_training_and_test(tmp_path):
    clips_on_disk(tmp_path / "ped9/training/frames", **{"01": 6, "02": 7, "10": 8})
    clips_on_disk(tmp_path / "ped9/testing/frames", **{"01": 9})
    data = load_video(tmp_path / "ped9", window=3, cache_dir=tmp_path / "cache")
    assert data.name == "ped9"
    assert data.train.names == ["training/01", "training/02"]
    assert data.validation.names == ["training/10"]
    assert data.test.names == ["testing/01"]
    assert (len(data.train), len(data.validation), len(data.test)) == (4 + 5, 2, 3)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_collection_without_sides_is_divided_by_clips(tmp_path):
    clips_on_disk(tmp_path / "yard/frames", a=4, b=4, c=4, d=4, e=4, f=4)
    data = load_video(tmp_path / "yard/frames", window=2, cache_dir=tmp_path / "cache")
    assert (data.train.names, data.validation.names, data.test.names) == (["a", "b", "c"], ["d"], ["e", "f"])
    assert data.name == "yard"


@settings(max_examples=20, deadline=None)
@given(window=st.integers(1, 12), share=st.sampled_from([0.05, 0.2, 0.5, 0.9]))
def test_one_clip_is_divided_by_frames(tmp_path_factory, window, share):
    root = tmp_path_factory.getbasetemp() / "one_clip"
    if not root.exists():
        clips_on_disk(root / "walk", gate=30)

    def load():
        return load_video(root / "walk/gate", window, cache_dir=root, validation_share=share)

    if 3 * window > 30:
        message = rf"gate.*30 frames.*{3 * window}"
        with pytest.raises(InputError, match=message):
            load()
        return
    data = load()
    parts = [frames_of(part) for part in (data.train, data.validation, data.test)]
    assert [frame for part in parts for frame in part] == list(range(30))
    train, validation, test = map(len, parts)
    assert min(train, validation, test) >= window
    if 4 * window <= 30:
        assert len(data.validation) >= 2
    if 5 * window <= 30:
        assert len(data.test) >= 2
        assert test == max(10, 2 * window)
        wanted = max(int(np.ceil(share * (30 - test))), 2 * window)
        assert validation == min(wanted, 30 - test - window)


def test_one_clip_leaves_two_windows_to_validate_and_to_test_on(tmp_path):
    clips_on_disk(tmp_path / "walk", gate=30)
    data = load_video(tmp_path / "walk/gate", window=5, cache_dir=tmp_path / "cache")
    assert [part.names for part in (data.train, data.validation, data.test)] == [
        ["gate[0:20][0:10]"],
        ["gate[0:20][10:20]"],
        ["gate[20:30]"],
    ]
    assert [len(part) for part in (data.train, data.validation, data.test)] == [6, 2, 2]


def test_sigma_is_counted_once_and_only_if_asked_for(monkeypatch):
    counted = []
    sigma = VideoWindows.sigma
    monkeypatch.setattr(VideoWindows, "sigma", lambda windows: counted.append(windows) or sigma(windows))
    data = load_video(None, window=5)
    assert counted == []
    assert data.sigma == data.sigma == sigma(data.train)
    assert counted == [data.train]


def test_a_collection_is_all_test_set_for_a_model_trained_elsewhere(tmp_path):
    clips_on_disk(tmp_path / "yard/frames", a=4, b=5, c=4)
    windows, name = load_test(tmp_path / "yard/frames", 2, cache_dir=tmp_path / "cache")
    assert (windows.names, windows.stride, len(windows), name) == (["a", "b", "c"], 2, 6, "yard")
    windows, name = load_test(tmp_path / "yard/frames/b", 5, cache_dir=tmp_path / "cache")
    assert (windows.names, len(windows), name) == (["b"], 1, "b")  # the one clip is whole
    with pytest.raises(InputError, match=r"clip a .*4 frames.*5"):
        load_test(tmp_path / "yard/frames", 5, cache_dir=tmp_path / "cache")


def test_only_the_test_side_is_needed_and_read_to_test(tmp_path):
    clips_on_disk(tmp_path / "ped9/testing/frames", **{"01": 9, "02": 4})
    alone = load_test(tmp_path / "ped9", 3, cache_dir=tmp_path / "cache")
    (tmp_path / "ped9/training/frames/01").mkdir(parents=True)
    (tmp_path / "ped9/training/frames/01/0.png").write_text("not a picture")
    for windows, name in (alone, load_test(tmp_path / "ped9", 3, cache_dir=tmp_path / "cache")):
        assert (windows.names, len(windows), name) == (["testing/01", "testing/02"], 3 + 1, "ped9")

    clips_on_disk(tmp_path / "yard/training", a=3, b=3)
    with pytest.raises(InputError, match=r"testing.*/training"):
        load_test(tmp_path / "yard", 3, cache_dir=tmp_path / "cache")
    windows, name = load_test(tmp_path / "yard/training", 3, cache_dir=tmp_path / "cache")
    assert (windows.names, name) == (["a", "b"], "yard")


def test_settings_out_of_range(tmp_path):
    for share in (0, 1, -0.5, 1.5):
        with pytest.raises(InputError, match="validation_share"):
            load_video(None, 5, validation_share=share)
    with pytest.raises(InputError, match="does not exist"):
        load_video(tmp_path / "nowhere", 5)


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
    patches = data.test[3]["patches"]
    assert patches.min() >= 0 and patches.max() <= 1 and patches.std() > 0.1


def test_real_videos_without_a_training_side(real_data, tmp_path):
    with pytest.raises(InputError, match=r"training.*/testing/videos"):
        load_video(real_data / "video/shanghaitech", window=10, cache_dir=tmp_path)
    data = load_video(real_data / "video/Avenue Dataset/testing_videos/08.avi", 6, cache_dir=tmp_path)
    assert data.name == "avenue"
    assert data.test.names == ["08[24:36]"]
    assert [len(part) for part in (data.train, data.validation, data.test)] == [7, 2, 2]


def test_real_data_to_test_on(real_data, tmp_path):
    whole = load_video(real_data / "video/ped2", window=10, cache_dir=tmp_path).test
    windows, name = load_test(real_data / "video/ped2", 10, cache_dir=tmp_path)
    assert (windows.names, name) == (whole.names, "ped2")
    assert all((a == b).all() for a, b in zip(windows.clips, whole.clips, strict=True))
    windows, name = load_test(real_data / "video/shanghaitech/testing/frames", 10, cache_dir=tmp_path)
    assert (windows.names, len(windows), name) == (["01_0014"], 4, "shanghaitech")
