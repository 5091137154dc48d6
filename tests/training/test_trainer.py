"""DescentTrainer: ERM and the plain Trainer, faults, the dual's schedule, half precision, what it logs and keeps.

The steps themselves are compared with a loop by hand in `test_preset`.
"""

import math
import random
import re
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Subset
from transformers import TrainerCallback, set_seed

from descend import UT, DescentTrainer, InputError, NonFiniteLossError, evaluate
from descend.results import read_records
from tests.support import own, ranks
from tests.support.by_hand import bounds_by_hand
from tests.support.cases import slow
from tests.support.ranks import denoiser, fitted, scenes, weights


def series(folder, metric, split="train") -> torch.Tensor:
    """A metric by step and layer."""
    found: dict[int, list[float]] = {}
    for row in read_records(folder / "records.jsonl"):
        if (row.metric, row.split) == (metric, split):
            found.setdefault(row.step, []).append(row.value)
    return torch.tensor(list(found.values()), dtype=torch.float64)


# --- the step


def test_erm_is_bit_equal_to_multipliers_frozen_at_zero(tmp_path):
    cases = {
        "erm": {"method": "erm"},
        "never binding": {"alpha": "0.01", "cap": 1e9},
        "warming up": {"alpha": "0.6", "dual_warmup_steps": 2.0},  # its first dual step comes after its last of three
    }
    # A first layer descends, untrained.
    ended = {name: fitted(denoiser(tmp_path / name, depth=1, **args)) for name, args in cases.items()}
    assert ended["never binding"].dual.multipliers.tolist() == [0, 0]
    assert torch.equal(weights(ended["erm"]), weights(ended["warming up"]))
    assert torch.equal(weights(ended["erm"]), weights(ended["never binding"]))


@pytest.mark.parametrize(("every", "steps"), [("1", 1), ("2", 2), ("epoch", 3)])
def test_the_price_of_the_usual_bounds_is_that_of_a_loop_by_hand(tmp_path, every, steps):
    """From the logged losses alone; the rate is divided by the dual steps of the run, of 6 steps in 2 epochs.

    The mean of the losses is that of primal steps, however many there are to a dual step.
    """
    settings = {"strength": 0.5, "dual_every": every, "dual_lr": 2.0, "dual_optim_args": '{"start": 0.5}'}
    trainer = fitted(ranks.points(tmp_path, max_steps=6, logging_steps=1, learning_rate=0.05, **settings))
    losses, found = series(tmp_path, "loss"), trainer.dual.multipliers.tolist()
    assert losses.shape == (6, 4)
    lam, mean = [0.5] * 3, None
    rounds = losses.reshape(-1, steps, 4).mean(1).tolist()
    rounds = rounds[:-1] if every == "epoch" else rounds  # after the last epoch λ does not move
    kept = 0.95**steps
    for batch in rounds:
        mean = batch if mean is None else [kept * old + (1 - kept) * new for old, new in zip(mean, batch, strict=True)]
        bounds, _, _ = bounds_by_hand(batch, mean, 0.5, 0)
        moved = [(batch[layer] - bounds[layer]) / mean[layer - 1] * 2.0 / len(rounds) for layer in (1, 2, 3)]
        lam = [min(max(old + each, 0.0), 1.0) for old, each in zip(lam, moved, strict=True)]
    assert found == pytest.approx([0, *lam], rel=1e-5) and all(0.01 < abs(each - 0.5) < 0.49 for each in lam)


def test_a_window_of_the_log_over_the_end_of_warm_up_has_the_steps_after_it(tmp_path):
    """All layers over the same steps; the last one's losses in the warm-up, which are known too, are left out."""
    settings = {"dual_warmup_steps": 2, "max_steps": 4, "learning_rate": 0.02, "per_device_train_batch_size": 19}
    fine, coarse = (
        [
            [log.get(f"loss/{layer}", math.nan) for layer in range(4)]
            for log in fitted(ranks.language(tmp_path / str(every), logging_steps=every, **settings)).state.log_history
            if "loss/3" in log
        ]
        for every in (1, 4)
    )
    assert [[math.isfinite(loss) for loss in row] for row in fine[:3]] == [[False] * 3 + [True]] * 2 + [[True] * 4]
    assert coarse == [pytest.approx(np.mean(fine[2:], 0), rel=1e-6)]
    assert abs(coarse[0][3] - np.mean(fine, 0)[3]) > 1e-3


