"""The one way to evaluate: measure a run over noise, take the verdict, run the evaluators, fill the summary."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from descend.core import DescentProblem
from descend.errors import refuse
from descend.evaluation.layers import LayerLosses, embedding_std, few, measure, survey
from descend.evaluation.needed import layers_needed
from descend.evaluation.probes import Probed, fit_probes
from descend.evaluation.satisfaction import verdict
from descend.methods import CLASSES, Method
from descend.models import MOST_LAYERS, LayeredCausalLM, LayeredClassifier, LayeredEmbedder, LayeredModel, broken
from descend.noise import SHIFTS, GaussianNoise, TokenDropout
from descend.progress import Progress, progress
from descend.recipes import Recipe
from descend.report.terminal import with_words
from descend.results import (
    DECISIONS_FILE,
    FRAMES_FILE,
    GROUPS_FILE,
    SUMMARY_FILE,
    CompareWith,
    Groups,
    Histogram,
    LayerGroups,
    LayerScores,
    Probes,
    Ratios,
    Results,
    Summary,
    anytime_curves,
    put,
)
from descend.run.run import Run
from descend.seeds import Stream, derived
from descend.settings import settings_of

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


Evaluator = Callable[[Run, Levels], Iterable[tuple[str, Any]]]
"""Yields results by name: entries of `Summary`, or those with a file beside it. Nothing where it does not apply."""


class FurtherEvaluator:
    """An evaluator that a person asks for; it refuses values and runs that it can't take, before anything is read."""

    def check(self, run: Run) -> None:
        """Refuse a run that it can't take.

        Raises:
            InputError: If the model is none of texts or images, or the data are not those of the test split.
        """
        refuse(
            (
                run.recipe is None,
                "probes and early exits are chosen on a run's own data; a model in memory has none. Read a run by "
                "Run.read(folder).",
            ),
            (
                isinstance(run.model, LayeredEmbedder),
                "an embedding model has no classes to be probed or sure of; leave out --probe and --exit. To stop "
                "after layer K: descend export --layers K.",
            ),
            (
                not isinstance(run.model, LayeredClassifier | LayeredCausalLM),
                "only models of text can be probed or left early; leave out --probe and --exit. To stop a denoiser "
                "after layer K: descend denoise --layer K, or descend export --layers K.",
            ),
            (
                run.split != "test",
                f"--probe and --exit choose on validation data and are evaluated on test; got --split {run.split}.",
            ),
        )

    def __call__(self, run: Run, levels: Levels) -> Iterable[tuple[str, Any]]:
        """Yields its results by name."""
        raise NotImplementedError


class LinearProbes(FurtherEvaluator):
    """A linear probe of every layer of a classifier, fitted on the training split of the run's own data.

    Probes are measured in the same forward passes as the layers.
    """

    def check(self, run: Run) -> None:
        """Refuse a model that is no classifier."""
        super().check(run)
        refuse(
            (
                not isinstance(run.model, LayeredClassifier),
                "only classifiers can be probed; leave out --probe.",
            )
        )

    def fitted(self, run: Run) -> Probed:
        """The classifier with its probes."""
        assert isinstance(run.model, LayeredClassifier)
        # Its own draws: those of the evaluated samples belong to their numbers too.
        fresh = run.noise.at(run.noise.level, seed=derived(Stream.PROBES, run.noise.seed))
        return fit_probes(run.model, run.task, run.data.train, run.data.validation, fresh, run.batches)

    def __call__(self, run: Run, levels: Levels) -> Iterator[tuple[str, Probes]]:
        """Yields ``probe`` of what was measured of the probes."""
        yield (
            "probe",
            Probes(
                values=[levels[level].metrics[-1] for level in run.levels],
                layer_losses={level: layers.losses.mean(0).tolist() for level, layers in levels.items()},
                layer_metrics={level: layers.metrics for level, layers in levels.items()},
            ),
        )


def usual_curve(level: float) -> list[float]:
    """Eight levels γ from 0 to 3.5 times the training noise; after clean training 0 alone."""
    return [round(each, 6) for each in np.linspace(0, 3.5 * level, 8 if level else 1).tolist()]


