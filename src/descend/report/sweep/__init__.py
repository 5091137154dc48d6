"""A sweep's page, from its ``sweep.json`` alone."""

from descend.report.sweep.page import write_sweep

__all__ = ["write_sweep"]
