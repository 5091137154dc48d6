"""Own exits in training: a probe changes no bit of the model, runs go on, compiled is eager."""

import pytest
import torch

from descend import DescentConfig, DescentTrainer, GaussianNoise, InputError, Objective
from descend.contract import resolve
from descend.evaluation.layers import Batches
from descend.evaluation.probes import STATE_RIDGE, fit_exits, fit_probes
from descend.models.first_layers import keep_first
from descend.models.own_exits import MARK
from descend.tasks.text import Classification
from tests.support.networks import QUIET, causal, network

WEIGHTS = [0.0, 0.3, 0.7, 1.0]


def texts():
    """Four texts without padding, and their classes."""
    ids = torch.randint(5, 40, (4, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 2, 1, 1])}


def trainer(folder, model, data, task=None, **settings):
    settings = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-2, **settings}
    config = DescentConfig(output_dir=str(folder), **QUIET | settings)
    return DescentTrainer(model, config, train_dataset=data, task=task)


def samples():
    return [{name: value[row] for name, value in texts().items()} for row in range(4)] * 4


def test_a_probe_changes_no_bit_of_the_model(tmp_path):
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # dropout draws for every exit
    plain = trainer(tmp_path / "erm", network("bert", **still), samples(), method="erm", max_grad_norm=0.01)
    probed = trainer(tmp_path / "probe", network("bert", **still), samples(), method="probe", max_grad_norm=0.01)
    before = [each.detach().clone() for each in probed.objective.model.own_exits.parameters()]
    plain.train()
    probed.train()
    trained = dict(probed.model.named_parameters())
    for name, parameter in plain.model.named_parameters():
        assert torch.equal(parameter, trained[name]), name
    after = probed.objective.model.own_exits.parameters()
    moved = [not torch.equal(old, new) for old, new in zip(before, after, strict=True)]
    assert sum(moved) >= len(moved) / 2  # the pooler's and the classifier's, of all layers, the embedding among them
    assert {"loss/0", "loss/3"} <= probed.state.log_history[0].keys()


def test_heads_have_their_own_learning_rate(tmp_path):
    made = trainer(tmp_path, network("bert"), samples(), method="probe", head_lr_ratio=10.0)
    made.train()
    heads = {id(each) for each in made.objective.model.head_parameters()}
    rates = {}
    for group in made.optimizer.param_groups:
        for parameter in group["params"]:
            rates.setdefault(id(parameter) in heads, set()).add(group["initial_lr"])
    assert rates == {True: {0.1}, False: {0.01}}
    ids = [id(parameter) for group in made.optimizer.param_groups for parameter in group["params"]]
    assert len(set(ids)) == len(ids) == len(list(made.model.parameters()))


def test_a_compiled_objective_is_the_eager_one(tmp_path):
    found = []
    for compiles in (False, True):
        model = network("bert")
        objective = Objective(model).eval()
        objective.model.give_own_exits()
        if compiles:
            objective.compile(backend="aot_eager")
            objective(WEIGHTS, **texts())  # the first pass is eager
        total = objective(WEIGHTS, **texts())
        total.lagrangian.backward()
        found.append((total.lagrangian, {name: each.grad for name, each in model.named_parameters()}))
    (eager, slopes), (compiled, again) = found
    torch.testing.assert_close(eager, compiled)
    for name, slope in slopes.items():
        if slope is not None:
            torch.testing.assert_close(again[name], slope, rtol=1e-4, atol=1e-5, msg=name)


def test_exits_of_a_language_model_start_at_least_squares(tmp_path):
    model = causal(attention_dropout=0.0)
    rows = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in texts()["input_ids"]]
    made = trainer(tmp_path, model, rows, method="probe")
    layers = made.objective.model
    with torch.no_grad():
        states = layers.layer_outputs({"input_ids": texts()["input_ids"]})
        normed = [layers.head_input(state, None).flatten(0, 1).double() for state in states]
    for layer, own in enumerate(layers.own_exits):
        gram = normed[layer].T @ normed[layer]
        ridge = STATE_RIDGE * gram.diagonal().mean()
        matrix = own["translator"].weight.detach().double()
        slope = gram @ matrix.T - normed[layer].T @ normed[-1] + ridge * matrix.T
        assert slope.abs().max() < 1e-4 * gram.abs().max()
        torch.testing.assert_close(layers.head_input(states[layer], layer)[0, 0].double(), matrix @ normed[layer][0])


def test_exits_of_a_classifier_are_fitted_as_probes_are():
    """The same regressions, of a head that is one linear layer; the last layer's head is fitted, too."""
    model = network("descend-distilbert-linear").eval()
    rows = [{name: value[row] for name, value in texts().items()} for row in range(4)] * 3
    batches, task = Batches(4), Classification()
    layers, _ = resolve(model, None, None)
    probed = fit_probes(layers, task, rows, rows, GaussianNoise(0.0, 1.0), batches)
    expected = list(probed.predictions(texts()))[4:]
    fit_exits(layers, task, rows, rows, batches)
    for one, other in zip(layers.predictions(texts()), expected, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(InputError, match="is pre_classifier and classifier"):
        fit_exits(resolve(network("distilbert"), None, None)[0], task, rows, rows, batches)


def test_a_model_with_own_exits_is_trained_further(tmp_path):
    """Cut to 2 layers it keeps the exits before them; asked for a shared readout it has none."""
    model = network("bert").eval()
    layers, _ = resolve(model, None, None)
    layers.give_own_exits()
    with torch.no_grad():
        for parameter in layers.own_exits.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
        expected = list(layers.predictions(texts()))
        keep_first(layers, 2)
        for one, other in zip(layers.predictions(texts()), expected, strict=False):
            torch.testing.assert_close(one, other)
    assert layers.depth == len(layers.own_exits) == 2
    assert trainer(tmp_path / "own", model, samples(), method="erm").objective.own
    assert not trainer(tmp_path / "shared", model, samples(), method="erm", exits="shared").objective.own
    assert not hasattr(model, "exits") and not hasattr(model.config, MARK)
