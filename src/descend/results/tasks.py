"""What language models answer: results on lm-eval's tasks, and answers to prompts in AlpacaEval's format."""

from pathlib import Path
from typing import ClassVar

from descend.reading import json_objects
from descend.results.base import File, Number, Numbers, OptionalNumbers, Part, parse


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


class TaskMetric(Part):
    """A run's results in one metric of one task, by noise level.

    Attributes:
        run: The run's place in ``runs``.
        task: The task's name in lm-eval.
        metric: The metric's name in lm-eval.
        filter: What lm-eval made of the answers before the metric; ``none`` for nothing.
        low: The lower end of the 95 % interval at each level; None for a metric that is not a mean over samples.
        high: The upper end.
    """

    run: int
    task: str
    metric: str
    filter: str = "none"
    low: OptionalNumbers
    high: OptionalNumbers


class TaskCurve(TaskMetric):
    """A run's results in one metric of one task, by noise level.

    Attributes:
        higher_is_better: The direction of the metric.
        samples: How many samples it is taken over.
        values: The metric at each noise level, as lm-eval aggregates it.
    """

    higher_is_better: bool = True
    samples: int
    values: Numbers


class TaskComparison(TaskMetric):
    """A run minus the first run, in one metric of one task, on the same samples and draws of noise, by noise level.

    The intervals are paired ones.

    Attributes:
        differences: The run's value minus the first run's.
        wins: Samples that only this run has right; None for a metric that is not right or wrong.
        losses: Samples that only the first run has right.
        p_values: McNemar's exact two-sided test of wins against losses.
    """

    differences: Numbers
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

    todo: ClassVar[str] = "Write it again with descend tasks."

    lm_eval: str
    noise: list[float]
    layer: int | None
    checkpoint: str
    seed: int
    limit: int | None
    runs: list[TaskRun]
    curves: list[TaskCurve]
    comparisons: list[TaskComparison]


class Completion(Part):
    """An answer, with the texts instruction and output.

    Attributes:
        instruction: The prompt.
        output: The answer.
        generator: The model and its noise.
        dataset: The prompt's data set.
    """

    instruction: str
    output: str
    generator: str = ""
    dataset: str = ""


def read_completions(path: Path) -> list[Completion]:
    """Read a file of answers.

    Raises:
        InputError: If there is none, or a row of it is not an answer.
    """
    todo = "Write the file again with descend complete."
    return [parse(Completion, row, place, todo) for place, row in json_objects(path)]
