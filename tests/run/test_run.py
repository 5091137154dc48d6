"""Runs through the command line: what a folder holds, repeating and resuming it, evaluating and exporting it."""

import json
import re
import shutil
import signal
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file

from descend import UT, DescentConfig, DescentTrainer, InputError, Run, run
from descend.cli import main
from descend.cli.settings import read_recipe
from descend.recipes import RECIPES
from descend.results import RESULTS, read_config, read_summary, strangers
from descend.results.config import PRETRAINED
from descend.run.describing import stored
from descend.run.evaluators import MOST_SAMPLES
from descend.settings import DescentSettings
from descend.tasks.splits import evenly
from descend.tasks.video import load_video
from descend.training.sft import DescentSFTConfig
from tests.support.cases import slow, slow_but
from tests.support.runs import SAVED, SETTINGS, UNSAVED, assert_same_end, refused, said, stop_after, train
from tests.support.sources import clips, write_frames


def edit(file: Path, **parts) -> None:
    """Change entries of a JSON file, within its parts."""
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {name: content[name] | entries for name, entries in parts.items()}))


# --- what a folder holds


def test_a_run_folder_holds_what_the_plan_says(finished):
    files = {
        "config.json",
        "records.jsonl",
        "model",
        "dual.safetensors",
        "summary.json",
        "groups.json",
        "frames.npz",
        "report.html",
        "checkpoint-3",
        "checkpoint-6",
        "checkpoint-8",
        "written.json",
    }
    assert {path.name for path in finished.iterdir()} == files
    model = {"config.json", "model.safetensors", "README.md", "written.json"}
    assert {path.name for path in (finished / "model").iterdir()} == model
    assert strangers(finished, runs=True) == []
    dual = load_file(finished / "dual.safetensors")
    shapes = {"multipliers": (2,), "cap_multiplier": (), "slack": (2,), "sigma": (), "moved": ()}
    assert {name: tensor.shape for name, tensor in dual.items()} == shapes
    assert dual["multipliers"].max() > 0 and dual["moved"]
    assert {UT.from_pretrained(finished / folder).depth for folder in ("model", "checkpoint-3")} == {2}
    assert read_config(finished).sigma == pytest.approx(load_video(None, 2).sigma)


def test_the_summary_has_what_the_plan_says(finished):
    summary = json.loads((finished / "summary.json").read_text())
    expected = {
        "recipe": "video-ut",
        "method": "constrained",
        "seed": 42,
        "model": "UT-2",
        "dataset": "scenes",
        "metric": "rmse",
        "higher_is_better": False,
        "noise": [0, 0.8, 1.6],
        "train_noise": 0.8,
        "split": "test",
        "checkpoint": "model",
        "limits": [None, 0.4, 0.4],
        "samples": 80,
        "groups": 16,
    }
    assert {name: summary[name] for name in expected} == expected
    assert {level: len(found) for level, found in summary["layer_losses"].items()} == {"0.0": 3, "0.8": 3, "1.6": 3}
    assert len(summary["violations"]) == len(summary["multipliers"]) == 2 and summary["values"] and summary["mean"]
    exits = {level: found[0] for level, found in summary["layer_metrics"].items()}  # UT's exit 0 is its input
    assert summary["input_metrics"] == pytest.approx(exits, rel=1e-6)
    assert np.load(finished / "frames.npz")["reconstruction"].shape == (3, 3, 2, 160, 160)
    assert not set(summary["undecided"]) & set(summary["violated"])


def test_the_summary_has_the_energy_along_the_layers(finished):
    """That of clean inputs, on the samples that are measured."""
    energy, test = read_summary(finished).energy, load_video(None, window=2).test
    clean = torch.stack([torch.as_tensor(test[place]["patches"]) for place in evenly(len(test), MOST_SAMPLES)])
    with torch.no_grad():
        expected = UT.from_pretrained(finished / "model").eval().energies(clean).mean(1)
    assert energy[0.0] == pytest.approx(expected.tolist(), rel=1e-4)
    noisier = [energy[level][0] for level in (0.0, 0.8, 1.6)]
    assert noisier == sorted(noisier)  # what differs more has more energy


