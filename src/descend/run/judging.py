"""Judging: what a trained model does at every layer and noise level, in ``summary.json`` and for the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, Subset

from descend.contract import resolve
from descend.errors import InputError, reason
from descend.evaluation.energy import energies
from descend.evaluation.exits import exits
from descend.evaluation.judgement import PLAIN_ALPHA, judge
from descend.evaluation.layers import embedding_std, evenly, measure
from descend.evaluation.probes import fit_probes
from descend.evaluation.robustness import pictures
from descend.evaluation.speculation import speculation
from descend.models import LayeredCausalLM, LayeredClassifier
from descend.models.unrolled import UnrolledModel
from descend.recipes import RECIPES, SHIFTS, Data, PlainClassifier, Recipe, Restored, Workload
from descend.records import put, read_json
from descend.records.schema import Summary
from descend.run.training import CONFIG_FILE
from descend.seeds import Stream, derived
from descend.tasks.text.language import IGNORED
from descend.training import DUAL_FILE
from descend.training.config import DescentConfig

FRAMES_FILE = "frames.npz"

EXECUTION = ("bf16", "fp16", "tf32", "deepspeed", "fsdp", "ddp_", "torch_compile", "accelerator", "parallelism")
"""What training arguments begin with that say how a run was carried out: it is judged on other machines, too."""

_UNTRAINED = (
    "Judged as a model that was not trained by Descend: the losses of its inner layers are those of a head that was "
    "trained for the last layer alone. What the layers know whatever that head can read is the line of linear probes, "
    "by --probe."
)


@dataclass(frozen=True)
class Subject:
    """A model to judge, and what is known of it.

    Attributes:
        recipe: Its data and task.
        restored: The model, with its tokenizer.
        args: With the problem that it is held to.
        sigma: σ_x of its training; None to measure it on the training side of the data it is judged on.
        facts: What else the summary says of it.
    """

    recipe: Workload
    restored: Restored
    args: DescentConfig
    sigma: float | None
    facts: dict[str, Any]


def evaluate(
    folder: Path,
    *,
    data: str | None = None,
    noise: list[float] | None = None,
    shift: str = "gaussian",
    split: str = "test",
    model: str = "model",
    task: str | None = None,
    dataset: str | None = None,
    probe: bool = False,
    exit: bool = False,
    seed: int = 0,
    frames: int = 2,
    most: int | None = None,
    loaded: Data | None = None,
) -> Summary:
    """Judge a run, or a model of the library.

    Its folder gets ``summary.json``, ``groups.json`` (the metric by group of samples) and, of pictures, ``frames.npz``.

    Args:
        folder: The run; or with ``task`` a folder that the library's `save_pretrained` wrote.
        data: Other data, judged on their test side or, without sides, as a whole; the run's own unless given.
        noise: Levels γ; eight from 0 to 3.5 times the training noise, or to 0.7 for token dropout, unless given.
        shift: The kind of noise, one of `SHIFTS`; the verdict is under it too, at the training level.
        split: ``test``, ``validation`` or ``train``.
        model: The run's model to judge: ``model`` or ``best_feasible``.
        task: ``classification`` for a classifier that Descend never trained.
        dataset: The kind of such a classifier's data, ``imdb`` or ``mnli``; told from the files unless given.
        probe: Fit a linear probe to every layer, on the training part of the data, and judge it too.
        exit: Judge leaving early too.
        seed: Of the noise, the same for runs that are to be compared.
        frames: How many frames to keep for the page.
        most: Judge on so many samples, taken evenly; on all of them unless given.
        loaded: The run's own data, where they are there already.

    Raises:
        InputError: If the folder holds no finished run and no classifier, or the data can't be what it is judged on.
    """
    if frames < 1:
        raise InputError(f"frames must be at least 1; got {frames}.")
    if most is not None and most < 2:
        raise InputError(f"most must be at least 2 samples; got {most}.")
    if dataset is not None and task is None:
        raise InputError("--dataset goes with --task; a run knows its own data, and others in their form by --data.")
    if shift not in SHIFTS:
        raise InputError(f"shift must be one of {', '.join(SHIFTS)}; got {shift!r}.")
    subject = of_run(folder, model) if task is None else _of_library(folder, task, dataset, data)
    recipe, restored, args = subject.recipe, subject.restored, subject.args
    network = restored.model
    if probe or exit:
        if not isinstance(network, LayeredClassifier | LayeredCausalLM):
            raise InputError("only models of text can be probed or left early; leave out --probe and --exit.")
        if probe and not isinstance(network, LayeredClassifier):
            raise InputError("only classifiers can be probed; leave out --probe.")
        if split != "test":
            raise InputError(
                f"--probe and --exit choose on validation data and are judged on test; got --split {split}."
            )
    own = (loaded or recipe.load(restored)) if data is None else None
    samples, name = (getattr(own, split), own.name) if own else _others(recipe, str(data), split, restored)
    if most is not None:
        samples = _few(samples, most)
    parts = cache(lambda: own or recipe.load(restored))  # read once, and only if needed
    objective_task, device = recipe.task(), args.device
    objective_task.check(samples, network.limits)
    network.to(device)
    collate, sigma = recipe.collate(restored.tokenizer), subject.sigma
    if sigma is None:
        sigma = embedding_std(network, objective_task, parts().train, collate=collate, device=device)
    trained = recipe.corruption(sigma, seed, shift)
    levels = noise or usual_levels(recipe, shift)
    problem = args.problem(network.depth, network.first_layer)
    settings: dict[str, Any] = {"batch_size": args.eval_batch_size, "device": device, "collate": collate}
    probed = None
    if probe and isinstance(network, LayeredClassifier):
        # Its own draws: those of the judged samples belong to their numbers too.
        fresh = trained.at(trained.level, seed=derived(Stream.PROBES, seed))
        probed = fit_probes(network, objective_task, parts().train, parts().validation, fresh, **settings)
    judgement = judge(
        network,
        objective_task,
        samples,
        problem,
        trained,
        levels=levels,
        name=name,
        split=split,
        shift=shift,
        probed=probed,
        **settings,
    )
    summary = {**subject.facts, **judgement.entries}
    summary["verdict"] = judgement.sentence(asked=task is None, binding=subject.facts.get("binding", []))
    if judgement.measured.probed is not None:
        entries = judgement.measured.probed.summary(objective_task)
        summary["probe"] = {key: entries[key] for key in ("values", "layer_losses", "layer_metrics")}
    if isinstance(network, LayeredClassifier) and exit:
        clean = judgement.measured.levels.get(0.0)
        summary["exit"] = exits(network, objective_task, parts().validation, samples, judged=clean, **settings)
    if isinstance(network, LayeredCausalLM) and exit and network.depth > 1:
        summary["speculation"] = speculation(network, samples, IGNORED, device=device)  # type: ignore[arg-type]
    if isinstance(network, UnrolledModel):
        summary["energy"] = energies(
            network, objective_task, samples, trained, levels=judgement.measured.levels, **settings
        )
    if hasattr(objective_task, "picture"):
        shown = pictures(network, objective_task, samples, trained, levels=levels, count=frames, device=device)
        put(folder / FRAMES_FILE, lambda part: np.savez_compressed(part, **shown))  # type: ignore[arg-type]
    typed = Summary.model_validate(summary)
    judgement.write(folder, typed)
    return typed


def mean_metric(
    recipe: Recipe,
    model: nn.Module,
    data: Data,
    args: DescentConfig,
    *,
    most: int,
    levels: Sequence[float],
) -> float:
    """What the summary's ``mean`` would be of a model in the midst of its training, on a few validation samples.

    Args:
        recipe: Its data and task.
        model: The model, layered or of Transformers; its training mode is left as it was.
        data: What ``recipe`` loads.
        args: Its training's.
        most: How many samples, taken evenly.
        levels: Noise levels γ.
    """
    samples = _few(data.validation, most)
    network, task = resolve(model, recipe.task(), None)
    network.train(model.training)
    collate, sigma = recipe.collate(data.tokenizer), data.sigma
    if sigma is None:
        sigma = embedding_std(network, task, data.train, collate=collate, device=args.device)
    noise = recipe.corruption(sigma, seed=0)
    settings: dict[str, Any] = {"batch_size": args.eval_batch_size, "device": args.device, "collate": collate}
    values = [measure(network, task, samples, noise.at(level), **settings).metrics[-1] for level in levels]
    return float(np.mean(values))


def _few(samples: Any, most: int) -> Any:
    """Some of a data set's samples, taken evenly; where the library knows how, as a data set of its own."""
    places = evenly(len(samples), most)
    return samples.select(places) if hasattr(samples, "select") else Subset(samples, places)


