"""Errors that Descend raises on purpose: expected, got, what to do."""

import shutil
from pathlib import Path


class InputError(ValueError):
    """Input that Descend can't use.

    The message is written for the person who gave the input: what was expected, what was got, and what
    to do. The command line prints it without a traceback.
    """


class Interrupted(Exception):
    """A run was asked to stop, and has saved where it is."""


class NonFiniteLossError(ArithmeticError):
    """A layer's loss is NaN or infinite: raised before any parameter or multiplier moves."""


class RanksDifferError(RuntimeError):
    """Processes that train one model hold different multipliers: raised on all of them, before any moves."""


class SaveError(Exception):
    """A file or folder of a run could not be written, for want of space or for a fault of the disk.

    What stood there before is as it was.
    """

    def __init__(self, path: Path, error: BaseException):
        said = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        try:
            free = f"; {shutil.disk_usage(path.parent).free / 1e6:,.1f} MB free on its disk"
        except OSError:
            free = ""
        super().__init__(f"{path} can't be written: {said.rstrip('.')}{free}.")


def reason(error: BaseException) -> str:
    """The first line of what a library says, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
