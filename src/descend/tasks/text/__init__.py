"""Text classification: reviews or pairs of sentences on disk, on the Hub or generated → tokens."""

from descend.tasks.text.classification import Classification
from descend.tasks.text.corpus import corpus, generate_pairs, generate_reviews
from descend.tasks.text.language import NextToken
from descend.tasks.text.sources import IMDB_LABELS, MNLI_LABELS, read_imdb, read_mnli
from descend.tasks.text.tokens import TextData, learn_tokenizer, load_tokenizer, split_off, token_counts, tokenize

__all__ = [
    "IMDB_LABELS",
    "MNLI_LABELS",
    "Classification",
    "NextToken",
    "TextData",
    "corpus",
    "generate_pairs",
    "generate_reviews",
    "learn_tokenizer",
    "load_tokenizer",
    "read_imdb",
    "read_mnli",
    "split_off",
    "token_counts",
    "tokenize",
]