def settle(
    run: Run,
    noise: Sequence[float] | None,
    shift: str | None,
    seed: int,
    most: int | None,
    iterations: int | None,
) -> None:
    """Load a run's model and samples, and set the noise and the levels that it is evaluated at; it is changed."""
    network, trained = run.model, run.noise
    if iterations is not None:
        _refuse_iterations(network, iterations)
    if names := broken(network):
        name = "the model" if run.home is None else run.model_folder
        tqdm.write(f"WARNING: {name} has weights that are NaN or infinite: {names}.", file=sys.stderr)
    run.shift = shift or run.shift
    levels = [GaussianNoise(level).level for level in np.ravel([] if noise is None else noise).tolist()]
    if noise is None and run.recipe is not None:
        levels = usual_levels(run.recipe, run.shift)
    elif noise is None:
        of_training = run.shift == trained.kind
        levels = usual_curve(trained.level) if of_training else _asked_curve(run.shift, trained.level)
    noisy = max([*levels, trained.level]) > 0
    if most is not None:
        run.samples = few(run.samples, most)
    if run.objective is None:
        run.task.check(run.samples, network.limits)
        network.to(run.batches.device)
    else:
        assert run.batches.collate is not None
        with running(network, iterations):
            run.objective.check_data({"data": run.samples}, run.batches.collate, noise=noisy)
    refuse(
        (
            len(run.samples) < 2,
            f"expected at least 2 samples, without which there is no confidence interval; got {len(run.samples)}.",
        ),
        (not levels, "noise must hold at least one level; got none. Leave it out for the usual levels."),
    )
    run.levels = sorted({*map(float, levels)})
    sigma = trained.sigma if run.trained_by is None else run.trained_by.sigma
    if sigma is None and (noisy or run.home is not None):
        data = run.samples if run.recipe is None else run.data.train
        sigma = embedding_std(network, run.task, data, run.batches)
    run.noise = trained.at(trained.level, seed=seed, sigma=sigma)
    if run.shift != trained.kind:
        kind = SHIFTS[run.shift]
        run.noise = kind(0.0 if kind is TokenDropout else trained.level, sigma, seed, trained.noise_is)


def _refuse_iterations(model: LayeredModel, iterations: int) -> None:
    """Raise an error unless a model can run so many iterations, more than its depth."""
    whole = isinstance(iterations, int) and not isinstance(iterations, bool)
    refuse(
        (
            not whole or not model.depth < iterations <= MOST_LAYERS,
            f"iterations must be a whole number above {model.depth}, the model's depth, and at most {MOST_LAYERS}; got "
            f"{iterations!r}.",
        ),
    )
    with model.running(iterations):
        pass


def running(model: Any, iterations: int | None) -> AbstractContextManager[None]:
    """An unrolled network runs so many iterations inside the ``with`` block; its own number for None."""
    return nullcontext() if iterations is None else model.running(iterations)


def usual_levels(recipe: Recipe, shift: str = "gaussian") -> list[float]:
    """Eight levels γ from 0 to 3.5 times the training noise, or to 0.7 for token dropout; after clean training 0 alone.

    A kind of noise that was asked for has eight levels in any case.
    """
    if shift == "gaussian":
        return usual_curve(recipe.noise)
    return _asked_curve(shift, recipe.noise or settings_of(type(recipe))["noise"].default)


def _asked_curve(shift: str, level: float) -> list[float]:
    """Eight levels of a kind of noise that training did not have."""
    return usual_curve(0.2 if shift == "dropout" else level or 1.0)


def results_of(
    run: Run,
    evaluators: Iterable[Evaluator] = (),
    *,
    baseline: Results | None = None,
    compare_with: CompareWith | None = None,
    full_depth: CompareWith | None = None,
    iterations: int | None = None,
) -> Results:
    """Measure every layer at every noise level, take the verdict at the training noise, and run the evaluators.

    Args:
        run: The model, its held-out samples, the noise with a seed that is the same for all models to be compared, and
            the levels of the robustness curve. The training level is measured too. Files are written where it has a
            folder.
        evaluators: They see the run and what was measured.
        baseline: To whose full depth layers are held, evaluated on the same data; None for the model's own.
        compare_with: Which layer counts as full depth, see `layers_needed`.
        full_depth: Which layer counts in this model without ``compare_with``, see `layers_needed`.
        iterations: How often the block of an unrolled network runs, if more often than its depth.

    Returns:
        The results, with the entries that the evaluators gave.
    """
    evaluators = [*evaluators]
    probes = next((each for each in evaluators if isinstance(each, LinearProbes)), None)
    noises = {level: run.noise.at(level) for level in sorted({*run.levels, float(run.noise.level)})}
    fingerprint, commonest = survey(run.task, run.batches.loader(run.samples))
    if baseline is not None:  # before anything is measured
        baseline.groups_at(noises, fingerprint)
    model = run.model if probes is None else probes.fitted(run)
    exits = run.model.depth + 1
    with running(run.model, iterations), reading_progress("evaluating", len(run.samples), len(noises)) as bar:
        each_level = measure(model, run.task, run.batches.of(run.samples), list(noises.values()), progress=bar)
    measured = dict(zip(noises, each_level, strict=True))
    levels = {level: layers.at_exits(slice(exits)) for level, layers in measured.items()}
    further_exits = {level: layers.at_exits(slice(exits, None)) for level, layers in measured.items()}
    content = _measured(run, levels)
    results: dict[str, Any] = {"by_group": by_group(run, levels, fingerprint), "commonest": commonest}
    for evaluator in evaluators:
        results |= evaluator(run, further_exits if evaluator is probes else levels)
    if iterations is not None:
        results["past_losses"] = {level: layers.losses.mean(0).tolist() for level, layers in further_exits.items()}
        results["past_metrics"] = {level: layers.metrics for level, layers in further_exits.items()}
    if "validation" in results:
        count, same = results["validation"].samples, fingerprint
        if count < len(run.samples):  # were these the data, as many of them would have been taken
            same, _ = survey(run.task, run.batches.loader(few(run.samples, count)))
        if results["validation"].fingerprint == same:  # no K is tested on the samples that chose it
            told = "the validation samples are the evaluated ones, so no K is chosen. Give others as validation data."
            refuse((compare_with == "best", told))
            tqdm.write(f"{run.name}: {told}", file=sys.stderr)
            del results["validation"]
    results["layers_needed"], results["kept"] = layers_needed(
        results["by_group"],
        baseline,
        noise=float(run.noise.level),
        higher_is_better=run.task.higher_is_better,
        seconds=results["latency"].milliseconds if "latency" in results else None,
        validation=results.get("validation"),
        compare_with=compare_with,
        full_depth=full_depth,
        folder=run.folder,
    )
    entries = {name: result for name, result in results.items() if name in Summary.model_fields}
    summary = with_words(Summary(**content | entries))
    if run.folder is not None:
        run.folder.mkdir(parents=True, exist_ok=True)
        for name, file in FILES.items():
            if name in results:
                results[name].write(run.folder / file)
        if frames := results.get("frames"):
            put(run.folder / FRAMES_FILE, lambda part: np.savez_compressed(part, **frames))
        summary.write(run.folder / SUMMARY_FILE)
    return Results(summary, results["by_group"], run.folder)


