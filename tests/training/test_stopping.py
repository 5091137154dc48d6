"""Early stopping: where a run ends, what it keeps, and that a resumed run ends alike."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from descend import UT, DescentTrainer
from tests.support import runs
from tests.support.ranks import denoiser, fitted, scenes

WORSE = {"learning_rate": 0.03, "max_grad_norm": 0.0}  # at this rate a UT gets worse now and then
EVERY = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 12}


def trained(folder, **args) -> DescentTrainer:
    return fitted(denoiser(folder, **WORSE | EVERY | args))


@pytest.mark.parametrize(("method", "metric"), [("erm", "loss"), ("linear", "rmse"), ("erm", "violation")])
def test_a_run_ends_where_nothing_became_better_and_keeps_the_best(tmp_path, caplog, method, metric):
    ours = trained(tmp_path, method=method, patience=2, metric_for_best_model=metric)
    step, best = ours.state.global_step, ours.state.best_global_step
    assert step == best + 2 < 12
    name = f"eval_{metric}"
    values = {log["step"]: log[name] for log in ours.state.log_history if name in log}
    assert list(values) == list(range(1, step + 1)) and min(values, key=values.get) == best
    (line,) = [record.message for record in caplog.records if record.name == "descend.training.step"]
    assert line == f"step {step} of 12: {metric} has not become better in 2 evaluations; training ends."
    kept = nn.utils.parameters_to_vector(UT.from_pretrained(tmp_path / f"checkpoint-{best}").parameters())
    assert torch.equal(nn.utils.parameters_to_vector(ours.objective.model.parameters()), kept)


def scripted(monkeypatch, losses):
    """Let the layers' losses of the evaluation after each step be these; the last ones for all that follow."""
    measure = DescentTrainer._measure

    def of_step(self, *given, **options):
        found = measure(self, *given, **options)
        row = torch.tensor(losses[min(self.state.global_step, len(losses)) - 1], dtype=torch.float64)
        return replace(found, losses=row.expand_as(found.losses))

    monkeypatch.setattr(DescentTrainer, "_measure", of_step)


@pytest.mark.parametrize(("method", "merits"), [("constrained", [4.0 + 1, 3.0 + 4, 3.5]), ("linear", [4.0, 3.0, 3.5])])
def test_a_run_is_chosen_by_its_merit(tmp_path, monkeypatch, method, merits):
    """Unless told otherwise: the last layer's loss alone would keep a model that breaks its constraints."""
    scripted(monkeypatch, [(10.0, 9.0, 4.0), (10.0, 12.0, 3.0), (10.0, 7.0, 3.5)])
    ours = trained(tmp_path, method=method, patience=3, alpha="0.2", max_steps=3, learning_rate=1e-3)
    assert [log["eval_merit"] for log in ours.state.log_history if "eval_merit" in log] == pytest.approx(merits)
    assert (ours.state.best_metric, ours.state.best_global_step) == (min(merits), merits.index(min(merits)) + 1)


def test_a_model_that_meets_its_constraints_may_be_a_little_worse(tmp_path, monkeypatch):
    """Within 1 % a feasible model is better than one that is not; beyond it the metric decides."""
    losses = [(9, 7, 6.00), (9, 7, 5.55), (9, 7, 5.54), (9, 5.5, 5.52), (9, 5.5, 5.51), (9, 5.5, 5.49), (9, 4.0, 3.21)]
    scripted(monkeypatch, [*losses, (9, 4.0, 3.22), (9, 4.0, 3.19), (9, 4.0, 3.18)])
    args = {"alpha": "0.2", "metric_for_best_model": "loss", "patience": 4}
    ours = trained(tmp_path / "constrained", **args, max_steps=6)
    assert (ours.state.best_global_step, ours.state.best_metric) == (3, 5.54)
    ours = trained(tmp_path / "longer", **args, max_steps=9)
    assert (ours.state.best_global_step, ours.state.best_metric) == (9, 3.19)  # feasible: 3.19 < 0.8 * 4
    plain = trained(tmp_path / "erm", method="erm", **args, max_steps=6)
    assert (plain.state.best_global_step, plain.state.best_metric) == (6, 5.49)


