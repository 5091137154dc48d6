"""The figure and the table of quality against depth, from cells alone."""

import shutil

import pytest

from reproduction import cell_store, grid
from reproduction.__main__ import main
from reproduction.records import parse_cell
from reproduction.report import FIGURES
from reproduction.report.results import Results
from tests.support.studies import line

LEVEL = 0.8


def vit(arm, seed, rmse, **changed):
    """A run of ViT-4 whose layers have these errors at the training noise, and twice these at γ = 1.6."""
    rows = {"0.8": rmse, "1.6": [2 * value for value in rmse]}
    losses = {level: [value / 10 for value in row] for level, row in rows.items()}
    entries = {"layer_metrics": rows, "layer_losses": losses}
    return line("video", "ViT", "ucsd", 4, LEVEL, arm, seed, regime="strong", **entries | changed)


def results(lines):
    return Results.of(parse_cell(one, "a line") for one in lines)


@pytest.fixture
def study():
    errors = {"erm": [90, 40, 30, 20, 6], "constrained": [50, 8, 6.1, 6.05, 6], "layerskip": [80, 20, 8, 7, 6.2]}
    return [vit(arm, seed, [value + seed / 100 for value in row]) for arm, row in errors.items() for seed in (0, 1)]


def test_the_figure_has_every_layer_and_every_noise_of_every_method(study):
    chart = FIGURES["anytime"](results(study)).chart
    by_layer, by_noise, area = chart.panels
    assert by_layer.log_y and area.log_y
    shown = {series.name: list(series.y) for series in by_layer.series}
    assert shown["Descend's default"] == pytest.approx([50.005, 8.005, 6.105, 6.055, 6.005])
    assert set(shown) == {"ERM", "Descend's default", "LayerSkip"} == {series.name for series in by_noise.series}
    (areas,) = [series for series in area.series if series.name == "ERM"]
    trapezoid = (90 / 2 + 40 + 30 + 20 + 6 / 2) / 4 + 0.005
    assert list(areas.x) == [0.8, 1.6] and list(areas.y) == pytest.approx([trapezoid, 2 * trapezoid])
    assert "DistilBERT" in chart.missing and "Llama" in chart.missing
    assert "LayerSkip" in chart.csv()


def test_the_table_has_the_layers_needed(study):
    table = FIGURES["table-anytime"](results(study)).table
    by_method = {row[2]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    ours, erm = by_method["Descend's default"], by_method["ERM"]
    assert [ours[f"{each} %"] for each in (1, 2, 5)] == ["3.0", "2.0", "2.0"]
    assert [erm[f"{each} %"] for each in (1, 2, 5)] == ["4.0", "4.0", "4.0"]
    assert (ours["Layer L"], ours["Half"], ours["Seeds"]) == ("6.005", "6.105", "2")
    assert float(erm["Area"]) > float(ours["Area"])


def test_missing_are_the_arms_that_the_grid_has_for_a_model(study):
    """ViT has LayerSkip and no NEFTune or R-Drop; RoBERTa has the arms of the tables and the paper's ERM."""
    text = [line("text", "RoBERTa", "imdb", 4, 1.0, arm, 0) for arm in ("erm", "constrained", "linear")]
    missing = FIGURES["anytime"](results([*study, *text])).chart.missing
    assert missing == (
        "Not run: DistilBERT, Llama, Preset paper of ViT, Linear weights of ViT, Uniform weights of ViT, ERM, more "
        "noise of ViT, ERM with preset paper of ViT, Preset paper of RoBERTa, ERM with preset paper of RoBERTa."
    )


def test_the_table_has_milliseconds_to_full_depth_and_to_the_layer_needed(study):
    timed = {"device": "CPU", "batch_size": 1, "milliseconds": [0.5, 1, 2, 3, 4]}
    for one in study[:4]:
        one["summary"]["latency"] = timed
    rows = {row[2]: row for row in FIGURES["table-anytime"](results(study)).table.rows}
    assert rows["ERM"][-2:] == ["4", "4"]
    assert rows["Descend's default"][-2:] == ["4", "2"]
    assert rows["LayerSkip"][-2:] == ["–", "–"]


def test_a_run_with_more_noise_is_read_at_the_noise_of_its_setting(study):
    """It was judged at its own training noise too, where it has no rival."""
    noisier = vit("erm-noisier", 0, [80, 30, 20, 10, 7], train_noise=1.6)
    for name in ("layer_metrics", "layer_losses"):
        noisier["summary"][name]["1.2"] = [1.0] * 5
    again = vit("erm-noisier", 1, [80, 30, 20, 10, 7], train_noise=1.6)
    drawn = results([*study, noisier, again])
    (row,) = [row for row in FIGURES["table-anytime"](drawn).table.rows if row[2] == "ERM, more noise"]
    assert row[3:7] == ["2", "4", "7", "20"]
    (areas,) = [one for one in FIGURES["anytime"](drawn).chart.panels[2].series if one.name == "ERM, more noise"]
    assert list(areas.x) == [0.8, 1.6] and list(areas.y) == pytest.approx([25.875, 51.75])


def test_a_diverged_run_is_named_and_has_no_numbers(study):
    gone = {"cell": study[-1]["cell"], "summary": None, "diverged": "the loss of layer 2 is NaN", "seconds": 1.0}
    table = FIGURES["table-anytime"](results([*study[:-1], gone])).table
    (row,) = [row for row in table.rows if row[2] == "LayerSkip"]
    assert row[3] == "1, 1 diverged" and row[5] == "6.2"
    both = [{**gone, "cell": each["cell"]} for each in study[-2:]]
    (row,) = [
        row for row in FIGURES["table-anytime"](results([*study[:-2], *both])).table.rows if row[2] == "LayerSkip"
    ]
    assert row[3] == "0, 2 diverged" and row[5:] == ["–"] * 8
    chart = FIGURES["anytime"](results([*study[:-2], *both])).chart
    assert {series.name for series in chart.panels[0].series} == {"ERM", "Descend's default"}


def test_the_figure_is_run_and_drawn_from_the_command_line(tmp_path, monkeypatch):
    """On generated data: of each new method a cell, and a pair to hold them against."""
    wanted = {("DistilBERT", arm) for arm in ("erm", "constrained", "neftune", "layerskip")}
    wanted |= {("ViT", "layerskip"), ("Llama", "layerskip")}
    chosen = [cell for cell in grid.cells(["anytime"], "smoke") if (cell.model, cell.arm) in wanted and not cell.seed]
    assert len(chosen) == len(wanted)
    names = ("anytime", "table-anytime")
    monkeypatch.setattr(grid, "WANTED", {name: grid.Wanted("some", lambda _: chosen) for name in names})
    assert main([*names, "--scale", "smoke", "--out", str(tmp_path), "--workers", "1"]) == 0
    lines = cell_store.read(tmp_path)
    assert lines.keys() == {cell.name for cell in chosen}
    for done in lines.values():
        assert done.summary.method == done.cell.arm
        assert [len(curve.metric) for curve in done.summary.anytime] == [done.cell.depth + 1] * 4
    drawn = (tmp_path / "figures" / "anytime.csv").read_bytes()
    assert b"LayerSkip" in drawn and b"NEFTune" in drawn
    shutil.rmtree(tmp_path / "runs")  # the cells are enough
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "figures" / "anytime.csv").read_bytes() == drawn
    assert (tmp_path / "figures" / "table-anytime.md").is_file()
