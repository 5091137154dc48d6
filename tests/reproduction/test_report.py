"""A study's figures, tables and claims from its cells alone; `test_study_page` looks at the page."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest

from descend.errors import InputError
from reproduction.grid import WANTED, cells
from reproduction.published import table_3
from reproduction.records import parse_cell
from reproduction.report import FIGURES, Claim, write_study
from reproduction.report.cells import ARM_NAMES
from reproduction.report.chart import Chart, Line, Panel, Series, arm_style
from reproduction.report.claims import above, below, every, within
from reproduction.report.drawing import put_figures, requested, shown
from reproduction.report.estimates import (
    Number,
    ahead,
    along,
    average,
    over_seeds,
    robust,
    same_seeds,
    share,
    together,
)
from reproduction.report.evidence.answers import repetition
from reproduction.report.parts import Shown
from reproduction.report.results import Results
from tests.support import studies
from tests.support.studies import BETTER, SAME, WORSE, line, small, write

HOSTILE = '=cmd|<b>$^"$\\'


def results(lines: list[dict[str, Any]]) -> Results:
    return Results.of(parse_cell(one, "a line") for one in lines)


@cache
def whole(effect: studies.Effect) -> Results:
    """A whole study, for tests that leave it as it is."""
    return results(small(effect))


def claims(study: Results | list[dict[str, Any]], name: str, form: str = "constrained") -> list[Claim]:
    """A figure's claims about one form of the constraints, and those that are judged once."""
    every = FIGURES[name](study if isinstance(study, Results) else results(study)).claims
    return [claim for claim in every if claim.form in (form, "")]


def verdicts(study: Results | list[dict[str, Any]], name: str, form: str = "constrained") -> list[str]:
    return [claim.held for claim in claims(study, name, form)]


def draw(out: Path) -> list[Claim]:
    """The figures and tables of a folder, without its page."""
    return put_figures(out, _shown(out))


def _shown(out: Path) -> dict[str, Shown]:
    found = Results.read(out)
    return shown(requested(out, found), found)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def multiply_error(one: dict[str, Any], factor: float) -> None:
    """A run's RMSE, and the squares that it is the root of."""
    one["summary"]["values"] = [factor * value for value in one["summary"]["values"]]
    one["groups"]["scores"] = (factor**2 * np.array(one["groups"]["scores"])).tolist()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write(tmp_path_factory.mktemp("study"), small())
    found = draw(out)
    assert [claim.json() for claim in found] == json.loads((out / "figures" / "claims.json").read_text())
    return out


@pytest.mark.parametrize("name", [name for name in FIGURES if not name.startswith("table")])
def test_every_figure_is_a_picture_and_numbers(drawn: Path, name: str) -> None:
    with Image.open(drawn / "figures" / f"{name}.png") as picture:
        assert picture.width in (680, 1380) and round(picture.info["dpi"][0]) == 200
        counts = picture.convert("L").histogram()
        assert counts[255] > 0.5 * sum(counts) and sum(counts[:128]) > 1000  # a white ground, and much on it
    root = ElementTree.parse(drawn / "figures" / f"{name}.svg").getroot()
    assert root.tag.endswith("svg") and len(list(root.iter())) > 100
    numbers = [row for row in rows(drawn / "figures" / f"{name}.csv") if row["x"] and row["y"]]
    assert len(numbers) > 5 and all(np.isfinite(float(row["y"])) for row in numbers)


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith("table")])
def test_every_table_is_markdown_and_numbers(drawn: Path, name: str) -> None:
    found = rows(drawn / "figures" / f"{name}.csv")
    text = (drawn / "figures" / f"{name}.md").read_text()
    # In this study constraints always gain.
    assert bool(found) == (name != "table-lost") and text.count("\n|") == len(found) + 2
    assert not (drawn / "figures" / f"{name}.png").exists()


def test_all_that_can_be_run_can_be_drawn() -> None:
    assert list(FIGURES) == list(WANTED)


def test_a_figure_shows_the_runs_own_numbers(drawn: Path) -> None:
    lines = [one for one in small() if (one["cell"]["model"], one["cell"]["arm"]) == ("ViT", "constrained")]
    expected = np.mean([one["summary"]["values"] for one in lines], axis=0)
    shown = [
        row
        for row in rows(drawn / "figures" / "figure-2.csv")
        if row["panel"].startswith("ViT") and row["series"] == "Descend's default"
    ]
    assert [float(row["y"]) for row in shown] == pytest.approx(expected, rel=1e-5)
    assert all(float(row["low"]) < float(row["y"]) < float(row["high"]) for row in shown)


def test_it_is_drawn_in_the_same_bytes_again(drawn: Path, tmp_path: Path) -> None:
    draw(write(tmp_path, small(), ["figure-12"]))
    for kind in ("png", "svg", "csv"):
        name = f"figures/figure-12.{kind}"
        assert (tmp_path / name).read_bytes() == (drawn / name).read_bytes()


def test_all_that_was_asked_for_is_drawn_and_its_claims_are_whole(tmp_path: Path) -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, 0) for arm in ("erm", "constrained")]
    draw(write(tmp_path, lines, ["table-3"]))
    path = tmp_path / "figures" / "claims.json"
    for before in ("[1]", '[{"figure": "figure-99"}]', '[{"fig'):
        path.write_text(before)
        found = draw(write(tmp_path, lines, ["table-3", "table-4"]))
        assert json.loads(path.read_text()) == [claim.json() for claim in found]
    assert {claim.figure for claim in found} == {"table-3", "table-4"}
    assert {file.name for file in path.parent.iterdir()} == {
        "claims.json",
        *(f"table-{number}.{kind}" for number in (3, 4) for kind in ("csv", "md")),
    }


# --- verdicts: effects that are known come out


@pytest.mark.parametrize(("effect", "held"), [(BETTER, "held"), (SAME, "undecided"), (WORSE, "not held")])
def test_wins_and_robustness_follow_the_effect(effect: Callable[..., float], held: str) -> None:
    study = whole(effect)
    assert verdicts(study, "table-3")[0] == verdicts(study, "table-4")[0] == held
    assert verdicts(study, "figure-1")[1] == verdicts(study, "figure-2")[1] == verdicts(study, "figure-6")[1] == held
    assert verdicts(study, "figure-4")[0] == held


def test_no_loss_where_there_is_none_is_held_within_its_margin() -> None:
    assert verdicts(whole(SAME), "figure-2")[2] == verdicts(whole(SAME), "figure-6")[2] == "held"
    assert verdicts(whole(WORSE), "figure-2")[2] == verdicts(whole(WORSE), "figure-6")[2] == "not held"
    assert verdicts(whole(SAME), "figure-4")[2] == "held" and verdicts(whole(BETTER), "figure-4")[2] == "not held"


