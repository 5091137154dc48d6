"""What trainers' settings mean; and which settings, data and models are refused, before the first step."""

import json
import math
import os
import re
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorWithPadding,
    HfArgumentParser,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from descend import UT, DescentConfig, DescentTrainer, InputError, Objective, UTConfig
from descend.models import MARK, LayeredClassifier
from descend.noise import GaussianNoise
from descend.run.training import planned_steps
from descend.settings import METHODS, settings_of_others
from descend.tasks.text import learn_tokenizer
from descend.training.config import REFUSED as NEVER
from descend.training.hf_hooks import refuse_arguments
from tests.support import own, ranks
from tests.support.networks import QUIET, causal, image_network, network, unsampled

LIST = [0.25, 0.5, 0.125]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (0.25, 0.25),
        (np.float32(0.25), 0.25),
        (torch.tensor(0.25), 0.25),
        (LIST, LIST),
        (tuple(LIST), LIST),
        (np.array(LIST, dtype=np.float32), LIST),
        (torch.tensor(LIST), LIST),
        ([np.float32(0.25), torch.tensor(0.5), 0.125], LIST),
        ("0.25", 0.25),  # a config.json of an older version
        ("0.25,0.5,0.125", LIST),
        (None, None),
    ],
    ids=repr,
)
def test_alpha_is_a_number_or_a_list_however_it_is_given(tmp_path, given, kept):
    args = DescentConfig(str(tmp_path), alpha=given)
    assert args.alpha == kept and type(args.alpha) is type(kept)
    written = json.loads(json.dumps(args.to_dict()))["alpha"]
    assert DescentConfig(str(tmp_path), alpha=written).alpha == kept
    if kept is not None:
        assert args.problem(3).alpha == (kept if isinstance(kept, list) else [kept] * 3)


