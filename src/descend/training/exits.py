"""Own exits in training: they are given to the model, fitted, and learn at a rate of their own."""

from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import Subset
from transformers.trainer_utils import has_length

from descend.errors import InputError, refuse, refusing
from descend.evaluation.probes import fit_exits
from descend.models import LayeredCausalLM, LibraryModel
from descend.training.config import DescentArguments
from descend.training.hf_hooks import overriding
from descend.training.measuring import Measuring

START_ROWS = 256
"""Rows that own exits of a language model are fitted to before training."""


class OwnExits(Measuring):
    """A trainer whose model may have own exits, see `descend.models.own_exits`."""

    def give_own_exits(self, args: DescentArguments) -> bool:
        """Give the model own exits if the settings ask for them; whether it had none before.

        Raises:
            InputError: If the model can't have some.
        """
        model, had = self.objective.model, self.objective.own
        name, has_head = type(model.saved).__name__, isinstance(model, LibraryModel)
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

    def check_optimizer(self) -> None:
        """Refuse an optimizer of the user's that was made before the model had own exits.

        Raises:
            InputError: If it lacks one of their parameters.
        """
        if self.optimizer is not None and self.objective.own:
            known = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
            if not known >= {id(parameter) for parameter in self.objective.model.own_exits.parameters()}:
                raise InputError(
                    "the optimizer does not hold the own exits, which the trainer gave the model. Leave it to the "
                    "trainer, or give optimizer_cls_and_kwargs."
                )

    def fit_exits(self) -> None:
        """Start the own exits of a language model where they say what the last layer says, see `fit_exits`.

        From copies of the last layer's readout they would learn for thousands of steps. On `START_ROWS` rows of the
        training data; those of a stream, or of a user's loader, stay copies.
        """
        model, data = self.objective.model, self.train_dataset
        where = {each.device for each in model.parameters()}
        if not isinstance(model, LayeredCausalLM) or torch.device("meta") in where:
            return
        known = has_length(data) and hasattr(data, "__getitem__")
        if data is not None and known and not overriding(type(self), "get_train_dataloader"):
            some: Any = Subset(data, range(min(START_ROWS, len(data))))  # type: ignore[arg-type]
            fit_exits(model, self.objective.task, some, some, replace(self._batches(), device=where.pop()))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Transformers' optimizer; the head and own exits learn at ``head_lr_ratio`` times the model's rate."""
        is_new, ratio, model = self.optimizer is None, self.args.head_lr_ratio, self.objective.model
        with refusing("the optimizer can't be made", "Correct optim, optim_args or optim_target_modules."):
            optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and ratio != 1 and isinstance(model, LibraryModel):
            heads = {id(parameter) for parameter in model.head_parameters()}
            for group in list(optimizer.param_groups):
                if of_heads := [each for each in group["params"] if id(each) in heads]:
                    group["params"] = [each for each in group["params"] if id(each) not in heads]
                    optimizer.add_param_group({**group, "params": of_heads, "lr": ratio * group["lr"]})
        return optimizer

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        """Transformers' schedule of the learning rate."""
        with refusing("the schedule can't be made", "Correct lr_scheduler_type or lr_scheduler_kwargs."):
            return super().create_scheduler(*args, **kwargs)