def test_the_gain_is_what_was_put_in() -> None:
    (claim,) = (one for one in claims(whole(BETTER), "figure-8") if "UT and ViT" in one.claim)
    assert "at the strongest 12.1 % (95 %" in claim.sentence  # 2 %, and 5 % more for each γ, from 0 to 2


@pytest.mark.parametrize(
    ("start", "slope", "held"),
    [
        (-0.02, 0.05, ["held", "not held"]),
        (0.02, 0.05, ["not held", "not held"]),  # nothing is given up for the gain
        (-0.3, 0.05, ["not held", "not held"]),  # less is lost, nothing is gained
        (0.1, -0.03, ["not held", "held"]),
        (-0.01, -0.03, ["not held", "not held"]),  # it is never ahead
    ],
)
def test_a_trade_has_two_sides(start: float, slope: float, held: list[str]) -> None:
    lines = small(lambda cell, noise: start + slope * noise)
    assert verdicts(lines, "figure-8") == held


def test_who_loses_less_from_depth_than_another_does_not_gain_from_it() -> None:
    def deeper(cell: dict[str, Any], noise: float) -> float:
        return -0.02 * cell["depth"]

    lines = small(deeper)
    for one in lines:  # ERM loses more
        if one["cell"]["arm"] == "erm" and one["cell"]["depth"] == 5 and one["cell"]["task"] == "video":
            multiply_error(one, 1.5)
    claim = claims(lines, "figure-3")[1]
    assert claim.held == "not held" and "which is more by" in claim.sentence


def test_repetition_without_noise_is_not_fallen_into() -> None:
    assert verdicts(whole(BETTER), "figure-16") == ["held"]
    lines = small()
    for one in lines:
        for answer in one.get("completions", []):
            if one["cell"]["arm"] == "erm":
                answer["text"] = "a mouse " * 40  # whatever the noise
    (claim,) = claims(lines, "figure-16")
    assert claim.held == "not held" and "more than it does without noise by 0 points" in claim.sentence


def test_one_of_many_falls_only_beyond_what_chance_does_to_many() -> None:
    def number(value: float, spread: float = 1.0) -> Number:
        rows = np.random.default_rng(3).normal(value, spread, 2000)
        return Number(value, rows, rows, 200, 200)

    many = {place: number(-20.0) for place in range(60)}
    assert every(many, below).held == "held"
    many[7] = number(2.9)  # beyond 95 % of two variances, not beyond 1 − 0.05 / 60
    assert below(many[7].interval) == "not held"
    found = every(many, below)
    assert (found.held, found.worst) == ("undecided", 7)
    assert found.ends[7].low < 0 and found.ends[7].over == "for one picked of 60"
    many[7] = number(9.0)
    assert every(many, below).held == "not held"
    many[8] = number(20.0, 50.0)
    assert every(many, below).worst == 7, "of 8, which is further off, nothing is sure: it does not refute"
    assert (
        every({0: number(-9.0)}, above, -5.0).held == "not held" and every({0: number(0.0)}, within, 5.0).held == "held"
    )
    assert every({0: number(1.0), 1: number(np.nan)}, above).worst == 1


def test_samples_of_one_clip_are_said_to_be_of_one() -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(3)]
    sentence = claims(lines, "figure-2")[1].sentence
    for one in lines:
        one["groups"]["single"] = True
    assert "within one clip" not in sentence
    assert "over seeds and within one clip" in claims(lines, "figure-2")[1].sentence


def test_descent_is_seen_where_it_is_and_is_not() -> None:
    assert verdicts(whole(BETTER), "figure-7") == ["held", "held"]
    lines = small()
    for one in lines:  # ERM's layers now descend too, and a constrained layer does not
        if one["cell"]["model"] == "DUST":
            one["groups"].pop("layers")
            for row in one["summary"]["layer_losses"].values():
                if one["cell"]["arm"] == "erm":
                    row.sort(reverse=True)
                else:
                    row[2] = row[1] * 1.1
    assert verdicts(lines, "figure-7") == ["not held", "not held"]


@pytest.mark.parametrize(("step", "held"), [(0.03, "held"), (0.0, "undecided"), (-0.03, "not held")])
def test_an_ablation_of_alpha_is_judged_from_its_ends(step: float, held: str) -> None:
    lines = small()
    for one in lines:
        if one["cell"]["variant"].startswith("alpha="):
            rise = step * float(one["cell"]["variant"][6:]) / 0.5
            one["groups"]["scores"][-1] = [score + 100 * rise for score in one["groups"]["scores"][-1]]
            one["summary"]["values"][-1] += rise
    assert verdicts(lines, "figure-5", "paper") == [held, "held"]
    chart = FIGURES["figure-5"](results(lines)).chart
    assert list(chart.panels[0].series[0].x) == [0.05, 0.1, 0.3, 0.5], "the table's own α, 0.1, is among them"


def test_an_infeasible_run_is_found_and_named() -> None:
    lines = small()
    for one in lines:
        if one["cell"]["variant"] == "infeasible":
            multiply_error(one, 1.5)
    worse, named = claims(lines, "figure-11", "paper")
    assert worse.held == named.held == "held" and re.search("a gain in RMSE of −(49|5[0-3])", worse.sentence)
    assert "layers 2 and 3 break" in named.sentence


def test_violations_that_grow_faster_than_linearly_are_noticed() -> None:
    first = claims(whole(BETTER), "theory-2")[0]
    assert first.held == "undecided" and "runs can't refute this" in first.sentence  # C may be larger
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(3)]
    for one in lines:
        one["groups"].pop("layers")
        for level, row in one["summary"]["layer_losses"].items():
            slope = 0.2 * np.sqrt(max(0.0, float(level) - 0.8))  # slower and slower
            row[:] = [1.0, 0.5 + slope, 0.3, 0.1]
    assert verdicts(lines, "theory-2")[0] == "held"
    for one in lines:  # every layer linearly, though not the largest of them: another one takes over
        for level, row in one["summary"]["layer_losses"].items():
            row[:] = [1.0, 0.5 + 0.25 * max(0.0, float(level) - 0.8), 0.3, 0.1]
    claim = claims(lines, "theory-2")[0]
    assert claim.held == "held" and "in 1 of 1 settings" in claim.sentence


def test_energies_that_rise_are_noticed() -> None:
    assert verdicts(whole(BETTER), "theory-3") == ["held"]
    lines = small()
    for one in lines:
        for row in one["summary"].get("energy", {}).values():
            row[1] = row[0] + 5
    assert verdicts(lines, "theory-3") == ["not held"]


# --- what is missing, diverged or damaged


