"""Runs through the command line: what a folder holds, repeating it, going on with it, evaluating it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file

from descend import UT, DescentConfig, GaussianNoise, InputError, run
from descend.cli import main
from descend.evaluation.evaluators import MOST_SAMPLES
from descend.evaluation.layers import evenly
from descend.recipes import RECIPES
from descend.results import read_summary
from descend.results.ownership import RESULTS
from descend.run.describing import stored
from descend.settings import DescentSettings
from descend.tasks.video import VideoDenoising, load_test, load_video
from descend.training.sft import DescentSFTConfig
from tests.support.runs import SETTINGS, TINY, assert_same_end, rows, stop_after, train
from tests.support.sources import clips
from tests.support.subjects import measured


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished and evaluated run; read it, don't change it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert train(out) == 0
    assert main(["evaluate", str(out), "--noise", "0,0.8,1.6"]) == 0
    return out


# --- what a folder holds


def test_a_run_folder_holds_what_the_plan_says(finished):
    names = {path.name for path in finished.iterdir()}
    expected = {
        "config.json",
        "records.jsonl",
        "model",
        "dual.safetensors",
        "summary.json",
        "groups.json",
        "frames.npz",
        "report.html",
    }
    assert names == expected | {"checkpoint-3", "checkpoint-6", "checkpoint-8"}
    written = {path.name for path in (finished / "model").iterdir()}
    assert written == {"config.json", "model.safetensors", "README.md"}
    dual = load_file(finished / "dual.safetensors")
    assert {name: tensor.shape for name, tensor in dual.items()} == {
        "multipliers": (2,),
        "cap_multiplier": (),
        "slack": (2,),
        "sigma": (),
        "moved": (),
    }
    assert dual["multipliers"].max() > 0 and dual["moved"]
    for folder in ("model", "checkpoint-3"):
        assert UT.from_pretrained(finished / folder).depth == 2


def test_the_summary_has_what_the_plan_says(finished):
    summary = json.loads((finished / "summary.json").read_text())
    asked = """recipe method seed model dataset metric higher_is_better noise values mean train_noise layer_losses
        layer_metrics violations feasible multipliers descending_share"""
    assert set(asked.split()) <= summary.keys()
    assert summary["noise"] == [0, 0.8, 1.6]
    assert (summary["recipe"], summary["method"], summary["model"]) == ("video-ut", "constrained", "UT-2")
    assert (summary["dataset"], summary["metric"], summary["train_noise"]) == ("scenes", "rmse", 0.8)
    assert summary["higher_is_better"] is False
    assert {level: len(found) for level, found in summary["layer_losses"].items()} == {"0.0": 3, "0.8": 3, "1.6": 3}
    assert len(summary["violations"]) == len(summary["multipliers"]) == 2
    exits = {level: found[0] for level, found in summary["layer_metrics"].items()}  # UT's exit 0 is its input
    assert summary["input_metrics"] == pytest.approx(exits, rel=1e-6)
    frames = np.load(finished / "frames.npz")
    assert frames["reconstruction"].shape == (3, 3, 2, 160, 160)
    assert (summary["split"], summary["checkpoint"]) == ("test", "model")
    assert summary["limits"] == [None, 0.4, 0.4]
    assert (summary["samples"], summary["groups"]) == (45, 3)  # three clips
    assert not set(summary["undecided"]) & set(summary["violated"])
    assert summary["binding"] == [layer for layer in (1, 2) if summary["multipliers"][layer - 1] > 0] != []
    names = ", ".join(f"layer {layer}" for layer in summary["binding"])
    assert summary["verdict"].endswith(f"the test data. Binding (λ > 0 at the last step): {names}.")


def test_the_summary_has_the_energy_along_the_layers(finished):
    """That of clean inputs by hand, on the samples that are measured."""
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["energy"].keys() == summary["layer_losses"].keys()
    model = UT.from_pretrained(finished / "model").eval()
    test = load_video(None, window=2).test
    clean = torch.stack([torch.as_tensor(test[place]["patches"]) for place in evenly(len(test), MOST_SAMPLES)])
    projection, mixer = model.weights()[0]
    with torch.no_grad():
        for layer, hidden in enumerate(model.layer_outputs(clean)):
            apart = (hidden[..., 0, :] - hidden[..., 1, :]) @ projection.T
            pair = -(-apart.square().sum(-1) / 2).exp()
            mixed = torch.einsum("bntp,pq,bntq->bn", hidden, mixer, hidden) / 2
            assert summary["energy"]["0.0"][layer] == pytest.approx((pair - mixed).mean().item(), rel=1e-4)
    noisier = [summary["energy"][level][0] for level in ("0.0", "0.8", "1.6")]
    assert noisier == sorted(noisier)  # what differs more has more energy


def test_what_binds_is_told_by_its_multiplier_the_cap_too(tmp_path):
    assert train(tmp_path / "cap", "--cap", "0.1", "--alpha", "0.01", "--depth", "1", steps=2) == 0
    summary = run.evaluate(tmp_path / "cap", noise=[0.8])
    assert (summary.cap_multiplier > 0, summary.multipliers) == (True, [0])
    assert summary.binding == summary.violated == [0]
    assert summary.verdict == (
        "Open: 3 groups of samples, at least 12 are needed for a verdict, such as 12 clips or texts. So far the cap "
        "misses its bound by more than 1% on the test data. Binding (λ > 0 at the last step): the cap."
    )
    assert train(tmp_path / "erm", "--method", "erm", steps=2) == 0
    summary = run.evaluate(tmp_path / "erm", noise=[0.8])
    assert summary.binding == [] and "Binding" not in summary.verdict


def test_nothing_binds_before_the_first_dual_step(finished, tmp_path):
    """The price rule's multipliers start above 0; older files do not say whether they moved."""
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    tensors = load_file(out / "dual.safetensors")
    del tensors["moved"]
    tensors["multipliers"].fill_(1.0)
    for moved, binding in (({"moved": torch.tensor(False)}, []), ({"moved": torch.tensor(True)}, [1, 2]), ({}, [1, 2])):
        save_file(tensors | moved, out / "dual.safetensors")
        assert run.evaluate(out, noise=[0.8]).binding == binding


