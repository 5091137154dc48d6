"""The tables that compare methods, from made-up cells whose numbers are known in closed form."""

from math import isnan, sqrt

import pytest
from scipy.stats import t as student

from reproduction.records import parse_cell
from reproduction.report import FIGURES
from reproduction.report.overview import RunCount, overview
from reproduction.report.results import Results
from tests.support.studies import line, small

FALLING, FLAT = [3.0, 2.0, 1.0], [3.0, 1.0, 1.0]


def results(lines):
    return Results.of(parse_cell(each, "a line") for each in lines)


def ut(arm, seed, error, *, data="ucsd", gamma=0.8, regime="strong", model="UT", variant="", half=None, **changed):
    """A video run of depth 2 with one RMSE at every test noise, so that only seeds vary.

    At the training noise its layers have the RMSE 2 ``error``, ``half`` and ``error``.
    """
    rows = {str(gamma): [2 * error, 2 * error if half is None else half, error]}
    entries = {"layer_metrics": rows, "layer_losses": {str(gamma): FALLING}, "values": [error] * 6, "mean": error}
    entries |= {"target": "geometric", "feasible": True} | changed
    run = line("video", model, data, 2, gamma, arm, seed, regime=regime, variant=variant, **entries)
    run["groups"]["scores"] = [[100 * error**2] * 12] * 6
    return run


def diverged(run):
    return {"cell": run["cell"], "summary": None, "diverged": "the loss is NaN", "seconds": 1.0}


def text(arm, seed, accuracy, half):
    """A classifier of depth 2 with one accuracy at every test noise, and another at half depth."""
    entries = {"layer_metrics": {"1.0": [0.3, half, accuracy]}, "values": [accuracy] * 5, "mean": accuracy}
    run = line("text", "DistilBERT", "imdb", 2, 1.0, arm, seed, **entries, layer_losses={"1.0": FALLING})
    run["groups"]["scores"] = [[100 * accuracy] * 12] * 5
    return run


def seeds(errors, arm, **other):
    return [ut(arm, seed, error, **other) for seed, error in enumerate(errors)]


@pytest.fixture
def study():
    """The default gains 10 %, loses 10 %, and gains 5 % with seeds that are far apart; linear ran in one setting."""
    plain = [each for data in ("ucsd", "avenue", "shanghaitech") for each in seeds([10, 10, 10], "erm", data=data)]
    default = seeds([9, 9, 9], "constrained") + seeds([11, 11, 11], "constrained", data="avenue")
    default += seeds([8, 9.5, 11], "constrained", data="shanghaitech")
    return [*plain, *default, *seeds([9.8, 9.8, 9.8], "linear")]


def table(name, lines, key="Method"):
    """A table's rows as dictionaries, by one column, and its words."""
    shown = FIGURES[name](results(lines)).table
    rows = [dict(zip(shown.heads, row, strict=True)) for row in shown.rows]
    by_key = {row[key]: row for row in rows}
    assert len(by_key) == len(rows)
    return by_key, shown.words


# --- overview and table-arms


def test_gains_are_counted_over_settings_and_decided_by_their_intervals(study):
    ours = overview(results(study))["constrained"].over_noise
    assert ours.middle == pytest.approx(5)
    assert (ours.better, ours.worse) == (2, 1)
    assert (ours.surely_better, ours.surely_worse, ours.undecided) == (1, 1, 1)
    rows, _ = table("table-arms", study)
    row = rows["Descend's default"]
    assert [row[head] for head in ("Settings", "Runs", "Diverged", "Better", "Worse", "Undecided")] == [
        *("3", "9", "0"),
        *("2 (1)", "1 (1)", "1"),
    ]
    assert row["Over noise, %"] == row["Layer L: error, %"] == "+5.00"
    assert row["Layer L: accuracy, points"] == "–"


def test_a_method_of_few_settings_says_so_and_has_erms_cost_there_alone(study):
    for each in study:
        elsewhere = each["cell"]["data"] != "ucsd"
        time = [1.0, 2.0, 30.0 if elsewhere else 3.0]
        each["summary"]["latency"] = {"device": "CPU", "batch_size": 1, "milliseconds": time}
        if each["cell"]["arm"] == "linear":
            each["summary"]["layer_metrics"]["0.8"][1] = 10.0  # within 5 % of 9.8 and not within 2 %
    linear = overview(results(study))["linear"]
    assert (linear.settings, linear.runs) == (1, 3)
    assert linear.cost.layers == {1: 1.0, 2: 1.0, 5: 0.5} and linear.erm_cost.layers == {1: 1.0, 2: 1.0, 5: 1.0}
    assert (linear.cost.full, linear.cost.needed) == (3.0, 2.0)
    assert (linear.erm_cost.full, linear.erm_cost.needed) == (3.0, 3.0)
    rows, words = table("table-arms", study)
    row = rows["Linear weights"]
    assert (row["Settings"], row["Layers within 5 %"], row["ms: within 5 %"]) == ("1", "0.50 (1.00)", "2 (3)")
    assert rows["ERM"]["ms: all layers"] == "21"  # the mean of 3, 30 and 30
    assert "not all methods were run in all" in words