def test_with_one_run_alone_everything_is_drawn_and_says_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, [line("video", "UT", "ucsd", 3, 0.8, "erm", 0)])
    found = draw(tmp_path)
    assert {claim.held for claim in found if not claim.claim.startswith("No run diverges")} <= {"not run", "undecided"}
    assert all(claim.sentence.startswith("Not run: it needs") for claim in found if claim.held == "not run")
    chart = FIGURES["figure-4"](Results.read(tmp_path)).chart
    assert "RoBERTa on IMDb" in chart.missing and not chart.panels
    for name in FIGURES:
        kinds = ("md", "csv") if name.startswith("table") else ("png", "svg", "csv")
        assert all((tmp_path / "figures" / f"{name}.{kind}").stat().st_size for kind in kinds)


def test_one_seed_decides_nothing() -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, 0, effect=WORSE) for arm in ("erm", "constrained")]
    found = claims(lines, "figure-2")
    assert [claim.held for claim in found[1:]] == ["undecided", "undecided"]
    assert "no interval" in found[1].sentence


def test_a_run_that_diverged_is_lost_counted_and_named(tmp_path: Path) -> None:
    arms, strong = ("erm", "constrained"), {"regime": "strong"}
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed, **strong) for arm in arms for seed in range(3)]
    gone = lines.pop()
    lines.append({"cell": gone["cell"], "summary": None, "diverged": "loss of layer 3 is nan", "seconds": 3.0})
    found = {claim.claim[:6]: claim for claim in draw(write(tmp_path, lines, ["table-3"]))}
    assert found["No run"].held == "not held" and gone["cell"]["name"] in found["No run"].sentence
    assert "0 of 1" in found["Constr"].sentence and "worse in 1;" in found["Constr"].sentence
    (row,) = rows(tmp_path / "figures" / "table-3.csv")
    assert row["Descend's default"] == "diverged" and row["ERM"][0].isdigit()
    draw(write(tmp_path, lines, ["figure-2", "figure-7", "theory-1", "theory-2"]))  # and nothing falls over it


def test_every_step_is_asked_not_the_least_one_alone() -> None:
    lines = [line("video", "DUST", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(3)]
    for one in lines:  # layer 1 falls by little, alike in all seeds; layer 3 by more, and differs from seed to seed
        one["groups"].pop("layers")
        if one["cell"]["arm"] == "constrained":
            one["summary"]["layer_losses"]["0.8"] = [1.0, 0.99, 0.9, 0.9 - 0.05 * one["cell"]["seed"]]
    claim = claims(lines, "figure-7")[0]
    assert claim.held == "undecided" and "layer 3 of DUST-3" in claim.sentence


def test_each_form_is_judged_apart() -> None:
    def apart(cell: dict[str, Any], noise: float) -> float:
        return (WORSE if cell["arm"] == "paper" else BETTER)(cell, noise)

    study = results(small(apart))
    assert verdicts(study, "table-3", "paper")[0] == "not held" and verdicts(study, "table-3")[0] == "held"
    forms = [(claim.form, claim.held) for claim in FIGURES["figure-6"](study).claims if "strong noise" in claim.claim]
    assert forms == [("paper", "not held"), ("constrained", "held")]


def test_a_claim_is_judged_once_where_one_form_alone_has_its_cells() -> None:
    study = whole(BETTER)
    ablations = [claim for name in ("figure-5", "figure-11", "figure-14") for claim in FIGURES[name](study).claims]
    assert {claim.form for claim in ablations} == {"paper"}
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, 0) for arm in ("erm", "constrained")]
    assert {claim.form for claim in FIGURES["figure-2"](results(lines)).claims} == {"constrained"}
    unknown = FIGURES["figure-4"](results(lines)).claims
    assert {(claim.form, claim.held) for claim in unknown} == {("", "not run")}


def test_claims_on_no_form_are_judged_once() -> None:
    study = whole(BETTER)
    every = [claim for name in FIGURES for claim in FIGURES[name](study).claims if claim.held != "not run"]
    once = [claim for claim in every if not claim.form]
    starts = ("Unconstrained DUST does not", "No run diverges", "UT's and DUST's layers")
    assert [claim.claim.startswith(start) for claim, start in zip(once, starts, strict=True)] == [True] * 3
    for form in ("paper", "constrained"):
        gone = claims(diverge(small(), model="DUST", depth=5, arm=form, seed=0), "theory-3")
        assert gone[0].held == "not held" and gone[0].sentence.startswith("Diverged: ")


def test_figures_have_a_line_or_a_panel_for_each_form() -> None:
    study = whole(BETTER)
    for name in ("figure-1", "figure-2", "figure-4", "figure-6", "figure-7", "figure-13", "figure-16"):
        chart = FIGURES[name](study).chart
        assert {"ERM", "Preset paper", "Descend's default"} <= chart.legend().keys(), name
    for name in ("figure-3", "figure-8", "figure-9", "figure-10"):
        panels = FIGURES[name](study).chart.panels
        counts = {form: sum(form in panel.title for panel in panels) for form in ("Preset paper", "Descend's default")}
        assert counts["Preset paper"] == counts["Descend's default"] > 0, name
    spread = FIGURES["figure-12"](study).chart.legend()
    assert list(spread) == ["ERM", "Preset paper", "Descend's default", "Preset paper, no relaxation"]


