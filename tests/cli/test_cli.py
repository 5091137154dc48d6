"""The command line: recipes, the demo, and what it says; wrong input is in tests/run/test_refusals.py."""

import errno
import json
import os
import shlex

import numpy as np
import pytest

from descend.cli import COMMANDS
from descend.cli.parsing import levels
from descend.recipes import RECIPES
from descend.results import read_config
from tests.support.runs import said
from tests.support.sources import clips, write_video

# Two steps on a handful of windows: what is tested is the command line.
SHORT = ["--data", "generated", "--depth", "2", "--max-steps", "2", "--use-cpu"]
BRIEF = ["video-ut", *SHORT, "--window", "2", "--stride", "40"]
RUN = '{"recipe": "video-ut", "method": "erm", "seed": 0, "model": "UT-2", "settings": {"depth": 2}, "training": {}}'


def test_recipes_are_listed_and_no_command_is_as_good_as_help(capsys):
    out, _ = said(capsys, "recipes")
    assert [line.split()[0] for line in out.splitlines()] == list(RECIPES)
    assert said(capsys) == said(capsys, "-h") == said(capsys, "--help")


@pytest.mark.parametrize(
    ("argv", "same"),
    [
        (["complete", "RUN", "--prompts", "a b.json", "--out", "answers.json"], True),
        (["complete", "--compare=a.json", "--out", "page"], False),  # nothing is lost
        (["sweep", "video-ut", "--trials", "3", "--out", "search"], True),
        (["evaluate", "RUN"], False),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(capsys, monkeypatch, argv, same):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, argv[0], interrupted)
    _, line = said(capsys, *argv, status=130)
    assert line == "descend: interrupted." + (f" Go on with: descend {shlex.join(argv)}" if same else "") + "\n"


# --- the demo


@pytest.mark.slow
def test_the_demo_shows_a_fair_pair_and_makes_way_for_the_next(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("descend.cli.digits.SETTINGS", {"max_steps": 4, "use_cpu": True})
    folders = [tmp_path / "demo" / method for method in ("erm", "constrained")]
    folders[0].mkdir(parents=True)  # an earlier demo's
    (folders[0] / "config.json").write_text(RUN)
    (tmp_path / "demo" / ".descend-demo").touch()
    videos = clips(tmp_path / "videos", frames=12)
    demo = ["demo", "--max-steps", "1", "--seed", "5", "--data", videos, "--out", tmp_path / "demo"]
    out, _ = said(capsys, *demo)
    page = tmp_path / "demo" / "report.html"
    assert out.splitlines()[-1] == f"open {page}"
    # The first page is there before the video is trained.
    assert (
        out.index("1 of 2") < out.index(f"first figures: {page}") < out.index("2 of 2") < out.index("What was learned")
    )
    assert "a digit, and what layers 0 to 8 take it for\n   erm" in out and "data:image/png" in page.read_text()
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    for config, folder in zip(configs, folders, strict=True):
        assert [each.pop("method") for each in (config, config["training"], config["given"])] == [folder.name] * 3
        config.pop("seconds")
    assert configs[0] == configs[1] and configs[0]["seed"] == configs[0]["training"]["seed"] == 5
    runs = json.loads((tmp_path / "demo" / "summary.json").read_text())["runs"]
    expected = [("Network-8", "erm"), ("Network-8", "linear"), ("UT-5", "erm"), ("UT-5", "constrained")]
    assert [(run["model"], run["method"]) for run in runs] == expected and runs[2]["noise"] == runs[3]["noise"]
    # The same noisy test frames, and a first step on the same noisy training batch.
    assert np.array_equal(*(np.load(folder / "frames.npz")["noisy"] for folder in folders))
    first, second = (json.loads((folder / "records.jsonl").read_text().splitlines()[0]) for folder in folders)
    assert first["value"] == second["value"]
    before = page.read_text()
    page.unlink()
    said(capsys, "report", tmp_path / "demo")
    assert page.read_text() == before


# --- what is said


def test_training_says_what_the_data_are(capsys, caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path / "cache"))
    for place, size in enumerate([(64, 48), (48, 64), (64, 48), (64, 48)]):
        write_video(tmp_path / "yard" / f"{place}.avi", size=size)
    write_video(tmp_path / "yard" / "4.avi", frames=1)
    train = ["train", *BRIEF, "--data", tmp_path / "yard", "--noise", "25", "--method", "erm", "--out"]
    (tmp_path / "run").mkdir()  # an empty folder is as good as none
    _, err = said(capsys, *train, tmp_path / "run")
    assert caplog.messages == ["clip 4 is left out: it has fewer frames (1) than a window (2)."]
    clips, size, noise, warning, after = err.splitlines()
    assert clips == "yard: 2 clips (0, 1) to train on, 1 clip (2) for validation, 1 clip (3) for test."
    assert size == "Frames of 64x48, 48x64 pixels become grey and 160x160, whatever their shape."
    sigma = read_config(tmp_path / "run").sigma
    assert f"standard deviation {25 * 255 * sigma:,.0f} of 255 grey levels (γ = 25, σ_x = " in noise
    assert warning.startswith("WARNING: ") and f"give --noise {25 / 255 / sigma:.2g}." in warning
    assert after == f"How many layers suffice: descend evaluate {tmp_path / 'run'}"
    assert said(capsys, *train, tmp_path / "again", "--quiet")[1] == f"{warning}\n"


def test_no_space_is_one_line_and_leaves_no_half_file(capsys, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(os, "replace", full)
    _, err = said(capsys, "train", *BRIEF, "--quiet", "--out", tmp_path / "run", status=1)
    file = tmp_path / "run" / "config.json"
    assert err.startswith(f"descend: {file} can't be written: No space left on device")
    assert err.endswith("--resume\n") and not file.exists()


def test_an_infeasible_end_is_loud(capsys, tmp_path):
    train = ["train", *BRIEF, "--alpha", "0.9", "--quiet", "--out", tmp_path / "run"]
    out, err = said(capsys, *train)
    assert out.startswith(f"trained {tmp_path / 'run'}: Open: ")  # a few clips prove nothing
    assert "So far layers 1, 2 miss their bounds by more than 1% on the validation data." in out
    assert "WARNING: No evaluated model met the constraints: " in err
    (tmp_path / "run" / "best_feasible").mkdir()
    assert f"descend evaluate {tmp_path / 'run'} --model best_feasible" in said(capsys, *train, "--resume")[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0,0.1,0.2", [0, 0.1, 0.2]),
        ("0:2:0.5", [0, 0.5, 1, 1.5, 2]),
        ("0:1:0.1", [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]),
        ("0:1:0.4", [0, 0.4, 0.8]),
        ("0.5:0.5:1", [0.5]),
    ],
)
def test_levels_are_a_list_or_a_range(text, expected):
    assert levels(text) == expected
