"""Load lm-eval's tasks by name or from YAML files, and check them before a model is loaded."""

import difflib
import os
import random
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lm_eval.api.metrics  # noqa: F401  (registers the metrics)
import numpy as np
import yaml
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import utils
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager, _yaml_loader

from descend.errors import InputError, refuse, refusing
from descend.reading import MOST_DEPTH

RANDOM_SEED, OTHER_SEED = 0, 1234
"""The seeds of lm-eval's own command: of Python's generator, and of NumPy's and the few-shot examples'."""

OUTPUTS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
"""Types of tasks that a language model of text can do."""

MOST_BYTES = 2**20
"""Largest file of a task."""

PLACES = {"cache_dir", "download_config", "storage_options"}
"""Arguments of `datasets.load_dataset` that say where files are written."""

PACKAGE = Path(_yaml_loader.__file__).resolve().parent
"""The folder of lm-eval's own tasks, which are part of the installed package."""


def load_tasks(names: Sequence[str], *, trust_code: bool = False) -> dict[str, Task]:
    """lm-eval's tasks by their names, with their data, in the order given; a group stands for its tasks.

    Args:
        names: Names of tasks, groups or tags in lm-eval, patterns such as ``mmlu_*``, and paths of YAML files.
        trust_code: Whether the Python that YAML files name may run.

    Raises:
        InputError: If there is no such task, one can't be loaded or be done by a language model of text, or a file
            names code that is not trusted.
    """
    with nullcontext() if trust_code else _without_code():
        return _loaded(names, trust_code)


def _loaded(names: Sequence[str], trust_code: bool) -> dict[str, Task]:
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    for name in files:
        refuse((not Path(name).expanduser().is_file(), f"expected the YAML file of a task; there is no {name}."))
        _check_file(name, trust_code)
    _sandbox_templates()
    # Thousands of files are read to know lm-eval's own tasks.
    manager = TaskManager(include_defaults=len(files) < len(names))
    # Tasks may draw from the global generators when they load.
    random.seed(RANDOM_SEED)
    np.random.seed(OTHER_SEED)
    tasks: dict[str, Task] = {}
    for name in names:
        for each in [name] if name in files else _matching(name, manager):
            with refusing(f"the task {each} can't be loaded"):
                loaded = manager.load([each])["tasks"]
            both = ", ".join(loaded.keys() & tasks.keys())
            refuse((bool(both), f"tasks must differ in their names; got {both} twice. Change `task` in one YAML file."))
            tasks |= loaded
    for name, task in tasks.items():
        refuse(
            (
                task.OUTPUT_TYPE not in OUTPUTS or getattr(task, "MULTIMODAL", False),
                f"the task {name} asks for {task.OUTPUT_TYPE}; expected one of {', '.join(OUTPUTS)} on text.",
            ),
            (
                getattr(task, "UNSAFE_CODE", False),
                f"the task {name} runs code that a model writes, which descend does not do.",
            ),
        )
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=OTHER_SEED)
        with refusing(f"the task {name} can't be asked"):
            task.build_all_requests(limit=1, rank=0, world_size=1)
    return tasks


@contextmanager
def _without_code() -> Iterator[None]:
    """Let lm-eval's loader itself refuse the code that files outside lm-eval name, so that nothing else reads them."""
    made = _yaml_loader._make_loader

    def make(folder: Path, *, resolve_funcs: bool) -> Any:
        return made(folder, resolve_funcs=resolve_funcs) if folder.is_relative_to(PACKAGE) else _PlainLoader

    _yaml_loader._make_loader = make
    try:
        yield
    finally:
        _yaml_loader._make_loader = made


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _PlainLoader(_Base):
    """Reads values alone, from a file of bounded size and nesting: libyaml's composer has no bound of its own."""

    def __init__(self, stream: Any):
        self.file, status = stream.name, os.fstat(stream.fileno())
        regular = stat.S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES
        refuse((not regular, f"{self.file} must be a file of at most {MOST_BYTES} bytes."))
        content, depth = stream.read(MOST_BYTES + 1), 0
        for event in yaml.parse(content, Loader=_Base):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            refuse((depth > MOST_DEPTH, f"{self.file} is nested deeper than {MOST_DEPTH}."))
        super().__init__(content)

    def refuse_function(self, node: Any) -> None:
        raise InputError(f"{self.file} has {node.tag} {getattr(node, 'value', '')}")


_PlainLoader.add_constructor("!function", _PlainLoader.refuse_function)


def _code(config: Any) -> Iterator[str]:
    """The metrics of a task that lm-eval would load as scripts, and where it would write: each in words."""
    values, seen = [config], set()
    while values:
        value = values.pop()
        if id(value) in seen or not isinstance(value, dict | list):  # an alias may be inside what it stands for
            continue
        seen.add(id(value))
        values += value.values() if isinstance(value, dict) else value
        # lm-eval asks the package evaluate for a metric that it does not know, and that runs a script.
        metric = value.get("metric") if isinstance(value, dict) else None
        if isinstance(metric, str) and metric not in metric_registry:
            yield f"it has the metric {metric}, which is none of lm-eval's own"
        if isinstance(value, dict) and value.get("hf_evaluate"):
            yield "it has a metric of the package evaluate"
        if isinstance(value, dict) and (places := PLACES & value.keys()):
            yield f"it says where files are written, by {', '.join(sorted(places))}"


def _check_file(name: str, trust_code: bool) -> None:
    """Refuse a file that is of no task; and one that runs code or says where files are written, unless it is trusted.

    Raises:
        InputError: If it is, or a file that it includes names code.
    """
    with refusing(f"{name} is not YAML of a task"):
        try:
            content, code = _yaml_loader.load_yaml(name, resolve_func=not trust_code), []
        except InputError as error:  # of the loader that runs no code
            content, code = {}, [str(error)]
    code += [] if trust_code else _code(content)
    words = f"the task {name} runs code or writes files: {'; '.join(code)}."
    refuse(
        (bool(code), f"{words} Read it, and give --trust-code if you trust it."),
        (
            "group" in content and "class" not in content,
            f"expected the YAML file of one task; {name} is of a group. Name its tasks in --tasks.",
        ),
    )


def _sandbox_templates() -> None:
    """Let Jinja's sandbox render lm-eval's templates: a template could reach any function of Python otherwise."""
    given = utils.env
    settings = {name: getattr(given, name) for name in ("loader", "undefined", "keep_trailing_newline")}
    utils.env = SandboxedEnvironment(**settings)
    utils.env.filters.update(given.filters)


def _matching(name: str, manager: TaskManager) -> list[str]:
    matching = manager.match_tasks([name])
    near = ", ".join(difflib.get_close_matches(name, manager.all_tasks, n=3, cutoff=0.5))
    hint = f" Did you mean {near}?" if near else ""
    refuse((not matching, f"lm-eval knows no task {name!r}; give a task's name or the path of its YAML file.{hint}"))
    return matching
