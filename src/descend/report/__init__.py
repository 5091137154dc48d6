"""Summaries and records, or a sweep → one page. Reads files and never imports torch."""

from descend.report.levels import ways_to_compare
from descend.report.pages import write_completions, write_page, write_sweep
from descend.report.runs import RunView

__all__ = ["RunView", "ways_to_compare", "write_completions", "write_page", "write_sweep"]
