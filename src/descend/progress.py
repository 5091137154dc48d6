"""Progress of long work: a bar with the time left on a terminal, elsewhere a plain line every few seconds."""

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from threading import Event, Thread
from typing import TypeAlias, TypeVar

from tqdm import tqdm

QUIET = "TQDM_DISABLE"
"""The environment variable that turns progress off, tqdm's own; processes that this one starts inherit it."""

FIRST = 5.0
"""Seconds until the first plain line; work that ends within them prints none."""

EVERY = 10.0
"""Seconds between two plain lines."""

KNOWN = "{desc}: {n} of {total} {unit}s, {elapsed} gone, {remaining} left{postfix}"
UNKNOWN = "{desc}: {n} {unit}s, {elapsed} gone{postfix}"
"""The plain line where the total is not known, or too small."""

Progress: TypeAlias = tqdm

Item = TypeVar("Item")


class Lines(tqdm):
    """Progress as plain lines on stderr, which stay. It ends without one, as the result follows."""

    monitor_interval = 0  # no thread beside the work

    def refresh(self, nolock: bool = False, lock_args: object = None) -> None:
        """Print a line; not for `tqdm.write`, which asks by ``nolock`` to draw all bars again."""
        if not nolock:
            self.mininterval = EVERY
            self.bar_format = UNKNOWN if self.total is None or self.n > self.total else KNOWN
            print(self, file=sys.stderr, flush=True)

    def clear(self, *args: object, **settings: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Print nothing more."""
        self.disable = True


def is_quiet() -> bool:
    """Whether `QUIET` in the environment turns progress off, or another process of the run shows it."""
    return os.environ.get(QUIET, "0") not in ("", "0") or os.environ.get("RANK", "0") != "0"


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
    return Lines(**work, delay=FIRST, mininterval=FIRST, miniters=1, smoothing=0)


def counted(items: Iterable[Item], about: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """Give items one by one, and show how many are done.

    Args:
        items: The units of the work.
        about: What is done with each.
        unit: What an item is called, in the singular.
        total: Their number, if they do not know it.
    """
    known = len(items) if total is None and isinstance(items, Sized) else total
    with progress(known, about, unit, leave=False) as bar:
        for item in items:
            yield item
            bar.update()


@contextmanager
def waiting(about: str) -> Iterator[None]:
    """Show the seconds of work without units that can be counted; the first line comes before it starts."""
    if not is_quiet():
        print(about, file=sys.stderr, flush=True)
    over = Event()
    with progress(None, about, "second", leave=False) as bar:

        def tick() -> None:
            while not over.wait(1):
                bar.update()

        thread = Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextmanager
def silent() -> Iterator[None]:
    """Hide warnings and lines of libraries on what they lack and do."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
