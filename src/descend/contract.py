"""Check that model, task, noise and data fit together: their types first, the rest by a dry step.

A dry step is the objective's own forward pass on a few samples, in eval mode and without gradients, on copies of the
model's buffers and beside the global random numbers. It leaves model, noise and draws as they were.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader
from transformers import PreTrainedConfig, PreTrainedModel

from descend.errors import InputError, SampleError, reason, refuse
from descend.models import (
    PAGE,
    HookedModel,
    LayeredCausalLM,
    LayeredClassifier,
    LayeredEmbedder,
    LayeredImageClassifier,
    LayeredModel,
    LayeredQuestionAnswerer,
    LayeredTokenClassifier,
    LibraryModel,
    changed,
    cuda_devices,
    evaluating,
)
from descend.noise import Noise
from descend.tasks import Task
from descend.tasks.base import GROUP, LABELS
from descend.tasks.images import ImageClassification
from descend.tasks.text import Classification, NextToken, QuestionAnswering, TokenClassification
from descend.tasks.text.embedding import Triplets
from descend.tasks.text.tokens import stored

FEW = 2
"""Samples of a dry step. A second one has twice as many, so that a number of samples is no number of time steps."""

METHODS = ("inputs", "target", "mask", "owners", "groups", "losses", "score", "decide")
"""The methods of a task that a dry step names where they fail."""

TASKS: dict[type[LayeredModel], type[Task]] = {
    LayeredImageClassifier: ImageClassification,
    LayeredClassifier: Classification,
    LayeredCausalLM: NextToken,
    LayeredTokenClassifier: TokenClassification,
    LayeredQuestionAnswerer: QuestionAnswering,
    LayeredEmbedder: Triplets,
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
        try:
            layers.get_input_embeddings()
        except InputError as error:
            problems.append(str(error))
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
    if problems:
        raise InputError(_together(problems, users=users))
    assert layers is not None and task is not None
    return layers, task


def check_data(objective: Any, datasets: Mapping[str, Any], collate: Callable[[list[Any]], Any]) -> None:
    """Check samples, and run a user-defined model or task on a few of them.

    If both model and task are this package's, they are known to fit, and no more than the groups of two samples is
    looked at, if these are not made when they are fetched. Streams, which can't be read twice, are not looked at. What
    the collator makes of a sample counts: it may add labels, make tokens of a text, or cut a long one.

    Args:
        objective: The `Objective` of model and task, without further passes or terms, and with a noise of its own.
        datasets: Name for messages → data set.
        collate: Turns samples into a batch.

    Raises:
        InputError: If something does not fit.
    """
    model, task = objective.model, objective.task
    users = not (_is_known(model) and _is_known(task))
    runs = users and not any(parameter.is_meta for parameter in model.parameters())
    for name, dataset in datasets.items():
        refuse_several(name, dataset)
        if isinstance(dataset, DataLoader):
            raise InputError(f"the {name} are a DataLoader; give the data set in it, the trainer makes the batches.")
        draws = torch.random.fork_rng(devices=cuda_devices(model))
        try:
            with evaluating(model), torch.no_grad(), draws:
                _check_samples(task, dataset, model.limits, collate)
                samples = _first_samples(dataset) if runs or isinstance(dataset, list) or stored(dataset) else []
                if runs and samples:
                    DryStep(objective, collate, samples, f"the {name}").run()
                    DryStep(objective, collate, samples * 2, f"the {name}").run()
                elif samples and isinstance(samples[0], Mapping) and GROUP in samples[0]:
                    DryStep(objective, collate, samples, f"the {name}").check_groups()
        except InputError as error:
            raise InputError(_together([str(error)], users=users)) from None


def refuse_several(name: str, dataset: Any) -> None:
    """Raise an `InputError` for a dictionary, of data sets as in a `datasets.DatasetDict` or of columns."""
    if not isinstance(dataset, Mapping):
        return
    names = ", ".join(map(str, dataset))
    sets = [
        hasattr(each, "column_names") or (isinstance(each, list) and each and isinstance(each[0], Mapping))
        for each in dataset.values()
    ]
    if sets and all(sets):
        raise InputError(f"the {name} are several data sets: {names}. Give one, as data[{next(iter(dataset))!r}].")
    raise InputError(
        f"the {name} are a dictionary of {names or 'nothing'}. Give a list of samples, or "
        "datasets.Dataset.from_dict(...)."
    )


class DryStep:
    """A few samples on their way through an objective, whose parts are checked where they meet.

    Args:
        objective: See `check_data`.
        collate: Turns samples into a batch.
        samples: The samples, at least one.
        data: What they are, for messages.

    Raises:
        InputError: If the samples can't be collated.
    """

    calls = 0
    """How often the input embedding has run."""
    last: tuple[Tensor, Any] | None = None
    """The last prediction that the task had a loss of, and its targets."""

    def __init__(self, objective: Any, collate: Callable[[list[Any]], Any], samples: list[Any], data: str):
        self.objective = objective
        self.model: LayeredModel = objective.model
        self.task: Task = objective.task
        self.name = type(self.task).__name__
        self.samples, self.data = samples, data
        self.batch: dict[str, Any] = {}
        advice = "If samples differ in shape, pad them, or give a data_collator that does."
        if isinstance(samples[0], Mapping) and (
            nested := [name for name, each in samples[0].items() if isinstance(each, Mapping)]
        ):
            advice = (
                f"Each field must be a tensor or a number, and {nested[0]} is a dictionary: give its entries as "
                f"fields, name them in {self.name}.fields, and put them together in {self.name}.inputs."
            )
        if isinstance(samples[0], tuple | list):
            advice = f"Samples are a {type(samples[0]).__name__}; expected dictionaries with a name for each field."
        with self._blaming("collating samples", advice):
            batch = collate(samples)
        if not isinstance(batch, Mapping):
            raise InputError(
                f"a batch of {data} must hold fields by name; got a {type(batch).__name__}. Give dictionaries."
            )
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.batch = dict(send_to_device(batch, device))

    def run(self) -> None:
        """Run the objective on the samples, and then what of the task its forward pass does not need.

        Raises:
            InputError: If something does not fit.
        """
        methods = {method: self._blamed(self.task, method) for method in METHODS}
        methods["losses"] = partial(self._losses, methods["losses"])
        fields = self.samples[0] if isinstance(self.samples[0], Mapping) else self.batch
        advice = f"A sample has the fields {', '.join(fields)}. If forward names others, override {self.name}.inputs."
        if isinstance(self.model, HookedModel):
            advice += " Give descend.layered what is no field as fixed={name: value}."
        buffers = {name: buffer.clone() for name, buffer in self.objective.named_buffers()}
        weights = [1.0] * (self.model.depth + 1)
        with changed(self.task, **methods), ExitStack() as watches:
            self.check_groups()
            self._check_owners()
            layer_outputs = partial(self._layer_outputs, self.model.layer_outputs)
            watches.enter_context(changed(self.model, layer_outputs=layer_outputs))
            if self.objective.noise is not None:
                self._watch_noise(self.objective.noise, watches)
            with self._blaming(f"{type(self.model.saved).__name__} or its readout", advice):
                functional_call(self.objective, buffers, (), dict(weights=weights, **self.batch))
            if self.objective.noise is not None:
                self._check_calls()
            if self.last is not None:
                prediction, target = self.last
                refuse(self._rule("score", self.task.score(prediction, target), target))

    # --- who fails

    @contextmanager
    def _blaming(self, what: str, advice: str = "") -> Iterator[None]:
        """Turn an exception of the user's code into an `InputError` that says what fails, and what to do."""
        try:
            yield
        except InputError:
            raise
        except KeyError as error:
            advice = (
                f"If samples have it, name it in {self.name}.fields: fields that neither the model's forward nor the "
                "task names are dropped."
            )
            if error.args[0] in LABELS:
                advice = f"Give every sample the field {error}, or override {self.name}.target."
            names = ", ".join(self.batch)
            raise InputError(f"{what} looks for the field {error}; the batch has {names}. {advice}") from None
        except Exception as error:
            if "NestedTensor" in str(error):
                advice = (
                    "Build nn.TransformerEncoder with enable_nested_tensor=False: layers need tensors of one shape."
                )
            message = f"{type(error).__name__}: {reason(error).rstrip('.')}. {advice}"
            raise InputError(f"{what} fails on {self.data}: {message}".rstrip()) from None

    def _blamed(self, part: Any, method: str) -> Callable[..., Any]:
        """A method of the task or the noise, whose exceptions become an `InputError` that names it."""
        called = getattr(part, method)

        def blamed(*given: Any) -> Any:
            with self._blaming(f"{type(part).__name__}.{method}"):
                return called(*given)

        return blamed

    # --- the model and its noise

    def _watch_noise(self, noise: Noise, watches: ExitStack) -> None:
        """Check x, to which noise is added, and when the module runs that makes it."""
        tensors = [value for value in self.batch.values() if isinstance(value, Tensor) and value.ndim]
        for tensor in tensors[:1]:
            self._check_rows("the first tensor of a batch", tensor)
        watches.enter_context(changed(noise, draw=self._blamed(noise, "draw")))
        watches.enter_context(self.model.get_input_embeddings().register_forward_hook(self._embedded))
        for block in list(self.model.layer_modules)[:1]:
            watches.enter_context(block.register_forward_pre_hook(self._check_calls))

    def _layer_outputs(self, read: Callable[[Any], tuple[Tensor, ...]], inputs: Any) -> tuple[Tensor, ...]:
        """h_0 … h_L: L+1 of them, with rows for the samples where a task finds its targets by their places."""
        states = read(inputs)
        expected = self.model.depth + 1
        if len(states) != expected:
            raise InputError(f"expected depth + 1 = {expected} layer outputs; got {len(states)}.")
        if isinstance(self.model, HookedModel) and self.model.reads_places(self.task.inputs(self.batch)):
            self._check_rows("the output of a block", states[-1])
        return states

    def _embedded(self, module: nn.Module, args: Any, embedded: Any) -> None:
        """Noise must have one tensor of real numbers to be added to, with samples first, and where the mask says."""
        self.calls += 1
        if not isinstance(embedded, Tensor) or not embedded.is_floating_point():
            raise InputError(
                "x, the output or argument named by embeddings, must be a tensor of real numbers, to which noise is "
                f"added; got {getattr(embedded, 'dtype', type(embedded).__name__)}. Name the module that gives "
                "vectors, such as an nn.Embedding."
            )
        self._check_rows("x, the output or argument named by embeddings,", embedded)
        mask = self.task.mask(self.batch)
        if mask is not None and mask.shape != embedded.shape[:2]:
            raise InputError(
                f"the mask must say of each place of x, {tuple(embedded.shape[:2])}, whether noise is added there; got "
                f"{tuple(mask.shape)}. Override {self.name}.mask(batch) and return a mask (B, T) of the embedding's "
                "output, or None."
            )

    def _check_calls(self, *_: Any) -> None:
        """The embedding has run once when the first block begins, and once at the end."""
        if self.calls != 1:
            raise InputError(
                "the module named by embeddings must run once in a forward pass, and before the first block, because "
                f"its output is x; got {self.calls} calls by then. Name a module whose one output holds all that noise "
                "is added to, or an argument that every batch has."
            )

    def _check_rows(self, what: str, value: Tensor) -> None:
        """Samples must come first where rows are told apart: noise and the places of targets belong to samples."""
        count = len(self.samples)
        if len(value) != count and not _is_known(self.model):
            raise InputError(
                f"{what} must have a row for each sample, which has its own noise and targets; got the shape "
                f"{tuple(value.shape)} for {count} samples. Put the samples first, (B, …), as batch_first=True does."
            )

    # --- the task

    def _losses(self, losses: Callable[..., Tensor], prediction: Tensor, target: Tensor) -> Tensor:
        """The losses of a prediction; each target must have its own, and its own decision, of a task that decides."""
        self.last = prediction, target
        values = losses(prediction, target)
        rules = [self._rule("losses", values, target)]
        with self._blaming(f"{self.name}.decide"):
            decided = self.task.decide(prediction)
            count = len(target)
            few = decided is not None and [len(each) for each in decided] != [count, count]
        rules.append((few, f"{self.name}.decide must return a decision and a probability for each of {count} targets."))
        if problems := [message for broken, message in rules if broken]:
            raise InputError(_together(problems, users=False))
        return values

    def _rule(self, method: str, values: Any, target: Any) -> tuple[bool, str]:
        """Losses or scores must be a number for each target, and not their mean: whether not, and what to say then."""
        count = len(target)
        got = tuple(values.shape) if isinstance(values, Tensor) else f"a {type(values).__name__}"
        if isinstance(values, Tensor) and values.is_complex():
            return True, f"{self.name}.{method} must return real numbers; got complex ones. Take .real or .abs()."
        if got == (count,) and count > 1 and values.stride(0) == 0:
            got = "one number expanded to it"
        return got != (count,), (
            f"{self.name}.{method} must return one number for each target, shape ({count},), not their mean "
            f"(reduction='none'); got {got}."
        )

    def _check_owners(self) -> None:
        """Each target belongs to a sample: to that of its row, or to the one that ``owners`` names."""
        rows, owners = len(self.task.target(self.batch)), len(self.task.owners(self.batch))
        count = len(self.samples)
        if owners != rows or (rows != count and type(self.task).owners is Task.owners):
            raise InputError(
                f"{self.name}.target must have a row for each of {count} samples, unless {self.name}.owners says which "
                f"sample each row belongs to; got {rows} rows and {owners} owners. Override owners(batch): confidence "
                "intervals count the targets of one sample together."
            )

    def check_groups(self) -> None:
        """Groups that are no whole numbers can't be compared: collators drop a text without a word.

        Raises:
            InputError: If they are no whole numbers.
        """
        sample, groups = self.samples[0], self.task.groups(self.batch)
        if groups is None and type(self.task).groups is Task.groups and isinstance(sample, Mapping):
            groups = sample.get(GROUP)
        numbers = isinstance(groups, Tensor) and groups.ndim == 1 and not groups.is_floating_point()
        if groups is not None and not numbers:
            raise InputError(
                f"the group of a sample must be a whole number, the same for samples that are not independent; got "
                f"{groups!r} in {self.data}. Number the groups, or rename the field if it means something else."
            )


