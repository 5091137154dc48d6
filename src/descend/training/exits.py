"""Own exits in training: they are given to the model, fitted, and learn at a rate of their own."""

from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import Subset
from transformers.trainer_utils import has_length

from descend.errors import InputError, refuse
from descend.evaluation.layers import Batches
from descend.evaluation.probes import fit_exits
from descend.models import LayeredCausalLM, LibraryModel
from descend.objective import Objective
from descend.training.config import DescentArguments

START_ROWS = 256
"""Rows that own exits of a language model are fitted to before training."""


def give_own_exits(objective: Objective, args: DescentArguments) -> bool:
    """Give a model own exits if the settings ask for them; whether it had none before.

    Raises:
        InputError: If the model can't have some.
    """
    model = objective.model
    had = objective.own
    name = type(model.saved).__name__
    has_head = isinstance(model, LibraryModel)
    refuse(
        (
            args.head_lr_ratio != 1 and not has_head,
            f"head_lr_ratio is of heads of Transformers; {name} has none. Leave it out.",
        ),
        (
            args.own_exits and not has_head,
            f"own exits are copies of the head of a model of Transformers; the layers of {name} share one readout. "
            "Choose exits shared, and not the method probe.",
        ),
    )
    if args.own_exits:
        model.give_own_exits()
    elif args.exits == "shared" and had:
        model.share_readout()
    if args.head_lr_ratio != 1 and not model.head_parameters():
        raise InputError(
            f"head_lr_ratio is of a classifier's head and own exits; this {name} has none. Leave it out, or choose "
            "exits own."
        )
    return args.own_exits and not had


def check_optimizer(objective: Objective, optimizer: Optimizer | None) -> None:
    """Refuse an optimizer of the user's that was made before the model had own exits.

    Raises:
        InputError: If it lacks one of their parameters.
    """
    if optimizer is not None and objective.own:
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not known >= {id(parameter) for parameter in objective.model.own_exits.parameters()}:
            raise InputError(
                "the optimizer does not hold the own exits, which the trainer gave the model. Leave it to the "
                "trainer, or give optimizer_cls_and_kwargs."
            )


def fit_own_exits(objective: Objective, data: Any, batches: Batches) -> None:
    """Start the own exits of a language model where they say what the last layer says, see `fit_exits`.

    From copies of the last layer's readout they would learn for thousands of steps.

    Args:
        objective: The layer losses of the model.
        data: The training data, of which `START_ROWS` rows are read; with those of a stream exits stay copies.
        batches: How rows become batches.
    """
    model = objective.model
    where = {each.device for each in model.parameters()}
    if not isinstance(model, LayeredCausalLM) or torch.device("meta") in where:
        return
    if has_length(data) and hasattr(data, "__getitem__"):
        some: Any = Subset(data, range(min(START_ROWS, len(data))))  # type: ignore[arg-type]
        fit_exits(model, objective.task, some, some, replace(batches, device=where.pop()))


def set_head_rate(optimizer: Optimizer, objective: Objective, ratio: float) -> None:
    """Let a model's head and own exits learn at ``ratio`` times the model's rate."""
    if ratio == 1 or not isinstance(objective.model, LibraryModel):
        return
    heads = {id(parameter) for parameter in objective.model.head_parameters()}
    for group in list(optimizer.param_groups):
        if of_heads := [each for each in group["params"] if id(each) in heads]:
            group["params"] = [each for each in group["params"] if id(each) not in heads]
            optimizer.add_param_group({**group, "params": of_heads, "lr": ratio * group["lr"]})
