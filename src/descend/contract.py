"""Check that model, task, noise and data fit together, before training or evaluation starts."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from descend.errors import InputError, reason
from descend.models.causal import LayeredCausalLM
from descend.models.classifiers import LayeredClassifier
from descend.models.hooked import PAGE, HookedModel
from descend.models.layered import LayeredModel
from descend.models.library import LibraryModel
from descend.models.modules import cuda_devices, evaluating
from descend.models.token_heads import LayeredQuestionAnswerer, LayeredTokenClassifier
from descend.noise import Noise
from descend.tasks import Task
from descend.tasks.base import LABELS
from descend.tasks.text import Classification, NextToken, QuestionAnswering, TokenClassification

TRIAL_SAMPLES = 2

TASKS: dict[type[LayeredModel], type[Task]] = {
    LayeredClassifier: Classification,
    LayeredCausalLM: NextToken,
    LayeredTokenClassifier: TokenClassification,
    LayeredQuestionAnswerer: QuestionAnswering,
}
"""The default task of each kind of Transformers' models."""


def resolve(model: nn.Module, task: Task | None, noise: Noise | None) -> tuple[LayeredModel, Task]:
    """The layered model of a module, and its task.

    Models of Transformers are wrapped and have a default task.

    Args:
        model: A `LayeredModel` or a model of Transformers.
        task: The task; None for the default one.
        noise: The noise, or None.

    Raises:
        InputError: If something is missing or of the wrong type; one message names all problems.
    """
    problems: list[str] = []
    layers = _layers(model, problems)
    if noise is not None and not isinstance(noise, Noise):
        problems.append(f"noise must be a level or an object of descend.noise, such as GaussianNoise; got {noise!r}.")
    elif noise is not None and layers is not None:
        _collect(problems, layers.get_input_embeddings)
    own = task is not None or not isinstance(layers, LibraryModel)
    if task is None:
        task = next((default() for kind, default in TASKS.items() if isinstance(layers, kind)), None)
        if task is None:
            problems.append(
                "a task is missing: the loss and metric of the data. Derive one from descend.Task, which needs one "
                "method, and give it as task=...."
            )
    elif not isinstance(task, Task):
        what = f"the class {task.__name__} itself; call it" if isinstance(task, type) else f"a {type(task).__name__}"
        problems.append(f"task must be an object of a class derived from descend.Task; got {what}.")
    elif not isinstance(task.metric, str) or not isinstance(task.higher_is_better, bool):
        problems.append(
            f"the task's metric must be a name and higher_is_better True or False; got {task.metric!r} and "
            f"{task.higher_is_better!r}."
        )
    _refuse(problems, own=own)
    assert layers is not None and task is not None
    return layers, task


def check_data(
    model: LayeredModel,
    task: Task,
    datasets: Mapping[str, Any],
    collate: Callable[[list[Any]], Any],
    *,
    noise: bool,
) -> None:
    """Check samples, and run a user-defined model or task on two of them.

    The random generators and the model are left as they were. The trial run is skipped if both model and task are this
    package's, which are known to fit, and for streams, which can't be read twice.

    Args:
        model: The model.
        task: The task.
        datasets: Name for messages → data set.
        collate: Turns samples into a batch.
        noise: Whether noise is added to the model's input embedding.

    Raises:
        InputError: If something does not fit; one message names all problems.
    """
    problems: list[str] = []
    for dataset in datasets.values():
        _collect(problems, partial(task.check, dataset, model.limits))
    whole = not any(parameter.is_meta for parameter in model.parameters())
    own = not (_known(model) and _known(task))
    if not problems and whole and own:
        for name, dataset in datasets.items():
            with evaluating(model), _undrawn(model), torch.no_grad():
                samples = [] if problems else _first_samples(dataset)
                if samples:
                    _try(model, task, samples, collate, noise, f"the {name}", problems)
    _refuse(problems, own=own)


def _layers(model: nn.Module, problems: list[str]) -> LayeredModel | None:
    if isinstance(model, LayeredModel):
        depth, readout = getattr(model, "depth", None), getattr(model, "readout", None)
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            problems.append(f"{type(model).__name__}.depth must be L, its number of layers; got {depth!r}.")
        if not callable(readout):
            problems.append(f"{type(model).__name__}.readout must turn a layer's output into a prediction; got none.")
        return None if problems else model
    if isinstance(getattr(model, "config", None), PreTrainedConfig):  # also true of a PEFT model
        return _of_transformers(cast(PreTrainedModel, model))
    problems.append(
        f"expected a model whose layers can be read; got {type(model).__name__}. Wrap it: descend.layered(model, "
        "blocks=..., readout=..., embeddings=...)."
    )
    return None


def _of_transformers(network: PreTrainedModel) -> LibraryModel:
    """The layers of a model of Transformers, by the head that its class has."""
    inside = getattr(network, "get_base_model", None)
    names = [each.__name__ for each in type(inside() if inside else network).__mro__]
    for kind in (LayeredTokenClassifier, LayeredQuestionAnswerer):
        if any(name.endswith(kind.task_class) for name in names):
            return kind(network)
    return LayeredClassifier(network) if network.get_output_embeddings() is None else LayeredCausalLM(network)


