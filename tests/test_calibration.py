"""The temperature of a classifier's logits: what it is, what it changes, and what it leaves alone."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import networks
from descend.cli import main
from descend.core import DescentProblem
from descend.evaluation.calibration import TEMPERATURES, at_temperature, temperature
from descend.evaluation.layers import LayerLosses
from descend.models import LayeredClassifier
from descend.tasks.text import Classification


def sure(scales: list[float], wrong: float = 0.3) -> LayerLosses:
    """Layers whose logits for the right one of two classes are ± so much, wrong in this share of 1,000 texts."""
    right = torch.where(torch.arange(1000) < 1000 * wrong, -1.0, 1.0)
    logits = torch.stack([torch.stack([scale * right, -scale * right], 1) for scale in scales], 1)
    targets = torch.zeros(1000, dtype=torch.long)
    losses = torch.stack([F.cross_entropy(layer, targets, reduction="none") for layer in logits.unbind(1)], 1)
    return LayerLosses(losses.double(), torch.arange(1000), [], logits=(logits, targets))


def test_without_constraints_it_is_that_of_the_lowest_last_loss():
    layers, erm = sure([0.1, 5.0]), DescentProblem(1)
    found = temperature(layers, Classification(), erm)
    # The best probability of being right is .7: 2 z / τ = ln(.7 / .3).
    exact = 2 * 5.0 / torch.tensor(7 / 3).log().item()
    assert found == min(TEMPERATURES, key=lambda each: abs(each / exact - 1)) == pytest.approx(exact, rel=0.04)
    tempered = at_temperature(layers, Classification(), found)
    assert tempered.losses[:, -1].mean() < layers.losses[:, -1].mean() - 1
    assert tempered.logits is not None and torch.equal(tempered.logits[0], layers.logits[0] / found)


def test_with_constraints_the_last_loss_may_be_one_percent_higher():
    """Where the last loss is lowest layer 2 lowers it by 1.4 %; at a higher temperature by the 2 % that α asks for."""
    layers, problem = sure([0.0, 0.4, 0.6]), DescentProblem(2, [0.08, 0.02])
    free, bound = (temperature(layers, Classification(), each) for each in (DescentProblem(2), problem))
    without, found = (at_temperature(layers, Classification(), each).losses.mean(0) for each in (free, bound))
    assert not bool((problem.violations(without) <= 0).all()) and bool((problem.violations(found) <= 0).all())
    assert without[-1] < found[-1] <= 1.01 * without[-1]


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta", "descend-distilbert-linear", "descend-text-ut"])
def test_the_head_takes_up_a_temperature_and_no_decision_changes(family):
    model = LayeredClassifier(networks.network(family).eval())
    inputs = {"input_ids": torch.randint(5, 40, (4, 7)), "attention_mask": torch.ones(4, 7, dtype=torch.long)}
    before = torch.stack(list(model.predictions(inputs)))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with model.tempered(2.5):
        inside = torch.stack(list(model.predictions(inputs)))
    assert torch.allclose(inside, before / 2.5, atol=1e-6) and torch.equal(inside.argmax(-1), before.argmax(-1))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    model.temper(2.5)
    assert torch.allclose(torch.stack(list(model.predictions(inputs))), inside)


@pytest.mark.parametrize("method", ["erm", "constrained"])
def test_a_run_keeps_the_tempered_model_and_its_checkpoints_do_not(tmp_path, method):
    flags = ["--depth", "2", "--hidden-size", "16", "--max-length", "16", "--num-train-epochs", "1", "--method", method]
    for name, more in (("with", []), ("without", ["--calibrate", "false"])):
        assert main(["train", "text-distilbert", *flags, *more, "--heads", "2", "--out", str(tmp_path / name)]) == 0
    kept, plain = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("with", "without"))
    (checkpoint,) = (tmp_path / "with").glob("checkpoint-*")
    stored = load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in plain.items())
    scale = (plain["classifier.bias"] / kept["classifier.bias"]).mean()
    assert torch.allclose(kept["classifier.weight"] * scale, plain["classifier.weight"], atol=1e-6) and scale != 1
    assert json.loads((tmp_path / "with" / "config.json").read_text())["training"]["calibrate"] is True
