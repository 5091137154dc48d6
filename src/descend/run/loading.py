"""Load a model with what it is evaluated on: the recipe of a run's folder, or a saved classifier of Transformers."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from descend.core import DescentProblem
from descend.errors import InputError, MissingPackageError, reason
from descend.evaluation.layers import Batches
from descend.models import LayeredModel
from descend.reading import read_json
from descend.recipes import GENERATED, RECIPES, SHIFTS, Restored, Workload
from descend.results import (
    CONFIG_FILE,
    LAST_TRAINED,
    Provenance,
    RunConfig,
    Trained,
    check_model,
    parse,
    read_trained,
)
from descend.results.ownership import DUAL_FILE
from descend.training.config import DescentConfig, problem_of

EXECUTION = ("bf16", "fp16", "tf32", "deepspeed", "fsdp", "ddp_", "torch_compile", "accelerator", "parallelism")
"""Prefixes of training arguments that depend on the machine: a run is evaluated on other machines, too."""

_UNTRAINED = (
    "Descend did not train this model: the losses of its inner layers are those of a head trained for the last layer "
    "alone. Linear probes, by --probe, show what the layers know beyond what that head can read."
)


@dataclass(frozen=True)
class LoadedModel:
    """A model in a folder, with its recipe.

    Attributes:
        recipe: Its data and task.
        restored: The model, with its tokenizer.
        args: The training arguments.
        problem: The constraints that the model was trained for; None if that is unknown.
        sigma: σ_x of its training; None to measure it on the training split of the data it is evaluated on.
        provenance: Where the model comes from.
    """

    recipe: Workload
    restored: Restored
    args: DescentConfig
    problem: DescentProblem | None
    sigma: float | None
    provenance: Provenance

    @property
    def batches(self) -> Batches:
        """How its samples become batches."""
        return Batches(self.args.eval_batch_size, self.args.device, self.recipe.collate(self.restored.tokenizer))


def of_run(folder: Path, model: str) -> LoadedModel:
    """A model of a run folder."""
    path = folder / CONFIG_FILE
    config = _config(folder)
    try:
        recipe = RECIPES[config.recipe](**config.settings)  # type: ignore[arg-type]
        kind: Any = recipe.arguments()
        training = {name: value for name, value in config.training.items() if not name.startswith(EXECUTION)}
        args = kind(output_dir=str(folder), **training, bf16=False, fp16=False)
    except MissingPackageError:
        raise
    except Exception as error:  # a wrong value shows wherever the libraries first use it
        fault = reason(error).rstrip(".")
        raise InputError(
            f"{path} holds settings that this version of descend can't use: {fault}. Train the run again."
        ) from None
    check_model(folder, model)
    restored = _restored(recipe, folder / model)
    network = restored.model
    if network.depth != recipe.depth:
        raise InputError(f"{folder / model} has {network.depth} layers, but {path} says depth {recipe.depth}.")
    try:
        problem = args.problem(network.depth, network.first_layer)
    except (InputError, TypeError, OverflowError) as error:
        raise InputError(f"{path} describes no problem: {reason(error)}. Train the run again.") from None
    trained = read_trained(folder / model)
    sigma, dual = read_dual((folder if model == "model" else folder / model) / DUAL_FILE, network.depth)
    provenance = Provenance(
        recipe=config.recipe,
        method=config.method,
        seed=config.seed,
        model=config.model,
        checkpoint=model,
        settings=settings_of(config.settings | config.training, args.idle),
        seconds=config.seconds,
        temperature=trained.temperature if trained else config.temperature if model == "model" else None,
        **dual,
    )
    return LoadedModel(recipe, restored, args, problem, sigma, provenance)


def _config(folder: Path) -> RunConfig:
    """A run's settings; a folder with a classifier of Transformers is refused with a hint."""
    path = folder / CONFIG_FILE
    content = read_json(path)
    if isinstance(content, dict) and "ForSequenceClassification" in str(content.get("architectures")):
        kind = content.get("model_type")
        raise InputError(f"{folder} is not a run but a model of {kind}; evaluate it by --task classification.")
    return parse(RunConfig, content, str(path), "Give the folder of a run, or train the run again.")


