"""Rows, figures, tables, claims and the page: of two real runs, and of a study whose every cell is made up."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from descend import InputError
from descend.results import Summary
from reproduction import figures, page, tables, theory
from reproduction.__main__ import main
from reproduction.cells import FIRST_EXIT, PAPER_ARMS, SEARCH
from reproduction.claims import CLAIMS, claims
from reproduction.grids import SCALES
from reproduction.run import CELL_FILE, FAILED_FILE, RUN, Study, read_json, write_json
from reproduction.table import Table, at_levels, gain, read, write

SMALL = SCALES["small"]
POINT = {"model": "UT", "data": "ped2", "depth": 5, "gamma": 0.8, "form": "untied"}


# --- finished cells without training: the files of a run, with numbers of our own

GROUPS = {"ped1": 4, "ped2": 7, "avenue": 4, "shanghaitech": 1, "imdb": 60, "mnli": 60, "alpaca": 32}


def finish(study, cell, factor=1.0, feasible=True):
    """Write the files of an evaluated run whose metric and losses are ``factor`` times the usual ones."""
    draw = np.random.default_rng([cell.seed, len(cell.arm)])
    run, higher = study.of(cell) / RUN, cell.recipe in ("text", "text-ut", "lm", "text-distilbert", "llm-sft")
    run.mkdir(parents=True)
    levels = [float(level) for level in cell.evaluate["noise"].split(",")]
    trained, depth, groups = cell.settings["noise"], cell.depth, GROUPS.get(cell.data, 5)
    by_layer = factor * 5 * 0.7 ** np.arange(depth + 1)
    losses = {str(level): (by_layer * (1 + level)).tolist() for level in {*levels, trained, cell.gamma}}
    scores = np.array([[(0.9 / (1 + level / 4) if higher else 5 + 3 * level)] * groups for level in levels])
    scores = np.clip(factor * scores * draw.uniform(0.95, 1.05, scores.shape), 0, 1 if higher else None)
    values = scores.mean(1)
    metrics = {level: (np.linspace(2, 1, depth + 1) * values.mean()).tolist() for level in losses}
    counts = np.full(groups, 10)
    ratios = {"mean": 0.87, "median": 0.82, "histogram": {"edges": [0.5, 1, 2, 4], "counts": [[3, 1, 0]] * depth}}
    asked = cell.settings["method"] == "constrained"
    first = FIRST_EXIT.get(cell.model, 0)
    limits = [0.78 if layer > first and asked else None for layer in range(depth + 1)]
    summary = {
        **{"method": cell.settings["method"], "metric": "accuracy" if higher else "rmse", "higher_is_better": higher},
        **{"noise": levels, "values": values.tolist(), "mean": values.mean(), "auc": np.trapezoid(values, levels)},
        **{"train_noise": trained, "layer_losses": losses, "layer_metrics": metrics, "feasible": feasible},
        **{"violated": [], "limits": limits, "cap": 5.5 if asked else None, "bounds": limits[1:]},
        **{"multipliers": [0.1] * depth, "cap_multiplier": 0.1, "descending_share": 0.7, "sigma": 0.2},
        **{"ratios": ratios, "validation": None if cell.panel == SEARCH else {"layer_metrics": metrics}},
    }
    summary = {name: value for name, value in summary.items() if value is not None}  # as the real file
    squared = scores if higher else scores**2
    write_json(run / "summary.json", summary)
    write_json(
        run / "groups.json", {"counts": counts.tolist(), "scores": (squared * counts).tolist(), "root": not higher}
    )
    write_json(run / "config.json", {"seconds": 60.0, "training": {"resilience": 0.05 if asked else None}})
    rows = [
        {"split": "train", "step": step, "metric": metric, "layer": layer, "value": value}
        for step in (50, 100)
        for layer in range(depth + 1)
        for metric, value in (("loss", float(by_layer[layer])), ("multiplier", 0.1), ("weight", 0.5 - 0.1 * layer))
    ]
    (run / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for level in {0.0, cell.gamma} if cell.complete else ():
        answers = [{"instruction": "Say <b>it</b>.", "output": "a b c a b c"}]
        write_json(run / f"answers-{level:g}.json", answers)
    write_json(study.of(cell) / CELL_FILE, {**cell.fields, "seconds": 150.0})


def finish_all(study, factor=lambda cell: 1.0):
    """Finish the trials, choose, and finish every cell that then can be run."""
    for _ in range(3):
        for cell in study.cells():
            if study.state(cell) in ("to do", "no data"):
                misses = (cell.panel == SEARCH and cell.variant == "trial-1") or cell.variant == "alpha=0.5"
                finish(study, cell, factor(cell), feasible=not misses)
        study.choose()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Scale small with one seed of everything but UT-5 and DUST-5; the paper's runs of UT are 10 % better.

    Another α than the fixed one is chosen. All is finished but a run that diverged and one that is not done.
    """
    main_rows = [row if row.panel == "main" else replace(row, seeds=list(row.seeds)[:1]) for row in SMALL.rows]
    scale = replace(SMALL, rows=[replace(row, seeds=list(row.seeds)[:2]) for row in main_rows])
    study = Study(tmp_path_factory.mktemp("small"), "small", scale)

    def factor(cell):
        if cell.variant == "trial-5":
            return 0.8
        return 0.9 if cell.model == "UT" and cell.arm == "algorithm-1" else 1.0

    finish_all(study, factor)
    gone, undone, *_ = (cell for cell in study.cells() if cell.panel == "main" and cell.arm == "linear")
    for cell in (gone, undone):
        (study.of(cell) / "run" / "summary.json").unlink()
    write_json(study.of(gone) / FAILED_FILE, {"reason": "descend: a loss is not finite", "diverged": True})
    return study


