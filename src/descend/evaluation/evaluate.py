"""The one way to evaluate: measure a model over noise, take the verdict, run the evaluators, fill the summary."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from descend.core import DescentProblem
from descend.evaluation.layers import Batches, LayerLosses, few, measure, survey
from descend.evaluation.needed import Evaluated, layers_needed
from descend.evaluation.probes import Probed
from descend.evaluation.satisfaction import verdict
from descend.methods import CLASSES, Method
from descend.models import LayeredModel
from descend.noise import Noise
from descend.progress import Progress, progress
from descend.results import (
    DECISIONS_FILE,
    FRAMES_FILE,
    GROUPS_FILE,
    CompareWith,
    Groups,
    Histogram,
    LayerGroups,
    LayerScores,
    Probes,
    Provenance,
    Ratios,
    Summary,
    anytime_curves,
    put,
)
from descend.tasks import Task

PLAIN_ALPHA = 0.01
"""The α for a model whose training is unknown: does every layer lower the loss at all?"""

EDGES = tuple(2 ** (eighth / 8) for eighth in range(-24, 25))
"""Of the histogram of samples' ratios: its bins, from 1/8 to 8: below 1 the loss falls."""

MOST_BLOCKS = 30
"""Blocks of groups by which ``groups.json`` has the losses of all layers: thousands of texts would be millions of
numbers, and what is independent is so in blocks too."""

MOST_SUMS = 5000
"""Groups by which ``groups.json`` has the scores of all layers: more are put together. Of 13 layers at eight noise
levels these are half a million numbers, some 3 MB."""

FILES = {"by_group": GROUPS_FILE, "decisions": DECISIONS_FILE}
"""Results that have a file beside ``summary.json``, by name; ``frames`` are arrays, in ``frames.npz``."""

Levels = dict[float, LayerLosses]
"""What was measured at each noise level γ, in their order; the training level is one of them."""


@dataclass(frozen=True)
class Subject:
    """A model with all that it is evaluated on.

    Attributes:
        model: The model; its training mode is left as it was.
        task: Its loss and metric.
        data: Held-out samples.
        problem: The constraints of the training's settings; None to measure violations of `PLAIN_ALPHA`, which judge
            nothing.
        noise: The training noise, at its level and with a seed that is the same for all models to be compared.
        levels: Levels γ of the robustness curve, in any order; its plain mean is the summary's ``mean``. The training
            level is measured too, but not in the mean unless listed.
        provenance: Where the model comes from.
        name: The data set's name.
        split: ``test``, ``validation`` or ``train``.
        shift: The kind of noise.
        batches: How samples become batches, and the device.
        probed: The model with linear probes, to be measured in the same forward passes; None without probes.
        baseline: To whose full depth layers are held, evaluated on the same data; None for the model's own.
        compare_with: Which layer counts as full depth, see `layers_needed`.
    """

    model: LayeredModel
    task: Task
    data: Any
    problem: DescentProblem | None
    noise: Noise
    levels: Sequence[float]
    provenance: Provenance
    name: str = "held-out data"
    split: str = "test"
    shift: str = "gaussian"
    batches: Batches = field(default_factory=Batches)
    probed: Probed | None = None
    baseline: Evaluated | None = None
    compare_with: CompareWith | None = None

    @property
    def curve(self) -> list[float]:
        """The levels of the robustness curve, each once, in order."""
        return sorted({*map(float, self.levels)})


Evaluator = Callable[[Subject, Levels], Iterable[tuple[str, Any]]]
"""Yields results by name: entries of `Summary`, or those with a file beside it. Nothing where it does not apply."""


def usual_curve(level: float) -> list[float]:
    """Eight levels γ from 0 to 3.5 times the training noise; after clean training 0 alone."""
    return [round(each, 6) for each in np.linspace(0, 3.5 * level, 8 if level else 1).tolist()]