SETTINGS = [
    *(({"alpha": each}, "alpha.*layer") for each in ("a", "0.1;0.2", ["0.1"], {"alpha": 0.1})),
    *(({"dual_every": each}, "'epoch'.*got ") for each in (1.5, "1.5", "often", "²", None)),
    *(
        ({name: "0.8"}, f"{name} must be a number; got the text '0.8'")
        for name in ("strength", "dual_lr", "resilience", "learning_rate", "eval_accumulation_steps")
    ),
    ({"method": "contrained"}, "method must be one of constrained, .*'contrained' .did you mean constrained"),
    ({"strength": 2}, r"strength must lie in \[0, 1\]; got 2"),
    ({"strength": True}, "strength must be a number; got True"),
    ({"alpha": 1.0}, "alpha must lie strictly between 0 and 1"),
    ({"alpha": [0.2, 0.0]}, "alpha must lie strictly between 0 and 1"),
    ({"alpha": []}, "alpha must be one number or one per layer"),
    ({"alpha": 0.1, "strength": 0.2}, "strength and alpha are two ways"),
    ({"alpha": 0.1, "alpha_decay": 0.0}, "alpha_decay must lie in"),
    ({"alpha": [0.3, 0.2], "alpha_decay": 0.5}, "alpha_decay makes a schedule of one alpha"),
    ({"alpha": 0.1, "dual_optimizer": "fixed", "resilience": 0.1}, "a fixed penalty is on .* a resilience of 0.1"),
    ({"alpha": 0.1, "dual_optimizer": "fixed", "slack": "explicit"}, "a fixed penalty is on .* slack 'explicit'"),
    ({"cap": 1.0}, "cap belongs to alpha"),
    ({"form": "ratio"}, "form belongs to alpha"),
    ({"after": 0}, "after must be at least 1; got 0"),
    ({"after": 3, "strength": 0.2}, "after sets the bounds: leave strength out"),
    ({"after": 3, "stop_gradient": False}, "no gradient flows through the bounds of after"),
    ({"after": 3, "first_layer": 1}, "first_layer goes with after and alpha, .* got 1 with after 3"),
    ({"after": 3, "alpha": 0.1, "first_layer": 3}, "must then be below after; got 3"),
    ({"after": 3, "alpha": [0.1, 0.2]}, "with after, alpha is one number"),
    ({"after": 3, "alpha": [0.1, 0.2, 0.1, 0.1]}, "with after, alpha is one number"),
    ({"after": 3, "alpha": 0.1, "cap": 2.0}, "with after, alpha is one number, and alpha_decay, cap"),
    ({"within": -0.1}, "within must be at least 0; got -0.1"),
    ({"within": 0.1, "after": 2}, "within sets the bounds: leave after out"),
    ({"within": 0.1, "alpha": 0.1, "strength": 0.1}, "strength and alpha are two ways"),
    ({"within": 0.1, "stop_gradient": False}, "no gradient flows through the bounds of within"),
    ({"within": 0.1, "method": "useful"}, "within states bounds, and the method useful is not judged by any"),
    ({"after": 3, "method": "useful"}, "after states bounds, and the method useful is not judged by any"),
    ({"method": "erm", "alpha": 2.0}, "alpha must lie strictly between 0 and 1"),
    ({"alpha_decay": 0.5}, "alpha_decay belongs to alpha"),
    ({"alpha": 0.1, "cap": -1.0}, "cap must be a positive bound"),
    ({"alpha": 0.1, "cap": 1.0, "cap_layer": -1}, "cap_layer must be from 0"),
    ({"alpha": 0.1, "cap": 1.0, "cap_layer": 0.5}, "cap_layer must be a whole number; got 0.5"),
    ({"first_layer": -1}, "first .--first-layer. must be from 0"),
    ({"alpha": [0.1, 0.2], "first_layer": 2}, "first .--first-layer. must be from 0 to depth - 1 = 1"),
    ({"form": "ration"}, "form must be one of difference, ratio; got 'ration' .did you mean ratio"),
    ({"stop_gradient": "false"}, "stop_gradient must be True or False; got 'false'"),
    ({"dual_lr": 0.0, "method": "erm"}, "a learning rate of the dual must be a positive number"),
    ({"dual_optimizer": "adan"}, "dual_optimizer must be one of .*did you mean adam"),
    ({"dual_optim_args": "{"}, "dual_optim_args must be a JSON object"),
    ({"dual_optim_args": "[5]"}, "dual_optim_args must be a JSON object"),
    ({"dual_optim_args": '{"lr": 5}'}, "arguments other than lr"),
    ({"dual_optim_args": {"price": 1.0}}, "dual_optim_args must be a JSON object"),
    ({"dual_optim_args": '{"nu": 0.5}'}, "'price' does not take these options: .*'nu'"),
    ({"dual_optim_args": '{"horizon": 9}'}, "'price' does not take these options: .*'horizon'"),
    ({"dual_optim_args": '{"kp": "5"}', "dual_optimizer": "nupi"}, "kp of the dual optimizer must be a number"),
    ({"dual_optim_args": '{"betas": [0.9]}', "dual_optimizer": "adam"}, "'adam' does not take these options"),
    ({"dual_optim_args": '{"kp": null}', "dual_optimizer": "nupi"}, "'nupi' does not take these options"),
    ({"dual_optim_args": '{"capturable": true}', "dual_optimizer": "adam"}, "'adam' does not take these options"),
    ({"dual_every": 0}, "every .--dual-every. must be a number of steps, at least 1"),
    ({"dual_warmup_steps": -1.0}, "dual_warmup_steps must be at least 0"),
    ({"dual_warmup_steps": math.inf}, "dual_warmup_steps must be at least 0, and finite"),
    ({"dual_warmup_epochs": math.nan}, "dual_warmup_epochs must be at least 0, and finite"),
    ({"dual_warmup_epochs": 1.0, "dual_warmup_steps": 1.0}, "the same in two units"),
    ({"resilience": -0.1}, "resilience must be 0"),
    ({"slack": "explict"}, "slack must be one of implicit, explicit"),
    ({"slack": "explicit"}, "explicit slack needs a positive resilience"),
    ({"slack_lr": 0.0}, "slack_lr must be a number above 0"),
    ({"slack_optimizer": "price"}, "slack_optimizer must be one of sgd, adam, nupi"),
    ({"r_drop": -1.0}, "r_drop must be at least 0"),
    ({"layer_dropout": 1.0}, "layer_dropout must be a rate"),
    ({"layer_dropout_schedule": "slow"}, "layer_dropout_schedule must be one of exponential, constant"),
    ({"exit_curriculum": "rotate"}, "exit_curriculum must be one of rotating, gradual"),
    ({"exit_rotation": 0}, "exit_rotation must be at least 1"),
    ({"exit_scale": math.inf}, "exit_scale must be at least 0, and finite"),
    ({"calibrate": "no"}, "calibrate must be True or False"),
    ({"preset": "papr"}, "preset must be one of paper"),
    ({"method": "layerskip", "torch_compile": True}, "torch_compile .* must be off: the method layerskip"),
    ({"method": "probe", "exits": "shared"}, "the method probe trains own exits; got exits shared"),
    *(
        ({"neftune_noise_alpha": each}, "neftune_noise_alpha must be a number above 0")
        for each in (0.0, -1.0, math.inf)
    ),
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor must be 0"),
    ({"patience": 0}, "patience must be at least 1"),
    ({"patience": 2}, "patience .* eval_strategy no"),
    ({"patience": 2, "eval_strategy": "steps", "save_strategy": "epoch"}, "eval_strategy steps .* save_strategy epoch"),
    ({"patience": 2, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 3}, r"eval_steps 1\).*save_steps 3\)"),
    ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be at least 1; got 0"),
    ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be at least 1; got 0"),
    ({"learning_rate": -1.0}, "learning_rate .*-1.0"),
    ({"max_grad_norm": math.nan}, "max_grad_norm .*nan"),
    ({"save_total_limit": -3}, "save_total_limit .*-3"),
    ({"num_train_epochs": 0.0}, "above 0, or left out; got 0.0"),
    *(({name: True}, f"{name} must be off") for name in NEVER),
]


