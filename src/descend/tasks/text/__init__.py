"""Text classification: reviews or pairs of sentences on disk, on the Hub or generated → tokens."""

from descend.tasks.text.classification import Classification
from descend.tasks.text.corpus import corpus, generate_pairs, generate_reviews
from descend.tasks.text.sources import IMDB_LABELS, MNLI_LABELS, read_imdb, read_mnli

__all__ = [
    "IMDB_LABELS",
    "MNLI_LABELS",
    "Classification",
    "corpus",
    "generate_pairs",
    "generate_reviews",
    "read_imdb",
    "read_mnli",
]
