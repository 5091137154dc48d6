"""Generated reviews: in a folder, and in tokens."""

from pathlib import Path

from descend.tasks.text import generate_reviews, learn_tokenizer


def review_tokenizer():
    """A tokenizer whose words are those of the generated reviews."""
    return learn_tokenizer(row["text"] for row in generate_reviews(200, 0))


def samples(tokenizer, count, seed):
    """Generated reviews in tokens, with labels."""
    return [
        {**tokenizer(row["text"], return_token_type_ids=False), "labels": row["label"]}
        for row in generate_reviews(count, seed)
    ]


def review_folder(folder: Path) -> Path:
    """Write 60 generated reviews a side into a folder like aclImdb; returns it."""
    for seed, side in enumerate(("train", "test")):
        for number, row in enumerate(generate_reviews(60, seed)):
            file = folder / side / ("neg", "pos")[row["label"]] / f"{number}_5.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(row["text"])
    return folder
