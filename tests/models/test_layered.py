"""`descend.layered`: any module, its layers read by hooks; and the names of the contract."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import descend
from descend.errors import InputError
from descend.models import HookedModel, LayeredModel
from tests.support.own import Block, ResidualMLP, layers, mlp, samples


def batch(count=5):
    return torch.stack([sample["x"] for sample in samples(count)])


def by_hand(network, x):
    """h_0 … h_L, from the network's own parts."""
    states = [network.embed(x)]
    for block in list(network.blocks) * network.turns:
        states.append(block(states[-1]))
    return states


def hooks(module):
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in module.modules())


def test_the_three_laws():
    network = mlp().eval()
    model, x = layers(network), batch()
    outputs, predictions = model.layer_outputs({"x": x}), list(model.predictions({"x": x}))
    assert model.depth == 3 and len(outputs) == len(predictions) == 4
    for found, expected in zip(outputs, by_hand(network, x), strict=True):
        assert torch.equal(found, expected)
    for found, expected in zip(predictions, by_hand(network, x), strict=True):
        assert torch.equal(found, network.head(network.norm(expected)))
    assert torch.equal(predictions[-1], network(x)) and torch.equal(model(x=x), network(x))


def test_no_hook_stays_and_what_is_saved_is_the_users_module():
    network = mlp()
    model = layers(network)
    list(model.predictions({"x": batch()}))
    assert hooks(network) == 0
    with pytest.raises(RuntimeError, match="mat1"):
        model.layer_outputs({"x": torch.zeros(2, 7)})
    assert hooks(network) == 0
    assert model.saved is network and network.state_dict().keys() == ResidualMLP().state_dict().keys()


@pytest.mark.parametrize(
    "blocks",
    ["blocks", lambda network: network.blocks, lambda network: list(network.blocks)],
    ids=["name", "ModuleList", "list"],
)
def test_blocks_by_name_or_as_modules(blocks):
    network = mlp()
    given = blocks if isinstance(blocks, str) else blocks(network)
    model = layers(network, blocks=given, embeddings=network.embed)
    assert model.depth == 3 and model.layer_modules == list(network.blocks)
    assert model.get_input_embeddings() is network.embed


@pytest.mark.parametrize("given", [{"depth": 4}, {"blocks": None}])
def test_a_block_that_runs_several_times(given):
    network = mlp(depth=4, looped=True).eval()
    if "blocks" in given:
        given = {"blocks": [network.blocks[0]] * 4}
    model, x = layers(network, **given), batch()
    assert model.depth == 4 and len(model.layer_modules) == 1
    for found, expected in zip(model.layer_outputs({"x": x}), by_hand(network, x), strict=True):
        assert torch.equal(found, expected)


