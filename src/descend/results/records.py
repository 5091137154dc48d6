"""The rows of ``records.jsonl``, appended while a run trains."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_core import to_jsonable_python

from descend import reading
from descend.errors import InputError, SaveError
from descend.results.base import RECORDS_FILE, Number, Part, parse
from descend.results.folder import is_foreign, list_appended, put, set_aside
from descend.writing import appending, flush

History = dict[int, dict[int, float]]
"""Layer → step → value."""


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


def read_records(path: Path) -> Iterator[Record]:
    """Read ``records.jsonl`` row by row; a last line that was cut off, as by a kill, is left out.

    Raises:
        InputError: If another line is not a row of records, with its number.
    """
    for number, row in reading.json_lines(path, appended=True):
        yield parse(Record, row, f"{path}, line {number}", "Correct or remove it.")


def multiplier_history(records: Iterable[Record], depth: int) -> History:
    """The multipliers over time by layer, 0 the cap's.

    A resumed run may have written rows of a step twice; the later ones count.

    Args:
        records: Rows of ``records.jsonl``.
        depth: L.

    Raises:
        InputError: If a row is of a layer that the run does not have.
    """
    layers: History = {}
    for row in records:
        if row.split == "train" and row.metric == "multiplier":
            if not 0 <= row.layer <= depth:
                raise InputError(
                    f"{RECORDS_FILE} of run {row.run} must have multipliers of layers 0 to {depth}; got layer "
                    f"{row.layer}. Remove its row."
                )
            layers.setdefault(row.layer, {})[row.step] = row.value
    return {layer: dict(sorted(values.items())) for layer, values in sorted(layers.items())}


class Records:
    """Append-only rows in a run's ``records.jsonl``.

    Args:
        path: The file; the first row makes it.
        run: The run's name, the same in every row.
    """

    def __init__(self, path: Path, run: str):
        self.path, self.run = path, run
        self._written: set[tuple[int, str, str]] = set()  # (step, split, metric) of the last step

    def rows(
        self, values: Mapping[str, Iterable[float]], *, step: int, split: str, noise: float | None, first: int = 0
    ) -> None:
        """Append one row per metric and layer, unless the metric has rows at this step and split already.

        Args:
            values: For each metric its values by layer.
            step: The training step.
            split: ``train``, ``validation``, ``validation NAME`` or ``test``.
            noise: γ.
            first: The layer of each metric's first value.

        Raises:
            SaveError: If the file can't be written.
        """
        if self._written and step > next(iter(self._written))[0]:
            self._written.clear()  # steps only grow
        lines = []
        for metric, series in values.items():
            if (step, split, metric) in self._written:
                continue
            self._written.add((step, split, metric))
            for layer, value in enumerate(series, start=first):
                row = Record(
                    run=self.run, step=step, split=split, layer=layer, noise=noise, metric=metric, value=float(value)
                )
                lines.append(json.dumps(to_jsonable_python(row.model_dump(), inf_nan_mode="null")) + "\n")
        try:
            if not self.path.exists():
                list_appended(self.path)
            with appending(self.path) as file:
                file.writelines(lines)
        except OSError as error:
            raise SaveError.at(self.path, error) from error

    def truncate_after(self, step: int) -> None:
        """Drop rows later than ``step``, which a resumed run measures again, and a half-written last line."""
        self._written.clear()
        if not self.path.exists():
            return
        lines, strange = [], False
        *whole, rest = self.path.read_bytes().split(b"\n")
        for line in [*whole, rest]:
            try:
                row = Record.model_validate_json(line)
            except ValidationError:
                strange |= bool(line) and line is not rest
                continue
            if row.step <= step:
                lines.append(line + b"\n")
                if row.step == step:
                    self._written.add((step, row.split, row.metric))
        if strange and not is_foreign(self.path):
            set_aside(self.path)
        put(self.path, lambda part: part.write_bytes(b"".join(lines)), appended=True)

    def flush(self) -> None:
        """Bring the rows to the disk itself, before a checkpoint that counts on them."""
        if self.path.exists():
            flush(self.path)
            list_appended(self.path)