def of_transformers(folder: Path, task: str, dataset: str | None, data: str | None) -> LoadedModel:
    """A classifier that Transformers' `save_pretrained` wrote."""
    if task != "classification":
        raise InputError(f"task must be classification; got {task!r}.")
    if data is None:
        raise InputError("a model that is not a run names no data; give them by --data.")
    from descend.recipes import PlainClassifier  # needs the extra text

    recipe, trained = PlainClassifier.of(folder, data, dataset), read_trained(folder)
    if trained is not None and trained.shift in SHIFTS and trained.shift != "dropout":
        recipe = replace(recipe, noise=trained.noise, noise_is=trained.noise_is)
    restored = _restored(recipe, folder)
    args = DescentConfig(output_dir=str(folder), report_to="none")
    note = {"note": _UNTRAINED} if trained is None else {}
    provenance = provenance_of(trained, recipe=task, model=recipe.name_of(restored.model), **note)
    return LoadedModel(recipe, restored, args, trained_problem(trained, restored.model), None, provenance)


def of_export(folder: Path, trained: Trained) -> LoadedModel:
    """A causal language model that ``descend export`` wrote; it holds no σ_x.

    Args:
        folder: Its folder.
        trained: What it was last trained with.
    """
    kind: Any = RECIPES["lm"]
    recipe = kind(model=str(folder), data=GENERATED, noise=trained.noise, noise_is=trained.noise_is)
    restored = _restored(recipe, folder)
    name = f"{type(restored.model.saved).__name__.removesuffix('ForCausalLM')}-{restored.model.depth}"
    args = DescentConfig(output_dir=str(folder), report_to="none")
    return LoadedModel(recipe, restored, args, None, None, provenance_of(trained, recipe="lm", model=name))


def trained_problem(trained: Trained | None, network: LayeredModel) -> DescentProblem | None:
    """The constraints that a model without its run was trained for; None if that is unknown, or layers are missing.

    Args:
        trained: What it was last trained with; None for a model that Descend did not train.
        network: The model.

    Raises:
        InputError: If what was saved with the model describes no problem.
    """
    if trained is None or not trained.is_whole:
        return None
    try:
        return problem_of(trained.problem, network.depth, network.first_layer)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the constraints saved with the model describe no problem: {reason(error)}.") from None


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
            "note": f"{LAST_TRAINED} {trained.version}, with the method {trained.method}.{part}",
        }
    return Provenance(**entries | known)


def _restored(recipe: Workload, folder: Path) -> Restored:
    try:
        return recipe.restore(str(folder))
    except InputError:
        raise
    except Exception as error:  # of a config.json whose values no model has
        raise InputError(f"{folder} can't be loaded: {reason(error)}. Train the run again.") from None


def read_dual(path: Path, depth: int) -> tuple[float, dict[str, Any]]:
    """σ_x and the entries of `dual_entries`, of a file that `DescentTrainer.save_dual` wrote.

    Args:
        path: The file.
        depth: L, the number of the model's layers.
    """
    shapes = {"multipliers": (depth,), "cap_multiplier": (), "slack": (depth,), "sigma": ()}
    try:
        tensors = load_file(path)
        for name, shape in shapes.items():
            tensor = tensors[name]
            if tensor.shape != shape or not tensor.is_floating_point() or not tensor.isfinite().all():
                raise ValueError(f"{name} must hold finite numbers of shape {shape}")
        moved = bool(tensors.get("moved", True))  # older files do not say
        values: list[Any] = [tensors[name].tolist() for name in shapes]
        multipliers, cap, slack, sigma = values
        return sigma, dual_entries([cap, *multipliers], slack, moved)
    except Exception as error:  # also those of safetensors and torch about types that they do not know
        raise InputError(f"{path} can't be loaded: {reason(error)}. Train the run again.") from None


def dual_entries(multipliers: list[float], slack: list[float], moved: bool) -> dict[str, Any]:
    """The entries of `Provenance` on the dual.

    Args:
        multipliers: λ, L+1 numbers; the first is the cap's.
        slack: The layers' slack, L numbers.
        moved: Whether a dual step was taken: λ may start above 0.
    """
    binding = [layer for layer, value in enumerate(multipliers) if value > 0 and moved]
    return {"multipliers": multipliers[1:], "cap_multiplier": multipliers[0], "slack": slack, "binding": binding}


def settings_of(every: dict[str, Any], idle: set[str]) -> dict[str, Any]:
    """The settings in which two runs on the same data may differ, without seeds and those that have no effect."""
    alpha = {"alpha", "alpha_decay"}  # the summary has α by layer
    left_out = {"data", "cache_dir", "seed", "data_seed", "disable_tqdm", "dataloader_pin_memory", *alpha, *idle}
    return {name: value for name, value in every.items() if name not in left_out}
