"""Targets of a language model: found by the collator as by a search in the batch."""

import pickle

import pytest
import torch

from descend.errors import InputError
from descend.tasks.text import NextToken


def collated(samples):
    return {name: torch.tensor([sample[name] for sample in samples]) for name in samples[0]}


SAMPLES = [
    {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]},
    {"input_ids": [9, 8, 7, 0], "labels": [9, 8, -100, -100]},  # its first label follows no token
]


@pytest.mark.parametrize(
    ("samples", "targets", "places"),
    [(SAMPLES, [6, 8, 8], [0, 2, 4]), ([{"input_ids": [5, 6], "labels": [5, -100]}], [], [])],
)
def test_located_targets_are_those_of_a_search(samples, targets, places):
    task = NextToken()
    plain, located = collated(samples), task.locating(collated)(samples)
    assert located.keys() > plain.keys()
    located = pickle.loads(pickle.dumps(located))  # as from a worker of a data loader
    for batch in (plain, located):
        assert task.target(batch).tolist() == targets
        assert task.inputs(batch)["places"].tolist() == places
        assert task.inputs(batch).keys() == {"input_ids", "places"}


def test_a_batch_without_labels_stays_as_it_is():
    samples = [{"input_ids": [5, 6]}]
    assert NextToken().locating(collated)(samples).keys() == {"input_ids"}
    assert NextToken().locating(lambda given: given)(samples) == samples


def test_a_packed_text_that_is_too_long_is_named_by_its_row():
    rows = [{"input_ids": [1] * 6, "labels": [1] * 6, "seq_lengths": lengths} for lengths in ([3, 2, 1], [1, 5])]
    with pytest.raises(InputError, match=r"sample 1 has 5 tokens.*at most 4"):
        NextToken().check(rows, {"vocabulary": 9, "length": 4})
