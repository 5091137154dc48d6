"""The generated texts: the same for the same seed, balanced, and no giveaway."""

import pytest

from descend.tasks.text import generate_pairs, generate_reviews
from descend.tasks.text.corpus import corpus


@pytest.mark.parametrize(("generate", "labels"), [(generate_reviews, 2), (generate_pairs, 3)])
def test_rows_are_reproducible_and_balanced_and_the_two_sides_differ(generate, labels):
    rows, sides = generate(600, 0), corpus(generate)
    assert rows[:50] == generate(50, 0) != generate(50, 1)
    shares = [sum(row["label"] == label for row in rows) / len(rows) for label in range(labels)]
    assert all(abs(share - 1 / labels) < 0.08 for share in shares)
    assert sides["train"].num_rows > sides["test"].num_rows > 0 and sides["train"][0] != sides["test"][0]


def test_no_word_gives_a_review_away():
    rows = generate_reviews(2000, 0)
    words = {word for row in rows for word in row["text"].split()}
    for word in words:
        labels = [row["label"] for row in rows if word in row["text"].split()]
        assert 0.08 < sum(labels) / len(labels) < 0.92, word