def usual_levels(recipe: Workload, shift: str = "gaussian") -> list[float]:
    """Eight levels γ from 0 to 3.5 times the training noise, or to 0.7 for token dropout."""
    train_noise = 0.2 if shift == "dropout" else recipe.noise or recipe.usual_noise
    return [round(level, 6) for level in np.linspace(0, 3.5 * train_noise, 8).tolist()]


def of_run(folder: Path, model: str) -> Subject:
    """A model of a run folder."""
    config = read_json(folder / CONFIG_FILE)
    given = config.get("architectures") if isinstance(config, dict) else None
    if "ForSequenceClassification" in str(given):
        raise InputError(
            f"{folder} is no run but a model of {config.get('model_type')}; judge it by --task classification."
        )
    try:
        recipe = _recipe(config)
        kind: Any = recipe.arguments()
        training = {name: value for name, value in config["training"].items() if not name.startswith(EXECUTION)}
        args = kind(output_dir=str(folder), **training, bf16=False, fp16=False)
        facts = {key: config[key] for key in ("recipe", "method", "seed", "model")}
        told = settings_of(config["settings"] | config["training"], args.idle)
    except InputError:
        raise
    # All exceptions: a wrong value shows wherever the libraries first use it.
    except Exception as error:
        raise InputError(
            f"{folder / CONFIG_FILE} is not that of a run of this version of descend: {reason(error)}."
        ) from None
    if not any((folder / model / name).is_file() for name in ("config.json", "adapter_config.json")):
        todo = "finish the run first: the same descend train with --resume"
        raise InputError(f"{folder} has no {model}; {todo if model == 'model' else 'judge its model instead'}.")
    restored = _restored(recipe, folder / model)
    network = restored.model
    if network.depth != recipe.depth:
        raise InputError(
            f"{folder / model} has {network.depth} layers, but {folder / CONFIG_FILE} says depth {recipe.depth}."
        )
    try:  # of a depth that there is
        args.problem(network.depth, network.first_layer)
    except (TypeError, OverflowError) as error:
        raise InputError(f"{folder / CONFIG_FILE} holds no problem: {reason(error)}.") from None
    dual = _dual((folder if model == "model" else folder / model) / DUAL_FILE, network.depth)
    binding = [layer for layer, value in enumerate([dual["cap_multiplier"], *dual["multipliers"]]) if value > 0]
    facts = {
        **facts,
        "checkpoint": model,
        **dual,
        "binding": binding,
        "settings": told,
        "seconds": config.get("seconds"),
    }
    return Subject(recipe, restored, args, dual["sigma"], facts)


