"""Summaries and records → one page. Reads files and never imports torch."""

from descend.report.completions import write_completions
from descend.report.page import write_page
from descend.report.runs import RunView

__all__ = ["RunView", "write_completions", "write_page"]
