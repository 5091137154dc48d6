"""Errors that Descend raises on purpose: expected, got, what to do."""


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


def reason(error: BaseException) -> str:
    """The first line of what a library says, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
