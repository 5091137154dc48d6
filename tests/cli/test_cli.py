"""The command line: recipes, the demo, what it says and completes; wrong input is in tests/run/test_refusals.py."""

import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from descend import progress
from descend.cli import COMMANDS, main
from descend.cli.parsing import Parser, levels
from descend.recipes import RECIPES
from descend.results import read_config, write_json
from tests.support.runs import RUN, said
from tests.support.sources import clips, write_video

# Three steps on a handful of windows, to test the command line.
SHORT = ["--data", "generated", "--depth", "2", "--max-steps", "3", "--use-cpu"]
BRIEF = ["video-ut", *SHORT, "--window", "2", "--stride", "40"]
ERM = ["--method", "erm"]


def test_recipes_are_listed_and_no_command_is_as_good_as_help(capsys):
    out, _ = said(capsys, "recipes")
    assert [line.split()[0] for line in out.splitlines()] == list(RECIPES)
    assert said(capsys) == said(capsys, "-h") == said(capsys, "--help")


@pytest.mark.parametrize(
    ("argv", "again"),
    [
        (["train", "video-ut", "--resume", "--out", "a part"], "train video-ut --out 'a part' --resume"),
        (["complete", "RUN", "--prompts", "a b.json", "--out", "c"], "complete RUN --prompts 'a b.json' --out c"),
        (["complete", "--compare=a.json", "--out", "page"], None),  # nothing is lost
        (["sweep", "video-ut", "--trials", "3", "--out", "search"], "sweep video-ut --trials 3 --out search"),
        (["evaluate", "RUN"], None),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(capsys, monkeypatch, argv, again):
    monkeypatch.setitem(COMMANDS, argv[0], Mock(side_effect=KeyboardInterrupt))
    _, line = said(capsys, *argv, status=130)
    assert line == "descend: interrupted." + (f" Go on with: descend {again}" if again else "") + "\n"


# --- the demo


def test_a_run_of_ones_own_is_no_demos(capsys, tmp_path):
    (tmp_path / "plain").mkdir()
    write_json(tmp_path / "plain" / "config.json", json.loads(RUN))
    assert main(["demo", "--out", str(tmp_path)]) == 2 and (tmp_path / "plain" / "config.json").is_file()
    assert "plain is no demo's. Choose another folder with --out." in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_shows_a_fair_pair_and_makes_way_for_the_next(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("descend.cli.digits.SETTINGS", {"max_steps": 4, "use_cpu": True})
    folders = {tmp_path / "demo" / name: method for name, method in (("plain", "erm"), ("constrained", "constrained"))}
    for folder in (tmp_path / "demo" / "digits-erm", *[*folders][:1]):  # an earlier demo's
        folder.mkdir(parents=True)
        write_json(folder / "config.json", json.loads(RUN))
    videos = clips(tmp_path / "videos", frames=12)
    demo = ["demo", "--max-steps", "1", "--seed", "5", "--data", videos, "--out", tmp_path / "demo"]
    out, _ = said(capsys, *demo)
    page = tmp_path / "demo" / "report.html"
    assert out.splitlines()[-1] == f"open {page}"
    # Losses by layer of the first run are there before the second, and a page before the digits.
    places = [out.index(each) for each in ("1 of 2", "Loss by layer", "trained", f"the picture: {page}", "2 of 2")]
    assert places[0] < places[2] < places[1] < places[3] < places[4] < out.index("What was learned")
    assert "a digit, and what layers 0 to 8 take it for\n   erm" in out and "data:image/png" in page.read_text()
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    ours_alone = {
        "method",
        "dual_optimizer",
        "dual_lr",
        "dual_warmup_steps",
        "dual_warmup_epochs",
        "cap",
        "stop_gradient",
    }
    for config, method in zip(configs, folders.values(), strict=True):
        assert (config.pop("method"), config["training"]["method"]) == (method, method)
    apart = {name for name, value in configs[0]["training"].items() if configs[1]["training"][name] != value}
    assert apart <= ours_alone and configs[0]["settings"] == configs[1]["settings"]
    assert configs[0]["seed"] == configs[1]["seed"] == configs[0]["training"]["seed"] == 5
    runs = json.loads((tmp_path / "demo" / "summary.json").read_text())["runs"]
    expected = [("UT-3", "constrained"), ("UT-3", "erm"), ("Network-8", "erm"), ("Network-8", "linear")]
    assert [(run["model"], run["method"]) for run in runs] == expected and runs[0]["noise"] == runs[1]["noise"]
    # The same noisy test frames.
    assert np.array_equal(*(np.load(folder / "frames.npz")["noisy"] for folder in folders))
    before = page.read_text()
    page.unlink()
    said(capsys, "report", tmp_path / "demo")
    assert page.read_text() == before


# --- what is said


def test_training_says_what_the_data_are(capsys, caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(progress, "FIRST", 600.0)  # a busy machine takes long
    for place, size in enumerate([(64, 48), (48, 64), (64, 48), (64, 48)]):
        write_video(tmp_path / "yard" / f"{place}.avi", size=size)
    write_video(tmp_path / "yard" / "4.avi", frames=1)
    train = ["train", *BRIEF, "--data", tmp_path / "yard", "--noise", "25", *ERM, "--out"]
    (tmp_path / "run").mkdir()  # an empty folder is as good as none
    _, err = said(capsys, *train, tmp_path / "run")
    assert caplog.messages == ["clip 4 is left out: it has fewer frames (1) than a window (2)."]
    clips, size, noise, warning, form, after = err.splitlines()
    assert clips == "yard: 2 clips (0, 1) to train on, 1 clip (2) for validation, 1 clip (3) for test."
    assert size == "Frames of 64x48, 48x64 pixels become grey and 160x160, whatever their shape."
    sigma = read_config(tmp_path / "run").sigma
    assert f"standard deviation {25 * 255 * sigma:,.0f} of 255 grey levels (γ = 25, σ_x = " in noise
    assert warning.startswith("WARNING: ") and f"give --noise {25 / 255 / sigma:.2g}." in warning
    assert form == "The model is saved as a UT, which loads where Descend is installed."
    assert after == f"How many layers suffice: descend evaluate {tmp_path / 'run'}"
    assert said(capsys, *train, tmp_path / "again", "--quiet")[1] == f"{warning}\n"


def test_an_infeasible_end_is_loud(capsys, tmp_path):
    train = ["train", *BRIEF, "--alpha", "0.9", "--quiet", "--out", tmp_path / "run"]
    out, err = said(capsys, *train)
    assert out.startswith(f"trained {tmp_path / 'run'}: Open: ")  # a few clips prove nothing
    assert "So far layers 1, 2 miss their bounds by more than 1% on the validation data. These are missed by " in out
    assert "%: a lower --alpha asks for less." in out
    assert "WARNING: No evaluated model met the constraints: " in err
    (tmp_path / "run" / "best_feasible").mkdir()
    assert f"descend evaluate {tmp_path / 'run'} --model best_feasible" in said(capsys, *train, "--resume")[1]


def test_a_home_that_the_shell_left_as_it_is_is_the_home(tmp_path, monkeypatch):
    """No shell expands it behind the sign of equality."""
    monkeypatch.setenv("HOME", str(tmp_path))
    parser = Parser()
    for name in ("--out", "--save"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args(["--out=~/run", "--save=~/small"])
    assert (options.out, options.save) == (tmp_path / "run", tmp_path / "small")


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


def test_training_and_evaluation_say_how_far_they_are_and_quiet_ones_their_result_alone(tmp_path, capsys, monkeypatch):
    for name in ("FIRST", "EVERY"):  # a line at every step
        monkeypatch.setattr(progress, name, 1e-9)
    _, err = said(capsys, "train", *BRIEF, *ERM, "--logging-steps", "1", "--out", tmp_path / "run")
    assert err.splitlines()[2] == "The model is saved as a UT, which loads where Descend is installed."
    lines = err.splitlines()[3:]  # behind the data, the noise and that
    assert [line.split(",")[0] for line in lines[:3]] == [f"training: {step} of 3 steps" for step in (1, 2, 3)]
    assert "left" in lines[1] and "loss" in lines[1]
    evaluate = ["evaluate", tmp_path / "run", "--noise", "0"]
    assert "evaluating: " in said(capsys, *evaluate)[1]
    out, err = said(capsys, *evaluate, "--quiet")
    assert err == "" and out.startswith("UT-2 erm on scenes: ")
    assert progress.QUIET not in os.environ  # the next command is not quiet


@pytest.mark.parametrize(("more", "count"), [([], 1), (["--quiet"], 0)])
def test_a_terminal_is_told_once_that_libraries_load(tmp_path, capsys, monkeypatch, more, count):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sweep = ["sweep", "video-ut", "--data", "generated", "--trials", "1", "--out", tmp_path / "sweep", *more]
    assert said(capsys, *sweep, "--method", "none", status=2)[1].count("loading libraries …") == count


@pytest.mark.slow
def test_no_library_says_anything_and_no_bar_is_drawn_without_a_terminal(tmp_path):
    """In one separate process, which imports once."""
    small = ["--hidden-size", "16", "--max-length", "60", "--eval-strategy", "no", "--save-strategy", "no"]
    answers = ["train", "llm-sft", *SHORT, *ERM, *small, "--out", "llm-sft"]
    commands = [answers, ["train", *BRIEF, *ERM, "--out", "run"], ["evaluate", "run", "--noise", "0.8"]]
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
    monkeypatch.setattr("descend.Run.evaluate", lambda *_, **__: seen.update(os.environ) or sys.exit(3))
    (tmp_path / "config.json").write_text(RUN)
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path), "--log-level", "debug"])
    assert logger.level == logging.DEBUG and seen["TRANSFORMERS_VERBOSITY"] == "debug"
    bars = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
    assert not any(each in seen for each in bars)
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path), "--quiet"])
    assert [seen[each] for each in bars] == ["1", "1"] and not any(each in os.environ for each in bars)


