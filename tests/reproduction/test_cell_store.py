"""What a finished cell keeps of its run."""

import json

import numpy as np
import pytest

from descend.results import Groups
from reproduction import cell_store
from reproduction.records import Cell
from tests.support import studies


def _folder(tmp_path, groups: Groups):
    """A run's folder with these groups."""
    made = studies.line("text", "UT", "imdb", 3, 1.0, "erm", 0)
    (tmp_path / "summary.json").write_text(json.dumps(made["summary"]))
    config = {"recipe": "text-ut", "method": "erm", "seed": 0, "model": "UT-3", "settings": {}, "training": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "groups.json").write_text(json.dumps(groups.content()))
    return Cell.model_validate(made["cell"])


def _groups(count: int, seed: int = 0) -> Groups:
    scores = np.random.default_rng(seed).integers(0, 2, size=(2, count)).astype(float).tolist()
    return Groups(noise=[0.0, 1.0], root=False, counts=[1] * count, scores=scores)


def test_groups_are_put_together_until_there_are_few_enough(tmp_path) -> None:
    many = _groups(1003)
    kept = cell_store.line(_folder(tmp_path, many), tmp_path, 1.0, {}).groups
    assert kept is not None and len(kept.counts) == cell_store.MOST_GROUPS
    assert sum(kept.counts) == 1003 and max(kept.counts) - min(kept.counts) <= 1
    assert np.allclose(np.sum(kept.scores, axis=1), np.sum(many.scores, axis=1))


def test_few_groups_stay_as_they_are(tmp_path) -> None:
    few = _groups(cell_store.MOST_GROUPS)
    kept = cell_store.line(_folder(tmp_path, few), tmp_path, 1.0, {}).groups
    assert kept is not None and kept.scores == few.scores


def test_runs_on_the_same_data_keep_the_same_groups(tmp_path) -> None:
    """A run whose score is 1 on one sample alone shows in which group that sample is."""
    places = []
    for run in ("a", "b"):
        folder = tmp_path / run
        folder.mkdir()
        scores = [[float(place == 700) for place in range(1003)]] * 2
        groups = Groups(noise=[0.0, 1.0], root=False, counts=[1] * 1003, scores=scores)
        kept = cell_store.line(_folder(folder, groups), folder, 1.0, {}).groups
        assert kept is not None
        places.append(int(np.argmax(kept.scores[0])))
    assert places[0] == places[1]


def test_an_interval_from_groups_is_that_from_samples(tmp_path) -> None:
    """The standard error of a mean from 200 groups differs from that of its samples by chance alone."""
    many = _groups(4000)
    kept = cell_store.line(_folder(tmp_path, many), tmp_path, 1.0, {}).groups
    assert kept is not None
    alone, together = (
        np.std(np.array(each.scores[0]) / np.array(each.counts), ddof=1) / len(each.counts) ** 0.5
        for each in (many, kept)
    )
    assert together == pytest.approx(alone, rel=0.15)
