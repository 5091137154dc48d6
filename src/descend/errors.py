"""Errors that Descend raises on purpose. Their messages say what was expected, what was got and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """Input that Descend can't use; the command line prints the message without a traceback."""


class SampleError(InputError):
    """A sample that a model can't take.

    Args:
        message: What was expected, what was got and what to do.
        sample: Its number in the data set.
    """

    def __init__(self, message: str, sample: int):
        super().__init__(message)
        self.sample = sample


class MissingPackageError(InputError, ImportError):
    """An optional package is not installed; the message says what to install."""


class Interrupted(Exception):
    """A run or a sweep stopped before its end; the same command resumes it."""


class Unsaved(KeyboardInterrupt):
    """A run stopped after its last step, and its settings save no checkpoint to resume from."""


class NonFiniteLossError(ArithmeticError):
    """A loss, gradient, parameter or multiplier is NaN or infinite. Raised before any multiplier moves."""


class RanksDifferError(RuntimeError):
    """Ranks of one run hold different multipliers. Raised on all ranks before any multiplier moves."""


class SaveError(Exception):
    """A file or folder of a run could not be written, because of a full disk or an I/O error; it is unchanged."""

    @classmethod
    def at(cls, path: Path, error: BaseException) -> "SaveError":
        """The error for a file or folder."""
        cause = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        return cls(f"{path} can't be written: {cause.rstrip('.')}.")


def refuse(*rules: tuple[bool, str]) -> None:
    """Raise the message of the first rule that is broken.

    Args:
        rules: Whether each is broken, and what to say then.

    Raises:
        InputError: If one is broken.
    """
    for broken, message in rules:
        if broken:
            raise InputError(message)


@contextmanager
def refusing(what: str, remedy: str = "", passing: type[Exception] = InputError) -> Iterator[None]:
    """Turn any exception inside the ``with`` block into an `InputError`.

    Args:
        what: What can't be used, the beginning of a sentence that ends with the message of the error.
        remedy: What to do, another sentence.
        passing: Errors that are raised as they are, because their message is whole.

    Raises:
        InputError: In place of any other exception.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise InputError(f"{what}: {kind}{reason(error).rstrip('.')}. {remedy}".rstrip()) from error


def reason(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