# --- half precision


@pytest.mark.parametrize(
    ("name", "settings"), [("classifier", {}), ("language", {}), ("language", {"gradient_checkpointing": True})]
)
def test_losses_are_summed_in_single_precision_under_autocast(tmp_path, name, settings):
    found = []
    for half in (False, True):
        trainer = ranks.MADE[name](
            tmp_path / str(half), bf16=half, max_steps=3, per_device_train_batch_size=8, **settings
        )
        seen = []
        trainer.objective.register_forward_hook(lambda *call, seen=seen: seen.append(call[-1]))
        trainer.train()
        assert {each.lagrangian.dtype for each in seen} == {torch.float32}
        assert trainer.dual.multipliers.dtype == torch.float64
        sums = torch.tensor([list(each.sums) for each in seen if not each.losses.first])
        assert len(sums) >= 2 and (sums != sums.bfloat16()).float().mean() > 0.8
        found.append((sums, trainer.dual.multipliers))
    (single, exact), (half, near) = found
    assert not torch.equal(single, half), "half precision was in force"
    torch.testing.assert_close(half, single, rtol=0.02, atol=0)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.02)


class Watch(TrainerCallback):
    """Parameters and λ after each step, and how many steps the dual has counted."""

    def on_step_end(self, args, state, control, **kwargs):
        self.rows.append((weights(self.trainer), self.trainer.dual.multipliers, self.trainer.dual.steps))


# A fused optimizer, Transformers' default, skips within: nobody is told.
@pytest.mark.parametrize(("every", "optim"), [(1, "adamw_torch_fused"), (2, "adamw_torch"), (1, "sgd")])
def test_a_step_that_the_scaler_skips_is_no_dual_step_and_its_losses_are_dropped(tmp_path, every, optim):
    trainer = ranks.classifier(
        tmp_path,
        optim=optim,
        per_device_train_batch_size=4,
        **{"dual_optimizer": "sgd", "dual_lr": 0.5, "dual_every": str(every), "dual_warmup_steps": 0.0},
        **{"resilience": 0.0, "slack": "implicit", "slack_lr": None},
    )
    # A loss above 2 at so large a scale overflows; after that the scale has fallen.
    with torch.no_grad():
        trainer.objective.model.library.classifier.weight.mul_(300)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120)
    trainer.add_callback(watch := Watch())
    watch.trainer, watch.rows = trainer, []
    before = weights(trainer)
    trainer.train()
    vectors, multipliers, steps = zip(*watch.rows, strict=True)
    moved = [not torch.equal(*pair) for pair in pairwise((before, *vectors))]
    assert moved == [False, True, True, True, True, True] and steps[:3] == (0, 1, 2)
    logs = [row for row in trainer.state.log_history if "violation/1" in row]
    violations = torch.tensor([[row[f"violation/{layer}"] for layer in (1, 2, 3)] for row in logs[:2]]).double()
    # The first of them is that of the first step that was taken: the skipped one has no losses to log. The batches are
    # of one size: every second step λ moves by the mean over the two that were taken.
    expected = (0.5 * violations[:every].mean(0)).clamp(min=0)
    torch.testing.assert_close(multipliers[every][1:], expected, rtol=1e-6, atol=1e-9)
    assert not torch.stack(multipliers[:every]).any()


# --- what can't be trained


def losing(folder, losses, **args) -> DescentTrainer:
    """A trainer of a user's model whose task has these losses."""
    task = own.Classes()
    task.losses = losses
    return ranks.points(folder, given={"task": task}, learning_rate=3e-3, **{"max_steps": 3} | args)


