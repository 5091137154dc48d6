"""Losses and metrics of every layer on a data set, at one noise level."""

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from descend.models.layered import LayeredModel
from descend.noise import paired_draws
from descend.objective import Task


@dataclass(frozen=True)
class LayerLosses:
    """What `measure` found.

    Attributes:
        losses: f_l of every sample, (S, L+1), double, on the host.
        groups: Which group each sample belongs to, (S,): samples of one group, such as the windows of a clip, are
            not independent.
        metrics: The metric of each layer over the whole data set, L+1 numbers.
    """

    losses: Tensor
    groups: Tensor
    metrics: list[float]

    @property
    def descending_share(self) -> float:
        """The share of (sample, layer) steps on which the loss falls, f_l < f_{l−1}."""
        return (self.losses[:, 1:] < self.losses[:, :-1]).double().mean().item()


@torch.no_grad()
def measure(
    model: LayeredModel,
    task: Task,
    dataset: Dataset,
    *,
    level: float,
    sigma: float,
    seed: int = 0,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    progress: tqdm | None = None,
) -> LayerLosses:
    """Measure every layer on every sample of a data set, in one forward pass.

    The noise of a sample depends on the seed and the sample's index alone: every model and every level meets the
    same draws. Metrics are over the whole data set, not a mean of batch means.

    Args:
        model: The model; its training mode is left as it was.
        task: The loss and the metric.
        dataset: Samples with an ``index``, and a ``group`` where some are not independent.
        level: γ.
        sigma: σ_x of the clean training data.
        seed: Of the noise.
        batch_size: Samples at a time.
        device: Where to compute.
        progress: A bar to advance by one per sample.
    """
    training = model.training  # type: ignore[attr-defined]
    model.eval()  # type: ignore[attr-defined]
    losses, groups, scores = [], [], torch.zeros(model.depth + 1, dtype=torch.float64)
    # A generator of its own: a loader draws a seed from the global one, which is the training's.
    for batch in DataLoader(dataset, batch_size=batch_size, generator=torch.Generator()):
        clean, target = task.inputs(batch), task.target(batch)
        noisy = add_noise(clean, batch, level * sigma, seed).to(device)
        target = target.to(device)
        of_layers = [(task.losses(each, target), task.score(each, target)) for each in model.predictions(noisy)]
        groups.append(batch.get("group", batch["index"]))
        losses.append(torch.stack([loss for loss, _ in of_layers], 1).cpu().double())
        scores += torch.stack([score for _, score in of_layers]).cpu().double().sum(1)
        if progress is not None:
            progress.update(len(target))
    model.train(training)  # type: ignore[attr-defined]
    count = len(cast(Sized, dataset))
    return LayerLosses(
        torch.cat(losses), torch.cat(groups), [task.metric_value(score, count) for score in scores.tolist()]
    )


def add_noise(clean: Tensor, batch: dict[str, Any], std: float, seed: int) -> Tensor:
    """The samples of a batch with their own paired noise of this standard deviation."""
    if std == 0:
        return clean
    return clean + std * paired_draws(batch["index"].tolist(), clean.shape[1:], seed).to(clean)