@pytest.mark.parametrize(("given", "words"), SETTINGS, ids=[str(given) for given, _ in SETTINGS])
def test_a_setting_that_cant_be_is_refused_when_it_is_given(tmp_path, given, words):
    """By keyword, from JSON, and assigned later: the trainer's own door."""
    later = DescentConfig(str(tmp_path))
    vars(later).update(given)
    (tmp_path / "args.json").write_text(json.dumps({"output_dir": str(tmp_path), **given}))
    doors = (
        lambda: DescentConfig(str(tmp_path), **given),
        lambda: HfArgumentParser(DescentConfig).parse_json_file(tmp_path / "args.json"),
        lambda: DescentConfig.of(later),
    )
    for door in doors:
        with pytest.raises(InputError, match=words) as error:
            door()
        assert "\n" not in str(error.value)


def test_alpha_alone_is_projected_ascent_through_both_sides_with_a_cap_from_the_first_losses(tmp_path):
    trainer = ranks.points(tmp_path, alpha=0.1)
    args, problem = trainer.args, trainer.dual.problem
    assert [args.resolved(name) for name in ("dual_optimizer", "dual_lr", "resilience")] == ["sgd", 0.03, 0.05]
    with torch.no_grad():  # of the embedded input, on all 24 samples
        samples = own.samples(24)
        batch = {"x": torch.stack([each["x"] for each in samples])}
        logits = next(iter(trainer.objective.model.predictions(batch)))
        first = nn.functional.cross_entropy(logits, torch.tensor([each["labels"] for each in samples])).item()
    assert problem.cap == args.cap == pytest.approx(1.1 * first, rel=1e-5) and not problem.stop_gradient
    assert problem.in_force.all() and trainer.trained.problem["cap"] == args.cap  # which is saved with the model
    trainer.train()
    assert trainer.evaluate() and trainer.verdict.cap == args.cap
    given = ranks.points(tmp_path, alpha=0.1, stop_gradient=True).dual.problem
    assert given.cap is None and given.stop_gradient
    plain = ranks.points(tmp_path, alpha=0.1, method="erm").args
    assert plain.cap is None and DescentConfig.paper("video-ut", str(tmp_path)).dual_optimizer == "adam"


