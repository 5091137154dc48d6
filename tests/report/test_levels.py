"""Noise levels on a page are standard deviations in units of σ_x, and a hint makes runs at two levels compare."""

import json
import shlex
from pathlib import Path

import pytest

from descend.cli import main
from descend.report import figures
from descend.report.levels import in_std, ways_to_compare
from descend.report.runs import group_runs
from descend.results import Results
from tests.support.pages import NOISE, fake_run

SIGMA = 0.18
PAPER = {"settings": {"noise": 0.15, "noise_is": "variance"}}


def trained(folder: Path, method: str, train_noise: float, **entries) -> Results:
    """A run with made-up numbers, and the command that trained it."""
    fake_run(folder, method, train_noise=train_noise, **entries)
    given = {"data": "/clips/ped2", "method": method, "noise": train_noise}
    config = {"recipe": "video-ut", "method": method, "seed": 0, "model": "UT-7", "settings": {}, "training": {}}
    (folder / "config.json").write_text(json.dumps(config | {"given": given}))
    return Results.read(folder)


def test_a_variance_is_shown_as_a_standard_deviation(tmp_path: Path) -> None:
    shown = in_std(trained(tmp_path / "paper", "constrained", 0.15, **PAPER))
    assert shown.summary.train_noise == pytest.approx((0.15 / SIGMA) ** 0.5, abs=1e-3) and shown.variance == 0.15
    levels = [(level / SIGMA) ** 0.5 for level in NOISE]
    assert shown.summary.noise == pytest.approx(levels, rel=1e-2)
    assert [*shown.summary.layer_losses] == shown.summary.noise and shown.summary.layers_needed.noise == 0.913
    table = figures.robustness(group_runs([shown])[0]).numbers
    assert [float(row.cells[0].text) for row in table.rows] == pytest.approx(levels, rel=1e-2)
    assert in_std(shown) is shown
    plain = trained(tmp_path / "erm", "erm", 0.15)
    assert in_std(plain) is plain


@pytest.mark.slow
def test_runs_at_two_levels_get_the_command_that_makes_them_compare(tmp_path: Path, monkeypatch, capsys) -> None:
    paper, erm = (tmp_path / name for name in ("paper", "erm"))
    views = [trained(paper, "constrained", 0.15, **PAPER), trained(erm, "erm", 0.6)]
    assert main(["compare", str(paper), str(erm), "--out", str(tmp_path / "page")]) == 0
    (line,) = (each for each in capsys.readouterr().out.splitlines() if "To compare them" in each)
    about, command = line.split(" To compare them: ")
    assert about == ("erm was trained at γ = 0.6 and paper at γ = 0.913, given as 0.15 with γσ_x as the variance.")
    words = shlex.split(command)
    assert words[:3] == ["descend", "train", "video-ut"] and words[-2:] == ["--out", f"{erm}-at-0.913"]
    assert words[3:-2] == shlex.split("--data /clips/ped2 --method erm --noise 0.15 --noise-is variance")
    page = (tmp_path / "page" / "report.html").read_text("utf-8")
    assert "trained at γ = 0.913" in page and "trained at γ = 0.6" in page and "To compare them: " in page
    assert page.count("as the variance (--noise-is variance), a standard deviation of 0.913 σ_x") == 1
    # Trained so, they are in one section; a run of the same number in the other unit is not.
    again = trained(tmp_path / "again", "erm", 0.15, **PAPER)
    assert ways_to_compare([views[0], again]) == [] and len(group_runs(list(map(in_std, [views[0], again])))) == 1
    same = trained(tmp_path / "same", "erm", 0.15)
    assert len(group_runs(list(map(in_std, [views[0], same])))) == 2
