"""Exits read in one batch against exits read one by one."""

import pytest
import torch

from descend import UT, GaussianNoise, Objective, Task, UTConfig, objective
from descend.models import DUST, DUSTConfig
from descend.tasks.video import VideoDenoising
from tests.support.networks import network
from tests.support.own import layers

WEIGHTS = (0.0, 0.5, 0.0, 1.0)


PATCHES = {"patches": torch.rand(2, 3, 100, 256, generator=torch.Generator().manual_seed(0))}


def made(name):
    """A model of three layers with its task, and a batch."""
    if name in ("UT", "DUST"):
        model = UT(UTConfig(depth=3)) if name == "UT" else DUST(DUSTConfig(depth=3))
        return Objective(model, VideoDenoising()).eval(), PATCHES
    ids = torch.randint(5, 30, (6, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[3:, 6:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(6) % 2}
    return Objective(network(name)).eval(), batch


def outcome(model, weights, batch):
    model.zero_grad()
    losses = model(weights, **batch)
    losses.lagrangian.backward()
    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return losses, gradients


@pytest.mark.parametrize("weights", [WEIGHTS, (0.1, 0.2, 0.3, 0.4), (0.0, 0.0, 0.0, 1.0)])
@pytest.mark.parametrize("name", ["UT", "DUST", "distilbert", "bert", "roberta"])
def test_exits_in_one_batch_are_those_read_one_by_one(monkeypatch, name, weights):
    """A batch for exits that need a gradient, and one for those that don't; a CPU reads those of video one by one."""
    model, batch = made(name)
    calls, losses = [], type(model.task).losses
    monkeypatch.setattr(type(model.task), "losses", lambda self, *given: calls.append(1) or losses(self, *given))
    at_once = model.model.reads_together
    model.model.reads_together = False
    apart, expected = outcome(model, weights, batch)
    assert len(calls) == 4
    model.model.reads_together = at_once
    monkeypatch.setattr(objective, "TOGETHER_ON_CPU", objective.TOGETHER)
    together, gradients = outcome(model, weights, batch)
    assert len(calls) == 4 + len({weight == 0 for weight in weights})
    assert list(together.sums) == pytest.approx(list(apart.sums), rel=1e-6)
    torch.testing.assert_close(together.lagrangian, apart.lagrangian)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_an_exit_of_weight_0_may_be_infinite():
    class Infinite(VideoDenoising):
        def losses(self, prediction, target):
            losses = super().losses(prediction, target)
            return torch.where(losses > 5, losses * float("inf"), losses)

    model = Objective(UT(UTConfig(depth=2)), Infinite(), GaussianNoise(8.0, 0.5)).eval()
    losses, _ = outcome(model, (0.0, 0.0, 1.0), PATCHES)
    assert losses.sums[0] == float("inf")
    assert losses.lagrangian.isfinite() == torch.tensor(losses.sums[2]).isfinite()


class Coupled(Task):
    """A loss that depends on the other predictions of the batch, as a contrastive one does."""

    def losses(self, prediction, target):
        return (prediction - prediction.mean(0)).square().sum(-1)


@pytest.mark.parametrize("weights", [(0.0, 0.0, 0.0, 1.0), (0.1, 0.2, 0.3, 0.4), (0.0, 0.5, 0.0, 0.5)])
def test_a_loss_that_couples_samples_sees_one_layer_at_a_time(weights):
    model = Objective(layers(), Coupled()).eval()
    batch = {"x": torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), "labels": torch.arange(6)}
    with torch.no_grad():
        predictions = list(model.model.predictions({"x": batch["x"]}))
    alone = [model.task.losses(each, batch["labels"]).sum().item() for each in predictions]
    assert list(model(weights, **batch).sums) == pytest.approx(alone, rel=1e-5)
