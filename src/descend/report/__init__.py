"""Summaries and records → one page. Reads files and never imports torch."""

from descend.report.completions import write_completions
from descend.report.intervals import CONFIDENCE
from descend.report.page import write_page
from descend.report.runs import Arm, Group, RunView, group_runs

__all__ = ["CONFIDENCE", "Arm", "Group", "RunView", "group_runs", "write_completions", "write_page"]
