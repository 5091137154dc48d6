"""What a run has written outlives kills, signals, full and faulty disks; and nobody else writes there meanwhile.

`benchmarks/kill_test.py` and `benchmarks/soak.py` are the same at length.
"""

import json
import multiprocessing
import os
import pickle
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

from descend import UT, DescentConfig, DescentTrainer, GaussianNoise, InputError, UTConfig, run
from descend.checkpoints import damage, load_state, rotate, save_state, seal
from descend.cli import main
from descend.records import locked
from descend.tasks.video import VideoDenoising, cache, load_video
from descend.trainer import DescentMixin
from test_run import TINY, assert_same_end, rows, stop_after, train

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "CUDA_VISIBLE_DEVICES": ""}
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


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


@pytest.mark.parametrize("left", [[], [".lock", ".part", "config.part.json"]])
def test_a_run_that_was_killed_before_it_wrote_anything_starts(finished, tmp_path, left, capsys):
    out = tmp_path / "part" / "run"
    for name in left:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).mkdir() if name == ".part" else (out / name).touch()
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


DAMAGE = {
    "model.safetensors": (flip, "model.safetensors in it is not what was written"),
    "optimizer.pt": (cut, "optimizer.pt in it is not what was written"),
    "trainer_state.json": (Path.unlink, "it has no trainer_state.json"),
    "descent_0.safetensors": (
        lambda path: path.write_bytes(b""),
        "descent_0.safetensors in it is not what was written",
    ),
    "manifest.json": (cut, "its manifest.json can't be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_seen_and_named(finished, tmp_path, name):
    checkpoint = shutil.copytree(finished / "checkpoint-8", tmp_path / "checkpoint-8")
    assert damage(checkpoint) is None
    how, fault = DAMAGE[name]
    how(checkpoint / name)
    assert damage(checkpoint) == fault


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


def test_going_on_from_a_damaged_checkpoint_is_refused_in_a_script_too(finished, unfinished):
    data = load_video(None, 2, stride=10)
    settings = json.loads((finished / "config.json").read_text())["training"]
    args = DescentConfig(output_dir=str(unfinished), **settings)
    trainer = DescentTrainer(
        UT(UTConfig(depth=2)),
        args,
        task=VideoDenoising(),
        noise=GaussianNoise(0.8, data.sigma, args.seed),
        train_dataset=data.train,
        eval_dataset=data.validation,
    )
    flip(unfinished / "checkpoint-6" / "optimizer.pt")
    with pytest.raises(InputError, match=r"checkpoint-6 is damaged: optimizer\.pt in it is not what was written"):
        trainer.train(resume_from_checkpoint=str(unfinished / "checkpoint-6"))
    for step in (3, 8):
        flip(unfinished / f"checkpoint-{step}" / "optimizer.pt")
    with pytest.raises(InputError, match="has no whole checkpoint to go on from"):
        trainer.train(resume_from_checkpoint=True)


def test_what_is_left_of_a_checkpoint_that_was_being_deleted_outlives_no_whole_one(finished, tmp_path):
    """As the library's rotation leaves it, killed; and none is ever left so by ours."""
    out = shutil.copytree(finished, tmp_path / "run")
    (out / "checkpoint-3" / "manifest.json").unlink()
    rotate(out, 2, None)
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]
    shutil.copytree(finished / "checkpoint-3", out / "checkpoint-3")
    rotate(out, 1, str(out / "checkpoint-3"))
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-8"]
    assert not (out / ".part").exists()


def test_state_is_read_as_it_was_written(tmp_path):
    state = {
        "kind": "adam",
        "steps": 3,
        "best": float("inf"),
        "none": None,
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(3, dtype=torch.float64)[::2]}},
        "groups": [{"betas": (0.9, 0.999), "params": [0], "maximize": True, "values": torch.zeros(0)}],
        "generator": torch.Generator().manual_seed(3).get_state(),
    }
    save_state(tmp_path / "state.safetensors", state)
    again = load_state(tmp_path / "state.safetensors")
    assert str(again) == str(state)
    assert torch.equal(again["generator"], state["generator"])


# --- pickles