def evaluate(subject: Subject, evaluators: Iterable[Evaluator] = (), *, folder: Path | None = None) -> Summary:
    """Measure every layer at every noise level, take the verdict at the training noise, and run the evaluators.

    Args:
        subject: The model, and what it is evaluated on.
        evaluators: They see the subject and what was measured.
        folder: Where to write ``groups.json`` and the evaluators' files; None to write nothing.

    Returns:
        The summary, with the entries that the evaluators gave.
    """
    model = subject.model if subject.probed is None else subject.probed
    noises = {level: subject.noise.at(level) for level in sorted({*subject.curve, float(subject.noise.level)})}
    fingerprint, commonest = survey(subject.task, subject.batches.loader(subject.data))
    if subject.baseline is not None:  # before anything is measured
        subject.baseline.groups_at(noises, fingerprint)
    with reading_progress("evaluating", len(subject.data), len(noises)) as bar:
        batches = subject.batches.of(subject.data)
        each_level = measure(model, subject.task, batches, list(noises.values()), progress=bar)
    measured = dict(zip(noises, each_level, strict=True))
    exits = subject.model.depth + 1
    levels = {level: layers.at_exits(slice(exits)) for level, layers in measured.items()}
    content = _measured(subject, levels)
    results: dict[str, Any] = {"by_group": by_group(subject, levels, fingerprint), "commonest": commonest}
    if subject.probed is not None:
        by_probe = {level: layers.at_exits(slice(exits, None)) for level, layers in measured.items()}
        results["probe"] = Probes(
            values=[by_probe[level].metrics[-1] for level in subject.curve],
            layer_losses={level: layers.losses.mean(0).tolist() for level, layers in by_probe.items()},
            layer_metrics={level: layers.metrics for level, layers in by_probe.items()},
        )
    for evaluator in evaluators:
        results |= evaluator(subject, levels)
    if "validation" in results:
        count, same = results["validation"].samples, fingerprint
        if count < len(subject.data):  # were these the data, as many of them would have been taken
            same, _ = survey(subject.task, subject.batches.loader(few(subject.data, count)))
        if results["validation"].fingerprint == same:
            del results["validation"]  # no K is tested on the samples that chose it
    results["layers_needed"], results["kept"] = layers_needed(
        results["by_group"],
        subject.baseline,
        noise=float(subject.noise.level),
        higher_is_better=subject.task.higher_is_better,
        seconds=results["latency"].milliseconds if "latency" in results else None,
        validation=results.get("validation"),
        compare_with=subject.compare_with,
    )
    entries = {name: result for name, result in results.items() if name in Summary.model_fields}
    summary = Summary(**content | entries)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in FILES.items():
            if name in results:
                results[name].write(folder / file)
        if frames := results.get("frames"):
            put(folder / FRAMES_FILE, lambda part: np.savez_compressed(part, **frames))
    return summary


def reading_progress(about: str, samples: int, levels: int, kind: str = "sample") -> Progress:
    """The progress of reading so many samples at so many noise levels; a line never counts one sample twice."""
    shown = progress(samples * levels, about, "reading" if levels > 1 else kind)
    if levels > 1:
        shown.set_postfix_str(f"{samples} {kind}s at {levels} noise levels", refresh=False)
    return shown


def _measured(subject: Subject, levels: Levels) -> dict[str, Any]:
    """The entries of ``summary.json`` that every evaluation has."""
    task, trained = subject.task, levels[subject.noise.level]
    problem = subject.problem or DescentProblem(subject.model.depth, PLAIN_ALPHA)
    asked = subject.problem is not None and CLASSES.get(subject.provenance.method, Method).asks
    held = verdict(problem, trained, asked=asked)
    values = [levels[level].metrics[-1] for level in subject.curve]
    layer_metrics = {level: layers.metrics for level, layers in levels.items()}
    return {
        **subject.provenance.model_dump(exclude_unset=True),
        **dict(held),
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "noise": subject.curve,
        "values": values,
        "mean": float(np.mean(values)),
        "auc": float(np.trapezoid(values, subject.curve)) if len(values) > 1 else None,
        "train_noise": float(subject.noise.level),
        "train_value": trained.metrics[-1],
        "layer_losses": {level: layers.losses.mean(0).tolist() for level, layers in levels.items()},
        "layer_metrics": layer_metrics,
        "anytime": anytime_curves(layer_metrics, task.higher_is_better),
        "descending_share": trained.descending_share,
        "ratios": ratios(trained),
        "samples": len(trained.losses),
        "depth": problem.depth,
        "dataset": subject.name,
        "split": subject.split,
        "shift": subject.shift,
        "alpha": list(problem.alpha or ()),
        "target": "geometric" if problem.alpha is None else "step",
        "strength": getattr(problem.target, "strength", None),
        "limits": problem.limits,
        "first_layer": problem.first,
        "sigma": subject.noise.sigma,
    }


