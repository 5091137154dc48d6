"""`descend.layered`: any module, its layers read by hooks; and the names of the contract."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from descend.errors import InputError
from descend.models.modules import changed
from tests.support.own import Block, ResidualMLP, Whole, layers, mlp, samples

BATCH = torch.stack([sample["x"] for sample in samples(5)])


def by_hand(network, x):
    """h_0 … h_L, from the network's own parts."""
    states = [network.embed(x)]
    for block in list(network.blocks) * network.turns:
        states.append(block(states[-1]))
    return states


def first_batch(model):
    return list(model.predictions({"x": BATCH}))


def hooks(module):
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in module.modules())


def test_the_three_laws_and_no_hook_stays():
    network = mlp().eval()
    model = layers(network)
    outputs, predictions = model.layer_outputs({"x": BATCH}), first_batch(model)
    assert model.depth == 3 and len(outputs) == len(predictions) == 4
    for found, read, expected in zip(outputs, predictions, by_hand(network, BATCH), strict=True):
        assert torch.equal(found, expected) and torch.equal(read, network.head(network.norm(expected)))
    assert torch.equal(predictions[-1], network(BATCH)) and torch.equal(model(x=BATCH), network(BATCH))
    assert hooks(network) == 0
    with pytest.raises(RuntimeError, match="mat1"):
        model.layer_outputs({"x": torch.zeros(2, 7)})
    assert hooks(network) == 0
    assert model.saved is network and network.state_dict().keys() == ResidualMLP().state_dict().keys()


@pytest.mark.parametrize(
    ("network", "given", "modules"),
    [
        (mlp(), lambda network: {"blocks": "blocks"}, 3),
        (mlp(), lambda network: {"blocks": network.blocks, "embeddings": network.embed}, 3),
        (mlp(), lambda network: {"blocks": list(network.blocks)}, 3),
        (mlp(), lambda network: {"blocks": nn.ModuleDict(network.blocks.named_children())}, 3),
        (mlp(depth=3, looped=True), lambda network: {"depth": 3}, 1),
        (mlp(depth=3, looped=True), lambda network: {"blocks": [network.blocks[0]] * 3}, 1),
        (mlp(depth=3, looped=True), lambda network: {"blocks": "blocks.0", "depth": 3}, 1),
    ],
    ids=["name", "ModuleList", "list", "ModuleDict", "loop", "list of a loop", "name of a loop"],
)
def test_blocks_by_name_or_as_modules_each_once_or_several_times(network, given, modules):
    model = layers(network.eval(), **given(network))
    assert model.depth == 3 and len(model.layer_modules) == modules
    assert model.get_input_embeddings() is network.embed
    assert torch.equal(first_batch(model)[-1], network(BATCH))


class Variant(ResidualMLP):
    """Whose forward calls each block and makes its output by functions."""

    def __init__(self, call=lambda block, hidden: block(hidden), output=lambda self, h: self.head(self.norm(h))):
        super().__init__()
        self.call, self.output = call, output

    def forward(self, x, mask=None, unused=None):
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = self.call(block, hidden)
        return self.output(self, hidden)


class Tupled(Block):
    """A block that is called by keyword and returns a tuple, as those of language models."""

    def forward(self, *, hidden):
        return super().forward(hidden), None


def test_tuples_keywords_and_fields_that_forward_does_not_name():
    network = Variant(
        lambda block, hidden: block(hidden=hidden)[0],
        lambda self, hidden: {"logits": self.head(self.norm(hidden)), "hidden": hidden},
    ).eval()
    network.blocks = nn.ModuleList(Tupled(8) for _ in range(3))
    predictions = list(layers(network).predictions({"x": BATCH, "mask": BATCH > 0, "index": torch.arange(5)}))
    assert torch.equal(predictions[-1], network(BATCH)["logits"])


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"blocks": "layers"}, "blocks.*'layers'.*embed, blocks, norm, head"),
        ({"blocks": []}, "blocks"),
        ({"blocks": [nn.Linear(8, 8)]}, "blocks.*ResidualMLP"),
        ({"blocks": [3]}, "blocks.*int"),
        ({"blocks": 3}, "blocks.*int"),
        ({"readout": "haed"}, "readout.*'haed'"),
        ({"readout": nn.Linear(8, 3)}, "readout.*ResidualMLP"),
        ({"readout": 3}, "readout.*int"),
        ({"embeddings": "embedding"}, "embeddings.*'embedding'"),
        ({"depth": 2}, "depth.*3.*2"),
        ({"depth": True}, "depth.*True"),
        ({"first_layer": 3}, "first_layer.*2.*3"),
        ({"network": lambda x: x}, "Module.*function"),
    ],
)
def test_a_wrong_name_is_refused_at_once(settings, names):
    with pytest.raises(InputError, match=names):
        layers(**settings)


# --- what the first batch shows


def two_outputs(together=tuple):
    """A mean and a spread, in a tuple, a dictionary or one tensor."""
    network = Variant(output=lambda self, hidden: together((self.head(hidden), self.spread(hidden))))
    network.spread = nn.Linear(8, 3)
    return network


def stacked(network):
    return lambda hidden: torch.stack((network.head(hidden), network.spread(hidden)), -1)


@pytest.mark.parametrize(
    ("together", "readout"),
    [
        (tuple, lambda network: "head"),
        (tuple, lambda network: "spread"),
        (lambda parts: dict(zip("ab", parts, strict=True)), lambda network: "head"),
        (lambda parts: dict(zip("ab", parts, strict=True)), lambda network: "spread"),
        (lambda parts: torch.stack(parts, -1), stacked),
    ],
)
def test_the_prediction_may_be_any_part_of_the_output_or_several_in_one_tensor(together, readout):
    network = two_outputs(together).eval()
    assert len(first_batch(layers(network, readout=readout(network)))) == 4


