"""A study's figures, tables, claims and page, from its ``cells.jsonl`` alone."""

from descend.report.study.claims import Claim
from descend.report.study.drawing import FIGURES
from descend.report.study.page import write_study

__all__ = ["FIGURES", "Claim", "write_study"]