class Named(ResidualMLP):
    """Blocks in a ModuleDict."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({f"block_{place}": block for place, block in enumerate(self.blocks)})

    def forward(self, x):
        hidden = self.embed(x)
        for block in self.blocks.values():
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def test_blocks_in_a_dictionary_by_its_name():
    torch.manual_seed(0)
    network = Named().eval()
    model = layers(network)
    assert model.depth == 3 and torch.equal(first_batch(model)[-1], network(batch()))


def test_a_single_block_by_its_name():
    network = mlp(depth=3, looped=True)
    assert layers(network, blocks="blocks.0", depth=3).depth == 3


class WithTuples(ResidualMLP):
    """Blocks that are called by keyword and return tuples, as those of language models."""

    class Tupled(Block):
        def forward(self, *, hidden, mask=None):
            return super().forward(hidden), mask

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(self.Tupled(8) for _ in range(3))

    def forward(self, x, mask=None, unused=None):
        hidden = self.embed(x)
        for block in self.blocks:
            hidden, _ = block(hidden=hidden, mask=mask)
        return {"logits": self.head(self.norm(hidden)), "hidden": hidden}


def test_tuples_keywords_and_fields_that_forward_does_not_name():
    torch.manual_seed(0)
    network = WithTuples().eval()
    model, x = layers(network), batch()
    predictions = list(model.predictions({"x": x, "mask": x > 0, "index": torch.arange(5)}))
    assert torch.equal(predictions[-1], network(x)["logits"])


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"blocks": "layers"}, "blocks.*'layers'.*embed, blocks, norm, head"),
        ({"blocks": []}, "blocks"),
        ({"blocks": [nn.Linear(8, 8)]}, "blocks.*ResidualMLP"),
        ({"blocks": [3]}, "blocks.*int"),
        ({"readout": "haed"}, "readout.*'haed'"),
        ({"readout": nn.Linear(8, 3)}, "readout.*ResidualMLP"),
        ({"readout": 3}, "readout.*int"),
        ({"embeddings": "embedding"}, "embeddings.*'embedding'"),
        ({"depth": 2}, "depth.*3.*2"),
        ({"depth": True}, "depth.*True"),
        ({"first_layer": 3}, "first_layer.*2.*3"),
    ],
)
def test_a_wrong_name_is_refused_at_once(settings, names):
    with pytest.raises(InputError, match=names):
        layers(**settings)


def test_only_modules_are_layered():
    with pytest.raises(InputError, match=r"Module.*function"):
        descend.layered(lambda x: x, blocks="blocks", readout="head")


def first_batch(model):
    return list(model.predictions({"x": batch()}))


def test_a_readout_that_is_not_the_modules_own_is_one_error_on_the_first_batch():
    with pytest.raises(InputError, match=r"readout\(h_L\).*ResidualMLP"):
        first_batch(layers(readout="head"))  # the norm before it is left out
    with pytest.raises(InputError, match=r"readout\(h_L\).*\(5, 8\).*\(5, 3\)"):
        first_batch(layers(readout="norm"))


class TwoOutputs(ResidualMLP):
    """A mean and a spread, in a tuple, a dictionary or one tensor."""

    def __init__(self, together=tuple):
        super().__init__()
        self.spread = nn.Linear(8, 3)
        self.together = together

    def forward(self, x):
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.together((self.head(hidden), self.spread(hidden)))


def test_the_prediction_may_be_any_part_of_the_output():
    for together in (tuple, lambda parts: dict(zip("ab", parts, strict=True))):
        network = TwoOutputs(together).eval()
        for readout in ("head", "spread"):
            assert len(first_batch(layers(network, readout=readout))) == 4


def test_several_outputs_are_one_tensor():
    network = TwoOutputs()

    def stacked(hidden):
        return torch.stack((network.head(hidden), network.spread(hidden)), -1)

    with pytest.raises(InputError, match=r"readout.*tuple.*torch.stack.*forward"):
        first_batch(layers(network, readout=lambda hidden: (network.head(hidden), network.spread(hidden))))
    with pytest.raises(InputError, match=r"\(5, 3, 2\).*tuple with \(5, 3\), \(5, 3\).*torch.stack.*forward"):
        first_batch(layers(network, readout=stacked))
    network.together = lambda parts: torch.stack(parts, -1)
    assert len(first_batch(layers(network, readout=stacked))) == 4


def test_a_missing_value_is_named():
    with pytest.raises(InputError, match=r"ResidualMLP.*NaN.*missing values"):
        layers().layer_outputs({"x": batch() * float("nan")})


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
    torch.manual_seed(3)
    first_batch(model)
    drawn = torch.rand(())
    model._verified = True
    torch.manual_seed(3)
    first_batch(model)
    assert torch.rand(()) == drawn
    model._verified = False
    with pytest.raises(InputError, match=r"readout\(h_L\)"):
        first_batch(model.eval())


class SumOutside(ResidualMLP):
    def forward(self, x):
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(self.norm(hidden))


def test_a_residual_sum_outside_the_block_is_named():
    torch.manual_seed(0)
    with pytest.raises(InputError, match=r"block 2.*block 1.*residual"):
        first_batch(layers(SumOutside()))


def test_blocks_that_do_not_run_are_counted():
    network = mlp()
    network.spare = Block(8)
    with pytest.raises(InputError, match=r"3 times.*4"):
        first_batch(layers(network, blocks=[*network.blocks, network.spare]))


def test_blocks_in_another_order_than_they_run_are_refused():
    network = mlp()
    with pytest.raises(InputError, match=r"order.*blocks\.2 where it calls blocks\.0"):
        first_batch(layers(network, blocks=[*network.blocks][::-1]))


def test_a_first_block_that_is_left_out_is_told(caplog):
    network = mlp()
    assert layers(network, blocks=[*network.blocks][1:]).depth == 2
    assert "blocks.0, which is like blocks.1 and before it" in caplog.text
    caplog.clear()
    layers(network), layers(network, blocks=[*network.blocks][:2])
    assert not caplog.text


def test_layers_of_several_shapes_are_refused():
    class Narrowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6))

        def forward(self, x):
            return self.blocks(x)

    with pytest.raises(InputError, match=r"\(5, 4\), \(5, 6\)"):
        first_batch(descend.layered(Narrowing(), blocks="blocks", readout=lambda hidden: hidden))


def test_submodules_keep_their_modes():
    network = mlp().train()
    network.head.eval()
    assert layers(network).training and not network.head.training and network.embed.training


def test_noise_needs_a_place():
    model = layers(embeddings=None)
    with pytest.raises(InputError, match="embeddings"):
        model.get_input_embeddings()


def test_a_copy_reads_its_own_blocks():
    network = mlp()
    network.head = nn.Sequential(network.norm, network.head)
    network.norm = nn.Identity()
    model = layers(network, readout="head").eval()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert first_batch(twin)[0].abs().sum() > 0 and first_batch(model)[0].abs().sum() == 0


def test_a_module_that_lost_a_block_is_named():
    model = layers()
    del model.saved.blocks[-1]
    with pytest.raises(InputError, match=r"ResidualMLP has changed since descend\.layered wrapped it"):
        first_batch(model)


class Checkpointed(ResidualMLP):
    reentrant = False

    def forward(self, x):
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.head(self.norm(hidden))


def gradients(model):
    model.zero_grad()
    sum((layer + 1) * read.square().mean() for layer, read in enumerate(model.predictions({"x": batch()}))).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_activation_checkpointing_gives_the_same_gradients_at_every_exit():
    network = mlp()
    frugal = Checkpointed()
    frugal.load_state_dict(network.state_dict())
    for found, expected in zip(gradients(layers(frugal)), gradients(layers(network)), strict=True):
        torch.testing.assert_close(found, expected)


def test_reentrant_checkpointing_would_lose_gradients_and_is_refused():
    frugal = Checkpointed()
    frugal.reentrant = True
    with pytest.raises(InputError, match="use_reentrant=False"):
        gradients(layers(frugal))


# --- the base class


class Whole(LayeredModel):
    """A subclass whose depth and readout are plain attributes."""

    def __init__(self):
        super().__init__()
        self.depth = 2
        self.readout = nn.Linear(4, 3)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def get_input_embeddings(self):
        return self.blocks[0]

    def layer_outputs(self, inputs):
        states = [inputs["x"]]
        for block in self.blocks:
            states.append(block(states[-1]))
        return tuple(states)


def test_a_subclass_may_call_its_blocks_blocks():
    model = Whole()
    assert isinstance(model.blocks, nn.ModuleList) and len(list(model.parameters())) == 6
    assert len(list(model.predictions({"x": batch()}))) == 3
    assert list(model.layer_modules) == []


def test_a_subclass_without_forward_returns_its_last_prediction():
    model = Whole()
    last = list(model.predictions({"x": batch()}))[-1]
    assert torch.equal(model(x=batch()), last) and torch.equal(model({"x": batch()}), last)


def test_what_a_subclass_lacks_is_told_when_it_is_made():
    with pytest.raises(TypeError, match="layer_outputs"):
        type("Half", (LayeredModel,), {"get_input_embeddings": lambda self: self})()
    assert issubclass(HookedModel, LayeredModel) and issubclass(LayeredModel, nn.Module)


@pytest.mark.parametrize("name", ["layer_modules", "saved", "limits", "predictions", "first_layer"])
def test_a_submodule_can_not_hide_behind_a_name_of_the_contract(name):
    model = Whole()
    with pytest.raises(InputError, match=f"Whole.*{name}"):
        setattr(model, name, nn.Linear(1, 1))
