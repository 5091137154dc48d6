"""Figures and tables into files: what OUT/figures holds."""

import json
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from pathlib import Path

from descend.paper.asked import Asked, scale_of
from descend.paper.grid import cells
from descend.paper.report import ablations, feasibility, language, papers, text, theory, trained, video
from descend.paper.report.cells import data_name, few
from descend.paper.report.claims import Claim
from descend.paper.report.parts import Shown
from descend.paper.report.printed import print_chart
from descend.paper.report.results import Results
from descend.paper.scales import SCALES
from descend.report.rendering import put

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


def asked_of(out: Path, results: Results) -> Asked:
    """What a study's folder asks for; of which scale its cells are where it does not say.

    Raises:
        InputError: If its ``study.json`` is not that of a study.
    """
    asked = Asked.read(out) or Asked()
    return replace(asked, scale=asked.scale or scale_of(run.name for run in results.runs))


def shown(asked: Asked, results: Results) -> dict[str, Shown]:
    """Figures and tables that are asked for, by name."""
    return {name: _drawn(name, results, asked.scale) for name in FIGURES if not {name, "all"}.isdisjoint(asked.what)}


def _drawn(name: str, results: Results, scale: str) -> Shown:
    """A figure from the cells that it asks for at a scale, whatever else was run; from all where no scale is known."""
    wanted = cells([name], scale) if scale else []
    own = results.of_cells(wanted) if scale else results
    found = FIGURES[name](own)
    more = " ".join(_besides(own, wanted, scale))
    judged = [
        claim if claim.held == "not run" else replace(claim, sentence=f"{claim.sentence} {more}".strip())
        for claim in found.claims
    ]
    return replace(found, claims=judged)


def _besides(own: Results, wanted: Sized, scale: str) -> Iterator[str]:
    """What is to be known of the cells of a figure, whatever is claimed of them."""
    if scale and (left := len(wanted) - len(own.runs)):
        yield f"{left} of {len(wanted)} cells are not run yet."
    if free := [
        f"{one.model}-{one.depth} on {data_name(one.data)} at γ = {one.gamma:g}" for one in own.settings if one.unbound
    ]:
        yield f"In {few(free)} no multiplier ever left 0, so that constrained training was plain training."
    if scale and not SCALES[scale].telling:
        yield f"Scale {scale} says nothing about the method."


def put_figures(out: Path, drawn: Mapping[str, Shown]) -> list[Claim]:
    """Write ``OUT/figures``: of a figure ``NAME.png``, ``.svg`` and ``.csv``, of a table ``.csv`` and ``.md``.

    ``claims.json`` holds the claims of all of them, which are returned in the order of the paper.
    """
    claims = [claim for one in drawn.values() for claim in one.claims]
    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    for name, one in drawn.items():
        for suffix, content in _files(one).items():
            put(folder / f"{name}.{suffix}", content)
    told = [claim.json() for claim in claims]
    put(folder / CLAIMS_FILE, _encoded(json.dumps(told, indent=2, ensure_ascii=False) + "\n"))
    return claims


def _files(shown: Shown) -> dict[str, bytes]:
    """What is written of a figure or table, by the file's suffix."""
    found = print_chart(shown.chart) if shown.chart else {}
    if holder := shown.chart or shown.table:
        found["csv"] = _encoded(holder.csv())
    if shown.table:
        found["md"] = _encoded(shown.table.markdown())
    return found


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")
