"""Targets inside a text: next tokens, classes of tokens, and answers to questions."""

import pickle

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F

from descend.errors import InputError
from descend.tasks.text import NextToken, QuestionAnswering, TokenClassification

LIMITS = {"labels": 3, "vocabulary": 40, "length": 6}
TAGGED = {"input_ids": [[4, 5, 6], [7, 8]], "labels": [[0, -100, 2], [-100, 1]]}
ASKED = {"input_ids": [[4, 5, 6], [7, 8]], "start_positions": [1, 0], "end_positions": [2, 0]}
PACKED = {"input_ids": [[1] * 8] * 2, "labels": [[1] * 8] * 2, "seq_lengths": [[3, 2, 3], [1, 7]]}


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
    plain, located = collated(samples), task.located(collated, samples)
    assert located.keys() > plain.keys()
    located = pickle.loads(pickle.dumps(located))  # as from a worker of a data loader
    for batch in (plain, located):
        assert task.target(batch).tolist() == targets
        assert task.inputs(batch)["places"].tolist() == places
        assert task.inputs(batch).keys() == {"input_ids", "places"}


def test_a_batch_without_labels_stays_as_it_is():
    samples = [{"input_ids": [5, 6]}]
    assert NextToken().located(collated, samples).keys() == {"input_ids"}
    assert NextToken().located(lambda given: given, samples) == samples


def rows(columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_a_target_is_a_token_with_a_label():
    task, labels = TokenClassification(), torch.tensor([[0, -100, 2], [-100, 1, -100], [-100, -100, -100]])
    batch = {"input_ids": torch.zeros(3, 3, dtype=torch.long), "labels": labels}
    assert task.target(batch).tolist() == [0, 2, 1] and task.owners(batch).tolist() == [0, 0, 1]
    inputs = task.inputs(batch)
    assert inputs.keys() == {"input_ids", "places"} and inputs["places"].tolist() == [0, 2, 4]
    assert task.inputs({"input_ids": 0}) == {"input_ids": 0}


def test_an_answer_is_right_if_both_places_are():
    task = QuestionAnswering()
    batch = {"input_ids": 0, "start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([2, 0])}
    assert task.inputs(batch) == {"input_ids": 0}
    target = task.target(batch)
    right = F.one_hot(target, 3).transpose(1, 2).float()
    assert task.score(right, target).tolist() == [1, 1]
    right[1, 2, 1] = 9
    assert task.score(right, target).tolist() == [1, 0]


@pytest.mark.parametrize("form", [rows, Dataset.from_dict])
@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        (TokenClassification, {"labels": [[0], [1]]}, r"input_ids.*got labels"),
        (TokenClassification, {"input_ids": [[4]]}, r"labels.*got input_ids"),
        (TokenClassification, TAGGED | {"labels": [[0, 1, 2], [1]]}, r"sample 1 has 1 labels.*2 tokens"),
        (TokenClassification, TAGGED | {"labels": [[0, 1, 2], [1, 3]]}, r"sample 1 has label 3.*-100.*0 … 2"),
        (TokenClassification, TAGGED | {"labels": [[0, -1, 2], [1, 1]]}, r"sample 0 has label -1"),
        (TokenClassification, TAGGED | {"labels": [[-100] * 3, [-100] * 2]}, r"no target.*-100"),
        (TokenClassification, TAGGED | {"input_ids": [[4, 5, 6], [7, 40]]}, r"sample 1 has token 40.*40 rows"),
        (TokenClassification, {"input_ids": [[4] * 7], "labels": [[0] * 7]}, r"sample 0 has 7 tokens.*6"),
        (NextToken, PACKED, r"sample 1 has 7 tokens.*at most 6"),
        (QuestionAnswering, TAGGED, r"start_positions.*got input_ids, labels"),
        (QuestionAnswering, ASKED | {"end_positions": [2, 2]}, r"sample 1.*0 … 2.*0 … 1.*first token"),
        (QuestionAnswering, ASKED | {"start_positions": [1, -1]}, r"sample 1.*-1 … 0"),
        (QuestionAnswering, ASKED | {"end_positions": [0, 0]}, r"sample 0.*1 … 0.*in order"),
    ],
)
def test_what_does_not_fit_is_named(form, task, columns, message):
    for fits in (form(ASKED if task is QuestionAnswering else TAGGED), []):
        task().check(fits, LIMITS)
    with pytest.raises(InputError, match=message):
        task().check(form(columns), LIMITS)
