"""Exits read in one batch against exits read one by one, and one compiled graph with the numbers of eager mode."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from descend import UT, GaussianNoise, Objective, Task, UTConfig, objective
from descend.models import DUST, DUSTConfig, LayeredCausalLM, ViTDenoiser, ViTDenoiserConfig
from descend.tasks.video import VideoDenoising
from tests.support.networks import causal, network
from tests.support.own import layers
from tests.support.ranks import denoiser, fitted

TEXT = ["bert, own exits", "roberta", "descend-text-ut", "modernbert", "llama"]
WEIGHTS = (0.0, 0.5, 0.0, 1.0)
SIZES = {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32, "patch_size": 4}
VIDEO = {
    "UT": lambda: UT(UTConfig(depth=3)),
    "DUST": lambda: DUST(DUSTConfig(depth=3)),
    "ViT": lambda: ViTDenoiser(ViTDenoiserConfig(num_hidden_layers=3, **SIZES)),
}


def windows(size=16):
    count = (160 // size) ** 2
    return {"patches": torch.rand(2, 3, count, size**2, generator=torch.Generator().manual_seed(0))}


def texts(length=9, *, left=False):
    ids = torch.randint(5, 30, (6, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    mask[3:, :3] = 0 if left else 1
    mask[3:, 6:] = 1 if left else 0
    pad = torch.where(mask.bool(), ids, 1)  # RoBERTa's padding token
    return {"input_ids": pad, "attention_mask": mask, "labels": torch.arange(6) % 3}


def made(name, noise=None):
    """The objective of a model of three layers, and batches of other lengths."""
    if name in VIDEO:
        model = VIDEO[name]()
        return Objective(model, VideoDenoising(), noise).eval(), [windows(getattr(model.config, "frame_patch", 16))] * 6
    batches = [texts(9), texts(9, left=True), texts(11), texts(12), texts(9), texts(14)]
    name, _, exits = name.partition(", ")
    model = Objective(network(name), None, noise).eval()
    if exits:
        model.model.give_own_exits()
    return model, batches


def outcome(model, weights, batch):
    model.zero_grad()
    losses = model(weights, **batch)
    losses.lagrangian.backward()
    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return losses, gradients


@pytest.mark.parametrize("weights", [WEIGHTS, (0.1, 0.2, 0.3, 0.4), (0.0, 0.0, 0.0, 1.0)])
@pytest.mark.parametrize("name", [*VIDEO, "distilbert", "bert", "roberta"])
def test_exits_in_one_batch_are_those_read_one_by_one(monkeypatch, name, weights):
    """A batch for exits that need a gradient, and one for those that don't; a CPU reads those of video one by one."""
    model, (batch, *_) = made(name)
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
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-6)


def test_an_exit_of_weight_0_may_be_infinite():
    class Infinite(VideoDenoising):
        def losses(self, prediction, target):
            losses = super().losses(prediction, target)
            return torch.where(losses > 5, losses * float("inf"), losses)

    model = Objective(UT(UTConfig(depth=2)), Infinite(), GaussianNoise(8.0, 0.5)).eval()
    losses, _ = outcome(model, (0.0, 0.0, 1.0), windows())
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


# --- compiled


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs():
    return counters["stats"]["unique_graphs"]


def weights_of(step):
    """Other ones at every step; at some an inner exit has none."""
    return [0.0 if step % 2 else 0.1 * step, 0.3 + 0.07 * step, 0.5 / (1 + step), 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["UT", "ViT", *TEXT])
def test_weights_and_noise_do_not_compile_anew(fresh, name):
    objective, batches = made(name, GaussianNoise(0.5, seed=3))
    plain, _ = made(name, GaussianNoise(0.5, seed=3))
    plain.load_state_dict(objective.state_dict())
    objective.compile(backend="aot_eager" if name in VIDEO else "eager")
    for step, batch in enumerate(batches):
        losses, gradients = outcome(objective, weights_of(step), batch)
        expected, others = outcome(plain, weights_of(step), batch)
        assert list(losses.sums) == pytest.approx(list(expected.sums), rel=1e-5)
        torch.testing.assert_close(losses.lagrangian, expected.lagrangian, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradients, others, rtol=1e-4, atol=1e-5)
    # The first pass is eager; texts of another length compile once more, for any length.
    assert graphs() == (1 if name in VIDEO else 2)
    assert not counters["graph_break"]
    outcome(objective, [0.0, 0.0, 0.0, 1.0], batches[0])  # a warm-up has its own graph
    assert graphs() <= (2 if name in VIDEO else 4)


@pytest.mark.slow
def test_a_compiled_run_is_an_eager_one(fresh, tmp_path):
    losses = {}
    for backend in (None, "aot_eager"):
        compiled = {"torch_compile": True, "torch_compile_backend": backend} if backend else {}
        settings = {"alpha": "0.9", "dual_warmup_steps": 2, "max_steps": 8, "learning_rate": 1e-3} | compiled
        logs = fitted(denoiser(tmp_path / str(backend), 3, **settings)).state.log_history
        losses[backend] = [[row[f"loss/{layer}"] for layer in range(4)] for row in logs if "loss/3" in row]
    assert len(losses[None]) == 8
    for eager, compiled in zip(losses[None], losses["aot_eager"], strict=True):
        assert compiled == pytest.approx(eager, rel=1e-4)
    assert 1 <= graphs() <= 2 and not counters["graph_break"]


def test_what_is_not_compiled_says_so(fresh, caplog):
    objective = Objective(LayeredCausalLM(causal())).eval()
    objective.compile(backend="eager")
    assert "torch_compile has no effect on LlamaForCausalLM" in caplog.text
    ids = torch.arange(12).reshape(2, 6) + 5
    objective([0.1, 0.2, 0.3, 1.0], input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    assert graphs() == 0
