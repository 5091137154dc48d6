"""Splits at random: the same every time, of the size asked for, and no group on two sides."""

import json
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from descend.errors import InputError
from descend.recipes import RECIPES
from descend.tasks.splits import split_groups, split_off
from descend.tasks.text import generate_instructions, generate_pairs, generate_reviews
from descend.tasks.text.language import IGNORED
from tests.support.sources import mnli


def sides(rows):
    return DatasetDict({side: Dataset.from_list(rows) for side in ("train", "test")})


@pytest.mark.parametrize("rows", [generate_reviews(50, 0), generate_pairs(200, 0)])
def test_the_validation_part_is_the_same_share_every_time(rows):
    one, again = (split_off(sides(rows), 0.2) for _ in range(2))
    for side in one:
        assert one[side].to_list() == again[side].to_list()
    assert abs(len(one["validation"]) - len(rows) / 5) < max(Counter(row["text"] for row in rows).values())
    both = sorted(map(str, [*one["train"].to_list(), *one["validation"].to_list()]))
    assert both == sorted(map(str, rows))
    assert split_off(one, 0.5) is one  # a validation side that is given stays


def test_every_group_is_as_likely_as_any_other_to_be_held_out():
    """Else groups of many rows would be in validation more often than their share."""
    held = 0
    for number in range(400):
        keys = np.random.default_rng(number).permutation(["large"] * 20 + list(range(80))).tolist()
        parts = split_groups(keys, [20, 20])
        assert sorted(np.concatenate(parts).tolist()) == list(range(100))
        held += "large" in {keys[row] for row in parts[0]}
    assert 0.1 < held / 400 < 0.3  # 20 of 81 groups, or as many rows


ALIKE = [{"text": "the only premise", "label": 0}] * 50


@pytest.mark.parametrize(
    ("split", "match"),
    [
        (lambda: split_off(sides(generate_reviews(50, 0)), 0.01), "at least 2 of the 50"),
        (lambda: split_off(sides(ALIKE), 0.5), "1 different"),
        (lambda: split_groups(["a"] * 9 + ["b"], [3, 3]), r"expected 3 parts with rows in each.*10 rows with 2 diff"),
    ],
)
def test_a_part_that_would_be_empty_is_refused(split, match):
    with pytest.raises(InputError, match=match):
        split()


def premise(row, tokenizer):
    ids = row["input_ids"]
    return tuple(ids[: ids.index(tokenizer.sep_token_id)])


def question(row, tokenizer):
    return tuple(token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == IGNORED)


@pytest.fixture
def data(tmp_path):
    """Data in which groups repeat, by recipe."""
    rows = [(f"premise {number % 40} is so", f"so is {number}", "neutral") for number in range(120)]
    asked = generate_instructions(60).rows.to_list()
    (tmp_path / "asked.json").write_text(json.dumps(asked + [row | {"output": "another answer"} for row in asked]))
    return {
        "mnli": mnli(tmp_path / "mnli", rows=rows),
        "generated": "generated",
        "llm-sft": tmp_path / "asked.json",
    }


@pytest.mark.parametrize(
    ("recipe", "source", "settings", "group"),
    [
        ("text-ut", "mnli", {"dataset": "mnli"}, premise),
        ("text-distilbert", "generated", {"dataset": "mnli"}, premise),
        ("llm-sft", "llm-sft", {}, question),
        ("llm-sft", "generated", {}, question),
    ],
)
def test_no_group_is_on_two_sides(data, recipe, source, settings, group):
    loaded = RECIPES[recipe].kind(data=str(data[source]), **settings).load()
    parts = (loaded.train, loaded.validation, *([loaded.test] if recipe == "llm-sft" else []))
    found = [{group(row, loaded.tokenizer) for row in part} for part in parts]
    assert all(found)
    assert sum(map(len, found)) < sum(map(len, parts))  # groups do repeat
    for place, one in enumerate(found):
        assert not any(one & other for other in found[place + 1 :])
