"""R-Drop: two passes of every sample through the one loop, against the two passes written by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from descend import DescentConfig, GaussianNoise
from descend.objective import Objective
from descend.seeds import Stream, generator_of
from descend.tasks.text import Classification
from descend.training.methods import RDrop
from tests.support import networks, ranks

STILL = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
LAST = [0.0, 0.0, 0.0, 1.0]


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Five texts of one to nine tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([[9], [4], [1], [7], [6]])
    return {
        "input_ids": torch.randint(1, 40, (5, 9), generator=generator),
        "attention_mask": (torch.arange(9) < lengths).long(),
        "labels": torch.tensor([0, 2, 1, 1, 0]),
    }


def objective(noise=0.0, r_drop=None, **settings) -> Objective:
    model = networks.network("distilbert", **settings).double().train()
    with torch.no_grad():  # as it is made it tells all texts alike
        for layer in (model.pre_classifier, model.classifier):
            layer.weight.mul_(30)
    ours = Objective(model, noise=GaussianNoise(noise, 0.3, seed=4) if noise else None)
    if r_drop is not None:
        args = DescentConfig("unused", method="r-drop", r_drop=r_drop, use_cpu=True, report_to="none")
        RDrop(args).attach(SimpleNamespace(objective=ours, dual=args.primal_dual(3)))
    return ours


def slopes(objective: Objective, loss: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(objective.parameters()), allow_unused=True)
    return torch.cat([each.flatten() for each in found if each is not None])


def test_the_step_is_that_of_two_passes_by_hand(batch):
    ours = objective(noise=0.8, r_drop=0.7, **STILL)
    found = ours(LAST, **batch)
    # Each pass with the noise that is its own: the draw covers both, one after the other.
    model, mask = ours.model.network, batch["attention_mask"]
    words = model.get_input_embeddings()(batch["input_ids"])
    draw = torch.randn(10, *words.shape[1:], generator=generator_of(Stream.NOISE, 4, 0), dtype=torch.float64)
    kept = mask.bool()[..., None]
    passes = [
        model(inputs_embeds=torch.where(kept, words + 0.8 * 0.3 * each, words), attention_mask=mask).logits
        for each in draw.chunk(2)
    ]
    first, second = (logits.log_softmax(-1) for logits in passes)
    entropy = sum(F.cross_entropy(logits, batch["labels"], reduction="sum") for logits in passes) / 2
    apart = F.kl_div(first, second, reduction="sum", log_target=True)  # KL(q‖p), and the other way round
    apart = (apart + F.kl_div(second, first, reduction="sum", log_target=True)) / 2
    assert apart > 1e-3
    torch.testing.assert_close(found.lagrangian, entropy + 0.7 * apart, rtol=1e-12, atol=1e-12)
    assert (found.sums[-1], found.targets) == (pytest.approx(entropy.item(), rel=1e-12), 5)
    expected = slopes(ours, entropy + 0.7 * apart)
    torch.testing.assert_close(slopes(ours, found.lagrangian), expected, rtol=1e-10, atol=1e-12)
    assert expected.abs().max() > 0.01


def test_the_passes_have_dropout_of_their_own(batch):
    added = []
    for price in (0.0, 1.0, 2.0):
        ours = objective(r_drop=price, dropout=0.3)
        torch.manual_seed(1)
        found = ours(LAST, **batch)
        added.append(found.lagrangian.item() - found.sums[-1])
    assert added[0] == 0 and added[1] > 1e-2 and added[2] == pytest.approx(2 * added[1])


def test_the_disagreement_is_symmetric_and_of_half_precision_in_full():
    one, other = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).unbind()
    task = Classification()
    apart = task.disagreement(one, other)
    torch.testing.assert_close(apart, task.disagreement(other, one))
    assert (apart > 0).all() and task.disagreement(one, one).tolist() == [0] * 4
    assert task.disagreement(one.bfloat16(), other.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_whose_passes_agree_learns_and_logs_what_erm_does(tmp_path, accumulation):
    """Without dropout and noise."""
    erm, ours = (
        ranks.trained("classifier", tmp_path / method, 8 // accumulation, accumulation, method=method, max_steps=4)
        for method in ("erm", "r-drop")
    )
    for name in erm:
        torch.testing.assert_close(ours[name], erm[name], rtol=1e-6, atol=1e-8, msg=name)
    start = networks.network("distilbert", **STILL).classifier.weight
    assert (ours["θ model.network.classifier.weight"] - start).norm() > 1e-3 and len(ours["losses"]) == 4 * 4