def test_steps_along_layers_rest_on_seeds_and_groups_where_groups_are_told() -> None:
    lines = [line("video", "DUST", "ucsd", 2, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(3)]
    for one in lines:  # half of the blocks fall and half rise, in every seed
        rises = np.tile([-30.0, 28.0], studies.GROUPS // 2)
        told = one["groups"]["layers"]
        told["losses"][told["noise"].index(0.8)] = [[100.0] * studies.GROUPS, (100 + rises).tolist(), [10.0] * 12]
        one["summary"]["layer_losses"]["0.8"] = [1.0, 0.99, 0.1]
    assert verdicts(lines, "figure-7")[0] == "undecided"
    (setting,) = results(lines).where(model="DUST")
    first, second, _ = along(tuple(setting.constrained), 0.8)
    step = (second - first).interval
    assert step.value == pytest.approx(-0.01) and below(step) == "undecided" and not step.over
    for one in lines:
        one["groups"].pop("layers")
    claim = claims(lines, "figure-7")[0]
    assert claim.held == "held" and "interval over seeds alone" in claim.sentence


def test_arms_are_compared_on_the_seeds_that_both_have() -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(4)]
    del lines[0], lines[-1]  # ERM lacks the first seed, constrained the last
    (setting,) = results(lines).settings
    assert [[run.seed for run in runs] for runs in same_seeds(setting.plain, setting.constrained)] == [[1, 2], [1, 2]]
    ours, theirs = together(setting.constrained, setting.plain)
    assert ours.summary().seeds == 2
    assert all("over 2 of 3 seeds" in claim.sentence for claim in claims(lines, "figure-2"))
    ours, theirs = together(setting.constrained[:1], setting.plain[-1:])
    assert not (ours.summary() - theirs.summary()).interval.known, "no pair, no interval"


def test_a_rise_that_was_looked_for_is_held_against_all_that_were_tried() -> None:
    (setting,) = whole(BETTER).where(model="ViT")
    found = robust(tuple(setting.plain)).summary()
    plain, picked = found.interval, found.picked(10)
    assert picked.value == plain.value and picked.high - picked.low > 1.5 * (plain.high - plain.low)


def test_what_one_seed_tells_many_times_is_told_once() -> None:
    assert claims(small(seeds=1), "figure-9")[2].held == "undecided", "three levels of noise are one seed's"
    assert claims(whole(BETTER), "figure-14", "paper")[1].sentence.startswith("The standard deviation over 3 seeds")
    assert "cells share data and seeds" in claims(whole(BETTER), "table-3")[0].sentence
    assert "undecided in" in claims(whole(BETTER), "figure-2")[0].sentence


def test_ratios_of_a_layer_that_does_nothing_are_not_near() -> None:
    lines = [line("text", "RoBERTa", "imdb", 2, 1.0, "constrained", seed) for seed in range(3)]
    for medians, limits, held in (
        ([0.88, 0.88], [None, 0.9, 0.9], "held"),
        ([1.0, 1.0], [None, 0.9, 0.9], "not held"),
        ([1.0, 0.88], [None, None, 0.9], "held"),  # of a layer without a constraint nothing is asked
    ):
        for one in lines:
            one["summary"] |= {"limits": limits}
            one["summary"]["ratios"]["by_layer"] = [[0.5, 0.7, median, 1.2, 1.4] for median in medians]
        assert verdicts(lines, "figure-12")[1] == held
    assert "layers without a constraint (1) among them" in claims(lines, "figure-12")[0].sentence


def test_constraints_without_alpha_are_constraints() -> None:
    """The default target has no limits 1 − α; its summary states the bounds of the layers in force."""
    lines = small()
    for one in lines:
        if one["cell"]["arm"] == "constrained":
            depth, summary = one["cell"]["depth"], one["summary"]
            before = summary["layer_losses"][str(one["cell"]["gamma"])]
            summary |= {"limits": [None] * (depth + 1), "alpha": [], "target": "geometric", "strength": 0.2}
            summary["bounds"] = [None, *(0.86 * loss for loss in before[1:depth])]
    study = results(lines)
    (run, *_) = [run for run in study.runs if run.arm == "constrained"]
    assert run.rates == pytest.approx(dict.fromkeys(range(2, run.depth + 1), 0.86))
    marks = [series.name for series in FIGURES["figure-11"](study).chart.panels[0].series]
    assert "asked of the infeasible run" in marks
    spread, near = claims(study, "figure-12")
    assert "layers without a constraint (1) among them" in spread.sentence and near.held == "held"
    assert FIGURES["theory-1"](study).chart.panels and claims(study, "theory-1")[0].held != "not run"
    assert FIGURES["theory-2"](study).chart.panels
    assert [claim.held for claim in claims(study, "theory-2")] == ["undecided", "not held"]


def test_a_diverged_run_keeps_no_constraint_and_hides_none(tmp_path: Path) -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(3)]
    name = lines[3]["cell"]["name"]
    lines[3] = {"cell": lines[3]["cell"], "summary": None, "diverged": "loss is nan", "seconds": 3.0}
    study = Results.read(write(tmp_path, lines))
    gap = FIGURES["theory-1"](study).claims[0]
    assert gap.held == "undecided" and f"Diverged: {name}." in gap.sentence
    shown = FIGURES["theory-2"](study)
    assert shown.chart.panels, "limits are those of the first run that has any"
    assert all(claim.held == "not held" and name in claim.sentence for claim in shown.claims)


