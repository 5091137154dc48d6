"""What the README, the guides and the help tell people to type: Python blocks, commands and options."""

import contextlib
import io
import re
import shlex
from pathlib import Path

from descend.cli import main

ROOT = Path(__file__).parents[2]
NOT_RUN = "# not run here: "
"""How a block begins whose commands need GPUs, hours or another program, with the reason."""

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_DESCEND = re.compile(r"^    ((?:descend|torchrun|accelerate launch) .*)$", re.MULTILINE)


def python_blocks(page: Path) -> list[str]:
    """A page's Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path, *, run: bool | None = None) -> list[str]:
    """The commands of a page that call ``descend``, in its indented blocks.

    Args:
        page: The page.
        run: Those of blocks that can be run here, or of the others; None for all.
    """
    blocks = _INDENTED.findall(_FENCED.sub("", page.read_text("utf-8")).replace("\\\n", " "))
    chosen = [block for block in blocks if run is None or block.strip().startswith(NOT_RUN) is not run]
    return [command for block in chosen for command in _DESCEND.findall(block)]


def words_of(command: str) -> list[str]:
    """The arguments of ``descend`` in a command, whoever launches it."""
    words = shlex.split(command, comments=True)
    return words[words.index("descend") + 1 :]


def help_of(*words: str) -> str:
    """What a command that ends with ``--help`` or ``--help-all`` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(words)
    return out.getvalue()
