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
        predictions: The last layer's predictions, (S, …), and their targets, (S, …), if they were asked for.
    """

    losses: Tensor
    groups: Tensor
    metrics: list[float]
    predictions: tuple[Tensor, Tensor] | None = None

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
    keep_predictions: bool = False,
    progress: tqdm | None = None,
) -> LayerLosses:
    """Measure every layer on every sample of a data set, in one forward pass.

    The noise of a sample depends on the noise's seed and the sample's number alone: every model and every level meets
    the same draws. Metrics are over the whole data set, not a mean of batch means.

    Args:
        model: A `LayeredModel`; its training mode is left as it was.
        task: The loss and the metric.
        dataset: Samples, numbered by their place, with a ``group`` where some are not independent.
        noise: On the output of the model's input embedding; None for clean inputs.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.
        keep_predictions: Give the last layer's predictions too.
        progress: A bar to advance by one per sample.
    """
    training = model.training
    model.eval()
    losses, groups, scores, seen = [], [], torch.zeros(model.depth + 1, dtype=torch.float64), 0
    kept: list[tuple[Tensor, Tensor]] = []
    # A generator of its own: a loader draws a seed from the global one, which is the training's.
    for batch in DataLoader(dataset, batch_size=batch_size, generator=torch.Generator(), collate_fn=collate):
        batch = send_to_device(batch, device)
        inputs, target = task.inputs(batch), task.target(batch)
        numbers = range(seen, seen + len(target))
        seen += len(target)
        with noise.on(model, mask=task.mask(batch), indices=numbers) if noise else nullcontext():
            of_layers = []
            for last in model.predictions(inputs):
                of_layers.append((task.losses(last, target), task.score(last, target)))
            if keep_predictions:
                kept.append((last.cpu(), target.cpu()))
        groups.append(batch.get("group", torch.tensor(numbers)).cpu())
        losses.append(torch.stack([loss for loss, _ in of_layers], 1).cpu().double())
        scores += torch.stack([score for _, score in of_layers]).cpu().double().sum(1)
        if progress is not None:
            progress.update(len(target))
    model.train(training)
    count = len(cast(Sized, dataset))
    return LayerLosses(
        torch.cat(losses),
        torch.cat(groups),
        [task.metric_value(score, count) for score in scores.tolist()],
        (torch.cat([one for one, _ in kept]), torch.cat([one for _, one in kept])) if kept else None,
    )
