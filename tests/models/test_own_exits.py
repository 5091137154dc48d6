"""Own exits: copies of the readout that learn beside the model, of every family of the tables."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from descend import DescentConfig, DescentTrainer, InputError, Objective, layered
from descend.contract import resolve
from descend.models.first_layers import plain_output
from descend.models.layered import PLACES
from descend.models.own_exits import MARK
from descend.run import export_model
from descend.tasks.text import Classification
from tests.models.test_families import CASES, batch_of, made
from tests.support.networks import QUIET, network

WEIGHTS = [0.0, 0.3, 0.7, 1.0]


def own(head, family, moved=0.0):
    """A model with own exits, which differ from its readout by noise of this size, and its layers."""
    model = made(head, family)
    layers, _ = resolve(model, None, None)
    layers.give_own_exits()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in layers.own_exits.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, generator=generator))
    return model, layers


def read(layers, inputs):
    with torch.no_grad():
        return torch.stack(list(layers.predictions(inputs)))


@pytest.mark.parametrize(("head", "family"), CASES)
def test_new_own_exits_read_what_the_shared_one_reads(head, family):
    shared, _ = resolve(made(head, family), None, None)
    model, layers = own(head, family)
    inputs, _ = batch_of(head, padded=True)
    torch.testing.assert_close(read(layers, inputs), read(shared, inputs), rtol=1e-5, atol=1e-5)
    assert len(layers.own_exits) == layers.depth == 3
    tied = {id(each) for each in layers.own_exits.parameters()} & {id(each) for each in shared.parameters()}
    assert not tied and getattr(model.config, MARK)


@pytest.mark.parametrize(("head", "family"), CASES)
def test_exits_learn_with_weight_1_and_the_model_hears_its_weights(head, family):
    model, layers = own(head, family, moved=0.1)
    inputs, labels = batch_of(head, padded=True)
    parameters = dict(model.named_parameters())
    of_exits = {name for name in parameters if name.startswith("exits.")}
    total = Objective(model).eval()(WEIGHTS, **inputs, **labels)
    torch.testing.assert_close(
        total.lagrangian.item(), sum(w * s for w, s in zip(WEIGHTS, total.sums, strict=True)), rtol=1e-5, atol=1e-4
    )
    found = torch.autograd.grad(total.lagrangian, [*parameters.values()], allow_unused=True)
    slopes = {name: slope for name, slope in zip(parameters, found, strict=True) if slope is not None}
    assert of_exits <= slopes.keys()

    # The same by hand: each exit's loss alone. Inner exits of a language model leave its head as it is.
    task, batch = resolve(model, None, None)[1], {**inputs, **labels}
    given, target = task.inputs(batch), task.target(batch)
    expected = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for layer, (weight, hidden) in enumerate(zip(WEIGHTS, layers.layer_outputs(given), strict=True)):
        if head == "language":
            rows = layers.head_input(hidden.flatten(0, 1)[given[PLACES]], layer)
            module = layers.last_of_head
            fixed = {name: each.detach() for name, each in module.named_parameters()}
            logits = module(rows) if layer == 3 else torch.func.functional_call(module, fixed, rows)
            prediction = layers.family.scale(layers.config, logits)
        else:
            prediction = list(layers.predictions(given))[layer]
        loss = task.losses(prediction, target).sum()
        found = torch.autograd.grad(loss, [*parameters.values()], retain_graph=True, allow_unused=True)
        for name, slope in zip(parameters, found, strict=True):
            if slope is not None:
                expected[name] += slope * (1.0 if name in of_exits else weight)
    for name, slope in slopes.items():
        scale = max(1.0, expected[name].abs().max().item())
        torch.testing.assert_close(slope, expected[name], rtol=1e-3, atol=1e-4 * scale, msg=name)


@pytest.mark.parametrize(("head", "family"), CASES)
def test_saved_exits_are_loaded_again_and_exported(head, family, tmp_path):
    model, layers = own(head, family, moved=0.2)
    inputs, _ = batch_of(head, padded=True)
    expected = read(layers, inputs)
    assert not torch.allclose(expected[1], read(resolve(made(head, family), None, None)[0], inputs)[1], atol=1e-2)
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(plain_output(again, inputs), expected[-1], rtol=1e-5, atol=1e-5)  # Transformers alone
    torch.testing.assert_close(read(resolve(again, None, None)[0], inputs), expected, rtol=1e-5, atol=1e-5)
    for layer in (1, 3):
        export_model(model, layer, tmp_path / f"first-{layer}")
        cut = type(model).from_pretrained(tmp_path / f"first-{layer}").eval()
        assert not hasattr(cut.config, MARK) and resolve(cut, None, None)[0].own_exits is None
        torch.testing.assert_close(plain_output(cut, inputs), expected[layer], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(read(layers, inputs), expected)  # the model itself is not changed


def test_a_folder_without_its_exits_is_refused(tmp_path):
    model = made("class", "bert")
    setattr(model.config, MARK, True)
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="own exits; their weights are not in"):
        resolve(type(model).from_pretrained(tmp_path), None, None)


def trainer(folder, model, data, task=None, **settings):
    settings = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-2, **settings}
    config = DescentConfig(output_dir=str(folder), **QUIET | settings)
    return DescentTrainer(model, config, train_dataset=data, task=task)


def samples():
    inputs, labels = batch_of("class", padded=False)
    rows = [{name: value[row] for name, value in {**inputs, **labels}.items()} for row in range(4)]
    return rows * 4


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


def test_what_has_no_own_exits_is_refused(tmp_path):
    stack = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    mine = layered(stack, blocks=[stack[0], stack[1]], readout="2")
    with pytest.raises(InputError, match="own exits are copies of the head of a model of Transformers"):
        trainer(tmp_path, mine, samples(), Classification(), method="probe")
    adapters = get_peft_model(network("bert"), LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    with pytest.raises(InputError, match="would not be saved beside adapters"):
        trainer(tmp_path, adapters, samples(), exits="own")
    with pytest.raises(InputError, match="the method probe trains own exits; got exits shared"):
        DescentConfig(output_dir=str(tmp_path), method="probe", exits="shared")