def diverge(lines: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The same lines, of which those of a cell's fields have diverged."""
    return [
        {"cell": one["cell"], "summary": None, "diverged": "loss is nan", "seconds": 3.0}
        if all(one["cell"][name] == value for name, value in wanted.items())
        else one
        for one in lines
    ]


@pytest.mark.parametrize("form", ["paper", "constrained"])
@pytest.mark.parametrize("effect", [BETTER, WORSE])
def test_no_claim_on_texts_holds_by_a_constrained_run_that_diverged(effect: studies.Effect, form: str) -> None:
    names = [f"figure-{number}" for number in ((1, 4, 5, 9, 10, 12, 13, 14, 15) if form == "paper" else (1, 4, 9, 10))]
    study = results(diverge(small(effect), task="text", arm=form, seed=1))
    found = [claim for name in [*names, "table-4"] for claim in claims(study, name, form)]
    held = [claim for claim in found if claim.held == "held"]
    assert [claim.claim for claim in held if not claim.claim.startswith("ERM")] == []
    named = [claim for claim in found if "Diverged: " in claim.sentence]
    assert {claim.figure for claim in named} >= {*names} - {"figure-4"}
    (wins,) = (claim for claim in found if claim.claim.startswith("Constrained models are better in most cells"))
    assert "0 of 6" in wins.sentence and "the mean gain is unknown, without 6 in which a run diverged" in wins.sentence
    table = list(csv.DictReader(FIGURES["table-4"](study).table.csv().splitlines()))
    gains = {row[f"Gain %: {ARM_NAMES[form]}"] for row in table}
    assert {row[ARM_NAMES[form]] for row in table} == gains == {"diverged"}


def test_of_seeds_that_all_diverged_the_settings_are_those_of_their_flags() -> None:
    lines = diverge(small(), variant="alpha=0.3")
    lines = diverge(lines, model="RoBERTa", arm="paper", variant="")
    study = results(lines)
    named = [claim for name in ("figure-5", "figure-14", "figure-15") for claim in claims(study, name, "paper")]
    assert all(claim.held == "not held" and "Diverged: " in claim.sentence for claim in named)
    (row,) = (row for row in FIGURES["table-2"](study).table.rows if list(row[:2]) == ["RoBERTa", "Preset paper"])
    assert "0.003" in row and "0.05" not in row, "what its flags give, and nothing of another's"


def test_an_erm_that_diverged_decides_no_mean_over_curves() -> None:
    for seeds in ([2], [0, 1, 2]):
        lines = small(lambda cell, noise: -0.02 + 0.05 * noise)
        for seed in seeds:
            lines = diverge(lines, task="video", model="ViT", arm="erm", seed=seed)
            lines = diverge(lines, task="video", model="DUST", depth=5, arm="erm", seed=seed)
        trade, faded = claims(lines, "figure-8")
        assert trade.held == "held" and "∞" not in trade.sentence + faded.sentence.split("It changes")[0]
        assert "∞" not in claims(lines, "figure-3")[1].sentence


def test_a_run_that_diverged_makes_no_other_ones_gain_the_larger() -> None:
    lines = diverge(small(), model="DistilBERT", gamma=1.0, arm="constrained", seed=1)
    (larger,) = (claim for claim in claims(lines, "figure-4") if "larger for the larger model" in claim.claim)
    lines = diverge(small(), model="DistilBERT", gamma=0.0, arm="constrained", seed=1)
    grows = claims(lines, "figure-10")[0]
    for claim in (larger, grows):
        assert claim.held == "not held" and claim.sentence.startswith("Diverged: ")


def test_a_rival_that_diverged_is_beaten_and_no_part_of_the_mean_gain() -> None:
    lines = diverge(small(), task="video", model="ViT", arm="erm", seed=2)
    text = diverge(small(), task="text", model="UT", data="imdb", arm="erm", seed=2)
    for changed, table in ((lines, "table-3"), (text, "table-4")):
        before, after = (claims(one, table)[0].sentence for one in (small(), changed))
        assert "without 1 in which a run diverged" in after and "without" not in before
        assert after.split(", with")[0] == before.split(", with")[0], "won all the same"
    (gain,) = (claim for claim in claims(lines, "figure-2") if claim.claim.startswith("On UCSD every"))
    assert gain.held == "held" and "ViT, strong noise ∞ % (a run diverged)" in gain.sentence


def test_energies_and_ratios_do_not_hide_what_diverged() -> None:
    lines = diverge(small(), model="DUST", depth=5, arm="constrained", seed=0)
    for name in ("theory-3", "figure-7"):
        first = claims(lines, name)[0]
        assert first.held == "not held" and first.sentence.startswith("Diverged: ")


def test_claims_of_video_are_on_the_regime_that_most_was_run_of() -> None:
    lines = small()
    for one in lines:
        if one["cell"]["regime"] == "paper" and one["cell"]["arm"] == "constrained" and one["cell"]["task"] == "video":
            multiply_error(one, 9)
    for name in ("figure-2", "figure-8"):
        assert claims(lines, name) == claims(whole(BETTER), name)
    assert any("γ = 0.15" in panel.title for panel in FIGURES["figure-2"](results(lines)).chart.panels)


def test_a_depth_is_chosen_by_the_model_that_was_kept() -> None:
    lines = [line("video", "UT", "ucsd", depth, 0.8, arm, 0) for depth in (3, 5) for arm in ("erm", "constrained")]
    for one in lines:
        # The deep one ends better, but what was kept of it is worse.
        ends = [2.0, 2.0] if one["cell"]["depth"] == 3 else [3.0, 1.0]
        one["validation"] = {"steps": [200, 400], "loss": [[end] for end in ends]}
    (panel,) = FIGURES["figure-2"](results(lines)).chart.panels
    assert panel.title.startswith("UT-5,")
    for one in lines:
        one["kept"] = 200
    (panel,) = FIGURES["figure-2"](results(lines)).chart.panels
    assert panel.title.startswith("UT-3,")


def test_two_models_are_not_settled_by_one() -> None:
    lines = [one for one in small() if one["cell"]["model"] != "RoBERTa"]
    claim = claims(lines, "figure-4")[0]
    assert claim.held == "undecided" and claim.sentence.endswith("The other was not run.")
    worse = [one for one in small(WORSE) if one["cell"]["model"] != "RoBERTa"]
    assert claims(worse, "figure-4")[0].held == "not held"


@pytest.mark.parametrize(("strong", "held"), [(0.05, "held"), (0.002, "undecided"), (0.00002, "not held")])
def test_how_much_seeds_differ_can_be_told(strong: float, held: str) -> None:
    lines = [one for one in small() if one["cell"]["model"] == "RoBERTa"]
    for one in lines:
        away = one["cell"]["seed"] - 1
        one["summary"]["values"] = [0.8 + (0.002 if level < 1 else strong) * away for level in studies.LEVELS["text"]]
    claim = claims(lines, "figure-14", "paper")[1]
    assert claim.held == held, claim.sentence


def test_figure_11_compares_with_all_constrained_seeds() -> None:
    arms = ("erm", "constrained")
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed, effect=WORSE) for arm in arms for seed in range(3)]
    made = [line("video", "UT", "ucsd", 3, 0.8, "constrained", seed, variant="infeasible") for seed in range(3)]
    for one in made:
        one["summary"] |= {"feasible": False, "violated": [2]}
        one["curves"]["violation"]["values"] = [[-1.0, 0.1, -1.0] for _ in one["curves"]["violation"]["steps"]]
    worse, named = claims([*lines, *made], "figure-11")
    assert worse.held == "not held" and "3 constrained runs beside it, of which 3 met" in worse.sentence
    assert named.held == "held"
    for one in lines[3:5]:
        one["summary"]["feasible"] = False
    worse, _ = claims([*lines, *made], "figure-11")
    assert worse.held == "undecided", "those beside it are infeasible too"
    assert "3 constrained runs beside it, of which 1 met" in worse.sentence
    made[0]["curves"]["violation"]["values"][-4:] = [[-1.0, -0.1, -1.0]] * 4
    assert claims([*lines, *made], "figure-11")[1].held == "not held", "it names a layer that met its bound in training"
    worse, named = claims(made, "figure-11")
    assert worse.held == "not run", "it is not compared with itself"


def test_figure_11_needs_a_run_that_was_made_infeasible() -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(3)]
    lines[3]["summary"] |= {"feasible": False, "violated": [1]}
    assert verdicts(lines, "figure-11") == ["not run", "not run"]
    made = [line("video", "UT", "ucsd", 3, 0.8, "constrained", seed, variant="infeasible") for seed in range(3)]
    for one in made:
        one["summary"] |= {"feasible": False, "violated": []}
    assert verdicts([*lines, *made], "figure-11")[1] == "not held", "it names no layer"


def test_a_series_of_another_depth_than_the_title_says_so() -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, 0) for arm in ("erm", "constrained", "uniform")]
    lines += [line("video", "UT", "ucsd", 5, 0.8, arm, 0) for arm in ("erm", "constrained")]
    for one in lines:
        one["validation"]["loss"] = [[float(one["cell"]["depth"] == 3)]]
    (panel,) = FIGURES["figure-2"](results(lines)).chart.panels
    assert panel.title.startswith("UT-5,")
    assert [series.name for series in panel.series] == ["ERM", "Uniform weights, L = 3", "Descend's default"]


