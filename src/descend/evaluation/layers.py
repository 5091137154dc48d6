"""Losses and metrics of every layer on a data set, at one noise level."""

from collections.abc import Callable, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from descend.noise import Noise
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
    model: Any,
    task: Task,
    dataset: Dataset,
    noise: Noise | None = None,
    *,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
    progress: tqdm | None = None,
) -> LayerLosses:
    """Measure every layer on every sample of a data set, in one forward pass.

    The noise of a sample depends on the noise's seed and the sample's index alone: every model and every level meets
    the same draws. Metrics are over the whole data set, not a mean of batch means.

    Args:
        model: A `LayeredModel`; its training mode is left as it was.
        task: The loss and the metric.
        dataset: Samples with an ``index``, and a ``group`` where some are not independent.
        noise: On the output of the model's input embedding; None for clean inputs.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.
        progress: A bar to advance by one per sample.
    """
    training = model.training
    model.eval()
    losses, groups, scores = [], [], torch.zeros(model.depth + 1, dtype=torch.float64)
    # A generator of its own: a loader draws a seed from the global one, which is the training's.
    for batch in DataLoader(dataset, batch_size=batch_size, generator=torch.Generator(), collate_fn=collate):
        batch = send_to_device(batch, device)
        inputs, target = task.inputs(batch), task.target(batch)
        perturbed = noise.on(model, mask=task.mask(batch), indices=batch["index"].tolist()) if noise else nullcontext()
        with perturbed:
            of_layers = [(task.losses(each, target), task.score(each, target)) for each in model.predictions(inputs)]
        groups.append(batch.get("group", batch["index"]).cpu())
        losses.append(torch.stack([loss for loss, _ in of_layers], 1).cpu().double())
        scores += torch.stack([score for _, score in of_layers]).cpu().double().sum(1)
        if progress is not None:
            progress.update(len(target))
    model.train(training)
    count = len(cast(Sized, dataset))
    return LayerLosses(
        torch.cat(losses), torch.cat(groups), [task.metric_value(score, count) for score in scores.tolist()]
    )