def negative(prediction, target):
    """As a likelihood's, which falls below 0 while it is learned."""
    return nn.functional.cross_entropy(prediction, target, reduction="none") - 9.0


def broken(folder, name) -> DescentTrainer:
    """A part of it is NaN: each layer from there on is named, and the samples of the step's two micro-batches."""
    trainer = ranks.MADE[name](folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3)
    trainer.objective.double()
    trainer.train()
    part = "feedforward" if name == "video" else ".1."
    with torch.no_grad():
        next(value for place, value in trainer.objective.model.named_parameters() if part in place).fill_(math.nan)
    assert trainer.dual.multipliers.max() > 0
    return trainer


def overflowing(folder) -> DescentTrainer:
    trainer = denoiser(folder)
    trainer.objective.model.feedforward.register_hook(lambda slope: slope + float("inf"))
    return trainer


class OwnLoss(DescentTrainer):
    """As many scripts around Transformers' Trainer have it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return nn.functional.cross_entropy(model(x=inputs["x"]), inputs["labels"])


class Inside(DescentTrainer):
    """It takes the loss from the model that it is given, and not from the one that gives a loss for every layer."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self.model(inputs["x"]).square().mean()


class Extra(own.ResidualMLP):
    """Its state dict holds more than tensors."""

    def get_extra_state(self):
        return {"version": 3}


class Stamped(own.ResidualMLP):
    """Its extra state is a tensor."""

    def get_extra_state(self):
        return torch.ones(2)

    def set_extra_state(self, state):
        """There is nothing to set."""


def unsavable(folder, kind=own.ResidualMLP, change=lambda network: None) -> DescentTrainer:
    """A module of a user's own that safetensors can't hold."""
    network = kind()
    change(network)
    return ranks.points(folder, given={"model": own.layers(network)})


def sharing(network) -> None:
    """Two parameters on one memory, in part."""
    network.head.weight = nn.Parameter(network.blocks[0].linear.weight.data[:3])


def frozen(folder, **given) -> DescentTrainer:
    network = own.mlp().requires_grad_(False)
    return ranks.points(folder, given={"model": own.layers(network, **given)})


def detached(folder) -> DescentTrainer:
    """Its readout takes no gradient back, and has nothing to learn of its own."""
    network = own.mlp()
    return ranks.points(
        folder, given={"model": own.layers(network, readout=lambda h: network.head(network.norm(h)).detach())}
    )


SPARSE = torch.eye(2).to_sparse()
QUANTIZED = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
UNSAVABLE = {
    "shared memory": (unsavable, {"change": sharing}, r"head\.weight.*share memory|blocks\.0.*share memory"),
    "extra state": (unsavable, {"kind": Extra}, r"Extra can't be saved: _extra_state .*a dict"),
    "sparse": (unsavable, {"change": lambda net: net.register_buffer("mask", SPARSE)}, "mask is a sparse tensor"),
    "quantized": (unsavable, {"change": lambda net: net.register_buffer("codes", QUANTIZED)}, r"codes, .*quint8"),
    "all frozen": (frozen, {}, "nothing to train: all parameters of ResidualMLP are frozen"),
    "no gradient": (detached, {}, "nothing to train: the loss of the last layer depends on no parameter"),
}


BROKEN = {name: "[1, 2]" if name == "video" else "[2, 3]" for name in ranks.MADE}
NEGATIVE = {
    "step": {},
    "α": {"alpha": 0.1},
    "ratio": {"alpha": 0.1, "form": "ratio"},
    "cap": {"alpha": 0.1, "cap": 1.0},
}
FAULTS = {
    **{
        name: (
            partial(broken, name=name),
            NonFiniteLossError,
            rf"step 1: .*loss of layer {re.escape(layers)}.*; samples (\d+, ){{3}}\d+\.",
        )
        for name, layers in BROKEN.items()
    },
    "gradient": (overflowing, NonFiniteLossError, r"step 1: .*gradient.*(nan|inf)"),
    **{
        f"negative loss, {name}": (
            partial(losing, losses=negative, **args),
            InputError,
            r"^step 1: .*got -\d.* at layer \d\. .*Add a constant.*No parameter has moved",
        )
        for name, args in NEGATIVE.items()
    },
    **{name: (partial(make, **args), InputError, words) for name, (make, args, words) in UNSAVABLE.items()},
    "own loss": (partial(ranks.points, kind=OwnLoss), InputError, r"compute_loss.*task=.*super\(\)\.compute_loss"),
    **{
        f"loss from inside, {method}": (
            partial(ranks.points, kind=Inside, method=method),
            InputError,
            "compute_loss must take the loss from DescentTrainer",
        )
        for method in ("constrained", "erm")
    },
}
"""What goes wrong → a trainer where it does, the error, and its words."""


