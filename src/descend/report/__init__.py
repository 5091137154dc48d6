"""Summaries and records → one page. Reads files and never imports torch."""

from descend.report.completions import write_completions
from descend.report.figures import LOG_AXIS, band, layer_colours, plain_layout, plain_text
from descend.report.frames import Frames
from descend.report.intervals import CONFIDENCE, RESAMPLES, Draws, GroupScores, combine, draws
from descend.report.page import write_page
from descend.report.rendering import write_interactive, write_whole
from descend.report.runs import METHOD_NAMES, STYLES, Arm, Group, RunView, Style, format_alpha, group_runs
from descend.report.viewer import pictures_view
from descend.report.views import PicturesView, Slider

__all__ = [
    "CONFIDENCE",
    "LOG_AXIS",
    "METHOD_NAMES",
    "RESAMPLES",
    "STYLES",
    "Arm",
    "Draws",
    "Frames",
    "Group",
    "GroupScores",
    "PicturesView",
    "RunView",
    "Slider",
    "Style",
    "band",
    "combine",
    "draws",
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
