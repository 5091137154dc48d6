"""The command line: recipes, pages, what it says and shows, and one clear line for whatever is wrong."""

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

from descend.cli import COMMANDS, main
from descend.cli.parsing import levels
from descend.cli.runs import line_of
from descend.recipes import RECIPES
from descend.results import read_config, read_summary
from tests.support.runs import refused, said
from tests.support.sources import write_frames, write_video

# Two steps on a handful of windows: what is tested is the command line.
SHORT = ["--data", "generated", "--depth", "2", "--max-steps", "2", "--use-cpu"]
BRIEF = ["video-ut", *SHORT, "--window", "2", "--stride", "40"]
TRAIN = ["train", "video-ut", "--data", "generated", "--out", "OUT"]
SWEEP = ["sweep", "video-ut", "--data", "generated", "--use-cpu", "--trials", "1"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[Path]:
    """An ERM and a constrained run, evaluated; read them, don't change them."""
    folder = tmp_path_factory.mktemp("pair")
    for method in ("erm", "constrained"):
        assert main(["train", *BRIEF, "--method", method, "--out", str(folder / method)]) == 0
        assert main(["evaluate", str(folder / method), "--noise", "0,0.8"]) == 0
    return [folder / "erm", folder / "constrained"]


def test_recipes_are_listed_and_no_command_is_as_good_as_help(capsys):
    out, _ = said(capsys, "recipes")
    assert [line.split()[0] for line in out.splitlines()] == list(RECIPES)
    assert said(capsys) == said(capsys, "-h") == said(capsys, "--help")


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
    _, line = said(capsys, *argv, status=130)
    assert line == "descend: interrupted." + (f" Go on with: descend {shlex.join(argv)}" if same else "") + "\n"


# --- evaluate, compare, report, demo


@pytest.mark.slow
def test_a_single_level_is_told_once(pair):
    summary = read_summary(pair[0])
    alone = {"noise": [0.8], "values": summary.values[1:], "mean": summary.values[1]}
    shown = r"{}, where the noisy input itself has [\d.]+\.\n"
    several = r" on scenes: mean rmse [\d.]+ over γ = 0 … 0\.8 \([\d.]+, [\d.]+\), [\d.]+ at the training noise"
    for changes, line in (
        ({}, several),
        ({"note": "Last trained by Descend 0.1, with the method constrained."}, several),
        (alone, r": rmse [\d.]+ at γ = 0\.8"),
        (alone | {"noise": [1.6]}, r": rmse [\d.]+ at γ = 1\.6, [\d.]+ at the training noise"),
    ):
        told = line_of(summary.model_copy(update=changes))
        assert re.search(shown.format(line), told), told
        assert told.startswith("UT-2 (last trained by Descend with erm) on ") == ("note" in changes)


@pytest.mark.slow
def test_compare_and_report_write_one_page(capsys, tmp_path, pair):
    said(capsys, "compare", pair[0], "--out", tmp_path / "both")  # its own makes way
    out, _ = said(capsys, "compare", *pair, "--out", tmp_path / "both")
    page = tmp_path / "both" / "report.html"
    assert out.splitlines()[-1] == str(page)
    heads = [line.split("): ")[0] for line in out.splitlines() if "): " in line]
    assert heads == [f"{pair[0]} (erm", f"{pair[1]} (constrained"]
    runs = json.loads((tmp_path / "both" / "summary.json").read_text())["runs"]
    assert runs == [json.loads((run / "summary.json").read_text()) for run in pair]
    before = page.read_text()
    page.unlink()
    said(capsys, "report", tmp_path / "both")
    assert page.read_text() == before


def test_the_demo_shows_a_fair_pair_and_goes_on(capsys, monkeypatch, tmp_path, pair):
    shutil.copytree(pair[0], tmp_path / "demo" / "erm")  # an earlier demo's: it makes way
    (tmp_path / "demo" / ".descend-demo").touch()
    monkeypatch.setattr("descend.cli.digits.SETTINGS", {"max_steps": 4, "use_cpu": True})
    demo = ["demo", "--max-steps", "1", "--seed", "5", "--out", tmp_path / "demo"]
    out, _ = said(capsys, *demo)
    page = tmp_path / "demo" / "report.html"
    assert out.splitlines()[-1] == f"open {page}"
    # The first page is there before the video is trained.
    assert (
        out.index("1 of 2") < out.index(f"first figures: {page}") < out.index("2 of 2") < out.index("What was learned")
    )
    assert "a digit, and what layers 0 to 8 take it for\n   erm" in out and "data:image/png" in page.read_text()
    folders = [tmp_path / "demo" / method for method in ("erm", "constrained")]
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    for config, folder in zip(configs, folders, strict=True):
        assert config.pop("method") == config["training"].pop("method") == folder.name
        config.pop("seconds")
    assert configs[0] == configs[1] and configs[0]["seed"] == configs[0]["training"]["seed"] == 5
    runs = json.loads((tmp_path / "demo" / "summary.json").read_text())["runs"]
    expected = [("Network-8", "erm"), ("Network-8", "linear"), ("UT-5", "erm"), ("UT-5", "constrained")]
    assert [(run["model"], run["method"]) for run in runs] == expected and runs[2]["noise"] == runs[3]["noise"]
    # The same noisy test frames, and a first step on the same noisy training batch.
    assert np.array_equal(*(np.load(folder / "frames.npz")["noisy"] for folder in folders))
    first, second = (json.loads((folder / "records.jsonl").read_text().splitlines()[0]) for folder in folders)
    assert first["value"] == second["value"]
    # An interrupted one goes on: what is done stays done.
    shutil.rmtree(folders[1])
    done = (folders[0] / "model" / "model.safetensors").read_bytes()
    assert "was made with --data generated --seed 5 --max-steps 1" in refused(capsys, *demo, "--resume", "--seed", "6")
    said(capsys, *demo, "--resume")
    assert (folders[0] / "model" / "model.safetensors").read_bytes() == done and (folders[1] / "summary.json").is_file()


# --- wrong input


RUN = '{"recipe": "video-ut", "method": "erm", "seed": 0, "model": "UT-2", "settings": {"depth": 2}, "training": {}}'
FILES = {
    "FILE": "a file",
    "TEXT/config.json": '{"recipe": "text-ut"}',
    "TEXT/model/config.json": '{"recipe": "text-ut"}',
    "EXPORT/config.json": '{"model_type": "ut", "descend": {"exported_layers": 1}}',
    "SCRIPT/checkpoint-5/trainer_state.json": "{}",
    "SAVED/config.json": '{"model_type": "bert", "architectures": ["BertForSequenceClassification"]}',
    "SUMMARY/summary.json": "{}",
    "ERM/erm/thesis.txt": "years of work",
    "CONSTRAINED/constrained/thesis.txt": "years of work",
    # Runs, and an earlier demo, that hold a file which Descend did not write.
    "DATA/clip.txt": "",
    "ANSWERS.json": '[{"instruction": "a", "output": "b"}]',
    "HOLDS/page.html": "mine",
    "PAGE-1/summary.json": '{"years": "of work"}',
    "PAGE-2/report.html": "mine",
    "DEMO-1/.descend-demo": "",
    "DEMO-1/report.html": "mine",
    "DEMO-2/.descend-demo": "",
    "DEMO-2/erm/notes.txt": "mine",
    "HOLDS/sweep.db/sweep.db": "mine",
    "HOLDS/sweep.json/sweep.json": "mine",
    **{
        f"HOLDS/{name}/{file}": text
        for name in ("model/weights.pt", "dual.safetensors", "summary.json", "report.html", "on-DATA/groups.json")
        for file, text in (("config.json", RUN), (name, "mine"))
    },
}


@pytest.fixture(scope="module")
def there(pair, tmp_path_factory) -> Path:
    """A folder with a run and all that is no run."""
    place = tmp_path_factory.mktemp("there")
    shutil.copytree(pair[1], place / "RUN")
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    write_frames(place / "IMAGES")
    write_frames(place / "SHORT", frames=7, suffix=".png")  # 2 to test on, 2 to train on, 3 to validate on
    return place


def files() -> dict[Path, int]:
    return {path: path.is_file() and path.stat().st_mtime_ns for path in Path().rglob("*")}


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
        ([*TRAIN, "--dual-optim-args", '{"kq": 5}'], "got an unexpected keyword argument 'kq'"),
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
        ([*TRAIN, "--out", ".", "--resume"], "config.json must be a file; it is not there"),
        (["evaluate"], "the following arguments are required: run"),
        (["evaluate", "NOWHERE"], "NOWHERE/config.json must be a file; it is not there"),
        (["evaluate", "FILE"], "FILE/config.json must be a file; it is not there"),
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
        (["compare", "NOWHERE", "--out", "OUT"], "NOWHERE has no summary.json; evaluate it first"),
        (
            ["compare", "RUN", "--out", "RUN"],
            "holds something else than a comparison; choose another folder with --out",
        ),
        (["report", "NOWHERE"], "NOWHERE/summary.json must be a file; it is not there"),
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
        ([*TRAIN, "--output_dir", "run"], "no setting --output-dir; give --out instead"),
        ([*TRAIN, "--resume-from-checkpoint", "run"], "give --resume instead"),
        ([*TRAIN, "--disable-tqdm"], "give --quiet instead"),
        ([*TRAIN, "--tied", "false"], "--tied takes no value; give --tied or --no-tied"),
        ([*TRAIN, "--no-tied=True"], "give --tied or --no-tied"),
        ([*TRAIN, "--preset", "pape"], "invalid choice: 'pape'"),
        ([*TRAIN, "--method", "erm", "--layer-dropout", "0.1"], "--layer-dropout: a setting of the method layerskip"),
        ([*TRAIN, "--r-drop", "2"], "--r-drop: a setting of the method r-drop; the method is constrained"),
        ([*TRAIN, "--attention-size", "7", "--heads", "2"], "attention_size"),
        ([*TRAIN, "--report-to", "nowhere"], "nowhere"),
        ([*TRAIN, "--out", "RUN"], "RUN exists; choose another with --out, or resume the run with --resume."),
        ([*TRAIN, "--data", "SHORT", "--window", "2"], "leaves 1 window of 2 frames to validate on; expected at least"),
        *(
            (["demo", "--max-steps", "1", "--out", folder, *more], f"{folder} holds runs that are not a demo's; choose")
            for folder in ("ERM", "CONSTRAINED")
            for more in ([], ["--resume"])
        ),
        *(
            (["evaluate", "RUN", f"--noise={text}"], "noise must be levels")
            for text in ("", "a", "0:1:2:3", "1,-1", "inf", "0:-1:1", "0,,1")
        ),
        (["evaluate", "RUN", "--log-level", "loud"], "'loud'"),
        # No file is replaced that Descend did not write.
        ([*TRAIN[:-1], "HOLDS/model/weights.pt", "--resume"], "weights.pt holds model, which Descend may replace"),
        ([*TRAIN[:-1], "HOLDS/dual.safetensors", "--resume"], "dual.safetensors holds dual.safetensors, which"),
        (["evaluate", "HOLDS/summary.json"], "summary.json holds summary.json, which Descend may replace"),
        (["evaluate", "HOLDS/report.html"], "report.html holds report.html, which Descend may replace"),
        (["evaluate", "HOLDS/on-DATA/groups.json", "--data", "DATA"], "Choose other data, or move it."),
        (["compare", "RUN", "--out", "PAGE-1"], "PAGE-1 holds summary.json, which Descend may replace"),
        (["compare", "RUN", "--out", "PAGE-2"], "PAGE-2 holds report.html, which Descend may replace"),
        ([*SWEEP, "--out", "HOLDS/sweep.db"], "HOLDS/sweep.db holds sweep.db, which Descend may replace"),
        ([*SWEEP, "--out", "HOLDS/sweep.json"], "HOLDS/sweep.json holds sweep.json, which Descend may replace"),
        (["demo", "--out", "DEMO-1"], "DEMO-1 holds report.html, which Descend may replace"),
        (["demo", "--out", "DEMO-2"], "DEMO-2/erm holds notes.txt, which Descend may replace"),
        (["complete", "--compare", "ANSWERS.json", "--out", "HOLDS/page.html"], "HOLDS holds page.html, which Descend"),
    ],
)
def test_wrong_input_is_one_clear_line_and_changes_nothing(capsys, tmp_path, monkeypatch, there, argv, message):
    monkeypatch.chdir(there)
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path))
    before = files()
    line = refused(capsys, *argv)
    assert line.startswith("descend: ") and message in line and files() == before


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