def test_a_tied_network_is_evaluated_past_its_iterations_on_other_data_too(out, tmp_path, capsys):
    usual = read_summary(out)
    assert usual.unit == "iteration" and len(usual.state_norms) == 3 and usual.past_metrics == {}
    write_frames(tmp_path / "clip", 9, suffix=".png", size=(160, 160))
    for words in ([], ["--data", tmp_path / "clip"]):
        told, _ = said(capsys, "evaluate", out, *words, "--noise", "0.8", "--iterations", "5")
        summary = read_summary(out / "on-clip" if words else out)
        assert len(summary.past_metrics[0.8]) == len(summary.past_losses[0.8]) == 3
        assert len(summary.state_norms) == 6 and len(summary.layer_metrics[0.8]) == 3
        assert "Past training: iteration 5 has rmse " in told and "iteration  2: rmse" in told and "layer" not in told
    assert read_summary(out).layer_metrics[0.8] == pytest.approx(usual.layer_metrics[0.8])


@pytest.mark.parametrize(
    ("entries", "binding"),
    [
        ({"multipliers": [1.0, 1.0], "moved": False}, []),
        # Older files do not say whether they moved.
        slow(({"multipliers": [1.0, 1.0], "moved": None}, [1, 2])),
        slow(({"multipliers": [0.0, 1.0]}, [2])),
        ({"multipliers": [0.0, 0.0], "cap_multiplier": 1.0}, [0]),
    ],
)
def test_what_binds_is_told_by_its_multiplier_and_nothing_before_the_first_dual_step(out, entries, binding):
    """The price rule's multipliers start above 0."""
    values = {name: tensor.tolist() for name, tensor in load_file(out / "dual.safetensors").items()} | entries
    kept = {name: torch.tensor(value) for name, value in values.items() if value is not None}
    save_file(kept, out / "dual.safetensors")
    summary = Run.read(out).evaluate(noise=[0.8])
    assert summary.binding == binding and summary.cap_multiplier == values["cap_multiplier"]
    # The rule is SGD by α, with implicit slack ρλ for ρ = .05; the file has no slack of the cap.
    assert (summary.max_multiplier, summary.cap_slack) == (None, 0.05 * values["cap_multiplier"])
    assert summary.verdict.endswith("Binding (λ > 0): the cap.") == (binding == [0])


def test_the_config_names_every_setting_and_alone_repeats_the_run(finished, tmp_path):
    config = json.loads((finished / "config.json").read_text())
    own = set(DescentSettings.__annotations__) - {"remove_unused_columns", "dataloader_pin_memory"}
    assert len(own) > 10 and own <= config["training"].keys()  # defaults too, and none of Transformers'
    assert not {"adam_beta1", "output_dir"} & config["training"].keys()
    assert {"torch", "transformers", "accelerate"} <= config["versions"].keys()
    args = DescentConfig(output_dir=str(tmp_path / "run"), **config["training"])
    run.train(RECIPES[config["recipe"]].kind(**config["settings"]), args)
    assert_same_end(tmp_path / "run", finished)


@pytest.mark.parametrize("given", [{"use_cpu": True}, {}, {"bf16": False}])
def test_to_note_the_arguments_leaves_the_devices_as_they_are(tmp_path, monkeypatch, given):
    """`TrainingArguments` resets Accelerate's global state: a model would be moved off its GPU."""
    kind = DescentSFTConfig if "bf16" in given else DescentConfig  # TRL's default is bf16, which not every machine has
    args = kind(output_dir=str(tmp_path), learning_rate=1e-3, **given)
    monkeypatch.setitem(vars(PartialState()), "noticed", "this very one")
    noted = stored(args)
    assert vars(PartialState())["noticed"] == "this very one"
    assert noted["learning_rate"] == 1e-3 and "accelerator_config" not in noted
    assert {name: noted[name] for name in ("use_cpu", "bf16") if name in noted} == given


# --- resuming; every method and state, damage and kills in tests/training


TEXT = "--depth 2 --hidden-size 16 --max-length 30 --learning-rate 0.01 --dual-warmup-steps 0"
INVERSE = "--depth 2 --dual-warmup-steps 0"
SHALLOW = "--keep-layers 2 --dual-warmup-steps 0"
CASES = {
    "video-ut": f"--data generated {SETTINGS}",
    "video-dust": f"--data generated --atoms 64 {SETTINGS}",
    "lista": f"--data generated --tied {INVERSE}",
    "pgd": f"--data generated {INVERSE}",
    "video-vit": f"--data generated --hidden-size 16 --warmup-steps 0 {SETTINGS}",
    "text-ut": f"--data REVIEWS {TEXT}",
    "text-distilbert": f"--data REVIEWS {TEXT} --readout linear",
    "text-roberta": f"--data REVIEWS {TEXT} --readout linear",
    "text": f"--data REVIEWS --model MODELS/bert-bare --max-length 30 {SHALLOW}",
    "image": f"--data generated --model MODELS/backbone --noise 0.2 --learning-rate 0.003 {SHALLOW}",
    "llm-sft": f"--data generated {TEXT.replace('30', '60')}",
    "lm": f"--data generated --model MODELS/causal --max-length 60 {SHALLOW}",
    "embed": f"--data generated --model MODELS/bert-bare --max-length 30 {SHALLOW}",
}