def test_a_cost_that_is_known_of_one_method_alone_is_left_out(study):
    """Of the default's three settings one was timed for both methods, and another for the default alone."""
    for each in study:
        place, arm = each["cell"]["data"], each["cell"]["arm"]
        if place == "ucsd" or (place, arm) == ("avenue", "constrained"):
            time = 3.0 if place == "ucsd" else 50.0
            each["summary"]["latency"] = {"device": "CPU", "batch_size": 1, "milliseconds": [1.0, 2.0, time]}
    ours = overview(results(study))["constrained"]
    assert (ours.cost.full, ours.erm_cost.full) == (3.0, 3.0)


def test_half_depth_is_held_against_erms_half_depth():
    lines = seeds([10, 10], "erm", half=16) + seeds([10, 10], "constrained", half=12)
    lines += [text("erm", seed, 0.8, 0.6) for seed in (0, 1)] + [
        text("constrained", seed, 0.83, 0.67) for seed in (0, 1)
    ]
    ours = overview(results(lines))["constrained"]
    assert ours.half_error == pytest.approx(25) and ours.error == 0
    assert (ours.half_accuracy, ours.accuracy) == pytest.approx((7, 3))
    assert ours.over_noise.middle == pytest.approx((0 + 3.75) / 2)


def test_erm_has_no_gains_and_stands_first(study):
    given = overview(results(study))
    assert list(given) == ["erm", "constrained", "linear"]
    assert isnan(given["erm"].error) and isnan(given["erm"].over_noise.middle) and not given["erm"].over_noise.undecided
    rows, _ = table("table-arms", study)
    assert {rows["ERM"][head] for head in ("Better", "Over noise, %", "Layer L/2: error, %")} == {"–"}
    assert (rows["ERM"]["Settings"], rows["ERM"]["Runs"]) == ("3", "9")


def test_falls_are_strict_and_certain_if_every_layer_is():
    lines = [
        ut("constrained", 0, 9, certified=[0.3, 0.2]),
        ut("constrained", 1, 9, certified=[0.3, -0.1]),
        ut("constrained", 2, 9, certified=[0.3, 0.2], layer_losses={"0.8": FLAT}),
        ut("constrained", 3, 9),
        *seeds([10] * 4, "erm"),
    ]
    ours = overview(results(lines))["constrained"]
    assert (ours.falls, ours.certain) == (RunCount(3, 4), RunCount(1, 2))
    lines[0]["groups"]["single"] = True  # samples of one clip say nothing of other clips
    assert overview(results(lines))["constrained"].certain == RunCount(0, 2)
    lines[0]["groups"]["single"] = False
    for groups, certain in ((11, 0), (12, 1)):  # as does what rests on few groups
        lines[0]["summary"] |= {"groups": groups, "feasible": True, "certain": True}
        ours = overview(results(lines[:1] + lines[4:]))["constrained"]
        assert (ours.certain, ours.proven) == (RunCount(certain, 1), RunCount(certain, 1))


def test_a_method_without_constraints_is_feasible_by_the_defaults_target_alone():
    lines = [
        ut("erm", 0, 10, feasible=False),
        ut("erm", 1, 10),
        ut("linear", 0, 10, target="step"),
        ut("linear", 1, 10, target="step"),
        ut("paper", 0, 10, target="step"),
        ut("paper", 1, 10, target="step", feasible=False),
    ]
    given = overview(results(lines))
    assert {arm: str(one.feasible) for arm, one in given.items()} == {
        **{"erm": "1 of 2", "paper": "1 of 2", "linear": "–"}
    }


def test_verdicts_are_taken_at_the_noise_of_training_and_quality_at_that_of_the_setting():
    lines = seeds([10, 10], "erm")
    for seed in (0, 1):
        rows = {"layer_losses": {"0.8": FLAT, "1.2": FALLING}, "train_noise": 1.2}
        lines.append(ut("erm-noisier", seed, 9.5, **rows))
    noisier = overview(results(lines))["erm-noisier"]
    assert noisier.falls == RunCount(2, 2) and noisier.error == pytest.approx(5)


