"""Read untrusted files: bounded in size, and an `InputError` for anything that is wrong."""

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from descend.errors import InputError, refusing

MOST_BYTES = 2**30
"""Largest file that is read as a whole."""

MOST_LINE = 2**24
"""Longest line, in characters."""

MOST_DEPTH = 64
"""Deepest nesting of JSON; Python's own reader and writer fail near a thousand."""

MOST_RECORD = 2**27
"""Largest file of a run, such as a summary, in bytes."""

MOST_CONTAINERS, LEAST_BYTES = 2**20, 64
"""Lists and objects that JSON may hold: so many, or one for so many bytes. An empty one takes 64 bytes of memory."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]')
"""A string of JSON, or the beginning of a list or an object."""

MOST_PIXELS = 2**26
"""Most pixels of a picture or a frame on disk: twice those of 8K video."""

PICKLES = frozenset({".bin", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"})
"""Suffixes of weight files that are never loaded: most are pickles, which can run code."""

LITTER = frozenset({"__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini"})
"""What macOS's archives, Synology's disks and Windows add to data; some of it is named like the data."""

CLOSE = 0.75
"""The least similarity, of at most 1, by which a name is suggested for a mistyped one."""

MOST_LETTERS = 2
"""Letters that a misspelt file or folder has too many or too few: ``bert-run`` is not the model ``bert``."""

FOLLOW_LINKS = "DESCEND_FOLLOW_LINKS"
"""Environment variable that allows links to lead out of a data set."""


class TwiceNamedError(ValueError):
    """A JSON object has two entries of one name, of which Python's reader would drop the first."""


def refuse_file(folder: Path, choice: str) -> None:
    """Refuse to write into a folder where a file stands in its place, or in that of a folder above.

    Args:
        folder: The folder, which need not exist.
        choice: What to choose instead, such as "another output_dir".

    Raises:
        InputError: If there is such a file, or the folder's name can't be written into a run's files.
    """
    utf8_path(folder)
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"expected a folder to write to; {place} is a file. Choose {choice}.")


