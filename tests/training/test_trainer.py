"""DescentTrainer: accumulation, ERM and the plain Trainer, the dual's schedule, what it logs and keeps.

Interruption and resuming are tested through the command line, in `test_run`.
"""

import json
import math
import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, Subset
from transformers import set_seed

from descend import (
    UT,
    DescentConfig,
    DescentTrainer,
    GaussianNoise,
    InputError,
    NonFiniteLossError,
    UTConfig,
    evaluate,
)
from descend.tasks.video import VideoData, VideoDenoising, load_video
from descend.training.checkpoints import damage
from tests.support import networks, own, ranks

QUIET = networks.QUIET | {"learning_rate": 3e-3}


@pytest.fixture(scope="module")
def data() -> VideoData:
    return load_video(None, 2, stride=10, seed=0)  # 18 windows to train on


def build(folder, data, *, depth=2, noise=0.8, train=None, **args) -> DescentTrainer:
    args = QUIET | {"max_steps": 3, "per_device_train_batch_size": 6, "dual_warmup_steps": 0.0} | args
    return DescentTrainer(
        UT(UTConfig(depth=depth)),
        DescentConfig(output_dir=str(folder), **args),
        task=VideoDenoising(),
        noise=GaussianNoise(noise, data.sigma, seed=0),
        train_dataset=data.train if train is None else train,
        eval_dataset=Subset(data.validation, range(8)),
    )


def weights(trainer) -> torch.Tensor:
    return nn.utils.parameters_to_vector(trainer.objective.model.parameters()).detach().clone()


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def series(folder, metric, split="train") -> torch.Tensor:
    """A metric by step and layer."""
    found: dict[int, list[float]] = {}
    for row in rows(folder):
        if (row["metric"], row["split"]) == (metric, split):
            found.setdefault(row["step"], []).append(row["value"])
    return torch.tensor(list(found.values()), dtype=torch.float64)


# --- the step


def test_erm_is_bit_equal_to_multipliers_frozen_at_zero(tmp_path, data):
    cases = {
        "erm": {"method": "erm"},
        "never binding": {"alpha": "0.01", "cap": 1e9},
        "warming up": {"alpha": "0.6", "dual_warmup_steps": 2.0},  # its first dual step comes after its last of three
    }
    found = {}
    for name, args in cases.items():
        trainer = build(tmp_path / name, data, depth=1, **args)  # a first layer descends, untrained
        trainer.train()
        if name == "never binding":
            assert trainer.dual.multipliers.tolist() == [0, 0]
        found[name] = weights(trainer)
    assert torch.equal(found["erm"], found["warming up"])
    assert torch.equal(found["erm"], found["never binding"])