def test_a_diverged_run_counts_as_worst(study):
    gone = [diverged(each) if each["cell"]["arm"] == "linear" and not each["cell"]["seed"] else each for each in study]
    linear = overview(results(gone))["linear"]
    assert (linear.runs, linear.diverged, linear.falls) == (3, 1, RunCount(2, 3))
    assert linear.error == float("-inf") and linear.over_noise.surely_worse == 1
    rows, _ = table("table-arms", gone)
    assert (rows["Linear weights"]["Layer L: error, %"], rows["Linear weights"]["Worse"]) == ("diverged", "1 (1)")
    assert rows["Linear weights"]["Layers within 5 %"].startswith("1.00")


def test_clean_training_counts_as_erm_without_noise_alone():
    lines = [ut("erm-clean", seed, 10, gamma=0.0) for seed in (0, 1)] + seeds([9, 9], "constrained", gamma=0.0)
    lines += seeds([9, 9], "constrained")  # at 0.8 there is no ERM
    given = overview(results(lines))
    assert list(given) == ["erm", "constrained"]
    assert given["erm"].settings == given["constrained"].settings == 1
    assert given["constrained"].error == pytest.approx(10)


def test_without_erm_there_is_nothing_to_compare():
    lines = seeds([9, 9], "constrained")
    assert overview(results(lines)) == {}
    (row,) = FIGURES["table-cells"](results(lines)).table.rows
    assert row[:6] == ["UT", "2", "UCSD", "0.8", "strong", "–"] and row[-4:] == ["–", "–", "–", "1"]


# --- table-cells


def test_every_setting_has_its_numbers_and_its_verdict(study):
    rows, words = table("table-cells", study, "Data")
    name = "Descend's default"
    assert rows["UCSD"][f"{name}: verdict"] == "better" and rows["Avenue"][f"{name}: verdict"] == "worse"
    assert rows["UCSD"][f"{name}: gain %"] == "+10.00 (+10.00 to +10.00)"
    assert rows["ShanghaiTech"][f"{name}: verdict"] == "undecided"
    low, high = interval(rows["ShanghaiTech"][f"{name}: gain %"])
    reach = student.ppf(0.975, 2) * 15 / sqrt(3)  # the seeds' gains are 20, 5 and −10 %
    assert (low, high) == pytest.approx((5 - reach, 5 + reach), rel=0.05)
    assert rows["UCSD"]["Linear weights: gain %"] == "+2.00 (+2.00 to +2.00)"
    assert rows["Avenue"]["Linear weights: gain %"] == rows["Avenue"]["Linear weights: verdict"] == "–"
    assert rows["UCSD"]["Preset paper: feasible"] == "–" and rows["UCSD"][f"{name}: feasible"] == "3 of 3"
    assert (rows["Avenue"]["ERM: last layer"], rows["Avenue"][f"{name}: last layer"]) == ("10", "11")
    assert f"{name}: better than ERM in 2 of 3 settings (1 decided), worse in 1 (1 decided)." in words
    assert "Linear weights: better than ERM in 1 of 1 settings (1 decided), worse in 0 (0 decided)." in words
    assert words.endswith(f"Settings in which {name} is worse: UT-2, Avenue, γ = 0.8 (-10.00 %).")


def test_each_form_of_constraints_has_its_own_columns():
    lines = seeds([10, 10], "erm") + seeds([9, 9], "constrained")
    lines += seeds([12, 12], "paper", feasible=False, certified=[0.1, 0.1])
    rows, words = table("table-cells", lines, "Data")
    row = rows["UCSD"]
    assert [row[f"Preset paper: {head}"] for head in ("feasible", "falls", "last layer", "verdict")] == [
        *("0 of 2", "2 of 2 (2 certain)", "12", "worse")
    ]
    assert [row[f"Descend's default: {head}"] for head in ("feasible", "falls", "last layer", "verdict")] == [
        *("2 of 2", "2 of 2", "9", "better")
    ]
    assert "Preset paper: better than ERM in 0 of 1 settings (0 decided), worse in 1 (1 decided)." in words
    assert "is worse:" not in words


def test_one_seed_decides_nothing_and_equal_runs_are_neither_better_nor_worse():
    rows, words = table("table-cells", [ut("erm", 0, 10), ut("constrained", 0, 10), ut("paper", 0, 9)], "Data")
    assert rows["UCSD"]["Descend's default: gain %"] == "+0.00"
    assert rows["UCSD"]["Preset paper: gain %"] == "+10.00"
    assert rows["UCSD"]["Preset paper: verdict"] == "undecided"
    assert "Descend's default: better than ERM in 0 of 1 settings (0 decided), worse in 0 (0 decided), and neither in 1"
    assert "worse in 0 (0 decided), and neither in 1." in words and "is worse:" not in words


def interval(cell):
    low, _, high = cell[cell.index("(") + 1 : -1].partition(" to ")
    return float(low), float(high)


# --- table-forms