def test_the_config_names_every_setting_of_descends_own(finished):
    config = json.loads((finished / "config.json").read_text())
    own = set(DescentSettings.__annotations__) - {"remove_unused_columns", "dataloader_pin_memory"}
    assert len(own) > 10 and own <= config["training"].keys()
    assert (config["training"]["form"], config["training"]["slack_optimizer"]) == ("difference", None)  # defaults too
    assert config["training"]["alpha_decay"] == 1  # the recipe's own is that of its own α
    assert "adam_beta1" not in config["training"] and "output_dir" not in config["training"]
    assert {"torch", "transformers", "accelerate"} <= config["versions"].keys()
    assert config["versions"]["torch"].startswith(torch.__version__.split("+")[0])


def test_the_config_alone_repeats_the_run(finished, tmp_path):
    config = json.loads((finished / "config.json").read_text())
    recipe = RECIPES[config["recipe"]](**config["settings"])
    args = DescentConfig(output_dir=str(tmp_path / "run"), **config["training"])
    assert args.seed == config["seed"]
    run.train(config["recipe"], recipe, args)
    assert_same_end(tmp_path / "run", finished)


def test_a_seed_changes_the_run(finished, tmp_path):
    assert train(tmp_path / "run", "--seed", "1") == 0
    assert load_file(tmp_path / "run" / "dual.safetensors")["multipliers"].tolist() != (
        load_file(finished / "dual.safetensors")["multipliers"].tolist()
    )


# --- going on