@pytest.mark.parametrize(("method", "expected"), [("erm", [0, 0, 3]), ("uniform", [1, 1, 1]), ("linear", [0, 1, 2])])
def test_training_without_constraints_is_the_loop_by_hand(tmp_path, data, method, expected):
    shares = [weight / 3 for weight in expected]
    trainer = build(tmp_path, data, method=method, max_steps=4, optim="sgd", learning_rate=0.05, max_grad_norm=0.0)
    trainer.train()
    model, noise, batch = UT(UTConfig(depth=2)), GaussianNoise(0.8, data.sigma, seed=0), 6
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    order, logged = [], []
    build(tmp_path / "order", data, train=(asked := Logged(data.train)), max_steps=4).train()
    order = [asked.asked[start : start + batch] for start in range(0, 4 * batch, batch)]
    for step, chosen in enumerate(order):
        noise.begin(step)
        patches = torch.stack([data.train[place]["patches"] for place in chosen])
        losses = [(each - patches).norm(dim=-1).sum(1).mean() / 2 for each in model.predictions(noise(patches))]
        loss = sum(share * each for share, each in zip(shares, losses, strict=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        logged.append([each.item() for each in losses])
    ours = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert (ours - nn.utils.parameters_to_vector(UT(UTConfig(depth=2)).parameters())).norm() > 0.01
    torch.testing.assert_close(weights(trainer), ours, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(series(tmp_path, "loss"), torch.tensor(logged).double(), rtol=1e-5, atol=1e-6)
    assert torch.allclose(series(tmp_path, "weight"), torch.tensor(shares).double())
    assert not {"multiplier", "slack", "violation"} & {row["metric"] for row in rows(tmp_path)}
    assert trainer.evaluate()["eval_violation"] == trainer.verdict.worst


class Logged(Dataset):
    """Notes which windows are asked for, in order."""

    def __init__(self, windows):
        self.windows, self.asked = windows, []

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.windows[index]


def test_the_order_of_the_data_does_not_move_with_gamma_or_the_method(tmp_path, data):
    orders = []
    for place, args in enumerate(({"noise": 0.0}, {"noise": 0.8}, {"noise": 0.8, "method": "erm"})):
        train = Logged(data.train)
        build(tmp_path / str(place), data, train=train, max_steps=5, **args).train()
        orders.append(train.asked)
    assert sorted(orders[0][:18]) == list(range(18))
    assert orders[0][:18] != orders[0][18:] + orders[0][: 36 - len(orders[0])]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("args", [{"max_grad_norm": 1e-3}, {"bf16": True}, {"activation_checkpointing": True}])
def test_clipping_and_half_precision_and_checkpointing_train(tmp_path, data, args):
    trainer = build(tmp_path, data, alpha="0.6", optim="sgd", learning_rate=1.0, **args)
    start = weights(trainer)
    trainer.train()
    moved = (weights(trainer) - start).norm().item()
    assert 0 < moved < float("inf")
    if "max_grad_norm" in args:
        assert moved <= 3 * 1e-3 * (1 + 1e-4)  # three steps, none longer than the clip
    assert trainer.dual.multipliers.max() > 0
    assert series(tmp_path, "loss").isfinite().all()
    assert trainer.evaluate()["eval_loss"] > 0


# --- what can't be trained


BROKEN = {name: "[1, 2]" if name == "video" else "[2, 3]" for name in ranks.MADE}


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("name", BROKEN)
def test_a_loss_that_is_not_finite_stops_before_anything_moves(tmp_path, name, accumulation):
    """Every layer from the broken one on is named, and the samples of the step."""
    size = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": accumulation, "max_steps": 3}
    trainer = ranks.MADE[name](tmp_path, **size)
    trainer.objective.double()
    trainer.train()
    part = "feedforward" if name == "video" else ".1."
    with torch.no_grad():
        next(value for place, value in trainer.objective.model.named_parameters() if part in place).fill_(math.nan)
    before = ranks.outcome(trainer)
    assert before["λ"].max() > 0
    with pytest.raises(NonFiniteLossError, match=rf"step 1: .*loss of layer {re.escape(BROKEN[name])}") as error:
        trainer.train()
    numbers = re.search(r"; samples ([\d, ]+)\.", str(error.value))[1].split(", ")
    assert len(set(numbers)) == 2 * accumulation and "\n" not in str(error.value)
    after = ranks.outcome(trainer)
    assert all(torch.equal(after[key].nan_to_num(), before[key].nan_to_num()) for key in before if key != "losses")


class Poisoned(Logged):
    """Windows of which one has a pixel that is no number."""

    def __getitem__(self, number):
        window = {name: torch.as_tensor(value).clone() for name, value in self.windows[number].items()}
        if number == 7:
            window["patches"].view(-1)[5] = float("nan")
        return window


def test_the_samples_of_a_step_that_goes_wrong_are_named_and_the_state_before_it_is_kept(tmp_path, data):
    settings = {"per_device_train_batch_size": 3, "save_strategy": "steps", "save_steps": 100, "max_steps": 12}
    trainer = build(tmp_path / "bad", data, train=Poisoned(data.train), **settings)
    with pytest.raises(NonFiniteLossError) as error:
        trainer.train()
    found = re.search(r"step (\d+): .*; samples ([\d, ]+) \(NaN or infinity in the data of 7\)\.", str(error.value))
    step, numbers = found.groups()
    assert "7" in numbers.split(", ") and len(numbers.split(", ")) == 3
    before = int(step) - 1
    kept = tmp_path / "bad" / f"stopped-{before}"
    if before:
        good = build(tmp_path / "good", data, **settings | {"max_steps": before, "save_steps": before})
        good.train()
        assert damage(kept) is None
        one, other = (
            load_file(folder / "model.safetensors") for folder in (kept, tmp_path / f"good/checkpoint-{before}")
        )
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert torch.equal(trainer.dual.multipliers, good.dual.multipliers)
    assert before or not kept.exists()


def test_a_gradient_that_is_not_finite_stops_before_anything_moves(tmp_path, data):
    trainer = build(tmp_path, data)
    trainer.objective.model.feedforward.register_hook(lambda slope: slope + float("inf"))
    start = weights(trainer)
    with pytest.raises(NonFiniteLossError, match=r"step 1: .*gradient.*(nan|inf)"):
        trainer.train()
    assert torch.equal(weights(trainer), start)


class Lowered(own.Classes):
    """Losses lowered by a constant from a step on, as a likelihood's fall below 0 while it is learned."""

    def __init__(self, constant, start=0):
        self.constant, self.start, self.trainer = constant, start, None

    def losses(self, prediction, target):
        late = self.trainer is not None and self.trainer.state.global_step >= self.start
        return super().losses(prediction, target) - self.constant * late


def lowered(folder, *task, **args) -> DescentTrainer:
    settings = QUIET | {"max_steps": 3, "per_device_train_batch_size": 8} | args
    trainer = DescentTrainer(
        own.layers(), DescentConfig(str(folder), **settings), task=Lowered(*task), train_dataset=own.samples(32)
    )
    trainer.objective.task.trainer = trainer
    return trainer


@pytest.mark.parametrize(
    ("start", "args"),
    [
        *((0, args) for args in ({}, {"alpha": 0.1}, {"alpha": 0.1, "form": "ratio"}, {"alpha": 0.1, "cap": 1.0})),
        (2, {"save_strategy": "steps", "save_steps": 100}),
    ],
)
def test_a_negative_loss_stops_before_anything_moves_and_the_state_is_kept(tmp_path, start, args):
    trainer = lowered(tmp_path, 9.0, start, **args)
    before = weights(trainer)
    words = rf"^step {start + 1}: .*got -\d.* at layer \d\. .*Add a constant.*No parameter has moved"
    with pytest.raises(InputError, match=words) as error:
        trainer.train()
    assert torch.equal(weights(trainer), before) == (start == 0)
    assert ("saved in stopped-2." in str(error.value)) == (start == 2)
    assert start == 0 or damage(tmp_path / "stopped-2") is None


def test_plain_training_needs_no_positive_losses_but_its_evaluation_does(tmp_path):
    trainer = lowered(tmp_path, 9.0, method="erm")
    trainer.train()
    for judge in (trainer.evaluate, partial(evaluate, trainer)):
        with pytest.raises(InputError, match=r"above 0 at every layer; got -\d.* at layer \d\."):
            judge(own.samples(8, 1))


@pytest.mark.parametrize("args", [{}, {"alpha": 0.1}])
def test_a_loss_of_exactly_zero_does_not_stop_a_run(tmp_path, args):
    trainer = lowered(tmp_path, 0.0, **args)
    trainer.objective.task.losses = lambda prediction, target: 0.0 * prediction.sum(-1)
    trainer.train()
    assert evaluate(trainer, own.samples(8, 1)).feasible and trainer.dual.multipliers.isfinite().all()


@pytest.mark.parametrize(
    ("steps", "settings"),
    [(3, {"dual_every": 100}), (3, {"dual_every": "epoch"}), (3, {"dual_warmup_steps": 3.0})],
)
def test_a_run_without_a_dual_step_stops_before_its_first_step(tmp_path, data, steps, settings):
    """How many steps an epoch has is known once it begins."""
    trainer = build(tmp_path, data, max_steps=-1, num_train_epochs=1, **settings)
    start = weights(trainer)
    with pytest.raises(InputError, match=f"of {steps} steps of warm-up and dual_every"):
        trainer.train()
    assert torch.equal(weights(trainer), start)


# --- the dual's schedule: 3 steps an epoch


def moves(folder) -> list[bool]:
    """After which steps λ was another than before."""
    multipliers = series(folder, "multiplier")
    return torch.cat([torch.zeros_like(multipliers[:1]), multipliers]).diff(dim=0).abs().sum(1).gt(0).tolist()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"dual_warmup_steps": 3.0}, [0, 0, 0, 1, 1, 1, 1, 1]),
        ({"dual_warmup_steps": 0.25}, [0, 0, 1, 1, 1, 1, 1, 1]),
        ({"dual_every": "3"}, [0, 0, 1, 0, 0, 1, 0, 0]),
        ({"dual_every": "2", "dual_warmup_steps": 3.0}, [0, 0, 0, 0, 1, 0, 1, 0]),
        # Once an epoch: seen in the first log of the next one.
        ({"dual_every": "epoch"}, [0, 0, 0, 1, 0, 0, 1, 0]),
        ({"dual_every": "epoch", "dual_warmup_steps": 3.0}, [0, 0, 0, 0, 0, 0, 1, 0]),
    ],
)
def test_the_multipliers_move_when_they_are_due(tmp_path, data, args, expected):
    build(tmp_path, data, alpha="0.6", max_steps=8, **args).train()
    assert moves(tmp_path) == [bool(each) for each in expected]


