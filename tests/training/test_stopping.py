"""Early stopping and the best model: where a run ends, and what it keeps; `test_resume` has a resumed one."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from descend import UT, DescentTrainer
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


MERITS = [(10.0, 9.0, 4.0), (10.0, 12.0, 3.0), (10.0, 7.0, 3.5)]
BY_MERIT = {"patience": 3, "alpha": "0.2", "max_steps": 3}
LITTLE = [(9, 7, 6.00), (9, 7, 5.55), (9, 7, 5.54), (9, 5.5, 5.52), (9, 5.5, 5.51), (9, 5.5, 5.49), (9, 4.0, 3.21)]
LITTLE += [(9, 4.0, 3.22), (9, 4.0, 3.19), (9, 4.0, 3.18)]
BY_LOSS = {"alpha": "0.2", "metric_for_best_model": "loss", "patience": 4}
CHOSEN = {
    # Unless told otherwise: the last layer's loss alone would keep a model that breaks its constraints.
    "by its merit, with the violation": (MERITS, BY_MERIT, (3, 3.5, 3)),
    "by its merit, the loss alone": (MERITS, BY_MERIT | {"method": "linear"}, (2, 3.0, 3)),
    # Within 1 % a feasible model is better than one that is not; beyond it the metric decides. 3.19 < 0.8 * 4.
    "feasible and a little worse": (LITTLE, BY_LOSS | {"max_steps": 6}, (3, 5.54, 6)),
    "feasible in the end": (LITTLE, BY_LOSS | {"max_steps": 9}, (9, 3.19, 9)),
    "nothing asked": (LITTLE, BY_LOSS | {"max_steps": 6, "method": "erm"}, (6, 5.49, 6)),
    "a loss that is no number": (
        [(9, 8, last) for last in (float("nan"), 4.0, float("nan"), 3.0)],
        {"method": "erm", "load_best_model_at_end": True, "metric_for_best_model": "loss", "max_steps": 4},
        (4, 3.0, 4),
    ),
    # A run that counted in warm-up would end at step 4, and one that chose among all would keep step 2.
    "nothing of a warm-up": (
        [(9, 8, last) for last in (6.0, 1.0, 5.0, 5.0, 5.0, 4.0, 3.0, 3.5)],
        {"patience": 1, "dual_warmup_steps": 5, "alpha": "0.6", "metric_for_best_model": "loss"},
        (7, 3.0, 8),
    ),
}
"""Case → losses, settings, and the best step, its metric and the last step."""


@pytest.mark.parametrize("case", CHOSEN)
def test_which_model_is_the_best(tmp_path, monkeypatch, case):
    losses, args, expected = CHOSEN[case]
    scripted(monkeypatch, losses)
    state = trained(tmp_path, **args).state
    assert (state.best_global_step, state.best_metric, state.global_step) == pytest.approx(expected)


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


def test_the_verdict_is_that_of_the_model_that_was_loaded(tmp_path, monkeypatch):
    """Layer 1 holds in the best model, layer 2 alone in the last one."""
    scripted(monkeypatch, [(9, 4, 3), (9, 9, 5)])
    ours = trained(tmp_path, alpha="0.2", metric_for_best_model="loss", max_steps=2, load_best_model_at_end=True)
    assert ours.state.best_global_step == 1
    assert ours.verdict.feasible and ours.evaluate(ours.eval_dataset)["eval_feasible"] == 0
    assert not ours.verdict.feasible
