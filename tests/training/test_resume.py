"""Where a run ends and what it keeps; and that a resumed one ends as one that was not, of every method and state."""

import json
from dataclasses import replace
from functools import partial
from itertools import cycle, product

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from descend import UT, DescentTrainer, GaussianNoise, InputError
from tests.support import own, ranks, runs
from tests.support.cases import slow_but

STEPS, STOP = 7, 3
EPOCHS = {"max_steps": -1, "num_train_epochs": 3, "save_strategy": "epoch"}
CASES = {
    "erm": {"method": "erm"},
    "uniform": {"method": "uniform"},
    "linear, in micro-batches": {"method": "linear", "gradient_accumulation_steps": 2},
    "the default target": {},
    "price from 0, best model kept": {
        "dual_optim_args": '{"start": 0}',
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
    },
    "sgd, in warm-up at the stop": {"alpha": 0.1, "dual_optimizer": "sgd", "dual_warmup_steps": 5},
    "adam, explicit slack, in micro-batches": {
        "alpha": 0.1,
        "slack": "explicit",
        "gradient_accumulation_steps": 2,
        "stop_gradient": False,
    },
    "nupi, ratios, a cap, every second step": {
        "alpha": [0.1, 0.2, 0.1],
        "cap": 1.0,
        "form": "ratio",
        "dual_optimizer": "nupi",
        "dual_every": 2,
        "dual_warmup_steps": 0,
    },
    "explicit slack restarted by the epoch": {"alpha": 0.1, "slack": "explicit", "dual_every": 2} | EPOCHS,
}
SAVED = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 3, "per_device_train_batch_size": 8}
NOISY = {"noise": GaussianNoise(0.5, 0.02, seed=1), "dropout": 0.1}
MADE = {
    "constrained texts": ("classifier", NOISY),
    "r-drop": ("classifier", NOISY | {"method": "r-drop"}),
    "neftune": ("classifier", NOISY | {"method": "neftune"}),
    "layerskip": ("classifier", NOISY | {"method": "layerskip", "layer_dropout": 0.5}),
    "language": ("language", {"eval_strategy": "steps", "eval_steps": 3}),
    "language, targets sampled": ("language", {"exit_share": 0.25}),
    "adapters": ("lora", {}),
    "own exits": ("own classifier", {"head_lr_ratio": 3.0}),
    "probed": ("own classifier", {"method": "probe"}),
    "own exits of a language model": ("own language", {"head_lr_ratio": 3.0}),
}


WORSE = {"learning_rate": 0.03, "max_grad_norm": 0.0}  # at this rate a UT gets worse now and then
EVERY = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 12}

of_points = partial(
    ranks.points,
    **{"given": {"noise": 0.5}, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "logging_steps": 2},
    **{"per_device_train_batch_size": 4, "learning_rate": 1e-2},
)


def ended(trainer):
    """The model, multipliers and slack; and the logs of layers and tokens: Transformers' mean loss starts anew."""
    logs = {
        (row["step"], name, value)
        for row in trainer.state.log_history
        for name, value in row.items()
        if "/" in name or "token" in name
    }
    return torch.cat([ranks.weights(trainer), trainer.dual.multipliers, trainer.dual.slack]), logs


MATRIX = {
    # The epochs' checkpoint is that of the first of three.
    **{name: (of_points, settings, 6 if "max_steps" in settings else STOP) for name, settings in CASES.items()},
    "early stopping, with one evaluation counted": (
        ranks.denoiser,
        WORSE | EVERY | {"method": "erm", "patience": 2},
        3,
    ),
    **{name: (ranks.MADE[kind], SAVED | settings, 2) for name, (kind, settings) in MADE.items()},
}
"""Case → a function that makes its trainer, the settings, and the step of the checkpoint that it resumes from."""


FAST = (
    "erm",
    "price from 0, best model kept",
    "adam, explicit slack, in micro-batches",
    "nupi, ratios, a cap, every second step",
    "r-drop",
    "language, targets sampled",
    "own exits",
)


