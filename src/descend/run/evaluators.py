"""Evaluators of one function each: the input's metric, layers on validation data, energies, samples to look at.

Each yields its results by name, and nothing where it does not apply, see `descend.run.evaluating.Evaluator`.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, default_collate

from descend.errors import InputError
from descend.evaluation.layers import few, measure, metric_value, survey
from descend.models import PLACES, UnrolledModel, evaluating
from descend.noise import SampleDraws
from descend.progress import counted
from descend.results import ByLevel, DecidedText, Decision, Decisions, Results, Validation
from descend.run.evaluating import MOST_BLOCKS, Evaluator, Levels, layer_scores, reading_progress, running
from descend.run.run import Run
from descend.tasks.base import LABELS
from descend.tasks.splits import evenly

MOST_TO_CHOOSE = 1000
"""Validation samples on which K is chosen, taken evenly."""

EVERY_LEVEL = "all"
"""Stands for all evaluated noise levels."""

MOST_SAMPLES = 32
"""Samples to measure energies on, taken evenly: the average settles after few, and each needs another forward pass."""

MOST_CHARACTERS = 240
"""A text's beginning is enough to know what it is about."""

SIDE = 48
"""Most pixels of a picture's sides, as large as a page shows it."""


def input_metrics(run: Run, levels: Levels) -> Iterator[tuple[str, dict[float, float]]]:
    """The metric of the noisy input itself, by level: what a model that does nothing would have.

    Of tasks whose inputs and predictions are frames; with the draws of the noise that the model meets.
    """
    task, data = run.task, run.samples
    if not hasattr(task, "picture"):
        return
    totals, seen = dict.fromkeys(levels, 0.0), 0
    for batch in counted(run.batches.loader(data), "measuring the input", "part"):
        clean, target = task.inputs(batch), task.target(batch)
        draws = SampleDraws(range(seen, seen + len(clean)))
        seen += len(clean)
        for level in levels:
            totals[level] += task.score(run.noise.at(level)(clean, indices=draws), target).double().sum().item()
    yield "input_metrics", {level: metric_value(task, total, seen) for level, total in totals.items()}


def on_validation(
    run: Run,
    samples: Any,
    *,
    most: int | None = None,
    noise: Sequence[float] | str | None = None,
    baseline: Results | None = None,
) -> Evaluator:
    """An evaluator of the metric of each layer on validation data: there K is chosen, see `layers_needed`.

    They are read without noise and at the training level, which chooses K.

    Args:
        run: The model and how samples become batches.
        samples: Validation samples, other ones than the run's.
        most: Take at most so many, and never more than `MOST_TO_CHOOSE`.
        noise: Further levels γ, or `EVERY_LEVEL`: those at which runs were trained whose baseline this one may be.
        baseline: To whose full depth layers are held.

    Raises:
        InputError: If a level is none, or the baseline was evaluated on the same samples without the
            training level.
    """
    if isinstance(noise, str) and noise != EVERY_LEVEL:
        raise InputError(f"validation_noise must be levels γ, or {EVERY_LEVEL!r} for those of noise; got {noise!r}.")
    further = [] if noise is None or isinstance(noise, str) else [run.noise.at(level).level for level in noise]
    samples = few(samples, min(most or MOST_TO_CHOOSE, MOST_TO_CHOOSE))
    task, batches, count = run.task, run.batches, len(samples)
    fingerprint, _ = survey(task, batches.loader(samples))
    trained = float(run.noise.level)
    if baseline is not None and baseline.knows(count, fingerprint):  # before anything is measured
        baseline.validated(count, fingerprint, trained)

    def evaluator(run: Run, measured: Levels) -> Iterator[tuple[str, Validation]]:
        levels = sorted({0.0, trained, *map(float, measured if noise == EVERY_LEVEL else further)})
        noises = [run.noise.at(level) for level in levels]
        known = run.validated if levels == [0.0] else None
        if known is not None and len(known.losses) == count:
            each_level = [known]
        else:
            with reading_progress("choosing layers", count, len(noises), "validation sample") as bar:
                each_level = measure(run.model, task, batches.of(samples), noises, progress=bar)
        by_level = dict(zip(levels, each_level, strict=True))
        metrics = {level: layers.metrics for level, layers in by_level.items()}
        single = each_level[0].group_count == 1
        found = Validation(
            samples=count,
            metric=metrics[trained],
            layer_metrics=metrics,
            fingerprint=fingerprint,
            blocks=None if single else layer_scores(by_level, MOST_BLOCKS),
        )
        yield "validation", found

    return evaluator


@torch.no_grad()
def energies(run: Run, levels: Levels) -> Iterator[tuple[str, ByLevel]]:
    """The mean energy that an unrolled model's layers descend, at h_0 … h_L, over samples and patch positions."""
    model = run.model
    if not isinstance(model, UnrolledModel):
        return
    chosen = evenly(len(run.samples), MOST_SAMPLES)
    model.eval()
    by_level: ByLevel = {}
    for level in counted(levels, "measuring energies", "noise level"):
        total = torch.zeros(model.depth + 1, dtype=torch.float64, device="cpu")
        places = iter(chosen)
        for batch in run.batches.of(Subset(run.samples, chosen)):
            inputs = run.task.inputs(batch)
            indices = [next(places) for _ in range(len(inputs))]
            with run.noise.at(level).on(model, indices=indices):
                total += model.energies(inputs).double().sum(1).cpu()
        by_level[level] = (total / len(chosen)).tolist()
    yield "energy", by_level


