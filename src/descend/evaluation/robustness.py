"""A model's behaviour as the noise grows: the summary of a run, and the pictures of its page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, default_collate

from descend.core import DescentProblem
from descend.evaluation.layers import LayerLosses, evenly, measure_levels, metric_value
from descend.evaluation.probes import Probed
from descend.evaluation.satisfaction import Verdict, verdict
from descend.models.layered import LayeredModel
from descend.noise import Noise, SampleDraws
from descend.objective import Task
from descend.progress import progress
from descend.results import Groups, Histogram, LayerGroups, Measured, Ratios, SettledLayer, anytime_curves

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the samples' ratios at a layer."""

EDGES = tuple(2 ** (eighth / 8) for eighth in range(-24, 25))
"""Of their histogram's bins, from 1/8 to 8: below 1 the loss falls."""


MOST_BLOCKS = 30
"""Blocks of groups by which ``groups.json`` has the losses of all layers: thousands of texts would be millions of
numbers, and what is independent is so in blocks too."""


@dataclass(frozen=True)
class Robustness:
    """What `robustness` measured: one `LayerLosses` per noise level, and the verdict at the training noise.

    ``probed`` is the same of the layers' linear probes, if there are some.
    """

    noise: list[float]
    train_noise: float
    levels: dict[float, LayerLosses]
    verdict: Verdict
    probed: "Robustness | None" = None

    def measured(self, task: Task) -> Measured:
        """The measured part of a run's ``summary.json``."""
        values = [self.levels[level].metrics[-1] for level in self.noise]
        trained = self.levels[self.train_noise]
        settled = _settling(trained)
        layer_metrics = {level: measured.metrics for level, measured in self.levels.items()}
        measured = Measured(
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            noise=self.noise,
            values=values,
            mean=float(np.mean(values)),
            auc=float(np.trapezoid(values, self.noise)) if len(values) > 1 else None,
            train_noise=self.train_noise,
            train_value=trained.metrics[-1],
            layer_losses={level: measured.losses.mean(0).tolist() for level, measured in self.levels.items()},
            layer_metrics=layer_metrics,
            anytime=anytime_curves(layer_metrics, task.higher_is_better),
            violations=self.verdict.violations,
            violation_intervals=self.verdict.intervals,
            cap_violation=self.verdict.cap_violation,
            cap_interval=self.verdict.cap_interval,
            bounds=self.verdict.bounds,
            certified=self.verdict.certified,
            feasible=self.verdict.feasible,
            certain=self.verdict.certain,
            violated=self.verdict.violated,
            undecided=self.verdict.undecided,
            verdict=self.verdict.sentence(),
            descending_share=trained.descending_share,
            ratios=_ratios(trained),
            samples=len(trained.losses),
            groups=self.verdict.groups,
        )
        return measured.model_copy(update={"settled_layer": settled}) if settled else measured

    def by_group(self, task: Task) -> Groups:
        """A run's ``groups.json``: the last layer's scores by group; all layers' losses and scores by blocks.

        Where all samples are of one group, which ``single`` then says, each counts as a group of its own.

        All are sums, at every level; those by blocks at the training level too, whether or not it is among the others.

        What is judged on the same data has the same groups in the same order, and the same draws of noise: figures over
        several runs compare them pair by pair. The metric at a level is Σ scores / Σ counts, or the root of it.
        """
        measured = [self.levels[level] for level in self.noise]
        trained = self.levels[self.train_noise]
        ones = torch.ones(len(trained.losses), dtype=torch.int64)
        single = trained.group_count == 1
        sums = (lambda values: values) if single else trained.by_group
        counts = sums(ones)

        def by_block(values: Tensor) -> list[list[float]]:
            """Sums of the samples' values (S, L+1) over blocks of groups, (L+1, B)."""
            return [_short(layer) for layer in _blocks(sums(values)).T]

        scores = [sums(each.scores[:, -1]) for each in measured if each.scores is not None]
        return Groups(
            noise=self.noise,
            root=task.root,
            single=single,
            counts=counts.tolist(),
            scores=[_short(level) for level in scores],
            layers=LayerGroups(
                noise=list(self.levels),
                counts=_blocks(counts).tolist(),
                losses=[by_block(each.losses) for each in self.levels.values()],
                scores=[by_block(each.scores) for each in self.levels.values() if each.scores is not None],
            ),
        )


def robustness(
    model: Any,
    task: Task,
    dataset: Dataset,
    problem: DescentProblem,
    noise: Noise,
    *,
    levels: Sequence[float],
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
    probed: Probed | None = None,
) -> Robustness:
    """Measure every layer at every noise level, and at the training noise, where the verdict is taken.

    Args:
        model: What `measure` takes.
        task: Its loss and metric.
        dataset: Held-out samples.
        problem: The constraints to judge.
        noise: That of the training, at the training level; its seed is to be the same for all that is compared.
        levels: Levels γ of the robustness curve, in any order; its plain mean is the summary's ``mean``. The training
            level is measured too, but not in the mean unless listed.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.
        probed: Linear probes of the model's layers, measured in the same forward passes.
    """
    wanted = sorted({*map(float, levels), float(noise.level)})
    total = len(wanted) * len(dataset)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "collate": collate}
    with progress(total, "evaluating", "sample") as bar:
        noises = [noise.at(level) for level in wanted]
        measured = measure_levels(model, task, dataset, noises, progress=bar, probed=probed, **settings)
    shown, trained = sorted(set(map(float, levels))), float(noise.level)
    heads = {level: head for level, (head, _) in zip(wanted, measured, strict=True)}
    probes = {level: probe for level, (_, probe) in zip(wanted, measured, strict=True) if probe is not None}
    by_probe = Robustness(shown, trained, probes, verdict(problem, probes[trained])) if probes else None
    return Robustness(shown, trained, heads, verdict(problem, heads[trained]), by_probe)


