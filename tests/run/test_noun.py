"""`descend.Run`: one noun for a run's folder, a model in memory and a pretrained model as it is."""

import subprocess
import sys

import pytest
from transformers import AutoModelForSequenceClassification

import descend
from descend import InputError, Run
from descend.report.answer import Answer
from descend.results import Results
from descend.run import EarlyExits, LinearProbes
from tests.support import ranks, subjects
from tests.support.own import Classes, layers, samples


def test_the_results_of_a_folder_load_neither_torch_nor_the_model(finished):
    script = (
        "import sys; from descend import Run; run = Run.read(sys.argv[1]); "
        "print(run.results.summary.depth, len(run.results.history), run.verdict.status, len(run.answer.rows)); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(finished)], capture_output=True, text=True)
    results = Results.read(finished)
    shown = [2, 3, results.summary.status, len(Answer.of(results.summary).rows)]
    assert (done.returncode, done.stdout.split()) == (0, list(map(str, shown))), done.stderr


def test_a_folder_holds_all_that_belongs_to_a_run(finished, tmp_path):
    run = Run.read(finished)
    assert (run.model.depth, run.problem.depth, run.task.metric) == (2, 2, "rmse")
    assert run.noise.level == 0.8 and run.noise.sigma == run.results.summary.sigma
    assert (len(run.samples), len(run.data.train), run.name) == (45, 18, "scenes")
    assert run.provenance.method == "constrained"
    measured = subjects.measured(
        run.model, run.task, run.samples, run.noise.at(0.8, seed=0), run.batches.size, run.batches.collate
    )
    assert run.results.summary.layer_losses[0.8] == measured.losses.mean(0).tolist()
    assert run.page(tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "first 1 of 2 layers" in run.export(1, tmp_path / "one")[0]
    with pytest.raises(AttributeError, match="modle"):
        run.modle  # noqa: B018


def test_a_trainer_alone_is_evaluated_on_its_own_evaluation_set(tmp_path):
    trainer = ranks.fitted(ranks.points(tmp_path / "run", max_steps=2))
    run = Run.of(trainer)
    summary = run.evaluate()
    assert (summary.split, summary.samples) == ("validation", 12) and run.results.summary == summary
    assert (tmp_path / "run" / "groups.json").is_file() and run.answer.headline in summary.answer
    assert run.evaluate(seed=1).layer_losses == summary.layer_losses  # without noise
    known = descend.evaluate(trainer, samples(40, 2), out=tmp_path / "other")
    assert Run.of(trainer, samples(40, 2)).evaluate().layer_losses == known.layer_losses
    trainer.eval_dataset = {"a": samples(8), "b": samples(8)}
    with pytest.raises(InputError, match="no single eval_dataset"):
        Run.of(trainer)
    with pytest.raises(InputError, match="split validation; got test"):
        run.evaluate(split="test")


def test_a_run_that_was_not_evaluated_or_not_trained_says_so(tmp_path):
    for unknown, message in (
        (Run(), "this one was not"),
        (Run.read(tmp_path), r"has no summary\.json"),
    ):
        with pytest.raises(InputError, match=message):
            assert unknown.results
    memory = Run.of(layers(), samples(8), task=Classes())
    for wrong, message in (
        (lambda: memory.data, r"run\.samples"),
        (lambda: memory.train(), "to be trained"),
        (lambda: memory.evaluate([LinearProbes()]), "chosen on a run's own data"),
        (lambda: memory.page(), "was not evaluated|place for the page"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()
    planned = descend.configure("video-ut", data="generated", output_dir=str(tmp_path / "run"))
    with pytest.raises(InputError, match=r"not trained yet: call run\.train"):
        planned.evaluate()
    assert not (tmp_path / "run").exists()


def test_a_frozen_model_is_read_by_fitted_readouts_and_writes_nothing_unasked(models, reviews, working_directory):
    run = Run.frozen(str(models / "long-bert-bare"), str(reviews), most=40)
    given = AutoModelForSequenceClassification.from_pretrained(models / "long-bert-bare").base_model.state_dict()
    summary = run.evaluate()
    assert (summary.depth, summary.samples, summary.validation.samples) == (3, 40, 12)
    assert summary.layers_needed.compared_with == "best" and "not trained" in summary.note
    kept = run.model.library.base_model.state_dict()
    assert all((kept[name] == value.float()).all() for name, value in given.items() if "layer.0" in name)
    assert list(working_directory.iterdir()) == []
    with pytest.raises(InputError, match="split test; got train"):
        run.evaluate([EarlyExits(0.1)], split="train")
