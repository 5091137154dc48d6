"""Losses and metrics of every layer on a data set, over noise levels."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from descend.errors import refuse
from descend.models import LayeredCausalLM, evaluating
from descend.noise import Noise, SampleDraws
from descend.progress import Progress, counted
from descend.tasks import Task
from descend.tasks.splits import evenly
from descend.tiles import rows_per_tile

Watch = Callable[[dict[str, Any], Tensor | None, Tensor], None]
"""Called with a batch, the last exit's prediction (None for a language model) and its losses."""

WatchRows = Callable[[Tensor], None]
"""Called with the logits (R, V) of the last exit of a language model, a tile of rows at a time."""

Columns = dict[str, list[Tensor]]
"""Values of the exits by name: losses, scores, decisions, confidences, logits."""

MOST_FOR_SIGMA = 1024
"""Samples that σ_x is measured on, taken evenly."""


@dataclass(frozen=True)
class Batches:
    """How samples become batches, and where the model computes.

    Attributes:
        size: Samples at a time.
        device: The model's device.
        collate: Makes a batch of samples; torch's way unless given.
    """

    size: int = 16
    device: torch.device | str = "cpu"
    collate: Callable[[list[Any]], Any] | None = None

    def loader(self, dataset: Any) -> DataLoader:
        """The batches of a data set in its order, on the host."""
        # A loader without a generator draws its seed from the global one, which would change the training's draws.
        return DataLoader(dataset, batch_size=self.size, generator=torch.Generator(), collate_fn=self.collate)

    def of(self, dataset: Any) -> Iterator[dict[str, Any]]:
        """The batches of a data set in its order, on the device."""
        return (send_to_device(batch, self.device) for batch in self.loader(dataset))


@dataclass(frozen=True)
class LayerLosses:
    """The result of `measure` at one noise level.

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
    scores: Tensor
    decisions: Tensor | None = None
    confidences: Tensor | None = None
    logits: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, task: Task, columns: Columns, groups: Tensor, targets: Tensor) -> "LayerLosses":
        """The values of all batches, put together.

        Args:
            task: Whose metric it is.
            columns: For each name the values (N, L+1) of each batch.
            groups: (S,).
            targets: (S,); only read where the logits were kept, or scores are made of the whole data set.
        """
        whole = {name: torch.cat(parts) for name, parts in columns.items()}
        scores = whole["scores"].double()
        if task.scores_together:
            scores = task.over_data(scores, targets)
        return cls(
            losses=whole["losses"].double(),
            groups=groups,
            scores=scores,
            metrics=[metric_value(task, total, len(scores)) for total in scores.sum(0).tolist()],
            decisions=whole.get("decisions"),
            confidences=whole.get("confidences"),
            logits=(whole["logits"], targets) if "logits" in whole else None,
        )

    def at_exits(self, exits: slice) -> "LayerLosses":
        """The same of some of the exits, without logits."""
        tables = ("losses", "scores", "decisions", "confidences")
        parts = {name: values[:, exits].contiguous() for name in tables if (values := getattr(self, name)) is not None}
        return replace(self, metrics=self.metrics[exits], logits=None, **parts)

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

    def exit_layers(self, threshold: float | None) -> Tensor:
        """The first layer 1 … L at which each sample's confidence is at least a threshold, (S,); L for None."""
        assert self.confidences is not None
        leaves = self.confidences[:, 1:] >= (math.inf if threshold is None else threshold)
        leaves[:, -1] = True
        return leaves.int().argmax(1) + 1

    def scores_at(self, layers: Tensor) -> Tensor:
        """Each sample's score at one layer, (S,); ``layers`` (S,) says at which."""
        return self.scores.gather(1, layers[:, None])[:, 0]


def few(samples: Any, most: int) -> Subset[Any]:
    """Some of a data set's samples, taken evenly."""
    return Subset(samples, evenly(len(samples), most))


def metric_value(task: Task, total: float, count: float) -> float:
    """A task's metric over a data set, from the sum of the scores and their number."""
    return math.sqrt(total / count) if task.root else total / count


