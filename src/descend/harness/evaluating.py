"""Evaluate runs on lm-eval's tasks over noise levels, with intervals, and compare them pairwise on the same samples."""

import gc
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from scipy import stats

from descend.errors import InputError, reason, refuse
from descend.harness.loading import load_tasks
from descend.harness.model import DescendLM, check_source
from descend.progress import progress
from descend.results import CONFIDENCE, TaskComparison, TaskCurve, TaskResults, TaskRun
from descend.writing import new_file

Key = tuple[str, str, str]
"""A task, a metric and a filter."""

NUMBER = (Real, np.bool_)


@dataclass(frozen=True)
class Score:
    """A metric of one task at one noise level.

    Attributes:
        value: As lm-eval aggregates it.
        higher_is_better: The metric's direction.
        count: How many samples it is taken over.
        samples: Its value for each sample, (n,); None if the metric is not their mean.
    """

    value: float
    higher_is_better: bool
    count: int
    samples: np.ndarray | None


def evaluate_tasks(
    folders: Sequence[Path],
    tasks: Sequence[str],
    out: Path,
    *,
    noise: Sequence[float] = (0.0,),
    layer: int | None = None,
    checkpoint: str = "model",
    limit: int | None = None,
    batch_size: int = 1,
    seed: int = 0,
    trust_code: bool = False,
) -> TaskResults:
    """Evaluate runs of language models on lm-eval's tasks, and write the results.

    All runs and levels see the same samples and, as far as they read the same tokens, the same draws of noise.

    Args:
        folders: The runs, or exports of runs. Each is compared with the first.
        tasks: Names of lm-eval's tasks, or paths of YAML files.
        out: The JSON file to write.
        noise: Levels γ, in units of each run's σ_x.
        layer: K, to evaluate exit K; full depth by default.
        checkpoint: The runs' model: ``model`` or ``best_feasible``.
        limit: The most samples of a task, from the first; all by default.
        batch_size: Texts at a time, unless on a CPU.
        seed: The seed of the noise.
        trust_code: Whether the Python that YAML files name may run.

    Raises:
        InputError: If a run has no language model or no layer K, a task is not known or runs code that is not trusted,
            or ``out`` exists.
    """
    refuse(
        (
            batch_size < 1 or (limit is not None and limit < 1),
            f"--limit and --batch-size must be at least 1; got {limit} and {batch_size}.",
        ),
        (not 0 <= seed < 2**32, f"seed must be from 0 to 2^32 - 1; got {seed}."),
    )
    for folder in folders:
        check_source(folder, checkpoint, layer, max(noise))
    # On a terminal lm-eval shows its own bars.
    shown = progress(len(folders) * len(noise), "evaluating", "noise level", quiet=sys.stderr.isatty())
    with new_file(out), shown:
        loaded = load_tasks(tasks, trust_code=trust_code)
        runs: list[TaskRun] = []
        scores: list[list[dict[Key, Score]]] = []
        for folder in folders:
            lm = DescendLM(str(folder), layer=layer, checkpoint=checkpoint, seed=seed, batch_size=batch_size)
            scores.append([])
            for level in noise:
                lm.noise = lm.noise.at(level)
                scores[-1].append(score(lm, loaded, limit))
                shown.update()
            names = lm.run.provenance.model_dump(include={"model", "method", "seed"})
            runs.append(TaskRun(run=str(folder), **names, depth=lm.depth, sigma=lm.run.noise.sigma or math.nan))
            del lm
            gc.collect()  # before the next model is loaded
        keys, first = scores[0][0], scores[0]
        results = TaskResults(
            lm_eval=version("lm_eval"),
            noise=list(noise),
            layer=layer,
            checkpoint=checkpoint,
            seed=seed,
            limit=limit,
            runs=runs,
            curves=[_curve(run, key, levels) for run, levels in enumerate(scores) for key in keys],
            comparisons=[
                _comparison(run, key, levels, first) for run, levels in enumerate(scores) for key in keys if run
            ],
        )
        results.write(out, listed=False)
    return results


def score(lm: DescendLM, tasks: Mapping[str, Task], limit: int | None = None) -> dict[Key, Score]:
    """Evaluate a model on tasks at its present noise level.

    Args:
        lm: The model.
        tasks: The tasks by name.
        limit: The most samples of a task; all by default.

    Raises:
        InputError: If a task can't be done, for example because it asks for more tokens than the model can take.
    """
    try:
        results: Any = evaluate(lm, {"tasks": dict(tasks)}, limit=limit, bootstrap_iters=0, log_samples=True)
    except (AssertionError, ArithmeticError, ValueError) as error:  # ArithmeticError: a perplexity that overflows
        raise InputError(
            f"lm-eval can't evaluate {', '.join(tasks)} at γ = {lm.noise.level:g}: {reason(error)}. Leave out that "
            "task or level."
        ) from error
    scores: dict[Key, Score] = {}
    for task, values in results["results"].items():
        for name, value in values.items():
            metric, _, chosen = name.partition(",")
            if chosen and isinstance(value, NUMBER) and not metric.endswith("_stderr"):
                rows = [
                    each[metric] for each in results["samples"][task] if each["filter"] == chosen and metric in each
                ]
                samples = np.array(rows, float) if all(isinstance(row, NUMBER) for row in rows) else None
                is_mean = samples is not None and np.isclose(samples.mean(), float(value))
                scores[task, metric, chosen] = Score(
                    float(value),
                    higher_is_better=bool(results["higher_is_better"][task].get(metric, True)),
                    count=len(rows),
                    samples=samples if is_mean else None,
                )
    return scores


