"""Generated reviews, sentence pairs and triplets, so that recipes run without downloaded data."""

from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict

_GOOD = ["good", "great", "lovely", "clever", "moving", "bright", "funny", "honest", "warm", "sharp"]
_BAD = ["bad", "dull", "ugly", "stupid", "cold", "weak", "boring", "false", "slow", "tired"]
_THINGS = ["film", "plot", "cast", "music", "script", "story", "ending", "camera", "dialogue", "pace"]
_FILLERS = ["we saw it on a monday", "my sister came too", "it is two hours long", "they shot it in spain"]
_ANIMALS = ["dog", "cat", "horse", "sheep", "fox", "goat"]
_DOES = ["sleeps", "runs", "eats", "waits", "drinks", "sings"]
_TO_OTHERS = ["follows", "wakes", "licks", "watches", "helps", "finds"]
_PLACES = ["garden", "house", "forest", "street", "field", "barn"]

TRAIN, TEST = 2000, 500


def generate_reviews(count: int, seed: int) -> list[dict[str, Any]]:
    """Generate reviews that praise or criticise parts of a film, with negations and irrelevant sentences.

    Args:
        count: The number of reviews; the first ones are the same for every count.
        seed: The seed of all reviews.

    Returns:
        Rows of ``text`` and ``label``: 1 if the review praises more parts than it criticises.
    """
    return [_review(np.random.default_rng([seed, number])) for number in range(count)]


def generate_pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """Generate pairs of sentences with labels as MNLI's: 0 entailment, 1 neutral, 2 contradiction.

    Args:
        count: The number of pairs; the first ones are the same for every count.
        seed: The seed of all pairs.
    """
    return [_pair(np.random.default_rng([seed, number])) for number in range(count)]


def generate_triplets(count: int, seed: int) -> list[dict[str, Any]]:
    """Generate rows of ``anchor``, ``positive`` (the same in other words) and ``negative``.

    In the negative it is swapped who does it, which the words alone do not tell.

    Args:
        count: The number of rows; the first ones are the same for every count.
        seed: The seed of all rows.
    """
    return [_triplet(np.random.default_rng([seed, number])) for number in range(count)]


def corpus(generate: Callable[[int, int], list[dict[str, Any]]]) -> DatasetDict:
    """Generate the training and test sides with a generator of this file."""
    return DatasetDict({"train": Dataset.from_list(generate(TRAIN, 0)), "test": Dataset.from_list(generate(TEST, 1))})


def _review(rng: np.random.Generator) -> dict[str, Any]:
    praised = rng.random(int(rng.choice([3, 5, 7]))) < rng.choice([0.25, 0.75])
    sentences = []
    for thing, praise in zip(rng.permutation(_THINGS), praised, strict=False):
        negated = rng.random() < 0.25
        word = rng.choice(_GOOD if praise != negated else _BAD)
        sentences.append(f"the {thing} was {'not ' if negated else ''}{word}")
        if rng.random() < 0.3:
            sentences.append(str(rng.choice(_FILLERS)))
    return {"text": " . ".join(sentences) + " .", "label": int(2 * praised.sum() > len(praised))}


def _pair(rng: np.random.Generator) -> dict[str, Any]:
    animal, other = rng.choice(_ANIMALS, 2, replace=False)
    does, elsewise = rng.choice(_DOES, 2, replace=False)
    place, elsewhere = rng.choice(_PLACES, 2, replace=False)
    label = int(rng.integers(3))
    second = {
        0: [f"there is a {animal} in the {place}", f"an animal {does}", f"something {does} in the {place}"],
        1: [f"there is a {other} in the {elsewhere}", f"the {other} {elsewise}", f"a {other} is in the {place} too"],
        2: [f"there is no {animal} in the {place}", f"nothing {does} in the {place}", f"no animal {does}"],
    }[label]
    return {"text": f"a {animal} {does} in the {place} .", "pair": f"{rng.choice(second)} .", "label": label}


def _triplet(rng: np.random.Generator) -> dict[str, Any]:
    one, other = rng.choice(_ANIMALS, 2, replace=False)
    place, does = rng.choice(_PLACES), str(rng.choice(_TO_OTHERS))
    told = f"house {rng.integers(2000)} at {rng.integers(24)} o'clock :"
    return {
        "anchor": f"{told} in the {place} the {one} {does} the {other} .",
        "positive": f"{told} the {other} {does.removesuffix('s')}ed by the {one} in the {place} .",
        "negative": f"{told} the {one} {does.removesuffix('s')}ed by the {other} in the {place} .",
    }
