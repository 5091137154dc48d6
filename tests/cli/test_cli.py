"""The command line: help, recipes, pages, and one clear line for whatever is wrong."""

import contextlib
import errno
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

from descend import InputError
from descend.cli import COMMANDS, main
from descend.cli.parsing import levels
from descend.cli.runs import line_of
from descend.recipes import RECIPES
from descend.results import read_config, read_summary
from tests.support.sources import write_frames, write_video

# Two steps on a handful of windows: what is tested is the command line.
SHORT = ["--data", "generated", "--depth", "2", "--max-steps", "2", "--use-cpu"]
BRIEF = [*SHORT, "--window", "2", "--stride", "40"]
# What a line of an evaluation says of the input of video models.
INPUT = r", where the noisy input itself has [\d.]+"
TRAIN = ["train", "video-ut", "--data", "generated", "--out", "OUT"]


def words(capsys, *argv: str, status: int = 0) -> tuple[str, str]:
    """stdout and stderr of a command that ends as expected."""
    capsys.readouterr()
    try:
        ended = main(argv)
    except SystemExit as exit:  # --help
        ended = exit.code
    found = capsys.readouterr()
    assert ended == status, found.err
    return found.out, found.err


def one_line(capsys, *argv: str, status: int = 2) -> str:
    """The one line that a command fails with."""
    _, err = words(capsys, *argv, status=status)
    (line,) = err.splitlines()
    assert line.startswith("descend: ")
    return line


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[Path]:
    """An ERM and a constrained run, evaluated; read them, don't change them."""
    folder = tmp_path_factory.mktemp("pair")
    for method in ("erm", "constrained"):
        assert main(["train", "video-ut", *BRIEF, "--method", method, "--out", str(folder / method)]) == 0
        assert main(["evaluate", str(folder / method), "--noise", "0,0.8"]) == 0
    return [folder / "erm", folder / "constrained"]


# --- help


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_help_shows_every_command(capsys, argv):
    out, _ = words(capsys, *argv)
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\w", out, re.MULTILINE), command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    out, err = words(capsys, command, "--help")
    assert out.startswith(f"usage: descend {command}")
    assert err == ""


def test_recipes_are_listed(capsys):
    out, _ = words(capsys, "recipes")
    assert [line.split()[0] for line in out.splitlines()] == list(RECIPES)


def test_python_m_descend_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "descend", "recipe"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "descend: no command 'recipe' (did you mean recipes?); descend --help lists them.\n"


