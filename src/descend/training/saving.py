"""What a model is saved with: its weights, what it was trained with, its tokenizer and its card."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from descend.core import DescentProblem, PrimalDual
from descend.models import save_module
from descend.objective import Objective
from descend.report import card_of_model, verdict_sentence
from descend.results import (
    Summary,
    Trained,
    Verdict,
    hub_name,
    put,
    without_adapters,
)


def gathered(objective: Objective) -> dict[str, Any] | None:
    """The weights of a model whose parameters are shards of FSDP2; None where they are whole. All ranks call this."""
    if not hasattr(objective, "reshard"):
        return None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(objective.model.saved, options=options)


def without_prefix(objective: Objective, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Weights by their names in the user's model: DeepSpeed gathers them by their names in the objective."""
    (place,) = (name for name, module in objective.named_modules() if module is objective.model.saved)
    if not all(name.startswith(f"{place}.") for name in state_dict):
        return state_dict
    return {name.removeprefix(f"{place}."): value for name, value in state_dict.items()}


def write_model(
    model: nn.Module,
    folder: Path,
    state_dict: dict[str, Any] | None,
    trained: Trained,
    tokenizer: Any,
    *,
    resumes: bool,
) -> None:
    """Write a model and its tokenizer, if there is one, in the format of ``from_pretrained``.

    Args:
        model: The user's model.
        folder: Where to.
        state_dict: Its weights, if they had to be gathered.
        trained: What it was trained with.
        tokenizer: Its tokenizer; None without one.
        resumes: Whether to use the names of weights in the model, as a checkpoint does; other folders use the Hub's.
    """
    names = {"save_original_format": False} if resumes and isinstance(model, PreTrainedModel) else {}
    save_module(model, folder, state_dict, **names)
    if not isinstance(model, PreTrainedModel):
        trained.write(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def card(
    objective: Objective,
    trained: Trained,
    name: str,
    trainer: str,
    verdict: Verdict | None,
    summary: Summary | None,
    base_model: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> str:
    """The card of a model without a recipe: how it was trained, its verdict, and its evaluation if there was one.

    Args:
        objective: The layer losses of the model.
        trained: What it was trained with.
        name: The model's name.
        trainer: The name of the trainer's class.
        verdict: That on the evaluation data; None without one.
        summary: Its evaluation; None without one.
        base_model: The name on the Hub of the model that training started from; by default as its configuration says.
        metadata: Further metadata of the card, such as ``license``.
    """
    model = objective.model.saved
    base = without_adapters(model)
    source = getattr(getattr(base, "config", None), "_name_or_path", None)
    return card_of_model(
        model,
        name,
        f"{type(base).__name__} with {objective.model.depth} layers, trained by `{trainer}`. The prediction can be "
        "read after every layer.",
        trained,
        verdict=verdict_sentence(verdict, "the evaluation data") if verdict is not None and verdict.asked else "",
        summary=summary,
        base_model=base_model or (hub_name(source) if source else None),
        metadata=metadata or {},
    )


def write_dual(path: Path, dual: PrimalDual[DescentProblem], sigma: float | None) -> None:
    """Write λ, the cap's multiplier, whether they moved, the slack and the current σ_x."""
    multipliers = dual.multipliers
    tensors = {
        "multipliers": multipliers[1:].clone(),
        "cap_multiplier": multipliers[0].clone(),
        "slack": dual.slack[1:].clone(),
        "moved": torch.tensor(dual.moved),
    }
    if sigma is not None:
        tensors["sigma"] = torch.tensor(sigma, dtype=torch.float64)
    put(path, partial(save_file, tensors))