@pytest.mark.parametrize(("asked", "layer"), [({"first_layer": 1}, 1), ({"cap_layer": 2}, 2)])
def test_the_cap_is_that_of_the_exit_it_bounds_under_the_training_noise(tmp_path, asked, layer):
    noise = {"noise": GaussianNoise(1.0, 2.0, seed=0)}
    clean, noisy = (ranks.points(tmp_path, given=given, alpha=0.1, **asked) for given in ({}, noise))
    with torch.no_grad():
        samples = own.samples(24)
        batch, labels = (
            {name: torch.stack([torch.as_tensor(each[name]) for each in samples])} for name in ("x", "labels")
        )
        losses = [
            nn.functional.cross_entropy(each, labels["labels"]).item()
            for each in clean.objective.model.predictions(batch)
        ]
    assert clean.args.cap == pytest.approx(1.1 * losses[layer], rel=1e-5)
    noisy.objective.eval()
    measured = noisy._measure(noisy.measurer.batches(noisy.evaluation_collator()).loader(samples)).losses.mean(0)[layer]
    assert noisy.args.cap == pytest.approx(1.1 * measured.item(), rel=1e-5)
    assert abs(noisy.args.cap - clean.args.cap) > 0.01


class Stream(torch.utils.data.IterableDataset):
    """Points that can't be read twice."""

    def __iter__(self):
        return iter(own.samples(24))


def test_where_the_first_losses_are_not_known_alpha_alone_asks_for_a_cap(tmp_path, caplog):
    trainer = ranks.points(tmp_path, given={"train_dataset": Stream()}, alpha=0.1)
    assert "can't be measured here before training" in caplog.text and "Give a cap" in caplog.text
    assert trainer.dual.problem.cap is None and trainer.dual.problem.stop_gradient


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"alpha": 0.1, "stop_gradient": False}, True),
        ({"alpha": 0.1, "stop_gradient": False, "form": "ratio", "first_layer": 1}, True),
        ({"alpha": 0.1, "stop_gradient": False, "cap": 3.0}, False),
        ({"alpha": 0.1}, False),
        ({"stop_gradient": False}, False),  # our own bounds give no layer a negative weight
        ({"alpha": 0.1, "stop_gradient": False, "method": "erm"}, False),
    ],
)
def test_alpha_through_both_sides_without_a_cap_is_told_at_the_start(tmp_path, caplog, given, told):
    ranks.points(tmp_path, **given)
    words = f"without a cap pays each layer but the last .* layer {given.get('first_layer', 0)}\\."
    assert [bool(re.search(words, record.getMessage())) for record in caplog.records] == [True] * told


def test_alpha_may_decay_and_the_depth_of_the_model_is_known_late(tmp_path):
    for first, alpha in ((0, [0.4, 0.2, 0.1]), (1, [0.4, 0.4, 0.2])):  # layer 1: not in force
        args = DescentConfig(str(tmp_path), alpha=0.4, alpha_decay=0.5, first_layer=first)
        assert args.problem(3).alpha == pytest.approx(alpha)
    deep = DescentConfig(str(tmp_path), alpha=[0.1] * 40, first_layer=30, cap=1.0, cap_layer=40)
    assert deep.problem(40).first == DescentConfig(str(tmp_path), first_layer=30).problem(31).first == 30
    assert DescentConfig(str(tmp_path)).problem(1, first=1).in_force.tolist() == [False, True]


@pytest.mark.parametrize(
    ("warmup", "every", "steps", "expected"),
    [
        # Below 1 it is a share of all steps.
        *((0, 1, 8, 0), (0.25, 1, 8, 2), (0.99, 1, 400, 396), (1, 1, 8, 1), (3.0, 1, 8, 3), (7, 1, 8, 7)),
        *((8, 1, 8, None), (50, 1, 8, None), (0.95, 1, 8, None), (0.6, 1, 1, None), (1, 1, 1, None)),
        *((0, 100, 4, None), (0, 4, 4, 0), (1, 4, 4, None)),
        # An epoch has three steps, and its dual step is taken where the next one begins.
        *((0, "epoch", 3, None), (0, "epoch", 4, 0), (3, "epoch", 6, None), (3, "epoch", 7, 3)),
    ],
)
def test_a_warmup_leaves_the_constraints_a_dual_step(tmp_path, warmup, every, steps, expected):
    args = {"output_dir": str(tmp_path), "dual_every": every, "dual_warmup_steps": warmup}
    assert DescentConfig(method="erm", **args).warmup(steps, 3) >= 0
    with (
        pytest.raises(InputError, match=rf"\d+ of {steps} .* dual_every {every}") if expected is None else nullcontext()
    ):
        assert DescentConfig(**args).warmup(steps, 3) == expected


