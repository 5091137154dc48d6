"""Text classification and language modelling: tasks, and data from disk, the Hub or a generator.

The tasks load at once. Code that reads data sets loads on first use: it needs the extra `text`.
"""

from typing import TYPE_CHECKING

from descend.extras import lazy_names
from descend.tasks.text.classification import Classification, QuestionAnswering, TokenClassification
from descend.tasks.text.language import NextToken

if TYPE_CHECKING:
    from descend.tasks.text.corpus import generate_pairs, generate_reviews
    from descend.tasks.text.instructions import (
        Instructions,
        by_prompt,
        encode_prompt,
        generate_instructions,
        prompt,
        read_instructions,
        tokenize_instructions,
    )
    from descend.tasks.text.sources import IMDB_LABELS, MNLI_LABELS, read_imdb, read_labelled, read_mnli
    from descend.tasks.text.tokens import learn_tokenizer, load_tokenizer, token_counts, tokenize

__all__ = [
    "IMDB_LABELS",
    "MNLI_LABELS",
    "Classification",
    "Instructions",
    "NextToken",
    "QuestionAnswering",
    "TokenClassification",
    "by_prompt",
    "encode_prompt",
    "generate_instructions",
    "generate_pairs",
    "generate_reviews",
    "learn_tokenizer",
    "load_tokenizer",
    "prompt",
    "read_imdb",
    "read_instructions",
    "read_labelled",
    "read_mnli",
    "token_counts",
    "tokenize",
    "tokenize_instructions",
]

_MODULES = {
    "corpus": ("generate_pairs", "generate_reviews"),
    "instructions": (
        "Instructions",
        "by_prompt",
        "encode_prompt",
        "generate_instructions",
        "prompt",
        "read_instructions",
        "tokenize_instructions",
    ),
    "sources": ("IMDB_LABELS", "MNLI_LABELS", "read_imdb", "read_labelled", "read_mnli"),
    "tokens": ("learn_tokenizer", "load_tokenizer", "token_counts", "tokenize"),
}


__getattr__ = lazy_names("descend.tasks.text", _MODULES)
