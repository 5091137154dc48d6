"""What a run has written outlives kills, signals, full and faulty disks; and nobody else writes there meanwhile.

`benchmarks/kill_test.py` and `benchmarks/soak.py` are the same at length.
"""

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from descend import run
from descend.cli import main
from descend.results import LOCK_FILE, locked
from descend.tasks.video import cache
from descend.training import DescentMixin
from descend.training.checkpoints import damage, rotate, seal
from tests.support.runs import TINY, assert_same_end, rows, run_state, stop_after, train
from tests.support.sources import clips

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "CUDA_VISIBLE_DEVICES": ""}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def said(capsys) -> str:
    """The one line that a command ends with."""
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert train(out) == 0
    return out


@pytest.fixture
def unfinished(finished, tmp_path) -> Path:
    """The same before its end."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "model")
    (out / "dual.safetensors").unlink()
    return out


# --- kills


def test_a_run_that_is_killed_at_any_moment_goes_on_bit_equal():
    command = [sys.executable, BENCHMARKS / "kill_test.py", "--tries", "2", "--steps", "9", "--seed", "5", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    tries = json.loads(found.stdout.splitlines()[-1])["tries"]
    assert [one["differs"] for one in tries] == [[], []]
    assert any(met != "over already" for one in tries for _, met in one["kills"])


@pytest.mark.parametrize("left", [[], [".descend-lock", ".descend-part", ".descend-part-config.json"]])
def test_a_run_that_was_killed_before_it_wrote_anything_starts(finished, tmp_path, left, capsys):
    out = tmp_path / "part" / "run"
    for name in left:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).mkdir() if name == ".descend-part" else (out / name).touch()
        os.utime(out / name, (0, 0))
    assert train(out, "--resume") == 0
    assert f"{out} has no whole checkpoint to go on from: training from the start." in capsys.readouterr().err
    assert_same_end(out, finished)
    assert {path.name for path in out.iterdir()} == {path.name for path in finished.iterdir()}  # no lock, no part


# --- checkpoints


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


STATE = '{"sha256": {"trainer_state.json": 1'
DAMAGE = [
    ("model.safetensors", flip, "model.safetensors in it is not what was written"),
    ("optimizer.pt", cut, "optimizer.pt in it is not what was written"),
    ("trainer_state.json", Path.unlink, "it has no trainer_state.json"),
    ("descent_0.json", flip, "descent_0.json in it is not what was written"),
    ("manifest.json", cut, "its manifest.json can't be read"),
    # A manifest that vouches for too little.
    ("manifest.json", "[" * 200_000, "its manifest.json can't be read"),
    ("manifest.json", '{"sha256": ["ab"]}', "its manifest.json can't be read"),
    ("manifest.json", '{"sha256": {}}', "it has no trainer_state.json"),
    ("manifest.json", STATE + "}}", "it has no model"),
    ("manifest.json", STATE + ', "../../run/checkpoint-8/scheduler.pt": 1}}', "it has no ../../run/"),
    ("manifest.json", STATE + ', "\\ud800": 1}}', "it has no \ud800"),
    *(
        (name, "a pickle, by its name", f"{name} in it is a pickle that training did not write there")
        for name in ("training_args.bin", "pytorch_model.bin", "state.pkl", "scaler.pt")
    ),
]


@pytest.mark.parametrize(("name", "how", "fault"), DAMAGE)
def test_damage_is_seen_and_named(finished, tmp_path, name, how, fault):
    checkpoint = shutil.copytree(finished / "checkpoint-8", tmp_path / "checkpoint-8")
    assert damage(checkpoint) is None
    if callable(how):
        how(checkpoint / name)
    else:
        for file in checkpoint.glob("*.pt*"):  # pickles, which it would be refused for first
            file.unlink()
        (checkpoint / name).write_text(how)
    assert str(damage(checkpoint)).startswith(fault)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(finished, unfinished, caplog):
    flip(unfinished / "checkpoint-8" / "optimizer.pt")
    (unfinished / "checkpoint-6" / "pytorch_model.bin").touch()
    assert train(unfinished, "--resume") == 0
    assert caplog.messages == [
        f"{unfinished}/checkpoint-{step} is damaged: {fault}. It is now damaged-checkpoint-{step} and is not used."
        for step, fault in (
            (8, "optimizer.pt in it is not what was written"),
            (6, "pytorch_model.bin in it is a pickle that training did not write there"),
        )
    ]
    assert_same_end(unfinished, finished)
    assert (unfinished / "damaged-checkpoint-8").is_dir()


def test_rotation_keeps_the_newest_the_best_and_what_another_trainer_wrote(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(out / "checkpoint-8", out / "checkpoint-9")
    (out / "checkpoint-9" / "manifest.json").unlink()
    rotate(out, 2, None)
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8", "checkpoint-9"]
    shutil.copytree(finished / "checkpoint-3", out / "checkpoint-3")
    rotate(out, 1, str(out / "checkpoint-3"))
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-8", "checkpoint-9"]
    assert not (out / ".descend-part").exists()


def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(unfinished, capsys):
    """Its state was in another format, which this version does not read."""
    for checkpoint in unfinished.glob("checkpoint-*"):
        (checkpoint / "descent_0.json").rename(checkpoint / "descent_0.safetensors")
        seal(checkpoint)
    before, config = rows(unfinished), (unfinished / "config.json").read_bytes()
    assert train(unfinished, "--resume") == 2
    assert (unfinished / "config.json").read_bytes() == config
    assert said(capsys) == (
        f"descend: {unfinished / 'checkpoint-8'} was written by Descend 0.1, whose checkpoints this version does not "
        "resume. Go on with that version, or load the model from it and train into another folder."
    )
    assert rows(unfinished) == before


# --- pickles


class Boom:
    """What a pickle can do: anything."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth"])
