"""All words about results: a page of summaries and records or of a sweep, the terminal's lines, a model's card.

Reads files and never imports torch. A page needs the packages of the extra ``report``; the words need none.
"""

from typing import TYPE_CHECKING

from descend.extras import lazy_names

if TYPE_CHECKING:
    from descend.report.card import card_of_model, card_of_run
    from descend.report.levels import ways_to_compare
    from descend.report.pages import write_completions, write_page, write_sweep
    from descend.report.words import certificate_sentence, verdict_sentence

__all__ = [
    "card_of_model",
    "card_of_run",
    "certificate_sentence",
    "verdict_sentence",
    "ways_to_compare",
    "write_completions",
    "write_page",
    "write_sweep",
]

_FILES = {
    "card": ("card_of_model", "card_of_run"),
    "levels": ("ways_to_compare",),
    "pages": ("write_completions", "write_page", "write_sweep"),
    "words": ("certificate_sentence", "verdict_sentence"),
}

__getattr__ = lazy_names("descend.report", _FILES)
