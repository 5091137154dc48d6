"""Generated scenes: a fixed camera, moving figures, occlusion, the camera's noise."""

import time

import numpy as np
import pytest

from descend.tasks.video import SIZE, generate_scenes
from descend.tasks.video.scenes import CAMERA_NOISE


def test_deterministic_and_independent_of_how_many_follow():
    scenes = generate_scenes(3, 5, seed=7)
    assert [(scene.shape, scene.dtype) for scene in scenes] == [((5, SIZE, SIZE), np.uint8)] * 3
    for again in (generate_scenes(3, 5, seed=7), generate_scenes(2, 5, seed=7)):
        assert all((a == b).all() for a, b in zip(again, scenes, strict=False))
    assert not any((a == b).all() for a, b in zip(generate_scenes(3, 5, seed=8), scenes, strict=True))
    assert not (scenes[0] == scenes[1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_contrast_and_change_are_those_of_real_surveillance(seed):
    scenes = np.stack(generate_scenes(8, 30, seed)).astype(np.float32)
    assert 35 < np.std(scenes) < 55
    change = (scenes[:, 4:] - scenes[:, :-4]).reshape(-1, 10, 16, 10, 16)
    found = np.quantile(change.std(axis=(2, 4)), [0.9, 0.95, 0.99])
    np.testing.assert_allclose(found, [21, 29, 37], rtol=0.25)  # of Ped2's 17 clips


@pytest.mark.parametrize("seed", range(3))
def test_the_camera_stands_still_and_people_move(seed):
    scenes = np.stack(generate_scenes(6, 40, seed)).astype(np.float32)
    background = np.median(scenes, axis=1)
    between_cameras = np.median(np.abs(background - background[0]), axis=(1, 2))
    assert between_cameras.max() < 1  # the same view in every clip

    change = scenes[:, 1:] - scenes[:, :-1]
    still = change[np.abs(change) < 5 * CAMERA_NOISE].std() / np.sqrt(2)  # without those whom people cross
    assert abs(still - CAMERA_NOISE) < 0.15
    moving = (np.abs(change) > 8 * CAMERA_NOISE).mean(axis=(2, 3))
    assert (moving.mean(axis=1) > 0.003).all()  # somebody walks in every clip
    assert moving.max() < 0.2  # and most of the picture rests

    tree = (np.abs(scenes - np.median(scenes, axis=(0, 1))) < 8 * CAMERA_NOISE).all(axis=(0, 1))
    assert tree[SIZE // 2 :].all(axis=0).any()  # a column before which nobody ever passes


def test_fast_enough_to_be_the_default():
    start = time.process_time()
    generate_scenes(10, 40, seed=0)
    assert time.process_time() - start < 2