def spare():
    network = mlp()
    network.spare = Block(8)
    return network


def narrowing():
    network = mlp()
    network.blocks = nn.ModuleList([nn.Linear(8, 6), nn.Linear(6, 6)])
    network.norm = network.head = nn.Identity()
    return network


FAULTS = {
    "no norm": (mlp, lambda network: {"readout": "head"}, r"readout\(h_L\).*ResidualMLP"),
    "no head": (mlp, lambda network: {"readout": "norm"}, r"readout\(h_L\).*\(5, 8\).*\(5, 3\)"),
    "a tuple": (
        two_outputs,
        lambda network: {"readout": lambda hidden: (network.head(hidden), network.spread(hidden))},
        r"readout.*tuple.*torch.stack.*forward",
    ),
    "stacked": (
        two_outputs,
        lambda network: {"readout": stacked(network)},
        r"\(5, 3, 2\).*tuple with \(5, 3\), \(5, 3\).*torch.stack.*forward",
    ),
    "not a number": (
        mlp,
        lambda network: {"readout": lambda hidden: hidden[:, :3] * float("nan")},
        "ResidualMLP.*NaN.*missing values",
    ),
    "a sum outside": (
        lambda: Variant(lambda block, hidden: hidden + block(hidden)),
        lambda network: {},
        "block 2.*block 1.*residual",
    ),
    "a spare block": (spare, lambda network: {"blocks": [*network.blocks, network.spare]}, "3 times.*4"),
    "another order": (
        mlp,
        lambda network: {"blocks": [*network.blocks][::-1]},
        r"order.*blocks\.2 where it calls blocks\.0",
    ),
    "several shapes": (narrowing, lambda network: {"readout": "head"}, r"\(5, 6\), \(5, 8\)"),
    "reentrant checkpoints": (
        lambda: Variant(partial(checkpoint, use_reentrant=True)),
        lambda network: {},
        "use_reentrant=False",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_chain_with_one_readout_is_refused_on_the_first_batch(fault):
    make, given, message = FAULTS[fault]
    network = make()
    with pytest.raises(InputError, match=message):
        first_batch(layers(network, **given(network)))


def test_a_block_that_is_gone_is_missed():
    model = layers()
    del model.saved.blocks[-1]
    with pytest.raises(InputError, match=r"ResidualMLP has changed since descend\.layered wrapped it"):
        first_batch(model)


def test_a_first_block_that_is_left_out_is_told(caplog):
    network = mlp()
    assert layers(network, blocks=[*network.blocks][1:]).depth == 2
    assert "blocks.0, which is like blocks.1 and before it" in caplog.text
    caplog.clear()
    layers(network), layers(network, blocks=[*network.blocks][:2])
    assert not caplog.text


def test_the_readout_is_checked_once():
    network = mlp().eval()
    calls = []
    model = layers(network, readout=lambda hidden: calls.append(1) or network.head(network.norm(hidden)))
    first_batch(model)
    before = len(calls)
    first_batch(model)
    assert len(calls) - before == 4 < before


def test_dropout_in_the_readout_waits_for_eval_mode_and_draws_nothing():
    network = mlp()
    network.head = nn.Sequential(nn.Dropout(0.5), network.head)
    model = layers(network, readout=lambda hidden: network.head(hidden)).train()  # wrong, but random
    drawn = []
    for model._verified in (False, True):
        torch.manual_seed(3)
        first_batch(model)
        drawn.append(torch.rand(()))
    assert drawn[0] == drawn[1]
    model._verified = False
    with pytest.raises(InputError, match=r"readout\(h_L\)"):
        first_batch(model.eval())


@torch.no_grad()
def test_submodules_keep_their_modes_and_a_copy_reads_its_own_blocks():
    network = mlp().train()
    network.head = nn.Sequential(network.norm, network.head).eval()
    network.norm = nn.Identity()
    model = layers(network, readout="head")
    assert model.training and not network.head.training and network.embed.training
    twin = copy.deepcopy(model)
    for parameter in network.parameters():
        parameter.zero_()
    assert first_batch(twin)[0].abs().sum() > 0 and first_batch(model)[0].abs().sum() == 0


def test_changed_attributes_are_as_before_after_an_error_too():
    module = nn.Linear(1, 1)
    before = dict(vars(module))
    with pytest.raises(KeyError), changed(module, out_features=5, new=None, forward=lambda x: x + 1):
        assert (module.out_features, module.new, module(1)) == (5, None, 2)
        raise KeyError
    assert vars(module) == before


def test_activation_checkpointing_gives_the_same_gradients_at_every_exit():
    frugal = Variant(partial(checkpoint, use_reentrant=False))
    frugal.load_state_dict(mlp().state_dict())
    gradients = []
    for model in (layers(frugal), layers(mlp())):
        sum((layer + 1) * read.square().mean() for layer, read in enumerate(first_batch(model))).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


# --- the base class


def test_a_subclass_may_call_its_blocks_blocks_and_needs_no_forward():
    model = Whole()
    *_, last = first_batch(model)
    assert torch.equal(model(x=BATCH), last) and torch.equal(model({"x": BATCH}), last)


@pytest.mark.parametrize("name", ["layer_modules", "saved", "limits", "predictions", "first_layer"])
def test_a_submodule_can_not_hide_behind_a_name_of_the_contract(name):
    with pytest.raises(InputError, match=f"Whole.*{name}"):
        setattr(Whole(), name, nn.Linear(1, 1))