def test_an_empty_answer_is_not_one_without_repetition() -> None:
    lines = [line("language", "Llama", "alpaca", 2, 1.5, arm, 0, answers=True) for arm in ("erm", "constrained")]
    for each in lines[1]["completions"]:
        each["text"] = " "
    assert verdicts(lines, "figure-16") == ["not run"]


def test_claims_name_the_data_that_were_run() -> None:
    lines = [line("video", "UT", "scenes", 3, 0.8, arm, 0) for arm in ("erm", "constrained")]
    said = [one.claim for one in claims(lines, "figure-2")]
    assert any("On Generated scenes" in one for one in said) and not any("UCSD" in one for one in said)


@pytest.mark.parametrize("others", [[], [("video", "DUST", "avenue")], [("text", "UT", "imdb")]], ids=len)
def test_a_setting_of_which_all_diverged_is_not_left_out(tmp_path: Path, others: list[tuple[str, str, str]]) -> None:
    arms = ("erm", "constrained")
    gone = [line("video", "UT", "ucsd", 3, 0.8, arm, 0)["cell"] for arm in arms]
    lines = [{"cell": cell, "summary": None, "diverged": "loss is nan", "seconds": 3.0} for cell in gone]
    lines += [line(*place, 3, 0.8, arm, 0) for place in others for arm in arms]
    write(tmp_path, lines, ["table-3", "table-4", "figure-2", "figure-11", "theory-1", "theory-2"])
    found = draw(tmp_path)
    (claim,) = (one for one in found if one.claim.startswith("No run diverges"))
    videos = sum(one["cell"]["task"] == "video" for one in lines)
    assert claim.held == "not held" and claim.sentence.startswith(f"2 of {videos} runs")
    assert all(cell["name"] in claim.sentence for cell in gone)
    assert Results.read(tmp_path).where(model="UT", task="video")[0].metric == "RMSE"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda one: one.pop("summary"), "line 2,.*summary"),
        (lambda one: one["cell"].pop("depth"), "line 2,.*cell.depth"),
        (lambda one: one["summary"].pop("values"), "line 2,.*summary.values"),
        (lambda one: one["groups"].update(counts=[1]), "line 2,.*scores"),
        (lambda one: one["groups"]["layers"].update(counts=[1]), "line 2,.*layers.losses"),
        (lambda one: one["groups"]["layers"].pop("losses"), "line 2,.*groups.layers.losses"),
        (lambda one: one["validation"].update(loss=3), "line 2,.*validation.loss"),
        (lambda one: one["cell"].update(gamma=float("nan")), "line 2,.*cell.gamma"),
        (lambda one: one["cell"].update(gamma=0.7), "line 2,.*losses at γ = 0.7"),
        (lambda one: one["cell"].update(depth=9), "line 2,.*depth 9"),
        (lambda one: one["summary"]["settings"].update(dual_lr=10**400), "line 2,.*too large"),
        (lambda one: one["curves"]["loss"].update(values=[[1.0] * 9] * 40), "line 2,.*one number per layer"),
        (lambda one: one["curves"]["loss"]["values"].pop(), "line 2,.*39 for 40"),
        (lambda one: one["curves"]["loss"]["steps"].__setitem__(0, None), "line 2,.*steps"),
        (lambda one: one["summary"]["ratios"]["histogram"]["edges"].reverse(), "line 2,.*edges"),
        (lambda one: one["summary"]["ratios"]["histogram"].update(edges=[1.0], counts=[[1, 1]]), "line 2,.*edges"),
        (lambda one: one["summary"]["ratios"]["histogram"].update(counts=[[]]), "line 2,.*edges"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, damage: Callable[[dict[str, Any]], Any], words: str) -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, 0) for arm in ("erm", "constrained")]
    damage(lines[1])
    write(tmp_path, lines, ["table-3"])
    with pytest.raises(InputError, match=words):
        draw(tmp_path)


def test_two_runs_of_one_seed_are_no_two_seeds() -> None:
    lines = small()
    again = json.loads(json.dumps(lines[0]))
    again["cell"]["name"] += "-of-other-settings"
    with pytest.raises(InputError, match=r"seed.*settings"):
        results([*lines, again])


def test_zeta_is_of_the_model_that_was_kept() -> None:
    lines = [line("video", "UT", "ucsd", 2, 0.8, "constrained", 0)]
    run = results(lines).runs[0]
    assert run.kept_step == np.inf
    lines[0]["kept"] = 200
    (kept,) = results(lines).runs
    steps, values = kept.curves["loss"].steps, np.array(kept.curves["loss"].values)
    assert kept.trained("loss") == pytest.approx(values[[steps.index(190), steps.index(200)]].mean(0))
    assert (kept.trained("loss") > run.trained("loss")).all()  # it fell further


