"""What a run has written outlives kills, signals, full and faulty disks, and so do files of somebody else beside it.

`benchmarks/kill_test.py` and `benchmarks/soak.py` are the same at length.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from descend import DescentTrainer, InputError, evaluate
from descend.results.folder import seal
from descend.training import DescentMixin
from descend.training.checkpoints import damage
from descend.training.step import Step
from descend.writing import locked
from tests.support import own, ranks
from tests.support.cases import slow
from tests.support.networks import change
from tests.support.runs import TINY, assert_same, assert_same_end, put, refused, rows, run_state, stop_after, train

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "CUDA_VISIBLE_DEVICES": ""}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def ended(capsys, status: int, out: Path, *flags: str, **steps: int) -> str:
    """The one line that `descend train` ends with."""
    assert train(out, *flags, **steps) == status
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


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_goes_on_bit_equal():
    command = [sys.executable, BENCHMARKS / "kill_test.py", "--tries", "2", "--steps", "9", "--seed", "5", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    tries = json.loads(found.stdout.splitlines()[-1])["tries"]
    assert [one["differs"] for one in tries] == [[], []]
    assert any(met != "over already" for one in tries for _, met in one["kills"])


def test_a_run_that_ended_before_its_first_checkpoint_is_started_over(finished, tmp_path, capsys):
    """After a fault, and then a kill; at its end one while the card was written is made up for."""
    out = tmp_path / "run"
    assert "step 1: the loss of layer [0, 1, 2] is not finite" in ended(capsys, 1, out, "--noise", "1e30")
    assert str(out) in ended(capsys, 2, out)
    (out / ".descend-part-folder-a" / "checkpoint-3").mkdir(parents=True)
    (out / ".descend-lock").touch()
    (out / ".descend-part-b").mkdir()
    os.utime(out / ".descend-part-b", (0, 0))
    assert train(out, "--resume") == 0
    assert f"{out} has no whole checkpoint to go on from: training from the start." in capsys.readouterr().err
    assert_same_end(out, finished)
    (out / "model" / ".descend-part-c").mkdir()
    (out / "model" / "README.md").rename(out / "model" / ".descend-part-c" / "README.md")
    assert train(out, "--resume") == 0
    files = ({path.relative_to(folder) for path in folder.rglob("*")} for folder in (out, finished))
    assert next(files) == next(files)  # no lock, no part


# --- checkpoints


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


LEDGER = "written.json"
STATE = '{"files": {"trainer_state.json": {}'
DAMAGE = [
    ("model.safetensors", flip, "model.safetensors in it is not what was written"),
    ("optimizer.pt", cut, "optimizer.pt in it is not what was written"),
    ("trainer_state.json", Path.unlink, "it has no trainer_state.json"),
    ("descent_0.json", flip, "descent_0.json in it is not what was written"),
    (LEDGER, cut, "its written.json can't be read"),
    # A ledger that vouches for too little.
    (LEDGER, "[" * 200_000, "its written.json can't be read"),
    (LEDGER, '{"files": ["ab"]}', "its written.json can't be read"),
    (LEDGER, '{"files": {}}', "it has no trainer_state.json"),
    (LEDGER, STATE + "}}", "it has no model"),
    (LEDGER, STATE + ', "../../run/checkpoint-8/scheduler.pt": {}}}', "it has no ../../run/"),
    (LEDGER, STATE + ', "\\ud800": {}}}', "it has no \ud800"),
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


class Boom:
    """What a pickle can do: anything."""

    def __reduce__(self):
        return Path.touch, (Path("boom"),)


def pickled(checkpoint: Path, name: str = "optimizer.pt") -> None:
    torch.save(Boom(), checkpoint / name)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (pickled, "holds a pickle that is more than tensors; it is not loaded."),
        (partial(pickled, name="rng_state.pth"), "holds a pickle that is more than tensors; it is not loaded."),
        (
            partial(change, name="descent_0.json", processes=2),
            "is that of 2 processes, each with its own noise and losses; go on with as many. Got 1.",
        ),
    ],
)
def test_a_run_does_not_go_on_from_what_is_spoilt_though_a_ledger_vouches_for_it(
    unfinished, tmp_path, monkeypatch, capsys, spoil, words
):
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(unfinished / "checkpoint-8")  # after the last step nobody reads what random numbers follow
    for checkpoint in unfinished.glob("checkpoint-*"):
        spoil(checkpoint)
        seal(checkpoint)
    assert ended(capsys, 2, unfinished, "--resume") == f"descend: {unfinished / 'checkpoint-6'} {words}"
    assert not (unfinished / "model").exists() and not Path("boom").exists()


def test_nothing_is_pickled_but_what_the_library_reads_as_tensors(finished):
    names = {path.name for path in finished.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")}
    assert names == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}


# --- signals


@pytest.mark.parametrize(
    ("evaluation", "sent", "words"),
    [
        (2, signal.SIGTERM, "stopped at step 3 of 8; saved in"),  # the first one measures the cap
        (5, signal.SIGINT, "interrupted. Go on with"),  # after training: all is saved
    ],
)
def test_a_signal_in_an_evaluation_stops_the_run(finished, tmp_path, capfd, evaluation, sent, words):
    count, measure = [], DescentMixin._measure

    def interrupted(self, *given, **options):
        count.append(1)
        if len(count) == evaluation:
            signal.raise_signal(sent)
        return measure(self, *given, **options)

    out = tmp_path / "run"
    with mock.patch.object(DescentMixin, "_measure", interrupted):
        assert train(out) == 130
    told = capfd.readouterr().err
    line = told.splitlines()[-1]
    assert "Traceback" not in told and words in line and line.endswith("--resume")
    assert ("stopping after this step" in told) == (evaluation == 2)  # else it stops at once
    assert not (out / "model").exists() and not [*out.glob(".descend-part*")]
    assert train(out, "--resume") == 0
    assert_same_end(out, finished)


def test_a_signal_after_the_last_step_of_a_run_that_saves_nothing_promises_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(DescentMixin, "_measure", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    flags = ("--save-strategy", "no", "--eval-strategy", "no", "--stop-gradient")  # which needs no cap
    line = ended(capsys, 130, tmp_path / "run", *flags, steps=1)
    assert line == "descend: interrupted after the last step; there is no checkpoint to go on from."


EPOCHS = ["--eval-strategy", "epoch", "--logging-strategy", "epoch"]  # of three steps


@pytest.fixture(scope="module")
def by_epochs(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("epochs") / "run"
    assert train(out, *EPOCHS) == 0
    return out


@pytest.mark.parametrize("saving", [slow("steps"), "epoch"])
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


@pytest.mark.slow
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
for fault in ("records.jsonl:1500:5", "optimizer.pt:1000:5", "/model/model.safetensors:0:5", ""):
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
    assert found.stdout.endswith("[1, 1, 1, 0]\n"), found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    lines = [line for line in found.stderr.splitlines() if line.startswith("descend: ")]
    assert [line.split(" can't be written: ")[0] for line in lines] == [
        f"descend: {out / name}" for name in ("records.jsonl", "checkpoint-3", "model")
    ]
    assert all("Input/output error" in lines[place] for place in (0, 2))
    assert_same_end(out, finished)


# --- the folder


def test_two_processes_do_not_write_into_one_run(finished, unfinished, capsys):
    before = rows(unfinished)
    with locked(unfinished):
        for command in (["train", *TINY, "--out", unfinished, "--resume"], ["evaluate", unfinished]):
            assert refused(capsys, *command) == (
                f"descend: {unfinished} is in use by another process; wait for its end or stop it, or choose another "
                "place."
            )
    assert rows(unfinished) == before


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
    assert_same(*(load_file(folder / "model.safetensors") for folder in (again / "model", kept)))


@pytest.mark.parametrize("when", [slow("before"), "while"])
def test_a_best_checkpoint_that_is_damaged_ends_no_run(tmp_path, when, monkeypatch, caplog):
    """Before a run goes on, or while it does: the best of what is left, or the last model, is kept, and said so."""
    out = tmp_path / "run"
    assert train(out, *BEST, steps=6) == 0
    shutil.rmtree(out / "model")
    weights = out / "checkpoint-3" / "model.safetensors"  # greater is better: the first
    if when == "before":
        flip(weights)
    else:
        end = Step.on_step_end

        def damaging(self, args, state, control, **kwargs):
            end(self, args, state, control, **kwargs)
            if state.global_step == 8:
                flip(weights)

        monkeypatch.setattr(Step, "on_step_end", damaging)
    assert train(out, *BEST, "--resume", steps=9) == 0
    instead = "chosen from later ones" if when == "before" else "last model is used"
    damaged, best = caplog.messages[-2:]
    assert damaged.startswith(f"{out}/checkpoint-3 is damaged: model.safetensors") and "damaged-checkpoint-3" in damaged
    assert best.startswith("checkpoint-3 was the best model so far") and instead in best
    assert_same(*(load_file(out / name / "model.safetensors") for name in ("model", "checkpoint-9")))
    assert (json.loads((out / "checkpoint-9" / "trainer_state.json").read_text())["best_global_step"] == 9) == (
        when == "before"
    )


def test_a_run_that_comes_apart_keeps_its_last_checkpoint_and_the_state_before_the_fault(tmp_path, capsys):
    """Also where one checkpoint is all that is kept."""
    flags = ["--save-total-limit", "1", "--dual-optimizer", "sgd", "--dual-lr", "1e306", "--dual-warmup-steps", "4"]
    out = tmp_path / "run"
    line = ended(capsys, 1, out, *flags)
    assert "No parameter has moved in this step, and the state before it is saved in stopped-5." in line
    assert line.endswith("train into another folder; --resume goes on from checkpoint-3.")
    left = {"config.json", "records.jsonl", "written.json", "checkpoint-3", "stopped-5"}
    assert {path.name for path in out.iterdir()} == left
    assert damage(out / "checkpoint-3") is None and damage(out / "stopped-5") is None
    assert max(run_state(out / "stopped-5")["dual"]["multipliers"]) > 1e300


def test_parameters_that_are_no_numbers_push_no_checkpoint_out(tmp_path, monkeypatch, capsys):
    out, end = tmp_path / "run", Step.on_step_end

    def blown_up(self, args, state, control, **kwargs):  # as an optimizer does that overflows in its own step
        end(self, args, state, control, **kwargs)
        if state.global_step == 5:
            next(self.objective.model.parameters()).data.view(-1)[0] = float("inf")

    monkeypatch.setattr(Step, "on_step_end", blown_up)
    assert ended(capsys, 1, out, "--save-total-limit", "1", "--no-load-best-model-at-end", every=1) == (
        "descend: step 5: parameters are no longer finite, and are not saved. Lower learning_rate or dual_lr and train "
        "into another folder; --resume goes on from checkpoint-4."
    )
    assert [path.name for path in out.glob("*-*")] == ["checkpoint-4"] and damage(out / "checkpoint-4") is None


def test_multipliers_that_are_no_numbers_end_the_run_in_words(tmp_path, capsys):
    flags = ["--dual-optimizer", "sgd", "--dual-lr", "1.7e308", "--alpha", "0.99", "--noise", "9"]
    line = ended(capsys, 1, tmp_path / "run", *flags, steps=2, every=1)
    assert line.startswith("descend: step ") and "the multipliers would overflow" in line
    assert "train into another folder; " in line


# --- files of somebody else: each stays as it was, and a refusal says why

trainer = partial(ranks.points, save_strategy="steps", save_steps=2)


def whole(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


PLAIN = {f"checkpoint-4/{name}": "{}" for name in ("trainer_state.json", "model.safetensors", "training_args.bin")}
BESIDE = {
    **{"report.html": "<h1>mine</h1>", "summary.json": '{"mine": 1}', "groups.json": "[1]", "decisions.json": "[2]"},
    **{"frames.npz": "mine", "on-paper/summary.json": "{}", "train_losses.json": "[3]"},
    **{".part/draft.txt": "my draft", "records.part.jsonl": "mine", ".lock": "mine", "damaged-checkpoint-2/a": "mine"},
}
IN_THE_WAY = {
    "records.jsonl": {"records.jsonl": '{"id": 1, "text": "mine"}\n'},
    "best_feasible": {"best_feasible/model.safetensors": "mine"},
    "checkpoint-4": PLAIN,
}


HOLDS = "holds {}, .* did not write.* Choose another output_dir, or move it"
REFUSED = [
    *((files, DescentTrainer.train, HOLDS.format(name)) for name, files in IN_THE_WAY.items()),
    *((IN_THE_WAY[name], DescentTrainer.evaluate, HOLDS.format(name)) for name in ("records.jsonl", "best_feasible")),
    # What is resumed from and is no checkpoint of ours: the error says what it is.
    (
        PLAIN,
        lambda ours: ours.train(resume_from_checkpoint=True),
        r"checkpoint-4 is no checkpoint of Descend: it has no written\.json of Descend.*load the model",
    ),
    *(
        (PLAIN, lambda ours, name=name: ours.train(resume_from_checkpoint=str(ours.args.folder / name)), words)
        for name, words in (
            ("checkpoint-4", r"checkpoint-4 is no checkpoint of Descend: it has no written\.json"),
            ("checkpoint-5", r"checkpoint-5 does not exist\. Give .*checkpoint-4, the newest there"),
            ("", r"is a folder of checkpoints\. Give one of them, such as .*checkpoint-4\."),
        )
    ),
]


@pytest.mark.parametrize(("files", "work", "words"), REFUSED)
def test_what_would_be_replaced_and_what_is_no_checkpoint_is_refused_before_any_work(tmp_path, files, work, words):
    put(tmp_path, files)
    before = whole(tmp_path)
    with pytest.raises(InputError, match=words):
        work(trainer(tmp_path))
    assert whole(tmp_path) == before


def test_files_beside_a_run_stay_and_its_second_training_goes_on_as_the_first(tmp_path):
    put(tmp_path, BESIDE)
    ours = trainer(tmp_path, save_total_limit=1, eval_strategy="steps", eval_steps=2)
    for _ in range(2):
        ours.train()
        evaluate(ours, own.samples(16, 2), out=tmp_path / "judged")
        assert {name: content.decode() for name, content in whole(tmp_path).items() if name in BESIDE} == BESIDE
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    # What a person laid beside the best model stays, when that is written anew.
    ours._save_best_feasible(1.0)
    put(tmp_path, {"best_feasible/notes.txt": "mine"})
    ours._save_best_feasible(1.0)
    assert (tmp_path / "best_feasible" / "notes.txt").read_text() == "mine"


def test_a_damaged_checkpoint_is_renamed_and_another_trainers_that_is_to_come_refused(tmp_path):
    trainer(tmp_path).train()
    put(tmp_path, {"checkpoint-3/trainer_state.json": "{}", "damaged-checkpoint-4/a": "mine"})
    ledger = tmp_path / "checkpoint-4" / "written.json"
    ledger.write_text(ledger.read_text()[:40])
    with pytest.raises(InputError, match="holds checkpoint-3, "):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    shutil.rmtree(tmp_path / "checkpoint-3")
    trainer(tmp_path).train(resume_from_checkpoint=True)
    assert damage(tmp_path / "checkpoint-4") is None and whole(tmp_path / "damaged-checkpoint-4") == {"a": b"mine"}
    with pytest.raises(InputError, match="checkpoint-4-2 is damaged"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "damaged-checkpoint-4-2"))


def test_the_end_of_training_deletes_no_checkpoint_of_somebody_else(tmp_path, caplog):
    """Where one checkpoint is to be kept and a best one is known, Transformers deletes all others there."""
    every = {"save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    trainer(tmp_path, max_steps=2, **every).train()
    put(tmp_path, {"checkpoint-0/trainer_state.json": "{}", "checkpoint-1/notes.txt": "mine"})
    ours = trainer(tmp_path, save_total_limit=1, **every)
    ours.train(resume_from_checkpoint=True)
    # The last one and the best are two at most.
    kept = {"checkpoint-0", "checkpoint-1", "checkpoint-4", Path(ours.state.best_model_checkpoint).name}
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == kept and ours.args.save_total_limit == 1
    assert (tmp_path / "checkpoint-1" / "notes.txt").read_text() == "mine"
    assert caplog.text.count("checkpoint-1 holds what Descend did not write. It stays") == 1
    assert "eval_loss" in ours.evaluate()  # another trainer's checkpoint is in its way no more than in a run's
    with pytest.raises(InputError, match=r"holds checkpoint-0, .* did not write"):
        trainer(tmp_path).train()


def test_a_note_beside_a_runs_weights_is_not_lost(tmp_path):
    assert train(tmp_path / "run", steps=2) == 0
    assert train(tmp_path / "run", "--resume", steps=3) == 0  # all files of the model are known
    put(tmp_path / "run", {"model/my_notes.txt": "mine"})
    assert train(tmp_path / "run", "--resume", steps=4) == 0
    assert (tmp_path / "run" / "model" / "my_notes.txt").read_text() == "mine"
