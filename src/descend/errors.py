"""Errors that Descend raises on purpose: expected, got, what to do."""

import shutil
from pathlib import Path


class InputError(ValueError):
    """Input that Descend can't use.

    The message is written for the person who gave the input: what was expected, what was got, and what
    to do. The command line prints it without a traceback.
    """


class MissingPackageError(InputError, ImportError):
    """An optional package is not installed; the message says what to install."""


class Interrupted(Exception):
    """A run or a sweep stopped before its end, and the same command goes on from what is saved."""


class Unsaved(KeyboardInterrupt):
    """A run was stopped after its last step, and its settings keep no checkpoint to go on from."""


class NonFiniteLossError(ArithmeticError):
    """A loss, a gradient, a parameter or a multiplier is NaN or infinite: raised before any multiplier moves."""


class RanksDifferError(RuntimeError):
    """Processes that train one model hold different multipliers: raised on all of them, before any moves."""


class StudyError(Exception):
    """Cells of a study could not be carried out; each was named when it failed."""


class SaveError(Exception):
    """A file or folder of a run could not be written, for want of space or for a fault of the disk.

    What stood there before is as it was.
    """

    @classmethod
    def at(cls, path: Path, error: BaseException) -> "SaveError":
        """What went wrong with a file or folder, and how much room its disk has."""
        said = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        try:
            free = f"; {shutil.disk_usage(path.parent).free / 1e6:,.1f} MB free on its disk"
        except OSError:
            free = ""
        return cls(f"{path} can't be written: {said.rstrip('.')}{free}.")


def reason(error: BaseException) -> str:
    """The first line of what a library says, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
