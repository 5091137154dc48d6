"""The energy that an unrolled model's layers descend, along the layers and over noise."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader, Dataset, Subset

from descend.evaluation.layers import evenly
from descend.models.denoiser import UnrolledModel
from descend.noise import Noise
from descend.objective import Task
from descend.results import ByLevel

MOST_SAMPLES = 32
"""Samples to measure on, taken evenly: the average settles after few, and each needs another forward pass."""


@torch.no_grad()
def energies(
    model: UnrolledModel,
    task: Task,
    dataset: Dataset,
    noise: Noise,
    *,
    levels: Iterable[float],
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
) -> ByLevel:
    """The mean energy of h_0 … h_L over samples and patch positions, L+1 numbers for each γ.

    Args:
        model: A model whose layers descend an energy.
        task: Makes the model's inputs of a batch.
        dataset: Samples, numbered by their place; their noise is the same as in all other evaluation.
        noise: As in `robustness`.
        levels: Levels γ.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.
    """
    size = len(dataset)  # type: ignore[arg-type]
    count = min(size, MOST_SAMPLES)
    chosen = evenly(size, count)
    model.eval()
    by_level: ByLevel = {}
    for level in levels:
        total = torch.zeros(model.depth + 1, dtype=torch.float64)
        numbers = iter(chosen)
        loader = DataLoader(
            Subset(dataset, chosen), batch_size=batch_size, generator=torch.Generator(), collate_fn=collate
        )
        for batch in loader:
            inputs = task.inputs(send_to_device(batch, device))
            indices = [next(numbers) for _ in range(len(inputs))]
            with noise.at(level).on(model, indices=indices):
                total += model.energies(inputs).double().sum(1).cpu()
        by_level[level] = (total / count).tolist()
    return by_level
