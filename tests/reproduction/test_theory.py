"""Theory beside measurement: cells made by hand, whose values of Theorems 1, 2 and 4 are known."""

from math import inf, isnan, nan
from typing import Any

import pytest

from reproduction.records import parse_cell
from reproduction.report import FIGURES
from reproduction.report.claim_table import judge
from reproduction.report.claims import Claim
from reproduction.report.duality import Duality, duality
from reproduction.report.results import Results
from reproduction.report.theorems import gap_bound, noise_distance, transfers
from tests.support import studies

ALPHA, RHO = studies.ALPHA, 0.05
LEVELS = ("0.0", "0.4", "0.8", "1.2", "1.6", "2.0")


def results(lines: list[dict[str, Any]]) -> Results:
    return Results.of(parse_cell(one, "a line") for one in lines)


def line(arm: str, seed: int = 0, losses: list[float] | None = None, **changed: Any) -> dict[str, Any]:
    """A finished cell of a model of two layers, with these losses at the training noise."""
    one = studies.line("video", "UT", "ucsd", 2, 0.8, arm, seed, **changed)
    if losses is not None:
        one["summary"]["layer_losses"]["0.8"] = losses
    return one


def claim(lines: list[dict[str, Any]], name: str, number: int = 0) -> Claim:
    """The verdict on one claim about preset paper."""
    return judge(name, results(lines).judging("paper"))[number]


# --- Theorem 1


def logged(losses: list[list[float]], multipliers: list[list[float]], seed: int = 0, **changed: Any) -> dict[str, Any]:
    """A cell of preset paper with these rows of its log."""
    one = line("paper", seed, **changed)
    steps = [10.0 * (place + 1) for place in range(len(losses))]
    one["curves"]["loss"] = {"steps": steps, "values": losses}
    one["curves"]["multiplier"] = {"steps": steps, "values": multipliers}
    return one


def values(one: dict[str, Any]) -> Duality | None:
    return duality(results([one]).runs[0])


def test_primal_value_and_lagrangian_are_those_of_the_equations() -> None:
    # g = (f_0 − cap, f_1 − 0.9 f_0, f_2 − 0.9 f_1) = (0.5, −0.2, 0.2); the cap is 1.5.
    found = values(logged([[2.0, 1.6, 1.64]], [[0.1, 0.3, 2.0]]))
    assert found is not None and found.steps == [10.0] and found.losses == [1.64]
    assert found.primal == pytest.approx([1.64 + (0.5**2 + 0.2**2) / (2 * RHO)])
    lagrangian = 1.64 + 0.1 * 0.5 + 0.3 * -0.2 + 2.0 * 0.2
    assert found.dual == pytest.approx([lagrangian - RHO / 2 * (0.1**2 + 0.3**2 + 2.0**2)])
    slackness = (0.5 - RHO * 0.1) ** 2 / (2 * RHO) + 0.3 * 0.2 + RHO / 2 * 0.3**2 + (0.2 - RHO * 2) ** 2 / (2 * RHO)
    assert found.gaps == pytest.approx([slackness])


def test_both_values_are_equal_where_complementary_slackness_holds() -> None:
    # Layer 1 misses its bound by ρλ_1 = 0.1, layer 2 meets it and has no multiplier.
    found = values(logged([[1.0, 1.0, 0.5]], [[0.0, 2.0, 0.0]]))
    assert found is not None and found.gaps == pytest.approx([0.0], abs=1e-12)
    assert found.primal == pytest.approx([0.5 + 0.1**2 / (2 * RHO)])


def test_the_cap_bounds_the_exit_that_the_settings_name() -> None:
    one = logged([[9.0, 2.0, 1.0]], [[0.5, 0.0, 0.0]])
    one["summary"]["settings"]["cap_layer"] = 1
    found = values(one)
    assert found is not None and found.primal == pytest.approx([1.0 + 0.5**2 / (2 * RHO)])
    one["summary"]["cap"] = None
    found = values(one)
    assert found is not None and found.primal == found.dual == [1.0]


