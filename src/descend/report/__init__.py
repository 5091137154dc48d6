"""Summaries and records → one page. Reads files and never imports torch."""

from descend.report.completions import write_completions
from descend.report.page import write_page
from descend.report.runs import Arm, Group, RunView, group_runs
from descend.report.tables import drafted, left_early

__all__ = [
    "Arm",
    "Group",
    "RunView",
    "drafted",
    "group_runs",
    "left_early",
    "write_completions",
    "write_page",
]
