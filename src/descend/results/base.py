"""What all files of a run have in common: the version of the schema, numbers, and one error for a damaged file."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from descend.errors import InputError
from descend.reading import MOST_RECORD, read_json
from descend.results.folder import ELSEWHERE, write_json

SCHEMA = 1
"""The version that this code writes, and the newest that it reads."""

CONFIG_FILE = "config.json"
SUMMARY_FILE = "summary.json"
GROUPS_FILE = "groups.json"
RECORDS_FILE = "records.jsonl"


def run_name(folder: Path) -> str:
    """A run's name: its folder's; of an evaluation on other data "RUN on DATA"."""
    own, elsewhere, data = folder.name.partition(ELSEWHERE)
    return f"{folder.parent.name} on {data}" if elsewhere and not own else folder.name or str(folder)


MOST_SHOWN = 60
"""Characters of a wrong value in an error."""

MOST_RUNS = 8
"""Runs that an error names."""


def nan_for_null(value: Any) -> Any:
    """Null in JSON stands for a number that is not finite."""
    return math.nan if value is None else value


Number = Annotated[float, BeforeValidator(nan_for_null)]
"""A number; in JSON null stands for one that is not finite, such as the loss of a diverged model."""

Numbers = list[Number]
OptionalNumbers = list[float | None]
"""A list with None where there is nothing to say, for example where a layer has no constraint."""

ByLevel = dict[float, list[Number]]
"""Noise level γ → one number for each layer 0 … L."""


def refuse_comparison(folder: Path, summary: Any) -> None:
    """Refuse the folder of a comparison where a run is expected.

    Args:
        folder: The folder.
        summary: What its ``summary.json`` holds.

    Raises:
        InputError: If it names the runs that were compared; it names them.
    """
    folders = summary.get("folders") if isinstance(summary, Mapping) else None
    if isinstance(folders, list) and folders:
        runs = " or ".join(os.path.normpath(folder / str(each)[:MOST_SHOWN]) for each in folders[:MOST_RUNS])
        raise InputError(f"{folder} holds a comparison, and no run. Give one of its runs: {runs}.")


class Part(BaseModel):
    """A part of a file. Immutable; change a copy with ``model_copy(update=…)``."""

    model_config = ConfigDict(frozen=True, extra="allow", validate_by_name=True, validate_by_alias=True)


class File(Part):
    """The whole content of a JSON file, with the version of its schema."""

    todo: ClassVar[str] = "Remove it, and evaluate again."
    """What to do about a damaged file."""

    indent: ClassVar[int | None] = 2
    """Spaces that each level is indented by; None for one line, as of long tables of numbers."""

    schema_version: int = Field(default=SCHEMA, alias="schema", ge=1, le=SCHEMA)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read such a file.

        Raises:
            InputError: If it is missing, damaged or something else.
        """
        return parse(cls, read_json(path, MOST_RECORD), str(path), cls.todo)

    def content(self) -> dict[str, Any]:
        """The file's content in JSON types: its version and what was set, under the keys of the file."""
        return {"schema": self.schema_version} | self.model_dump(by_alias=True, exclude_unset=True)

    def write(self, path: Path, *, listed: bool = True) -> None:
        """Write the file in one piece.

        Args:
            path: The file.
            listed: As in `put`.

        Raises:
            SaveError: If it can't be written; an older file is as it was.
        """
        write_json(path, self.content(), self.indent, listed=listed)


F = TypeVar("F", bound=BaseModel)


def parse(kind: type[F], content: Any, source: str, todo: str) -> F:
    """Check what a file holds and give its entries their types; the error names the first that is wrong.

    Args:
        kind: What it should be.
        content: The file's content, as `read_json` gives it.
        source: The file's name, for an error.
        todo: What to do about a damaged file, a full sentence.

    Raises:
        InputError: If an entry is missing, of the wrong type or does not fit the others, or if a newer version of
            Descend wrote the file.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    if first["loc"] == ("schema",) and first["type"] == "less_than_equal":
        todo = "Upgrade descend."
    place, words = ".".join(map(str, first["loc"])) or "its content", first["msg"].removeprefix("Value error, ")
    if first["type"] != "value_error":  # a message of our own says what it got
        words += f"; got {repr(first['input'])[:MOST_SHOWN]}"
    raise InputError(f"{source}: {place}: {words}. {todo}")
