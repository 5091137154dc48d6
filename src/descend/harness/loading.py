"""Load lm-eval's tasks by name or from YAML files, and check them before a model is loaded."""

import difflib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import lm_eval.api.metrics  # noqa: F401  (registers the metrics)
import numpy as np
import yaml
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import utils
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from descend.errors import refuse, refusing
from descend.reading import read_text

RANDOM_SEED, OTHER_SEED = 0, 1234
"""The seeds of lm-eval's own command: of Python's generator, and of NumPy's and the few-shot examples'."""

OUTPUTS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
"""Types of tasks that a language model of text can do."""

PLAIN = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge", "timestamp")
)
"""Tags of YAML that stand for values alone."""


def load_tasks(names: Sequence[str], *, trust_code: bool = False) -> dict[str, Task]:
    """lm-eval's tasks by their names, with their data, in the order given; a group stands for its tasks.

    Args:
        names: Names of tasks, groups or tags in lm-eval, patterns such as ``mmlu_*``, and paths of YAML files.
        trust_code: Whether the Python that YAML files name may run.

    Raises:
        InputError: If there is no such task, one can't be loaded or be done by a language model of text, or a file
            names code that is not trusted.
    """
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    for name in files:
        path = Path(name).expanduser()
        code = [] if trust_code or not path.is_file() else list(_code(path.resolve(), set()))
        refuse(
            (not path.is_file(), f"expected the YAML file of a task; there is no {name}."),
            (
                bool(code),
                f"the task {name} runs code: {'; '.join(code)}. Read it, and give --trust-code if you trust it.",
            ),
        )
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


def _code(file: Path, seen: set[Path]) -> Iterator[str]:
    """What a task's YAML file, and the files that it includes, would run: each in words."""
    seen.add(file)
    with refusing(f"{file} is not YAML"):
        nodes, visited = [yaml.compose(read_text(file), Loader=yaml.SafeLoader)], {id(None)}
    while nodes:
        node = nodes.pop()
        if id(node) in visited:  # of an alias, which may be inside what it stands for
            continue
        visited.add(id(node))
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        nodes += node.value if isinstance(node, yaml.SequenceNode) else [each for pair in pairs for each in pair]
        if node.tag not in PLAIN:
            yield f"{file} has {node.tag} {node.value if isinstance(node, yaml.ScalarNode) else ''}".strip()
        for key, value in pairs:
            if key.value == "include":
                names = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for included in {(file.parent / str(name.value)).resolve() for name in names} - seen:
                    if included.is_file():
                        yield from _code(included, seen)
            # lm-eval asks the package evaluate for a metric that it does not know, and that runs a script.
            elif key.value == "metric" and isinstance(value, yaml.ScalarNode) and value.value not in metric_registry:
                yield f"{file} has the metric {value.value}, which is none of lm-eval's own"
            elif key.value == "hf_evaluate" and str(value.value).lower() not in ("false", "no", "off"):
                yield f"{file} has a metric of the package evaluate"


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