@pytest.fixture(scope="module")
def table(study):
    return read(study)


@pytest.fixture(scope="module")
def drawn(table, tmp_path_factory):
    return page.write(table, tmp_path_factory.mktemp("drawn")).parent


@pytest.mark.parametrize("name", ["report.html", "figures/figure-1.png", "tables/claims.csv"])
def test_a_page_writes_over_no_file_of_somebody_else(table, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="did not write"):
        page.write(table, tmp_path)
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.slow
def test_two_real_runs_become_a_page(tmp_path, capsys):
    """From the command line to the page, through every file that `descend` writes."""
    study, file = str(tmp_path / "study"), tmp_path / "study.jsonl"
    assert main(["run", "DUST-2", "--scale", "smoke", "--out", study]) == 0
    assert main(["collect", study, "--out", str(file)]) == 0
    assert main(["page", str(file), "--out", str(tmp_path / "drawn")]) == 0
    rows = read(file).rows
    assert sorted(rows.arm) == ["algorithm-1", "erm"] and (rows.seconds > 0).all()
    paper = rows[rows.arm == "algorithm-1"].iloc[0]
    assert paper.resilience == 0.05 and paper.limits[-1] == 0.75 and len(paper.energy) == 3
    assert (tmp_path / "drawn" / "figures" / "figure-7.png").is_file()
    html = (tmp_path / "drawn" / "report.html").read_text("utf-8")
    assert "figure-7.png" in html and "Figure 1: A pretrained encoder" in html and "of which no cell is done" in html
    measured = theory.theory(read(file)).iloc[0]
    assert measured["(ζ + u)/α"] >= 0 and measured["P − L̂"] >= 0 and measured["Cτ/α"] > 0


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
    row = table.where(arm="erm", seed=0, **POINT).iloc[0]
    assert row.number == pytest.approx(np.mean(row["values"]), rel=1e-4) and row.falls and row.holds
    assert row.trained["negative"] == 0 and list(row.trained["loss"]) == [str(layer) for layer in range(6)]
    left = table.where(arm="linear", diverged=True).iloc[0]
    assert left.number == math.inf and not left.holds and not left.falls


def test_the_better_optimizer_is_chosen_by_validation(table):
    assert table.better("UT", "untied") == "algorithm-1"
    paper = table.where(arm="paper", **POINT)
    assert set(paper.arm) == {"algorithm-1"} and sorted(paper.seed) == [0, 1, 3, 4]
    two = {"algorithm-1": {"feasible": False, "value": 0.0}, "paper-adam": {"feasible": True, "value": -9.0}}
    worse = table.chosen | {f"UT untied {arm}": {"fixed": fixed} for arm, fixed in two.items()}
    assert replace(table, chosen=worse).better("UT", "untied") == "paper-adam"
    assert Table("small", {}, [], table.rows, table.trials).better("UT", "untied") in PAPER_ARMS


def test_levels_are_cut_with_their_groups(table):
    runs = [table.where(arm=arm, **POINT) for arm in ("algorithm-1", "erm")]
    cut = [at_levels(each, lambda level, gamma: level > gamma) for each in runs]
    whole, beyond = gain(*runs), gain(*cut)
    assert whole.value == pytest.approx(10, abs=3) and beyond.groups == 7
    assert [len(level) for level in cut[0].noise] == [3] * 4 and min(map(min, cut[0].noise)) > 0.8
    ours, plain = (
        np.mean(
            [[value for level, value in zip(run.noise, run.values, strict=True) if level > 0.8] for run in each], -1
        )
        for each in ([*runs[0].itertuples()], [run for run in runs[1].itertuples() if run.seed in set(runs[0].seed)])
    )
    assert beyond.value == pytest.approx(100 * (1 - ours.mean() / plain.mean()), rel=1e-3)