def test_a_pickle_where_the_librarys_file_is_expected_is_not_loaded(unfinished, tmp_path, name, capsys):
    """Not even under a manifest that vouches for it."""
    checkpoint = unfinished / "checkpoint-6"
    shutil.rmtree(unfinished / "checkpoint-8")
    torch.save(Boom(tmp_path / "boom"), checkpoint / name)
    (checkpoint / "manifest.json").unlink()
    seal(checkpoint)
    assert damage(checkpoint) is None
    assert train(unfinished, "--resume") == 2
    assert said(capsys) == f"descend: {checkpoint} holds a pickle that is more than tensors; it is not loaded."
    assert not (tmp_path / "boom").exists()


def test_nothing_is_pickled_but_what_the_library_reads_as_tensors(finished):
    names = {path.name for path in finished.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")}
    assert names == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}


# --- signals


def test_a_signal_while_videos_are_decoded_leaves_nothing_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    data = clips(tmp_path / "clips")
    write = cache._write

    def interrupted(*args):
        signal.raise_signal(signal.SIGTERM)
        return write(*args)

    out = tmp_path / "run"
    flags = ["--data", str(data), "--cache-dir", str(tmp_path / "cache")]
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_write", interrupted)
        assert train(out, *flags, steps=2) == 130
    assert said(capsys).startswith("descend: interrupted. Go on with: descend train video-ut")
    assert not out.exists() and not [each for each in (tmp_path / "cache").iterdir() if each.suffix != ".lock"]
    assert train(out, *flags, "--resume", steps=2) == 0


@pytest.mark.parametrize(
    ("evaluation", "signals", "words"),
    [
        (1, [signal.SIGTERM], "stopped at step 3 of 8; saved in"),
        (4, [signal.SIGINT], "interrupted. Go on with"),  # after training: all is saved
    ],
)
def test_a_signal_in_an_evaluation_stops_the_run(finished, tmp_path, monkeypatch, capsys, evaluation, signals, words):
    count, measure = [], DescentMixin._measure

    def interrupted(self, *given, **options):
        count.append(1)
        if len(count) == evaluation:
            for each in signals:
                signal.raise_signal(each)
        return measure(self, *given, **options)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(DescentMixin, "_measure", interrupted)
        assert train(out) == 130
    line = said(capsys)
    assert words in line and line.endswith("--resume")
    assert not (out / "model").exists() and not (out / ".descend-part").exists()
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