@contextmanager
def opened(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a UTF-8 text file; an error while it is open becomes an `InputError` that names the file."""
    try:
        if not path.is_file():  # opening a pipe would block, and a device has no end
            raise InputError(f"{path} must be a file; it is {'not one' if path.exists() else 'not there'}.")
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Convert it.") from None
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}. Check its permissions.") from None


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Read a whole text file.

    Args:
        path: The file.
        most: Largest size in bytes.

    Raises:
        InputError: If it is missing, not UTF-8, or larger.
    """
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise InputError(f"{path} has {size} bytes; expected at most {most}. Split it.")
        return file.read(most)


def lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """Read the lines of a text file, one in memory at a time.

    Raises:
        InputError: If it is missing, not UTF-8, or a line is longer than `MOST_LINE`.
    """
    with opened(path, newline) as file:
        number = 0
        while line := file.readline(MOST_LINE + 1):
            number += 1
            if len(line) > MOST_LINE:
                raise InputError(f"{path}, line {number}, is longer than {MOST_LINE} characters. Correct or remove it.")
            yield line


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        most: Largest size in bytes.

    Raises:
        InputError: If it is missing, too large, not JSON, or nested too deep.
    """
    with refusing(f"{path} can't be read: it is not whole JSON", "Was its download cut off?"):
        try:
            return parse_json(read_text(path, most))
        except TwiceNamedError as error:
            raise InputError(f"{path}: {error}. Rename or remove one.") from None


def json_lines(path: Path, *, appended: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a file with one JSON object per line: (line number, object). Empty lines are skipped.

    Args:
        path: The file.
        appended: Whether the file is written line by line, so that a last line without a newline was cut off and is
            skipped.

    Raises:
        InputError: If a line is not an object; the message has its number.
    """
    for number, line in enumerate(lines(path), start=1):
        if not line.strip() or (appended and not line.endswith("\n")):
            continue
        try:
            row = parse_json(line)
        except TwiceNamedError as error:
            raise InputError(f"{path}, line {number}: {error}. Rename or remove one.") from None
        except ValueError:
            row = None
        if not isinstance(row, dict):
            got = line.strip()[:60]
            raise InputError(f"{path}, line {number}, must be one JSON object; got {got!r}. Correct or remove it.")
        yield number, row


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read a file that holds a JSON list of objects, or one JSON object a line, whatever its name says.

    Yields:
        Each object, with its place for error messages: "FILE, row 3" of a list, "FILE, line 3" of lines.

    Raises:
        InputError: If it is neither; the message has the place.
    """
    with opened(path) as file:
        while (first := file.read(1)).isspace():
            pass
    if first != "[":
        for number, row in json_lines(path):
            yield f"{path}, line {number}", row
        return
    for number, row in enumerate(read_json(path)):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}, must be an object; got {repr(row)[:60]}. Correct or remove it.")
        yield f"{path}, row {number}", row


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If it is not JSON, has two entries of one name, is nested deeper than `MOST_DEPTH`, or holds more
            lists and objects than `MOST_CONTAINERS` allows.
    """
    most = max(MOST_CONTAINERS, len(text) // LEAST_BYTES)
    if text.count("[") + text.count("{") > most:  # count those outside strings
        begun = (match for match in _TOKEN.finditer(text) if match[0] in "[{")
        if next(islice(begun, most, None), None) is not None:
            raise ValueError(f"it has more than {most} lists and objects")
    try:
        content = json.loads(text, object_pairs_hook=_once)
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


def _once(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose entries must have different names."""
    content = dict(entries)
    if len(content) < len(entries):
        names = [name for name, _ in entries]
        raise TwiceNamedError(f"two entries are named {next(name for name in names if names.count(name) > 1)!r}")
    return content


def is_litter(path: Path) -> bool:
    """Whether a path's names, below the folder that a person gave, show it to be no data: hidden, or in `LITTER`."""
    return any(name.startswith(".") or name in LITTER for name in path.parts)


def shown(path: Path | str) -> str:
    r"""A path as text that UTF-8 can encode: a byte of another encoding becomes an escape such as \xe9."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def utf8_path(path: Path) -> Path:
    """The absolute path, which a run's files hold as text.

    Raises:
        InputError: If it is not UTF-8.
    """
    absolute = path.expanduser().absolute()
    if not plain_text(str(absolute)):
        raise InputError(f"expected a path in UTF-8; got {shown(absolute)}. Rename it, as the convmv tool does.")
    return absolute


def plain_text(value: Any) -> bool:
    """Whether a JSON value is text that UTF-8 can encode; a lone surrogate can't be."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def is_path(source: str | Path) -> bool:
    """Whether a name that may be one on the Hub is meant as a path on this machine: then no Hub is asked for it.

    So is one that exists, one that looks like a path, one in a folder that exists, and one that `suggestion` knows.
    """
    text, path = str(source), Path(source).expanduser()
    looks = path.is_absolute() or text.startswith((".", "~")) or text.endswith("/") or "\\" in text
    inside = len(path.parts) > 2 or (len(path.parts) == 2 and Path(path.parts[0]).is_dir())
    return path.exists() or looks or inside or bool(suggestion(source))


def suggestion(source: str | Path) -> str:
    """A sentence with the name in the working directory that a single word misspells; empty if it seems to be none."""
    word = str(source)
    if len(Path(word).parts) != 1 or Path(word).exists():
        return ""
    names = [path.name for path in Path().iterdir() if abs(len(path.name) - len(word)) <= MOST_LETTERS]
    close = difflib.get_close_matches(word, names, n=1, cutoff=CLOSE)
    return (
        f" Did you mean {close[0]}? A name on the Hub that resembles it needs its owner: OWNER/NAME." if close else ""
    )


def is_inside(root: Path, path: Path) -> bool:
    """Whether a path, with the links in it followed, lies in a folder; the folder itself may be a link."""
    return path.resolve().is_relative_to(root.resolve())


def refuse_large(size: tuple[int, int], what: str) -> None:
    """Refuse a picture of more than `MOST_PIXELS`, by the width and height in its header.

    Raises:
        InputError: If it is larger.
    """
    if size[0] * size[1] > MOST_PIXELS:
        raise InputError(
            f"{what} is {size[0]}x{size[1]}, and would take as many bytes and more; expected at most {MOST_PIXELS} "
            "pixels. Scale it down."
        )


def refuse_ways_out(root: Path, files: Iterable[Path]) -> None:
    """Raise an error if links inside a data set's folder lead outside it.

    The folder itself may be a link, because the user named it. Links inside it came with the data.

    Args:
        root: The folder that the user named.
        files: The files to read, each in ``root``.

    Raises:
        InputError: If a file lies outside and `FOLLOW_LINKS` is not set; the message names it.
    """
    if os.environ.get(FOLLOW_LINKS):
        return
    home = root.resolve()
    resolved = cache(Path.resolve)  # most files share a folder
    for file in files:
        target = file.resolve() if file.is_symlink() else resolved(file.parent) / file.name
        if not target.is_relative_to(home):
            raise InputError(
                f"{file} leads out of {root}, to {target}. Put the data themselves there, name the folder that the "
                f"link leads to, or set {FOLLOW_LINKS}=1 if you made the link."
            )
