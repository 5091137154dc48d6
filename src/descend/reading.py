"""Files of unknown origin: read within bounds, or refused in words."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from descend.errors import InputError, reason

MOST_BYTES = 2**30
"""Of a file that is read at once."""

MOST_LINE = 2**24
"""Characters of a line."""

MOST_DEPTH = 64
"""Lists and objects of JSON in each other: Python's own readers and writers end near a thousand."""

PICKLES = frozenset({".bin", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"})
"""Suffixes of weights that are no safetensors, most of them pickles: never loaded from a stranger."""

FOLLOW_LINKS = "DESCEND_FOLLOW_LINKS"
"""The environment's variable by which a person says that links may lead out of a data set."""


@contextmanager
def opened(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """A UTF-8 text file to read; whatever goes wrong with it meanwhile is an `InputError` that names it."""
    try:
        if not path.is_file():  # opening a pipe would wait, and a device never ends
            raise InputError(f"{path} must be a file; it is {'none' if path.exists() else 'not there'}.")
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Convert it.") from None
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}. Check its permissions.") from None


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The whole of a text file.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        InputError: If it is not there, not UTF-8, or larger.
    """
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise InputError(f"{path} has {size} bytes; expected at most {most}. Split it.")
        return file.read(most)


def lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """The lines of a text file, one in memory at a time.

    Raises:
        InputError: If it is not there, not UTF-8, or a line is longer than `MOST_LINE`.
    """
    with opened(path, newline) as file:
        number = 0
        while line := file.readline(MOST_LINE + 1):
            number += 1
            if len(line) > MOST_LINE:
                raise InputError(f"{path}, line {number}, is longer than {MOST_LINE} characters. Correct or remove it.")
            yield line


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        InputError: If it is not there, too large, no JSON or too deep.
    """
    try:
        return parse_json(read_text(path))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{path} can't be read: it is not whole JSON: {reason(error)}. Was its download cut off?"
        ) from None


def json_lines(path: Path, *, appended: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file with one on each line, and their lines; empty lines are left out.

    Args:
        path: The file.
        appended: Whether a program writes it line by line: a last line that has no end was cut off, and is left out.

    Raises:
        InputError: If a line is no object, with its number.
    """
    for number, line in enumerate(lines(path), start=1):
        if not line.strip() or (appended and not line.endswith("\n")):
            continue
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            got = line.strip()[:60]
            raise InputError(f"{path}, line {number}, must be one JSON object; got {got!r}. Correct or remove it.")
        yield number, row


def parse_json(text: str) -> Any:
    """The content of JSON.

    Raises:
        ValueError: If it is no JSON, or deeper than `MOST_DEPTH`.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    level = [content]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return content
    raise ValueError("nested too deep")


def plain_text(value: Any) -> bool:
    """Whether a value of JSON is text that can be written again: half a surrogate pair can't."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_ways_out(root: Path, files: Iterable[Path]) -> None:
    """Refuse files that a link inside a data set's folder takes from outside it.

    The folder itself may be a link: a person has named it. What lies in it came with the data.

    Args:
        root: What the person has named.
        files: What is to be read, each in ``root``.

    Raises:
        InputError: If one leads out, naming it, unless `FOLLOW_LINKS` is set.
    """
    if os.environ.get(FOLLOW_LINKS):
        return
    home = root.resolve()
    folders: dict[Path, Path] = {}  # most files share theirs
    for file in files:
        if file.parent not in folders:
            folders[file.parent] = file.parent.resolve()
        target = file.resolve() if file.is_symlink() else folders[file.parent] / file.name
        if not target.is_relative_to(home):
            raise InputError(
                f"{file} leads out of {root}, to {target}. Put the data themselves there, name the folder that the "
                f"link leads to, or set {FOLLOW_LINKS}=1 if you made the link."
            )