def test_what_safetensors_can_hold_is_saved_as_it_is(tmp_path):
    """Weights that are one parameter, apart in one storage, or extra state that is a tensor."""
    network = Stamped()
    network.other = network.blocks[0]
    flat = torch.zeros(6)
    network.one, network.two = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])
    network.register_buffer("mask", SPARSE, persistent=False)
    trainer = fitted(ranks.points(tmp_path, given={"model": own.layers(network)}))
    trainer.save_model()
    saved = load_file(tmp_path / "model.safetensors")
    assert saved["_extra_state"].equal(torch.ones(2)) and {"one", "two"} <= saved.keys() and "mask" not in saved
    assert all(value.equal(network.state_dict()[name]) for name, value in saved.items())


IDLE = {
    "frozen head": ("no gradient reaches head.weight, head.bias:", lambda network: network.head.requires_grad_(False)),
    "unused": (
        "no gradient reaches spare.weight, spare.bias:",
        lambda network: setattr(network, "spare", nn.Linear(2, 2)),
    ),
    "frozen embedding": (None, lambda network: network.embed.requires_grad_(False)),
    "nothing": (None, lambda network: None),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_head_that_gets_no_gradient_is_named_once(tmp_path, caplog, name):
    words, change = IDLE[name]
    network = own.mlp()
    change(network)
    fitted(ranks.points(tmp_path, given={"model": own.layers(network)}))
    told = [record.getMessage() for record in caplog.records if "no gradient reaches" in record.getMessage()]
    assert [each.split(" they")[0] for each in told] == ([words] if words else [])


def test_a_frozen_head_of_transformers_is_named_unless_adapters_train_it(tmp_path, caplog):
    for task, named in ((None, True), ("SEQ_CLS", False)):
        caplog.clear()
        trainer = ranks.classifier(tmp_path / str(task))
        adapters = LoraConfig(target_modules=["q_lin"], task_type=task)
        model = get_peft_model(trainer.model, adapters)
        given = {"model": model, "task": None, "train_dataset": trainer.train_dataset, "eval_dataset": None}
        fitted(ranks.points(tmp_path / str(task), given={**given, "data_collator": trainer.data_collator}, max_steps=1))
        assert ("no gradient reaches base_model.model.pre_classifier.weight" in caplog.text) == named


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_stops_before_anything_moves(tmp_path, fault):
    make, error, words = FAULTS[fault]
    trainer = make(tmp_path)
    trainer.dual.end_epoch()  # as a second training does, which these are where slack has moved
    before = ranks.outcome(trainer)
    with pytest.raises(error, match=words) as raised:
        trainer.train()
    assert "\n" not in str(raised.value)
    after = ranks.outcome(trainer)
    assert all(torch.equal(after[key].nan_to_num(), before[key].nan_to_num()) for key in before if key != "losses")


def test_plain_training_needs_no_positive_losses_but_its_evaluation_does(tmp_path):
    trainer = fitted(losing(tmp_path, negative, method="erm"))
    for judge in (trainer.evaluate, partial(evaluate, trainer)):
        with pytest.raises(InputError, match=r"above 0 at every layer; got -\d.* at layer \d\."):
            judge(own.samples(8, 1))


@pytest.mark.parametrize("args", [{}, {"alpha": 0.1}])
def test_a_loss_of_exactly_zero_does_not_stop_a_run(tmp_path, args):
    trainer = fitted(losing(tmp_path, lambda prediction, target: 0.0 * prediction.sum(-1), **args))
    assert evaluate(trainer, own.samples(8, 1)).feasible and trainer.dual.multipliers.isfinite().all()


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
        slow(({"dual_warmup_steps": 0.25}, [0, 0, 1, 1, 1, 1, 1, 1])),
        slow(({"dual_every": "3"}, [0, 0, 1, 0, 0, 1, 0, 0])),
        ({"dual_every": "2", "dual_warmup_steps": 3.0}, [0, 0, 0, 0, 1, 0, 1, 0]),
        # Once an epoch: seen in the first log of the next one.
        slow(({"dual_every": "epoch"}, [0, 0, 0, 1, 0, 0, 1, 0])),
        ({"dual_every": "epoch", "dual_warmup_steps": 3.0}, [0, 0, 0, 0, 0, 0, 1, 0]),
    ],
)
def test_the_multipliers_move_when_they_are_due(tmp_path, args, expected):
    denoiser(tmp_path, alpha="0.6", max_steps=8, **args).train()
    assert moves(tmp_path) == [bool(each) for each in expected]