def test_explicit_slack_restarts_with_the_epoch(tmp_path, data):
    explicit = {"slack": "explicit", "slack_optimizer": "adam", "slack_lr": 0.0015}
    trainer = build(tmp_path, data, alpha="0.6", max_steps=6, **explicit)
    trainer.train()
    slack = series(tmp_path, "slack")[:, -1]
    assert slack[2] > slack[1] > 0
    assert slack[3] < slack[2]
    assert trainer.dual.slack[-1] == slack[-1] > 0  # that after the last step stays for the record


def test_violations_and_weights_are_those_of_the_problem(tmp_path, data):
    trainer = build(tmp_path, data, alpha="0.6,0.3", cap=0.1, dual_optimizer="sgd", dual_lr=0.1, max_steps=1)
    trainer.train()
    problem = trainer.dual.problem
    losses = series(tmp_path, "loss")[0]
    torch.testing.assert_close(series(tmp_path, "violation")[0], problem.violations(losses)[1:])
    # The first dual step from λ = 0, by hand: λ = η g, and the cap's at layer 0.
    gaps = torch.cat([losses[:1] - 0.1, losses[1:] - torch.tensor([0.4, 0.7]) * losses[:-1]])
    torch.testing.assert_close(series(tmp_path, "multiplier")[0], 0.1 * gaps.clamp(min=0))
    expected = problem.weights(trainer.dual.multipliers)
    torch.testing.assert_close(series(tmp_path, "weight")[0], expected)


