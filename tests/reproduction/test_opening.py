"""The answers and the picture at the top of a study's page."""

from typing import Any

import pytest

from reproduction.records import parse_cell
from reproduction.report.opening import compare, findings, last_loss, last_metric, picture
from reproduction.report.results import Results
from tests.support.studies import BETTER, WORSE, line, small

ARMS = ("erm", "paper", "constrained", "linear")


def results(lines: list[dict[str, Any]]) -> Results:
    return Results.of(parse_cell(one, "a line") for one in lines)


def runs(arms: tuple[str, ...] = ARMS, seeds: int = 3, **changed: Any) -> list[dict[str, Any]]:
    return [line("video", "UT", "ucsd", 3, 0.8, arm, seed, **changed) for arm in arms for seed in range(seeds)]


def scale_layers(one: dict[str, Any], factor: float) -> None:
    """A run's losses along the layers, by group too, and its errors."""
    for row in one["summary"]["layer_losses"].values():
        row[:] = [factor * value for value in row]
    for rows in one["groups"]["layers"]["losses"]:
        rows[:] = [[factor * value for value in row] for row in rows]
    for row in one["summary"]["layer_metrics"].values():
        row[:] = [factor * value for value in row]


@pytest.mark.parametrize(("effect", "first"), [(WORSE, True), (BETTER, False)])
def test_linear_weights_come_first_where_they_are_better(effect: Any, first: bool) -> None:
    lines = runs(effect=effect)
    for one in lines:
        if one["cell"]["arm"] in ("paper", "constrained"):
            scale_layers(one, 1.2 if first else 0.8)
    answers = findings(results(lines))
    assert len(answers) == 5
    place = [answer.startswith("Linear weights, a simpler method, are ") for answer in answers].index(True)
    assert answers[place].count("a simpler method") == 1
    assert place == (0 if first else 3)
    won = "in 1 of 1 settings and worse in 0 (surely 1 and 0)"
    lost = "in 0 of 1 settings and worse in 1 (surely 0 and 1)"
    counts = won if first else lost
    assert f"are better than Descend's default over test noise {counts}. At the last layer they are " in answers[place]


def test_linear_weights_come_first_where_they_are_better_at_the_last_layer_alone() -> None:
    lines = runs()
    for one in lines:
        if one["cell"]["arm"] == "constrained":
            scale_layers(one, 1.2)
    answer = findings(results(lines))[0]
    assert "better than Descend's default over test noise in 0 of 1 settings and worse in 1 (surely 0 and 1)" in answer
    assert answer.endswith(
        "At the last layer they are better by loss in 1 of 1 settings and worse in 0 (surely 1 and 0), by metric in 1 "
        "and worse in 0."
    )


def test_linear_weights_come_first_where_one_form_only_ties_with_them() -> None:
    lines = runs()
    for one in lines:
        if one["cell"]["arm"] in ("paper", "constrained"):
            scale_layers(one, 0.8)
    assert not findings(results(lines))[0].startswith("Linear weights")
    same = {one["cell"]["seed"]: one for one in lines if one["cell"]["arm"] == "linear"}
    for one in lines:
        if one["cell"]["arm"] == "paper":
            like = same[one["cell"]["seed"]]
            one["groups"]["scores"] = like["groups"]["scores"]
            one["summary"]["values"], one["summary"]["mean"] = like["summary"]["values"], like["summary"]["mean"]
    assert findings(results(lines))[0].startswith(
        "Linear weights, a simpler method, are better than preset paper over test noise in 0 of 1 settings and "
        "worse in 0"
    )


def test_the_opening_says_where_the_papers_form_asks_too_much() -> None:
    lines = runs()
    reached = min(one["summary"]["layer_losses"]["0.8"][-1] for one in lines)
    for one in lines:
        if one["cell"]["arm"] == "paper":
            one["summary"]["cap"] = 0.99 * reached / 0.9**3
    words = "In 1 of 1 settings preset paper asks for a lower last loss than the model reached with any method."
    assert words in " ".join(findings(results(lines)))
    for one in lines:
        if one["cell"]["arm"] == "paper":
            one["summary"]["cap"] = 1.01 * reached / 0.9**3
    assert "asks for" not in " ".join(findings(results(lines)))


