"""Summaries and records, or a sweep → one page. Reads files and never imports torch."""

from descend.report.completions import write_completions
from descend.report.page import write_page
from descend.report.runs import RunView
from descend.report.sweeps import write_sweep

__all__ = ["RunView", "write_completions", "write_page", "write_sweep"]