# --- logs and records


def test_a_run_is_told_of_constraints_that_ask_too_much(tmp_path, data, caplog):
    build(tmp_path / "much", data, alpha="0.9", dual_lr=0.3, max_steps=15, dual_warmup_steps=1).train()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("descend")]
    assert [sentence.split(":")[0] for sentence in told] == ["step 11"] * 3, told
    assert "ask a last loss of at most" in told[0] and told[2].endswith("allow more slack by resilience.")
    caplog.clear()
    build(tmp_path / "little", data, alpha="0.01", max_steps=14).train()
    assert not [record for record in caplog.records if record.name.startswith("descend")]


@pytest.mark.parametrize("method", ["constrained", "erm"])
def test_logs_name_every_layer(tmp_path, data, method):
    trainer = build(tmp_path, data, method=method, logging_steps=2, max_steps=4)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["step"] for log in logs] == [2, 4]
    names = {f"{name}/{layer}" for name in ("loss", "weight") for layer in (0, 1, 2)}
    if method == "constrained":
        names |= {f"{name}/{layer}" for name in ("violation", "slack") for layer in (1, 2)}
        names |= {f"multiplier/{layer}" for layer in (0, 1, 2)}
    for log in logs:
        assert names == {name for name in log if "/" in name}


def test_the_page_of_logs_has_every_key_of_ours(tmp_path, data):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "logs.md").read_text("utf-8")
    trainer = build(tmp_path, data, logging_steps=2, max_steps=2, eval_strategy="steps", eval_steps=2)
    trainer.train()
    logged = {re.sub(r"/\d+$", "/l", name) for log in trainer.state.log_history for name in log}
    named = set(re.findall(r"`([\w/]+)`", "".join(line.split("|")[1] for line in page.splitlines() if line[:1] == "|")))
    theirs = {"loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "train_loss", "train_runtime"}
    theirs |= {"train_samples_per_second", "train_steps_per_second"}
    assert logged - theirs <= named
    assert {name for name in named if "/" in name} <= logged


def test_logged_losses_are_means_since_the_last_log(tmp_path, data):
    for name, every in (("each", 1), ("pairs", 2)):
        build(tmp_path / name, data, logging_steps=every, max_steps=4).train()
    each, pairs = series(tmp_path / "each", "loss"), series(tmp_path / "pairs", "loss")
    torch.testing.assert_close(pairs, each.unflatten(0, (2, 2)).mean(1), rtol=1e-6, atol=0)


def test_records_have_their_fields_and_each_row_once(tmp_path, data):
    folder = tmp_path / "run"
    trainer = build(folder, data, eval_strategy="steps", eval_steps=2, max_steps=4)
    trainer.train()
    trainer.evaluate()  # as at the end of a run: step 4 was measured already
    found = rows(folder)
    assert {tuple(row) for row in found} == {("run", "step", "split", "layer", "noise", "metric", "value")}
    assert {row["run"] for row in found} == {"run"}
    assert {row["noise"] for row in found} == {0.8}
    counts = Counter((row["step"], row["split"], row["layer"], row["metric"]) for row in found)
    assert set(counts.values()) == {1}
    validation = {(row["step"], row["metric"]) for row in found if row["split"] == "validation"}
    assert validation == {(step, metric) for step in (2, 4) for metric in ("loss", "rmse")}


# --- what it keeps


def test_the_best_feasible_model_is_kept_and_no_other(tmp_path, data):
    cases = {"feasible": {"alpha": "0.05"}, "not": {"alpha": "0.95"}, "erm": {"alpha": "0.05", "method": "erm"}}
    for name, args in cases.items():
        trainer = build(tmp_path / name, data, depth=1, eval_strategy="steps", eval_steps=1, **args)
        trainer.train()
        assert trainer.verdict.feasible == (name != "not")
        assert (tmp_path / name / "best_feasible").exists() == (name == "feasible")
    best = UT.from_pretrained(tmp_path / "feasible" / "best_feasible")
    losses = series(tmp_path / "feasible", "loss", "validation")[:, -1]
    trainer = build(tmp_path / "again", data, depth=1)
    trainer.objective.model.load_state_dict(best.state_dict())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses.min().item(), rel=1e-6)