@torch.no_grad()
def embedding_std(model: Any, task: Task, dataset: Any, batches: Batches) -> float:
    """σ_x, the standard deviation of the model's input embedding over a data set.

    The task's own `Task.sigma` if it knows; otherwise measured by running the model on up to `MOST_FOR_SIGMA` samples.

    Args:
        model: A layered model; its training mode is left as it was.
        task: Makes the model's inputs of a batch.
        dataset: Samples, numbered by their place.
        batches: How they become batches.
    """
    embedding = model.get_input_embeddings()
    if (known := task.sigma(embedding, dataset)) is not None:
        return known
    sums = torch.zeros(3, dtype=torch.float64, device="cpu")  # of 1, x and x²
    mask: Tensor | None = None

    def add(module: Any, args: Any, embedded: Tensor) -> None:
        values = (embedded if mask is None else embedded[mask]).cpu().double()
        sums.add_(torch.stack([torch.ones_like(values).sum(), values.sum(), values.square().sum()]))

    with embedding.register_forward_hook(add), evaluating(model):
        for batch in batches.of(few(dataset, MOST_FOR_SIGMA)):
            mask = task.mask(batch)
            next(iter(model.predictions(task.inputs(batch))))
    count, total, squares = sums.tolist()
    return math.sqrt(max(squares / count - (total / count) ** 2, 0.0))