@pytest.mark.parametrize(
    ("argv", "same"),
    [
        (["complete", "RUN", "--prompts", "a b.json", "--out", "answers.json"], True),
        (["complete", "--compare", "a.json", "--out", "page"], False),  # nothing is lost
        (["sweep", "video-ut", "--trials", "3", "--out", "search"], True),
        (["evaluate", "RUN"], False),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(capsys, monkeypatch, argv, same):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, argv[0], interrupted)
    line = one_line(capsys, *argv, status=130)
    assert line == "descend: interrupted." + (f" Go on with: descend {shlex.join(argv)}" if same else "")


# --- recipes, compare, report, demo


@pytest.mark.parametrize("name", [name for name in RECIPES if not RECIPES.needs_model(name)])
def test_every_recipe_trains_and_is_judged(capsys, tmp_path, name):
    video = name.startswith("video")
    length = 60 if name == "llm-sft" else 20
    small = {"window": 2, "stride": 40} if video else {"hidden_size": 16, "max_length": length}
    recipe = RECIPES[name](data="generated", depth=2, **small).completed()
    assert recipe.network(recipe.load()).depth == 2
    brief = BRIEF if video else [*SHORT, "--hidden-size", "16", "--max-length", str(length)]
    out, _ = words(capsys, "train", name, *brief, "--per-device-train-batch-size", "2", "--out", str(tmp_path / "run"))
    assert out.startswith(f"trained {tmp_path / 'run'}: ")
    data = "scenes" if video else "generated instructions" if name == "llm-sft" else "generated imdb"
    out, err = words(capsys, "evaluate", str(tmp_path / "run"), "--noise", "0:0.8:0.4")
    assert re.fullmatch(
        rf"{recipe.label} constrained on {data}: mean {recipe.task().metric} [\d.]+ "
        r"over γ = 0 … 0.8 \([\d.]+, [\d.]+, [\d.]+\)(, area [\d.]+)?, [\d.]+ at the training noise"
        rf"{INPUT if video else ''}\.\n[\s\S]+\n"
        rf"{re.escape(str(tmp_path / 'run' / 'report.html'))}\n",
        out,
    )
    assert err == ""


def test_a_single_level_is_told_once(pair):
    summary = read_summary(pair[0])
    line = line_of(summary)
    saved = summary.model_copy(update={"note": "Last trained by Descend 0.1, with the method constrained."})
    assert line_of(saved).startswith(f"{summary.model} (last trained by Descend with {summary.method}) on ")
    over = r"mean rmse [\d.]+ over γ = 0 … 0\.8 \([\d.]+, [\d.]+\), [\d.]+ at the training noise"
    assert re.search(rf"{over}{INPUT}\.\n", line)
    entries = {"noise": [0.8], "values": summary.values[1:], "mean": summary.values[1]}
    assert re.search(rf": rmse [\d.]+ at γ = 0\.8{INPUT}\.\n", line_of(summary.model_copy(update=entries)))
    entries["noise"] = [1.6]
    line = line_of(summary.model_copy(update=entries))
    assert re.search(rf": rmse [\d.]+ at γ = 1\.6, [\d.]+ at the training noise{INPUT}\.\n", line)


def test_compare_and_report_write_one_page(capsys, tmp_path, pair):
    out, _ = words(capsys, "compare", *map(str, pair), "--out", str(tmp_path / "both"))
    page = tmp_path / "both" / "report.html"
    assert out.splitlines()[-1] == str(page)
    heads = [line.split("): ")[0] for line in out.splitlines() if "): " in line]
    assert heads == [f"{pair[0]} (erm", f"{pair[1]} (constrained"]
    runs = json.loads((tmp_path / "both" / "summary.json").read_text())["runs"]
    assert runs == [json.loads((run / "summary.json").read_text()) for run in pair]
    assert [run["method"] for run in runs] == ["erm", "constrained"]
    before = page.read_text()
    page.unlink()
    words(capsys, "report", str(tmp_path / "both"))
    assert page.read_text() == before
    words(capsys, "report", str(pair[0]))
    assert (pair[0] / "report.html").stat().st_size > 10_000
    (pair[0] / "report.html").unlink()


def test_the_demo_shows_a_fair_pair(capsys, tmp_path, pair):
    shutil.copytree(pair[0], tmp_path / "demo" / "erm")  # an earlier demo's: it makes way
    (tmp_path / "demo" / ".descend-demo").touch()
    out, _ = words(capsys, "demo", "--max-steps", "1", "--seed", "5", "--out", str(tmp_path / "demo"))
    page = tmp_path / "demo" / "report.html"
    assert out.splitlines()[-1] == f"open {page}"
    # The first page is there before the video is trained.
    assert (
        out.index("1 of 2") < out.index(f"first figures: {page}") < out.index("2 of 2") < out.index("What was learned")
    )
    assert "a digit, and what layers 0 to 8 take it for\n   erm" in out and "data:image/png" in page.read_text()
    folders = [tmp_path / "demo" / method for method in ("erm", "constrained")]
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert [config["method"] for config in configs] == ["erm", "constrained"]
    for one, other in zip(*(sorted(config.items()) for config in configs), strict=True):
        if one[0] not in ("method", "seconds", "training"):
            assert one == other
    training = [{k: v for k, v in config["training"].items() if k != "method"} for config in configs]
    assert training[0] == training[1]
    assert configs[0]["seed"] == training[0]["seed"] == 5
    *read, one, other = json.loads((tmp_path / "demo" / "summary.json").read_text())["runs"]
    assert [(each["model"], each["method"]) for each in read] == [("Network-8", "erm"), ("Network-8", "linear")]
    summaries = [one, other]
    # The same noisy test frames, and a first step on the same noisy training batch.
    assert summaries[0]["noise"] == summaries[1]["noise"]
    noisy = [np.load(folder / "frames.npz")["noisy"] for folder in folders]
    assert np.array_equal(*noisy)
    first = [json.loads((folder / "records.jsonl").read_text().splitlines()[0]) for folder in folders]
    assert first[0]["value"] == first[1]["value"]
    # An interrupted one goes on: what is done stays done.
    shutil.rmtree(folders[1])
    done = (folders[0] / "model" / "model.safetensors").read_bytes()
    words(capsys, "demo", "--max-steps", "1", "--seed", "5", "--out", str(tmp_path / "demo"), "--resume")
    assert (folders[0] / "model" / "model.safetensors").read_bytes() == done
    assert (folders[1] / "summary.json").is_file()


# --- wrong input


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "no command 'trian' (did you mean train?)"),
        (["train"], "no recipe given; expected one of video-ut, "),
        (["train", "video-tu"], "no recipe 'video-tu' (did you mean video-ut?)"),
        (["train", "--resume", "RUN"], "expected the recipe first, got --resume: descend train RECIPE --data PATH"),
        (["train", "--recipe", "video-vit"], "expected the recipe first, got --recipe"),
        (["train", "video-ut", "--data", "generated"], "the following arguments are required: --out"),
        (["train", "video-ut", "--out", "OUT"], "video-ut needs data; expected --data PATH"),
        (["train", "video-ut"], "come with descend. Also give --out RUN, the folder of the run."),
        (["sweep", "text-ut", "--trials", "1", "--out", "OUT"], "or --data generated"),
        ([*TRAIN, "--depht", "3"], "no setting --depht (did you mean --depth?)"),
        ([*TRAIN, "--learning-rat=3"], "(did you mean --learning-rate?)"),
        ([*TRAIN, "--resum"], "no setting --resum (did you mean --resume?)"),
        ([*TRAIN, "--lr", "0.1"], "no setting --lr (did you mean --learning-rate?)"),
        ([*TRAIN, "--epochs=3"], "no setting --epochs (did you mean --num-train-epochs?)"),
        ([*TRAIN, "--batch_size", "3"], "(did you mean --per-device-train-batch-size?)"),
        ([*TRAIN, "--layers", "3"], "no setting --layers (did you mean --depth?)"),
        ([*TRAIN, "--device", "cpu"], "no setting --device (did you mean --use-cpu?)"),
        ([*TRAIN, "--sigma", "25"], "no setting --sigma (did you mean --noise?)"),
        ([*TRAIN, "--workers", "2"], "(did you mean --dataloader-num-workers?)"),
        ([*TRAIN, "--steps", "2"], "(did you mean --max-steps?)"),
        ([*TRAIN, "--output", "2"], "no setting --output (did you mean --out?)"),
        ([*TRAIN, "--resolution", "2"], "no setting --resolution; descend train video-ut --help lists them"),
        (["evaluate", "RUN", "--lr", "0.1"], "no setting --lr; descend evaluate --help lists them"),
        (["eval", "RUN"], "no command 'eval' (did you mean evaluate?)"),
        (["predict", "RUN"], "no command 'predict'; descend --help lists them"),
        (["train", "vit"], "no recipe 'vit' (did you mean video-vit?)"),
        ([*TRAIN, "stray"], "stray"),
        ([*TRAIN, "--depth", "three"], "argument --depth: invalid int value: 'three'"),
        ([*TRAIN, "--depth", "0"], "depth must be at least 1"),
        ([*TRAIN, "--alpha", "1"], "strictly between 0 and 1"),
        ([*TRAIN, "--alpha", "-0.1"], "strictly between 0 and 1"),
        ([*TRAIN, "--alpha", "nan"], "strictly between 0 and 1"),
        ([*TRAIN, "--alpha", "0.1,0.2"], "one per layer (7); got 2 numbers"),
        ([*TRAIN, "--alpha", "0.1;0.2"], "one number or one per layer"),
        ([*TRAIN, "--noise", "-0.1"], "noise must be a level γ of at least 0"),
        ([*TRAIN, "--noise", "inf"], "noise must be a level γ of at least 0"),
        ([*TRAIN, "--noise", "loud"], "invalid float value: 'loud'"),
        ([*TRAIN, "--dual-optim-args", "{kp: 5}"], "must be a JSON object"),
        ([*TRAIN, "--dual-optim-args", "5"], "must be a JSON object"),
        ([*TRAIN, "--dual-optim-args", '{"lr": 5}'], "other than lr"),
        ([*TRAIN, "--dual-optim-args", '{"kq": 5}'], "takes the options price, horizon, start; got 'kq'"),
        ([*TRAIN, "--dual-warmup-steps", "-1"], "dual_warmup_steps must be at least 0"),
        ([*TRAIN, "--dual-warmup-steps", "400"], "got 400 of 400"),
        ([*TRAIN, "--dual-warmup-steps", "0.9", "--max-steps", "4"], "got 4 of 4"),
        ([*TRAIN, "--dual-warmup-epoch", "1"], "(did you mean --dual-warmup-epochs?)"),
        (
            [*TRAIN, "--alpha=0.1", "--slack=explicit", "--slack-optimizer", "rmsprop"],
            "invalid choice: 'rmsprop'",
        ),
        (
            [*TRAIN, "--first-layer", "7"],
            "(--first-layer) must be from 0 to",
        ),
        ([*TRAIN, "--max-steps", "0"], "above 0; got 0 and 3.0"),
        ([*TRAIN, "--method", "erm", "--max-steps", "0"], "above 0; got 0 and 3.0"),
        ([*TRAIN, "--seed", "-1"], "seed must be at least 0; got -1"),
        ([*TRAIN, "--learning-rate", "inf"], "learning_rate must be at least 0, and finite; got inf"),
        ([*TRAIN, "--save-only-model"], "save_only_model must be off"),
        (["demo", "--out", "OUT", "--max-steps", "0"], "above 0; got 0 and 3.0"),
        ([*TRAIN, "--kernel", "cubic"], "invalid choice: 'cubic'"),
        ([*TRAIN, "--optim", "sgdd"], "sgdd"),
        ([*TRAIN, "--window", "500"], "clip scene 0 has 30 frames; expected at least"),
        ([*TRAIN, "--window", "0"], "window and stride must be at least 1"),
        ([*TRAIN, "--validation-share", "1"], "validation_share must lie between 0 and 1"),
        ([*TRAIN, "--data", "NOWHERE"], "does not exist"),
        ([*TRAIN, "--out", "FILE"], "expected a folder to write to; FILE is a file"),
        ([*TRAIN, "--out", "FILE", "--resume"], "expected a folder to write to; FILE is a file"),
        ([*TRAIN, "--out", ".", "--resume"], "expected a run folder with config.json"),
        (["evaluate"], "the following arguments are required: run"),
        (["evaluate", "NOWHERE"], "expected a run folder with config.json; NOWHERE has none"),
        (["evaluate", "FILE"], "FILE/config.json can't be read"),
        (["evaluate", "RUN", "--nois", "1"], "no setting --nois (did you mean --noise?)"),
        (["evaluate", "RUN", "--noise", "loud"], "0,0.1,0.2 or start:stop:step as 0:2:0.25; got 'loud'"),
        (["evaluate", "RUN", "--noise", "0:1"], "start:stop:step"),
        (["evaluate", "RUN", "--noise", "0:1:0"], "start:stop:step"),
        (["evaluate", "RUN", "--noise", "0:inf:1"], "start:stop:step"),
        (["evaluate", "RUN", "--noise", "-0.5"], "noise must be levels γ of at least 0"),
        (["evaluate", "RUN", "--noise", "nan"], "noise must be levels γ of at least 0"),
        (["evaluate", "RUN", "--noise=-0.5,0"], "noise must be levels γ of at least 0"),
        (["evaluate", "RUN", "--data", "FILE", "--split", "train"], "got --split train. Leave out --data or --split"),
        (["evaluate", "RUN", "--frames", "0"], "frames must be at least 1; got 0"),
        (["evaluate", "RUN", "--split", "tset"], "invalid choice: 'tset'"),
        (["evaluate", "RUN", "--model", "best"], "has no model named 'best'; its models: model."),
        (["evaluate", "RUN", "--model", "../erm/model"], "its models: model."),
        (["evaluate", "RUN/model"], "is a model of a run; give the run: "),
        (["export", "RUN/model", "--layers", "1", "--out", "OUT"], "--model model"),
        (["export", "EXPORT", "--layers", "1", "--out", "OUT"], "give the run that it was exported from"),
        (["export", "SCRIPT", "--layers", "1", "--out", "OUT"], "descend.run.export_model writes its first layers"),
        (["evaluate", "SCRIPT"], "SCRIPT was written by a script, and is no run of descend train"),
        (["export", "SAVED", "--layers", "1", "--out", "OUT"], "SAVED is a saved model of bert, and no run"),
        (["evaluate", "SAVED"], "Judge it by descend evaluate SAVED --task classification --data PATH"),
        (["evaluate", "RUN", "--shift", "pink"], "invalid choice: 'pink'"),
        (["evaluate", "RUN", "--data", "NOWHERE"], "does not exist"),
        (["compare", "RUN"], "the following arguments are required: --out"),
        (["compare", "NOWHERE", "--out", "OUT"], "NOWHERE is not a run folder: it does not exist"),
        (
            ["compare", "RUN", "--out", "RUN"],
            "holds something else than a comparison; choose another folder with --out",
        ),
        (["report", "NOWHERE"], "expected a run folder with summary.json; NOWHERE has none"),
        (["compare", "RUN", "--out", "FILE"], "FILE holds something else than a comparison"),
        ([*TRAIN, "--out", "FILE/run"], "expected a folder to write to; FILE is a file"),
        (["demo", "--out", "FILE/demo"], "FILE is a file"),
        (["demo", "--out", "FILE"], "holds something else than a comparison"),
        (["export", "RUN", "--layers", "1", "--out", "FILE/a/b"], "FILE is a file"),
        (["complete", "RUN", "--prompts", "FILE", "--out", "FILE/a.json"], "FILE is a file"),
        (["denoise", "RUN", "--data", "NOWHERE", "--out", "OUT"], "the data NOWHERE does not exist"),
        (["denoise", "RUN", "--data", "FILE", "--out", "OUT"], "FILE is not a video"),
        (["denoise", "RUN", "--data", "IMAGES", "--out", "OUT", "--layer", "0"], "layer must be 1 to 2"),
        (["denoise", "RUN", "--data", "IMAGES", "--out", "OUT", "--layer", "3"], "layer must be 1 to 2"),
        (["denoise", "RUN", "--data", "IMAGES", "--out", "OUT", "--noise", "-1"], "noise must be a level γ"),
        (["denoise", "RUN", "--data", "IMAGES", "--out", "IMAGES"], "must be a new or an empty folder"),
        (["denoise", "EXPORT", "--data", "IMAGES", "--out", "OUT"], "give the run that it was exported from"),
        (["denoise", "TEXT", "--data", "IMAGES", "--out", "OUT"], "TEXT is a run of text-ut; denoise takes video-"),
        (["sweep", "video-ut", "--data", "generated", "--trials", "1", "--out", "FILE"], "FILE is a file"),
        (["reproduce", "figure-2"], "in a checkout of Descend: python -m reproduction figure-2"),
        (["demo", "--max-step", "1"], "no setting --max-step (did you mean --max-steps?)"),
        (["demo", "--max-steps", "1", "--data", "NOWHERE"], "does not exist"),
        (["recipes", "--all"], "no setting --all"),
        ([*TRAIN, "--maxsteps", "3"], "did you mean --max-steps?"),
        (["evaluate", "SUMMARY"], "In Python descend.evaluate evaluates the model"),
        (["evaluate", "SUMMARY"], "Its page: descend report SUMMARY."),
        (["evaluate", "RUN", "--limit", "1"], "--limit (most) must be at least 2 samples; got 1"),
        (["evaluate", "RUN", "--most", "1"], "--limit (most) must be at least 2 samples; got 1"),
        (["export", "RUN", "--layers", "1", "--out", "OUT", "--tolerance", "2"], "go with --layers auto"),
        (["export", "RUN", "--layers", "1", "--out", "OUT", "--baseline", "RUN"], "go with --layers auto"),
        (["export", "RUN", "--layers", "few", "--out", "OUT"], "a whole number of at least 1, or auto; got 'few'"),
    ],
)
def test_wrong_input_is_one_clear_line(capsys, tmp_path, monkeypatch, pair, argv, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("a file")
    (tmp_path / "RUN").symlink_to(pair[1])
    (tmp_path / "TEXT" / "model").mkdir(parents=True)
    for file in ("config.json", "model/config.json"):
        (tmp_path / "TEXT" / file).write_text('{"recipe": "text-ut"}')
    write_frames(tmp_path / "IMAGES")
    (tmp_path / "EXPORT").mkdir()
    (tmp_path / "EXPORT" / "config.json").write_text('{"model_type": "ut", "descend": {"exported_layers": 1}}')
    (tmp_path / "SCRIPT" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "SAVED").mkdir()
    (tmp_path / "SUMMARY").mkdir()
    (tmp_path / "SUMMARY" / "summary.json").write_text("{}")
    kind = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    (tmp_path / "SAVED" / "config.json").write_text(json.dumps(kind))
    assert message in one_line(capsys, *argv)
    assert not (tmp_path / "OUT").exists() or not any((tmp_path / "OUT").iterdir())


def test_an_existing_folder_is_left_alone(capsys, tmp_path, pair):
    before = {path: path.stat().st_mtime_ns for path in pair[0].rglob("*")}
    message = one_line(capsys, "train", "video-ut", *BRIEF, "--out", str(pair[0]))
    assert message.startswith(f"descend: the output folder {pair[0]} exists; ")
    assert "--out" in message and "--resume" in message
    assert {path: path.stat().st_mtime_ns for path in pair[0].rglob("*")} == before
    (tmp_path / "empty").mkdir()
    words(capsys, "train", "video-ut", *BRIEF, "--out", str(tmp_path / "empty"))


@pytest.mark.parametrize("name", ["erm", "constrained"])
@pytest.mark.parametrize("flags", [[], ["--resume"]])
def test_the_demo_replaces_nothing_that_is_not_a_demos(capsys, tmp_path, name, flags):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("years of work")
    message = one_line(capsys, "demo", "--max-steps", "1", "--out", str(tmp_path), *flags)
    assert message == f"descend: {tmp_path} holds runs that are not a demo's; choose another folder with --out."
    assert (tmp_path / name / "thesis.txt").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == [name]  # no mark to be taken for a demo's next time


def test_compare_replaces_nothing_that_is_not_a_comparison(capsys, tmp_path, pair):
    (tmp_path / "summary.json").write_text('{"years": "of work"}')
    message = one_line(capsys, "compare", str(pair[0]), "--out", str(tmp_path))
    assert message.startswith(f"descend: {tmp_path} holds summary.json, which Descend") and "did not write" in message
    assert (tmp_path / "summary.json").read_text() == '{"years": "of work"}'
    assert not (tmp_path / "report.html").exists()
    for runs in (pair[:1], pair):  # its own makes way
        words(capsys, "compare", *map(str, runs), "--out", str(tmp_path / "page"))
    assert len(json.loads((tmp_path / "page" / "summary.json").read_text())["runs"]) == 2


def test_too_little_to_validate_on_is_said_before_training(capsys, tmp_path):
    # 2 to test on, 2 to train on, 3 to validate on: one window of 2
    write_frames(tmp_path / "clip", frames=7, suffix=".png")
    places = ["--data", str(tmp_path / "clip"), "--cache-dir", str(tmp_path / "cache"), "--out", str(tmp_path / "run")]
    message = one_line(capsys, "train", "video-ut", *BRIEF, *places)
    assert "leaves 1 window of 2 frames to validate on; expected at least 2" in message
    assert not (tmp_path / "run").exists()


def test_training_says_what_the_data_are(capsys, caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path / "cache"))
    for place, size in enumerate([(64, 48), (48, 64), (64, 48), (64, 48)]):
        write_video(tmp_path / "yard" / f"{place}.avi", size=size)
    write_video(tmp_path / "yard" / "4.avi", frames=1)
    short = [
        *BRIEF,
        "--data",
        str(tmp_path / "yard"),
        "--noise",
        "25",
        "--method",
        "erm",
        "--out",
        str(tmp_path / "run"),
    ]
    _, err = words(capsys, "train", "video-ut", *short)
    assert caplog.messages == ["clip 4 is left out: it has fewer frames (1) than a window (2)."]
    clips, size, noise, warning = err.splitlines()
    assert clips == "yard: 2 clips (0, 1) to train on, 1 clip (2) for validation, 1 clip (3) for test."
    assert size == "Frames of 64x48, 48x64 pixels become grey and 160x160, whatever their shape."
    config = read_config(tmp_path / "run")
    assert f"standard deviation {25 * 255 * config.sigma:,.0f} of 255 grey levels (γ = 25, σ_x = " in noise
    assert warning.startswith("WARNING: ") and f"give --noise {25 / 255 / config.sigma:.2g}." in warning
    _, err = words(capsys, "train", "video-ut", *short[:-1], str(tmp_path / "again"), "--quiet")
    assert err == f"{warning}\n"
    text = ["--data", "generated", "--max-steps", "1", "--depth", "1", "--hidden-size", "16", "--method", "erm"]
    _, err = words(capsys, "train", "text-distilbert", *text, "--use-cpu", "--out", str(tmp_path / "text"))
    assert "generated imdb: 1,600 samples to train on, 400 for validation, 500 for test." in err
    assert "Training noise: γ = 1 on the embeddings, in units of their standard deviation σ_x" in err


