"""The folder of a run: what was asked, what was measured, in formats that anything can read."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from descend import reading
from descend.errors import InputError


def write_json(path: Path, content: Any) -> None:
    """Write JSON in one piece: a reader sees the old file or the new one, never half of it.

    A number that is not finite, as a diverged model has, becomes null.
    """
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(_finite(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_json(path: Path) -> Any:
    """Read a file that `write_json` wrote.

    Raises:
        InputError: If it is missing or not JSON.
    """
    if path.parent.is_file():
        raise InputError(f"{path} can't be read: {path.parent} is a file.")
    if not path.exists():
        raise InputError(f"expected a run folder with {path.name}; {path.parent} has none.")
    return reading.read_json(path)


class Records:
    """Append-only rows ``run, step, split, layer, noise, metric, value`` in a run's ``records.jsonl``.

    Args:
        path: The file; made with its first row.
        run: The run's name, the same in every row.
    """

    def __init__(self, path: Path, run: str):
        self.path, self.run = path, run
        self._written: set[tuple[int, str, str]] = set()

    def rows(
        self, values: Mapping[str, Iterable[float]], *, step: int, split: str, noise: float | None, first: int = 0
    ) -> None:
        """Append one row per metric and layer; a metric that has its rows at this step and split keeps them.

        Args:
            values: For each metric its values by layer.
            step: The training step.
            split: ``train``, ``validation`` or ``test``.
            noise: γ.
            first: The layer of each metric's first value.
        """
        with self.path.open("a", encoding="utf-8") as file:
            for metric, series in values.items():
                if (step, split, metric) in self._written:
                    continue
                self._written.add((step, split, metric))
                for layer, value in enumerate(series, start=first):
                    row = {
                        "run": self.run,
                        "step": step,
                        "split": split,
                        "layer": layer,
                        "noise": noise,
                        "metric": metric,
                        "value": _finite(float(value)),
                    }
                    file.write(json.dumps(row) + "\n")

    def truncate_after(self, step: int) -> None:
        """Drop rows later than ``step``: what a resumed run will measure again, and a half-written last line."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if row["step"] <= step:
                kept.append(line)
                self._written.add((row["step"], row["split"], row["metric"]))
        part = self.path.with_name(self.path.name + ".part")
        part.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        os.replace(part, self.path)
