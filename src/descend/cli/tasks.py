"""The command that evaluates runs on lm-eval's tasks."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from descend.cli.parsing import levels, read
from descend.errors import InputError

if TYPE_CHECKING:
    from descend.results import TaskResults


def tasks(words: Sequence[str]) -> None:
    """Evaluate runs of language models on lm-eval's tasks."""
    options = read(
        words,
        "tasks",
        "lm-eval's tasks for language models, over noise and at an exit; runs compared.",
        "RUN ... --tasks NAMES --out FILE [options]",
        {
            "runs": dict(
                type=Path, nargs="+", metavar="RUN", help="folders of trained runs of lm or llm-sft, or of exports"
            ),
            "--tasks": dict(
                required=True, metavar="NAMES", help="lm-eval's names or YAML files: arc_easy,my_task.yaml"
            ),
            "--out": dict(type=Path, required=True, help="JSON file to write"),
            "--noise": dict(type=levels, default="0", metavar="LEVELS", help="levels γ: 0,1,2 or 0:2:0.5 [0]"),
            "--layer": dict(type=int, help="K: evaluate exit K [full depth]"),
            "--model": dict(default="model", help="model or best_feasible [model]"),
            "--limit": dict(type=int, help="only the first so many samples of a task"),
            "--batch-size": dict(type=int, default=1, help="texts at a time; on a CPU one always [1]"),
            "--seed": dict(type=int, default=0, help="of the noise [0]"),
            "--trust-code": dict(action="store_true", help="run the Python that YAML files name"),
        },
        talks=True,
    )
    names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    if not names:
        raise InputError("--tasks must name a task of lm-eval, or its YAML file; got none.")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from descend.harness.evaluating import evaluate_tasks

    results = evaluate_tasks(
        options.runs,
        names,
        options.out,
        noise=options.noise,
        layer=options.layer,
        checkpoint=options.model,
        limit=options.limit,
        batch_size=options.batch_size,
        seed=options.seed,
        trust_code=options.trust_code,
    )
    print("\n".join(lines(results)))
    print(options.out)


def lines(results: "TaskResults") -> list[str]:
    """A line for each curve, and for each comparison."""
    names = [f"{each.run} ({each.method})" for each in results.runs]
    at = [f"γ = {level:g}" for level in results.noise]
    text = []
    for curve in results.curves:
        values = ", ".join(
            f"{value:.4g}{_interval(low, high)} at {level}"
            for value, low, high, level in zip(curve.values, curve.low, curve.high, at, strict=True)
        )
        text.append(f"{curve.task} {curve.metric} of {names[curve.run]}, {curve.samples} samples: {values}")
    for each in results.comparisons:
        values = ", ".join(
            f"{value:+.4g}{_interval(low, high)}{'' if p is None else f' p = {p:.2g}'} at {level}"
            for value, low, high, p, level in zip(each.differences, each.low, each.high, each.p_values, at, strict=True)
        )
        text.append(f"{each.task} {each.metric}, {names[each.run]} minus {names[0]}: {values}")
    return text


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