class Boom:
    """What a pickle can do: anything."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["training_args.bin", "pytorch_model.bin", "state.pkl", "scaler.pt"])
def test_a_foreign_pickle_in_a_checkpoint_is_damage(finished, tmp_path, name):
    checkpoint = shutil.copytree(finished / "checkpoint-8", tmp_path / "checkpoint-8")
    (checkpoint / name).write_bytes(pickle.dumps(Boom(tmp_path / "boom")))
    assert damage(checkpoint) == f"{name} in it is a pickle that training did not write there"
    assert not (tmp_path / "boom").exists()


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


def test_a_pickle_where_a_runs_model_is_expected_is_not_loaded(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "model" / "training_args.bin").write_bytes(pickle.dumps(Boom(tmp_path / "boom")))
    assert main(["evaluate", str(out), "--noise", "0.8"]) == 0  # no business of ours
    weights = out / "model" / "pytorch_model.bin"
    (out / "model" / "model.safetensors").unlink()
    (out / "model" / "training_args.bin").unlink()
    torch.save(Boom(tmp_path / "boom"), weights)
    assert main(["evaluate", str(out), "--noise", "0.8"]) == 2
    assert said(capsys) == (
        f"descend: {weights} is a pickle, and is not loaded; expected model.safetensors. Train the run again."
    )
    assert not (tmp_path / "boom").exists()


def test_nothing_is_pickled_but_what_the_library_reads_as_tensors(finished):
    names = {path.name for path in finished.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")}
    assert names == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}


# --- signals


def test_a_signal_while_videos_are_decoded_leaves_nothing_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    from test_run import clips

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
    assert not out.exists() and not any((tmp_path / "cache").iterdir())
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

    def interrupted(self, dataset):
        count.append(1)
        if len(count) == evaluation:
            for each in signals:
                signal.raise_signal(each)
        return measure(self, dataset)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(DescentMixin, "_measure", interrupted)
        assert train(out) == 130
    line = said(capsys)
    assert words in line and line.endswith("--resume")
    assert not (out / "model").exists() and not (out / ".part").exists()
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


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
        patch.setattr(DescentMixin, "_measure", lambda *_: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
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


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 3 MB, a file system in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=3M", "tmpfs", folder]).returncode:
        pytest.skip("a disk of its own can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # a file of it may still be mapped


def test_a_full_disk_ends_the_run_with_one_line_and_costs_nothing(finished, small_disk, capsys):
    out = small_disk / "run"
    assert train(out) == 1
    assert said(capsys).startswith(f"descend: {out / 'checkpoint-8'} can't be written: ")
    assert not (out / ".part").exists()
    whole = sorted(out.glob("checkpoint-*"))
    assert [path.name for path in whole] == ["checkpoint-3", "checkpoint-6"]
    assert [damage(path) for path in whole] == [None, None]
    filler, before = small_disk / "filler", rows(out)
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(b"x" * 2**22)  # the rest of it
    assert train(out, "--resume") == 1
    assert "can't be written: No space left on device; 0.0 MB free" in said(capsys)
    assert rows(out) == before and not list(out.glob("*.part*"))
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=64M", small_disk], check=True)
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


def test_a_fault_of_the_disk_ends_the_run_with_one_line(finished, tmp_path):
    """Each file in turn: the rows, torch's own writing, safetensors' own."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("a faulty disk takes a C compiler and Linux")
    library = tmp_path / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, Path(__file__).parent / "faulty_disk.c"], check=True)
    out = tmp_path / "run"
    program = """
import os, sys
from descend.cli import main
words, ends = sys.argv[1:], []
for fault in ("records.jsonl:1500:5", "optimizer.pt:1000:5", ".part/model/:0:5", ""):
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
                f"descend: {unfinished} is in use by process {holder.pid}; wait for its end or stop it, or choose "
                "another folder."
            )
        assert rows(unfinished) == before
    finally:
        holder.kill()  # the lock dies with it, its file stays
        holder.join()
    assert (unfinished / ".lock").exists()
    with locked(unfinished):
        pass
    assert not (unfinished / ".lock").exists()


def test_a_run_that_failed_in_its_first_steps_can_be_started_over(finished, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(out, "--learning-rate", "1e30", "--max-grad-norm", "0") == 1
    assert "is not finite" in said(capsys)
    assert train(out) == 2
    assert said(capsys) == (
        f"descend: the output folder {out} holds a run that came to no checkpoint; start it over, with these settings "
        "or others, by --resume, or choose another with --out."
    )
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


def test_a_last_row_that_was_cut_off_is_left_out(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    with (out / "records.jsonl").open("a") as file:
        file.write('{"run": "run", "step": 8, "split": "train", "layer": 1, "metric": "multiplier", "val')
    run.evaluate(out, noise=[0.8])
    assert main(["report", str(out)]) == 0
