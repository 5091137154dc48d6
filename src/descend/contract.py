"""Check that model, task, noise and data fit together, before training or evaluation starts."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedConfig, PreTrainedModel

from descend.errors import InputError, SampleError
from descend.models import (
    PAGE,
    LayeredCausalLM,
    LayeredClassifier,
    LayeredImageClassifier,
    LayeredModel,
    LayeredQuestionAnswerer,
    LayeredTokenClassifier,
    LibraryModel,
    evaluating,
)
from descend.noise import Noise
from descend.tasks import Task
from descend.tasks.images import ImageClassification
from descend.tasks.text import Classification, NextToken, QuestionAnswering, TokenClassification
from descend.tasks.text.tokens import stored
from descend.trial import Trial, collecting, is_known

TRIAL_SAMPLES = 2

TASKS: dict[type[LayeredModel], type[Task]] = {
    LayeredImageClassifier: ImageClassification,
    LayeredClassifier: Classification,
    LayeredCausalLM: NextToken,
    LayeredTokenClassifier: TokenClassification,
    LayeredQuestionAnswerer: QuestionAnswering,
}
"""The default task of each kind of Transformers' models; the first kind that fits counts."""


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
        with collecting(problems):
            layers.get_input_embeddings()
    users = task is not None or not isinstance(layers, LibraryModel)
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
    _refuse(problems, users=users)
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

    The model is left as it was. If both model and task are this package's, they are known to fit, and no more than the
    groups of two samples is looked at, if these are not made when they are fetched. Streams, which can't be read twice,
    are not looked at. What the collator makes of a sample counts: it may add labels, make tokens of a text, or cut a
    long one.

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
    users = not (is_known(model) and is_known(task))
    runs = users and not any(parameter.is_meta for parameter in model.parameters())
    for name, dataset in datasets.items():
        if isinstance(dataset, DataLoader):
            raise InputError(f"the {name} are a DataLoader; give the data set in it, the trainer makes the batches.")
        with collecting(problems), evaluating(model), torch.no_grad():
            _check_samples(task, dataset, model.limits, collate)
            looks = runs or isinstance(dataset, list) or stored(dataset)
            if looks and not problems and (samples := _first_samples(dataset)):
                Trial(model, task, collate, noise, samples, f"the {name}", problems).run(whole=runs)
    _refuse(problems, users=users)


def _check_samples(task: Task, dataset: Any, limits: dict[str, int], collate: Callable[[list[Any]], Any]) -> None:
    """Raise an error for samples that a model can't take, neither as they are nor as they are collated."""
    try:
        task.check(dataset, limits)
    except InputError as error:
        samples = [dataset[error.sample]] if isinstance(error, SampleError) else _first_samples(dataset)
        try:
            batch = collate(samples)
            tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
            rows = [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=False)]
            task.check(rows, limits)
        except Exception:  # the collator is the user's own code; what is wrong with the samples says more
            raise error from None


def _first_samples(dataset: Any) -> list[Any]:
    """The first samples of a data set, `TRIAL_SAMPLES` at most; none of a stream."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return []
    return [dataset[place] for place in range(min(TRIAL_SAMPLES, len(dataset)))]


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
    library = inside() if inside else network
    if library.main_input_name == LayeredImageClassifier.main_input_name:
        return LayeredImageClassifier(network)
    names = [each.__name__ for each in type(library).__mro__]
    for kind in (LayeredTokenClassifier, LayeredQuestionAnswerer):
        if any(name.endswith(kind.task_class) for name in names):
            return kind(network)
    return LayeredClassifier(network) if network.get_output_embeddings() is None else LayeredCausalLM(network)


def _refuse(problems: list[str], *, users: bool) -> None:
    """Raise all problems as one error.

    Args:
        problems: What does not fit.
        users: Whether the model or the task is the user's own, so that the guide to these helps.
    """
    if len(problems) == 1:
        raise InputError(f"{problems[0]} See {PAGE}." if users and PAGE not in problems[0] else problems[0])
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise InputError(f"{len(problems)} things do not fit together:\n{lines}" + (f"\nSee {PAGE}." if users else ""))
