"""Losses and metrics of every layer on a data set, at one noise level."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from descend.errors import InputError
from descend.evaluation.probes import Probed
from descend.evaluation.readings import Readings, WatchRows, read_language_model, read_predictions
from descend.models.causal import LayeredCausalLM
from descend.models.modules import evaluating
from descend.noise import Noise, SampleDraws
from descend.objective import Task
from descend.progress import Progress


@dataclass(frozen=True)
class LayerLosses:
    """The result of `measure`.

    Attributes:
        losses: f_l of every target, (S, L+1), double, on the host: of a sample, or of a token of a text.
        groups: Which group each belongs to, (S,): those of one group, such as the windows of a clip or the tokens of a
            text, are not independent.
        metrics: The metric of each layer over the whole data set, L+1 numbers.
        scores: What the metric is made of, of each, (S, L+1), double.
        decisions: The class that each layer decides for, (S, L+1), and its probability; both None if the task has no
            decisions.
        confidences: See ``decisions``.
        logits: Those of every layer, (S, L+1, C), and their targets, (S,), if they were asked for.
    """

    losses: Tensor
    groups: Tensor
    metrics: list[float]
    scores: Tensor | None = None
    decisions: Tensor | None = None
    confidences: Tensor | None = None
    logits: tuple[Tensor, Tensor] | None = None

    @property
    def ratios(self) -> Tensor:
        """f_l / f_{l−1} of every sample, (S, L); infinite where f_{l−1} = 0 < f_l, and 1 where both are 0."""
        before, after = self.losses[:, :-1], self.losses[:, 1:]
        return torch.where((before == 0) & (after == 0), 1.0, after / before)

    @property
    def descending_share(self) -> float:
        """The share of (sample, layer) steps on which the loss falls, f_l < f_{l−1}."""
        return (self.losses[:, 1:] < self.losses[:, :-1]).double().mean().item()

    @cached_property
    def _named(self) -> tuple[Tensor, Tensor]:
        """The groups' numbers, (G,), and the place of each sample's among them, (S,)."""
        return self.groups.unique(return_inverse=True)

    @property
    def group_count(self) -> int:
        """How many groups there are."""
        return len(self._named[0])

    def by_group(self, values: Tensor) -> Tensor:
        """Sums of values (S, …) over each group, (G, …), in the order of the groups' numbers."""
        names, place = self._named
        return values.new_zeros(len(names), *values.shape[1:]).index_add(0, place, values)

    @property
    def settled(self) -> Tensor | None:
        """The first layer from which on a sample's decision does not change any more, (S,)."""
        if self.decisions is None:
            return None
        changes = self.decisions[:, 1:] != self.decisions[:, :-1]
        layers = torch.arange(1, changes.shape[1] + 1)
        return (changes * layers).amax(1)


MOST_FOR_SIGMA = 1024
"""Samples that σ_x is measured on, taken evenly."""


def evenly(size: int, count: int) -> list[int]:
    """The places of ``count`` of ``size`` samples, taken evenly; all of them where there are no more."""
    count = min(count, size)
    return [int((place + 0.5) * size / count) for place in range(count)]


def metric_value(task: Task, total: float, count: float) -> float:
    """A task's metric over a data set, from the sum of the scores and their number."""
    return math.sqrt(total / count) if task.root else total / count


@torch.no_grad()
def embedding_std(
    model: Any,
    task: Task,
    dataset: Any,
    *,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
) -> float:
    """σ_x, the standard deviation of the model's input embedding over a data set.

    The task's own `Task.sigma` if it knows; otherwise measured by running the model on up to `MOST_FOR_SIGMA` samples.

    Args:
        model: A layered model; its training mode is left as it was.
        task: Makes the model's inputs of a batch.
        dataset: Samples, numbered by their place.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.
    """
    embedding = model.get_input_embeddings()
    known = task.sigma(embedding, dataset)
    if known is not None:
        return known
    sums = torch.zeros(3, dtype=torch.float64)  # of 1, x and x²
    mask: Tensor | None = None

    def add(module: Any, args: Any, embedded: Tensor) -> None:
        values = (embedded if mask is None else embedded[mask]).double().cpu()
        sums.add_(torch.stack([torch.tensor(values.numel()).double(), values.sum(), values.square().sum()]))

    chosen = Subset(dataset, evenly(len(dataset), MOST_FOR_SIGMA))
    handle = embedding.register_forward_hook(add)
    try:
        with evaluating(model):
            for batch in batches_of(chosen, batch_size, collate):
                batch = send_to_device(batch, device)
                mask = task.mask(batch)
                next(iter(model.predictions(task.inputs(batch))))
    finally:
        handle.remove()
    count, total, squares = sums.tolist()
    return math.sqrt(max(squares / count - (total / count) ** 2, 0.0))


def batches_of(dataset: Any, size: int, collate: Callable[[list[Any]], Any] | None) -> DataLoader:
    """The batches of a data set, of ``size`` samples in their order."""
    # A generator of its own: a loader draws a seed from the global one, which is the training's.
    return DataLoader(dataset, batch_size=size, generator=torch.Generator(), collate_fn=collate)


