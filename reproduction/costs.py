"""How long cells take: measured, or estimated from stored timings."""

import json
from collections import defaultdict
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from reproduction.records import Cell


@cache
def references() -> dict[str, Any]:
    """``costs.json``: scale → recipe → data set → seconds of a cell on one core, [all but layers, each layer]."""
    return json.loads((files("reproduction") / "costs.json").read_text(encoding="utf-8"))


class Costs:
    """Estimates the seconds of a scale's cells; each measured cell improves the estimates.

    Args:
        scale: The scale's name.
    """

    def __init__(self, scale: str):
        self._references = references().get(scale, {})
        self._measured: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self._speed: list[float] = []

    def learn(self, cell: Cell, seconds: float) -> None:
        """Record how long a cell took."""
        self._measured[cell.recipe, cell.data, cell.depth].append(seconds)
        if reference := self._reference(cell):
            self._speed.append(seconds / reference)

    def of(self, cell: Cell) -> float | None:
        """Seconds of a cell: the median of similar cells, or the stored time for this machine; None if unknown."""
        if like := self._measured.get((cell.recipe, cell.data, cell.depth)):
            return median(like)
        reference = self._reference(cell)
        return None if reference is None else reference * (median(self._speed) if self._speed else 1.0)

    def _reference(self, cell: Cell) -> float | None:
        seconds = self._references.get(cell.recipe, {}).get(cell.data)
        return None if seconds is None else seconds[0] + seconds[1] * cell.depth
