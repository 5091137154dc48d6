"""The study that the documentation keeps: it can be read, and its claims are judged as they were."""

from pathlib import Path

from descend.paper.report.drawing import requested, shown
from descend.paper.report.results import Results

STORED = Path(__file__).parents[2] / "docs" / "results" / "small"

SHORT = {"h": "held", "n": "not held", "u": "undecided"}
VERDICTS = {
    **{"figure-1": "uu", "figure-2": "unn", "figure-3": "hh", "figure-4": "uuuu", "figure-5": "uu", "figure-6": "uun"},
    **{"figure-7": "hn", "figure-8": "un", "figure-9": "uuu", "figure-10": "uu", "figure-11": "uh", "figure-12": "hn"},
    **{"figure-13": "n", "figure-14": "uu", "figure-15": "u", "figure-16": "n", "table-3": "uuh", "table-4": "hu"},
    **{"theory-1": "un", "theory-2": "un", "theory-3": "h"},
}


def test_its_claims_are_judged_as_they_were() -> None:
    results = Results.read(STORED)
    found = shown(requested(STORED, results), results)
    verdicts = {name: [claim.held for claim in one.claims] for name, one in found.items() if one.claims}
    assert verdicts == {name: [SHORT[letter] for letter in letters] for name, letters in VERDICTS.items()}
    numbers = [claim.sentence for claim in found["table-3"].claims]
    assert "14 of 21 (67 %, 95 % interval 43 % to 85 %)" in numbers[0] and "p = 0.064" in numbers[0]