@pytest.mark.parametrize("recipe", slow_but(["text"], RECIPES))
def test_a_resumed_run_ends_in_the_same_bits_and_is_evaluated_and_exported(recipe, here, capsys):
    words = ["train", recipe, *CASES[recipe].split(), *SAVED.split(), "--out"]
    ends = "\n" if recipe in PRETRAINED else ": "  # without a verdict, which was not asked for
    assert said(capsys, *words, "whole/run")[0].startswith(f"trained whole/run{ends}")
    shutil.copytree("whole", "half")
    for name in ("model", "checkpoint-4"):  # as it was after two steps
        shutil.rmtree(Path("half/run", name))
    Path("half/run/dual.safetensors").unlink()
    assert main([*words, "half/run", "--resume"]) == 0
    assert_same_end(Path("half/run"), Path("whole/run"), "checkpoint-4")
    out, err = said(capsys, "evaluate", "half/run", "--noise", "0,0.8")
    summary = read_summary(Path("half/run"))
    assert summary.depth == 2 and summary.recipe == recipe and err == ""
    assert summary.asked == (summary.method == "constrained") != (recipe in PRETRAINED)
    line, *_, page = out.splitlines()
    known = rf"{summary.model} {summary.method} on {summary.dataset}: {summary.metric} "
    assert re.match(rf"{known}[\d.]+ at γ = 0, [\d.]+ at γ = 0.8", line) and page == "half/run/report.html"
    said(capsys, "export", "half/run", "--layers", "1", "--out", "one")


FEASIBLE = "--alpha 0.05 --first-layer 0 --depth 1 --eval-steps 1"


@pytest.mark.parametrize(
    "settings",
    [
        slow(FEASIBLE),
        "--gradient-accumulation-steps 2 --slack explicit --dual-every 3 --cap 1.0 --no-stop-gradient",
    ],
)
def test_an_interrupted_run_goes_on_bit_equal(tmp_path, settings, monkeypatch, capsys):
    flags = settings.split()
    assert train(tmp_path / "whole" / "run", *flags) == 0
    out = tmp_path / "part" / "run"
    # Within an epoch and between two logs, and at the last step of an epoch.
    for step in (1, 5, 6):
        with monkeypatch.context() as patch:
            stop_after(patch, step)
            assert train(out, *flags, *(["--resume"] if step > 1 else [])) == 130
        assert f"stopped at step {step} of 8; saved in {out}." in capsys.readouterr().err
        assert not (out / "model").exists()
    assert train(out, *flags, "--resume") == 0
    assert_same_end(tmp_path / "whole" / "run", out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "passed_over"),
    [
        ("--method linear --dual-lr 0.1 --resilience 0.1", "--dual-lr, --resilience"),
        ("--method linear --inner-weight 0.5 --alpha 0.1 --no-dataloader-pin-memory", ""),
        ("--method useful --dual-lr 0.1", ""),
    ],
)
def test_settings_that_a_method_does_not_use_are_named(settings, passed_over, tmp_path, capsys):
    words = f"video-ut --data generated --depth 2 --window 2 --stride 10 --max-steps 1 {UNSAVED} {settings}".split()
    _, err = said(capsys, "train", *words, "--out", tmp_path / "run")
    line = f"{passed_over}: not used, since the method linear has no multipliers."
    assert [each for each in err.splitlines() if "not used" in each] == ([line] if passed_over else [])
    told = "--alpha: violations are measured by it, and the method linear does not train for it."
    assert (told in err.splitlines()) == ("--alpha" in settings)


