"""Deep supervision with given weights, or with those of an earlier run."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descend.declared import setting
from descend.errors import InputError
from descend.methods.base import Method, Style


class Weighted(Method):
    """Deep supervision with the weights that ``layer_weights`` gives: the multipliers of no dual move.

    The setting is L+1 numbers, constant over the run, or the folder of an earlier run of the same depth, whose logged
    weights are replayed: step t has those of the last log up to t. A run that logs every step
    (``logging_steps=1``) is replayed exactly, but for its first step, which has the weights of the second.
    """

    name = "weighted"
    about = "deep supervision with the weights that `--layer-weights` gives, or with those that an earlier run logged"
    label = "Given weights"
    style = Style("#4d4d00", "#c8c800", "<")
    order = 50

    @dataclass
    class Settings:
        """The setting of given weights.

        Attributes:
            layer_weights: L+1 numbers with commas, the weights of f_0 … f_L, or the folder of an earlier run, whose
                logged weights are replayed.
        """

        layer_weights: str | None = setting(None, "weighted: numbers for f_0 … f_L, or a run to replay [none]")

    def attach(self, trainer: Any) -> None:
        """Read the weights.

        Raises:
            InputError: If they are missing, not one for each layer, or not finite.
        """
        super().attach(trainer)
        given, layers = self.settings.layer_weights, trainer.objective.model.depth + 1
        if not given:
            raise InputError(
                f"the method weighted needs layer_weights (--layer-weights): {layers} numbers with commas, one for "
                "each of f_0 … f_L, or the folder of a run whose weights are replayed."
            )
        try:
            rows = {0: [float(number) for number in given.split(",")]}
        except ValueError:
            rows = logged_weights(Path(given))
        wrong = next((row for row in rows.values() if len(row) != layers or not all(map(math.isfinite, row))), None)
        if wrong is not None:
            raise InputError(
                f"layer_weights must be {layers} finite numbers, one for each of f_0 … f_L; {given!r} has {wrong}."
            )
        self._steps, self._rows = list(rows), list(rows.values())
        self._reads_inner = any(weight for row in self._rows for weight in row[:-1])

    def weights(self, step: int, steps: int) -> list[float]:
        """The weights of the last log up to a step, of the first log before it."""
        return self._rows[max(0, bisect_right(self._steps, step) - 1)]

    @property
    def inner(self) -> bool:
        """Whether any inner exit ever has a weight."""
        return self._reads_inner


def logged_weights(run: Path) -> dict[int, list[float]]:
    """Step → the weights of f_0 … f_L that a run logged after it, in the order of steps.

    Raises:
        InputError: If the folder has no records, or no weights are among them.
    """
    from descend.results import RECORDS_FILE, read_records

    rows: dict[int, dict[int, float]] = {}
    if (run / RECORDS_FILE).is_file():
        for record in read_records(run / RECORDS_FILE):
            if (record.split, record.metric) == ("train", "weight"):
                rows.setdefault(record.step, {})[record.layer] = record.value
    if not rows:
        raise InputError(
            f"layer_weights must be numbers with commas, or the folder of a run whose {RECORDS_FILE} has weights; got "
            f"{run}."
        )
    return {step: [row[layer] for layer in sorted(row)] for step, row in sorted(rows.items())}
