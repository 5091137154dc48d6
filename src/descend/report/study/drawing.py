"""Figures and tables into files: what OUT/figures holds."""

import json
from collections.abc import Callable
from pathlib import Path

from descend.records import locked, put
from descend.report.study import ablations, feasibility, language, papers, text, theory, trained, video
from descend.report.study.claims import Claim
from descend.report.study.parts import Shown
from descend.report.study.printed import print_chart
from descend.report.study.results import Results
from descend.study.asked import Asked

FIGURES: dict[str, Callable[[Results], Shown]] = {
    "figure-1": text.figure_1,
    "figure-2": video.figure_2,
    "figure-3": video.figure_3,
    "figure-4": text.figure_4,
    "figure-5": ablations.figure_5,
    "figure-6": language.figure_6,
    "figure-7": video.figure_7,
    "figure-8": video.figure_8,
    "figure-9": trained.figure_9,
    "figure-10": trained.figure_10,
    "figure-11": feasibility.figure_11,
    "figure-12": feasibility.figure_12,
    "figure-13": text.figure_13,
    "figure-14": ablations.figure_14,
    "figure-15": ablations.figure_15,
    "figure-16": language.figure_16,
    "table-1": papers.table_1,
    "table-2": papers.table_2,
    "table-3": papers.mean_rmse,
    "table-4": papers.areas,
    "table-5": papers.table_5,
    "theory-1": theory.theory_1,
    "theory-2": theory.theory_2,
    "theory-3": theory.theory_3,
}
"""Name → what draws it, in the order of the paper."""

CLAIMS_FILE, DRAWING = "claims.json", "figures.lock"


def shown(out: Path, results: Results) -> dict[str, Shown]:
    """Figures and tables that a study's folder asks for, by name; all where it does not say.

    Raises:
        InputError: If its ``study.json`` is not that of a study.
    """
    asked = Asked.read(out) or Asked()
    return {name: make(results) for name, make in FIGURES.items() if not {name, "all"}.isdisjoint(asked.what)}


def draw(out: Path) -> list[Claim]:
    """Draw the figures and tables of a study from its cells alone, and judge their claims.

    A figure becomes ``OUT/figures/NAME.png``, ``.svg`` and ``.csv``, a table ``.csv`` and ``.md``; ``claims.json``
    holds the claims of all of them.

    Args:
        out: The study's folder, with ``cells.jsonl``. If its ``study.json`` says what was asked for, that is drawn,
            else everything.

    Returns:
        The claims, in the order of the paper.

    Raises:
        InputError: If ``cells.jsonl`` is missing or damaged, or ``study.json`` is damaged.
        SaveError: If the disk takes no more.
    """
    drawn = shown(out, Results.read(out))
    claims = [claim for one in drawn.values() for claim in one.claims]
    text = json.dumps([claim.json() for claim in claims], indent=2, ensure_ascii=False) + "\n"
    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    with locked(out, DRAWING, wait=True):  # two commands may draw at once
        for name, one in drawn.items():
            _write(folder, name, one)
        _put_text(folder / CLAIMS_FILE, text)
    return claims


def _write(folder: Path, name: str, shown: Shown) -> None:
    if shown.chart:
        print_chart(shown.chart, folder)
    holder = shown.chart or shown.table
    if holder:
        _put_text(folder / f"{name}.csv", holder.csv())
    if shown.table:
        _put_text(folder / f"{name}.md", shown.table.markdown())


def _put_text(path: Path, text: str) -> None:
    put(path, lambda part: part.write_text(text, encoding="utf-8", errors="replace"))