def test_a_finished_run_that_is_resumed_stays_as_it_is_and_may_be_made_longer(finished, out, capsys):
    """Its evaluation is removed at the first further step, and files of nobody's are not."""
    shutil.copytree(out, out.parent / "elsewhere").rename(out / "on-elsewhere")
    (out / "notes.txt").touch()
    content = json.loads((out / "config.json").read_text())
    for name in ("layer_dropout", "exit_curriculum"):  # settings of another method, which an older version had not
        del content["training"][name]
    (out / "config.json").write_text(json.dumps(content))
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.name in RESULTS}
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.name in RESULTS} == before and before
    again, once = read_config(out), read_config(finished)
    assert again.seconds > once.seconds / 2 and again.model_copy(update={"seconds": once.seconds}) == once
    assert train(out, "--resume", steps=10) == 0
    assert "its evaluation, of an earlier step, is removed; evaluate again." in capsys.readouterr().err
    assert (out / "checkpoint-10").is_dir() and read_config(out).training["max_steps"] == 10
    assert not {path.name for place in (out, out / "on-elsewhere") for path in place.iterdir()} & set(RESULTS)
    assert (out / "notes.txt").exists() and (out / "on-elsewhere" / "config.json").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_ignores_stops_the_run_before_its_first_step(tmp_path, monkeypatch, capsys):
    """What a weak reference's callback raises is printed and lost."""
    begin = DescentTrainer.train

    def signalled(self, *args, **kwargs):
        weakref.finalize(type("Gone", (), {})(), signal.raise_signal, signal.SIGTERM)
        return begin(self, *args, **kwargs)

    monkeypatch.setattr(DescentTrainer, "train", signalled)
    assert train(tmp_path / "run") == 130
    assert "interrupted" in capsys.readouterr().err and not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_run_trains_in_another_thread_too(tmp_path):
    words = f"video-ut --data generated --depth 2 --window 2 --stride 10 --max-steps 1 {UNSAVED}".split()
    planned, _ = read_recipe([*words, "--out", str(tmp_path / "run")])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(planned.train).result().state.global_step == 1


# --- evaluating


def test_a_run_is_judged_from_anywhere(tmp_path, monkeypatch):
    clips(tmp_path / "here" / "flicker")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert train(Path("run"), "--data", "flicker", "--cache-dir", "cache", steps=1) == 0
    settings = read_config(Path("run")).settings
    assert settings["data"] == f"{tmp_path}/here/flicker" and "cache_dir" not in settings
    assert [*Path("cache").glob("*.frames")]
    monkeypatch.chdir(tmp_path / "there")
    assert main(["evaluate", "../here/run", "--noise", "0.8"]) == 0
    assert not any((tmp_path / "there").iterdir())
    monkeypatch.chdir(tmp_path)
    assert train(Path("here/run"), "--data", "here/flicker", "--cache-dir", "here/cache", "--resume", steps=1) == 0


def strict(path: Path):
    """JSON as the standard has it, without NaN."""
    return json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(f"{constant} in {path}"))


@pytest.mark.slow
def test_what_is_no_number_is_judged_with_nulls(finished, out, capsys):
    """Of noise beyond all numbers, and of a model that has diverged."""
    said(capsys, "evaluate", out, "--noise", "0.8,1e30")
    summary = strict(out / "summary.json")
    assert summary["values"][0] > 0 and summary["values"][1] is None and summary["mean"] is None
    assert summary["violations"] == strict(finished / "summary.json")["violations"]
    network = UT.from_pretrained(out / "model")
    with torch.no_grad():
        network.feedforward.fill_(torch.nan)
    network.save_pretrained(out / "model")
    assert "INFEASIBLE: iterations 1, 2 break their constraints" in said(capsys, "evaluate", out, "--noise", "0,0.8")[0]
    summary = strict(out / "summary.json")
    assert summary["layer_losses"]["0.8"].pop(0) > 0
    expected = {
        "feasible": False,
        "certain": False,
        "violated": [1, 2],
        "values": [None, None],
        "mean": None,
        "violations": [None, None],
        "violation_intervals": [[None, None]] * 2,
    }
    assert {name: summary[name] for name in expected} == expected and summary["layer_losses"]["0.8"] == [None, None]
    said(capsys, "report", out)
    page = (out / "report.html").read_text()
    assert "constraints missed: infeasible</h3>" in page and "diverged" in page


def test_the_best_feasible_model_is_judged_when_asked_for(tmp_path):
    out = tmp_path / "run"
    assert train(out, *FEASIBLE.split()) == 0
    with torch.no_grad():  # make the two differ beyond doubt
        network = UT.from_pretrained(out / "model")
        network.feedforward += 0.1 * torch.eye(256)
        network.save_pretrained(out / "model")
    worse, best = (Run.read(out, model=name).evaluate(noise=[0.8]) for name in ("model", "best_feasible"))
    assert best.values[0] < worse.values[0] and best.feasible
    assert (worse.checkpoint, best.checkpoint) == ("model", "best_feasible")
    (out / "best_feasible" / "dual.safetensors").unlink()  # its own, not that of the run's end
    with pytest.raises(InputError, match=r"best_feasible.dual\.safetensors"):
        Run.read(out, model="best_feasible").evaluate(noise=[0.8])