def survey(task: Task, batches: Iterable[dict[str, Any]]) -> tuple[str, float | None]:
    """Look at samples without a model.

    Args:
        task: Says what the target is, and where a batch is padded.
        batches: All samples.

    Returns:
        A hash of the samples in their order, of inputs and targets, without padding, which depends on the batch. And
        the share of the commonest class: the accuracy of always naming it; None of another metric.
    """
    fields: dict[str, Any] = defaultdict(partial(hashlib.blake2b, digest_size=8))
    classes: Counter[int] = Counter()
    for batch in counted(batches, "reading samples", "part"):
        mask, target = task.mask(batch), task.target(batch)
        if task.metric == "accuracy" and target.ndim == 1:
            classes.update(target.tolist())
        for name, value in {**batch, "": target}.items():
            if isinstance(value, Tensor) and value.ndim:
                grouped = task.rows > 1 and value.ndim == 3  # of several texts a sample
                rows = value.flatten(0, 1) if grouped else value
                padded = mask is not None and rows.shape[: mask.ndim] == mask.shape
                kept = rows[mask] if padded else value
                fields[name].update(kept.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    whole = "".join(f"{name} {content.hexdigest()}" for name, content in sorted(fields.items()))
    commonest = max(classes.values()) / classes.total() if classes else None
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest(), commonest


@torch.no_grad()
def measure(
    model: Any,
    task: Task,
    batches: Iterable[Any],
    noises: Sequence[Noise | None] = (None,),
    *,
    watch: Watch | None = None,
    watch_rows: WatchRows | None = None,
    keep_logits: bool = False,
    progress: Progress | None = None,
) -> list[LayerLosses]:
    """Measure every layer on every sample of a data set, in one forward pass for each noise level.

    The noise of a sample depends on the noise's seed and the sample's number alone: every model and every level meets
    the same draws. A batch is loaded once, and a sample's noise is drawn once for all levels. Metrics are over the
    whole data set, not a mean of batch means.

    Args:
        model: A `LayeredModel`, or probes beside one; its training mode is left as it was.
        task: The loss and the metric.
        batches: All samples, numbered by their place, on the model's device; with a ``group`` where some are not
            independent.
        noises: The noise of each level, on the output of the model's input embedding; None for clean inputs.
        watch: Called with each batch at each level, while the batch's noise is on.
        watch_rows: Called with the last exit's logits of a language model, tile by tile.
        keep_logits: Give every layer's predictions, of a task whose predictions are logits (N, C).
        progress: A bar to advance by one per sample and level.

    Returns:
        The layers' losses at each level.

    Raises:
        InputError: If there is no sample, or none of them has a target.
    """
    levels: list[Columns] = [defaultdict(list) for _ in noises]
    all_groups: list[Tensor] = []
    targets: list[Tensor] = []
    seen = 0
    with evaluating(model):
        for batch in batches:
            inputs, target, mask = task.inputs(batch), task.target(batch), task.mask(batch)
            owners = task.owners(batch).cpu()
            size = len(next(value for value in batch.values() if isinstance(value, Tensor) and value.ndim))
            draws = SampleDraws(range(seen * task.rows, (seen + size) * task.rows))
            for noise, columns in zip(noises, levels, strict=True):
                with noise.on(model, mask=mask, indices=draws) if noise and noise.level > 0 else nullcontext():
                    values, last = read_exits(
                        model, inputs, task, target, watch_rows=watch_rows, keep_logits=keep_logits
                    )
                    for name, value in values.items():
                        columns[name].append(value.cpu())
                    if watch is not None:
                        watch(batch, last, values["losses"][:, -1])
                if progress is not None:
                    progress.update(size)
            groups = task.groups(batch)
            all_groups.append(seen + owners if groups is None else groups.cpu()[owners])
            targets.append(target.cpu() if keep_logits or task.scores_together else target[:0].cpu())
            # Of packed texts there are more than rows.
            seen += max(size, int(owners.max()) + 1 if len(owners) else 0)
    refuse((not any(map(len, all_groups)), "expected a data set with at least one target to measure; got none."))
    shared = torch.cat(all_groups), torch.cat(targets)
    return [LayerLosses.of(task, columns, *shared) for columns in levels]


def read_exits(
    model: Any,
    inputs: Any,
    task: Task,
    target: Tensor,
    *,
    watch_rows: WatchRows | None = None,
    keep_logits: bool = False,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Read every exit on one batch of N targets, from one forward pass.

    No more than `TILE` logits of a language model are held at once.

    Args:
        model: As in `measure`.
        inputs: The model's inputs.
        task: Its loss, score and decision.
        target: (N, …).
        watch_rows: Sees the last exit's logits of a language model.
        keep_logits: Keep the predictions (N, C).

    Returns:
        ``losses``, ``scores``, and for a task with decisions ``decisions`` and ``confidences``, each (N, L+1), with
        ``logits`` (N, L+1, C) if they are kept; and the last exit's prediction, None for a language model, whose logits
        do not outlive their tile.
    """
    tiled = isinstance(model, LayeredCausalLM) and "places" in inputs
    exits = _in_tiles(model, inputs, target) if tiled else ([(each, target)] for each in model.predictions(inputs))
    columns: Columns = defaultdict(list)
    prediction = None
    for exit, tiles in enumerate(exits):
        parts: Columns = defaultdict(list)
        for prediction, targets in tiles:
            parts["losses"].append(task.losses(prediction, targets))
            parts["scores"].append(task.score(prediction, targets))
            decided = task.decide(prediction)
            if decided is not None:
                parts["decisions"].append(decided[0])
                parts["confidences"].append(decided[1])
            if keep_logits:
                parts["logits"].append(prediction)
            if watch_rows is not None and tiled and exit == model.depth:
                watch_rows(prediction)
        for name, values in parts.items():
            columns[name].append(torch.cat(values))
    return {name: torch.stack(values, 1) for name, values in columns.items()}, None if tiled else prediction


def _in_tiles(model: LayeredCausalLM, inputs: Any, target: Tensor) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """For each exit of a language model its logits and their targets, a tile of rows at a time."""
    rows, size = inputs["places"], rows_per_tile(model.limits["vocabulary"])
    starts = range(0, max(len(rows), 1), size)  # a batch without a target has one empty tile
    for layer, state in enumerate(model.layer_outputs(inputs)):
        flat = state.flatten(0, -2)
        yield ((model.readout(flat[rows[at : at + size]], layer=layer), target[at : at + size]) for at in starts)