def reading_progress(about: str, samples: int, levels: int, kind: str = "sample") -> Progress:
    """The progress of reading so many samples at so many noise levels; a line never counts one sample twice."""
    shown = progress(samples * levels, about, "reading" if levels > 1 else kind)
    if levels > 1:
        shown.set_postfix_str(f"{samples} {kind}s at {levels} noise levels", refresh=False)
    return shown


def _measured(run: Run, levels: Levels) -> dict[str, Any]:
    """The entries of ``summary.json`` that every evaluation has."""
    task, trained = run.task, levels[run.noise.level]
    problem = run.problem or DescentProblem(run.model.depth, PLAIN_ALPHA)
    asked = run.problem is not None and CLASSES.get(run.provenance.method, Method).asks
    held = verdict(problem, trained, asked=asked)
    values = [levels[level].metrics[-1] for level in run.levels]
    layer_metrics = {level: layers.metrics for level, layers in levels.items()}
    return {
        **run.provenance.model_dump(exclude_unset=True),
        **dict(held),
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "noise": [*run.levels],
        "values": values,
        "mean": float(np.mean(values)),
        "auc": float(np.trapezoid(values, run.levels)) if len(values) > 1 else None,
        "train_noise": float(run.noise.level),
        "train_value": trained.metrics[-1],
        "layer_losses": {level: layers.losses.mean(0).tolist() for level, layers in levels.items()},
        "layer_metrics": layer_metrics,
        "anytime": anytime_curves(layer_metrics, task.higher_is_better),
        "descending_share": trained.descending_share,
        "ratios": ratios(trained),
        "samples": len(trained.losses),
        "depth": problem.depth,
        "unit": "iteration" if run.model.iterative else "layer",
        "dataset": run.name,
        "split": run.split,
        "shift": run.shift,
        "alpha": list(problem.alpha or ()),
        "target": problem.target.name,
        "within": getattr(problem.target, "tau", None),
        "after": getattr(problem.target, "after", None),
        "strength": getattr(problem.target, "strength", None),
        "limits": problem.limits,
        "first_layer": problem.first,
        "sigma": run.noise.sigma,
    }


def by_group(run: Run, levels: Levels, fingerprint: str) -> Groups:
    """The last layer's scores by group, and all layers' losses and scores by blocks of groups: ``groups.json``.

    Where all samples are of one group, which ``single`` then says, each sample counts as a group. Of a bounded metric
    there are the scores of all layers by group too, see `MOST_SUMS`.

    All are sums, at every level; those of all layers at the training level too, whether or not it is among the others.

    Models that are evaluated on the same data have the same groups in the same order, and the same draws of noise:
    figures over several runs compare them pair by pair. The metric at a level is Σ scores / Σ counts, or its root.
    ``fingerprint`` is the samples' hash by `survey`.
    """
    trained = levels[run.noise.level]
    counts = _sums(trained, torch.ones(len(trained.losses), dtype=torch.int64, device="cpu"))
    scores = [each.scores for each in levels.values()]
    known = run.task.bounded and run.task.higher_is_better
    bounded = known and all(bool(((each >= 0) & (each <= 1)).all()) for each in scores)
    blocks = layer_scores(levels, MOST_BLOCKS)
    return Groups(
        noise=[*run.levels],
        root=run.task.root,
        single=trained.group_count == 1,
        counts=counts.tolist(),
        scores=[_short(_sums(trained, levels[level].scores[:, -1])) for level in run.levels],
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
