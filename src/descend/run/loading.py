"""Load a model with what it is evaluated on: the recipe of a run's folder, or that of a saved model."""

import json
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from descend.core import DescentProblem
from descend.core.rules import PriceAscent
from descend.errors import InputError, MissingPackageError, refusing
from descend.evaluation.layers import Batches
from descend.methods import CLASSES
from descend.models import LayeredModel
from descend.noise import SHIFTS
from descend.recipes import RECIPES, Recipe
from descend.results import (
    CONFIG_FILE,
    DUAL_FILE,
    Provenance,
    Trained,
    check_model,
    read_config,
    read_trained,
)
from descend.run.describing import WRITTEN
from descend.tasks.text.tokens import KEEP_MARKUP
from descend.training.config import DescentArguments, DescentConfig, problem_of

EXECUTION = ("bf16", "fp16", "tf32", "deepspeed", "fsdp", "ddp_", "torch_compile", "accelerator", "parallelism")
"""Prefixes of training arguments that depend on the machine: a run is evaluated on other machines, too."""

SILENT = (
    "logging_",
    "log_",
    "report_to",
    "run_name",
    "disable_tqdm",
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "hub_",
    "push_to_hub",
)
"""Prefixes of training arguments that change no number of a run."""

AGAIN = "Train the run again."

LONGEST = 512
"""Longest text in tokens of a model without its run, unless it takes fewer."""

_UNTRAINED = (
    "Descend did not train this model: the losses of its inner layers are those of a head trained for the last layer "
    "alone. Linear probes, by --probe, show what the layers know beyond what that head can read."
)


def of_run(folder: Path, model: str) -> dict[str, Any]:
    """What a `Run` has of a model of a run's folder."""
    path, config = folder / CONFIG_FILE, read_config(folder)
    unusable = f"{path} holds settings that this version of descend can't use"
    with refusing(unusable, AGAIN, passing=MissingPackageError):
        settings = {name: value for name, value in config.settings.items() if name not in WRITTEN}
        recipe = RECIPES[config.recipe].kind(**settings)  # type: ignore[arg-type]
        kind: Any = recipe.arguments()
        training = {name: value for name, value in config.training.items() if not name.startswith(EXECUTION)}
        args = kind(output_dir=str(folder), **training, bf16=False, fp16=False)
    check_model(folder, model)
    network, tokenizer = _restored(recipe, folder / model)
    if network.depth != recipe.depth:
        raise InputError(f"{folder / model} has {network.depth} layers, but {path} says depth {recipe.depth}.")
    with refusing(f"{path} describes no problem", AGAIN, passing=MissingPackageError):
        problem = args.problem(network.depth, network.first_layer)
    trained = read_trained(folder / model)
    sigma, multipliers, slack, moved = read_dual((folder if model == "model" else folder / model) / DUAL_FILE)
    # The file has no slack of the cap: implicit slack follows from λ, and explicit slack is 0 after each epoch.
    of_cap = args.resolved("resilience") * multipliers[0] if args.slack == "implicit" else 0.0
    provenance = Provenance(
        recipe=config.recipe,
        method=config.method,
        seed=config.seed,
        model=config.model,
        checkpoint=model,
        settings=settings_of(config.settings | config.training, args.idle),
        seconds=config.seconds,
        steps=config.steps,
        temperature=trained.temperature if trained else config.temperature if model == "model" else None,
        **dual_entries(multipliers, [of_cap, *slack], moved, args),
    )
    return _read_by(recipe, tokenizer, args, sigma) | {"model": network, "problem": problem, "provenance": provenance}


def of_model(folder: Path, name: str, data: str, dataset: str | None = None) -> dict[str, Any]:
    """What a `Run` has of a model without its run, as `save_pretrained` or ``descend export`` wrote it: no σ_x.

    Args:
        folder: Its folder.
        name: The recipe that reads it: ``text`` for a classifier, ``lm`` for a causal language model.
        data: The data to evaluate it on.
        dataset: The kind of texts with classes; None to infer it from the files.
    """
    trained = read_trained(folder)
    given: dict[str, Any] = {} if dataset is None else {"dataset": dataset}
    if trained is not None and trained.shift in SHIFTS and trained.shift != "dropout":
        given |= {"noise": trained.noise, "noise_is": trained.noise_is}
    kind: Any = RECIPES[name].kind
    recipe = kind(model=str(folder), data=data, **given)
    network, tokenizer = _restored(recipe, folder)
    longest = min(network.limits.get("length", LONGEST), LONGEST)
    read: dict[str, Any] = {"max_length": longest}
    if name == "text" and KEEP_MARKUP in getattr(tokenizer, "init_kwargs", {}):
        read["keep_markup"] = tokenizer.init_kwargs[KEEP_MARKUP]
    recipe = replace(recipe, **read).completed()
    args = DescentConfig(output_dir=str(folder), report_to="none")
    note = {"note": _UNTRAINED} if trained is None else {}
    known = "classification" if name == "text" else name  # a summary with the recipe text is that of a run
    provenance = provenance_of(trained, recipe=known, model=recipe.label, **note)
    problem = trained_problem(trained, network)
    return _read_by(recipe, tokenizer, args, None) | {"model": network, "problem": problem, "provenance": provenance}


