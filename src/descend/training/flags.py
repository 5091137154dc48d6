"""Types of the settings that a command line gives as text: α and the dual schedule.

`HfArgumentParser` calls a field's type to parse its flag. The types here are therefore parsers at run time, and for a
type checker the types of their results.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, SupportsIndex

from descend.core.targets import Steps, step_numbers
from descend.errors import InputError


def alpha_of(value: Steps | str) -> float | list[float]:
    """α as a number, or a list with one number per layer.

    Args:
        value: Python or numpy numbers, a tensor, or text such as ``0.3,0.2,0.1`` from a flag or from the config.json
            of an older version.

    Raises:
        InputError: If the value has another type, or the text is not numbers.
    """
    if not isinstance(value, str):
        return step_numbers(value)
    try:
        values = [float(number) for number in value.split(",")]
    except ValueError:
        raise InputError(f"alpha must be one number or one per layer, as 0.3,0.2,0.1; got {value!r}.") from None
    return values if len(values) > 1 else values[0]


def dual_every_of(value: object) -> int | Literal["epoch"]:
    """The dual schedule: a number of primal steps, or ``"epoch"``.

    Args:
        value: A whole number, ``"epoch"``, or the text of a number.

    Raises:
        InputError: If the value is anything else.
    """
    if value == "epoch":
        return "epoch"
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, SupportsIndex):
        return value.__index__()
    raise InputError(f"dual_every must be a number of steps or 'epoch'; got {value!r}.")


if TYPE_CHECKING:
    Alpha = float | list[float]
    DualEvery = int | Literal["epoch"]
else:

    class Alpha:
        """α from the text of a flag."""

        def __new__(cls, text: str) -> float | list[float]:
            """One number, or a list."""
            return _read(alpha_of, text)

    class DualEvery:
        """The dual schedule from the text of a flag."""

        def __new__(cls, text: str) -> int | Literal["epoch"]:
            """A number of steps, or ``"epoch"``."""
            return _read(dual_every_of, text)

    def _read(read: Callable[[str], object], text: str) -> object:
        try:
            return read(text)
        except InputError as error:  # argparse shows the message of this kind alone
            raise ArgumentTypeError(str(error).rstrip(".")) from None