def test_a_second_train_is_a_new_run_whose_multipliers_go_on(tmp_path):
    settings = {"alpha": "0.05", "dual_optimizer": "sgd", "dual_warmup_steps": 0.4, "learning_rate": 0.0}
    trainer = fitted(denoiser(tmp_path, depth=1, eval_strategy="steps", eval_steps=1, **settings))
    assert trainer.verdict.feasible and (tmp_path / "best_feasible").exists()
    trainer.dual._multipliers[1] = multiplier = 3.0
    trainer.args.max_steps = 30
    trainer.train()
    # The model is the same, and so is its loss: nothing of the first run may count as better.
    assert trainer.verdict.feasible and (tmp_path / "best_feasible" / "model.safetensors").exists()
    logged = series(tmp_path, "multiplier")
    assert len(logged) == 30 and 0 < logged[0, 1] < multiplier, "the constraint holds: λ falls from where it was"
    assert trainer.dual.steps == 33 and moves(tmp_path)[:2] == [True, True], "no second warm-up of 12"


def test_a_second_train_ends_the_last_epoch_of_the_first(tmp_path):
    settings = {"alpha": "0.6", "dual_optimizer": "sgd", "dual_warmup_steps": 0.0, "learning_rate": 0.0}
    trainer = fitted(denoiser(tmp_path, dual_every="epoch", max_steps=6, logging_steps=1, **settings))
    ended = series(tmp_path, "multiplier")[-1]
    assert moves(tmp_path) == [False, False, False, True, False, False]  # epochs of three steps
    trainer.train()
    logged = series(tmp_path, "multiplier")
    assert not torch.equal(logged[0], ended) and moves(tmp_path)[1:] == [False, False, True, False, False]


# --- logs and records


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A trainer that logs and evaluates every second step, and its folder; step 4 is measured twice."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    trainer = fitted(denoiser(folder, logging_steps=2, max_steps=4, eval_strategy="steps", eval_steps=2))
    trainer.evaluate()
    return trainer, folder