def test_a_loss_that_is_not_finite_is_one_line(capsys, tmp_path):
    flags = ["--learning-rate", "1e30", "--max-grad-norm", "0", "--alpha", "0.6", "--max-steps", "50", "--quiet"]
    _, line = said(capsys, "train", *BRIEF, *flags, "--eval-strategy", "no", "--out", tmp_path / "run", status=1)
    found = re.search(r"step (\d+): the loss of layer \[1, 2\] is not finite", line)
    assert found and int(found[1]) > 1
    assert "there is no checkpoint to go on from" in line  # none was due before it


def test_an_infeasible_end_is_loud(capsys, tmp_path):
    train = ["train", *BRIEF, "--alpha", "0.9", "--quiet", "--out", tmp_path / "run"]
    out, err = said(capsys, *train)
    assert out.startswith(f"trained {tmp_path / 'run'}: Open: ")  # a few clips prove nothing
    assert "So far layers 1, 2 miss their bounds by more than 1% on the validation data." in out
    assert f"WARNING: {tmp_path / 'run'} ends open, and misses a bound so far." in err
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


@pytest.mark.slow
def test_bars_with_the_time_left_on_a_terminal(tmp_path):
    """One of 100 columns; both commands in one process, which imports once."""
    brief = ["--max-steps", "30", "--logging-steps", "1", "--method", "erm", "--out", "run"]
    commands = [["train", *BRIEF, *brief], ["evaluate", "run", "--noise", "0,0.4,0.8"]]
    code = f"from descend.cli import main\nassert not any(map(main, {commands!r}))"
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    process = subprocess.Popen([sys.executable, "-c", code], stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while part := os.read(master, 4096):
            shown += part
    os.close(master)
    assert process.wait(timeout=120) == 0, shown.decode()
    training, trained, judging = shown.decode().partition("trained run")
    remaining = r"\d\d:\d\d<\d\d:\d\d"
    assert training.startswith("loading libraries …") and re.search(rf"30/30 \[{remaining}", training)
    assert re.search(r"loss=\d\.\d", training) and "{'" not in training  # no line per log
    assert trained and re.search(rf"evaluating: .*\[{remaining}", judging)