def test_answers_count_runs_of_each_arm() -> None:
    lines = runs()
    lines[3]["summary"]["feasible"] = False
    for place, one in enumerate(lines):
        one["summary"]["certain"] = one["cell"]["arm"] != "erm" and place != 4
    for one, held in zip(lines[:3], (True, False, True), strict=True):
        assert one["cell"]["arm"] == "erm"
        one["summary"] |= {"target": "geometric", "feasible": held}
    answers = [answer for answer in findings(results(lines)) if not answer.startswith("Linear")]
    assert answers[0].startswith(
        "The constraints hold on test data (in brackets: for certain) in 2 of 3 runs of preset paper (1) and in "
        "3 of 3 runs of Descend's default (3). Plain training's models meet the default's in 2 of 3 (0)."
    )
    assert answers[1] == (
        "Runs whose test loss falls at every layer (in brackets: for certain): ERM 0 of 3 (0), preset paper 3 of 3 "
        "(0), Descend's default 3 of 3 (0), linear weights 0 of 3 (0)."
    )
    assert answers[2].startswith(
        "Preset paper is better than ERM over test noise in 1 of 1 settings and worse in 0 (surely 1 and 0). "
    )
    assert answers[3].endswith("ERM in 0 of 1 on video (6 runs); linear weights in 0 of 1 on video (6 runs).")


@pytest.mark.parametrize(
    ("calibrated", "words"),
    [
        (("erm", "constrained", "linear"), "On texts a temperature is fitted for all methods but “Preset paper”."),
        (ARMS, ""),
        ((), ""),
    ],
)
def test_the_answers_name_the_methods_whose_texts_alone_are_not_calibrated(calibrated: Any, words: str) -> None:
    lines = [line("text", "UT", "imdb", 3, 1.0, arm, seed) for arm in ARMS for seed in range(2)]
    for one in lines:
        one["summary"]["settings"]["calibrate"] = one["cell"]["arm"] in calibrated
    found = " ".join(findings(results(lines)))
    assert words in found and ("temperature" in found) == bool(words)


def test_one_seed_decides_nothing_and_says_so() -> None:
    answers = findings(results(runs(seeds=1)))
    assert "worse in 0 (surely 0 and 0 of the 0 with enough seeds)" in " ".join(answers)
    assert answers[-1] == "No setting has enough seeds to tell where a simpler method is as good."


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (("erm",), "No run with constraints is done yet."),
        (("erm", "paper"), "in 3 of 3 runs of preset paper ("),
        (("erm", "paper", "constrained"), "No setting has both linear weights and constraints yet."),
        (("paper",), "No run of plain training (ERM) is done yet, so nothing is compared."),
        ((), "No run of plain training (ERM) is done yet, so nothing is compared."),
    ],
)
def test_a_partial_study_says_what_is_not_run(arms: tuple[str, ...], words: str) -> None:
    study = results(runs(arms))
    assert words in " ".join(findings(study))
    headings = list(picture(study))
    assert ("Constraints hold" in headings) == ("paper" in arms and "erm" in arms)


def test_a_diverged_run_loses_at_the_last_layer_and_is_not_drawn() -> None:
    lines = runs()
    lines[-4] = {"cell": lines[-4]["cell"], "summary": None, "diverged": "loss is nan", "seconds": 3.0}
    assert lines[-4]["cell"]["arm"] == "constrained"
    study = results(lines)
    for difference in (last_loss, last_metric):
        at_last = compare(study.settings, "constrained", "erm", difference)
        assert (at_last.gains.better, at_last.gains.worse, at_last.gains.surely_worse) == (0, 1, 1)
    assert "Descend's default 2 of 3" in findings(study)[2]
    gains = picture(study)["Median gain over ERM over test noise"]
    assert [bar.x[0] is None for bar in gains.data] == [False, True, False]


def test_the_picture_has_a_bar_for_each_arm() -> None:
    plots = picture(results(small()))
    shares = {bar.name: bar.x[0] for bar in plots["Loss falls at every layer"].data}
    assert shares == {"ERM": 0, "Preset paper": 1, "Descend's default": 1, "Linear weights": 0}
    assert [bar.name for bar in plots["Constraints hold"].data] == ["Preset paper", "Descend's default"]
    judged = runs()
    for one in judged:
        one["summary"]["target"] = "geometric"
    bars = picture(results(judged))["Constraints hold"].data
    assert [bar.name for bar in bars] == ["ERM", "Preset paper", "Descend's default"]