VARIANTS = {
    "adam": [],
    "explicit slack, every 3": ["--slack", "explicit", "--dual-every", "3"],
    "nupi, explicit slack": ["--dual-optimizer", "nupi", "--slack", "explicit", "--dual-optim-args", '{"kp": 2.0}'],
    "ratio, every epoch": ["--form", "ratio", "--dual-every", "epoch", "--slack", "explicit"],
    "accumulated, with a cap": ["--gradient-accumulation-steps", "2", "--cap", "1.0", "--no-stop-gradient"],
    "feasible": ["--alpha", "0.05", "--first-layer", "0", "--depth", "1", "--eval-steps", "1"],
    "erm": ["--method", "erm"],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_goes_on_bit_equal(tmp_path, variant, monkeypatch, capsys):
    flags = VARIANTS[variant]
    assert train(tmp_path / "whole" / "run", *flags) == 0
    out = tmp_path / "part" / "run"
    # Within an epoch and between two logs, and at the last step of an epoch.
    for step in (1, 5, 6):
        with monkeypatch.context() as patch:
            stop_after(patch, step)
            capsys.readouterr()
            assert train(out, *flags, *(["--resume"] if step > 1 else [])) == 130
            assert f"stopped at step {step} of 8; saved in {out}." in capsys.readouterr().err
            assert not (out / "model").exists()
    assert train(out, *flags, "--resume") == 0
    assert_same_end(tmp_path / "whole" / "run", out)


@pytest.mark.parametrize("recipe", ["video-vit --hidden-size 16 --warmup-steps 0", "video-dust --atoms 64"])
def test_other_models_go_on_bit_equal_too(tmp_path, recipe):
    """ViT's parameters have other names in a model that is saved for the Hub."""
    command = ["train", *recipe.split(), "--data", "generated", *SETTINGS.split(), "--max-steps", "4"]
    command += ["--save-steps", "2"]
    whole, half = tmp_path / "whole" / "run", tmp_path / "half" / "run"
    assert main([*command, "--out", str(whole)]) == 0
    shutil.copytree(whole, half)
    shutil.rmtree(half / "model")
    shutil.rmtree(half / "checkpoint-4")
    assert main([*command, "--out", str(half), "--resume"]) == 0
    assert_same_end(half, whole, "checkpoint-4")


@pytest.mark.parametrize("checkpoint", [3, 8, None])
def test_a_run_that_was_killed_goes_on_bit_equal_from_its_last_checkpoint(finished, tmp_path, checkpoint, capsys):
    # What a kill leaves: rows later than the last whole checkpoint, one of them cut off, a checkpoint half written.
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for name in ("model", "summary.json", "dual.safetensors", "frames.npz"):
        shutil.rmtree(out / name) if name == "model" else (out / name).unlink()
    for step in (3, 6, 8):
        if checkpoint is None or step > checkpoint:
            (out / f"checkpoint-{step}" / "trainer_state.json").unlink()
    with (out / "records.jsonl").open("a") as file:
        file.write('{"run": "run", "st')
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


def test_going_on_with_a_finished_run_changes_nothing(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    before = json.loads((finished / "config.json").read_text())
    assert train(tmp_path / "run", "--resume") == 0
    assert_same_end(tmp_path / "run", finished)
    after = json.loads((tmp_path / "run" / "config.json").read_text())
    assert after["seconds"] > before.pop("seconds") / 2  # those before are counted
    assert {name: after[name] for name in before} == before


def test_ctrl_c_in_a_subprocess_saves_and_says_how_to_go_on(tmp_path, capsys):
    flags = ["--per-device-train-batch-size", "2", "--logging-steps", "1", "--eval-steps", "1000"]
    out = tmp_path / "part" / "a run"
    command = ["train", *TINY, "--out", str(out), "--max-steps", "100", "--save-steps", "100", *flags]
    threads = str(torch.get_num_threads())  # a sum over more threads is another sum
    process = subprocess.Popen(
        [sys.executable, "-m", "descend", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": ""},
    )
    deadline = time.monotonic() + 60
    while not (out / "records.jsonl").exists() or len(rows(out)) < 40:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    again = f"Go on with: descend train {' '.join(command[1:]).replace(str(out), repr(str(out)))} --resume"
    assert stderr.splitlines()[-1].endswith(again)
    assert "Traceback" not in stderr
    (saved,) = out.glob("checkpoint-*")
    assert 0 < int(saved.name.split("-")[1]) < 100
    assert main([*command, "--resume"]) == 0
    whole = tmp_path / "whole" / "a run"
    assert main([word.replace(str(out), str(whole)) for word in command]) == 0
    assert_same_end(out, whole, "checkpoint-100")


def test_a_run_from_before_a_setting_of_another_method_goes_on(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    content = json.loads(file.read_text())
    for name in ("layer_dropout", "exit_curriculum"):
        del content["training"][name]
    file.write_text(json.dumps(content))
    assert train(tmp_path / "run", "--resume") == 0


def test_other_settings_are_refused_on_resuming(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    assert train(tmp_path / "run", "--resume", "--learning-rate", "0.1", "--depth", "3") == 2
    error = capsys.readouterr().err
    assert "was made with other settings: depth (was 2, now 3), learning_rate (was 0.003, now 0.1)" in error
    assert load_file(tmp_path / "run" / "model" / "model.safetensors").keys()


def test_a_longer_run_may_go_on(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    assert train(tmp_path / "run", "--resume", steps=10) == 0
    assert (tmp_path / "run" / "checkpoint-10").is_dir()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["training"]["max_steps"] == 10


# --- evaluating


def test_other_data_are_judged_with_the_sigma_and_noise_of_the_run(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where the cache goes
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    data = clips(tmp_path / "flicker", shade=40)
    summary = run.evaluate(out, data=str(data), noise=[0.8], seed=3)
    sigma = json.loads((out / "config.json").read_text())["sigma"]
    test, _ = load_test(data, 2)  # all of it: nothing is kept back for training
    network = UT.from_pretrained(out / "model")
    by_hand = measured(network, VideoDenoising(), test, GaussianNoise(0.8, sigma, 3))
    assert (summary.dataset, summary.groups) == ("flicker", 4)
    assert summary.sigma == sigma != load_video(data, 2).sigma
    assert summary.values == by_hand.metrics[-1:]
    other = run.evaluate(out, data=str(data), noise=[0.8], seed=4)
    assert other.values != summary.values


def test_other_data_leave_the_runs_own_evaluation_alone(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    assert main(["evaluate", str(out), "--noise", "0.8"]) == 0
    own = {path: path.read_bytes() for path in [*out.glob("*.*"), *out.glob("model/*")] if path.is_file()}
    assert out / "summary.json" in own and out / "report.html" in own
    data, page = clips(tmp_path / "flicker", shade=40), out / "on-flicker" / "report.html"
    assert main(["evaluate", str(out), "--noise", "0.8", "--data", str(data)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(page)
    assert {path: path.read_bytes() for path in own} == own
    assert "<h1>Descend: run on flicker</h1>" in page.read_text()
    assert read_summary(page.parent).dataset == "flicker"
    assert main(["compare", str(out), str(page.parent), "--out", str(tmp_path / "both")]) == 0
    assert "<h1>Descend: run, run on flicker</h1>" in (tmp_path / "both" / "report.html").read_text()


def test_the_evaluation_of_an_earlier_step_is_removed(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    assert main(["evaluate", str(out), "--noise", "0.8"]) == 0
    shutil.copytree(out, tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(out / "on-elsewhere")
    (out / "notes.txt").touch()
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.name in RESULTS}
    assert len(before) == 4
    assert train(out, "--resume") == 0  # no further step
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.name in RESULTS} == before
    capsys.readouterr()
    assert train(out, "--resume", steps=10) == 0
    assert "its evaluation, of an earlier step, is removed; evaluate again." in capsys.readouterr().err
    assert not {path.name for place in (out, out / "on-elsewhere") for path in place.iterdir()} & set(RESULTS)
    assert (out / "notes.txt").exists() and (out / "on-elsewhere" / "config.json").exists()
    assert main(["compare", str(out), "--out", str(tmp_path / "page")]) == 2
    assert f"run `descend evaluate {out}` first" in capsys.readouterr().err


def test_a_run_is_judged_from_anywhere(tmp_path, monkeypatch):
    clips(tmp_path / "here" / "flicker")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert train(Path("run"), "--data", "flicker", "--cache-dir", "cache", steps=1) == 0
    settings = json.loads(Path("run/config.json").read_text())["settings"]
    assert settings["data"] == str(tmp_path / "here" / "flicker")
    assert settings["cache_dir"] == str(tmp_path / "here" / "cache")
    monkeypatch.chdir(tmp_path / "there")
    assert main(["evaluate", "../here/run", "--noise", "0.8"]) == 0
    assert not any((tmp_path / "there").iterdir())
    monkeypatch.chdir(tmp_path)
    assert train(Path("here/run"), "--data", "here/flicker", "--cache-dir", "here/cache", "--resume", steps=1) == 0


def strict(path: Path):
    """JSON as the standard has it."""

    def refuse(constant: str):
        raise AssertionError(f"{constant} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_diverged_model_is_judged_with_nulls(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    network = UT.from_pretrained(out / "model")
    with torch.no_grad():
        network.feedforward.fill_(torch.nan)
    network.save_pretrained(out / "model")
    assert main(["evaluate", str(out), "--noise", "0,0.8"]) == 0
    assert "INFEASIBLE: layers 1, 2 break their constraints" in capsys.readouterr().out
    summary = strict(out / "summary.json")
    assert (summary["feasible"], summary["certain"], summary["violated"]) == (False, False, [1, 2])
    assert summary["values"] == [None, None] and summary["mean"] is None
    assert summary["layer_losses"]["0.8"][0] > 0 and summary["layer_losses"]["0.8"][1:] == [None, None]
    assert summary["violations"] == [None, None] and summary["violation_intervals"] == [[None, None]] * 2
    assert main(["report", str(out)]) == 0


def test_noise_beyond_all_numbers_is_judged_with_nulls(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--noise", "0.8,1e30"]) == 0
    summary = strict(tmp_path / "run" / "summary.json")
    assert summary["values"][0] > 0 and summary["values"][1] is None
    assert summary["mean"] is None
    assert summary["violations"] == json.loads((finished / "summary.json").read_text())["violations"]


def test_two_models_meet_the_same_noise(finished, tmp_path):
    assert train(tmp_path / "run", "--method", "erm") == 0
    run.evaluate(tmp_path / "run", noise=[0.0, 0.8, 1.6])
    noisy = [np.load(folder / "frames.npz")["noisy"] for folder in (finished, tmp_path / "run")]
    np.testing.assert_array_equal(*noisy)
    # UT's layer 0 is the noisy input itself.
    errors = [json.loads((folder / "summary.json").read_text()) for folder in (finished, tmp_path / "run")]
    assert errors[0]["layer_losses"]["0.8"][0] == errors[1]["layer_losses"]["0.8"][0]


def test_the_best_feasible_model_is_judged_when_asked_for(tmp_path):
    out = tmp_path / "run"
    assert train(out, *VARIANTS["feasible"]) == 0
    with torch.no_grad():  # make the two differ beyond doubt
        network = UT.from_pretrained(out / "model")
        network.feedforward += 0.1 * torch.eye(256)
        network.save_pretrained(out / "model")
    worse, best = (run.evaluate(out, noise=[0.8], model=name) for name in ("model", "best_feasible"))
    assert best.values[0] < worse.values[0]
    assert best.feasible
    assert (worse.checkpoint, best.checkpoint) == ("model", "best_feasible")
    (out / "best_feasible" / "dual.safetensors").unlink()  # its own, not that of the run's end
    with pytest.raises(InputError, match=r"best_feasible.dual\.safetensors"):
        run.evaluate(out, noise=[0.8], model="best_feasible")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_split_can_be_judged(finished, tmp_path, split):
    shutil.copytree(finished, tmp_path / "run")
    summary = run.evaluate(tmp_path / "run", noise=[0.8], split=split)
    assert summary.split == split
    assert summary.samples == {"train": 18, "validation": 30, "test": 45}[split]
    data = {"train": "the training data", "validation": "the validation data", "test": "the test data"}[split]
    assert f" on {data}" in summary.verdict


def test_usual_levels_are_eight_up_to_three_and_a_half_times_the_training_noise():
    assert run.usual_levels(RECIPES["video-ut"](data="generated", noise=0.8)) == pytest.approx(np.linspace(0, 2.8, 8))
    assert run.usual_levels(RECIPES["video-ut"](data="generated", noise=0.0)) == pytest.approx(np.linspace(0, 2.8, 8))
    assert run.usual_levels(RECIPES["video-ut"](data="generated", noise=0.8), "dropout") == pytest.approx(
        np.linspace(0, 0.7, 8)
    )


# --- folders that can't be evaluated


def test_an_edited_depth_is_refused(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    config = json.loads((finished / "config.json").read_text())
    config["settings"]["depth"] = 5
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"2 layers.*config.json.*depth 5"):
        run.evaluate(tmp_path / "run")


@pytest.mark.parametrize(
    ("part", "changed", "fault"),
    [
        ("settings", {"tied": 1}, "tied must be True or False; got 1"),
        ("settings", {"window": True}, "window must be a whole number; got True"),
        ("settings", {"l1": None}, "unexpected keyword argument 'l1'"),
        ("training", {"stop_gradient": 0}, "stop_gradient must be True or False; got 0"),
        ("training", {"seed": "1"}, "seed must be a number; got the text '1'"),
    ],
)
def test_a_setting_of_another_type_is_refused_with_the_file_that_has_it(tmp_path, finished, part, changed, fault):
    config = json.loads((finished / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {part: config[part] | changed}))
    with pytest.raises(InputError) as error:
        run.evaluate(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'config.json'} holds settings that this version of descend can't")
    assert fault in str(error.value) and str(error.value).endswith(". Train the run again.")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


DAMAGE = {
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "other": lambda path: path.write_text("not tensors, but something else of some length"),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["model/model.safetensors", "dual.safetensors"])
def test_a_damaged_model_is_one_clear_line(finished, tmp_path, name, damage, capsys):
    shutil.copytree(finished, tmp_path / "run")
    before = (finished / "summary.json").read_text()
    DAMAGE[damage](tmp_path / "run" / name)
    assert main(["evaluate", str(tmp_path / "run"), "--noise", "0.8"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"descend: {tmp_path / 'run' / name.removesuffix('/model.safetensors')} can't be loaded: ")
    assert line.endswith("Train the run again.")
    assert (tmp_path / "run" / "summary.json").read_text() == before


@pytest.mark.parametrize("frames", [0, -1])
def test_a_page_without_frames_is_refused(finished, frames):
    with pytest.raises(InputError, match=rf"frames.*got {frames}"):
        run.evaluate(finished, frames=frames)


def test_an_unfinished_run_is_refused(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(InputError, match=r"model.*--resume"):
        run.evaluate(tmp_path / "run")
    with pytest.raises(InputError, match="best_feasible"):
        run.evaluate(tmp_path / "run", model="best_feasible")


@pytest.mark.parametrize("content", ["[]", "{}", '{"recipe": "video-utt", "settings": {}}', "not JSON", None])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json") as error:
        run.evaluate(tmp_path)
    assert "\n" not in str(error.value)


def test_a_models_own_folder_is_no_run(finished):
    with pytest.raises(InputError, match=r"model.config\.json"):
        run.evaluate(finished / "model")


def test_the_noise_of_training_can_be_drawn_again_from_the_config_alone(tmp_path, monkeypatch):
    seen, draw = [], GaussianNoise.__call__

    def recorded(noise, clean, keep=None, indices=None):
        noisy = draw(noise, clean, keep, indices)
        if indices is None:  # those of evaluation belong to the samples
            seen.append([clean, noisy])
        return noisy

    monkeypatch.setattr(GaussianNoise, "__call__", recorded)
    assert train(tmp_path / "run", "--seed", "3", steps=2) == 0
    monkeypatch.undo()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    again = GaussianNoise(0.8, config["sigma"], config["seed"])
    assert len(seen) == 2 and not torch.equal(seen[0][1] - seen[0][0], seen[1][1] - seen[1][0])
    for step, (clean, noisy) in enumerate(seen):
        again.begin(step)
        assert torch.equal(again(clean), noisy)


def test_wrong_settings_leave_no_folder_behind(tmp_path):
    for flags in (
        ["--attention-size", "7", "--heads", "2"],
        ["--report-to", "nowhere"],
        ["--alpha", "2"],
        ["--dual-warmup-steps", "8"],
        ["--dual-warmup-steps", "0.99"],
    ):
        assert train(tmp_path / "run", *flags) == 2
        assert not (tmp_path / "run").exists()
    assert train(tmp_path / "run", steps=1) == 0


@pytest.mark.parametrize("given", [{"use_cpu": True}, {}, {"bf16": False}])
def test_to_note_the_arguments_leaves_the_devices_as_they_are(tmp_path, given):
    """The library sets its one state of devices up anew for new arguments: a model would be moved off its GPU."""
    kind = DescentSFTConfig if "bf16" in given else DescentConfig  # TRL's default is bf16, which not every machine has
    args = kind(output_dir=str(tmp_path), learning_rate=1e-3, **given)
    state = PartialState()
    state.noticed = "this very one"
    try:
        noted = stored(args)
        assert vars(PartialState())["noticed"] == "this very one"
    finally:
        vars(PartialState()).pop("noticed", None)
    assert noted["learning_rate"] == 1e-3 and "accelerator_config" not in noted
    assert {name: noted[name] for name in ("use_cpu", "bf16") if name in noted} == given


def test_a_run_is_judged_on_a_machine_that_could_not_train_it(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    config = json.loads((out / "config.json").read_text())
    config["training"] |= {"bf16": True, "deepspeed": "of_another_machine.json", "torch_compile_backend": "none there"}
    (out / "config.json").write_text(json.dumps(config))
    assert main(["evaluate", str(out), "--noise", "0", "--frames", "1"]) == 0
    before, after = (json.loads((one / "summary.json").read_text())["values"] for one in (finished, out))
    assert after[0] == before[0]