def test_a_form_is_that_of_a_variant_or_of_the_arm_itself():
    lines = [ut(arm, seed, 10) for arm in ("erm", "paper", "constrained", "linear") for seed in (0, 1)]
    lines += [ut(arm, 0, 9, variant="untied") for arm in ("erm", "constrained")] + [ut("paper", 0, 8, variant="tied")]
    lines += [ut("paper", 0, 8, variant="infeasible"), *seeds([10, 10], "erm", data="avenue")]
    lines += [ut(arm, 0, 10, model="DUST") for arm in ("erm", "paper")]
    lines += [ut(arm, 0, 7, model="DUST", variant="proximal") for arm in ("erm", "paper")]
    lines.append(ut("erm", 0, 6, model="DUST", variant="untied"))
    shown = FIGURES["table-forms"](results(lines)).table
    rows = [dict(zip(shown.heads, row, strict=True)) for row in shown.rows]
    forms = {
        (row["Model"], row["Weights"], row["Layer"], row["Method"]): (row["Runs"], row["Last layer"]) for row in rows
    }
    assert len(rows) == len(forms) and {row["Data"] for row in rows} == {"UCSD"}
    assert {row["γσ_x is"] for row in rows} == {"a standard deviation"}
    default, paper = "Descend's default", "Preset paper"
    assert forms == {
        ("UT", "tied", "–", "ERM"): ("2", "10"),
        ("UT", "tied", "–", default): ("2", "10"),
        ("UT", "tied", "–", paper): ("1", "8"),
        ("UT", "untied", "–", "ERM"): ("1", "9"),
        ("UT", "untied", "–", default): ("1", "9"),
        ("UT", "untied", "–", paper): ("2", "10"),
        ("DUST", "tied", "alternating", "ERM"): ("1", "10"),
        ("DUST", "untied", "alternating", "ERM"): ("1", "6"),
        ("DUST", "untied", "alternating", paper): ("1", "10"),
        ("DUST", "tied", "proximal", "ERM"): ("1", "7"),
        ("DUST", "untied", "proximal", paper): ("1", "7"),
    }


def test_the_papers_noise_is_read_in_both_ways():
    arms = {"erm": [6, 7], "paper": [5, 5]}
    lines = [each for arm, errors in arms.items() for each in seeds(errors, arm, gamma=0.15, regime="paper")]
    lines += seeds([2, 2], "erm", gamma=0.15, regime="paper", variant="noise_is=std", feasible=False)
    vit = {"gamma": 0.15, "regime": "paper", "model": "ViT"}
    lines += seeds([4], "erm", **vit) + seeds([3], "erm", variant="noise_is=std", **vit)
    shown = FIGURES["table-forms"](results(lines)).table
    rows = {(row[0], row[4], row[7]): dict(zip(shown.heads, row, strict=True)) for row in shown.rows}
    as_std, as_variance = rows["UT", "a standard deviation", "ERM"], rows["UT", "a variance", "ERM"]
    assert (as_std["Last layer"], as_std["Feasible"], as_std["Falls"]) == ("2", "0 of 2", "2 of 2")
    assert as_std["Mean over noise"] == "2 (2 to 2)"
    assert as_variance["Last layer"] == "6.5"
    reach = student.ppf(0.975, 1) * sqrt(0.5) / sqrt(2)
    assert interval(as_variance["Mean over noise"]) == pytest.approx((6.5 - reach, 6.5 + reach), rel=0.05)
    assert rows["UT", "a variance", "Preset paper"]["Weights"] == "untied"
    assert rows["ViT", "a variance", "ERM"]["Weights"] == rows["ViT", "a variance", "ERM"]["Layer"] == "–"
    assert len(rows) == 5


def test_the_words_on_the_papers_noise_are_right():
    """f_0 of T = 5 frames, each a patch of 256 pixels: ½ Σ_t ‖ε_t‖₂ is about ½ · 5 · 16 standard deviations."""
    words = FIGURES["table-forms"](results([])).table.words
    gamma, sigma = 0.15, 0.179
    for deviation in (sqrt(gamma * sigma), gamma * sigma):
        assert f"{5 * 16 * deviation / 2:.2f}" in words
    assert f"{sqrt(gamma * sigma):.3f}" in words and f"{sqrt(gamma / sigma):.2f} σ_x" in words


# --- all of them


@pytest.mark.parametrize("name", ["table-arms", "table-cells", "table-forms"])
def test_a_study_of_any_part_of_the_grid_is_drawn(name):
    lines = small(seeds=2)
    for part in (lines, lines[::7], lines[1::11], lines[:1], []):
        shown = FIGURES[name](results(part)).table
        assert all(len(row) == len(shown.heads) for row in shown.rows)
        assert "nan" not in shown.csv() and shown.markdown()
    gone = results([diverged(each) for each in lines])
    assert FIGURES[name](gone).table.rows and "nan" not in FIGURES[name](gone).table.csv()