def test_no_space_is_one_line_and_leaves_no_half_file(capsys, tmp_path, monkeypatch):
    replace = os.replace

    def full(source, target):
        if Path(target).name == "config.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    message = one_line(capsys, "train", "video-ut", *BRIEF, "--out", str(tmp_path / "run"), status=1)
    assert message.startswith(f"descend: {tmp_path / 'run' / 'config.json'} can't be written: No space left on device")
    assert message.endswith("--resume")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_loss_that_is_not_finite_is_one_line(capsys, tmp_path):
    message = one_line(
        capsys,
        *["train", "video-ut", *BRIEF, "--out", str(tmp_path / "run"), "--max-grad-norm", "0", "--quiet"],
        *["--learning-rate", "1e30", "--max-steps", "50", "--eval-strategy", "no", "--alpha", "0.6"],
        status=1,
    )
    found = re.search(r"step (\d+): the loss of layer \[1, 2\] is not finite", message)
    assert found and int(found[1]) > 1
    assert "there is no checkpoint to go on from" in message  # none was due before it


def test_an_infeasible_end_is_loud(capsys, tmp_path):
    train = ["train", "video-ut", *BRIEF, "--alpha", "0.9", "--quiet", "--out", str(tmp_path / "run")]
    out, err = words(capsys, *train)
    assert out.startswith(f"trained {tmp_path / 'run'}: Open: ")  # a few clips prove nothing
    assert "So far layers 1, 2 miss their bounds by more than 1% on the validation data." in out
    assert f"WARNING: {tmp_path / 'run'} ends open, and misses a bound so far." in err
    (tmp_path / "run" / "best_feasible").mkdir()
    _, err = words(capsys, *train, "--resume")
    assert f"descend evaluate {tmp_path / 'run'} --model best_feasible" in err


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