@pytest.mark.parametrize(("split", "samples"), [slow(("train", 18)), slow(("validation", 30)), ("test", 80)])
def test_every_split_can_be_judged(out, split, samples):
    summary = Run.read(out).evaluate(noise=[0.8], split=split)
    assert (summary.split, summary.samples) == (split, samples)
    assert f" on the {split}{'ing' * (split == 'train')} data" in summary.verdict


@pytest.mark.parametrize(
    ("noise", "shift", "levels"),
    [
        (0.8, "gaussian", np.linspace(0, 2.8, 8)),
        (0, "uniform", np.linspace(0, 2.8, 8)),
        (1, "dropout", np.linspace(0, 0.7, 8)),
        (0, "gaussian", [0.0]),  # after clean training on clean samples
    ],
)
def test_usual_levels_are_eight_up_to_three_and_a_half_times_the_training_noise(noise, shift, levels):
    recipe = RECIPES["video-ut"].kind(data="generated", noise=noise)
    assert run.usual_levels(recipe, shift) == pytest.approx(levels)


def test_a_run_is_judged_on_a_machine_that_could_not_train_it(finished, out):
    elsewhere = {"bf16": True, "deepspeed": "of_another_machine.json", "torch_compile_backend": "none there"}
    edit(out / "config.json", training=elsewhere)
    assert main(["evaluate", str(out), "--noise", "0", "--frames", "1"]) == 0
    assert read_summary(out).values[0] == read_summary(finished).values[0]


# --- folders that can't be evaluated

UNUSABLE = "config.json holds settings that this version of descend can't use: "
AGAIN = "Train the run again."


def without_a_tensor(file: Path) -> None:
    weights = load_file(file)
    del weights["feedforward"]
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("file", "harm", "fault"),
    [
        *(
            ("config.json", partial(edit, **parts), fault)
            for parts, fault in (
                ({"settings": {"tied": 1}}, f"{UNUSABLE}tied must be True or False; got 1. {AGAIN}"),
                ({"settings": {"window": True}}, f"{UNUSABLE}window must be a whole number; got True. {AGAIN}"),
                ({"settings": {"l1": None}}, "unexpected keyword argument 'l1'"),
                ({"training": {"stop_gradient": 0}}, "stop_gradient must be True or False; got 0"),
                ({"training": {"seed": "1"}}, "seed must be a number; got the text '1'"),
                ({"settings": {"depth": 5}}, "model has 2 layers, but "),
            )
        ),
        *(
            ("config.json", partial(Path.write_text, data=text), "config.json")
            for text in ("[]", "{}", '{"recipe": "video-utt", "settings": {}}', "not JSON")
        ),
        *(
            (file, harm, fault)
            for file, fault in (
                ("model/model.safetensors", "can't load a model from "),
                ("dual.safetensors", "dual.safetensors can't be loaded: "),
            )
            for harm in (
                lambda path: path.write_bytes(path.read_bytes()[:-100]),
                partial(Path.write_text, data=""),
                partial(Path.write_text, data="not tensors, but something else of some length"),
                Path.unlink,
            )
        ),
        ("model/model.safetensors", without_a_tensor, "model lacks weights of a UT: feedforward. Copy the model again"),
        ("model", shutil.rmtree, "--resume"),
    ],
)
def test_a_damaged_run_is_one_clear_line_and_its_results_stay(finished, out, capsys, file, harm, fault):
    harm(out / file)
    line = refused(capsys, "evaluate", out, "--noise", "0.8")
    assert fault in line and (not fault.endswith("loaded: ") or line.endswith(AGAIN))
    assert (out / "summary.json").read_text() == (finished / "summary.json").read_text()


def test_weights_that_are_no_numbers_are_named_in_an_evaluation(out, capsys):
    file = out / "model" / "model.safetensors"
    weights = load_file(file)
    name = min(weights)
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, file, {"format": "pt"})
    _, err = said(capsys, "evaluate", out, "--noise", "0", "--limit", "2")
    assert f"WARNING: {out / 'model'} has weights that are NaN or infinite: {name}" in err
