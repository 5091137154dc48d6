"""A study's figures, tables, claims and page, from its ``cells.jsonl`` alone."""

from descend.paper.report.claims import Claim
from descend.paper.report.drawing import FIGURES
from descend.paper.report.page import write_study

__all__ = ["FIGURES", "Claim", "write_study"]