def _try(
    model: LayeredModel,
    task: Task,
    samples: list[Any],
    collate: Callable[[list[Any]], Any],
    noise: bool,
    data: str,
    problems: list[str],
) -> None:
    """Run model and task on some samples and add what fails to ``problems``."""

    def attempt(what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except InputError as error:
            problems.append(str(error))
        except KeyError as error:
            problems.append(
                f"{what} looks for the field {error}; the batch has {', '.join(batch)}. "
                + (
                    f"Give every sample the field {error}, or override {type(task).__name__}.target."
                    if error.args[0] in LABELS
                    else f"If samples have it, name it in {type(task).__name__}.fields: fields that neither the "
                    "model's forward nor the task names are dropped."
                )
            )
        except Exception as error:
            problems.append(f"{what} fails on {data}: {type(error).__name__}: {reason(error)}.")
        return None

    batch: dict[str, Any] = {}
    made = attempt("collating samples", partial(collate, samples))
    if made is None and isinstance(samples[0], tuple | list):
        problems.append(f"samples are a {type(samples[0]).__name__}; expected dictionaries with a name for each field.")
    if made is not None and not isinstance(made, Mapping):
        problems.append(f"a batch of {data} must hold fields by name; got a {type(made).__name__}. Give dictionaries.")
    if problems:
        return
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    batch = dict(send_to_device(made, device))
    name = type(task).__name__
    target = attempt(f"{name}.target", partial(task.target, batch))
    inputs = attempt(f"{name}.inputs", partial(task.inputs, batch))
    owners = None if target is None else attempt(f"{name}.owners", partial(task.owners, batch))
    for method in ("mask", "groups"):
        attempt(f"{name}.{method}", partial(getattr(task, method), batch))
    if owners is not None and len(owners) != len(target):
        problems.append(f"{name}.owners must name the sample of each of {len(target)} targets; got {len(owners)}.")
    if problems or inputs is None:
        return
    with _embedded(model) if noise else _nothing() as embedded:
        what = f"{type(model.saved).__name__}{' or its readout' if isinstance(model, HookedModel) else ''}"
        predictions = attempt(what, lambda: list(model.predictions(inputs)))
    if predictions is None:
        return
    if noise and not (embedded and isinstance(embedded[0], Tensor) and embedded[0].is_floating_point()):
        got = f"a {type(embedded[0]).__name__}" if embedded else "no call of it"
        problems.append(f"the module named by embeddings must return a tensor of real numbers; got {got}.")
    if len(predictions) != model.depth + 1:
        problems.append(f"expected depth + 1 = {model.depth + 1} predictions; got {len(predictions)}.")
    expected = f"must return one number for each target, shape ({len(target)},)"
    for method in ("losses", "score"):
        values = attempt(f"{name}.{method}", partial(getattr(task, method), predictions[-1], target))
        if values is not None and tuple(values.shape) != (len(target),):
            shape = tuple(values.shape)
            problems.append(f"{name}.{method} {expected}, not their mean (reduction='none'); got {shape}.")
            break
    decided = attempt(f"{name}.decide", partial(task.decide, predictions[-1]))
    if decided is not None and [len(each) for each in decided] != [len(target)] * 2:
        problems.append(f"{name}.decide must return a decision and a probability for each of {len(target)} targets.")


def _collect(problems: list[str], check: Callable[[], Any]) -> None:
    try:
        check()
    except InputError as error:
        problems.append(str(error))


def _refuse(problems: list[str], *, own: bool) -> None:
    """Raise all problems as one error.

    Args:
        problems: What does not fit.
        own: Whether the model or the task is the user's own, so that the guide to these helps.
    """
    if len(problems) == 1:
        raise InputError(f"{problems[0]} See {PAGE}." if own and PAGE not in problems[0] else problems[0])
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise InputError(f"{len(problems)} things do not fit together:\n{lines}" + (f"\nSee {PAGE}." if own else ""))


def _known(part: LayeredModel | Task) -> bool:
    """Whether a model or task is defined in this package."""
    if isinstance(part, HookedModel):
        return False
    return isinstance(part, LibraryModel) or type(part).__module__.startswith("descend.")


def _first_samples(dataset: Any) -> list[Any]:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return []
    return [dataset[place] for place in range(min(TRIAL_SAMPLES, len(dataset)))]


@contextmanager
def _embedded(model: LayeredModel) -> Iterator[list[Any]]:
    """Record the outputs of the model's input embedding inside the ``with`` block."""
    outputs: list[Any] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()


@contextmanager
def _nothing() -> Iterator[list[Any]]:
    yield []


@contextmanager
def _undrawn(model: nn.Module) -> Iterator[None]:
    """Restore the global random generators after the ``with`` block: a data set may draw from them."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cuda_devices(model)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
