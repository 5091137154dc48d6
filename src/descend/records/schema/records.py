"""The rows of ``records.jsonl``."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from descend import reading
from descend.records.folder import finite
from descend.records.schema.base import Number, Part, parse


class Record(Part):
    """A row of records: the value of one metric at one layer and step.

    Attributes:
        run: The run's name.
        step: The training step.
        split: ``train``, ``validation``, ``validation NAME`` or ``test``.
        layer: 0 … L; for multipliers 0 is the cap.
        noise: γ.
        metric: The metric's name.
        value: Its value.
    """

    run: str
    step: int = Field(ge=0, le=2**53)
    split: str
    layer: int
    noise: float | None
    metric: str
    value: Number

    def line(self) -> str:
        """The row as a line of the file."""
        return json.dumps(finite(self.model_dump())) + "\n"


def read_records(path: Path) -> Iterator[Record]:
    """Read ``records.jsonl`` row by row; a last line that was cut off, as by a kill, is left out.

    Raises:
        InputError: If another line is not a row of records, with its number.
    """
    for number, row in reading.json_lines(path, appended=True):
        yield parse(Record, row, f"{path}, line {number},", "Correct or remove it.")