def test_steps_without_inner_losses_are_left_out() -> None:
    found = values(logged([[nan, nan, 3.0], [1.0, 0.8, 0.6]], [[0.0] * 3] * 2))
    assert found is not None and found.steps == [20.0]
    assert values(logged([[nan, nan, 3.0]], [[0.0] * 3])) is None


@pytest.mark.parametrize("setting", [{"stop_gradient": True}, {"resilience": 0}, {"resilience": None}])
def test_a_run_that_descends_no_relaxed_lagrangian_has_no_such_values(setting: dict[str, Any]) -> None:
    one = logged([[1.0, 0.8, 0.6]], [[0.0] * 3])
    assert values(one) is not None
    one["summary"]["settings"] |= setting
    assert values(one) is None
    assert values(line("erm")) is None and values(line("constrained")) is None


def test_the_figure_of_theorem_1_shows_the_papers_form_alone() -> None:
    rows = [[1.0, 1.1, 0.8], [1.0, 1.0, 0.5]]
    lines = [logged(rows, [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]], seed) for seed in range(2)]
    lines += [line("erm"), line("constrained")]
    (panel,) = FIGURES["theory-4"](results(lines)).chart.panels
    assert panel.title.endswith(": 0.0 %"), "both values are equal at the last step"
    by_name = {series.name: series for series in panel.series}
    assert list(by_name) == ["primal", "Lagrangian", "f_L"] and list(by_name["primal"].x) == [10.0, 20.0]
    assert list(by_name["primal"].y) == pytest.approx([0.8 + 0.2**2 / (2 * RHO), 0.6])
    assert list(by_name["Lagrangian"].y) == pytest.approx([0.8, 0.6])
    empty = FIGURES["theory-4"](results([line("erm"), line("constrained")]))
    assert not empty.chart.panels and empty.chart.missing and [one.held for one in empty.claims] == ["not run"]


@pytest.mark.parametrize(("off", "held"), [(0.0, "held"), (0.3, "not held")])
def test_the_claim_of_theorem_1_is_about_the_end_of_training(off: float, held: str) -> None:
    start, end = [1.0, 1.9, 0.8], [1.0, 1.0 + off, 0.5]
    lines = [logged([start] * 10 + [end], [[0.0, 2.0, 0.0]] * 11, seed) for seed in range(3)]
    found = claim(lines, "theory-4")
    assert found.held == held and f"in {int(not off)} of 1 settings" in found.sentence
    assert "does not bound the duality gap" in found.sentence
    lines[1] = {"cell": lines[1]["cell"], "summary": None, "diverged": "loss is nan", "seconds": 3.0}
    assert claim(lines, "theory-4").held == "not held"


# --- Theorem 2


def measured(losses: list[float], train: list[float], slack: list[float], seed: int = 0) -> dict[str, Any]:
    one = line("paper", seed, losses) | {"train_losses": train}
    one["curves"]["slack"]["values"] = [slack for _ in one["curves"]["slack"]["steps"]]
    return one


def test_the_bound_of_theorem_2_has_the_losses_in_test_mode_and_the_slack() -> None:
    one = measured([4.0, 2.0, 3.0], [3.9, 2.1, 2.8], [0.05, 0.01])
    one["curves"]["loss"]["values"] = [[9.0, 9.0, 9.0] for _ in one["curves"]["loss"]["steps"]]  # of training batches
    assert gap_bound(results([one]).runs[0]) == pytest.approx((0.2 + 0.05) / ALPHA)
    one["curves"].pop("slack")
    assert gap_bound(results([one]).runs[0]) == pytest.approx(0.2 / ALPHA)
    one.pop("train_losses")
    assert isnan(gap_bound(results([one]).runs[0])), "a study of before has no such losses"
    one["train_losses"] = [3.9, None, 2.8]
    assert isnan(gap_bound(results([one]).runs[0])), "a loss that is not finite"