@pytest.mark.parametrize("given", [{}, {"gradient_accumulation_steps": 2}, {"dataloader_drop_last": True}])
@pytest.mark.parametrize("length", [{"max_steps": -1, "num_train_epochs": 2.5}, {"max_steps": 7}])
def test_the_steps_that_a_warmup_is_checked_against_are_those_of_the_training(tmp_path, given, length):
    """Of nine samples in batches of four: epochs end with a shorter batch, or without it."""
    trainer = ranks.points(
        tmp_path, per_device_train_batch_size=4, given={"train_dataset": own.samples(9)}, **given | length
    )
    trainer.train()
    of_epoch = trainer.step.steps_of_epoch
    assert planned_steps(trainer.args, 9) == (trainer.state.max_steps, of_epoch)


def test_fields_of_transformers_keep_their_defaults(tmp_path):
    ours, theirs = asdict(DescentConfig(str(tmp_path))), asdict(TrainingArguments(str(tmp_path)))
    assert {name for name in theirs if ours[name] != theirs[name]} <= {"dataloader_pin_memory", "logging_dir"}


# --- a recipe's defaults depend on values, not on which flags were typed


def test_a_fixed_penalty_has_no_slack(tmp_path):
    dual = DescentConfig(str(tmp_path), alpha=0.1, dual_optimizer="fixed").primal_dual(2)
    for _ in range(3):
        dual.step(torch.tensor([1.0, 0.92, 0.82]))
        assert dual.multipliers.tolist() == [0, 1, 0]


def test_the_dual_rate_of_after_is_that_of_its_rule(tmp_path):
    rates = {None: 0.05, "sgd": 0.05, "price": 500.0, "fixed": 1.0, "adam": 0.03}
    for rule, rate in rates.items():
        assert DescentConfig(str(tmp_path), after=3, dual_optimizer=rule).resolved("dual_lr") == rate
    assert DescentConfig(str(tmp_path), after=3, dual_lr=0.2).resolved("dual_lr") == 0.2


@pytest.mark.parametrize(
    ("settings", "strength", "options"),
    [
        ({}, 0.7, '{"start": 0}'),
        ({"alpha": 0.1}, None, None),
        ({"alpha": 0.1, "dual_optimizer": "price"}, None, '{"start": 0}'),
        ({"dual_optimizer": "adam"}, 0.7, None),
        ({"strength": 0.3, "dual_optim_args": '{"price": 2.0}'}, 0.3, '{"price": 2.0}'),
    ],
)
def test_a_recipes_defaults_go_where_they_suit_the_problem(tmp_path, settings, strength, options):
    args = DescentConfig(str(tmp_path), **settings)
    args.fill({"strength": 0.7, "dual_optim_args": '{"start": 0}'})
    assert (args.strength, args.dual_optim_args) == (strength, options)
    args.primal_dual(3)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, 1),  # exit 0 of UT is the noisy input itself, which no layer changes
        ({"alpha": 0.1}, 0),  # the paper's chain starts at the input, also that of UT
        ({"alpha": [0.1, 0.2, 0.3], "cap": 5.0}, 0),
        ({"alpha": 0.1, "first_layer": 1}, 1),
        ({"first_layer": 0}, 0),
        ({"first_layer": 2}, 2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("method", ["constrained", "erm"])
def test_where_the_chain_of_ut_starts(tmp_path, settings, first, method):
    args = DescentConfig(str(tmp_path), method=method, **settings)
    model = UT(UTConfig(depth=3))
    problem = args.problem(model.depth, model.first_layer)
    assert (problem.first, problem.target.first) == (first, first)
    assert problem.in_force.tolist() == ["cap" in settings, *(layer > first for layer in (1, 2, 3))]
    trained = args.primal_dual(model.depth, model.first_layer).problem
    assert torch.equal(trained.in_force, problem.in_force) is (method == "constrained")


@dataclass
class Mine(DescentConfig):
    """Of a user's, with a type that is there for type checkers alone."""

    where: "Nowhere | None" = None  # noqa: F821


def test_a_subclass_may_name_types_for_type_checkers_alone(tmp_path):
    assert Mine(str(tmp_path)).where is None
    with pytest.raises(InputError, match="r_drop must be at least 0; got -1"):
        Mine(str(tmp_path), r_drop=-1.0)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_says_which_settings_it_does_not_use(tmp_path, method):
    idle = DescentConfig(str(tmp_path), method=method).idle
    assert not idle & (METHODS[method] | {"exits", "calibrate", "patience"})
    assert idle >= settings_of_others(method)
    assert (idle >= {"strength", "alpha_decay", "resilience", "dual_lr"}) == (method not in ("constrained", "useful"))


# --- what trainers refuse, each in one line


BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2}


