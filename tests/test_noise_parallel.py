"""Noise under DistributedDataParallel: each rank draws its own, and gradients are those of the whole batch."""

from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from descend import GaussianNoise, Objective
from descend.models import LayeredClassifier
from descend.seeds import Stream, generator_of
from tests.support.forking import prepared
from tests.support.networks import network

RANKS = 2
PLACE = 4, 1
EVEN = [1.0] * (network("distilbert").config.num_hidden_layers + 1)


def batch(rank: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    mask = (torch.arange(8) < torch.tensor([[8], [5], [3]])).long()
    ids = torch.randint(5, 40, (3, 8), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(3, (3,), generator=generator)}


def objective(noise: GaussianNoise) -> Objective:
    return Objective(
        LayeredClassifier(network("distilbert", dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0)),
        noise=noise,
    )


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


def work(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    inner = objective(GaussianNoise(1.0, seed=3))
    inner.begin(*PLACE)
    wrapped = DistributedDataParallel(inner)
    found = wrapped(weights=EVEN, **batch(rank))
    found.lagrangian.backward()
    torch.save({"sums": list(found.sums), "gradients": gradients(inner)}, Path(folder) / f"{rank}.pt")
    # Together, and with nothing left that still talks to the other: a rank that goes first may leave it waiting.
    del wrapped
    distributed.barrier()
    distributed.destroy_process_group()


def test_ranks_draw_their_own_noise_and_gradients_are_their_mean(tmp_path):
    multiprocessing.start_processes(work, (str(tmp_path),), nprocs=RANKS, start_method=prepared())
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    for one, other in zip(ranks[0]["gradients"], ranks[1]["gradients"], strict=True):
        assert torch.equal(one, other)
    total = None
    draws = []
    for rank, found in enumerate(ranks):
        # One process with the draws of that rank.
        alone = objective(GaussianNoise(1.0, seed=3))
        alone.noise._draws.generator = lambda device, rank=rank: generator_of(Stream.NOISE, 3, rank, *PLACE)
        draws.append(torch.randn(3, generator=generator_of(Stream.NOISE, 3, rank, *PLACE)))
        expected = alone(weights=EVEN, **batch(rank))
        torch.testing.assert_close(found["sums"], list(expected.sums))
        expected.lagrangian.backward()
        mine = gradients(alone)
        total = mine if total is None else [one + other for one, other in zip(total, mine, strict=True)]
    assert not torch.equal(*draws)
    for one, expected in zip(ranks[0]["gradients"], total, strict=True):
        torch.testing.assert_close(one, expected / RANKS, rtol=1e-4, atol=1e-6)