# --- completion in the shell, without torch


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("descend tra", ["train"]),
        ("descend train video-", ["video-ut", "video-dust", "video-vit"]),
        ("descend train video-ut --dual-warmup", ["--dual-warmup-steps", "--dual-warmup-epochs"]),
        ("descend train llm-sft --packing-", ["--packing-strategy"]),
        ("descend train video-ut --method l", ["linear", "layerskip"]),
        ("descend train video-ut --data cl", ["clips/"]),
        ("descend sweep video-ut --judge", ["--judge-noise"]),
        ("descend denoise run --la", ["--layer"]),
    ],
)
def test_a_shell_is_offered_what_fits_and_torch_is_not_imported_for_it(tmp_path, line, offered):
    (tmp_path / "clips").mkdir()
    file = tmp_path / "offered"
    code = """
import os, sys
from descend.cli import main
os._exit = lambda status: sys.exit(70 if "torch" in sys.modules else status)
main([])
"""
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(file),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [word.strip() for word in file.read_text().splitlines()] == offered


def test_bash_completes_by_the_printed_code(tmp_path):
    (tmp_path / "descend").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m descend "$@"\n')
    (tmp_path / "descend").chmod(0o755)
    script = """
eval "$(descend completion bash)"
COMP_WORDS=(descend eval) COMP_CWORD=1 COMP_LINE="descend eval" COMP_POINT=12 COMP_TYPE=9
_python_argcomplete descend eval descend
echo "${COMPREPLY[@]}"
"""
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=os.environ | path, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["evaluate"], "")
