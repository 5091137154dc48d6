"""Run a collator, a task and a model on a few samples, and tell what does not fit."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor

from descend.errors import InputError, reason, refuse
from descend.models import PLACES, HookedModel, LayeredModel, LibraryModel
from descend.tasks import Task
from descend.tasks.base import GROUP, LABELS

FIRST_BLOCK = object()
"""Stands for the first block among the calls that `_calls` records."""


def is_known(part: LayeredModel | Task) -> bool:
    """Whether a model or task is defined in this package."""
    ours = isinstance(part, LibraryModel) or type(part).__module__.startswith("descend.")
    return ours and not isinstance(part, HookedModel)


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Add the message of an `InputError` inside the block to ``problems``."""
    try:
        yield
    except InputError as error:
        problems.append(str(error))


@dataclass
class Trial:
    """A model and a task on a few samples.

    Args:
        model: The model, in eval mode.
        task: The task.
        collate: Turns samples into a batch.
        noise: Whether noise is added to the model's input embedding.
        samples: The samples, at least one.
        data: What they are, for messages.
        problems: What fails where more can be checked is added here, a sentence or two each.
    """

    model: LayeredModel
    task: Task
    collate: Callable[[list[Any]], Any]
    noise: bool
    samples: list[Any]
    data: str
    problems: list[str]
    batch: dict[str, Any] = field(default_factory=dict, init=False)

    def run(self, *, whole: bool) -> None:
        """Collate the samples, check their groups, and run the task and the model.

        Args:
            whole: If False, no more is done than to check the groups, if there are any.

        Raises:
            InputError: If something fails that all else needs.
        """
        group = self.samples[0].get(GROUP) if isinstance(self.samples[0], Mapping) else None
        if not whole and group is None:
            return
        self.batch = self._collated(self.samples)
        self._check_groups(group)
        if not whole:
            return
        made = {}
        for method in ("target", "inputs", "mask"):
            with collecting(self.problems):
                made[method] = self._asked(method, self.batch)
        if self.problems:
            return
        self._check_owners(made["target"])
        prediction = self._predict(made["inputs"], made["mask"])
        if not self.problems and not is_known(self.model):
            self._check_rows()
        self._check_losses(prediction, made["target"])

    @property
    def name(self) -> str:
        """The name of the task's class."""
        return type(self.task).__name__

    def _asked(self, method: str, *given: Any) -> Any:
        """What a method of the task returns; an exception in it becomes an `InputError` that names the method."""
        with self._blaming(f"{self.name}.{method}"):
            return getattr(self.task, method)(*given)

    @contextmanager
    def _blaming(self, what: str, advice: str = "", on: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Turn an exception of the user's code into an `InputError`, with ``advice`` for those of the types ``on``."""
        try:
            yield
        except InputError:
            raise
        except KeyError as error:
            if error.args[0] in LABELS:
                advice = f"Give every sample the field {error}, or override {self.name}.target."
            else:
                advice = (
                    f"If samples have it, name it in {self.name}.fields: fields that neither the model's forward nor "
                    "the task names are dropped."
                )
            names = ", ".join(self.batch)
            raise InputError(f"{what} looks for the field {error}; the batch has {names}. {advice}") from None
        except Exception as error:
            ends = f" {advice}" if isinstance(error, on) else ""
            if "NestedTensor" in str(error):
                ends = " Build nn.TransformerEncoder with enable_nested_tensor=False: layers need tensors of one shape."
            message = reason(error).rstrip(".")
            raise InputError(f"{what} fails on {self.data}: {type(error).__name__}: {message}.{ends}") from None

    def _collated(self, samples: list[Any]) -> dict[str, Any]:
        """The batch of some samples, on the model's device."""
        advice = "All samples of a batch must have one shape: pad them, or give a data_collator that does."
        on: tuple[type[Exception], ...] = (ValueError, RuntimeError)
        if isinstance(samples[0], tuple | list):
            advice = f"Samples are a {type(samples[0]).__name__}; expected dictionaries with a name for each field."
            on = (Exception,)
        with self._blaming("collating samples", advice, on):
            batch = self.collate(samples)
        if not isinstance(batch, Mapping):
            raise InputError(
                f"a batch of {self.data} must hold fields by name; got a {type(batch).__name__}. Give dictionaries."
            )
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        return dict(send_to_device(batch, device))

    def _check_groups(self, group: Any) -> None:
        """Groups that are no whole numbers can't be compared: collators drop a text without a word.

        Args:
            group: The group of the first sample; None if it has none.
        """
        groups = self._asked("groups", self.batch)
        if groups is None:
            wrong = group is not None and type(self.task).groups is Task.groups
        else:
            wrong = not isinstance(groups, Tensor) or groups.ndim != 1 or groups.is_floating_point()
        if wrong:
            got = repr(group) if group is not None else f"a {type(groups).__name__}"
            raise InputError(
                f"the group of a sample must be a whole number, the same for samples that are not independent; got "
                f"{got} in {self.data}. Number the groups, or rename the field if it means something else."
            )

    def _check_owners(self, target: Tensor) -> None:
        owners = self._asked("owners", self.batch)
        refuse(
            (
                len(owners) != len(target),
                f"{self.name}.owners must name the sample of each of {len(target)} targets; got {len(owners)}.",
            ),
            (
                type(self.task).owners is Task.owners and len(target) != len(self.samples),
                f"{self.name}.target must have a row for each of {len(self.samples)} samples, unless "
                f"{self.name}.owners says which sample each row belongs to; got {len(target)} rows. Override "
                "owners(batch): confidence intervals count the targets of one sample together.",
            ),
        )

    def _predict(self, inputs: Any, mask: Tensor | None) -> Tensor:
        """The last layer's prediction."""
        network = type(self.model.saved).__name__ + (" or its readout" if isinstance(self.model, HookedModel) else "")
        fields = self.samples[0] if isinstance(self.samples[0], Mapping) else self.batch
        advice = (
            f"A sample has the fields {', '.join(fields)}: name them as forward does, or override {self.name}.inputs."
        )
        with self._calls() as calls, self._blaming(network, advice, (TypeError,)):
            predictions = list(self.model.predictions(inputs))
        if self.noise:
            with collecting(self.problems):
                self._check_embedding(calls, mask)
        expected = self.model.depth + 1
        if len(predictions) != expected:
            raise InputError(f"expected depth + 1 = {expected} predictions; got {len(predictions)}.")
        return predictions[-1]

    def _check_embedding(self, calls: list[Any], mask: Tensor | None) -> None:
        """Noise must have one tensor of real numbers to be added to, before the first block and where the mask says."""
        outputs = [each for each in calls if each is not FIRST_BLOCK]
        embedded = outputs[0] if outputs else None
        if not isinstance(embedded, Tensor) or not embedded.is_floating_point():
            got = f"a tensor of {embedded.dtype}" if isinstance(embedded, Tensor) else f"a {type(embedded).__name__}"
            raise InputError(
                "the module named by embeddings must return a tensor of real numbers, to which noise is added; got "
                f"{got if outputs else 'no call of it'}. Name the module that gives vectors, such as an nn.Embedding."
            )
        masked, expected = None if mask is None else tuple(mask.shape), tuple(embedded.shape[:2])
        refuse(
            (
                calls[0] is FIRST_BLOCK,
                "the module named by embeddings must run before the first block, which reads its noisy output; got a "
                f"{type(self.model.get_input_embeddings()).__name__} that runs after. Name the one whose output is x.",
            ),
            (
                len(outputs) > 1,
                "the module named by embeddings must run once in a forward pass, because its output is x; got "
                f"{len(outputs)} calls. Name a module whose one output holds all that noise is added to.",
            ),
            (
                masked not in (None, expected),
                f"the mask must say of each place of x, {expected}, whether noise is added there; got {masked}. "
                f"Override {self.name}.mask(batch) and return a mask (B, T) of the embedding's output, or None.",
            ),
        )

    def _check_rows(self) -> None:
        """Samples must come first where rows are told apart: noise and the places of targets belong to samples.

        One more sample, the first one again, tells samples from time steps: it adds a sample and no length.
        """
        places = isinstance(self.model, HookedModel) and self.model.reads_places(self.task.inputs(self.batch))
        if not self.noise and not places:
            return
        for samples in (self.samples, [*self.samples, self.samples[0]]):
            batch = self._collated(samples)
            with self._blaming("the model"):
                parts = self._parts(batch, places)
            for what, part in parts.items():
                if len(part) != len(samples):
                    raise InputError(
                        f"{what} must have a row for each sample, which has its own noise and targets; got the shape "
                        f"{tuple(part.shape)} for {len(samples)} samples. Put the samples first, (B, …), as "
                        "batch_first=True does."
                    )

    def _parts(self, batch: dict[str, Any], places: bool) -> dict[str, Tensor]:
        """The tensors of a forward pass whose rows must be samples, by what they are."""
        inputs = self.task.inputs(batch)
        if places:
            inputs = {name: value for name, value in inputs.items() if name != PLACES}
        with self._calls() as calls:
            hidden = self.model.layer_outputs(inputs)[-1]
        parts = {"the output of a block": hidden} if places else {}
        if self.noise:
            tensors = (value for value in batch.values() if isinstance(value, Tensor) and value.ndim)
            parts["the first tensor of a batch"] = next(tensors)
            parts["x, the output of the module named by embeddings,"] = calls[0]
        return parts

    @contextmanager
    def _calls(self) -> Iterator[list[Any]]:
        """With noise, record the outputs of the input embedding, and the first block's calls, in their order."""
        calls: list[Any] = []
        with ExitStack() as hooks:
            if self.noise:
                embedding = self.model.get_input_embeddings()
                hooks.enter_context(embedding.register_forward_hook(lambda module, args, out: calls.append(out)))
                for block in list(self.model.layer_modules)[:1]:
                    hooks.enter_context(block.register_forward_pre_hook(lambda *_: calls.append(FIRST_BLOCK)))
            yield calls

    def _check_losses(self, prediction: Tensor, target: Any) -> None:
        """Losses, scores and decisions of the last prediction must have a number for each target."""
        count = len(target)
        with collecting(self.problems):
            for method in ("losses", "score"):
                values = self._asked(method, prediction, target)
                expanded = values.shape == (count,) and count > 1 and values.stride(0) == 0
                if values.shape != (count,) or expanded:
                    got = "one number expanded to it" if expanded else tuple(values.shape)
                    raise InputError(
                        f"{self.name}.{method} must return one number for each target, shape ({count},), not their "
                        f"mean (reduction='none'); got {got}."
                    )
        with collecting(self.problems), self._blaming(f"{self.name}.decide"):
            decided = self.task.decide(prediction)
            if decided is not None and [len(each) for each in decided] != [count, count]:
                raise InputError(
                    f"{self.name}.decide must return a decision and a probability for each of {count} targets."
                )