@pytest.mark.parametrize("case", slow_but(FAST, MATRIX))
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, case):
    make, settings, checkpoint = MATRIX[case]
    whole, resumed = (make(tmp_path, **settings) for _ in range(2))
    whole.train()
    (wanted, logs), written = ended(whole), runs.rows(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}"))
    found, again = ended(resumed)
    assert torch.equal(found, wanted) and again == logs
    assert runs.rows(tmp_path) == written
    assert json.loads(written[-1])["step"] > checkpoint


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    ranks.MADE["own classifier"](tmp_path, **SAVED).train()
    other = ranks.classifier(tmp_path, **SAVED, exits="shared")
    with pytest.raises(InputError, match="another model: they do not share exits"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_noise_is_a_function_of_step_and_micro_batch(tmp_path, monkeypatch):
    """Its draws at a place are those of `test_noise`."""
    places = []
    monkeypatch.setattr(GaussianNoise, "begin", lambda noise, *place: places.append(place))
    of_points(tmp_path, gradient_accumulation_steps=2, max_steps=2).train()
    assert places == [*product(range(2), range(2))]


# --- early stopping and the best model


def trained(folder, **args) -> DescentTrainer:
    return ranks.fitted(ranks.denoiser(folder, **WORSE | EVERY | args))


@pytest.mark.parametrize(("method", "metric"), [("erm", "loss"), ("linear", "rmse"), ("erm", "violation")])
def test_a_run_ends_where_nothing_became_better_and_keeps_the_best(tmp_path, caplog, method, metric):
    ours = trained(tmp_path, method=method, patience=2, metric_for_best_model=metric)
    step, best = ours.state.global_step, ours.state.best_global_step
    assert step == best + 2 < 12
    name = f"eval_{metric}"
    values = {log["step"]: log[name] for log in ours.state.log_history if name in log}
    assert list(values) == list(range(1, step + 1)) and min(values, key=values.get) == best
    (line,) = [record.message for record in caplog.records if record.name == "descend.training.callback"]
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
LITTLE = [
    *((9, 7, 6.00), (9, 7, 5.55), (9, 7, 5.54), (9, 5.5, 5.52), (9, 5.5, 5.51), (9, 5.5, 5.49)),
    *((9, 4.0, 3.21), (9, 4.0, 3.22), (9, 4.0, 3.19), (9, 4.0, 3.18)),
]
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


@pytest.mark.parametrize("case", slow_but(["a loss that is no number", "nothing of a warm-up"], CHOSEN))
def test_which_model_is_the_best(tmp_path, monkeypatch, case):
    losses, args, expected = CHOSEN[case]
    scripted(monkeypatch, losses)
    state = trained(tmp_path, **args).state
    assert (state.best_global_step, state.best_metric, state.global_step) == pytest.approx(expected)


def two_sets(monkeypatch, rows):
    """Two evaluation sets, whose layers' losses are these, one row for each evaluation of a set."""
    measure = DescentTrainer._measure

    def of_set(self, *given, **options):
        found = measure(self, *given, **options)
        return replace(found, losses=torch.tensor(next(rows), dtype=torch.float64).expand_as(found.losses))

    monkeypatch.setattr(DescentTrainer, "_measure", of_set)
    return {"eval_dataset": {name: own.samples(12, 1) for name in ("one", "two")}}


def test_a_model_that_breaks_its_constraints_on_one_of_two_sets_meets_them_on_none(tmp_path, monkeypatch):
    """At step 1 on the second set, at step 2 on neither, at step 3 on the first."""
    rows = iter([(9, 6, 4, 3), (9, 6, 9, 2), *[(9, 6, 4, 3.1)] * 2, (9, 6, 9, 1), (9, 6, 4, 3)])
    sets = two_sets(monkeypatch, rows)
    best = {"load_best_model_at_end": True, "metric_for_best_model": "one_loss", "alpha": "0.2", "cap": 99.0}
    ours = ranks.points(tmp_path, given=sets, **EVERY | best | {"max_steps": 3})
    ours.train()
    judged = {step: verdict.feasible for step, verdict in ours.selection.verdicts.items()}
    assert judged == {1: False, 2: True, 3: False}
    assert ours.state.best_global_step == 2  # the loss on the first set is lower at step 3, where the set is broken


def test_the_verdict_of_several_sets_is_that_of_one_that_breaks_its_constraints(tmp_path, monkeypatch):
    """The first set misses a bound by .4 of 80, less than 1 %, and the second by .08 of .8."""
    rows = cycle([(100, 80.4, 60, 40), (1, 0.88, 0.7, 0.5)])
    sets = two_sets(monkeypatch, rows)
    ours = ranks.points(tmp_path, given=sets, alpha="0.2", **EVERY | {"max_steps": 1})
    ours.train()
    assert (ours.verdict.status, ours.verdict.violated) == ("broken", [1])


def test_other_data_neither_count_nor_need_the_metric(tmp_path):
    ours = trained(tmp_path, method="erm", patience=2, max_steps=2, learning_rate=1e-4)
    (stopping,) = (each for each in ours.callback_handler.callbacks if type(each).__name__ == "EarlyStopping")
    before = stopping.early_stopping_patience_counter
    assert "test_loss" in ours.evaluate(Subset(ranks.scenes().test, range(4)), metric_key_prefix="test")
    assert stopping.early_stopping_patience_counter == before


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