def _blocks(sums: Tensor) -> Tensor:
    """Sums over groups (G, …), added up to those over at most `MOST_BLOCKS` blocks of them (B, …)."""
    count = min(len(sums), MOST_BLOCKS)
    return sums.new_zeros(count, *sums.shape[1:]).index_add(0, torch.arange(len(sums)) % count, sums)


def _short(values: Tensor) -> list[float]:
    """Of six digits: more say nothing, and make a file long."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _ratios(measured: LayerLosses) -> Ratios:
    """f_l / f_{l−1} over samples and layers, and at each layer 1 … L its quantiles and its histogram.

    A bin holds its lower edge; the first and the last also hold all that lies beyond. What is no number is in none.
    """
    ratios = measured.ratios
    edges = torch.tensor(EDGES[1:-1], dtype=ratios.dtype)
    bins = torch.bucketize(ratios, edges, right=True)
    quantiles = torch.tensor(QUANTILES, dtype=ratios.dtype)
    return Ratios(
        mean=ratios.mean().item(),
        median=ratios.flatten().quantile(0.5).item() if ratios.numel() < 2**24 else ratios.median().item(),
        quantiles=list(QUANTILES),
        by_layer=ratios.quantile(quantiles, dim=0).T.tolist(),
        histogram=Histogram(
            edges=list(EDGES),
            counts=[
                layer[known].bincount(minlength=len(EDGES) - 1).tolist()
                for layer, known in zip(bins.T, ~ratios.isnan().T, strict=True)
            ],
        ),
    )


def _settling(measured: LayerLosses) -> SettledLayer | None:
    """At which layer decisions settle: the mean, and the share of samples at each layer 0 … L."""
    settled = measured.settled
    if settled is None:
        return None
    shares = settled.bincount(minlength=measured.losses.shape[1]) / len(settled)
    return SettledLayer(mean=settled.double().mean().item(), shares=shares.tolist())


def input_metrics(
    task: Task, dataset: Dataset, noise: Noise, *, levels: Sequence[float], batch_size: int = 16
) -> dict[float, float]:
    """The metric of the noisy input itself, by level: what a model that does nothing would have.

    Args:
        task: A task whose inputs and predictions are of one form.
        dataset: Samples.
        noise: As in `robustness`, with the same draws.
        levels: Levels γ.
        batch_size: Samples at a time.
    """
    size = len(dataset)  # type: ignore[arg-type]
    totals = dict.fromkeys(levels, 0.0)
    for start in range(0, size, batch_size):
        places = list(range(start, min(start + batch_size, size)))
        batch = default_collate([dataset[place] for place in places])
        clean, target, draws = task.inputs(batch), task.target(batch), SampleDraws(places)
        for level in levels:
            totals[level] += task.score(noise.at(level)(clean, indices=draws), target).double().sum().item()
    return {level: metric_value(task, total, size) for level, total in totals.items()}


@torch.no_grad()
def pictures(
    model: LayeredModel,
    task: Any,
    dataset: Dataset,
    noise: Noise,
    *,
    levels: Sequence[float],
    count: int = 2,
    device: torch.device | str = "cpu",
) -> dict[str, np.ndarray]:
    """Frames to look at: clean, noisy and reconstructed by every layer, at every noise level.

    Args:
        model: The model.
        task: A task whose ``picture`` turns inputs or predictions into grey frames.
        dataset: Where ``count`` samples are taken from, evenly.
        noise: As in `robustness`.
        levels: Levels γ.
        count: K, the number of frames.
        device: Where to compute.

    Returns:
        uint8 ``clean`` (K, H, W), ``noisy`` (G, K, H, W), ``reconstruction`` (G, L+1, K, H, W); float ``noise`` (G,).
    """
    size = len(dataset)  # type: ignore[arg-type]
    chosen = evenly(size, count)
    batch = default_collate([Subset(dataset, chosen)[place] for place in range(len(chosen))])
    clean = task.inputs(batch)
    model.eval()
    noisy, reconstruction = [], []
    for level in levels:
        inputs = noise.at(level)(clean, indices=chosen)
        noisy.append(task.picture(inputs))
        reconstruction.append(np.stack([task.picture(each.cpu()) for each in model.predictions(inputs.to(device))]))
    return {
        "clean": task.picture(clean),
        "noisy": np.stack(noisy),
        "reconstruction": np.stack(reconstruction),
        "noise": np.asarray(levels, dtype=np.float64),
    }