def _is_known(part: LayeredModel | Task) -> bool:
    """Whether a model or task is defined in this package."""
    ours = isinstance(part, LibraryModel) or type(part).__module__.startswith("descend.")
    return ours and not isinstance(part, HookedModel)


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
    """The first samples of a data set, `FEW` at most; none of a stream."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return []
    return [dataset[place] for place in range(min(FEW, len(dataset)))]


def _layers(model: nn.Module, problems: list[str]) -> LayeredModel | None:
    kind = type(model).__name__
    wraps = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    refuse(
        (
            "_orig_mod" in getattr(model, "_modules", {}),
            "expected a model; got what torch.compile made of one. Give the model itself; in training, compile it by "
            "torch_compile=True.",
        ),
        (wraps, f"expected a model; got a {kind} around one. Give the model itself, which is its .module."),
        (
            isinstance(model, str),
            f"expected a model; got the text {model!r}. Load it, such as by AutoModelForSequenceClassification.",
        ),
    )
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
    for kind in (LayeredTokenClassifier, LayeredQuestionAnswerer, LayeredEmbedder):
        if any(name.endswith(kind.task_class) for name in names):
            return kind(network)
    return LayeredClassifier(network) if network.get_output_embeddings() is None else LayeredCausalLM(network)


def _together(problems: list[str], *, users: bool) -> str:
    """The message of an error about one or several problems.

    Args:
        problems: What does not fit, at least one.
        users: Whether the model or the task is the user's own, so that the guide to these helps.
    """
    several = len(problems) > 1
    message = problems[0]
    if several:
        message = "\n- ".join([f"{len(problems)} things do not fit together:", *problems])
    if users and PAGE not in message:
        message += ("\n" if several else " ") + f"See {PAGE}."
    return message
