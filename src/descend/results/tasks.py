"""Results of runs on lm-eval's tasks, as ``descend tasks`` writes them."""

from pathlib import Path
from typing import Self

from pydantic import model_validator

from descend.results.base import File, Number, Numbers, OptionalNumbers, Part, Text, parse
from descend.results.folder import read_json


class TaskRun(Part):
    """A run that was evaluated.

    Attributes:
        run: Its folder, as it was given.
        model: The model's label, such as ``Llama-6``.
        method: ``constrained``, ``erm`` or another method of training.
        seed: The seed of its training.
        depth: L, the number of layers.
        sigma: σ_x, the unit of its noise levels.
    """

    run: str
    model: str
    method: str
    seed: int
    depth: int
    sigma: Number


class TaskCurve(Part):
    """A run's results in one metric of one task, by noise level.

    Attributes:
        run: The run's place in ``runs``.
        task: The task's name in lm-eval.
        metric: The metric's name in lm-eval.
        filter: What lm-eval made of the answers before the metric; ``none`` for nothing.
        higher_is_better: The direction of the metric.
        samples: How many samples it is taken over.
        values: The metric at each noise level, as lm-eval aggregates it.
        low: The lower end of its 95 % interval; None for a metric that is not a mean over samples.
        high: The upper end.
    """

    run: int
    task: str
    metric: str
    filter: Text = "none"
    higher_is_better: bool = True
    samples: int
    values: Numbers
    low: OptionalNumbers
    high: OptionalNumbers


class TaskComparison(Part):
    """A run minus the first run, in one metric of one task, on the same samples and draws of noise, by noise level.

    Attributes:
        run: The run's place in ``runs``; the other is the first.
        task: The task's name in lm-eval.
        metric: The metric's name in lm-eval.
        filter: What lm-eval made of the answers before the metric.
        differences: The run's value minus the first run's.
        low: The lower end of the paired 95 % interval; None for a metric that is not a mean over samples.
        high: The upper end.
        wins: Samples that only this run has right; None for a metric that is not right or wrong.
        losses: Samples that only the first run has right.
        p_values: McNemar's exact two-sided test of wins against losses.
    """

    run: int
    task: str
    metric: str
    filter: Text = "none"
    differences: Numbers
    low: OptionalNumbers
    high: OptionalNumbers
    wins: list[int | None]
    losses: list[int | None]
    p_values: OptionalNumbers


class TaskResults(File):
    """Results of runs on lm-eval's tasks.

    Attributes:
        lm_eval: The version of lm-eval.
        noise: The noise levels γ, in units of each run's σ_x.
        layer: K, the exit layer; None for full depth.
        checkpoint: The runs' model: ``model`` or ``best_feasible``.
        seed: The seed of the noise.
        limit: The most samples of a task; None for all.
        runs: The runs.
        curves: A curve for each run, task and metric.
        comparisons: For each run but the first, each task and metric.
    """

    lm_eval: str
    noise: list[float]
    layer: int | None
    checkpoint: str
    seed: int
    limit: int | None
    runs: list[TaskRun]
    curves: list[TaskCurve]
    comparisons: list[TaskComparison]

    @model_validator(mode="after")
    def _check(self) -> Self:
        levels = len(self.noise)
        for curve in self.curves:
            if {len(curve.values), len(curve.low), len(curve.high)} != {levels}:
                raise ValueError(f"a curve of {curve.task} must have {levels} levels, as noise has")
        for each in self.comparisons:
            lists = (each.differences, each.low, each.high, each.wins, each.losses, each.p_values)
            if {len(values) for values in lists} != {levels}:
                raise ValueError(f"a comparison in {each.task} must have {levels} levels, as noise has")
        places = {curve.run for curve in self.curves} | {each.run for each in self.comparisons}
        if not places <= set(range(len(self.runs))):
            raise ValueError(f"run must be a place in runs, from 0 to {len(self.runs) - 1}")
        return self


def read_task_results(path: Path) -> TaskResults:
    """Read a file that ``descend tasks`` wrote.

    Raises:
        InputError: If it is missing, damaged or something else.
    """
    return parse(TaskResults, read_json(path), str(path), "Write it again with descend tasks.")