@torch.no_grad()
def state_norms(run: Run, levels: Levels, *, iterations: int | None = None) -> Iterator[tuple[str, list[float]]]:
    """The root mean square of the entries of h_0 … h_L, past L too, where layers are iterations of one block.

    Args:
        run: The model and its samples, of which at most `MOST_SAMPLES` are read, at the training noise.
        levels: Not read.
        iterations: How often the block runs; by default L times.
    """
    model, task = run.model, run.task
    if not model.iterative:
        return
    chosen, norms = evenly(len(run.samples), MOST_SAMPLES), []
    one_by_one = replace(run.batches, size=1)  # all states of a pass are held
    with running(model, iterations), evaluating(model):
        for place, batch in zip(chosen, one_by_one.of(Subset(run.samples, chosen)), strict=True):
            inputs, mask = task.inputs(batch), task.mask(batch)
            if isinstance(inputs, Mapping):
                inputs = {name: value for name, value in inputs.items() if name != PLACES}
            noisy = run.noise.on(model, mask=mask, indices=[place]) if run.noise.level > 0 else nullcontext()
            with noisy:
                states = model.layer_outputs(inputs)
            masked = mask is not None and mask.shape == states[0].shape[: mask.ndim]
            norms.append(torch.stack([(h[mask] if masked else h).abs().double().square().mean().cpu() for h in states]))
    yield "state_norms", torch.stack(norms).mean(0).sqrt().tolist()


@torch.no_grad()
def pictures(run: Run, levels: Levels, *, count: int = 2) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Frames to look at: clean, noisy and reconstructed by every layer, at every level of the robustness curve.

    Of a task whose ``picture`` turns inputs or predictions into grey frames.

    Args:
        run: The model and its data.
        levels: What was measured.
        count: K, the number of frames, taken evenly from the data.

    Yields:
        ``frames``: uint8 ``clean`` (K, H, W), ``noisy`` (G, K, H, W), ``reconstruction`` (G, L+1, K, H, W); float
        ``noise`` (G,).
    """
    task: Any = run.task
    if not hasattr(task, "picture"):
        return
    chosen = evenly(len(run.samples), count)
    clean = task.inputs(default_collate([run.samples[place] for place in chosen]))
    run.model.eval()
    noisy, reconstruction = [], []
    for level in run.levels:
        inputs = run.noise.at(level)(clean, indices=chosen)
        noisy.append(task.picture(inputs))
        outputs = run.model.predictions(inputs.to(run.batches.device))
        reconstruction.append(np.stack([task.picture(each.cpu()) for each in outputs]))
    yield (
        "frames",
        {
            "clean": task.picture(clean),
            "noisy": np.stack(noisy),
            "reconstruction": np.stack(reconstruction),
            "noise": np.asarray(run.levels, dtype=np.float64),
        },
    )


def decided(run: Run, levels: Levels, *, count: int = 2) -> Iterator[tuple[str, Decisions]]:
    """What every layer of a classifier decides on a few texts or images, at the training noise.

    Args:
        run: The classifier, samples with ``input_ids`` or ``pixel_values``, and for texts a tokenizer.
        levels: What was measured.
        count: How many samples; they are taken evenly.
    """
    data, measured = run.samples, levels[run.noise.level]
    if measured.decisions is None or measured.confidences is None or len(measured.decisions) != len(data):
        return
    names: Mapping[Any, str] = getattr(getattr(run.model.saved, "config", None), "id2label", None) or {}

    def name(number: Any) -> str:
        return str(names.get(int(number), f"class {int(number)}"))

    texts = []
    for place in evenly(len(data), count):
        sample, picture = data[place], None
        known = sample if isinstance(sample, Mapping) else {}
        if "pixel_values" in known:
            labels = [name(known[each]) for each in LABELS if each in known]
            shown, picture = ", ".join([*labels[:1], f"image {place}"]), _picture(known["pixel_values"])
        elif "input_ids" in known and hasattr(run.tokenizer, "decode"):
            text = " ".join(str(run.tokenizer.decode(known["input_ids"], skip_special_tokens=True)).split())
            shown = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"
        else:
            return
        layers = zip(measured.decisions[place], measured.confidences[place], measured.scores[place], strict=True)
        decisions = [
            Decision(answer=name(number), confidence=float(sure), right=bool(score == 1))
            for number, sure, score in layers
        ]
        texts.append(DecidedText(text=shown, picture=picture, decisions=decisions))
    yield "decisions", Decisions(noise=run.noise.level, texts=texts)


def _picture(values: Any) -> str | None:
    """A data URI of an image (C, height, width) of one or three channels; its values are spread from black to white.

    None for other shapes, and without Pillow, which only pages and data sets of images need.
    """
    pixels = torch.as_tensor(values).float()
    if pixels.ndim != 3 or len(pixels) not in (1, 3):
        return None
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return None
    pixels = pixels - pixels.min()
    shades = (255 * pixels / pixels.max().clamp(min=1e-9)).byte()
    image = Image.fromarray(shades.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
