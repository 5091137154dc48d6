"""Gains and their intervals against hand calculations, and rows that come back as they were written."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from descend.results import Summary
from reproduction.cells import PAPER_ARMS, SEARCH
from reproduction.grids import SCALES
from reproduction.run import FAILED_FILE, Study, read_json, write_json
from reproduction.table import BLOCKS, Table, _blocks, at_levels, gain, holm, meets, number, read, write
from tests.support.studies import finish_all


def rows(numbers, scores=None, higher=False, seeds=None, diverged=False):
    """Runs at one noise level: their numbers by seed, and the squared error of each group of one sample."""
    scores = scores or [[value**2] for value in numbers]
    return pd.DataFrame(
        {"seed": list(seeds or range(len(numbers))), "number": numbers, "noise": [[0.5]] * len(numbers)}
        | {"values": [[value] for value in numbers], "higher": higher, "root": not higher, "diverged": diverged}
        | {"counts": [[1] * len(each) for each in scores], "scores": [[each] for each in scores], "gamma": 0.5}
    )


def test_an_interval_over_seeds_is_that_of_a_hand():
    """Plain training has the same number at every seed, so the gain's spread is that of ours alone."""
    found = gain(rows([9.0, 9.5, 10.0]), rows([10.0, 10.0, 10.0]))
    error = 100 * np.std([0.9, 0.95, 1.0], ddof=1) / math.sqrt(3)
    width = student.ppf(0.975, 2) * error
    assert found.value == pytest.approx(5) and found.seeds == 3
    assert (found.low, found.high) == pytest.approx((5 - width, 5 + width))
    assert found.p == pytest.approx(2 * student.sf(5 / error, 2)) and found.verdict == "undecided"


def test_an_interval_over_groups_is_the_jackknife_of_a_hand():
    squares = [60.0, 100.0, 140.0]
    ours, theirs = math.sqrt(np.mean(squares)), 12.0
    found = gain(rows([ours], [squares]), rows([theirs], [[theirs**2] * 3]))
    left = [100 * (1 - math.sqrt(np.mean(np.delete(squares, place))) / theirs) for place in range(3)]
    error = math.sqrt(2 / 3 * sum((each - np.mean(left)) ** 2 for each in left))
    assert found.value == pytest.approx(100 * (1 - ours / theirs)) and (found.seeds, found.groups) == (1, 3)
    assert found.high - found.value == pytest.approx(student.ppf(0.975, 2) * error)


def test_variances_add_up_with_satterthwaites_degrees():
    ours, plain = [[8.0, 10.0], [9.0, 11.0], [10.0, 12.5]], [[10.0] * 2] * 3
    values = [math.sqrt(np.mean(each)) for each in ours]
    both = gain(rows(values, ours), rows([math.sqrt(10)] * 3, plain))
    seeds = gain(rows(values), rows([math.sqrt(10)] * 3))

    def error(found, freedom):
        return (found.high - found.value) / student.ppf(0.975, freedom)

    groups = [100 * (1 - np.mean([math.sqrt(run[1 - place]) for run in ours]) / math.sqrt(10)) for place in range(2)]
    parts = (error(seeds, 2) ** 2, np.var(groups, ddof=1) / 2)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2)
    assert error(both, freedom) == pytest.approx(math.sqrt(sum(parts)))


def test_a_gain_needs_shared_seeds_counts_what_diverged_and_knows_which_way_is_up():
    assert math.isnan(gain(rows([1.0], seeds=[0]), rows([1.0], seeds=[1])).value)
    paired = gain(rows([9.0, 1.0], seeds=[0, 7]), rows([10.0], seeds=[0]))
    assert paired.value == pytest.approx(10) and paired.seeds == 1 and math.isnan(paired.low)
    gone = rows([math.inf], diverged=True)
    assert gain(gone, rows([1.0])).verdict == "worse" and gain(rows([1.0]), gone).verdict == "better"
    assert math.isnan(gain(gone, gone).value) and str(gain(gone, rows([1.0]))) == "diverged"
    assert gain(rows([0.9], higher=True), rows([0.8], higher=True)).value == pytest.approx(12.5)
    assert number([0, 1, 2], np.array([1.0, 0.5, 0.5]), True) == pytest.approx(1.25)
    assert number([0, 1, 2], np.array([1.0, 2.0, 6.0]), False) == pytest.approx(3)


