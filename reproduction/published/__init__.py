"""What the paper reports, number by number: Tables 3 and 4, the settings of Tables 1, 2 and 5, and AlpacaEval."""

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
    def gain(self) -> float:
        """How much better the constrained model is, in per cent of ERM's number."""
        change = self.constrained - self.unconstrained
        return 100 * (change if self.higher_is_better else -change) / self.unconstrained

    @property
    def won(self) -> bool:
        """Whether the constrained model is strictly the better one."""
        return self.gain > 0


@dataclass(frozen=True)
class PrintedSetting:
    """A number of Table 1, 2 or 5, and what we read it as: the heads of most columns are lost.

    Attributes:
        table: 1, 2 or 5.
        model: The paper's name of the model.
        data: The data set; empty for all.
        place: Its place among the numbers of its row, from 1.
        printed: As the paper prints it.
        setting: The setting that it is; empty if unread.
        value: The value of that setting; None if unread. α is read from a printed 1 − α.
        reading: ``certain``: the head or the text says it. ``guessed``: by its size. ``unread``: no guess is made.
    """

    table: int
    model: str
    data: str
    place: int
    printed: str
    setting: str
    value: float | None
    reading: str


@dataclass(frozen=True)
class WinRate:
    """How often a judge prefers the constrained model's answers to those of plain training, on AlpacaEval.

    Attributes:
        source: Where the number is printed.
        gamma: Noise γ while generating.
        percent: The length-controlled win rate in per cent.
    """

    source: str
    gamma: float
    percent: float


@cache
def printed_settings(table: int) -> tuple[PrintedSetting, ...]:
    """The surviving numbers of Table 1, 2 or 5, row by row."""
    return tuple(
        PrintedSetting(
            table=int(row["table"]),
            model=row["model"],
            data=row["data"],
            place=int(row["place"]),
            printed=row["printed"],
            setting=row["setting"],
            value=float(row["value"]) if row["value"] else None,
            reading=row["reading"],
        )
        for row in _rows("settings.csv")
        if int(row["table"]) == table
    )


@cache
def win_rates() -> tuple[WinRate, ...]:
    """The win rates on AlpacaEval, of which two sources print different numbers."""
    return tuple(
        WinRate(row["source"], float(row["gamma"]), float(row["win_rate"])) for row in _rows("alpaca_eval.csv")
    )


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
        for row in _rows(name)
    )


def _rows(name: str) -> list[dict[str, str]]:
    with (files("reproduction") / "published" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
