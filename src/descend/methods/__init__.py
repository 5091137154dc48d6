"""The methods of training, one file each, found by their files. They are imported without torch."""

from descend.extras import named_classes
from descend.methods.base import GREY, Method, Style

__all__ = ["CLASSES", "GREY", "Method", "Style"]

CLASSES: dict[str, type[Method]] = named_classes(__name__, __path__, Method)
"""Name → class, in the order of the command line's list."""
