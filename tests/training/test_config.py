"""DescentConfig: settings of several types, from Python, a command line and a config.json, mean the same."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from transformers import HfArgumentParser, TrainingArguments

from descend import UT, DescentConfig, InputError, UTConfig
from descend.cli.settings import read_recipe
from descend.core import DescentProblem
from descend.recipes import RECIPES

LIST = [0.25, 0.5, 0.125]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (0.25, 0.25),
        (1, 1.0),
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
    if kept not in (None, 1.0):
        assert args.problem(3).alpha == (kept if isinstance(kept, list) else [kept] * 3)


@pytest.mark.parametrize("given", ["a", "0.1;0.2", ["0.1"], {"alpha": 0.1}, 1j], ids=repr)
def test_alpha_of_another_type_is_one_clear_line(tmp_path, given):
    with pytest.raises(InputError, match=r"alpha.*layer") as error:
        DescentConfig(str(tmp_path), alpha=given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["strength", "dual_lr", "resilience", "learning_rate", "eval_accumulation_steps"])
def test_a_text_in_place_of_a_number_is_one_clear_line(tmp_path, name):
    with pytest.raises(InputError, match=f"{name} must be a number; got the text '0.8'"):
        DescentConfig(str(tmp_path), **{name: "0.8"})


@pytest.mark.parametrize(("given", "kept"), [(1, 1), (3, 3), (np.int64(3), 3), ("3", 3), ("epoch", "epoch")], ids=repr)
def test_the_dual_schedule_is_a_number_or_epoch(tmp_path, given, kept):
    args = DescentConfig(str(tmp_path), dual_every=given)
    assert args.dual_every == kept and type(args.dual_every) is type(kept)
    assert args.primal_dual(2).every == kept


@pytest.mark.parametrize("given", [1.5, "1.5", "often", None], ids=repr)
def test_another_dual_schedule_is_refused(tmp_path, given):
    with pytest.raises(InputError, match=r"'epoch'.*got "):
        DescentConfig(str(tmp_path), dual_every=given)


def test_transformers_own_parser_reads_them(tmp_path):
    """A script with `HfArgumentParser`, as those of Transformers have it."""
    flags = ["--output_dir", str(tmp_path), "--alpha", "0.3,0.2,0.1", "--dual-every", "epoch"]
    (args,) = HfArgumentParser(DescentConfig).parse_args_into_dataclasses(flags)
    assert (args.alpha, args.dual_every) == ([0.3, 0.2, 0.1], "epoch")
    (args,) = HfArgumentParser(DescentConfig).parse_args_into_dataclasses(flags[:2])
    assert (args.alpha, args.dual_every) == (None, 1)
    with pytest.raises(InputError, match=r"alpha.*'0\.1;0\.2'"):
        read_recipe(["video-ut", "--data", "generated", "--out", "run", "--alpha", "0.1;0.2"])


def test_core_and_trainer_have_the_same_default_of_stop_gradient(tmp_path):
    args = DescentConfig(str(tmp_path), alpha=0.1)
    assert args.stop_gradient is args.problem(2).stop_gradient is DescentProblem(2, 0.1).stop_gradient is True
    assert DescentConfig.paper("video-ut", str(tmp_path)).problem(2).stop_gradient is False


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


@pytest.mark.parametrize("more", [{}, {"alpha": 0.2}, {"alpha": 0.2, "cap": 3.0}, {"strength": 0.1}], ids=repr)
def test_python_and_the_command_line_mean_the_same_problem(tmp_path, more):
    words = [word for name, value in more.items() for word in (f"--{name}", str(value))]
    _, _, typed, _ = read_recipe(["video-ut", "--data", "generated", "--out", str(tmp_path), *words])
    recipe = RECIPES["video-ut"]
    args = DescentConfig(str(tmp_path), **more)
    args.fill({"strength": recipe.training.strength})
    for name in ("strength", "alpha", "cap", "dual_optimizer", "dual_optim_args", "resilience", "dual_warmup_steps"):
        assert typed.resolved(name) == args.resolved(name)


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


def test_a_model_of_one_layer_has_a_chain(tmp_path):
    assert DescentConfig(str(tmp_path)).problem(1, first=1).in_force.tolist() == [False, True]


def test_alpha_and_strength_are_refused_together_however_they_are_given(tmp_path):
    with pytest.raises(InputError, match=r"alpha.*strength|strength.*alpha"):
        DescentConfig(str(tmp_path), alpha=0.2, strength=0.7).problem(3)
    _, _, args, _ = read_recipe(
        ["video-ut", "--data", "generated", "--out", str(tmp_path), "--alpha", "0.2", "--strength", "0.7"]
    )
    with pytest.raises(InputError, match=r"alpha.*strength|strength.*alpha"):
        args.problem(3)
