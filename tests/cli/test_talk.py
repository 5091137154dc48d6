"""What a command says: progress, logging, --quiet, and no chatter of libraries."""

import logging
import os
import subprocess
import sys

import pytest

from descend import InputError, progress
from descend.cli import main

SHORT = ["--data", "generated", "--depth", "2", "--max-steps", "3", "--use-cpu", "--method", "erm"]
TEXT = [*SHORT, "--hidden-size", "16", "--max-length", "60", "--eval-strategy", "no", "--save-strategy", "no"]
VIDEO = ["train", "video-ut", *SHORT, "--window", "2", "--stride", "40"]


@pytest.fixture
def always(monkeypatch):
    """A line of progress at every step."""
    monkeypatch.setattr(progress, "EVERY", 0.0)


def test_training_and_evaluation_say_how_far_they_are(tmp_path, capsys, always):
    assert main([*VIDEO, "--logging-steps", "1", "--out", str(tmp_path / "run")]) == 0
    about, *lines = capsys.readouterr().err.splitlines()[1:]
    assert about.startswith("Training noise: standard deviation ")
    assert [line.split(",")[0] for line in lines[:3]] == [f"training: {step} of 3 steps" for step in (1, 2, 3)]
    assert "left" in lines[1] and "loss" in lines[1]
    assert main(["evaluate", str(tmp_path / "run"), "--noise", "0"]) == 0
    assert "evaluating: " in capsys.readouterr().err


def test_quiet_says_the_result_alone(tmp_path, capsys, always):
    assert main([*VIDEO, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--noise", "0", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and [line[:7] for line in out.splitlines()][:2] == ["trained", "UT-2 er"]
    assert progress.QUIET not in os.environ  # the next command is not quiet


def test_no_library_says_anything(tmp_path):
    trained = ["llm-sft", "text-distilbert"]
    code = f"""
from descend.cli import main
print([main(["train", recipe, *{TEXT!r}, "--out", recipe]) for recipe in {trained!r}])
"""
    command = [sys.executable, "-W", "default", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained llm-sft\ntrained text-distilbert\n[0, 0]\n")
    assert "FutureWarning" not in done.stderr and "deprecated" not in done.stderr, done.stderr


def test_the_log_level_is_that_of_descend_and_its_libraries(tmp_path, capsys, monkeypatch):
    logger = logging.getLogger("descend")
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logger, "handlers", [])
    seen = {}

    def evaluate(*_, **__):
        seen.update(os.environ)
        raise InputError("no more")

    monkeypatch.setattr("descend.run.evaluate", evaluate)
    assert main([*VIDEO, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--log-level", "debug"]) == 2
    assert logger.level == logging.DEBUG and seen["TRANSFORMERS_VERBOSITY"] == "debug"
    assert main(["evaluate", str(tmp_path / "run"), "--log-level", "loud"]) == 2
    assert "'loud'" in capsys.readouterr().err
