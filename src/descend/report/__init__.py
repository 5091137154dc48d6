"""Summaries and records, or a sweep → one page. Reads files and never imports torch."""

from descend.report.pages import write_completions, write_page, write_sweep
from descend.report.runs import RunView

__all__ = ["RunView", "write_completions", "write_page", "write_sweep"]
