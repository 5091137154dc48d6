"""What the paper reports: Tables 3 and 4, number by number."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

AREA_REACH = 2.0
"""The highest test noise γ behind the areas of Table 4, as far as it can be told: the text has lost it.

Areas of 1.72 to 1.87 on IMDb are accuracies of .86 to .94 over a range of 2; over a range of 4 they would lie below
chance.
"""


@dataclass(frozen=True)
class Row:
    """One cell of a table: the same model on the same data, trained both ways.

    Attributes:
        model: ``UT``, ``DUST``, ``ViT``, ``DistilBERT`` or ``RoBERTa``.
        depth: L as the paper prints it.
        data: ``avenue``, ``shanghaitech`` or ``ucsd``; ``imdb`` or ``mnli``.
        gamma: Training noise γ.
        constrained: The constrained model's number: mean RMSE over test noise, lower is better (Table 3); area under
            accuracy over test noise, higher is better (Table 4).
        unconstrained: ERM's.
        higher_is_better: Which of the two that is.
    """

    model: str
    depth: int
    data: str
    gamma: float
    constrained: float
    unconstrained: float
    higher_is_better: bool

    @property
    def won(self) -> bool:
        """Whether the constrained model is strictly the better one."""
        gain = self.constrained - self.unconstrained
        return (gain if self.higher_is_better else -gain) > 0


@cache
def table_3() -> tuple[Row, ...]:
    """Mean RMSE of video denoising over test noise: 105 cells."""
    return _read("table3.csv", higher_is_better=False)


@cache
def table_4() -> tuple[Row, ...]:
    """Area under the accuracy of text classification over test noise: 72 cells."""
    return _read("table4.csv", higher_is_better=True)


def wins(rows: Sequence[Row]) -> int:
    """In how many cells the constrained model is strictly better; a tie is no win."""
    return sum(row.won for row in rows)


def _read(name: str, *, higher_is_better: bool) -> tuple[Row, ...]:
    with (files("descend.paper") / "published" / name).open(encoding="utf-8") as file:
        return tuple(
            Row(
                model=row["model"],
                depth=int(row["layers"]),
                data=row["dataset"],
                gamma=float(row["train_gamma"]),
                constrained=float(row["constrained"]),
                unconstrained=float(row["unconstrained"]),
                higher_is_better=higher_is_better,
            )
            for row in csv.DictReader(file)
        )
