"""The time to each layer: of every kind of model, and in the right order."""

import time

import pytest
import torch
from torch import nn
from transformers import default_data_collator

from descend import UT, UTConfig, layered
from descend.evaluation.latency import REPEATS, WARM_UP, latency
from descend.models import LayeredCausalLM, LayeredClassifier, LayeredModel, ViTDenoiser, ViTDenoiserConfig
from descend.tasks import Task
from descend.tasks.text import Classification, NextToken
from descend.tasks.video import VideoDenoising
from tests.support import own
from tests.support.networks import causal, network
from tests.support.subjects import outcome, subject


def texts():
    ids = torch.randint(5, 40, (6, 9), generator=torch.Generator().manual_seed(0)).tolist()
    return [{"input_ids": row, "attention_mask": [1] * 9, "labels": row} for row in ids]


def frames():
    return [{"patches": row} for row in torch.rand(6, 3, 100, 256, generator=torch.Generator().manual_seed(0))]


CASES = {
    "UT": lambda: (UT(UTConfig(depth=3)), VideoDenoising(), frames()),
    "ViT": lambda: (ViTDenoiser(ViTDenoiserConfig(num_hidden_layers=3)), VideoDenoising(), frames()),
    "classifier": lambda: (LayeredClassifier(network("distilbert")), Classification(), texts()),
    "language model": lambda: (LayeredCausalLM(causal()), NextToken(), texts()),
}


@pytest.mark.parametrize("name", CASES)
def test_deeper_layers_take_longer(name):
    model, task, data = CASES[name]()
    model.train()
    outcome(
        latency, subject(model, task, data, collate=default_data_collator)
    )  # Transformers hooks its blocks in the first pass
    hooks = [len(module._forward_hooks) for module in model.layer_modules]
    found = outcome(latency, subject(model, task, data, batch_size=4, collate=default_data_collator))
    assert len(found.milliseconds) == model.depth + 1 and found.batch_size == 4 and "CPU" in found.device
    assert found.milliseconds[0] > 0 and found.milliseconds == sorted(found.milliseconds)
    assert model.training and hooks == [len(module._forward_hooks) for module in model.layer_modules]


class Slow(nn.Module):
    """A block that takes its time."""

    calls = 0

    def forward(self, x):
        Slow.calls += 1
        time.sleep(0.01)
        return x


class Values(Task):
    def losses(self, prediction, target):
        return (prediction - target).square().mean(-1)


def test_a_block_and_a_readout_are_what_a_layer_costs():
    module = nn.Sequential(Slow(), Slow(), Slow())

    def slow_readout(hidden):
        time.sleep(0.005)
        return hidden

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = module

        def forward(self, x):
            return self.blocks(x)

    model = layered(Named(), blocks="blocks", readout=slow_readout)
    data = [{"x": torch.zeros(2), "labels": torch.zeros(2)} for _ in range(3)]
    Slow.calls = 0
    found = outcome(latency, subject(model, Values(), data, batch_size=8))
    assert Slow.calls == 3 * (WARM_UP + REPEATS) and found.batch_size == 3
    # A sleep is never shorter than it was asked to be.
    assert all(3 * value >= 5 + 10 * layer for layer, value in enumerate(found.milliseconds))


def test_a_busy_moment_in_every_pass_is_no_slow_layer(monkeypatch):
    """A clock of 1 ms between two looks at it, and of 50 more at one place of each pass, another every time."""
    places = 4 + 3  # of a pass: its start and the first block's, the ends of three blocks, the readout's start and end
    looks, now = 0, 0.0

    def clock(device):
        nonlocal looks, now
        turn, place = divmod(looks, places)
        looks, now = looks + 1, now + 0.001 + 0.05 * (place == 1 + turn % 4)
        return now

    monkeypatch.setattr("descend.evaluation.latency.now", clock)
    found = outcome(latency, subject(own.layers(), own.Classes(), own.samples(4), batch_size=4))
    assert looks == places * (WARM_UP + REPEATS)
    assert [4 * value for value in found.milliseconds] == pytest.approx([2, 3, 4, 5])


def test_a_model_that_names_no_layers_is_not_timed():
    module = UT(UTConfig(depth=2))

    class Whole(LayeredModel):
        depth = 2

        def get_input_embeddings(self):
            return module.get_input_embeddings()

        def layer_outputs(self, inputs):
            return module.layer_outputs(inputs)

        def readout(self, hidden):
            return hidden

    assert outcome(latency, subject(Whole(), VideoDenoising(), frames())) is None
