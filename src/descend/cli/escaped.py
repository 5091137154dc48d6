"""What a terminal shows: control characters of names and files stand as escapes, and command it nothing."""

import re
from typing import Any, TextIO

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but for tabs and the ends of lines, and those that turn the direction of text."""

MOVES = re.compile(r"(?:\r|\n|\x1b\[A)*")
"""What bars of progress write between their texts."""


class Escaped:
    """A text stream in front of another one, in which control characters become escapes.

    Args:
        stream: The other one, such as `sys.stderr`.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        if not MOVES.fullmatch(text):
            text = CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