class NoStep(TrainerCallback):
    """A refusal comes before the first step."""

    def on_step_begin(self, args, state, control, **kwargs):
        raise AssertionError("a step was begun")


def rows(count=20, without=(), **changes):
    """Texts of 5 tokens in two classes; of a field named in ``changes`` one sample has another value."""
    made = [{"input_ids": [5, 6, 7, 8, 9], "attention_mask": [1] * 5, "labels": n % 2} for n in range(count)]
    for name, (place, value) in changes.items():
        made[place][name] = value
    return [{name: each[name] for name in each if name not in without} for each in made]


def texts(folder, data=None, model=None, args=None, **given):
    """A trainer of a classifier of texts."""
    usual = {
        **{"train_dataset": data or rows(), "eval_dataset": None, "data_collator": DataCollatorWithPadding(TOKENIZER)},
        **{"model": network("distilbert", labels=2) if model is None else model, "task": None},
        "callbacks": [NoStep()],
    }
    return ranks.points(folder, given=usual | given, **{"max_steps": 2} | (args or {}))


def language(folder, model, **given):
    """Transformers' trainer of a language model."""
    data = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 4
    return texts(folder, data, model, data_collator=default_data_collator, **given)


def images(folder, data):
    return texts(folder, data, image_network(), data_collator=default_data_collator)


TOKENIZER = learn_tokenizer(["a text"])
TOKENIZER.eos_token = TOKENIZER.sep_token
LORA = LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin"])
PROMPT = PromptTuningConfig(
    task_type=TaskType.SEQ_CLS, num_virtual_tokens=3, token_dim=16, num_transformer_submodules=1, num_attention_heads=2,
    num_layers=3,
)  # fmt: skip
UNSAVABLE = mock.Mock(spec=["save_pretrained"], **{"save_pretrained.side_effect": TypeError("no JSON")})
ARGS = DescentConfig("unused", **QUIET)


def balancing():
    model = image_network()
    model.loss_function = lambda labels, logits, config, **others: logits.sum()
    return model


class Short(DescentTrainer):
    """Its loader has a single sample, of which evaluation knows no spread."""

    def get_eval_dataloader(self, eval_dataset=None):
        return DataLoader(own.samples(1), batch_size=4)


def unmade(folder):
    """An optimizer from before the model had own exits."""
    model = network("distilbert", labels=2)
    return texts(
        folder, model=model, args={"method": "probe"}, optimizers=(torch.optim.AdamW(model.parameters()), None)
    )


def without_exits(folder):
    """A folder that should hold own exits, and does not."""
    model = network("bert")
    setattr(model.config, MARK, True)
    model.save_pretrained(folder)
    return Objective(type(model).from_pretrained(folder))


