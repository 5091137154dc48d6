"""The table of lost settings, from made-up cells whose losses on training and test data are known."""

from typing import Any

import pytest

from reproduction.records import parse_cell
from reproduction.report import FIGURES
from reproduction.report.lost_settings import table_lost
from reproduction.report.results import Results
from tests.support.studies import line

SAYS = "What the numbers say"


def runs(arm: str, errors: list[float], fit: float, test: float, **changed: Any) -> list[dict[str, Any]]:
    """Runs of UT-5 with one RMSE at every noise, and a last loss on training and on test data."""
    made = []
    for seed, error in enumerate(errors):
        losses = [3.0, 2.9, 2.8, 2.7, 2.6, test]
        entries = {
            "values": [error] * 6,
            "mean": error,
            "layer_losses": {"0.15": losses},
            "feasible": True,
            "cap": None,
        }
        run = line("video", "UT", "ucsd", 5, 0.15, arm, seed, **entries | {"target": "geometric"} | changed)
        run["groups"]["scores"] = [[100 * error**2] * 12] * 6
        run["train_losses"] = [*losses[:-1], fit]
        made.append(run)
    return made


def rows(*arms: list[dict[str, Any]]) -> list[dict[str, str]]:
    shown = table_lost(Results.of(parse_cell(each, "a line") for arm in arms for each in arm))
    return [dict(zip(shown.heads, row, strict=True)) for row in shown.rows]


PLAIN = runs("erm", [10, 10], fit=1.0, test=1.0, feasible=False)


@pytest.mark.parametrize(
    ("errors", "fit", "test", "changed", "says"),
    [
        ([11, 11], 1.1, 1.1, {}, "fits the training data less well"),
        ([11, 11], 1.0, 1.1, {}, "fits the training data as well, and generalizes less well"),
        ([11, 11], 1.0, 1.0, {}, "last loss at the training noise not higher"),
        ([11, 11], 1.1, 1.1, {"feasible": False}, "constraints not met on test data; fits the training data less well"),
        ([10.04, 10.04], 1.1, 1.1, {}, "level"),
        ([9, 12], 1.1, 1.1, {}, "fits the training data less well; not decided"),
    ],
)
def test_a_lost_setting_says_why(
    errors: list[float], fit: float, test: float, changed: dict[str, Any], says: str
) -> None:
    (row,) = rows(PLAIN, runs("constrained", errors, fit, test, **changed))
    assert row[SAYS] == says
    assert row["Last loss, training data, %"] == f"{100 * (fit - 1):+z.1f}"
    assert row["Last loss, test data, %"] == f"{100 * (test - 1):+z.1f}"
    assert (row["Method"], row["ERM feasible"], row["Falls, training data"]) == (
        *("Descend's default", "0 of 2"),
        "2 of 2",
    )
    assert row["Printed: gain %"] == "+7.11"  # UT-5 on Ped2 at γ = 0.15, in Table 3


def test_erm_may_meet_the_constraints_by_itself() -> None:
    plain = runs("erm", [10, 10], fit=1.0, test=1.0)
    (row,) = rows(plain, runs("constrained", [10.01, 10.01], 1.0, 1.0))
    assert row[SAYS] == "ERM meets the constraints by itself; level"
    (row,) = rows(plain, runs("paper", [11, 11], 1.1, 1.1))
    assert row[SAYS] == "fits the training data less well"


def test_a_form_that_asks_for_more_than_any_method_reached_says_so() -> None:
    cap = 0.9 / 0.9**5  # 1 − α is 0.9 at all five layers
    (row,) = rows(PLAIN, runs("paper", [11, 11], 1.1, 1.1, cap=cap))
    assert row[SAYS] == "asks for a lower last loss than any method reached; fits the training data less well"
    (row,) = rows(PLAIN, runs("paper", [11, 11], 1.1, 1.1, cap=1.2 * cap))
    assert row[SAYS] == "fits the training data less well"


def test_won_settings_are_left_out_and_the_worst_stands_first() -> None:
    found = rows(PLAIN, runs("constrained", [9, 9], 1.0, 1.0), runs("paper", [11, 11], 1.0, 1.1))
    assert [row["Method"] for row in found] == ["Preset paper"]
    shown = FIGURES["table-lost"](Results([])).table
    assert shown is not None and not shown.rows
    assert "Preset paper has 0 of 0. Descend's default has 0 of 0." in shown.words


def test_a_diverged_run_is_the_reason() -> None:
    lost = runs("paper", [11, 11], 1.0, 1.0)
    lost[1] = {"cell": lost[1]["cell"], "summary": None, "diverged": "the loss is NaN", "seconds": 1.0}
    (row,) = rows(PLAIN, lost)
    assert (row[SAYS], row["Gain %"]) == ("a run diverged", "diverged")
