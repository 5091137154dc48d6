"""Progress of long work: a bar with the time left on a terminal, elsewhere a plain line every few seconds."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TypeAlias

from tqdm import tqdm

QUIET = "TQDM_DISABLE"
"""The environment variable that turns progress off, tqdm's own; processes that this one starts inherit it."""

EVERY = 10.0
"""Seconds between two plain lines."""


class Lines(AbstractContextManager["Lines"]):
    """Progress as plain lines on stderr; work that ends within `EVERY` seconds prints none.

    Args:
        total: The number of units of the whole work; None if it is unknown.
        about: What is done, such as ``training``.
        unit: The unit, in the singular.
        initial: The number of units that were done before.
        quiet: Print nothing.
    """

    def __init__(self, total: int | None, about: str, unit: str, initial: int = 0, quiet: bool = False):
        self.total, self.about, self.unit, self.initial, self.quiet = total, about, unit, initial, quiet
        self.n = initial
        self._beside = ""
        self._began = self._printed = time.monotonic()

    def update(self, n: float | None = 1) -> None:
        """Count more units as done."""
        self.n += int(n or 0)
        now = time.monotonic()
        if not self.quiet and now - self._printed >= EVERY:
            self._printed = now
            print(self._line(now - self._began), file=sys.stderr, flush=True)

    def set_postfix(self, values: Mapping[str, object]) -> None:
        """Set values to print at the end of a line, by name."""
        self._beside = "".join(f", {name} {value}" for name, value in values.items())

    def close(self) -> None:
        """End; it prints nothing, as the result follows."""

    def __exit__(self, *error: object) -> None:
        """Do nothing, as in `close`."""

    def _line(self, gone: float) -> str:
        of, left, done = "", "", self.n - self.initial
        if self.total is not None:
            of = f" of {self.total}"
            left = f", {tqdm.format_interval((self.total - self.n) * gone / done)} left" if done else ""
        return f"{self.about}: {self.n}{of} {self.unit}s, {tqdm.format_interval(gone)} gone{left}{self._beside}"


Progress: TypeAlias = tqdm | Lines


def is_quiet() -> bool:
    """Whether `QUIET` in the environment turns progress off."""
    return os.environ.get(QUIET, "0") not in ("", "0")


def progress(
    total: int | None, about: str, unit: str, *, initial: int = 0, leave: bool = True, quiet: bool = False
) -> Progress:
    """Show the progress of long work, as a context manager or until its `close`.

    Args:
        total: The number of units of the whole work; None if it is unknown.
        about: What is done, such as ``training``.
        unit: The unit, in the singular.
        initial: The number of units that were done before.
        leave: Whether a terminal keeps the bar at the end.
        quiet: Show nothing; so does `QUIET` in the environment.
    """
    quiet = quiet or is_quiet()
    if quiet or not sys.stderr.isatty():
        return Lines(total, about, unit, initial, quiet)
    return tqdm(total=total, desc=about, unit=unit, initial=initial, leave=leave, dynamic_ncols=True, disable=False)
