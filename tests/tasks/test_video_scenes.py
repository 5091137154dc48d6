"""Generated scenes: the same every time, with the contrast and change of real ones."""

import numpy as np
import pytest

from descend.tasks.video import SIZE, generate_scenes


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
