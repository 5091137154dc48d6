"""Draw figures and tables into files, in OUT/figures."""

import json
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from functools import partial
from pathlib import Path

from descend.report import write_whole
from reproduction.grid import cells
from reproduction.records import StudyFile
from reproduction.report import (
    anytime_figures,
    classifier_figures,
    comparison_tables,
    language_figures,
    lost_settings,
    method_figures,
    paper_tables,
    settings_tables,
    theory_figures,
    video_figures,
)
from reproduction.report.cells import data_name, few
from reproduction.report.chart import Chart
from reproduction.report.claim_table import judge
from reproduction.report.claims import Claim, with_note
from reproduction.report.matplotlib_charts import print_chart
from reproduction.report.parts import Shown
from reproduction.report.results import Results
from reproduction.report.tables import Table
from reproduction.scales import SCALES
from reproduction.study_file import FIGURES_FOLDER, read_request, scale_of

_DRAWN: dict[str, Callable[[Results], Chart | Table]] = {
    "figure-1": classifier_figures.figure_1,
    "figure-2": video_figures.figure_2,
    "figure-3": video_figures.figure_3,
    "figure-4": classifier_figures.figure_4,
    "figure-5": method_figures.figure_5,
    "figure-6": language_figures.figure_6,
    "figure-7": video_figures.figure_7,
    "figure-8": video_figures.figure_8,
    "figure-9": classifier_figures.figure_9,
    "figure-10": classifier_figures.figure_10,
    "figure-11": method_figures.figure_11,
    "figure-12": method_figures.figure_12,
    "figure-13": classifier_figures.figure_13,
    "figure-14": method_figures.figure_14,
    "figure-15": method_figures.figure_15,
    "figure-16": language_figures.figure_16,
    "table-1": settings_tables.table_1,
    "table-2": settings_tables.table_2,
    "table-3": paper_tables.mean_rmse,
    "table-4": paper_tables.areas,
    "table-5": settings_tables.table_5,
    "theory-1": theory_figures.theory_1,
    "theory-2": theory_figures.theory_2,
    "theory-3": theory_figures.theory_3,
    "theory-4": theory_figures.theory_4,
    "table-theory": theory_figures.table_theory,
    "table-arms": comparison_tables.table_arms,
    "table-cells": comparison_tables.table_cells,
    "table-lost": lost_settings.table_lost,
    "table-forms": comparison_tables.table_forms,
    "anytime": anytime_figures.anytime,
    "table-anytime": anytime_figures.table_anytime,
}

FIGURES: dict[str, Callable[[Results], Shown]] = {}
"""Name → a function that draws it and judges its claims, in the paper's order."""


def _show(name: str, results: Results) -> Shown:
    drawn = _DRAWN[name](results)
    claims = judge(name, results)
    return Shown(claims, chart=drawn) if isinstance(drawn, Chart) else Shown(claims, table=drawn)


FIGURES.update({name: partial(_show, name) for name in _DRAWN})

CLAIMS_FILE = "claims.json"


def requested(out: Path, results: Results) -> StudyFile:
    """The ``study.json`` of a folder; without one all figures, at the scale of its cells.

    Raises:
        InputError: If its ``study.json`` is not that of a study.
    """
    study = read_request(out) or StudyFile(what=["all"])
    return study.model_copy(update={"scale": study.scale or scale_of(run.name for run in results.runs)})


def shown(study: StudyFile, results: Results) -> dict[str, Shown]:
    """The requested figures and tables, by name."""
    return {name: _drawn(name, results, study.scale) for name in FIGURES if not {name, "all"}.isdisjoint(study.what)}


def _drawn(name: str, results: Results, scale: str) -> Shown:
    """A figure from its cells at a scale, whatever else was run; from all cells if the scale is unknown."""
    wanted = cells([name], scale) if scale else []
    chosen = results.of_cells(wanted) if scale else results
    figure = FIGURES[name](chosen)
    unfinished = list(_unfinished(chosen, wanted, scale))
    notes = {
        form: " ".join([*unfinished, *_unbound(view), *_untelling(scale)])
        for form, view in {"": Results([]), **chosen.forms}.items()
    }
    claims = [claim.unfinished() for claim in figure.claims] if unfinished else figure.claims
    return replace(figure, claims=[with_note(claim, notes[claim.form]) for claim in claims])


def _unfinished(chosen: Results, wanted: Sized, scale: str) -> Iterator[str]:
    """A note if cells of a figure are not run yet."""
    if scale and (left := len(wanted) - len(chosen.runs)):
        yield f"{left} of {len(wanted)} cells are not run yet."


def _unbound(view: Results) -> Iterator[str]:
    """A note on the settings of one form in which its constraints changed nothing."""
    if free := [
        f"{setting.model}-{setting.depth} on {data_name(setting.data)} at γ = {setting.gamma:g}"
        for setting in view.settings
        if setting.unbound
    ]:
        yield f"In {few(free)} no multiplier ever left 0, so that constrained training was plain training."


def _untelling(scale: str) -> Iterator[str]:
    """A note if the runs of a scale say nothing."""
    if scale and not SCALES[scale].telling:
        yield f"Scale {scale} says nothing about the method."


def put_figures(out: Path, drawn: Mapping[str, Shown]) -> list[Claim]:
    """Write ``OUT/figures``: of a figure ``NAME.png``, ``.svg`` and ``.csv``, of a table ``.csv`` and ``.md``.

    ``claims.json`` holds the claims of all of them, which are returned in the order of the paper.
    """
    claims = [claim for figure in drawn.values() for claim in figure.claims]
    folder = out / FIGURES_FOLDER
    folder.mkdir(exist_ok=True)
    for name, figure in drawn.items():
        for suffix, content in _files(figure).items():
            write_whole(folder / f"{name}.{suffix}", content)
    entries = [claim.json() for claim in claims]
    write_whole(folder / CLAIMS_FILE, _encoded(json.dumps(entries, indent=2, ensure_ascii=False) + "\n"))
    return claims


def _files(shown: Shown) -> dict[str, bytes]:
    """The files of a figure or table, by suffix."""
    contents = print_chart(shown.chart) if shown.chart else {}
    if holder := shown.chart or shown.table:
        contents["csv"] = _encoded(holder.csv())
    if shown.table:
        contents["md"] = _encoded(shown.table.markdown())
    return contents


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")
