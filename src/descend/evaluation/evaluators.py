"""Evaluators of one function each: the input's metric, energies, frames and texts to look at, losses on training data.

Each yields its results by name, and nothing where it does not apply, see `descend.evaluation.evaluate.Evaluator`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, default_collate
from transformers import PreTrainedTokenizerBase

from descend.evaluation.evaluate import Levels, Subject
from descend.evaluation.layers import evenly, measure, metric_value
from descend.models import LayeredClassifier
from descend.models.denoiser import UnrolledModel
from descend.noise import SampleDraws
from descend.results import ByLevel, DecidedText, Decision, Decisions, Validation

MOST_SAMPLES = 32
"""Samples to measure energies on, taken evenly: the average settles after few, and each needs another forward pass."""

MOST_CHARACTERS = 240
"""A text's beginning is enough to know what it is about."""


def input_metrics(subject: Subject, levels: Levels) -> Iterator[tuple[str, dict[float, float]]]:
    """The metric of the noisy input itself, by level: what a model that does nothing would have.

    Of tasks whose inputs and predictions are frames; with the draws of the noise that the model meets.
    """
    task, data = subject.task, subject.data
    if not hasattr(task, "picture"):
        return
    size = len(data)
    totals = dict.fromkeys(levels, 0.0)
    for start in range(0, size, subject.batches.size):
        places = list(range(start, min(start + subject.batches.size, size)))
        batch = default_collate([data[place] for place in places])
        clean, target, draws = task.inputs(batch), task.target(batch), SampleDraws(places)
        for level in levels:
            totals[level] += task.score(subject.noise.at(level)(clean, indices=draws), target).double().sum().item()
    yield "input_metrics", {level: metric_value(task, total, size) for level, total in totals.items()}


def on_validation(subject: Subject, levels: Levels, *, samples: Dataset) -> Iterator[tuple[str, Validation]]:
    """The metric of each layer on validation data: there K is chosen, see `layers_needed`.

    At all levels, so that a run may be the baseline of others that were trained at another noise.
    """
    noises = [subject.noise.at(level) for level in levels]
    by_level = dict(zip(levels, measure(subject.model, subject.task, subject.batches.of(samples), noises), strict=True))
    trained = by_level[subject.noise.level]
    yield (
        "validation",
        Validation(
            samples=len(samples),  # type: ignore[arg-type]
            metric=trained.metrics,
            layer_metrics={level: layers.metrics for level, layers in by_level.items()},
            fingerprint=trained.fingerprint,
        ),
    )


@torch.no_grad()
def energies(subject: Subject, levels: Levels) -> Iterator[tuple[str, ByLevel]]:
    """The mean energy that an unrolled model's layers descend, at h_0 … h_L, over samples and patch positions."""
    model = subject.model
    if not isinstance(model, UnrolledModel):
        return
    chosen = evenly(len(subject.data), MOST_SAMPLES)
    model.eval()
    by_level: ByLevel = {}
    for level in levels:
        total = torch.zeros(model.depth + 1, dtype=torch.float64)
        places = iter(chosen)
        for batch in subject.batches.of(Subset(subject.data, chosen)):
            inputs = subject.task.inputs(batch)
            indices = [next(places) for _ in range(len(inputs))]
            with subject.noise.at(level).on(model, indices=indices):
                total += model.energies(inputs).double().sum(1).cpu()
        by_level[level] = (total / len(chosen)).tolist()
    yield "energy", by_level


@torch.no_grad()
def pictures(subject: Subject, levels: Levels, *, count: int = 2) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Frames to look at: clean, noisy and reconstructed by every layer, at every level of the robustness curve.

    Of a task whose ``picture`` turns inputs or predictions into grey frames.

    Args:
        subject: The model and its data.
        levels: What was measured.
        count: K, the number of frames, taken evenly from the data.

    Yields:
        ``frames``: uint8 ``clean`` (K, H, W), ``noisy`` (G, K, H, W), ``reconstruction`` (G, L+1, K, H, W); float
        ``noise`` (G,).
    """
    task: Any = subject.task
    if not hasattr(task, "picture"):
        return
    chosen = evenly(len(subject.data), count)
    clean = task.inputs(default_collate([subject.data[place] for place in chosen]))
    subject.model.eval()
    noisy, reconstruction = [], []
    for level in subject.levels:
        inputs = subject.noise.at(level)(clean, indices=chosen)
        noisy.append(task.picture(inputs))
        outputs = subject.model.predictions(inputs.to(subject.batches.device))
        reconstruction.append(np.stack([task.picture(each.cpu()) for each in outputs]))
    yield (
        "frames",
        {
            "clean": task.picture(clean),
            "noisy": np.stack(noisy),
            "reconstruction": np.stack(reconstruction),
            "noise": np.asarray(subject.levels, dtype=np.float64),
        },
    )


def decided_texts(
    subject: Subject, levels: Levels, *, tokenizer: PreTrainedTokenizerBase | None, count: int = 2
) -> Iterator[tuple[str, Decisions]]:
    """What every layer of a classifier decides on a few texts, at the training noise.

    Args:
        subject: The classifier, and data with ``input_ids``.
        levels: What was measured.
        tokenizer: Makes a text of its tokens.
        count: How many texts; they are taken evenly.
    """
    model, data, measured = subject.model, subject.data, levels[subject.noise.level]
    if not isinstance(model, LayeredClassifier) or tokenizer is None or "input_ids" not in data[0]:
        return
    assert measured.decisions is not None and measured.confidences is not None
    names: Mapping[Any, str] = model.saved.config.id2label or {}
    texts = []
    for place in evenly(len(data), count):
        text = " ".join(str(tokenizer.decode(data[place]["input_ids"], skip_special_tokens=True)).split())
        layers = zip(measured.decisions[place], measured.confidences[place], measured.scores[place], strict=True)
        decisions = [
            Decision(
                answer=names.get(int(number), f"class {int(number)}"), confidence=float(sure), right=bool(score == 1)
            )
            for number, sure, score in layers
        ]
        shown = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"
        texts.append(DecidedText(text=shown, decisions=decisions))
    yield "decisions", Decisions(noise=subject.noise.level, texts=texts)
