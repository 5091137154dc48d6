"""A study's figures, tables, claims and page, from its ``cells.jsonl`` alone."""

from reproduction.report.claims import Claim
from reproduction.report.drawing import FIGURES
from reproduction.report.page import write_study

__all__ = ["FIGURES", "Claim", "write_study"]
