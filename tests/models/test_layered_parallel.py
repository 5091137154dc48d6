"""A layered module of one's own under DDP and FSDP2: gradients are those of the whole batch, and no hook stays."""

import pytest
import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from descend import Objective
from tests.support.forking import prepared
from tests.support.own import Classes, layers, mlp, samples

RANKS = 2
WEIGHTS = [0.1, 0.2, 0.3, 0.4]


def batch(numbers: list[int]) -> dict[str, torch.Tensor]:
    rows = [samples(8)[number] for number in numbers]
    return {"x": torch.stack([row["x"] for row in rows]), "labels": torch.tensor([row["labels"] for row in rows])}


def objective() -> Objective:
    network = mlp()
    network.head = torch.nn.Sequential(network.norm, network.head)
    network.norm = torch.nn.Identity()
    return Objective(layers(network, readout="head"), Classes())


def work(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    found = {way: gradients(rank, way) for way in ("ddp", "fsdp")}
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    distributed.barrier()  # gloo may abort a rank whose peer is gone already
    distributed.destroy_process_group()


def gradients(rank: int, way: str) -> dict[str, object]:
    inner = objective()
    if way == "ddp":
        wrapped = DistributedDataParallel(inner)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        for block in inner.model.layer_modules:
            fully_shard(block, mesh=mesh)
        wrapped = fully_shard(inner, mesh=mesh)
    for _ in range(2):
        wrapped.zero_grad()
        losses = wrapped(weights=WEIGHTS, **batch(list(range(rank, 8, RANKS))))
        losses.lagrangian.backward()
    whole = [each.grad.full_tensor() if way == "fsdp" else each.grad for each in inner.parameters()]
    hooks = sum(len(each._forward_hooks) for each in inner.model.saved.modules() if way == "ddp")
    return {"gradients": whole, "hooks": hooks, "sums": list(losses.sums)}


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What two ranks find in each way of parallel training."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.start_processes(work, (str(folder),), nprocs=RANKS, start_method=prepared())
    return torch.load(folder / "found.pt")


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_gradients_are_those_of_the_whole_batch(of_ranks: dict[str, dict[str, object]], way: str):
    found = of_ranks[way]
    alone = objective()
    alone(weights=WEIGHTS, **batch(list(range(8)))).lagrangian.backward()
    for gradient, parameter in zip(found["gradients"], alone.parameters(), strict=True):
        torch.testing.assert_close(gradient * RANKS, parameter.grad)
    assert found["hooks"] == 0 and len(found["sums"]) == 4