Watch = Callable[[dict[str, Any], Tensor | None, Tensor], None]
"""Called with a batch, the last exit's prediction (None for a language model) and its losses."""


def measure(
    model: Any,
    task: Task,
    dataset: Dataset | None,
    noise: Noise | None = None,
    *,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
    watch: Watch | None = None,
    watch_rows: WatchRows | None = None,
    keep_logits: bool = False,
    loader: Iterable[Any] | None = None,
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
        watch: Called with each batch, while the batch's noise is on.
        watch_rows: Called with the last exit's logits of a language model, tile by tile.
        keep_logits: Give every layer's predictions, of a task whose predictions are logits (N, C).
        loader: Gives the batches, in place of ``dataset``, ``batch_size`` and ``collate``.

    Raises:
        InputError: If there is no sample, or none of them has a target.
    """
    ((measured, _),) = measure_levels(
        model,
        task,
        dataset,
        [noise],
        batch_size=batch_size,
        device=device,
        collate=collate,
        watch=watch,
        watch_rows=watch_rows,
        keep_logits=keep_logits,
        loader=loader,
    )
    return measured


@torch.no_grad()
def measure_levels(
    model: Any,
    task: Task,
    dataset: Dataset | None,
    noises: Sequence[Noise | None],
    *,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
    probed: Probed | None = None,
    watch: Watch | None = None,
    watch_rows: WatchRows | None = None,
    keep_logits: bool = False,
    loader: Iterable[Any] | None = None,
    progress: Progress | None = None,
) -> list[tuple[LayerLosses, LayerLosses | None]]:
    """Measure every layer at several noise levels, in one forward pass for each.

    A batch is loaded once, and a sample's noise is drawn once for all levels.

    Args:
        model: As in `measure`, like all other arguments that are not described here.
        task: See `measure`.
        dataset: See `measure`.
        noises: The noise of each level; None for clean inputs.
        batch_size: See `measure`.
        device: See `measure`.
        collate: See `measure`.
        probed: Linear probes of the model's layers, to be measured in the same forward passes.
        watch: See `measure`.
        watch_rows: See `measure`.
        keep_logits: See `measure`.
        loader: See `measure`.
        progress: A bar to advance by one per sample and level.

    Returns:
        For each level the layers' losses, and those of the probes or None.

    Raises:
        InputError: If there is no sample, or none of them has a target.
    """
    training = model.training
    model.eval()
    columns: list[tuple[_Columns, _Columns]] = [(defaultdict(list), defaultdict(list)) for _ in noises]
    all_groups: list[Tensor] = []
    targets: list[Tensor] = []
    seen = 0
    if loader is None:
        loader = batches_of(dataset, batch_size, collate)
    for batch in loader:
        batch = send_to_device(batch, device)
        inputs, target, mask = task.inputs(batch), task.target(batch), task.mask(batch)
        owners = task.owners(batch).cpu()
        size = len(next(value for value in batch.values() if isinstance(value, Tensor) and value.ndim))
        draws = SampleDraws(range(seen, seen + size))
        for noise, (by_head, by_probe) in zip(noises, columns, strict=True):
            noisy = noise is not None and noise.level > 0
            with noise.on(model, mask=mask, indices=draws) if noise and noisy else nullcontext():
                if isinstance(model, LayeredCausalLM) and "places" in inputs:
                    readings = read_language_model(model, inputs, task, target, watch_rows)
                elif probed is not None:
                    predictions, probes = probed.beside_head(inputs)
                    readings = read_predictions(predictions, task, target, keep_logits=keep_logits)
                    _add(by_probe, read_predictions(probes, task, target))
                else:
                    readings = read_predictions(model.predictions(inputs), task, target, keep_logits=keep_logits)
                _add(by_head, readings)
                if watch is not None:
                    watch(batch, readings.last, readings.losses[:, -1])
            if progress is not None:
                progress.update(size)
        groups = task.groups(batch)
        all_groups.append(seen + owners if groups is None else groups.cpu()[owners])
        targets.append(target.cpu() if keep_logits else target[:0].cpu())
        # Of packed texts there are more than rows.
        seen += max(size, int(owners.max()) + 1 if len(owners) else 0)
    model.train(training)
    if not any(len(part) for part in all_groups):
        raise InputError("expected a data set with at least one target to measure; got none.")
    shared = torch.cat(all_groups), torch.cat(targets)
    return [(_whole(task, head, *shared), _whole(task, probe, *shared) if probe else None) for head, probe in columns]


_Columns = dict[str, list[Tensor]]


def _add(columns: _Columns, readings: Readings) -> None:
    for name, values in readings.columns().items():
        columns[name].append(values)


def _whole(task: Task, columns: _Columns, groups: Tensor, targets: Tensor) -> LayerLosses:
    """The batches of one level, put together."""
    whole = {name: torch.cat(parts) for name, parts in columns.items()}
    scores = whole["scores"].double()
    return LayerLosses(
        losses=whole["losses"].double(),
        groups=groups,
        scores=scores,
        metrics=[metric_value(task, total, len(scores)) for total in scores.sum(0).tolist()],
        decisions=whole.get("decisions"),
        confidences=whole.get("confidences"),
        logits=(whole["logits"], targets) if "logits" in whole else None,
    )