class OldLoss(DescentTrainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return super().compute_loss(model, inputs, return_outputs)


REFUSED = [
    # data
    (lambda f: texts(f, rows(labels=(7, 2))), r"sample 7.*label 2.*0 … 1"),
    (lambda f: texts(f, eval_dataset=rows(without=["labels"])), r"labels or label or label_ids.*input_ids"),
    (lambda f: texts(f, [{"text": "a", "label": 0}] * 4), r"input_ids.*text, label"),
    (lambda f: texts(f, eval_dataset=rows(input_ids=(5, [5, 43, 6, 7, 8]))), r"sample 5.*token 43.*40"),
    (lambda f: texts(f, rows(input_ids=(3, [5] * 70), attention_mask=(3, [1] * 70))), r"sample 3.*70 tokens.*20"),
    (lambda f: texts(f, rows(input_ids=(2, []), attention_mask=(2, []))), r"sample 2.*token"),
    (lambda f: texts(f, [row | {"labels": str(row["labels"])} for row in rows()]), r"label.*whole numbers"),
    (lambda f: texts(f, [row | {"labels": [0.0, 1.0]} for row in rows()]), r"label.*whole numbers"),
    (lambda f: images(f, [{"pixel_values": torch.zeros(1, 8, 8), "labels": 0}] * 2), r"3 channels.*\(1, 8, 8\)"),
    (lambda f: images(f, [{"input_ids": [5, 6], "labels": 0}] * 2), r"pixel_values.*input_ids"),
    (lambda f: images(f, [{"pixel_values": torch.zeros(3, 8, 8), "labels": 3}] * 2), r"label 3.*0 … 2"),
    (lambda f: ranks.language(f, model=causal(vocab_size=39)), r"sample \d+ .*token 39.*39 rows"),
    (lambda f: ranks.language(f, model=causal(max_position_embeddings=8)), "at most 8"),
    (lambda f: texts(f, eval_dataset=rows(1), args=BY_STEPS), "eval_dataset must hold at least 2 samples; got 1"),
    (lambda f: texts(f, eval_dataset={"dev": rows(0)}, args=BY_STEPS), "dev must hold at least 2 samples; got 0"),
    (lambda f: texts(f).evaluate(rows(0)), "at least one target"),
    (lambda f: texts(f).evaluate(rows(1)), "at least 2 samples .*; got 1"),
    (lambda f: texts(f).evaluate(IterableDataset.from_generator(lambda: iter(()))), "at least one target"),
    (lambda f: texts(f).evaluate(), "eval_dataset"),
    (lambda f: texts(f, eval_dataset={"one": rows()}).evaluate("two"), "eval_dataset.*one.*'two'"),
    # arguments
    *(
        (
            lambda f, place=place: DescentConfig(place),
            r"a folder to write to; .*\.py is a file\. Choose another output_dir",
        )
        for place in (__file__, f"{__file__}/run")
    ),
    (lambda f: DescentConfig.paper("video-vae"), "video-ut, video-dust"),
    (lambda f: DescentConfig.paper("text-ut", dataset="sst2"), r"dataset.*imdb.*mnli.*'sst2'"),
    (lambda f: texts(f, compute_loss_func=lambda *_: 0), "compute_loss_func"),
    (lambda f: texts(f, model_init=lambda: None), "model_init"),
    (lambda f: ranks.points(f, kind=OldLoss), "OldLoss.compute_loss must take num_items_in_batch"),
    (lambda f: ranks.points(f, activation_checkpointing=True), "needs a model with gradient_checkpointing_enable"),
    (
        lambda f: DescentConfig(str(f), inner_weight=0.3),
        "inner_weight is a setting of the method linear; the method is constrained",
    ),
    (
        lambda f: DescentConfig(str(f), method="linear", r_drop=3.0),
        "method r-drop; the method is linear",
    ),
    (lambda f: texts(f, args={"include_for_metrics": ["inputs"]}), r"include_for_metrics.*inputs"),
    (
        lambda f: texts(f, eval_dataset=rows(), args=BY_STEPS | {"metric_for_best_model": "f1"}),
        "of accuracy, feasible, loss, merit, violation; got 'f1'",
    ),
    (
        lambda f: texts(f, eval_dataset={"a": rows()}, args=BY_STEPS | {"metric_for_best_model": "eval_f1"}),
        "a_accuracy, .*, a_violation; got 'f1'",
    ),
    (lambda f: ranks.points(f, given={"noise": True}), "noise must be a level γ of at least 0, and finite; got True"),
    (unmade, "the optimizer does not hold the own exits"),
    # models
    (lambda f: ranks.points(f, given={"model": nn.Linear(2, 2)}), "Linear"),
    (lambda f: DescentTrainer(None, DescentConfig(str(f), **QUIET)), "expected a model; got None"),
    (lambda f: texts(f, model=network("distilbert", labels=2, problem_type="regression")), "problem_type 'regression'"),
    (lambda f: Objective(balancing()), r"ViT.*loss"),
    (lambda f: LayeredClassifier(get_peft_model(network("distilbert"), PROMPT)), r"adapters.*virtual tokens"),
    (without_exits, "own exits; their weights are not in"),
    (lambda f: ranks.points(f, method="probe"), "own exits are copies of the head of a model of Transformers"),
    (
        lambda f: texts(f, model=get_peft_model(network("distilbert"), LORA), args={"exits": "own"}),
        "would not be saved beside adapters",
    ),
    (
        lambda f: language(f, causal(), args={"head_lr_ratio": 2.0}),
        "head_lr_ratio is of a classifier's head and own exits",
    ),
    (lambda f: ranks.denoiser(f, method="r-drop"), r"r-drop.*classification"),
    (lambda f: ranks.denoiser(f, method="neftune"), r"neftune.*UT"),
    (lambda f: ranks.denoiser(f, method="layerskip"), r"layerskip.*UT has 0.*2 layers"),
    (lambda f: texts(f, args={"method": "neftune"}), "neftune.*--neftune-noise-alpha"),
    # TRL's
    (lambda f: ranks.language(f, exit_share=0.0), r"\(0, 1\].*got 0"),
    (lambda f: ranks.language(f, exit_share=2.0), r"\(0, 1\].*got 2"),
    (lambda f: ranks.language(f, alpha="2"), "alpha"),
    (lambda f: ranks.language(f, loss_type="dft"), r"loss_type.*nll"),
    (lambda f: ranks.language(f, trust_remote_code=True), "trust_remote_code must be off"),
    (lambda f: ranks.language(f, gradient_checkpointing_kwargs={"use_reentrant": True}), "use_reentrant off"),
    (lambda f: ranks.language(f, gradient_checkpointing_kwargs='{"use_reentrant": true}'), "use_reentrant off"),
    (lambda f: ranks.language(f, model=nn.Linear(2, 2)), r"causal.*Linear"),
    (lambda f: ranks.language(f, model=network("bert")), "model_type must be one of"),
    (lambda f: ranks.language(f, peft=LoraConfig(task_type="CAUSAL_LM", target_modules=["nothing"])), "nothing"),
    (lambda f: ranks.language(f, model="nowhere/at/all"), "nowhere/at/all"),
    (
        lambda f: ranks.language(f, model="nowhere", model_init_kwargs={"trust_remote_code": True}),
        "model_init_kwargs must leave trust_remote_code off",
    ),
    (
        lambda f: ranks.language(f, model=causal("qwen3_moe"), router_aux_loss_coef=0.001),
        r"balances the experts.*router_aux_loss_coef=0",
    ),
    # before the first step
    (lambda f: texts(f, rows(3), args={"dataloader_drop_last": True}).train(), "at least one batch"),
    (lambda f: texts(f, rows(3), args={"dataloader_drop_last": True, "max_steps": -1}).train(), "at least one batch"),
    (lambda f: language(f, unsampled()).train(), "its generation_config: .*temperature.*do_sample"),
    (lambda f: texts(f, processing_class=UNSAVABLE).train(), "its tokenizer: no JSON"),
    (lambda f: ranks.points(f, Short, **BY_STEPS).train(), "at least 2 samples .*; got 1"),
    (lambda f: ranks.points(f).train(resume_from_checkpoint=True), "has no whole checkpoint to go on from"),
    # As torchrun starts processes without --use-cpu, where there is no GPU for each; and several GPUs in one.
    (mock.patch.dict(os.environ, WORLD_SIZE="2")(lambda f: refuse_arguments(DescentTrainer, ARGS, {})), "2 processes"),
    (mock.patch.object(DescentConfig, "n_gpu", 2)(ranks.points), r"GPU.*got 2"),
    (
        mock.patch.object(TrainingArguments, "world_size", property(lambda self: 2))(lambda f: ranks.points(f, Short)),
        r"get_eval_dataloader.*several processes.*data_collator",
    ),
    (
        mock.patch.dict(os.environ, ACCELERATE_DYNAMO_BACKEND="EAGER")(
            lambda f: texts(f, args={"method": "layerskip"})
        ),
        r"dynamo_backend.*layerskip",
    ),
    # How many steps an epoch has is known once it begins.
    *(
        (
            lambda f, late=late: texts(f, args=late | {"num_train_epochs": 1, "max_steps": -1}).train(),
            "of 3 steps of warm-up and dual_every",
        )
        for late in ({"dual_every": 100}, {"dual_every": "epoch"}, {"dual_warmup_steps": 3.0})
    ),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_it_is_refused_in_one_line(tmp_path, make, words):
    with pytest.raises(InputError, match=words) as error:
        make(tmp_path)
    assert "\n" not in str(error.value)
