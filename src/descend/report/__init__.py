"""All words about results: a page of summaries and records or of a sweep, the terminal's lines, a model's card.

Reads files and never imports torch. A page needs the packages of the extra ``report``; the words need none.
"""

from typing import TYPE_CHECKING

from descend.extras import lazy_names

if TYPE_CHECKING:
    from descend.report.levels import ways_to_compare
    from descend.report.pages import write_completions, write_page, write_sweep

__all__ = ["ways_to_compare", "write_completions", "write_page", "write_sweep"]

_FILES = {
    "levels": ("ways_to_compare",),
    "pages": ("write_completions", "write_page", "write_sweep"),
}

__getattr__ = lazy_names("descend.report", _FILES)
