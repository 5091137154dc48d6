"""Run a collator, a task and a model on a few samples, and tell what does not fit."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor

from descend.errors import InputError, reason
from descend.models.hooked import HookedModel
from descend.models.layered import PLACES, LayeredModel
from descend.models.library import LibraryModel
from descend.tasks import Task
from descend.tasks.base import GROUP, LABELS

TRIAL_SAMPLES = 2


def first_samples(dataset: Any) -> list[Any]:
    """The first samples of a data set, `TRIAL_SAMPLES` at most; none of a stream."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return []
    return [dataset[place] for place in range(min(TRIAL_SAMPLES, len(dataset)))]


def is_known(part: LayeredModel | Task) -> bool:
    """Whether a model or task is defined in this package."""
    if isinstance(part, HookedModel):
        return False
    return isinstance(part, LibraryModel) or type(part).__module__.startswith("descend.")


def rows_of(batch: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """The samples of a collated batch."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    return [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=False)]


class Trial:
    """A model and a task on a few samples.

    Args:
        model: The model, in eval mode.
        task: The task.
        samples: The samples, at least one.
        data: What they are, for messages.
        problems: What fails is added here, one sentence or two each.
    """

    def __init__(self, model: LayeredModel, task: Task, samples: list[Any], data: str, problems: list[str]):
        self.model, self.task, self.samples, self.data, self.problems = model, task, samples, data, problems
        self.name = type(task).__name__
        self.batch: dict[str, Any] = {}
        self.embedded: Any = None
        """x, the output of the model's input embedding; None without noise."""

    def run(self, collate: Callable[[list[Any]], Any], noise: bool, *, whole: bool) -> None:
        """Collate the samples, check their groups, and run the task and the model.

        Args:
            collate: Turns samples into a batch.
            noise: Whether noise is added to the model's input embedding.
            whole: If False, no more is done than to check the groups, if there are any.
        """
        if not whole and self._given_group is None:
            return
        self._collate(collate)
        if not self.problems:
            self._check_groups()
        if self.problems or not whole:
            return
        inputs, target = self._ask_task()
        if self.problems or inputs is None:
            return
        predictions = self._predict(inputs, noise)
        if not self.problems and not is_known(self.model):
            self._check_rows(collate)
        if predictions is not None:
            self._check_losses(predictions[-1], target)

    def _attempt(
        self, what: str, work: Callable[[], Any], advice: str = "", on: tuple[type[Exception], ...] = ()
    ) -> Any:
        """What some work returns; None if it fails, and ``advice`` for errors of the types ``on``."""
        try:
            return work()
        except InputError as error:
            self.problems.append(str(error))
        except KeyError as error:
            self.problems.append(
                f"{what} looks for the field {error}; the batch has {', '.join(self.batch)}. "
                + (
                    f"Give every sample the field {error}, or override {self.name}.target."
                    if error.args[0] in LABELS
                    else f"If samples have it, name it in {self.name}.fields: fields that neither the "
                    "model's forward nor the task names are dropped."
                )
            )
        except Exception as error:
            ends = f" {advice}" if isinstance(error, on) else ""
            if "NestedTensor" in str(error):
                ends = " Build nn.TransformerEncoder with enable_nested_tensor=False: layers need tensors of one shape."
            said = reason(error).rstrip(".")
            self.problems.append(f"{what} fails on {self.data}: {type(error).__name__}: {said}.{ends}")
        return None

    def _collate(self, collate: Callable[[list[Any]], Any]) -> None:
        samples, problems = self.samples, self.problems
        advice = "All samples of a batch must have one shape: pad them, or give a data_collator that does."
        made = self._attempt("collating samples", partial(collate, samples), advice, (ValueError, RuntimeError))
        if made is None and isinstance(samples[0], tuple | list):
            kind = type(samples[0]).__name__
            problems.append(f"samples are a {kind}; expected dictionaries with a name for each field.")
        if made is not None and not isinstance(made, Mapping):
            problems.append(
                f"a batch of {self.data} must hold fields by name; got a {type(made).__name__}. Give dictionaries."
            )
        if not problems:
            self.batch = self._on_device(made)

    def _on_device(self, batch: Any) -> dict[str, Any]:
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        return dict(send_to_device(batch, device))

    @property
    def _given_group(self) -> Any:
        """The group of the first sample; None if it has none."""
        return self.samples[0].get(GROUP) if isinstance(self.samples[0], Mapping) else None

    def _check_groups(self) -> None:
        """Groups that are no whole numbers can't be compared: collators drop a text without a word."""
        given = self._given_group
        groups = self._attempt(f"{self.name}.groups", partial(self.task.groups, self.batch))
        dropped = groups is None and given is not None and type(self.task).groups is Task.groups
        if dropped or (groups is not None and not _whole_numbers(groups)):
            got = repr(given) if given is not None else f"a {type(groups).__name__}"
            self.problems.append(
                f"the group of a sample must be a whole number, the same for samples that are not independent; got "
                f"{got} in {self.data}. Number the groups, or rename the field if it means something else."
            )

    def _ask_task(self) -> tuple[Any, Any]:
        """The inputs and the target that the task makes of the batch."""
        task, name, batch = self.task, self.name, self.batch
        target = self._attempt(f"{name}.target", partial(task.target, batch))
        inputs = self._attempt(f"{name}.inputs", partial(task.inputs, batch))
        owners = None if target is None else self._attempt(f"{name}.owners", partial(task.owners, batch))
        self._attempt(f"{name}.mask", partial(task.mask, batch))
        if owners is not None and len(owners) != len(target):
            self.problems.append(
                f"{name}.owners must name the sample of each of {len(target)} targets; got {len(owners)}."
            )
        elif owners is not None and type(task).owners is Task.owners and len(target) != len(self.samples):
            self.problems.append(
                f"{name}.target must have a row for each of {len(self.samples)} samples, unless {name}.owners says "
                f"which sample each row belongs to; got {len(target)} rows. Override owners(batch): confidence "
                "intervals count the targets of one sample together."
            )
        return inputs, target

    def _predict(self, inputs: Any, noise: bool) -> list[Tensor] | None:
        """The predictions of all layers; None if there are none."""
        network = type(self.model.saved).__name__ + (" or its readout" if isinstance(self.model, HookedModel) else "")
        fields = self.samples[0] if isinstance(self.samples[0], Mapping) else self.batch
        advice = (
            f"A sample has the fields {', '.join(fields)}: name them as forward does, or override {self.name}.inputs."
        )
        with _embedded(self.model) if noise else _nothing() as calls:
            predictions = self._attempt(network, lambda: list(self.model.predictions(inputs)), advice, (TypeError,))
        if predictions is None:
            return None
        if noise:
            self._check_embedding(calls)
        expected = self.model.depth + 1
        if len(predictions) != expected:
            self.problems.append(f"expected depth + 1 = {expected} predictions; got {len(predictions)}.")
        return predictions

    def _check_embedding(self, calls: list[Any]) -> None:
        """Noise must have one tensor of real numbers to be added to, before the first block and where the mask says."""
        outputs = [each for each in calls if each is not FIRST_BLOCK]
        embedded = self.embedded = outputs[0] if outputs else None
        mask = self.task.mask(self.batch)
        if not isinstance(embedded, Tensor) or not embedded.is_floating_point():
            got = f"a tensor of {embedded.dtype}" if isinstance(embedded, Tensor) else f"a {type(embedded).__name__}"
            self.problems.append(
                "the module named by embeddings must return a tensor of real numbers, to which noise is added; got "
                f"{got if embedded is not None else 'no call of it'}. Name the module that gives vectors, such as an "
                "nn.Embedding."
            )
        elif calls[0] is FIRST_BLOCK:
            self.problems.append(
                "the module named by embeddings must run before the first block, which reads its noisy output; got a "
                f"{type(self.model.get_input_embeddings()).__name__} that runs after. Name the one whose output is x."
            )
        elif len(outputs) > 1:
            self.problems.append(
                "the module named by embeddings must run once in a forward pass, because its output is x; got "
                f"{len(outputs)} calls. Name a module whose one output holds all that noise is added to."
            )
        elif mask is not None and mask.shape != embedded.shape[:2]:
            self.problems.append(
                f"the mask must say of each place of x, {tuple(embedded.shape[:2])}, whether noise is added there; got "
                f"{tuple(mask.shape)}. Override {self.name}.mask(batch) and return a mask (B, T) of the embedding's "
                "output, or None."
            )

    def _check_rows(self, collate: Callable[[list[Any]], Any]) -> None:
        """Samples must come first where rows are told apart: noise and the places of targets belong to samples.

        One more sample, the first one again, tells samples from time steps: it adds a sample and no length.
        """
        places = isinstance(self.model, HookedModel) and self.model.reads_places(self.task.inputs(self.batch))
        if self.embedded is None and not places:
            return
        samples = [*self.samples, self.samples[0]]
        batch = self._attempt("collating samples", lambda: self._on_device(collate(samples)))
        if batch is None:
            return
        found = [self._attempt("the model", partial(self._parts, each, places)) for each in (self.batch, batch)]
        if None in found:
            return
        for what, few in found[0].items():
            more = found[1][what]
            if (len(few), len(more)) != (len(self.samples), len(samples)):
                self.problems.append(
                    f"{what} must have a row for each sample, which has its own noise and targets; got the shapes "
                    f"{tuple(few.shape)} for {len(self.samples)} samples and {tuple(more.shape)} for {len(samples)}. "
                    "Put the samples first, (B, …), as batch_first=True does."
                )
                return

    def _parts(self, batch: dict[str, Any], places: bool) -> dict[str, Tensor]:
        """The tensors of a forward pass whose rows must be samples, by what they are."""
        inputs = self.task.inputs(batch)
        if places:
            inputs = {name: value for name, value in inputs.items() if name != PLACES}
        with _embedded(self.model) if self.embedded is not None else _nothing() as calls:
            hidden = self.model.layer_outputs(inputs)[-1]
        parts = {"the output of a block": hidden} if places else {}
        for embedded in [each for each in calls if each is not FIRST_BLOCK]:
            parts["the first tensor of a batch"] = _first_tensor(batch)
            parts["x, the output of the module named by embeddings,"] = embedded
        return parts

    def _check_losses(self, prediction: Tensor, target: Any) -> None:
        """Losses, scores and decisions of the last prediction must have a number for each target."""
        task, name, problems = self.task, self.name, self.problems
        expected = f"must return one number for each target, shape ({len(target)},)"
        for method in ("losses", "score"):
            values = self._attempt(f"{name}.{method}", partial(getattr(task, method), prediction, target))
            if values is not None and tuple(values.shape) != (len(target),):
                shape = tuple(values.shape)
                problems.append(f"{name}.{method} {expected}, not their mean (reduction='none'); got {shape}.")
                break
            if values is not None and len(values) > 1 and values.stride(0) == 0:
                problems.append(
                    f"{name}.{method} {expected}, not their mean (reduction='none'); got one number expanded to it."
                )
                break
        decided = self._attempt(f"{name}.decide", partial(task.decide, prediction))
        if decided is not None and [len(each) for each in decided] != [len(target)] * 2:
            problems.append(
                f"{name}.decide must return a decision and a probability for each of {len(target)} targets."
            )


def _first_tensor(batch: Mapping[str, Any]) -> Tensor:
    """The first tensor of a batch, whose rows are its samples; a number is none."""
    return next(value for value in batch.values() if isinstance(value, Tensor) and value.ndim)


def _whole_numbers(groups: Any) -> bool:
    return isinstance(groups, Tensor) and groups.ndim == 1 and not groups.is_floating_point()


FIRST_BLOCK = object()
"""Stands for the first block among the calls that `_embedded` records."""


@contextmanager
def _embedded(model: LayeredModel) -> Iterator[list[Any]]:
    """Record the outputs of the model's input embedding, and where the first block is called, in their order."""
    calls: list[Any] = []
    handles = [model.get_input_embeddings().register_forward_hook(lambda module, args, output: calls.append(output))]
    for block in list(model.layer_modules)[:1]:
        handles.append(block.register_forward_pre_hook(lambda module, args: calls.append(FIRST_BLOCK)))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _nothing() -> Iterator[list[Any]]:
    yield []