def test_a_signal_after_the_last_step_of_a_run_that_saves_nothing_promises_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(DescentMixin, "_measure", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    assert train(tmp_path / "run", "--save-strategy", "no", "--eval-strategy", "no", steps=1) == 130
    assert said(capsys) == "descend: interrupted after the last step; there is no checkpoint to go on from."


EPOCHS = ["--eval-strategy", "epoch", "--logging-strategy", "epoch"]  # of three steps


@pytest.fixture(scope="module")
def by_epochs(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("epochs") / "run"
    assert train(out, *EPOCHS) == 0
    return out


@pytest.mark.parametrize("saving", ["steps", "epoch"])
def test_what_an_epoch_measures_at_its_end_is_measured_once(tmp_path, by_epochs, saving, monkeypatch):
    """Stopped within an epoch nothing is measured; stopped while it is, it will be."""
    out = tmp_path / "run"
    flags = [*EPOCHS, "--save-strategy", saving]
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        assert train(out, *flags) == 130
    assert (out / "checkpoint-5").is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(DescentMixin, "_measure", lambda *_, **__: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
        assert train(out, *flags, "--resume") == 130
    assert not (out / "checkpoint-6").exists()
    assert train(out, *flags, "--resume") == 0
    assert rows(out) == rows(by_epochs)
    assert (out / "model/model.safetensors").read_bytes() == (by_epochs / "model/model.safetensors").read_bytes()


# --- disks


@contextmanager
def longest_file(size: int):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The weights take 557 kB, the optimizer's state 593 kB: one is written by safetensors, the other by torch.
@pytest.mark.parametrize("size", [300_000, 575_000])
def test_a_checkpoint_that_the_disk_does_not_take_ends_the_run_with_one_line(finished, tmp_path, size, capsys):
    out = tmp_path / "run"
    with longest_file(size):
        assert train(out) == 1
    line = said(capsys)
    assert line.startswith(f"descend: {out / 'checkpoint-3'} can't be written: ")
    assert "MB free on its disk. Go on with: descend train" in line
    assert {path.name for path in out.iterdir()} == {"config.json", "records.jsonl"}
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


def test_a_fault_of_the_disk_ends_the_run_with_one_line(finished, tmp_path):
    """Each file in turn: the rows, torch's own writing, safetensors' own."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("a faulty disk takes a C compiler and Linux")
    library = tmp_path / "faulty_disk.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, Path(__file__).parents[1] / "support" / "faulty_disk.c"],
        check=True,
    )
    out = tmp_path / "run"
    program = """
import os, sys
from descend.cli import main
words, ends = sys.argv[1:], []
for fault in ("records.jsonl:1500:5", "optimizer.pt:1000:5", ".descend-part/model/:0:5", ""):
    os.environ["FAULT"] = fault
    ends.append(main([*words, *(["--resume"] if ends else [])]))
print(ends)
"""
    words = ["train", *TINY, "--out", str(out), "--max-steps", "8", "--save-steps", "3"]
    found = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=ENVIRONMENT | {"LD_PRELOAD": str(library), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.stdout.splitlines()[-1] == "[1, 1, 1, 0]", found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    lines = [line for line in found.stderr.splitlines() if line.startswith("descend: ")]
    assert [line.split(" can't be written: ")[0] for line in lines] == [
        f"descend: {out / name}" for name in ("records.jsonl", "checkpoint-3", "model")
    ]
    assert all("Input/output error" in lines[place] for place in (0, 2))
    assert_same_end(out, finished)


# --- the folder


def test_two_processes_do_not_write_into_one_run(finished, unfinished, capsys):
    fork = multiprocessing.get_context("fork")
    held = fork.Event()

    def hold():
        with locked(unfinished):
            held.set()
            time.sleep(600)

    holder = fork.Process(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        before = rows(unfinished)
        for command in (["train", *TINY, "--out", unfinished, "--resume"], ["evaluate", unfinished]):
            assert main(list(map(str, command))) == 2
            assert said(capsys) == (
                f"descend: {unfinished} is in use by process {holder.pid} on {os.uname().nodename}; wait for its "
                "end or stop it, or choose another place."
            )
        assert rows(unfinished) == before
    finally:
        holder.kill()  # the lock dies with it, its file stays
        holder.join()
    assert (unfinished / LOCK_FILE).exists()
    with locked(unfinished):
        pass
    assert not (unfinished / LOCK_FILE).exists()


BEST = ["--load-best-model-at-end", "--metric-for-best-model", "eval_loss", "--greater-is-better"]


def test_the_best_checkpoint_is_found_wherever_the_run_is_named_from(tmp_path, monkeypatch):
    """A run that goes on under another spelling of its folder loads the best model, and keeps its checkpoint."""
    best = [*BEST, "--save-total-limit", "2"]
    monkeypatch.chdir(tmp_path)
    assert train(Path("run"), *best, steps=6) == 0
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    again = tmp_path / "." / "moved"
    assert train(again, *best, "--resume", steps=9) == 0
    state = json.loads((again / "checkpoint-9" / "trainer_state.json").read_text())
    kept = again / f"checkpoint-{state['best_global_step']}"
    assert state["best_global_step"] == 3 and Path(state["best_model_checkpoint"]) == kept and damage(kept) is None
    model, best_model = (load_file(folder / "model.safetensors") for folder in (again / "model", kept))
    assert all(torch.equal(model[name], best_model[name]) for name in model)


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_best_checkpoint_that_is_damaged_ends_no_run(tmp_path, when, monkeypatch, caplog):
    """Before a run goes on, or while it does: the best of what is left, or the last model, is kept, and said so."""
    out = tmp_path / "run"
    assert train(out, *BEST, steps=6) == 0
    shutil.rmtree(out / "model")
    weights = out / "checkpoint-3" / "model.safetensors"  # greater is better: the first
    if when == "before":
        flip(weights)
    else:
        step = DescentMixin._dual_step
        monkeypatch.setattr(
            DescentMixin, "_dual_step", lambda self: (step(self), self.state.global_step == 8 and flip(weights))
        )
    assert train(out, *BEST, "--resume", steps=9) == 0
    instead = "chosen from later ones" if when == "before" else "last model is used"
    damaged, best = caplog.messages[-2:]
    assert damaged.startswith(f"{out}/checkpoint-3 is damaged: model.safetensors") and "damaged-checkpoint-3" in damaged
    assert best.startswith("checkpoint-3 was the best model so far") and instead in best
    model, last = (load_file(folder / "model.safetensors") for folder in (out / "model", out / "checkpoint-9"))
    assert all(torch.equal(model[name], last[name]) for name in model)
    assert (json.loads((out / "checkpoint-9" / "trainer_state.json").read_text())["best_global_step"] == 9) == (
        when == "before"
    )


def test_a_checkpoint_of_several_processes_is_not_gone_on_with_by_one(unfinished, capsys):
    for step in (6, 8):
        checkpoint = unfinished / f"checkpoint-{step}"
        (checkpoint / "descent_0.json").write_text(json.dumps(run_state(checkpoint) | {"processes": 2}))
        (checkpoint / "manifest.json").unlink()
        seal(checkpoint)
    assert train(unfinished, "--resume") == 2
    assert said(capsys) == (
        f"descend: {checkpoint} is that of 2 processes, each with noise and losses of its own; go on with as many. "
        "Got 1."
    )
    assert not (unfinished / "model").exists()


def test_a_disk_that_knows_no_locks_is_told_of_once(tmp_path, monkeypatch, caplog):
    def without_locks(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", without_locks)
    for _ in range(2):
        with locked(tmp_path):
            pass
    (message,) = caplog.messages
    assert str(tmp_path) in message and "No locks available" in message


@pytest.mark.parametrize("content", ['{"a": 1}', "[]", '{"settings": 3, "training": {}, "recipe": "x"}'])
def test_strange_settings_of_a_run_are_refused_in_words(unfinished, content, capsys):
    (unfinished / "config.json").write_text(content)
    assert train(unfinished, "--resume") == 2
    line = said(capsys)
    assert line.startswith(f"descend: {unfinished / 'config.json'} ") and "settings of a run" in line


@pytest.mark.parametrize(
    "flags", ["--resume-from-checkpoint x", "--auto-find-batch-size", "--patience 3 --eval-strategy no"]
)
def test_settings_that_a_run_could_not_keep_its_word_with_are_refused_before_any_work(tmp_path, flags, capsys):
    assert train(tmp_path / "run", *flags.split()) == 2
    assert flags.split()[0].strip("-") in said(capsys).replace("_", "-")
    assert not (tmp_path / "run").exists()


def test_a_comparison_that_is_refused_leaves_nothing(finished, tmp_path, capsys):
    broken = shutil.copytree(finished, tmp_path / "broken")
    (broken / "summary.json").write_text('{"recipe": "video-ut"}')
    assert main(["compare", str(broken), "--out", str(tmp_path / "page")]) == 2
    assert "broken" in said(capsys)
    assert not list((tmp_path / "page").glob("*"))


def test_a_run_that_failed_in_its_first_steps_can_be_started_over(finished, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(out, "--noise", "1e30") == 1
    assert "step 1: the loss of layer [0, 1, 2] is not finite" in said(capsys)
    assert train(out) == 2
    line = said(capsys)
    assert str(out) in line and "--resume" in line and "--out" in line
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


def test_a_run_that_comes_apart_keeps_its_last_checkpoint_and_is_not_overwritten(tmp_path, capsys):
    """Also where one checkpoint is all that is kept, and where it is none but the state before the fault."""
    flags = ["--save-total-limit", "1", "--dual-optimizer", "sgd", "--dual-lr", "1e306", "--dual-warmup-steps", "4"]
    out = tmp_path / "run"
    assert train(out, *flags) == 1
    line = said(capsys)
    assert "No parameter has moved in this step, and the state before it is saved in stopped-5." in line
    assert line.endswith("train into another folder; --resume goes on from checkpoint-3.")
    assert {path.name for path in out.iterdir()} == {"config.json", "records.jsonl", "checkpoint-3", "stopped-5"}
    assert damage(out / "checkpoint-3") is None and damage(out / "stopped-5") is None
    state = json.loads((out / "stopped-5" / "trainer_state.json").read_text())
    assert state["global_step"] == 5
    assert max(run_state(out / "stopped-5")["dual"]["multipliers"]) > 1e300
    shutil.rmtree(out / "checkpoint-3")
    before = rows(out)
    assert train(out, "--resume") == 2
    assert "was made with other settings: dual_lr (was 1e+306, now" in said(capsys)
    assert rows(out) == before


def test_parameters_that_are_no_numbers_push_no_checkpoint_out(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        step = DescentMixin._dual_step

        def blown_up(self):  # as an optimizer does that overflows in its own step
            step(self)
            if self.state.global_step == 5:
                next(self.objective.model.parameters()).data.view(-1)[0] = float("inf")

        patch.setattr(DescentMixin, "_dual_step", blown_up)
        assert train(out, "--save-total-limit", "1", "--no-load-best-model-at-end", every=1) == 1
    assert said(capsys) == (
        "descend: step 5: parameters are no longer finite, and are not saved. Lower learning_rate or dual_lr and train "
        "into another folder; --resume goes on from checkpoint-4."
    )
    assert [path.name for path in out.glob("*-*")] == ["checkpoint-4"] and damage(out / "checkpoint-4") is None


def test_multipliers_that_are_no_numbers_end_the_run_in_words(tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--dual-optimizer", "sgd", "--dual-lr", "1.7e308", "--alpha", "0.99", "--noise", "9"]
    assert train(out, *flags, steps=2, every=1) == 1
    line = said(capsys)
    assert line.startswith("descend: step ") and "the multipliers would overflow" in line
    assert "train into another folder; " in line


def test_a_warm_run_that_is_made_longer_stays_warm(tmp_path):
    out, flags = tmp_path / "run", ["--dual-warmup-steps", "0.85", "--logging-steps", "1"]
    assert train(out, *flags) == 0  # warm-up of 7 steps
    before = run_state(out / "checkpoint-8")["dual"]
    assert max(before["multipliers"]) > 0
    assert train(out, *flags, "--resume", steps=10) == 0  # of which 85 % would be 8 or 9
    found = [row for row in map(json.loads, rows(out)) if row["metric"] == "weight" and row["step"] == 9]
    assert [row["value"] for row in found] != [0, 0, 1]
    assert run_state(out / "checkpoint-10")["dual"]["warmup"] == before["warmup"] == 7


def test_a_last_row_that_was_cut_off_is_left_out(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    with (out / "records.jsonl").open("a") as file:
        file.write('{"run": "run", "step": 8, "split": "train", "layer": 1, "metric": "multiplier", "val')
    run.evaluate(out, noise=[0.8])
    assert main(["report", str(out)]) == 0
