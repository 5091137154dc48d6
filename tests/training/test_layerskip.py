"""LayerSkip's recipe: its formulas, which rows pass a block, and a run that resumes to the same bits."""

import json
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from descend import DescentConfig, Objective
from descend.methods import METHODS
from descend.models import LayeredCausalLM, LayeredClassifier, ViTDenoiser, ViTDenoiserConfig, layered
from descend.training.methods import CLASSES, LayerSkip
from tests.support import networks
from tests.support.own import Classes
from tests.support.texts import build, review_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return review_tokenizer()


def settings(**changes) -> DescentConfig:
    return DescentConfig("unused", method="layerskip", use_cpu=True, report_to="none", **changes)


def layer_skip(model, **changes) -> LayerSkip:
    args = settings(seed=3, **changes)
    skip = LayerSkip(args)
    task = None if isinstance(model, LayeredCausalLM) else Classes()
    skip.attach(SimpleNamespace(objective=Objective(model, task), dual=args.primal_dual(model.depth)))
    return skip


def classifier(**changes) -> LayeredClassifier:
    return LayeredClassifier(networks.network("distilbert", **changes))


def test_every_method_has_a_class():
    assert CLASSES.keys() == METHODS.keys()


def test_rates_grow_exponentially_with_the_block_and_the_step():
    skip = layer_skip(classifier(n_layers=5), layer_dropout=0.3)
    steps = 11
    for step in (0, 4, 10):
        over_time = math.exp(step * math.log(2) / (steps - 1)) - 1
        expected = [over_time * (math.exp(block * math.log(2) / 4) - 1) * 0.3 for block in range(5)]
        assert skip.rates(step, steps) == pytest.approx(expected)
    assert skip.rates(10, steps)[-1] == pytest.approx(0.3) and skip.rates(0, steps) == [0] * 5
    constant = layer_skip(classifier(), layer_dropout=0.3, layer_dropout_schedule="constant")
    assert constant.rates(0, steps) == constant.rates(9, steps) == pytest.approx([0, 0.3 * (2**0.5 - 1), 0.3])
    assert constant.rates(0, 1) == constant.rates(9, steps)


def test_weights_are_the_papers_scale_with_inner_exits_in_turn():
    scale = 0.5
    skip = layer_skip(classifier(n_layers=5), exit_scale=scale, exit_rotation=2)
    full = [0, scale * 1, scale * 3, scale * 6, scale * 10, 5 + scale * 10]  # e(0) … e(5)
    for step, on in enumerate([{1, 3}, {2, 4}, {1, 3}, {2, 4}]):
        chosen = [each if exit in on | {5} else 0 for exit, each in enumerate(full)]
        assert skip.weights(step, 100) == pytest.approx([each / sum(chosen) for each in chosen])
    one = layer_skip(classifier(n_layers=5))
    turns = [[exit for exit, weight in enumerate(one.weights(step, 100)) if weight] for step in range(6)]
    assert turns == [[1, 5], [2, 5], [3, 5], [4, 5], [1, 5], [2, 5]]
    plain = layer_skip(classifier(), exit_scale=0.0)
    assert plain.weights(7, 100) == [0, 0, 0, 1]


def test_in_the_gradual_curriculum_exits_join_from_the_last_to_the_first():
    skip = layer_skip(classifier(n_layers=4), exit_curriculum="gradual")
    joined = [[exit for exit, weight in enumerate(skip.weights(step, 80)) if weight] for step in (0, 9, 10, 20, 29, 30)]
    assert joined == [[4], [4], [3, 4], [2, 3, 4], [2, 3, 4], [1, 2, 3, 4]]
    assert skip.weights(79, 80) == pytest.approx([0, *(each / 20 for each in (1, 3, 6, 10))])


def outputs(kind: str):
    """A layered model in training mode with inputs of 64 rows, and its inputs."""
    torch.manual_seed(0)
    tokens = {"input_ids": torch.randint(1, 40, (64, 5)), "attention_mask": torch.ones(64, 5).long()}
    if kind == "vit":
        model = ViTDenoiser(ViTDenoiserConfig(num_hidden_layers=3, hidden_size=16, num_attention_heads=2))
        return model.train(), torch.rand(32, 2, 100, 256)
    if kind == "own":
        module = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))
        return layered(module, blocks=list(module[:3]), readout=module[3]).train(), torch.rand(64, 6)
    if kind in networks.CAUSAL:
        return LayeredCausalLM(networks.causal(kind)).train(), tokens
    return LayeredClassifier(networks.network(kind)).train(), tokens


FAMILIES = ["distilbert", "bert", "roberta", "descend-text-ut", "llama", "gemma3_text", "vit", "own"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_dropped_rows_leave_a_block_as_they_entered_it(kind):
    model, inputs = outputs(kind)
    for each in model.modules():
        each.p = 0.0 if isinstance(each, torch.nn.Dropout) else getattr(each, "p", None)
    skip = layer_skip(model, layer_dropout=0.6, layer_dropout_schedule="constant")
    whole = model.layer_outputs(inputs)
    with skip.installed():
        skip.before_pass(0, 10)
        states = [each.flatten(0, -3) if kind == "vit" else each for each in model.layer_outputs(inputs)]
        model.eval()
        for one, other in zip(whole, model.layer_outputs(inputs), strict=True):
            assert torch.equal(one, other)
    passed = [(after == before).flatten(1).all(1).double().mean() for before, after in pairwise(states)]
    assert passed[0] == 0 and passed[1] == pytest.approx(0.6 * (2**0.5 - 1), abs=0.12)
    assert passed[2] == pytest.approx(0.6, abs=0.15)
    model.train()
    for one, other in zip(whole, model.layer_outputs(inputs), strict=True):
        assert torch.equal(one, other)  # no hook is left


def trained(folder, tokenizer, **changes):
    chosen = {"layer_dropout": 0.5, "alpha": None, "dual_lr": None, "dual_warmup_steps": None}
    trainer = build(folder, tokenizer, **chosen | {"method": "layerskip"} | changes)
    trainer.objective.noise = None
    trainer.train()
    return trainer


def parameters(trainer) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in trainer.objective.parameters()])


def test_recomputed_blocks_repeat_their_draw(tmp_path, tokenizer):
    still = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    plain = trained(tmp_path / "plain", tokenizer, model=still)
    recomputed = trained(tmp_path / "recomputed", tokenizer, model=still, gradient_checkpointing=True)
    torch.testing.assert_close(parameters(plain), parameters(recomputed), rtol=1e-5, atol=1e-7)


def test_the_log_has_the_weights(tmp_path, tokenizer):
    run = trained(tmp_path, tokenizer)
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    last = {row["layer"]: row["value"] for row in rows if (row["metric"], row["step"]) == ("weight", 6)}
    assert list(last.values()) == pytest.approx(run.method.weights(6, 6))
    assert {row["layer"] for row in rows if row["metric"] == "loss" and row["split"] == "train"} == {0, 1, 2, 3}