def _of_library(folder: Path, task: str, dataset: str | None, data: str | None) -> Subject:
    """A model that the library's `save_pretrained` wrote."""
    if task != "classification":
        raise InputError(f"task must be classification; got {task!r}.")
    if data is None:
        raise InputError("a model that is no run has no data of its own; give some by --data.")
    recipe = PlainClassifier.of(folder, data, dataset)
    restored = _restored(recipe, folder)
    args = DescentConfig(output_dir=str(folder), alpha=PLAIN_ALPHA, report_to="none")
    facts = {
        "recipe": task,
        "method": "plain",
        "seed": 0,
        "model": recipe.name_of(restored.model),
        "checkpoint": "model",
        "settings": {},
        "note": _UNTRAINED,
    }
    return Subject(recipe, restored, args, None, facts)


def _restored(recipe: Workload, folder: Path) -> Restored:
    try:
        return recipe.restore(str(folder))
    except InputError:
        raise
    except Exception as error:  # of a config.json whose values no model has
        raise InputError(f"{folder} can't be loaded: {reason(error)}. Train the run again.") from None


def _recipe(config: Any) -> Recipe:
    """The recipe of a run, each of its settings of the type it is declared with."""
    kind, settings = RECIPES[config["recipe"]], config["settings"]
    types = get_type_hints(kind)
    for name, value in settings.items():
        # A whole number is a float too, but no truth value is a number.
        allowed = float | int if types[name] is float else types[name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and types[name] is not bool):
            raise TypeError(f"{name} is {str(value)[:60]}")
    return kind(**settings)


def _others(recipe: Workload, data: str, split: str, restored: Restored) -> tuple[Dataset, str]:
    """All test samples of other data."""
    if split != "test":
        raise InputError(f"other data are judged on their test side; got --split {split}. Leave out --data or --split.")
    return recipe.load_test(data, restored)


def _dual(path: Path, depth: int) -> dict[str, Any]:
    """λ, the cap's multiplier and the slack that `DescentTrainer.save_dual` wrote, of a model of this depth."""
    shapes = {"multipliers": (depth,), "cap_multiplier": (), "slack": (depth,), "sigma": ()}
    try:
        tensors = load_file(path)
        for name, shape in shapes.items():
            found = tensors[name]
            if found.shape != shape or not found.is_floating_point() or not found.isfinite().all():
                raise ValueError(f"{name} is no {shape} of finite numbers")
        return {name: tensors[name].tolist() for name in shapes}
    except Exception as error:  # the library's, and what torch makes of types it does not know
        raise InputError(f"{path} can't be loaded: {reason(error)}. Train the run again.") from None


def settings_of(every: dict[str, Any], idle: set[str]) -> dict[str, Any]:
    """The settings that may tell two runs on the same data apart, other than seeds and those that have no effect."""
    alpha = {"alpha", "alpha_decay"}  # the summary's own ``alpha`` says what they come to
    apart = {"data", "cache_dir", "seed", "data_seed", "disable_tqdm", "dataloader_pin_memory", *alpha, *idle}
    return {name: value for name, value in every.items() if name not in apart}
