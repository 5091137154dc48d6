"""What a trainer looks at once, before or in its first step: metrics, first losses, and heads that do not learn."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.trainer_utils import has_length

from descend.errors import InputError, reason
from descend.evaluation.layers import few
from descend.models import HookedModel, LayeredCausalLM, LayeredModel, LibraryModel, evaluating
from descend.tasks.text.classification import IGNORED
from descend.training.hf_hooks import overriding
from descend.training.measuring import Measuring, Predictions

logger = logging.getLogger(__name__)

MOST_NAMED = 4
"""Parameters that one line names."""

MOST_FIRST = 256
"""Training samples, taken evenly, on which the first losses are measured."""


def try_metrics(trainer: Measuring) -> None:
    """Call ``compute_metrics`` on one batch of each evaluation set, and look for ``metric_for_best_model``.

    Where that fails, the whole set is tried: a score may need every class.

    Args:
        trainer: A trainer that is about to train.

    Raises:
        InputError: If it fails on the whole set too, or gives no such metric.
    """
    own = not type(trainer).evaluate.__module__.startswith("descend.")  # it may call compute_metrics otherwise
    if trainer.compute_metrics is None or not trainer.evaluates or own:
        return
    for name, data in (trainer.evaluated(trainer.eval_dataset) or {"": None}).items():
        # A loader of the user's may draw from the global generator.
        with torch.random.fork_rng(devices=[]), evaluating(trainer.objective):
            fault = _fault_of_metrics(trainer, trainer.evaluation_loader(data, name))
        if isinstance(fault, InputError):
            raise fault
        if fault is not None:
            raise InputError(
                f"compute_metrics fails on the {f'{name} ' if name else ''}evaluation data, before the first step: "
                f"{type(fault).__name__}: {reason(fault).rstrip('.')}. It gets an EvalPrediction of the last layer, as "
                f"from Transformers' Trainer; labels of {IGNORED} stand for none."
            ) from fault


def _fault_of_metrics(trainer: Measuring, loader: Iterator) -> Exception | None:
    """What is wrong with the metrics of some batches: they can't be computed, or lack the one to choose by."""
    assert trainer.compute_metrics is not None
    predictions = Predictions(trainer.args, trainer.compute_metrics, trainer.preprocess_logits_for_metrics)

    def tried() -> Exception | None:
        try:
            found = {name.removeprefix("eval_") for name in predictions.metrics()}
            if len(trainer.evaluated(trainer.eval_dataset)) < 2:  # of several sets names have prefixes
                trainer.args.check_best_metric(trainer.measured | found)
        except Exception as error:  # the user's own code
            return error
        return None

    fault = None
    for place, batch in enumerate(map(trainer.on_device, loader)):
        prediction, losses = trainer.predicted(batch)
        if losses is None:  # the evaluation says which label is missing
            return None
        predictions.add(prediction, trainer.labels_of(batch), losses)
        if not place and (fault := tried()) is None:
            return None
    return fault and tried()


def first_losses(trainer: Measuring) -> Tensor | None:
    """f_0 … f_L before training, the means over some training samples at the training noise, (L+1,).

    None of streams, of samples behind a loader of the user's, and of a model that is sharded or not yet there.

    Args:
        trainer: A trainer with its data.
    """
    data: Any = trainer.train_dataset
    known = has_length(data) and hasattr(data, "__getitem__") and not overriding(type(trainer), "get_train_dataloader")
    elsewhere = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or hasattr(trainer.objective, "reshard")
    if not known or elsewhere or any(each.is_meta for each in trainer.objective.parameters()):
        return None
    with evaluating(trainer.objective):
        return trainer.measure_layers(few(data, MOST_FIRST)).losses.mean(0)


def tell_idle_heads(trainer: Measuring) -> None:
    """Name parameters of the readout that got no gradient in the first step, because they are frozen or not used.

    A new head that stays as it was drawn would read every layer. Of a module of the user's own, whose readout may be
    any function, all trained parameters without a gradient are named. A language model's head, which adapters leave as
    it is, is not looked at. Call it when all gradients are there.

    Args:
        trainer: A trainer in its first step.
    """
    model = trainer.objective.model
    if trainer.is_deepspeed_enabled or isinstance(model, LayeredCausalLM):  # DeepSpeed keeps gradients elsewhere
        return
    heads = {id(each) for each in _head_of(model)}
    learns = not isinstance(model, LibraryModel)  # of Transformers' models a part may be there for another use
    idle = [
        name
        for name, each in trainer.users_model.named_parameters()
        if each.grad is None and (id(each) in heads or (learns and each.requires_grad))
    ]
    if idle and trainer.is_world_process_zero():
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
