"""Write the files of a run; `descend.writing` is how."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python
from safetensors import SafetensorError

from descend.errors import SaveError
from descend.writing import replacing


def put(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file in one piece, see `replacing`.

    Args:
        path: The file.
        write: Writes the file that it is given.

    Raises:
        SaveError: If it can't be written; the file is as it was.
    """
    try:
        with replacing(path) as part:
            write(part)
    except (OSError, SafetensorError) as error:
        raise SaveError.at(path, error) from error


def of_disk(error: Exception) -> bool:
    """Whether an error of a writer comes from the disk; torch's zip writer raises a plain `RuntimeError` for that."""
    return isinstance(error, OSError | SafetensorError) or (
        isinstance(error, RuntimeError) and ("PytorchStreamWriter" in str(error) or "inline_container" in str(error))
    )


def write_json(path: Path, content: Any) -> None:
    """Write JSON in one piece.

    A number that is not finite, as a diverged model has, becomes null.
    """
    text = json.dumps(to_jsonable_python(content, inf_nan_mode="null"), indent=2) + "\n"
    put(path, lambda part: part.write_text(text, encoding="utf-8"))