def _read_by(recipe: Recipe, tokenizer: Any, args: DescentArguments, sigma: float | None) -> dict[str, Any]:
    """What a `Run` has by its recipe."""
    return {
        "recipe": recipe,
        "tokenizer": tokenizer,
        "task": recipe.task(),
        "noise": recipe.corruption(sigma, 0),
        "batches": Batches(args.eval_batch_size, args.device, recipe.collate(tokenizer)),
    }


def trained_problem(trained: Trained | None, network: LayeredModel) -> DescentProblem | None:
    """The constraints that a model without its run was trained for; None if that is unknown, or layers are missing.

    Args:
        trained: What it was last trained with; None for a model that Descend did not train.
        network: The model.

    Raises:
        InputError: If what was saved with the model describes no problem.
    """
    if trained is None or trained.exported_layers is not None or not trained.problem:
        return None
    with refusing("the constraints saved with the model describe no problem", passing=MissingPackageError):
        return problem_of(trained.problem, network.depth, network.first_layer)


def provenance_of(trained: Trained | None, **known: Any) -> Provenance:
    """Where a model comes from that is evaluated without its run.

    Args:
        trained: What it was last trained with; None for a model that Descend did not train, whose method is ``plain``.
        **known: Other entries.
    """
    entries: dict[str, Any] = {"method": "plain", "seed": 0, "settings": {}}
    if trained is not None:
        layers = trained.exported_layers
        part = "" if layers is None else f" These are its first {layers} layers alone, which nothing was asked of."
        entries = {
            "method": trained.method,
            "seed": trained.seed,
            "settings": settings_of({"noise": trained.noise, **trained.problem}, set()),
            "temperature": trained.temperature,
            "without_run": True,
            "note": f"Last trained by Descend {trained.version}, with the method {trained.method}.{part}",
        }
    return Provenance(**entries | known)


def _restored(recipe: Recipe, folder: Path) -> tuple[LayeredModel, Any]:
    with refusing(f"{folder} can't be loaded", AGAIN):  # of a config.json whose values no model has
        return recipe.restore(str(folder))


def read_dual(path: Path) -> tuple[float, list[float], list[float], bool]:
    """A file that `DescentTrainer.save_dual` wrote.

    Args:
        path: The file.

    Returns:
        σ_x; λ, L+1 numbers, the cap's first; the layers' slack, L numbers; and whether a dual step was taken.
    """
    with refusing(f"{path} can't be loaded", AGAIN):
        tensors: Any = load_file(path)
        moved = bool(tensors.get("moved", True))  # older files do not say
        names = ("multipliers", "cap_multiplier", "slack", "sigma")
        multipliers, cap, slack, sigma = (tensors[name].tolist() for name in names)
        return sigma, [cap, *multipliers], slack, moved


def dual_entries(multipliers: list[float], slack: list[float], moved: bool, args: DescentArguments) -> dict[str, Any]:
    """The entries of `Provenance` on the dual.

    Args:
        multipliers: λ, L+1 numbers; the first is the cap's.
        slack: L+1 numbers; the first is the cap's.
        moved: Whether a dual step was taken: λ may start above 0.
        args: The settings of the training.
    """
    binding = [layer for layer, value in enumerate(multipliers) if value > 0 and moved]
    highest = None
    if CLASSES[args.method].constrained and args.resolved("dual_optimizer") == "price":
        usual = signature(PriceAscent).parameters["price"].default
        highest = json.loads(args.dual_optim_args or "{}").get("price", usual)
    return {
        "multipliers": multipliers[1:],
        "cap_multiplier": multipliers[0],
        "max_multiplier": highest,
        "slack": slack[1:],
        "cap_slack": slack[0],
        "binding": binding,
    }


def settings_of(every: dict[str, Any], idle: set[str]) -> dict[str, Any]:
    """The settings in which two runs on the same data may differ, without seeds and those that have no effect."""
    alpha = {"alpha", "alpha_decay"}  # the summary has α by layer
    left_out = {"data", "cache_dir", "seed", "data_seed", *alpha, *idle}
    return {name: value for name, value in every.items() if name not in left_out and not name.startswith(SILENT)}