def test_a_new_training_in_a_folder_deletes_the_results_of_the_one_before(tmp_path, data):
    names = ("summary.json", "groups.json", "report.html")
    settings = {"depth": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = build(tmp_path, data, **settings)
    trainer.train()
    evaluate(trainer, Subset(data.test, range(4)))
    assert all((tmp_path / name).exists() for name in names)
    build(tmp_path, data, **settings).train(resume_from_checkpoint=True)
    assert all((tmp_path / name).exists() for name in names), "it goes on with the same training"
    (tmp_path / "best_feasible").mkdir(exist_ok=True)
    build(tmp_path, data, **settings).train()
    assert not any((tmp_path / name).exists() for name in (*names, "best_feasible"))
    found = Counter((row["step"], row["metric"], row["layer"]) for row in rows(tmp_path))
    assert set(found.values()) == {1}, "its records start anew"


def test_evaluation_moves_no_random_number(tmp_path, data):
    trainer = build(tmp_path, data)
    set_seed(3)
    before = torch.get_rng_state(), random.getstate()
    trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    trainers = [build(tmp_path / every, data, eval_strategy=every, eval_steps=1) for every in ("steps", "no")]
    for each in trainers:
        each.train()
    assert torch.equal(*map(weights, trainers))


def test_the_violation_that_is_logged_is_the_worst_in_force_the_caps_too(tmp_path, data):
    easy = {"alpha": "1e-9,1e-9", "first_layer": 1, "stop_gradient": True}
    trainer = build(tmp_path / "free", data, **easy)
    assert trainer.evaluate()["eval_violation"] == trainer.verdict.violations[1] != 0
    trainer = build(tmp_path / "cap", data, **easy, cap=0.25)
    assert trainer.evaluate()["eval_violation"] == trainer.verdict.cap_violation > 0.1


def test_a_second_train_is_a_new_run_whose_multipliers_go_on(tmp_path, data):
    settings = {"alpha": "0.05", "dual_optimizer": "sgd", "dual_warmup_steps": 0.4, "learning_rate": 0.0}
    trainer = build(tmp_path, data, depth=1, eval_strategy="steps", eval_steps=1, **settings)
    trainer.train()
    assert trainer.verdict.feasible and (tmp_path / "best_feasible").exists()
    trainer.dual._multipliers[1] = multiplier = 3.0
    trainer.args.max_steps = 30
    trainer.train()
    # The model is the same, and so is its loss: nothing of the first run may count as better.
    assert trainer.verdict.feasible and (tmp_path / "best_feasible" / "model.safetensors").exists()
    logged = series(tmp_path, "multiplier")
    assert len(logged) == 30 and 0 < logged[0, 1] < multiplier, "the constraint holds: λ falls from where it was"
    assert trainer.dual.steps == 33 and moves(tmp_path)[:2] == [True, True], "no second warm-up of 12"
