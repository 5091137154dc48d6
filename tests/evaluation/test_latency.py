"""The time to each layer: of every kind of model, and in the right order."""

import pytest
from transformers import default_data_collator

from descend.evaluation.latency import REPEATS, WARM_UP, latency
from tests.support import own
from tests.support.subjects import CASES, outcome, subject


@pytest.mark.parametrize("name", CASES)
def test_deeper_layers_take_longer(name):
    model, task, data = CASES[name]()
    model.train()
    seen = subject(model, task, data, batch_size=4, collate=default_data_collator)
    outcome(latency, seen)  # Transformers hooks its blocks in the first pass
    hooks = [len(module._forward_hooks) for module in model.layer_modules]
    found = outcome(latency, seen)
    assert len(found.milliseconds) == model.depth + 1 and found.batch_size == 4 and "CPU" in found.device
    assert found.milliseconds[0] > 0 and found.milliseconds == sorted(found.milliseconds)
    assert model.training and hooks == [len(module._forward_hooks) for module in model.layer_modules]


def test_a_busy_moment_in_every_pass_is_no_slow_layer_and_each_layer_has_a_readout(monkeypatch):
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


def test_a_model_that_names_no_layers_is_not_timed(monkeypatch):
    model = own.layers()
    monkeypatch.setattr(type(model), "layer_modules", [])
    assert outcome(latency, subject(model, own.Classes(), own.samples(4))) is None
