"""The study that the documentation keeps: its claims are judged as they were, and its page in the docs says so."""

from pathlib import Path

import pytest

from descend.paper.grid import cells, names
from descend.paper.report.drawing import requested, shown
from descend.paper.report.opening import findings
from descend.paper.report.overview import falls, overview
from descend.paper.report.results import Results

RESULTS = Path(__file__).parents[2] / "docs" / "results"

SHORT = {"h": "held", "n": "not held", "u": "undecided", "-": "not run"}
VERDICTS = {
    **{"figure-1": "uuuu", "figure-2": "uuuuuu", "figure-3": "uuuu", "figure-4": "uuuuuuuu", "figure-5": "--"},
    **{"figure-6": "uuuuuu", "figure-7": "uuu", "figure-8": "uuuu", "figure-9": "---", "figure-10": "--"},
    **{"figure-11": "--", "figure-12": "uuuu", "figure-13": "uu", "figure-14": "--", "figure-15": "-"},
    **{"figure-16": "nn", "table-3": "nunnh", "table-4": "uuuu", "theory-1": "uuuu", "theory-2": "uuuu"},
    **{"theory-3": "u", "theory-4": "u"},
}
"""Figure → the verdict on each of its claims, for the paper's form and the default where they are judged apart."""


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read(RESULTS / "small")


def test_its_claims_are_judged_as_they_were(results: Results) -> None:
    found = shown(requested(RESULTS / "small", results), results)
    verdicts = {name: [claim.held for claim in one.claims] for name, one in found.items() if one.claims}
    assert verdicts == {name: [SHORT[letter] for letter in letters] for name, letters in VERDICTS.items()}


def test_its_page_says_what_the_cells_say(results: Results) -> None:
    page = " ".join((RESULTS / "study.md").read_text(encoding="utf-8").split())
    for sentence in findings(results):
        assert sentence in page


def test_its_cells_are_those_of_the_grid(results: Results) -> None:
    grid = {cell.name for cell in cells(names(["all"]), "small")}
    assert {run.name for run in results.runs} <= grid


def test_the_default_holds_its_constraints_and_descends_but_where_the_test_clip_is_another_scene(
    results: Results,
) -> None:
    runs = [run for setting in results.settings for run in setting.runs("constrained")]
    assert all(run.summary.feasible for run in runs if run.data != "shanghaitech")
    assert {run.data for run in runs if falls([run]).number == 0} == {"shanghaitech"}
    default = overview(results)["constrained"]
    assert default.diverged == 0 and default.feasible.number >= 0.8 * default.feasible.total
