"""DescentConfig: settings of several types, from Python, a command line and a config.json, mean the same."""

import json
import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import numpy as np
import pytest
import torch
from transformers import HfArgumentParser, TrainingArguments

from descend import UT, DescentConfig, InputError, UTConfig
from descend.settings import METHODS, settings_of_others
from descend.training.config import REFUSED as NEVER

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


REFUSED = [
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
    ({"cap": 1.0}, "cap belongs to alpha"),
    ({"form": "ratio"}, "form belongs to alpha"),
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
    ({"num_train_epochs": 0.0}, "above 0; got -1 and 0.0"),
    *(({name: True}, f"{name} must be off") for name in NEVER),
]


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[str(given) for given, _ in REFUSED])
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


@pytest.mark.parametrize(
    ("given", "alpha"),
    [
        ({"alpha": "0.2"}, [0.2, 0.2, 0.2]),
        ({"alpha": "0.4", "alpha_decay": 0.5}, [0.4, 0.2, 0.1]),
        ({"alpha": "0.4", "alpha_decay": 0.5, "first_layer": 1}, [0.4, 0.4, 0.2]),  # layer 1: not in force
        ({"alpha": "0.3,0.2,0.1"}, [0.3, 0.2, 0.1]),
    ],
)
def test_alpha_is_a_number_a_schedule_or_a_list(tmp_path, given, alpha):
    assert DescentConfig(str(tmp_path), **given).problem(3).alpha == pytest.approx(alpha)


def test_the_depth_of_the_model_is_known_late(tmp_path):
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


def test_fields_of_transformers_keep_their_defaults(tmp_path):
    ours, theirs = asdict(DescentConfig(str(tmp_path))), asdict(TrainingArguments(str(tmp_path)))
    assert {name for name in theirs if ours[name] != theirs[name]} <= {"dataloader_pin_memory", "logging_dir"}


# --- a recipe's defaults depend on values, not on which flags were typed


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