def test_every_figure_and_table_is_made(table, drawn):
    assert {path.stem for path in (drawn / "figures").glob("*.svg")} == set(figures.FIGURES)
    assert {path.stem for path in (drawn / "tables").glob("*.csv")} == {*tables.TABLES, "claims", "theory"}
    assert all(len(pd.read_csv(path)) for path in (drawn / "tables").glob("*.csv"))
    assert (drawn / "report.html").stat().st_size < 200_000


def test_lines_of_a_figure_are_means_over_the_same_seeds():
    """The default was run with three seeds of MiniLM, the others with five."""
    study = read(Path(__file__).parents[2] / "reproduction" / "records" / "study.jsonl")
    figure = figures.figure_1(study)
    assert figure.get_suptitle() == "MiniLM-6 on imdb, γ = 1, 3 seeds"
    plain = study.where(model="MiniLM", arm="erm", gamma=1, seed=[0, 1, 2])
    line = next(each for each in figure.axes[1].get_lines() if each.get_label() == "plain training")
    np.testing.assert_allclose(line.get_ydata(), np.mean([*plain["values"]], 0))


def test_a_figure_without_cells_says_what_it_needs(table):
    only = replace(table, rows=table.rows[table.rows.model == "UT"])
    with pytest.raises(figures.NotRunError, match="MiniLM"):
        figures.figure_1(only)
    judged = claims(only).set_index("claim").verdict
    assert judged["Constrained DUST falls at every layer, at every depth"] == "not tested"
    nothing = replace(table, rows=table.rows[:0])
    assert set(claims(nothing).verdict) == {"not tested"} and len(tables.comparisons(nothing)) == 0


def test_the_claims_follow_the_runs(table):
    judged = claims(table)
    assert len(judged) == len(CLAIMS) and set(judged.verdict) <= {"repeats", "does not", "undecided", "not tested"}
    row = judged[judged["where"] == "Table 3"].iloc[0]
    assert row.verdict == "repeats" and row.ours.startswith("better in ") and row["the paper"] == "74 of 105"
    # The printed numbers are those of the published tables.
    for name, wins, sign in (("table3", "74 of 105", -1), ("table4", "57 of 72", 1)):
        printed = tables.published(name)
        won = (sign * (printed.constrained.astype(float) - printed.unconstrained.astype(float)) > 0).sum()
        assert f"{won} of {len(printed)}" == wins
    gone = tables.published("table3")[["constrained", "unconstrained"]].astype(float).to_numpy() > 60
    assert f"{gone.sum()} of {gone.size} did" in set(judged["the paper"])


def test_ours_stand_beside_the_papers(table):
    made = tables.beside(table, 3)
    row = made[(made.model == "UT") & (made.data == "ped2") & (made.depth == 5) & (made.gamma == 0.8)].iloc[0]
    assert (row["printed: plain"], row["printed: constrained"], row["printed: gain"]) == ("12.36", "12.144", "+1.7 %")
    assert row.gain.startswith("+9.") and set(made[made.data == "ped1"]["printed: gain"]) == {"–"}
    runs = table.where(arm="erm", **POINT | {"form": row.form}).sort_values("seed")
    by_validation = [np.mean(run.validation) for run in runs.itertuples()]
    assert row["best run: plain"] == f"{runs.number.iloc[int(np.argmin(by_validation))]:.4g}"
    settings = tables.settings(table, 1).set_index(["model", "printed"])
    assert settings.loc[("UT", "0.78"), "our runs"] == "0.22" and settings.loc[("DUST", "6.50"), "our runs"] == "6.5"


def test_one_seed_decides_nothing_and_a_run_that_holds_is_not_infeasible(table):
    judged = claims(table).set_index("where").verdict
    assert {judged[f"Figure {number}"] for number in (5, 11, 15, 16)} == {"undecided"}
    held = replace(table, rows=table.rows.assign(holds=True))
    with pytest.raises(figures.NotRunError, match="misses its bounds"):
        figures.figure_11(held)


def test_what_holds_is_counted_with_what_plain_training_meets(table):
    made = tables.held(table).set_index(["model", "method"])
    row = made.loc[("UT", "paper's form, Algorithm 1, untied")]
    assert row.holds.split(" of ")[0] == row.holds.split(" of ")[1] and row["logs with a negative weight"] != "–"
    assert made.loc[("UT", "plain training, tied"), "holds"] == "–"


def test_the_page_is_readable_on_a_telephone_and_escapes_what_a_model_says(drawn, browser):
    html = (drawn / "report.html").read_text("utf-8")
    assert "<script" not in html and "Say &lt;b&gt;it&lt;/b&gt;." in html
    for width in (1280, 390):
        view = browser.new_page(viewport={"width": width, "height": 900})
        view.goto((drawn / "report.html").as_uri())
        assert view.evaluate("document.documentElement.scrollWidth") == width
        assert view.locator("img").first.evaluate("image => image.complete && image.naturalWidth > 0")
