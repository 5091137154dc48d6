"""Summaries and records → one page. Reads files and never imports torch."""

from descend.report.completions import write_completions
from descend.report.figures import LOG_AXIS, band, layer_colours, plain_layout, plain_text
from descend.report.frames import Frames, Slider, pictures_view
from descend.report.intervals import CONFIDENCE, GroupScores
from descend.report.page import write_page
from descend.report.rendering import write_interactive, write_whole
from descend.report.runs import METHOD_NAMES, STYLES, Arm, Group, RunView, Style, format_alpha, group_runs

__all__ = [
    "CONFIDENCE",
    "LOG_AXIS",
    "METHOD_NAMES",
    "STYLES",
    "Arm",
    "Frames",
    "Group",
    "GroupScores",
    "RunView",
    "Slider",
    "Style",
    "band",
    "format_alpha",
    "group_runs",
    "layer_colours",
    "pictures_view",
    "plain_layout",
    "plain_text",
    "write_completions",
    "write_interactive",
    "write_page",
    "write_whole",
]