def test_runs_without_a_common_noise_level_are_named() -> None:
    lines = [line("video", "UT", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(2)]
    lines[3]["summary"]["noise"] = [level + 0.1 for level in lines[3]["summary"]["noise"]]
    with pytest.raises(InputError, match=rf"{lines[3]['cell']['name']}.*noise level"):
        claims(lines, "table-3")


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, [line("video", "UT", "ucsd", 3, 0.8, "erm", 0)])
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"cell": {"na')
    assert len(Results.read(tmp_path).runs) == 1


@pytest.mark.parametrize(
    "told", ["[1]", "{}", '{"scale": "small", "what": 5}', '{"scale": 1, "what": []}', '{"scale": "huge", "what": []}']
)
def test_other_folders_are_refused_in_words(tmp_path: Path, told: str) -> None:
    with pytest.raises(InputError, match=r"cells\.jsonl"):
        draw(tmp_path)
    write(tmp_path, [line("video", "UT", "ucsd", 3, 0.8, "erm", 0)])
    (tmp_path / "study.json").write_text(told)
    with pytest.raises(InputError, match=r"study\.json must"):
        write_study(tmp_path)
    (tmp_path / "study.json").write_text('{"scale": "small", "what": ["figure-33"]}')
    with pytest.raises(InputError, match=r"study\.json.*'figure-33'"):
        draw(tmp_path)


def test_what_words_are_in_a_cell_is_text_in_every_file(tmp_path: Path) -> None:
    lines = [line("video", HOSTILE, HOSTILE, 3, 0.8, arm, 0) for arm in ("erm", "constrained")]
    draw(write(tmp_path, lines, ["table-3", "figure-2"]))
    (row,) = rows(tmp_path / "figures" / "table-3.csv")
    assert row["Model"] == f"'{HOSTILE}" and row["Data"] == f"'{HOSTILE}", "no formula for a spreadsheet"
    last = (tmp_path / "figures" / "table-3.md").read_text().splitlines()[-1]
    assert "<b>" not in last and last.replace("\\|", "").count("|") == len(row) + 1
    assert rows(tmp_path / "figures" / "figure-2.csv")[0]["panel"].startswith(f"'{HOSTILE}-3")


# --- the numbers themselves


def test_the_papers_numbers_stand_beside_ours() -> None:
    table = FIGURES["table-3"](whole(BETTER)).table
    columns = [dict(zip(table.heads, one, strict=True)) for one in table.rows]
    (row,) = (one for one in columns if [*one.values()][:4] == ["UT", "3", "UCSD", "0.15"])
    (theirs,) = (one for one in table_3() if (one.model, one.depth, one.data, one.gamma) == ("UT", 3, "ucsd", 0.15))
    assert float(row["Printed: ERM"]) == theirs.unconstrained
    assert float(row["Printed: constrained"]) == theirs.constrained
    gain = 100 * (theirs.unconstrained - theirs.constrained) / theirs.unconstrained
    assert float(row["Printed: gain %"]) == pytest.approx(gain, abs=0.01)
    strong = [one for one in columns if one["Noise"] == "strong"]
    assert {one["Printed: ERM"] for one in strong} == {"–"}, "the paper has no strong regime"
    heads = list(table.heads)
    assert heads.index("Printed: ERM") == heads.index("Gain %: Preset paper") + 1
    assert all("(" in one[f"Gain %: {ARM_NAMES[form]}"] for one in columns for form in ("paper", "constrained"))


def test_wins_are_those_of_the_tables_own_cells_each_regime_apart(tmp_path: Path) -> None:
    lines = []

    def add(task: str, model: str, gamma: float, effect: Callable[..., float], regime: str = "paper") -> None:
        data, depth = {"video": ("ucsd", 5), "text": ("imdb", 4)}[task]
        for arm in ("erm" if gamma else "erm-clean", "constrained"):
            lines.append(line(task, model, data, depth, gamma, arm, 0, regime=regime, effect=effect))

    add("text", "DistilBERT", 1.0, WORSE)
    add("text", "RoBERTa", 1.0, BETTER)
    for gamma in (0.0, 0.4):  # of Figure 9
        add("text", "DistilBERT", gamma, BETTER)
    add("video", "UT", 0.8, WORSE, "strong")
    add("video", "DUST", 0.8, BETTER, "strong")
    same = [line("video", "DUST", "ucsd", 5, 0.15, "erm", 0) for _ in range(2)]
    same[1]["cell"] |= {"arm": "constrained", "name": "same"}
    found = draw(write(tmp_path, lines + same, ["table-3", "table-4"], "small"))
    told = {(claim.figure, claim.claim[:4]): claim.sentence for claim in found}
    texts, video = told["table-4", "Cons"], told["table-3", "Cons"]
    assert texts.startswith("At the paper's training noise (γ = 1), constrained is better in 1 of 2 (")
    assert "with no ties" in texts
    assert "1 of 2 (50 %) against the paper's 79 %" in told["table-4", "They"]
    ours = "In the strong regime (γ = 0.8: our training noise, not the paper's), "
    assert video.startswith(f"{ours}constrained is better in 1 of 2 (")
    assert "apart: at the paper's training noise (γ = 0.15), it is better in 0 of 1, with 1 tie." in video
    assert told["table-3", "They"].startswith(f"{ours}1 of 2 (50 %) against the paper's")
    assert texts.endswith(
        f"{len(cells(['table-4'], 'small')) - 4} of {len(cells(['table-4'], 'small'))} cells are not run yet."
    )
    assert len(rows(tmp_path / "figures" / "table-4.csv")) == 2
    (tmp_path / "study.json").unlink()
    again = _shown(tmp_path)["table-4"].claims[0].sentence
    assert "3 of 4" in again and "not run yet" not in again, "cells of no scale's grid are all counted"


def test_a_folder_that_does_not_say_is_of_the_scale_that_its_cells_are_of(tmp_path: Path) -> None:
    lines = []
    for one in cells(["table-4", "figure-9"], "small"):
        place = (one.task, one.model, one.data, one.depth, one.gamma, one.arm, one.seed)
        lines.append(line(*place, regime=one.regime, variant=one.variant))
        lines[-1]["cell"]["name"] = one.name
    write(tmp_path, lines, scale="small")
    told = _shown(tmp_path)["table-4"].claims
    (tmp_path / "study.json").unlink()
    assert _shown(tmp_path)["table-4"].claims == told and "of 12 (" in told[0].sentence


def test_the_training_noise_is_in_distribution_too() -> None:
    def at_training(cell: dict[str, Any], noise: float) -> float:
        return -0.1 if noise == cell["gamma"] else 0.1

    for place, figure, number in (
        (("language", "Llama", "alpaca", 5, 1.5), "figure-6", 2),
        (("text", "RoBERTa", "imdb", 4, 1.0), "figure-4", 3),
        (("video", "UT", "ucsd", 3, 0.8), "figure-2", 2),
    ):
        lines = [line(*place, arm, seed, effect=at_training) for arm in ("erm", "constrained") for seed in range(3)]
        claim = claims(lines, figure)[number]
        assert claim.claim.startswith("Up to the training noise") and claim.held == "not held", claim
        assert f"γ = {place[-1]:g}" in claim.sentence


def test_a_level_that_was_not_judged_is_unknown() -> None:
    (setting,) = whole(BETTER).where(model="ViT")
    found = robust(tuple(setting.plain))
    assert found.at(found.noise[1]) is found.numbers[1]
    assert np.isnan(found.at(0.33).value) and not found.at(0.33).interval.known


def test_where_all_runs_of_a_task_diverged_everything_is_drawn_all_the_same(tmp_path: Path) -> None:
    lines = small()
    for place, one in enumerate(lines):
        if one["cell"]["task"] == "text":
            lines[place] = {"cell": one["cell"], "summary": None, "diverged": "loss is nan", "seconds": 1.0}
    others = {f"figure-{number}" for number in (2, 3, 6, 7, 8, 11, 16)}  # of videos or answers alone
    found = draw(write(tmp_path, lines, [name for name in FIGURES if name not in others]))
    texts = ("figure-1", "figure-4", "figure-5", "figure-9", "figure-14", "figure-15")
    told = [claim for claim in found if claim.figure in texts]
    assert {claim.held for claim in told} <= {"undecided", "not held", "not run"}
    assert not any("no multiplier ever left 0" in claim.sentence for claim in found)


def test_what_is_known_of_a_figure_s_cells_is_said_with_its_claims(tmp_path: Path) -> None:
    lines = [line("video", "DUST", "ucsd", 3, 0.8, arm, seed) for arm in ("erm", "constrained") for seed in range(3)]

    def told(scale: str = "") -> list[str]:
        found = draw(write(tmp_path, lines, ["figure-7"], scale))
        return [claim.sentence for claim in found if claim.form]

    free = "In DUST-3 on UCSD at γ = 0.8 no multiplier ever left 0, so that constrained training was plain training."
    assert told() and not any(free in sentence for sentence in told())
    for one in lines[3:5]:
        one["curves"]["multiplier"]["values"] = [[0.0] * 3 for _ in one["curves"]["multiplier"]["steps"]]
    assert not any(free in sentence for sentence in told()), "the third seed's did"
    lines[5]["curves"]["multiplier"] = lines[4]["curves"]["multiplier"]
    assert all(sentence.endswith(free) for sentence in told())
    del lines[5]["curves"]["multiplier"]
    assert not any(free in sentence for sentence in told()), "of the third seed nothing is known"
    assert all(sentence.endswith("Scale smoke says nothing about the method.") for sentence in told("smoke"))


def test_of_a_language_model_without_rises_evenness_is_not_decided() -> None:
    lines = [
        line("language", "Llama", "alpaca", 2, 1.5, arm, seed) for arm in ("erm", "constrained") for seed in (0, 1)
    ]
    for one in lines:
        one["groups"].pop("layers", None)
        one["summary"]["layer_losses"]["1.5"] = [9.0, 6.0 - one["cell"]["seed"], 3.0]
    assert verdicts(lines, "figure-6")[0] == "undecided"


def test_of_a_classifier_without_rises_it_is_not_held_that_erm_has_some() -> None:
    arms = ("erm", "constrained")
    lines = [line("text", "RoBERTa", "imdb", 2, 1.0, arm, seed) for arm in arms for seed in (0, 1)]
    for one in lines:
        one["groups"].pop("layers", None)
        one["summary"]["layer_losses"]["1.0"] = [0.7, 0.6 - 0.1 * one["cell"]["seed"], 0.3]
    assert verdicts(lines, "figure-1")[0] == "not held"


def test_alpha_costs_in_distribution_wherever_it_costs() -> None:
    lines = []
    for alpha in (0.05, 0.5):
        for seed in range(3):
            effect = (lambda cell, noise: -0.5 if noise == 0 else 0.1) if alpha == 0.5 else SAME
            lines.append(
                line("text", "RoBERTa", "imdb", 2, 1.0, "constrained", seed, variant=f"alpha={alpha:g}", effect=effect)
            )
    claim = claims(lines, "figure-5")[1]
    assert claim.held == "not held" and "test γ = 0," in claim.sentence


def test_a_figure_says_the_same_whatever_was_asked_for_beside_it(tmp_path: Path) -> None:
    def made(name: str) -> list[dict[str, Any]]:
        places = [
            (one.task, one.model, one.data, one.depth, one.gamma, one.arm, one.seed) for one in cells([name], "small")
        ]
        return [line(*place, regime="strong") for place in places]

    other = [
        line("video", "DUST", "ucsd", 9, 0.8, arm, 0, regime="strong", effect=WORSE) for arm in ("erm", "constrained")
    ]
    more = {one["cell"]["name"]: one for name in ("figure-3", "figure-7") for one in made(name)}
    found = []
    for what, lines in (["figure-7"], made("figure-7")), (["figure-3", "figure-7"], [*more.values(), *other]):
        write(tmp_path, lines, what, "small")
        found.append(_shown(tmp_path)["figure-7"].claims)
    assert found[0] == found[1] and "not run yet" not in found[0][0].sentence


def test_clean_erm_stands_beside_every_noise_of_its_regime() -> None:
    settings = whole(BETTER).where(task="text", model="DistilBERT", data="imdb")
    assert [(one.gamma, *one.arms) for one in settings] == [
        (0.0, "erm-clean", "constrained", "paper"),
        (0.4, "erm-clean", "erm", "constrained", "paper"),
        (1.0, "erm-clean", "erm", "constrained", "paper"),
    ]
    assert all(one.paired for one in settings) and settings[0].plain[0].arm == "erm-clean"


def test_differences_are_paired() -> None:
    (setting,) = results(small(lambda *_: 0.05)).where(model="ViT")
    ours, theirs = robust(tuple(setting.constrained)).summary(), robust(tuple(setting.plain)).summary()
    gained = ahead(ours, theirs, higher=False)
    assert gained.value == pytest.approx(100 * (1 - ours.value / theirs.value))
    low, high = gained.interval[1:3]
    assert low < 5 < high
    width = theirs.interval.high - theirs.interval.low
    assert (high - low) / 100 * theirs.value < 0.25 * width, "clips that are hard for both fall out"
    both = average([gained, gained])
    assert both.value == pytest.approx(gained.value) and both.interval[:3] == pytest.approx(gained.interval[:3])
    nothing = ahead(ours, ours, higher=False)
    assert nothing.interval[:3] == (0, 0, 0)


def test_summaries_are_those_of_the_runs() -> None:
    for setting in whole(BETTER).settings:
        for runs in setting.arms.values():
            expected = [run.summary.auc if run.higher else run.summary.mean for run in runs]
            assert robust(tuple(runs)).summary().value == pytest.approx(np.mean(expected))


def test_shares_and_means_have_the_intervals_of_the_textbook() -> None:
    exact = binomtest(74, 105).proportion_ci(0.95, method="exact")
    assert share(74, 105)[:3] == pytest.approx((74 / 105, exact.low, exact.high))
    assert share(0, 5).low == 0 and share(5, 5).high == 1
    assert over_seeds([1.0, 2.0, 3.0])[:3] == pytest.approx((2, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert not over_seeds([1.0]).known and not over_seeds([1.0, float("nan")]).known


def test_repetition_counts_what_was_said_before() -> None:
    assert repetition("a b c d e f") == repetition("two words") == repetition("") == 0
    assert repetition("a b c a b c") == pytest.approx(1 / 4)  # abc bca cab abc
    assert repetition("mouse " * 12) == pytest.approx(0.9)


def test_a_chart_writes_down_all_that_it_shows() -> None:
    style = arm_style("erm")
    series = [
        Series("a", style, [0, 1], [2.0, float("nan")], [1.5, 1.0], [2.5, 3.0]),
        Series("b", style, [0.1, 1, 10], [0.25, 0.75], kind="steps"),
    ]
    chart = Chart(
        "figure-0", "t", "w", [Panel("p", "x", "y", series, lines=[Line(0.5, "trained"), Line(1, "one", "y")])]
    )
    assert chart.csv().splitlines() == [
        "panel,series,x,y,low,high",
        *("p,a,0,2,1.5,2.5", "p,a,1,,1,3", "p,b,0.1,0.25,,", "p,b,1,0.75,,"),
        *("p,trained,0.5,,,", "p,one,,1,,"),
    ]
    assert list(chart.legend()) == ["a", "b"]
