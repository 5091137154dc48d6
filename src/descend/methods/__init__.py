"""The methods of training, one file each, found by their files. They are imported without torch."""

from importlib import import_module
from pkgutil import iter_modules

from descend.methods.base import GREY, Method, Style

__all__ = ["CLASSES", "GREY", "Method", "Style"]

_FILES = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
_NAMED = [
    kind
    for file in _FILES
    for kind in vars(file).values()
    if isinstance(kind, type) and issubclass(kind, Method) and "name" in vars(kind) and kind.__module__ == file.__name__
]

CLASSES: dict[str, type[Method]] = {
    kind.name: kind for kind in sorted(_NAMED, key=lambda kind: (kind.order, kind.name))
}
"""Name → class, in the order of the command line's list."""
