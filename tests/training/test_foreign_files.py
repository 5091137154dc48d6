"""Training and evaluation in a folder with files of somebody else: each is as it was, and what is refused says why."""

import json
from functools import partial
from pathlib import Path

import pytest

from descend import evaluate
from descend.errors import InputError
from tests.support.own import samples
from tests.support.ranks import points
from tests.support.runs import train

trainer = partial(points, save_strategy="steps", save_steps=2)


def put(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


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


@pytest.mark.parametrize(
    ("work", "name"), [*(("train", name) for name in IN_THE_WAY), *(("evaluate", name) for name in [*IN_THE_WAY][:2])]
)
def test_what_would_be_replaced_is_refused_before_any_work(tmp_path, work, name):
    put(tmp_path, IN_THE_WAY[name])
    before = whole(tmp_path)
    with pytest.raises(InputError, match=f"holds {name}, .* did not write.* Choose another output_dir, or move it"):
        getattr(trainer(tmp_path), work)()
    assert whole(tmp_path) == before


def test_files_beside_a_run_stay_and_its_second_training_goes_on_as_the_first(tmp_path):
    put(tmp_path, BESIDE)
    ours = trainer(tmp_path, save_total_limit=1, eval_strategy="steps", eval_steps=2)
    for _ in range(2):
        ours.train()
        evaluate(ours, samples(16, 2), out=tmp_path / "judged")
        assert {name: content.decode() for name, content in whole(tmp_path).items() if name in BESIDE} == BESIDE
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    # What a person laid beside the best model is not ours, and the model is.
    ours._keep_best_feasible(-1, 1.0)
    put(tmp_path, {"best_feasible/notes.txt": "mine"})
    with pytest.raises(InputError, match="best_feasible"):
        ours.train()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            True,
            r"checkpoint-4 is no checkpoint of Descend: it has no manifest\.json of Descend.*load the model",
        ),
        ("checkpoint-4", r"checkpoint-4 is no checkpoint of Descend: it has no manifest\.json"),
        ("checkpoint-5", r"checkpoint-5 does not exist\. Give .*checkpoint-4, the newest there"),
        ("", r"is a folder of checkpoints\. Give one of them, such as .*checkpoint-4\."),
    ],
)
def test_resuming_from_what_is_no_checkpoint_of_ours_says_what_it_is(tmp_path, given, words):
    put(tmp_path / "plain", PLAIN)
    before = whole(tmp_path)
    checkpoint = given if given is True else str(tmp_path / "plain" / given)
    with pytest.raises(InputError, match=words):
        trainer(tmp_path / "plain").train(resume_from_checkpoint=checkpoint)
    assert whole(tmp_path) == before


def test_a_run_resumes_past_another_trainers_checkpoint_and_renames_a_damaged_one_of_its_own(tmp_path):
    trainer(tmp_path).train()
    put(tmp_path, {"checkpoint-3/trainer_state.json": "{}", "damaged-checkpoint-4/a": "mine"})
    manifest = tmp_path / "checkpoint-4" / "manifest.json"
    manifest.write_text(manifest.read_text()[:40])
    with pytest.raises(InputError, match="holds checkpoint-3, "):  # step 3 is to come
        trainer(tmp_path).train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-3").rename(tmp_path / "checkpoint-1")
    again = trainer(tmp_path, save_total_limit=1)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4 and (tmp_path / "checkpoint-4" / "manifest.json").is_file()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-4"}
    assert whole(tmp_path / "checkpoint-1") == {"trainer_state.json": b"{}"}
    assert whole(tmp_path / "damaged-checkpoint-4") == {"a": b"mine"}
    assert (tmp_path / "damaged-checkpoint-4-2" / "manifest.json").is_file()
    with pytest.raises(InputError, match="checkpoint-4-2 is damaged"):
        again.train(resume_from_checkpoint=str(tmp_path / "damaged-checkpoint-4-2"))
    steps = [json.loads(row)["step"] for row in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_the_end_of_training_deletes_no_checkpoint_of_somebody_else(tmp_path, caplog):
    """Where one checkpoint is to be kept and a best one is known, Transformers deletes all others there."""
    every = {"save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    trainer(tmp_path, max_steps=2, **every).train()
    put(tmp_path, {"checkpoint-0/trainer_state.json": "{}", "checkpoint-1/notes.txt": "mine"})
    ours = trainer(tmp_path, save_total_limit=1, **every)
    ours.train(resume_from_checkpoint=True)
    best = Path(ours.state.best_model_checkpoint).name
    kept = {"checkpoint-0", "checkpoint-1", "checkpoint-4", best}  # the last one and the best are two at most
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == kept and ours.args.save_total_limit == 1
    assert (tmp_path / "checkpoint-1" / "notes.txt").read_text() == "mine"
    assert caplog.text.count("checkpoint-1 holds what Descend did not write. It stays") == 1
    assert "eval_loss" in ours.evaluate()  # another trainer's checkpoint is in its way no more than in a run's
    with pytest.raises(InputError, match=r"holds checkpoint-0, .* did not write"):
        trainer(tmp_path).train()


def test_a_note_beside_a_runs_weights_is_not_lost(tmp_path, capsys):
    assert train(tmp_path / "run", steps=2) == 0
    assert train(tmp_path / "run", "--resume", steps=3) == 0  # all files of the model are known
    put(tmp_path / "run", {"model/my_notes.txt": "mine"})
    assert train(tmp_path / "run", "--resume", steps=4) == 2
    assert "holds model/my_notes.txt, which Descend may replace" in capsys.readouterr().err
    assert (tmp_path / "run" / "model" / "my_notes.txt").read_text() == "mine"
