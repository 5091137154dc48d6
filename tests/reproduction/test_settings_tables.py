"""Tables 1, 2 and 5: the paper's surviving numbers, which --preset paper uses, beside our settings."""

import csv

import pytest

from descend.training.preset import paper
from reproduction.grid import RECIPES
from reproduction.published import printed_settings, win_rates
from reproduction.report.drawing import FIGURES
from reproduction.report.results import Results
from reproduction.report.settings_tables import PRINTED, alpaca_eval
from tests.support.studies import small
from tests.support.studies import write as write_study

RECIPE = {(task, model): recipe for task, recipes in RECIPES.items() for recipe, model in recipes.items()}
TASKS = {1: "video", 2: "text", 5: "language"}
NUMBERS = [number for table in TASKS for number in printed_settings(table)]


def preset_of(number):
    chosen = paper(RECIPE[TASKS[number.table], number.model], dataset=number.data or "imdb")
    return {**chosen.settings, **chosen.training}


def test_every_number_that_survives_is_there():
    rows = {}
    for number in NUMBERS:
        rows.setdefault((number.table, number.model, number.data), []).append(number.printed)
    assert rows == {
        (1, "DUST", ""): ["6.50", "0.75"],
        (1, "UT", ""): ["5.50", "0.78"],
        (1, "ViT", ""): ["0.44", "0.71"],
        (2, "DistilBERT", "imdb"): ["12", "1.00", "0.774", "1.00", "1.07"],
        (2, "DistilBERT", "mnli"): ["12", "1.00", "0.774", "1.00", "1.99"],
        (2, "UT", "imdb"): ["3", "0.80", "0.900", "0.90", "3.45"],
        (2, "UT", "mnli"): ["3", "0.00", "0.900", "0.90", "1.98"],
        (5, "Llama", "alpaca"): ["32", "0.25", "0.95", "12.0", "1.5", "6", "8", "0.05"],
    }


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number.table}-{number.model}-{number.place}")
def test_a_value_is_the_printed_number_or_one_less_it(number):
    assert number.reading in ("certain", "guessed", "unread")
    assert (number.reading == "unread") == (number.value is None) == (not number.setting)
    if number.value is not None:
        printed = float(number.printed)
        assert number.value == pytest.approx(1 - printed if number.setting == "alpha" else printed)


@pytest.mark.parametrize("number", [each for each in NUMBERS if each.setting not in ("", "depth")], ids=str)
def test_the_preset_has_every_number_that_we_read(number):
    assert preset_of(number)[number.setting] == number.value


@pytest.mark.parametrize("table", TASKS)
def test_every_row_has_an_alpha_and_a_cap(table):
    for number in printed_settings(table):
        read = {
            each.setting for each in printed_settings(table) if (each.model, each.data) == (number.model, number.data)
        }
        assert {"alpha", "cap"} <= read


def rows_of(tmp_path, name):
    table = FIGURES[name](Results.read(write_study(tmp_path, small()))).table
    return table, list(csv.DictReader(table.csv().splitlines()))


def test_the_papers_rows_stand_before_ours(tmp_path):
    _, rows = rows_of(tmp_path, "table-1")
    ut = [row for row in rows if row["Model"] == "UT"]
    assert ut[0]["Method"] == PRINTED and (ut[0]["cap"], ut[0]["α"], ut[0]["Data"]) == ("5.5?", "0.22?", "all")
    assert ut[0]["As printed"] == "5.50 (cap, guessed), 0.78 (1 − α, guessed)"
    methods = {row["Method"] for row in ut[1:]}
    assert {"ERM", "Preset paper", "Descend's default"} <= methods and PRINTED not in methods
    for row in ut[1:]:
        bound = row["Method"] in ("Preset paper", "Descend's default")
        assert (row["α"], row["cap"]) == (("0.1", "1.5") if bound else ("–", "–")), row["Method"]
        assert row["As printed"] == "–"


def test_table_2_has_a_printed_row_for_each_data_set(tmp_path):
    _, rows = rows_of(tmp_path, "table-2")
    printed = {(row["Model"], row["Data"]): row for row in rows if row["Method"] == PRINTED}
    assert printed.keys() == {(model, data) for model in ("UT", "DistilBERT") for data in ("IMDb", "MNLI")}
    row = printed["UT", "MNLI"]
    assert (row["L"], row["γ"], row["α"], row["cap"]) == ("3", "0?", "0.1?", "1.98?")
    assert "0.90 (unread)" in row["As printed"]


def test_table_5_has_both_win_rates_and_what_a_judge_needs(tmp_path):
    table, rows = rows_of(tmp_path, "table-5")
    assert (
        rows[0]["dropout"] == "0.05" and rows[0]["ρ"] == "0.25?" and "6 (unread), 8 (unread)" in rows[0]["As printed"]
    )
    assert {(rate.gamma, rate.percent) for rate in win_rates()} == {(0, 50), (1.5, 69.93), (1.5, 69.83)}
    said = alpaca_eval()
    assert said in table.words
    assert "50 % (Section 6 and the poster) at γ = 0" in said
    assert "69.93 % (Section 6) or 69.83 % (the poster) at γ = 1.5" in said and "its poster differ" in said
    for need in ("805", "reference outputs", "API key", "descend complete"):
        assert need in said


def test_without_a_run_the_papers_numbers_are_shown():
    table = FIGURES["table-5"](Results([])).table
    assert [row[1] for row in table.rows] == [PRINTED] and "No cell of language was run." in table.words
