"""Judge any model from Python, as ``descend evaluate`` judges a run."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import default_data_collator

from descend.core import DescentProblem
from descend.errors import InputError
from descend.evaluation.judgement import PLAIN_ALPHA, judge
from descend.evaluation.latency import latency
from descend.evaluation.layers import embedding_std
from descend.noise import GaussianNoise, Noise
from descend.objective import Objective, Task
from descend.records.card import CARD_FILE
from descend.records.schema import RECORDS_FILE, Provenance, Summary
from descend.report import write_page
from descend.run.judging import settings_of
from descend.run.training import stored
from descend.training import DescentMixin


def evaluate(
    model: DescentMixin | nn.Module,
    dataset: Any,
    *,
    task: Task | None = None,
    noise: Sequence[float] | None = None,
    out: str | Path | None = None,
    name: str = "held-out data",
    split: str = "test",
    seed: int = 0,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
) -> Summary:
    """Judge a model at every layer and noise level: is the loss lower at each layer, and how sure is that?

    A trainer's model is held to the constraints of its training, any other model to 1 % less loss at every layer.

    Args:
        model: A `DescentTrainer`, or a model: of Transformers, of this package, or made by `descend.layered`.
        dataset: Samples that training did not see. Judge models to be compared on the same samples in the same order.
        task: The loss and metric; needed for a model without a trainer, unless it is one of Transformers.
        noise: Levels γ of the robustness curve; by default eight from 0 to 3.5 times the training noise, or 0 alone.
        out: The folder for ``summary.json``, ``groups.json`` and ``report.html``; by default the trainer's folder. A
            model without a trainer writes files only if it is given. ``descend compare`` takes such folders.
        name: The data set's name.
        split: Which data these are: ``test``, ``validation`` or ``train``.
        seed: Of the noise, the same for models to be compared.
        batch_size: Samples at a time; by default the trainer's, or 16.
        collate: Makes a batch of samples; by default the trainer's, or Transformers' ``default_data_collator``.

    Returns:
        The summary, as in ``summary.json``: ``feasible``, ``verdict``, ``layer_losses``, ``values`` …

    Raises:
        InputError: If the model, the task, the data and the noise do not fit together, or there are fewer than two
            samples.
    """
    if split not in ("test", "validation", "train"):
        raise InputError(f"split must be test, validation or train; got {split!r}.")
    trainer = model if isinstance(model, DescentMixin) else None
    if trainer is not None and task is not None:
        raise InputError("expected no task: the trainer has one. Leave it out, or give the model without the trainer.")
    objective = trainer.objective if trainer is not None else Objective(_module(model), task)
    network = objective.model
    if trainer is not None:
        batch_size = batch_size or trainer.args.eval_batch_size
        collate = collate or trainer.evaluation_collator()
        dataset = trainer.evaluation_columns(dataset) if hasattr(dataset, "column_names") else dataset
    collate = collate or default_data_collator
    batch_size = batch_size or 16
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    trained = objective.noise or GaussianNoise(0.0)
    levels = _levels(noise, trained.level)
    noisy = max(*levels, trained.level) > 0
    objective.check_data({"data": dataset}, collate, noise=noisy)
    if len(dataset) < 2:
        raise InputError(
            f"expected at least 2 samples, without which there is no confidence interval; got {len(dataset)}."
        )
    sigma = trainer.sigma if trainer is not None else None
    if sigma is None and noisy:
        sigma = embedding_std(network, objective.task, dataset, batch_size=batch_size, device=device, collate=collate)
    if trainer is not None:
        problem = trainer.args.problem(network.depth, network.first_layer)
    else:
        problem = DescentProblem(network.depth, PLAIN_ALPHA)
    judgement = judge(
        network,
        objective.task,
        dataset,
        problem,
        trained.at(trained.level, seed=seed, sigma=sigma),
        levels=levels,
        name=name,
        split=split,
        shift=_shift(trained),
        batch_size=batch_size,
        device=device,
        collate=collate,
    )
    provenance = _provenance(objective) if trainer is None else _trained(trainer)
    summary = judgement.summary(provenance, asked=trainer is not None)
    timed = latency(network, objective.task, dataset, batch_size=batch_size, device=device, collate=collate)
    if timed is not None:
        summary = summary.model_copy(update={"latency": timed})
    folder = Path(out) if out is not None else trainer.args.folder if trainer is not None else None
    if folder is not None and (trainer is None or trainer.is_world_process_zero()):
        judgement.write(folder, summary)
        if trainer is not None and trainer.args.folder.absolute() != folder.absolute():
            _copy_records(trainer.args.folder, folder)
        if trainer is not None:
            trainer.summary = summary
            if (trainer.args.folder / CARD_FILE).is_file():
                trainer.create_model_card()
        write_page([folder], folder, f"Descend: {folder.absolute().name}")
    return summary


def _module(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(f"expected a DescentTrainer or a model; got {type(model).__name__}.")
    return model


def _levels(noise: Sequence[float] | None, level: float) -> list[float]:
    if noise is None:
        return [round(each, 6) for each in np.linspace(0, 3.5 * level, 8).tolist()] if level else [0.0]
    if isinstance(noise, str):
        raise InputError(f"noise must be one level or a sequence of numbers, such as (0, 0.5, 1); got {noise!r}.")
    levels = [float(each) for each in ([noise] if isinstance(noise, int | float) else noise)]
    if not levels:
        raise InputError("noise must hold at least one level; got none. Leave it out for the usual levels.")
    return levels


def _shift(noise: Noise) -> str:
    return type(noise).__name__.removesuffix("Noise").lower()


def _trained(trainer: DescentMixin) -> Provenance:
    """Where a trainer's model comes from."""
    args, dual = trainer.args, trainer.dual
    cap, *multipliers = dual.multipliers.tolist()
    return _provenance(
        trainer.objective,
        method=args.method,
        seed=args.seed,
        multipliers=multipliers,
        cap_multiplier=cap,
        slack=dual.slack[1:].tolist(),
        binding=[layer for layer, value in enumerate([cap, *multipliers]) if value > 0],
        settings=settings_of(stored(args), args.idle),
        seconds=next((row["train_runtime"] for row in trainer.state.log_history if "train_runtime" in row), None),
    )


def _provenance(objective: Objective, **known: Any) -> Provenance:
    """Where a model comes from; without a trainer its method is ``plain``."""
    label = f"{type(objective.model.saved).__name__}-{objective.model.depth}"
    defaults: dict[str, Any] = {"method": "plain", "seed": 0, "settings": {}}
    return Provenance(recipe=type(objective.task).__name__, model=label, checkpoint="model", **(defaults | known))


def _copy_records(source: Path, folder: Path) -> None:
    """Copy the records of training, from which the page draws the multipliers."""
    records = source / RECORDS_FILE
    if records.is_file():
        shutil.copyfile(records, folder / RECORDS_FILE)