def test_the_figure_of_theorem_2_shows_both_forms_and_their_bounds() -> None:
    paper = measured([4.0, 2.0, 3.0], [4.0, 2.0, 2.9], [0.1, 0.0])
    ours = line("constrained", losses=[4.0, 3.5, 2.0]) | {"train_losses": [4.0, 3.5, 2.0]}
    ours["curves"]["slack"]["values"] = [[0.0, 0.0] for _ in ours["curves"]["slack"]["steps"]]
    (panel,) = FIGURES["theory-1"](results([line("erm", losses=[4.0, 5.0, 1.0]), paper, ours])).chart.panels
    assert [list(series.y) for series in panel.series] == [[3.0, 3.0, 0.0], [3.0, 1.0, 1.0], [3.0, 2.5, 1.0]]
    assert [one.at for one in panel.lines] == pytest.approx([0.2 / ALPHA, 0.0])
    assert "Preset paper" in panel.lines[0].words


def test_a_bound_above_the_gap_of_the_input_says_nothing() -> None:
    erm = line("erm", losses=[4.0, 5.0, 1.0])
    near = measured([4.0, 2.5, 3.0], [3.8, 2.3, 2.8], [0.0, 0.0])
    found = claim([erm, near], "theory-1")
    assert found.held == "undecided" and "In 0 of 1 settings" in found.sentence, (
        "a loss of 2.5 is more than 0.2 / α = 2"
    )
    near["summary"]["layer_losses"]["0.8"], near["train_losses"] = [4.0, 1.5, 1.5], [3.8, 1.3, 1.3]
    assert "In 1 of 1 settings" in claim([erm, near], "theory-1").sentence
    far = measured([4.0, 2.5, 3.0], [9.0, 9.0, 9.0], [0.0, 0.0])
    assert "In 0 of 0 settings" in claim([erm, far], "theory-1").sentence
    assert not FIGURES["theory-1"](results([far])).chart.panels[0].lines
    far.pop("train_losses")
    shown = FIGURES["theory-1"](results([far])).chart
    assert shown.panels and "test mode" in shown.missing and claim([far], "theory-1").held == "not run"


# --- Theorem 4


def shifted(arm: str, slope: float, seed: int = 0, **settings: Any) -> dict[str, Any]:
    """A cell whose layers' losses grow with the noise by a slope, the last layer's by half of it."""
    one = line(arm, seed)
    one["summary"]["settings"] |= settings
    for level in LEVELS:
        rise = slope * (float(level) - 0.8)
        one["summary"]["layer_losses"][level] = [4.0 + rise, 3.0 + rise, 2.0 + rise / 2]
    return one


def test_the_term_of_theorem_4_is_that_of_any_model_over_alpha() -> None:
    lines = [shifted("erm", 0.5), *(shifted("paper", 0.25, seed) for seed in range(2))]
    (found,) = transfers(results(lines).judging("paper"))
    assert found.level == 2.0 and found.distance == pytest.approx(1.2)
    assert found.constant == pytest.approx(0.5), "the steepest layer of any method"
    assert found.allowed == pytest.approx(0.6) and found.any_gap == pytest.approx(1.2)
    assert found.term == pytest.approx(2 * 0.6 / ALPHA)
    assert found.rise("erm") == pytest.approx(0.3) and found.rise("constrained") == pytest.approx(0.15)
    assert not found.telling, "12 is more than the input's own 4.3"
    (row,) = FIGURES["table-theory"](results(lines)).table.rows
    assert row == ["UT-2, UCSD, γ = 0.8", "2", "0.5", "0.6", "0.3", "0.15", "1.2", "12", "no"]


def test_noise_given_as_a_variance_is_as_far_as_its_standard_deviations() -> None:
    run = results([shifted("paper", 0.5, noise_is="variance")]).runs[0]
    assert noise_distance(run, 1.8) == pytest.approx(1.8**0.5 - 0.8**0.5)
    assert noise_distance(results([shifted("paper", 0.5)]).runs[0], 0.4) == pytest.approx(0.4)


def test_a_loss_that_is_not_finite_leaves_a_table_with_words() -> None:
    one = shifted("paper", 0.1)
    one["summary"]["layer_losses"]["2.0"] = [inf, inf, inf]
    (row,) = FIGURES["table-theory"](results([one])).table.rows
    assert row[2] == "0.1" and row[5] == "∞"
    assert not FIGURES["table-theory"](results([line("erm")])).table.rows