def test_logs_name_every_layer_and_every_key_is_on_the_page(logged):
    history = logged[0].state.log_history
    logs = [log for log in history if "loss" in log]
    names = {
        *(f"{name}/{layer}" for name in ("loss", "weight", "multiplier") for layer in (0, 1, 2)),
        *(f"{name}/{layer}" for name in ("violation", "slack") for layer in (1, 2)),
    }
    assert [log["step"] for log in logs] == [2, 4]
    assert all(names == {name for name in log if "/" in name} for log in logs)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "logs.md").read_text("utf-8")
    keys = {re.sub(r"/\d+$", "/l", name) for log in history for name in log}
    named = set(re.findall(r"`([\w/]+)`", "".join(line.split("|")[1] for line in page.splitlines() if line[:1] == "|")))
    theirs = {"loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "train_loss", "train_runtime"}
    assert keys - theirs - {"train_samples_per_second", "train_steps_per_second"} <= named
    assert {name for name in named if "/" in name} <= keys


def test_records_have_each_row_once(logged):
    written = read_records(logged[1] / "records.jsonl")
    counts = Counter((row.step, row.split, row.layer, row.metric) for row in written)
    assert set(counts.values()) == {1}
    measured = {(step, metric) for step, split, _, metric in counts if split == "validation"}
    assert measured == {(step, metric) for step in (2, 4) for metric in ("loss", "rmse")}


def test_logged_losses_are_means_since_the_last_log(logged, tmp_path):
    denoiser(tmp_path, max_steps=4).train()
    expected = series(tmp_path, "loss").unflatten(0, (2, 2)).mean(1)
    torch.testing.assert_close(series(logged[1], "loss"), expected, rtol=1e-6, atol=0)


def test_a_run_is_told_of_constraints_that_ask_too_much(tmp_path, caplog):
    by_adam = {"dual_optimizer": "adam", "dual_lr": 0.3, "stop_gradient": True}
    denoiser(tmp_path, alpha="0.9", max_steps=15, dual_warmup_steps=1, **by_adam).train()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("descend")]
    assert [sentence.split(":")[0] for sentence in told] == ["step 11"] * 3, told
    assert "ask a last loss of at most" in told[0] and told[2].endswith("allow more slack by resilience.")


# --- what it keeps


def test_the_best_feasible_model_is_kept_and_no_other(tmp_path):
    cases = {"feasible": {"alpha": "0.05"}, "not": {"alpha": "0.95"}, "erm": {"alpha": "0.05", "method": "erm"}}
    for name, args in cases.items():
        trainer = denoiser(tmp_path / name, depth=1, eval_strategy="steps", eval_steps=1, **args)
        trainer.evaluate(Subset(scenes().test, range(4)))
        assert not (tmp_path / name / "best_feasible").exists(), "other data choose nothing"
        trainer.train()
        assert trainer.verdict.feasible == (name != "not")
        assert (tmp_path / name / "best_feasible").exists() == (name == "feasible")
    best = UT.from_pretrained(tmp_path / "feasible" / "best_feasible")
    losses = series(tmp_path / "feasible", "loss", "validation")[:, -1]
    trainer = denoiser(tmp_path / "again", depth=1)
    trainer.objective.model.load_state_dict(best.state_dict())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses.min().item(), rel=1e-6)


def test_a_new_training_in_a_folder_deletes_the_results_of_the_one_before(tmp_path):
    names = ("summary.json", "groups.json", "report.html")
    settings = {"depth": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = fitted(denoiser(tmp_path, **settings))
    evaluate(trainer, Subset(scenes().test, range(4)))
    assert all((tmp_path / name).exists() for name in names)
    denoiser(tmp_path, **settings).train(resume_from_checkpoint=True)
    assert all((tmp_path / name).exists() for name in names), "it goes on with the same training"
    (tmp_path / "best_feasible").mkdir(exist_ok=True)
    denoiser(tmp_path, **settings).train()
    assert not any((tmp_path / name).exists() for name in (*names, "best_feasible"))
    found = Counter((row.step, row.metric, row.layer) for row in read_records(tmp_path / "records.jsonl"))
    assert set(found.values()) == {1}, "its records start anew"


def test_evaluation_moves_no_random_number(tmp_path):
    trainer = denoiser(tmp_path)
    set_seed(3)
    before = torch.get_rng_state(), random.getstate()
    trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_the_violation_that_is_logged_is_the_worst_in_force_the_caps_too(tmp_path):
    easy = {"alpha": "1e-9,1e-9", "first_layer": 1, "stop_gradient": True}
    trainer = denoiser(tmp_path / "free", **easy)
    assert trainer.evaluate()["eval_violation"] == trainer.verdict.violations[1] != 0
    trainer = denoiser(tmp_path / "cap", **easy, cap=0.25)
    assert trainer.evaluate()["eval_violation"] == trainer.verdict.cap_violation > 0.1