def by_group(subject: Subject, levels: Levels, fingerprint: str) -> Groups:
    """The last layer's scores by group, and all layers' losses and scores by blocks of groups: ``groups.json``.

    Where all samples are of one group, which ``single`` then says, each sample counts as a group. Of a bounded metric
    there are the scores of all layers by group too, see `MOST_SUMS`.

    All are sums, at every level; those of all layers at the training level too, whether or not it is among the others.

    Models that are evaluated on the same data have the same groups in the same order, and the same draws of noise:
    figures over several runs compare them pair by pair. The metric at a level is Σ scores / Σ counts, or its root.
    ``fingerprint`` is the samples' hash by `survey`.
    """
    trained = levels[subject.noise.level]
    counts = _sums(trained, torch.ones(len(trained.losses), dtype=torch.int64, device="cpu"))
    scores = [each.scores for each in levels.values()]
    bounded = subject.task.bounded and all(bool(((each >= 0) & (each <= 1)).all()) for each in scores)
    blocks = layer_scores(levels, MOST_BLOCKS)
    return Groups(
        noise=subject.curve,
        root=subject.task.root,
        single=trained.group_count == 1,
        counts=counts.tolist(),
        scores=[_short(_sums(trained, levels[level].scores[:, -1])) for level in subject.curve],
        layers=LayerGroups(
            noise=blocks.noise,
            counts=blocks.counts,
            losses=_by_block(trained, (each.losses for each in levels.values()), MOST_BLOCKS),
            scores=blocks.scores,
            by_group=layer_scores(levels, MOST_SUMS) if bounded else None,
        ),
        fingerprint=fingerprint,
    )


def layer_scores(levels: Levels, most: int) -> LayerScores:
    """The scores of all layers, summed over groups, or over at most so many blocks of them."""
    first = next(iter(levels.values()))
    counts = _sums(first, torch.ones(len(first.losses), dtype=torch.int64, device="cpu"))
    return LayerScores(
        noise=list(levels),
        counts=_blocks(counts, most).tolist(),
        scores=_by_block(first, (each.scores for each in levels.values()), most),
    )


def _by_block(grouped: LayerLosses, values: Iterable[Tensor], most: int) -> list[list[list[float]]]:
    """Sums of each level's values (S, L+1) over at most so many blocks of groups, (L+1, B)."""
    return [[_short(layer) for layer in _blocks(_sums(grouped, each), most).T] for each in values]


def _sums(grouped: LayerLosses, values: Tensor) -> Tensor:
    """Sums of values (S, …) over groups (G, …); the values themselves where all samples are of one group."""
    return values if grouped.group_count == 1 else grouped.by_group(values)


def _blocks(sums: Tensor, most: int) -> Tensor:
    """Sums over groups (G, …), added up to those over at most so many blocks of them (B, …)."""
    count = min(len(sums), most)
    return sums.new_zeros(count, *sums.shape[1:]).index_add(
        0, torch.arange(len(sums), device=sums.device) % count, sums
    )


def _short(values: Tensor) -> list[float]:
    """Of six digits: more say nothing, and make a file long."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def ratios(measured: LayerLosses) -> Ratios:
    """f_l / f_{l−1} over samples and layers, and at each layer 1 … L its histogram.

    A bin holds its lower edge; the first and the last also hold all that lies beyond. What is no number is in none.
    """
    ratios = measured.ratios
    edges = torch.tensor(EDGES[1:-1], dtype=ratios.dtype, device=ratios.device)
    bins = torch.bucketize(ratios, edges, right=True)
    return Ratios(
        mean=ratios.mean().item(),
        median=ratios.flatten().quantile(0.5).item() if ratios.numel() < 2**24 else ratios.median().item(),
        histogram=Histogram(
            edges=list(EDGES),
            counts=[
                layer[known].bincount(minlength=len(EDGES) - 1).tolist()
                for layer, known in zip(bins.T, ~ratios.isnan().T, strict=True)
            ],
        ),
    )