def test_holms_adjustment():
    """The values of statsmodels' multipletests(method="holm")."""
    adjusted = holm([0.01, 0.04, 0.03, 0.005, math.nan])
    assert adjusted == pytest.approx([0.04, 0.09, 0.09, 0.025, 1.0])
    assert holm([]) == []


def test_bounds_are_met_up_to_a_hundredth():
    assert meets([9.0, 5.55, 4.3], alpha=0.22, cap=5.5, first=1)
    assert not meets([9.0, 5.56, 4.3], alpha=0.22, cap=5.5, first=1)
    assert not meets([9.0, 5.5, 4.4], alpha=0.22, cap=5.5, first=1)


def test_many_groups_become_few_with_the_same_sums():
    groups = {"counts": [1] * 100, "scores": [[float(place) for place in range(100)]], "root": False}
    blocks = _blocks(groups)
    assert len(blocks["counts"]) == BLOCKS and sum(blocks["counts"]) == 100 and sum(blocks["scores"][0]) == 4950
    assert _blocks(groups) == blocks


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Every cell of UT-5 on Ped2 and its search, finished but one that diverged and one that is not done."""
    small = SCALES["small"]
    chosen = [row for row in small.rows if row.model == "UT" and "ped2" in row.data and 5 in row.depths]
    scale = replace(small, rows=[replace(row, data=["ped2"]) for row in chosen])
    study = Study(tmp_path_factory.mktemp("study"), "small", scale)
    finish_all(study, lambda cell: 0.9 if cell.arm == "algorithm-1" else 1.0)
    gone, undone, *_ = (cell for cell in study.cells() if cell.panel != SEARCH and cell.arm == "linear")
    for cell in (gone, undone):
        (study.of(cell) / "run" / "summary.json").unlink()
    write_json(study.of(gone) / FAILED_FILE, {"reason": "descend: a loss is not finite", "diverged": True})
    return study


@pytest.fixture(scope="module")
def table(study):
    return read(study)


@pytest.mark.slow
def test_the_file_holds_what_the_folder_does(study, table, tmp_path):
    count = write(study, tmp_path / "study.jsonl")
    file = read(tmp_path / "study.jsonl")
    pd.testing.assert_frame_equal(table.rows, file.rows, check_dtype=False, check_index_type=False)
    assert count == len(file.rows) + len(file.trials) == len(study.cells()) - 1
    assert (tmp_path / "study.jsonl").stat().st_size < 4500 * count
    assert (file.trials.panel == SEARCH).all() and not (file.rows.panel == SEARCH).any()
    assert str(study.folder) not in (tmp_path / "study.jsonl").read_text()
    assert read_json(next(study.folder.rglob("summary.json"))).keys() <= Summary.model_fields.keys()  # as a real one


def test_a_row_follows_its_run(table):
    row = table.where(arm="erm", form="untied", seed=0, gamma=0.8).iloc[0]
    assert row.number == pytest.approx(np.mean(row["values"]), rel=1e-4) and row.falls and row.holds
    assert row.trained["negative"] == 0 and list(row.trained["loss"]) == [str(layer) for layer in range(6)]
    left = table.where(arm="linear", diverged=True).iloc[0]
    assert left.number == math.inf and not left.holds and not left.falls


def test_the_better_optimizer_is_chosen_by_validation(table):
    assert table.better("UT", "untied") == "algorithm-1"
    paper = table.where(arm="paper", form="untied", gamma=0.8)
    assert set(paper.arm) == {"algorithm-1"} and sorted(paper.seed) == [0, 1, 2, 3, 4]
    worse = table.chosen | {"UT untied algorithm-1": {"fixed": {"feasible": False, "value": 0.0}}}
    assert replace(table, chosen=worse).better("UT", "untied") == "paper-adam"
    assert Table("small", {}, [], table.rows, table.trials).better("UT", "untied") in PAPER_ARMS


def test_levels_are_cut_with_their_groups(table):
    runs = [table.where(arm=arm, form="untied", gamma=0.8) for arm in ("algorithm-1", "erm")]
    cut = [at_levels(each, lambda level, gamma: level > gamma) for each in runs]
    whole, beyond = gain(*runs), gain(*cut)
    assert whole.value == pytest.approx(10, abs=3) and beyond.value != whole.value and beyond.groups == 7
    assert [len(level) for level in cut[0].noise] == [3] * 5
