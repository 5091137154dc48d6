"""Texts on disk, on the Hub or generated → tokens: to classify, or to go on with."""

from descend.tasks.text.classification import Classification
from descend.tasks.text.corpus import corpus, generate_pairs, generate_reviews
from descend.tasks.text.instructions import (
    Instructions,
    encode_prompt,
    generate_instructions,
    prompt,
    read_instructions,
    tokenize_instructions,
)
from descend.tasks.text.language import NextToken
from descend.tasks.text.sources import IMDB_LABELS, MNLI_LABELS, read_imdb, read_mnli
from descend.tasks.text.tokens import TextData, learn_tokenizer, load_tokenizer, split_off, token_counts, tokenize

__all__ = [
    "IMDB_LABELS",
    "MNLI_LABELS",
    "Classification",
    "Instructions",
    "NextToken",
    "TextData",
    "corpus",
    "encode_prompt",
    "generate_instructions",
    "generate_pairs",
    "generate_reviews",
    "learn_tokenizer",
    "load_tokenizer",
    "prompt",
    "read_imdb",
    "read_instructions",
    "read_mnli",
    "split_off",
    "token_counts",
    "tokenize",
    "tokenize_instructions",
]