@pytest.mark.parametrize("text", ["", "a", "0:1", "0:1:2:3", "0:1:0", "-1", "1,-1", "nan", "inf", "0:-1:1", "0,,1"])
def test_levels_that_are_none_are_refused(text):
    with pytest.raises(InputError, match="noise must be levels"):
        levels(text)


# --- quiet, and not


def one_after_the_other(*commands: list[str]) -> list[str]:
    """Python that runs commands in one process, which imports once."""
    return [sys.executable, "-c", f"from descend.cli import main\nassert not any(map(main, {list(commands)!r}))"]


def test_quiet_without_a_terminal(tmp_path):
    training = ["train", "video-ut", *BRIEF, "--method", "erm", "--out", "run"]
    command = one_after_the_other(training, ["evaluate", "run", "--noise", "0.8"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["scenes", "Training noise"]  # no progress
    trained, found, *answer, page = done.stdout.splitlines()
    assert trained == "trained run" and "rmse" in found and len(answer) > 3 and page == "run/report.html"


def on_terminal(*commands: list[str], cwd: Path) -> str:
    """What commands show on a terminal of 100 columns."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    process = subprocess.Popen(
        one_after_the_other(*commands),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while part := os.read(master, 4096):
            shown += part
    os.close(master)
    assert process.wait(timeout=120) == 0, shown.decode()
    return shown.decode()


def test_bars_with_the_time_left_on_a_terminal(tmp_path):
    remaining = r"\d\d:\d\d<\d\d:\d\d"
    brief = [*BRIEF, "--max-steps", "30", "--logging-steps", "1", "--method", "erm"]
    evaluation = ["evaluate", "run", "--noise", "0,0.4,0.8"]
    shown = on_terminal(["train", "video-ut", *brief, "--out", "run"], evaluation, cwd=tmp_path)
    training, trained, judging = shown.partition("trained run")
    assert re.search(rf"30/30 \[{remaining}", training)
    assert re.search(r"loss=\d\.\d", training)
    assert trained and shown.startswith("loading libraries …")
    assert "{'" not in training  # no line per log
    assert re.search(rf"evaluating: .*\[{remaining}", judging)
