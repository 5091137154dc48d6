"""One compiled graph for all steps, with the numbers of eager mode."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from descend import UT, DescentConfig, DescentTrainer, GaussianNoise, Objective, UTConfig
from descend.models import LayeredCausalLM, ViTDenoiser, ViTDenoiserConfig
from descend.tasks.video import VideoDenoising
from tests.support.networks import QUIET, causal, network

VIDEO = ["UT", "ViT"]
TEXT = ["distilbert", "roberta", "descend-text-ut", "modernbert", "llama"]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs():
    return counters["stats"]["unique_graphs"]


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


def made(name):
    noise = GaussianNoise(0.5, seed=3)
    if name == "UT":
        return Objective(UT(UTConfig(depth=3)), VideoDenoising(), noise), [windows()] * 6
    if name == "ViT":
        sizes = {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32}
        config = ViTDenoiserConfig(num_hidden_layers=3, patch_size=4, **sizes)
        return Objective(ViTDenoiser(config), VideoDenoising(), noise), [windows(config.frame_patch)] * 6
    batches = [texts(9), texts(9, left=True), texts(11), texts(12), texts(9), texts(14)]
    return Objective(network(name), None, noise), batches


def weights_of(step):
    """Other ones at every step; at some an inner exit has none."""
    return [0.0 if step % 2 else 0.1 * step, 0.3 + 0.07 * step, 0.5 / (1 + step), 1.0]


def outcome(objective, weights, batch):
    objective.zero_grad()
    losses = objective(weights, **batch)
    losses.lagrangian.backward()
    return losses, [each.grad.clone() for each in objective.parameters() if each.grad is not None]


@pytest.mark.parametrize("name", [*VIDEO, *TEXT])
def test_weights_and_noise_do_not_compile_anew(name):
    objective, batches = made(name)
    plain, _ = made(name)
    plain.load_state_dict(objective.state_dict())
    objective.eval(), plain.eval()
    objective.compile(backend="aot_eager" if name in VIDEO else "eager")
    for step, batch in enumerate(batches):
        losses, gradients = outcome(objective, weights_of(step), batch)
        expected, others = outcome(plain, weights_of(step), batch)
        assert list(losses.sums) == pytest.approx(list(expected.sums), rel=1e-5)
        torch.testing.assert_close(losses.lagrangian, expected.lagrangian, rtol=1e-5, atol=1e-5)
        for one, other in zip(gradients, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    # The first pass is eager; texts of another length compile once more, for any length.
    assert graphs() == (1 if name in VIDEO else 2)
    assert not counters["graph_break"]
    outcome(objective, [0.0, 0.0, 0.0, 1.0], batches[0])  # a warm-up has a graph of its own
    assert graphs() <= (2 if name in VIDEO else 4)


@pytest.mark.parametrize("method", ["constrained", "erm"])
def test_a_compiled_run_is_an_eager_one(tmp_path, method):
    data = [{"patches": row} for row in torch.rand(16, 3, 100, 256, generator=torch.Generator().manual_seed(0))]
    losses = {}
    for backend in (None, "aot_eager"):
        compiled = {"torch_compile": True, "torch_compile_backend": backend} if backend else {}
        args = DescentConfig(
            str(tmp_path / str(backend)), method=method, alpha="0.9", dual_warmup_steps=2, max_steps=8,
            per_device_train_batch_size=4, learning_rate=1e-3, **QUIET, **compiled,
        )  # fmt: skip
        trainer = DescentTrainer(
            UT(UTConfig(depth=3)), args, task=VideoDenoising(), noise=GaussianNoise(0.8, 0.3, seed=1),
            train_dataset=data,
        )  # fmt: skip
        trainer.train()
        rows = [row for row in trainer.state.log_history if "loss/3" in row]
        losses[backend] = [[row[f"loss/{layer}"] for layer in range(4)] for row in rows]
    assert len(losses[None]) == 8
    for eager, compiled in zip(losses[None], losses["aot_eager"], strict=True):
        assert compiled == pytest.approx(eager, rel=1e-4)
    assert 1 <= graphs() <= 2 and not counters["graph_break"]


def test_what_is_not_compiled_says_so(caplog):
    objective = Objective(LayeredCausalLM(causal())).eval()
    objective.compile(backend="eager")
    assert "torch_compile has no effect on LlamaForCausalLM" in caplog.text
    ids = torch.arange(12).reshape(2, 6) + 5
    objective([0.1, 0.2, 0.3, 1.0], input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    assert graphs() == 0
