"""What a trainer looks at once: the user's methods, the choice of the best model, metrics, heads that do not learn."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.trainer_utils import has_length

from descend.errors import InputError, reason
from descend.models import HookedModel, LayeredCausalLM, LayeredModel, LibraryModel, evaluating
from descend.tasks import Task
from descend.tasks.text.classification import IGNORED
from descend.training.config import DescentArguments
from descend.training.measuring import Measurer, Predictions

logger = logging.getLogger(__name__)

MOST_NAMED = 4
"""Parameters that one line names."""


def overriding(kind: type, name: str) -> list[type]:
    """The classes of a user's trainer that define a method, those first that Python looks at first."""
    packages = ("descend", "transformers", "trl")
    return [each for each in kind.__mro__ if name in vars(each) and each.__module__.partition(".")[0] not in packages]


def check_selection(
    args: DescentArguments,
    task: Task,
    datasets: Mapping[str, Any],
    measured: set[str],
    *,
    evaluates: bool,
    further: bool,
) -> None:
    """Check the evaluation data and ``metric_for_best_model``, and which way that metric is better.

    Args:
        args: The training arguments.
        task: The task, with its metric.
        datasets: The evaluation sets by name; a single one has the empty name.
        measured: The metrics of an evaluation.
        evaluates: Whether there are evaluations during training.
        further: Whether there may be further metrics, of the user's.

    Raises:
        InputError: If a set is too small, or the metric is none of an evaluation's.
    """
    for name, data in datasets.items():
        if evaluates and has_length(data) and len(data) < 2:  # a verdict has a confidence interval
            which = f"eval_dataset {name}".rstrip()
            raise InputError(f"{which} must hold at least 2 samples; got {len(data)}. Leave it out, or give more.")
    names = [name for name in datasets if name]
    chosen = (args.metric_for_best_model or "").removeprefix("eval_")
    if chosen in measured and names:
        raise InputError(
            f"metric_for_best_model must say of which evaluation data it is: {names[0]}_{chosen}, for one; got "
            f"{chosen!r}."
        )
    if evaluates and not further:
        args.check_best_metric({f"{name}_{metric}" for name in names for metric in measured} or measured)
    # Transformers takes a metric for higher-is-better unless its name ends in loss.
    falls = {"violation", "merit"} | (set() if task.higher_is_better else {task.metric})
    if chosen in falls | {f"{name}_{metric}" for name in names for metric in falls}:
        args.greater_is_better = False


def try_metrics(
    measurer: Measurer,
    loaders: Mapping[str, Callable[[], Iterable]],
    predictions: Callable[[], Predictions],
    check: Callable[[set[str]], None],
) -> None:
    """Call ``compute_metrics`` on one batch of each evaluation set, and look for ``metric_for_best_model``.

    Where that fails, the whole set is tried: a score may need every class.

    Args:
        measurer: Predicts.
        loaders: Makes the batches of each set, by its name.
        predictions: Makes what collects predictions, with ``compute_metrics``.
        check: Raises `InputError` if metrics of these names lack the one to choose by.

    Raises:
        InputError: If it fails on the whole set too, or gives no such metric.
    """
    for name, loader in loaders.items():
        # A loader of the user's may draw from the global generator.
        with torch.random.fork_rng(devices=[]), evaluating(measurer.objective):
            fault = _fault_of_metrics(measurer, loader(), predictions(), check)
        if isinstance(fault, InputError):
            raise fault
        if fault is not None:
            raise InputError(
                f"compute_metrics fails on the {f'{name} ' if name else ''}evaluation data, before the first step: "
                f"{type(fault).__name__}: {reason(fault).rstrip('.')}. It gets an EvalPrediction of the last layer, as "
                f"from Transformers' Trainer; labels of {IGNORED} stand for none."
            ) from fault


def _fault_of_metrics(
    measurer: Measurer, loader: Iterable, predictions: Predictions, check: Callable[[set[str]], None]
) -> Exception | None:
    """What is wrong with the metrics of some batches: they can't be computed, or lack the one to choose by."""

    def tried() -> Exception | None:
        try:
            check({name.removeprefix("eval_") for name in predictions.metrics()})
        except Exception as error:  # the user's own code
            return error
        return None

    fault = None
    for place, batch in enumerate(map(measurer.on_device, loader)):
        prediction, losses = measurer.predicted(batch)
        if losses is None:  # the evaluation says which label is missing
            return None
        predictions.add(prediction, measurer.labels_of(batch), losses)
        if not place and (fault := tried()) is None:
            return None
    return fault and tried()


def tell_idle_heads(model: LayeredModel) -> None:
    """Name parameters of the readout that got no gradient in the first step, because they are frozen or not used.

    A new head that stays as it was drawn would read every layer. Of a module of the user's own, whose readout may be
    any function, all trained parameters without a gradient are named. A language model's head, which adapters leave as
    it is, is not looked at. Call it when all gradients are there.

    Args:
        model: The model, in its first step.
    """
    if isinstance(model, LayeredCausalLM):
        return
    heads = {id(each) for each in _head_of(model)}
    learns = not isinstance(model, LibraryModel)  # of Transformers' models a part may be there for another use
    idle = [
        name
        for name, each in model.saved.named_parameters()
        if each.grad is None
        and ".original_module." not in name  # PEFT's frozen copy of what modules_to_save trains
        and (id(each) in heads or (learns and each.requires_grad))
    ]
    if idle:
        names = ", ".join(idle[:MOST_NAMED]) + (f" and {len(idle) - MOST_NAMED} more" if idle[MOST_NAMED:] else "")
        logger.warning(
            f"no gradient reaches {names}: they stay as they are. If they are a new head, set requires_grad, let "
            "adapters train it too (modules_to_save), or have forward and readout use it."
        )


def _head_of(model: LayeredModel) -> list[nn.Parameter]:
    """The parameters that read a layer, as far as they are known: of a function those behind the last block."""
    if isinstance(model, LibraryModel):
        return model.head_parameters()
    if isinstance(readout := vars(model).get("_modules", {}).get("readout"), nn.Module):
        return list(readout.parameters())
    head: list[nn.Parameter] = []
    if isinstance(model, HookedModel):
        blocks = {id(each) for block in model.layer_modules for each in block.parameters()}
        behind = False
        for each in model.network.parameters():
            behind |= id(each) in blocks
            head += [each] if behind and id(each) not in blocks else []
    return head
