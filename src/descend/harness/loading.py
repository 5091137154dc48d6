"""Load lm-eval's tasks by name or from YAML files, and check them before a model is loaded."""

import difflib
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from descend.errors import InputError, reason

RANDOM_SEED, OTHER_SEED = 0, 1234
"""The seeds of lm-eval's own command: of Python's generator, and of NumPy's and the few-shot examples'."""

OUTPUTS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
"""Types of tasks that a language model of text can do."""


def load_tasks(names: Sequence[str]) -> dict[str, Task]:
    """lm-eval's tasks by their names, with their data, in the order given; a group stands for its tasks.

    Args:
        names: Names of tasks, groups or tags in lm-eval, patterns such as ``mmlu_*``, and paths of YAML files.

    Raises:
        InputError: If there is no such task, or one can't be loaded or be done by a language model of text.
    """
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    for name in files:
        if not Path(name).expanduser().is_file():
            raise InputError(f"expected the YAML file of a task; there is no {name}.")
    # Thousands of files are read to know lm-eval's own tasks.
    manager = TaskManager(include_defaults=len(files) < len(names))
    # Tasks may draw from the global generators when they load.
    random.seed(RANDOM_SEED)
    np.random.seed(OTHER_SEED)
    tasks: dict[str, Task] = {}
    for name in names:
        for each in [name] if name in files else _matching(name, manager):
            try:
                loaded = manager.load([each])["tasks"]
            except Exception as error:  # of YAML, of the data's reader, or of a task's own code
                raise InputError(
                    f"the task {each} can't be loaded: {type(error).__name__}: {reason(error)}."
                ) from error
            if both := ", ".join(loaded.keys() & tasks.keys()):
                raise InputError(f"tasks must differ in their names; got {both} twice. Change `task` in one YAML file.")
            tasks |= loaded
    for name, task in tasks.items():
        _check(name, task)
    return tasks


def _matching(name: str, manager: TaskManager) -> list[str]:
    matching = manager.match_tasks([name])
    if not matching:
        near = difflib.get_close_matches(name, manager.all_tasks, n=3, cutoff=0.5)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"lm-eval knows no task {name!r}; give a task's name or the path of its YAML file.{hint}")
    return matching


def _check(name: str, task: Task) -> None:
    if task.OUTPUT_TYPE not in OUTPUTS or getattr(task, "MULTIMODAL", False):
        raise InputError(f"the task {name} asks for {task.OUTPUT_TYPE}; expected one of {', '.join(OUTPUTS)} on text.")
    if getattr(task, "UNSAFE_CODE", False):
        raise InputError(f"the task {name} runs code that a model writes, which descend does not do.")
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=OTHER_SEED)
    try:
        task.build_all_requests(limit=1, rank=0, world_size=1)
    except Exception as error:  # of a template, or of data that it does not fit
        raise InputError(f"the task {name} can't be asked: {type(error).__name__}: {reason(error)}.") from error
