"""What a command says: progress, logging, --quiet, and no chatter of libraries."""

import json
import logging
import os
import subprocess
import sys

import pytest

from descend import progress
from descend.cli import main
from tests.support.files import CONFIG

SHORT = ["--data", "generated", "--depth", "2", "--max-steps", "3", "--use-cpu", "--method", "erm"]
TEXT = [*SHORT, "--hidden-size", "16", "--max-length", "60", "--eval-strategy", "no", "--save-strategy", "no"]
VIDEO = ["train", "video-ut", *SHORT, "--window", "2", "--stride", "40"]


def test_training_and_evaluation_say_how_far_they_are_and_quiet_ones_their_result_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 1e-9)  # a line at every step
    assert main([*VIDEO, "--logging-steps", "1", "--out", str(tmp_path / "run")]) == 0
    about, *lines = capsys.readouterr().err.splitlines()[1:]
    assert about.startswith("Training noise: standard deviation ")
    assert [line.split(",")[0] for line in lines[:3]] == [f"training: {step} of 3 steps" for step in (1, 2, 3)]
    assert "left" in lines[1] and "loss" in lines[1]
    assert main(["evaluate", str(tmp_path / "run"), "--noise", "0"]) == 0
    assert "evaluating: " in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--noise", "0", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("UT-2 erm on scenes: ")
    assert progress.QUIET not in os.environ  # the next command is not quiet


@pytest.mark.parametrize(("more", "count"), [([], 1), (["--quiet"], 0)])
def test_a_terminal_is_told_once_that_libraries_load(tmp_path, capsys, monkeypatch, more, count):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sweep = ["sweep", "video-ut", "--data", "generated", "--trials", "1", "--out", str(tmp_path / "sweep"), *more]
    assert main([*sweep, "--method", "none"]) == 2
    assert capsys.readouterr().err.count("loading libraries …") == count


@pytest.mark.slow
def test_no_library_says_anything_and_no_bar_is_drawn_without_a_terminal(tmp_path):
    """In one separate process, which imports once."""
    answers = ["train", "llm-sft", *TEXT, "--out", "llm-sft"]
    commands = [answers, [*VIDEO, "--out", "run"], ["evaluate", "run", "--noise", "0.8"]]
    code = f"from descend.cli import main\nprint(list(map(main, {commands!r})))"
    command = [sys.executable, "-W", "default", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["trained llm-sft", "trained run"] and "rmse" in lines[2]
    assert len(lines) > 6 and lines[-2:] == ["run/report.html", "[0, 0, 0]"]
    assert "How many layers suffice: descend evaluate run" in done.stderr
    assert "generated instructions: 2,000 samples to train on, 250 for validation, 250 for test." in done.stderr
    assert "Training noise: γ = 1.5 on the embeddings, in units of their standard deviation σ_x" in done.stderr
    assert not any(word in done.stderr for word in ("FutureWarning", "deprecated", "%|")), done.stderr


def test_the_log_level_is_that_of_descend_and_its_libraries(tmp_path, capsys, monkeypatch):
    logger = logging.getLogger("descend")
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logger, "handlers", [])
    seen = {}
    monkeypatch.setattr("descend.run.evaluate", lambda *_, **__: seen.update(os.environ) or sys.exit(3))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path), "--log-level", "debug"])
    assert logger.level == logging.DEBUG and seen["TRANSFORMERS_VERBOSITY"] == "debug"
