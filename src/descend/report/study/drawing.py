"""Figures and tables into files: what OUT/figures holds."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from descend.errors import InputError
from descend.reading import read_json
from descend.report.study import ablations, feasibility, language, papers, text, theory, trained, video
from descend.report.study.claims import Claim
from descend.report.study.parts import Shown
from descend.report.study.printed import print_chart
from descend.report.study.results import Results

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

CLAIMS_FILE = "claims.json"


def draw(out: Path, names: Sequence[str]) -> list[Claim]:
    """Draw figures and tables of a study from its cells alone, and judge their claims.

    A figure becomes ``OUT/figures/NAME.png``, ``.svg`` and ``.csv``, a table ``.csv`` and ``.md``; ``claims.json``
    holds the claims of all that was drawn so far.

    Args:
        out: The study's folder, with ``cells.jsonl``.
        names: Of `FIGURES`.

    Returns:
        The claims of these figures and tables, in the order of the paper.

    Raises:
        InputError: If a name is unknown, or ``cells.jsonl`` is missing or damaged.
    """
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise InputError(f"there is no figure or table {unknown[0]!r}; there are {', '.join(FIGURES)}.")
    results = Results.read(out)
    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    claims = []
    for name, make in FIGURES.items():
        if name in names:
            shown = make(results)
            _write(folder, name, shown)
            claims += shown.claims
    path = folder / CLAIMS_FILE
    before = read_json(path) if path.is_file() else []
    kept = [claim for claim in before if claim.get("figure") not in names]
    order = list(FIGURES)
    every = sorted([*kept, *(claim.json() for claim in claims)], key=lambda claim: order.index(claim["figure"]))
    path.write_text(json.dumps(every, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return claims


def _write(folder: Path, name: str, shown: Shown) -> None:
    if shown.chart:
        print_chart(shown.chart, folder)
    holder = shown.chart or shown.table
    if holder:
        (folder / f"{name}.csv").write_text(holder.csv(), encoding="utf-8", errors="replace")
    if shown.table:
        (folder / f"{name}.md").write_text(shown.table.markdown(), encoding="utf-8", errors="replace")
