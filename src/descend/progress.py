"""Progress of long work: a bar with the time left on a terminal, elsewhere a plain line every few seconds."""

import os
import sys
from typing import TypeAlias

from tqdm import tqdm

QUIET = "TQDM_DISABLE"
"""The environment variable that turns progress off, tqdm's own; processes that this one starts inherit it."""

EVERY = 10.0
"""Seconds between two plain lines; work that ends within them prints none."""

KNOWN = "{desc}: {n} of {total} {unit}s, {elapsed} gone, {remaining} left{postfix}"
UNKNOWN = "{desc}: {n} {unit}s, {elapsed} gone{postfix}"
"""The plain line where the total is not known, or too small."""

Progress: TypeAlias = tqdm


class Lines(tqdm):
    """Progress as plain lines on stderr, which stay. It ends without one, as the result follows."""

    monitor_interval = 0  # no thread beside the work

    def refresh(self, nolock: bool = False, lock_args: object = None) -> None:
        """Print a line; not for `tqdm.write`, which asks by ``nolock`` to draw all bars again."""
        if not nolock:
            self.bar_format = UNKNOWN if self.total is None or self.n > self.total else KNOWN
            print(self, file=sys.stderr, flush=True)

    def clear(self, *args: object, **settings: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Print nothing more."""
        self.disable = True


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
    work = {"total": total, "desc": about, "unit": unit, "initial": initial, "disable": quiet or is_quiet()}
    if sys.stderr.isatty():
        return tqdm(**work, leave=leave, dynamic_ncols=True)
    # Without smoothing the time left is that at the mean rate.
    return Lines(**work, delay=EVERY, mininterval=EVERY, miniters=1, smoothing=0)
