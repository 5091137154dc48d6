"""The command line of the reproduction, and what it refuses before any work."""

import pytest

from descend.cli import main as descend
from reproduction.__main__ import main

SMOKE = ["figure-2", "--scale", "smoke", "--out"]


@pytest.mark.parametrize("name", ["figures/mine.svg", "report.html"])
def test_a_foreign_file_in_the_studys_folder_is_refused(tmp_path, capsys, name):
    file = tmp_path / "study" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    assert main([*SMOKE, str(tmp_path / "study")]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("descend: ") and "hoose " in line and file.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SMOKE, "FILE/study"], "FILE is a file"),
        (["figure-99"], "no figure or table 'figure-99'"),
        (["report", "NOWHERE"], "NOWHERE has no cells.jsonl"),
        ([*SMOKE, "study", "--card", "0"], "card must be above 0"),
    ],
)
def test_wrong_input_is_one_clear_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("a file")
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_descend_says_where_the_reproduction_is(tmp_path, capsys):
    assert descend(["reproduce", "figure-2"]) == 2
    assert capsys.readouterr().err.endswith("python -m reproduction figure-2\n")
    (tmp_path / "cells.jsonl").touch()
    assert descend(["report", str(tmp_path)]) == 2
    assert f"python -m reproduction report {tmp_path}" in capsys.readouterr().err


def test_help_names_both_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "python -m reproduction report STUDY" in out and "--quiet" in out and "--log-level" in out
