"""`descend.Run`: one noun for a run's folder, a model in memory and a pretrained model as it is."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import descend
from descend import InputError, Run
from descend.evaluation.layers import measure
from descend.report.answer import Answer
from descend.results import Results
from descend.run import EarlyExits, LinearProbes, evaluators
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


def test_a_folder_holds_all_that_belongs_to_a_run(out, tmp_path):
    run = Run.read(out)
    assert (run.model.depth, run.problem.depth, run.task.metric) == (2, 2, "rmse")
    assert run.noise.level == 0.8 and run.noise.sigma == run.results.summary.sigma
    assert (len(run.samples), len(run.data.train), run.name) == (80, 18, "scenes")
    assert run.provenance.method == "constrained"
    measured = subjects.measured(
        run.model, run.task, run.samples, run.noise.at(0.8, seed=0), run.batches.size, run.batches.collate
    )
    assert run.results.summary.layer_losses[0.8] == measured.losses.mean(0).tolist()
    assert run.page(tmp_path / "page.html").read_text().startswith("<!doctype html>")
    before = run.evaluate(noise=[0.8]).layer_losses
    for place in ("one", "again"):
        assert "first 1 of 2 layers" in run.export(1, tmp_path / place)[0]
    assert run.model.depth == 2 and run.evaluate(noise=[0.8]).layer_losses == before
    with pytest.raises(AttributeError, match="modle"):
        run.modle  # noqa: B018
    with pytest.raises(AttributeError, match="split"):
        run.split = "train"  # `evaluate` says which data it takes


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
    for unknown, message in ((Run.read(tmp_path), r"has no summary\.json"),):
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


@pytest.mark.parametrize(("model", "told"), [("long-bert", True), ("long-bert-bare", False)])
def test_a_frozen_classifiers_own_head_is_said_to_be_unused(models, reviews, capsys, model, told):
    run = Run.frozen(str(models / model), str(reviews), most=40)
    assert (
        "The model's own head is not used: each layer, the last one too, gets a new readout." in capsys.readouterr().err
    ) == told
    assert ("Its own head was not used." in run.provenance.note) == told


def test_layers_of_validation_samples_are_read_once_and_give_the_same_as_twice(models, reviews, monkeypatch):
    run = Run.frozen(str(models / "long-bert-bare"), str(reviews), most=40)
    measured = measure(run.model, run.task, run.batches.of(run.validation))[0]
    torch.testing.assert_close(run.validated.losses, measured.losses)
    assert torch.equal(run.validated.decisions, measured.decisions)
    monkeypatch.setattr(evaluators, "measure", None)  # nobody reads them again
    assert run.evaluate().validation.metric == measured.metrics


def test_data_are_read_once_and_a_fault_in_reading_is_told_as_it_is(out, monkeypatch):
    run, loads = Run.read(out), []
    read = type(run.recipe).load
    monkeypatch.setattr(type(run.recipe), "load", lambda *args: loads.append(1) or read(*args))
    for split in ("test", "validation", "test"):
        run.evaluate(split=split, noise=[0.8])
    assert len(loads) == 1
    monkeypatch.setattr(type(run.recipe), "load", lambda *args: None.foo)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'foo'"):
        Run.read(out).data  # noqa: B018


def test_a_planned_run_is_trained_and_then_that_of_its_folder(tmp_path):
    settings = {"depth": 1, "max_steps": 1, "eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    run = descend.configure("video-ut", data="generated", output_dir=str(tmp_path / "run"), use_cpu=True, **settings)
    assert run.validation is None and not run.chooses
    for wrong in (
        lambda: run.model,
        lambda: run.noise,
        lambda: run.export(1, tmp_path / "one"),
        lambda: run.evaluate(),
    ):
        with pytest.raises(InputError, match=r"not trained yet.*run\.train\(\)"):
            wrong()
    trainer = run.train()
    assert run.evaluate(noise=[0.8], most=20).samples <= 20 and run.model.depth == trainer.model.depth == 1
    with pytest.raises(InputError, match=r"descend\.configure"):
        run.train()


def test_a_folder_with_the_evaluation_of_another_of_its_models_says_so(finished):
    best = Run.read(finished, model="best_feasible")
    with pytest.raises(InputError, match="holds the evaluation of model, not of best_feasible"):
        best.results  # noqa: B018


def test_a_kind_of_noise_that_was_asked_for_has_its_usual_levels(tmp_path):
    plain = Run.of(layers(), samples(8), task=Classes())
    assert plain.evaluate().noise == [0] and len(plain.evaluate(shift="uniform").noise) == 8
    trainer = ranks.fitted(ranks.points(tmp_path / "run", max_steps=1))
    assert max(Run.of(trainer, samples(8)).evaluate(shift="dropout").noise) == pytest.approx(0.7)


def test_the_main_process_alone_writes(tmp_path, monkeypatch):
    trainer = ranks.fitted(ranks.points(tmp_path / "run", max_steps=1))
    monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    run = Run.of(trainer)
    run.evaluate()
    assert run.page() is None and not list((tmp_path / "run").glob("*.html")) + list(
        (tmp_path / "run").glob("summary*")
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda run: Run("runs/ut"), r"Run\.read\(folder\)"),
        (lambda run: Run.read(None), "path of a run's folder; got None"),
        (lambda run: Run.read("runs/ut", unseen=True), "--unseen goes with --task"),
        (lambda run: Run.of(layers(), task=Classes()), "Give them beside the model"),
        (lambda run: Run.of(layers(), samples(8), task=Classes(), batch_size=0), "batch_size must be .* got 0"),
        (lambda run: Run.of(layers(), samples(8), task=Classes(), split="tst"), "test, validation or train; got 'tst'"),
        (lambda run: run.evaluate(EarlyExits()), r"a list of further evaluators, such as \[EarlyExits\(\)\]"),
        (lambda run: run.evaluate([EarlyExits]), "a list of further evaluators"),
        (lambda run: run.evaluate(most="20"), r"most\) must be a whole number; got '20'"),
        (lambda run: run.evaluate(seed="a"), "seed must be a whole number; got 'a'"),
        (lambda run: run.export(2.5, "out"), "layers must be a whole number; got 2.5|model of Transformers"),
        (lambda run: EarlyExits(risk="a"), "risk must be a number between 0 and 1"),
        (lambda run: run.model_folder, "in memory has no folder"),
    ],
)
def test_a_wrong_argument_is_one_error(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong(Run.of(layers(), samples(8), task=Classes()))


def test_an_export_loads_the_model_once(finished, tmp_path, monkeypatch):
    kind, loads = type(Run.read(finished).recipe), []
    restore = kind.restore
    monkeypatch.setattr(kind, "restore", lambda *args: loads.append(1) or restore(*args))
    Run.read(finished).export(1, tmp_path / "one")
    assert len(loads) == 1