def test_a_loss_that_is_no_number_is_no_candidate_and_ends_no_choice(tmp_path, monkeypatch):
    scripted(monkeypatch, [(9, 8, last) for last in (float("nan"), 4.0, float("nan"), 3.0)])
    ours = trained(tmp_path, method="erm", load_best_model_at_end=True, metric_for_best_model="loss", max_steps=4)
    assert (ours.state.best_global_step, ours.state.best_metric) == (4, 3.0)


def test_other_data_neither_count_nor_need_the_metric(tmp_path):
    ours = trained(tmp_path, method="erm", patience=2, max_steps=2, learning_rate=1e-4)
    (stopping,) = (each for each in ours.callback_handler.callbacks if type(each).__name__ == "EarlyStopping")
    before = stopping.early_stopping_patience_counter
    assert "test_loss" in ours.evaluate(Subset(scenes().test, range(4)), metric_key_prefix="test")
    ours.evaluate(Subset(scenes().test, range(4)))
    assert stopping.early_stopping_patience_counter == before


def test_nothing_of_a_warm_up_counts(tmp_path, monkeypatch):
    """A run that counted would end at step 4, and one that chose among all would keep step 2."""
    scripted(monkeypatch, [(9, 8, last) for last in (6.0, 1.0, 5.0, 5.0, 5.0, 4.0, 3.0, 3.5)])
    ours = trained(tmp_path, patience=1, dual_warmup_steps=5, alpha="0.6", metric_for_best_model="loss")
    assert (ours.state.best_global_step, ours.state.best_metric, ours.state.global_step) == (7, 3.0, 8)
    assert ours.dual.multipliers.max() > 0


def test_the_best_model_that_was_saved_is_loaded_where_a_better_one_was_not(tmp_path, monkeypatch):
    scripted(monkeypatch, [(9, 8, last) for last in (5.0, 3.0, 2.0, 4.0)])
    ours = trained(tmp_path, method="erm", save_steps=2, max_steps=4, load_best_model_at_end=True)
    assert (ours.state.best_metric, ours.state.best_model_checkpoint) == (2.0, str(tmp_path / "checkpoint-2"))
    kept = nn.utils.parameters_to_vector(UT.from_pretrained(tmp_path / "checkpoint-2").parameters())
    assert torch.equal(nn.utils.parameters_to_vector(ours.objective.model.parameters()), kept)


FLAGS = ["--patience", "2", "--eval-steps", "1"]
FLAGS += ["--dual-warmup-steps", "3", "--slack", "explicit", "--dual-lr", "0.3"]


@pytest.mark.slow
def test_an_interrupted_run_ends_where_it_would_have_ended(tmp_path, monkeypatch):
    scripted(monkeypatch, [(9, 8, last) for last in (6.0, 6.0, 6.0, 5.0, 4.0, 4.5, 3.0, 3.5, 3.0)])
    whole, part = tmp_path / "whole" / "run", tmp_path / "part" / "run"
    assert runs.train(whole, *FLAGS, steps=12, every=1) == 0
    last = max(int(each.name.split("-")[1]) for each in whole.glob("checkpoint-*"))
    assert last == 9
    for step in (last - 1, last):  # with a count of one, and of two
        with monkeypatch.context() as patch:
            runs.stop_after(patch, step)
            resumed = ["--resume"] if part.exists() else []
            assert runs.train(part, *FLAGS, *resumed, steps=12, every=1) == 130
    assert runs.train(part, *FLAGS, "--resume", steps=12, every=1) == 0
    runs.assert_same_end(whole, part, f"checkpoint-{last}")
    # And one that has ended does not go on.
    shutil.copytree(whole, tmp_path / "again" / "run")
    assert runs.train(tmp_path / "again" / "run", *FLAGS, "--resume", steps=12, every=1) == 0
    runs.assert_same_end(whole, tmp_path / "again" / "run", f"checkpoint-{last}")
    assert not (tmp_path / "again" / "run" / f"checkpoint-{last + 1}").exists()
