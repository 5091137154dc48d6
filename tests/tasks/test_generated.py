"""Generated texts and scenes: the same for the same seed, balanced, no giveaway, and as varied as real ones."""

from collections import defaultdict

import numpy as np
import pytest

from descend.tasks.text import generate_instructions, generate_pairs, generate_reviews
from descend.tasks.text.corpus import corpus
from descend.tasks.video import SIZE, generate_scenes

SAMPLES = {
    "reviews": generate_reviews,
    "pairs": generate_pairs,
    "instructions": lambda count, seed: generate_instructions(count, seed).rows.to_list(),
    "scenes": lambda count, seed: [scene.tolist() for scene in generate_scenes(count, 5, seed)],
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_depend_on_the_seed_and_not_on_how_many_follow(kind):
    few, many, others = (SAMPLES[kind](count, seed) for count, seed in ((5, 7), (8, 7), (5, 8)))
    assert few == many[:5] and few != others and few[0] != few[1]


@pytest.mark.parametrize(("generate", "labels"), [(generate_reviews, 2), (generate_pairs, 3)])
def test_classes_are_balanced_and_the_two_sides_differ(generate, labels):
    rows, sides = generate(600, 0), corpus(generate)
    shares = np.bincount([row["label"] for row in rows]) / len(rows)
    assert np.abs(shares - 1 / labels).max() < 0.08
    assert sides["train"].num_rows > sides["test"].num_rows > 0 and sides["train"][0] != sides["test"][0]


def test_no_word_gives_a_review_away():
    labels = defaultdict(list)
    for row in generate_reviews(2000, 0):
        for word in set(row["text"].split()):
            labels[word].append(row["label"])
    assert all(0.08 < np.mean(each) < 0.92 for each in labels.values())


@pytest.mark.parametrize("seed", range(3))
def test_contrast_and_change_are_those_of_real_surveillance(seed):
    scenes = np.stack(generate_scenes(8, 30, seed))
    assert scenes.shape == (8, 30, SIZE, SIZE) and scenes.dtype == np.uint8 and 35 < np.std(scenes) < 55
    change = (scenes[:, 4:].astype(np.float32) - scenes[:, :-4]).reshape(-1, 10, 16, 10, 16)
    found = np.quantile(change.std(axis=(2, 4)), [0.9, 0.95, 0.99])
    np.testing.assert_allclose(found, [21, 29, 37], rtol=0.25)  # of Ped2's 17 clips