def _curve(run: int, key: Key, levels: Sequence[Mapping[Key, Score]]) -> TaskCurve:
    scores = [level[key] for level in levels]
    return TaskCurve(
        **_named(run, key),
        higher_is_better=scores[0].higher_is_better,
        samples=scores[0].count,
        values=[each.value for each in scores],
        low=[interval(each.samples)[0] for each in scores],
        high=[interval(each.samples)[1] for each in scores],
    )


def _comparison(
    run: int, key: Key, levels: Sequence[Mapping[Key, Score]], first: Sequence[Mapping[Key, Score]]
) -> TaskComparison:
    pairs = [(mine[key], other[key]) for mine, other in zip(levels, first, strict=True)]
    compared = [paired(mine.samples, other.samples) for mine, other in pairs]
    return TaskComparison(
        **_named(run, key),
        differences=[mine.value - other.value for mine, other in pairs],
        low=[each.low for each in compared],
        high=[each.high for each in compared],
        wins=[each.wins for each in compared],
        losses=[each.losses for each in compared],
        p_values=[each.p_value for each in compared],
    )


def _named(run: int, key: Key) -> dict[str, Any]:
    return dict(zip(("task", "metric", "filter"), key, strict=True), run=run)


class Paired(NamedTuple):
    """How sure one model's mean minus another's is, on the same samples; all None for a metric that is no mean.

    Attributes:
        low: The lower end of the difference's interval.
        high: The upper end.
        wins: Samples that only the first has right; None unless all values are 0 or 1.
        losses: Samples that only the second has right; None unless all values are 0 or 1.
        p_value: McNemar's exact two-sided test that wins and losses are equally likely; None unless all are 0 or 1.
    """

    low: float | None = None
    high: float | None = None
    wins: int | None = None
    losses: int | None = None
    p_value: float | None = None


def interval(values: np.ndarray | None) -> tuple[float | None, float | None]:
    """The interval of a mean: Wilson's for values 0 and 1, otherwise Student's t.

    Args:
        values: A number for each sample, (n,); the samples are independent. None for a metric that is no mean.
    """
    if values is None:
        return None, None
    return _wilson(values) if np.isin(values, (0, 1)).all() else _student(values)


def paired(first: np.ndarray | None, second: np.ndarray | None) -> Paired:
    """Compare two models on the same samples.

    The interval is Newcombe's (1998, method 10) for values 0 and 1: it joins the Wilson intervals of both means by the
    correlation of the pairs, and has a width even where the models differ nowhere. Otherwise it is Student's t over the
    differences.

    Args:
        first: A number for each sample, (n,); None for a metric that is no mean.
        second: The other model's, in the same order.
    """
    if first is None or second is None:
        return Paired()
    if not np.isin([first, second], (0, 1)).all():
        return Paired(*_student(first - second))
    wins, losses, n = int((first > second).sum()), int((first < second).sum()), len(first)
    both, neither = int((first * second).sum()), int(((1 - first) * (1 - second)).sum())
    # The correlation φ of the pairs, with a continuity correction where it is positive.
    product = both * neither - wins * losses
    scale = float(np.sqrt(float(both + wins) * (losses + neither) * (both + losses) * (wins + neither)))
    phi = min(product, max(product - n / 2, 0)) / scale if scale else 0.0
    p, q = float(first.mean()), float(second.mean())
    (p_low, p_high), (q_low, q_high) = _wilson(first), _wilson(second)
    below = (p - p_low) ** 2 - 2 * phi * (p - p_low) * (q_high - q) + (q_high - q) ** 2
    above = (p_high - p) ** 2 - 2 * phi * (p_high - p) * (q - q_low) + (q - q_low) ** 2
    p_value = float(stats.binomtest(wins, max(wins + losses, 1)).pvalue)
    return Paired(p - q - float(np.sqrt(below)), p - q + float(np.sqrt(above)), wins, losses, p_value)


def _wilson(values: np.ndarray) -> tuple[float, float]:
    ends = stats.binomtest(int(values.sum()), len(values)).proportion_ci(CONFIDENCE, method="wilson")
    return float(ends.low), float(ends.high)


def _student(values: np.ndarray) -> tuple[float, float]:
    """Student's interval of a mean; not finite for a single sample."""
    n = len(values)
    error = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(values) if n > 1 else np.inf
    return float(values.mean() - error), float(values.mean() + error)
