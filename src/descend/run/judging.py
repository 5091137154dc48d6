"""Judge a run, or a classifier of Transformers, at every layer and noise level; writes ``summary.json``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, Subset

from descend.contract import resolve
from descend.errors import InputError, reason
from descend.evaluation.decided import decided
from descend.evaluation.energy import energies
from descend.evaluation.exits import exits
from descend.evaluation.judgement import PLAIN_ALPHA, judge
from descend.evaluation.latency import latency
from descend.evaluation.layers import embedding_std, evenly, measure
from descend.evaluation.probes import fit_probes
from descend.evaluation.risk_control import check_risk
from descend.evaluation.robustness import pictures
from descend.evaluation.satisfaction import CONFIDENCE
from descend.evaluation.speculation import speculation
from descend.models import LayeredCausalLM, LayeredClassifier
from descend.models.denoiser import UnrolledModel
from descend.recipes import GENERATED, RECIPES, SHIFTS, Data, Recipe, Restored, Workload
from descend.results import (
    CERTIFIED_FILE,
    CONFIG_FILE,
    DECISIONS_FILE,
    ELSEWHERE,
    LAST_TRAINED,
    TRAIN_LOSSES_FILE,
    CertifiedExit,
    Probes,
    Provenance,
    RunConfig,
    Summary,
    Trained,
    TrainLosses,
    check_model,
    parse,
    put,
    read_json,
    read_trained,
)
from descend.results.card import write_card
from descend.results.ownership import DUAL_FILE, FRAMES_FILE, RESULTS, refuse_foreign
from descend.run.cards import run_card
from descend.seeds import Stream, derived
from descend.tasks.text.language import IGNORED
from descend.training.config import PROBLEM, DescentConfig

EXECUTION = ("bf16", "fp16", "tf32", "deepspeed", "fsdp", "ddp_", "torch_compile", "accelerator", "parallelism")
"""Prefixes of training arguments that depend on the machine: a run is judged on other machines, too."""

_UNTRAINED = (
    "Descend did not train this model: the losses of its inner layers are those of a head trained for the last layer "
    "alone. Linear probes, by --probe, show what the layers know beyond what that head can read."
)


@dataclass(frozen=True)
class Subject:
    """A model to judge.

    Attributes:
        recipe: Its data and task.
        restored: The model, with its tokenizer.
        args: The training arguments, with the problem that the model is held to.
        sigma: σ_x of its training; None to measure it on the training split of the data it is judged on.
        provenance: Where the model comes from.
        asked: Whether its training asked for that problem.
    """

    recipe: Workload
    restored: Restored
    args: DescentConfig
    sigma: float | None
    provenance: Provenance
    asked: bool = True


def results_folder(folder: Path, data: str | None = None, task: str | None = None) -> Path:
    """Where an evaluation writes: the run's folder, or for other data than its own a folder in it.

    Args:
        folder: The run; or with ``task`` a model of Transformers, which has no data of its own.
        data: Other data, as `descend.run.evaluate` takes them.
        task: As `descend.run.evaluate` takes it.
    """
    if data is None or task is not None:
        return folder
    return folder / f"{ELSEWHERE}{Path(os.path.abspath(Path(data).expanduser())).name}"


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
    risk: float | None = None,
    confidence: float | None = None,
    unseen: bool = False,
    seed: int = 0,
    frames: int = 2,
    most: int | None = None,
    train_samples: int | None = None,
    loaded: Data | None = None,
) -> Summary:
    """Judge a run, or a classifier of Transformers.

    Writes ``summary.json``, ``groups.json`` (the metric by group of samples) and, for video, ``frames.npz``, or for
    texts to classify ``decisions.json`` in the folder that `results_folder` names.

    Args:
        folder: The run; or with ``task`` a folder that Transformers' `save_pretrained` wrote.
        data: Other data, judged on their test split or, without splits, as a whole; by default the run's own.
        noise: Levels γ; by default eight from 0 to 3.5 times the training noise, or to 0.7 for token dropout.
        shift: The kind of noise, one of `SHIFTS`; the verdict is taken under it too, at the training level.
        split: ``test``, ``validation`` or ``train``.
        model: The run's model to judge: ``model`` or ``best_feasible``.
        task: ``classification`` for a classifier that Descend did not train.
        dataset: The kind of such a classifier's data, ``imdb`` or ``mnli``; by default recognized from the files.
        probe: Also fit a linear probe to every layer, on the training split, and judge it.
        exit: Also judge early exits.
        risk: Certify the exit threshold for this risk, see `descend.evaluation.risk_control`; it is saved with the
            model, where `DescentClassifier` finds it.
        confidence: How sure that bound must be; 0.95 unless given.
        unseen: With ``task`` and ``risk``: you vouch that the model was trained on no sample of ``data``. A run knows
            its own validation split and needs no such word.
        seed: The seed of the noise, the same for runs to be compared.
        frames: How many frames to keep for the page, or beginnings of texts.
        most: Judge on so many samples, taken evenly; by default on all.
        train_samples: Also measure the layers' losses on so many training samples, at the training noise, for
            ``train_losses.json``; by default on none.
        loaded: The run's own data, if they are loaded already.

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
    if risk is not None:
        if not exit:
            raise InputError("--risk chooses the threshold of early exits; add --exit.")
        check_risk(risk, confidence if confidence is not None else 0.95)
    elif confidence is not None:
        raise InputError("--confidence goes with --risk; add --risk, such as --risk 0.01.")
    if unseen and (task is None or risk is None):
        raise InputError("--unseen goes with --task and --risk; a run knows its own validation split. Leave it out.")
    if risk is not None and task is not None and not unseen:
        raise InputError(
            "--risk takes data that the model has not seen, in any split; what a model without its run was trained on "
            "is unknown, and on its training data it loses too few answers. Give data that it has not seen by --data, "
            "and say that it has not by --unseen."
        )
    place = results_folder(folder, data, task)
    written = [place / name for name in RESULTS]
    carrier = folder / model if task is None else folder
    choice = "other data" if data is not None and task is None else "another folder"
    refuse_foreign([*written, carrier / CERTIFIED_FILE] if risk is not None else written, choice)
    subject = of_run(folder, model) if task is None else _of_transformers(folder, task, dataset, data)
    recipe, restored, args = subject.recipe, subject.restored, subject.args
    network = restored.model
    if probe or exit:
        if not isinstance(network, LayeredClassifier | LayeredCausalLM):
            raise InputError(
                "only models of text can be probed or left early; leave out --probe and --exit. To stop a denoiser "
                "after layer K: descend denoise --layer K, or descend export --layers K."
            )
        if probe and not isinstance(network, LayeredClassifier):
            raise InputError("only classifiers can be probed; leave out --probe.")
        if risk is not None and not isinstance(network, LayeredClassifier):
            raise InputError(
                "--risk certifies the exits of classifiers; a language model's drafts are checked by all its layers. "
                "Leave out --risk."
            )
        if split != "test":
            raise InputError(
                f"--probe and --exit choose on validation data and are judged on test; got --split {split}."
            )
    run_data = (loaded or recipe.load(restored)) if data is None else None
    if run_data is not None:
        samples, name = getattr(run_data, split), run_data.name
    else:
        samples, name = _others(recipe, str(data), split, restored)
    if most is not None:
        samples = _few(samples, most)
    splits = cache(lambda: run_data or recipe.load(restored))  # read once, and only if needed
    objective_task, device = recipe.task(), args.device
    objective_task.check(samples, network.limits)
    network.to(device)
    collate, sigma = recipe.collate(restored.tokenizer), subject.sigma
    if sigma is None:
        sigma = embedding_std(network, objective_task, splits().train, collate=collate, device=device)
    trained = recipe.corruption(sigma, seed, shift)
    levels = noise or usual_levels(recipe, shift)
    problem = args.problem(network.depth, network.first_layer)
    settings: dict[str, Any] = {"batch_size": args.eval_batch_size, "device": device, "collate": collate}
    probed = None
    if probe and isinstance(network, LayeredClassifier):
        # Its own draws: those of the judged samples belong to their numbers too.
        fresh = trained.at(trained.level, seed=derived(Stream.PROBES, seed))
        probed = fit_probes(network, objective_task, splits().train, splits().validation, fresh, **settings)
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
    summary = judgement.summary(subject.provenance, asked=subject.asked)
    place.mkdir(exist_ok=True)
    more: dict[str, Any] = {}  # by the summary's field
    if (timed := latency(network, objective_task, samples, **settings)) is not None:
        more["latency"] = timed
    if judgement.measured.probed is not None:
        probed_layers = judgement.measured.probed.measured(objective_task)
        more["probe"] = Probes(
            values=probed_layers.values,
            layer_losses=probed_layers.layer_losses,
            layer_metrics=probed_layers.layer_metrics,
        )
    if isinstance(network, LayeredClassifier) and exit:
        clean = judgement.measured.levels.get(0.0)
        more["exit"] = exits(
            network,
            objective_task,
            splits().validation,
            samples,
            judged=clean,
            risk=risk,
            confidence=CONFIDENCE if confidence is None else confidence,
            **settings,
        )
        if (bound := more["exit"].guarantee) is not None:
            CertifiedExit(
                threshold=bound.threshold, risk=bound.risk, confidence=bound.confidence, noise=bound.noise
            ).write(carrier)
    if isinstance(network, LayeredCausalLM) and exit and network.depth > 1:
        more["speculation"] = speculation(network, samples, IGNORED, device=device)  # type: ignore[arg-type]
    if isinstance(network, UnrolledModel):
        levels_judged = judgement.measured.levels
        more["energy"] = energies(network, objective_task, samples, trained, levels=levels_judged, **settings)
    if hasattr(objective_task, "picture"):
        shown = pictures(network, objective_task, samples, trained, levels=levels, count=frames, device=device)
        put(place / FRAMES_FILE, lambda part: np.savez_compressed(part, **shown))  # type: ignore[arg-type]
    if isinstance(network, LayeredClassifier) and restored.tokenizer is not None:
        texts = decided(
            judgement.measured.levels[judgement.measured.train_noise],
            samples,
            judgement.measured.train_noise,
            decode=partial(restored.tokenizer.decode, skip_special_tokens=True),
            names=network.saved.config.id2label,
            count=frames,
        )
        if texts is not None:
            texts.write(place / DECISIONS_FILE)
    if train_samples is not None:
        few = _few(splits().train, train_samples)
        losses = measure(network, objective_task, few, trained, **settings).losses
        row = TrainLosses(noise=trained.level, samples=len(few), layer_losses=losses.mean(0).tolist())
        row.write(place / TRAIN_LOSSES_FILE)
    summary = summary.model_copy(update=more)
    judgement.write(place, summary)
    if task is None and place == folder and (folder / model).is_dir():
        write_card(folder / model, run_card(folder, network.saved, checkpoint=model).text())
    return summary


def mean_metric(
    recipe: Recipe,
    model: nn.Module,
    data: Data,
    args: DescentConfig,
    *,
    most: int,
    levels: Sequence[float],
) -> float:
    """Estimate the summary's ``mean`` during training, on a few validation samples.

    Args:
        recipe: Its data and task.
        model: The model, layered or of Transformers; its training mode is left as it was.
        data: The recipe's data.
        args: The training arguments.
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


def layer_metrics(subject: Subject, split: str) -> list[float]:
    """The metric of the layers 0 … L at the training noise, as `evaluate` measures it; nothing is written.

    Args:
        subject: A run's model.
        split: ``test``, ``validation`` or ``train``, of the run's own data.
    """
    recipe, restored, args = subject.recipe, subject.restored, subject.args
    network, task = restored.model.to(args.device), recipe.task()
    samples = getattr(recipe.load(restored), split)
    task.check(samples, network.limits)
    noise = recipe.corruption(subject.sigma, seed=0)
    collate = recipe.collate(restored.tokenizer)
    size, device = args.eval_batch_size, args.device
    return measure(network, task, samples, noise, batch_size=size, device=device, collate=collate).metrics


def _few(samples: Any, most: int) -> Any:
    """Some of a data set's samples, taken evenly."""
    places = evenly(len(samples), most)
    return samples.select(places) if hasattr(samples, "select") else Subset(samples, places)


def usual_levels(recipe: Workload, shift: str = "gaussian") -> list[float]:
    """Eight levels γ from 0 to 3.5 times the training noise, or to 0.7 for token dropout."""
    train_noise = 0.2 if shift == "dropout" else recipe.noise or recipe.usual_noise
    return [round(level, 6) for level in np.linspace(0, 3.5 * train_noise, 8).tolist()]


def of_run(folder: Path, model: str) -> Subject:
    """A model of a run folder."""
    path = folder / CONFIG_FILE
    config = _config(folder)
    try:
        recipe = _recipe(config)
        kind: Any = recipe.arguments()
        training = {name: value for name, value in config.training.items() if not name.startswith(EXECUTION)}
        args = kind(output_dir=str(folder), **training, bf16=False, fp16=False)
    except InputError:
        raise
    except Exception as error:  # a wrong value shows wherever the libraries first use it
        raise InputError(
            f"{path} holds settings that this version of descend can't use: {reason(error)}. Train the run again."
        ) from None
    check_model(folder, model)
    restored = _restored(recipe, folder / model)
    network = restored.model
    if network.depth != recipe.depth:
        raise InputError(f"{folder / model} has {network.depth} layers, but {path} says depth {recipe.depth}.")
    try:
        args.problem(network.depth, network.first_layer)
    except (TypeError, OverflowError) as error:
        raise InputError(f"{path} describes no problem: {reason(error)}. Train the run again.") from None
    trained = read_trained(folder / model)
    dual = _dual((folder if model == "model" else folder / model) / DUAL_FILE, network.depth)
    provenance = Provenance(
        recipe=config.recipe,
        method=config.method,
        seed=config.seed,
        model=config.model,
        checkpoint=model,
        settings=settings_of(config.settings | config.training, args.idle),
        multipliers=dual.multipliers,
        cap_multiplier=dual.cap,
        slack=dual.slack,
        binding=[layer for layer, value in enumerate([dual.cap, *dual.multipliers]) if value > 0 and dual.moved],
        seconds=config.seconds,
        temperature=trained.temperature if trained else config.temperature if model == "model" else None,
    )
    return Subject(recipe, restored, args, dual.sigma, provenance)


def _config(folder: Path) -> RunConfig:
    """A run's settings; a folder with a classifier of Transformers is refused with a hint."""
    path = folder / CONFIG_FILE
    content = read_json(path)
    if isinstance(content, dict) and "ForSequenceClassification" in str(content.get("architectures")):
        kind = content.get("model_type")
        raise InputError(f"{folder} is not a run but a model of {kind}; judge it by --task classification.")
    return parse(RunConfig, content, str(path), "Give the folder of a run, or train the run again.")


def _of_transformers(folder: Path, task: str, dataset: str | None, data: str | None) -> Subject:
    """A classifier that Transformers' `save_pretrained` wrote."""
    if task != "classification":
        raise InputError(f"task must be classification; got {task!r}.")
    if data is None:
        raise InputError("a model that is not a run has no data of its own; give some by --data.")
    from descend.recipes import PlainClassifier  # needs the extra text

    recipe, trained = PlainClassifier.of(folder, data, dataset), read_trained(folder)
    if trained is not None and trained.shift in SHIFTS and trained.shift != "dropout":
        recipe = replace(recipe, noise=trained.noise, noise_is=trained.noise_is)
    restored = _restored(recipe, folder)
    constraints: dict[str, Any] = {"alpha": PLAIN_ALPHA}
    if trained is not None and trained.is_whole:
        constraints = {name: value for name, value in trained.problem.items() if name in PROBLEM}
    args = DescentConfig(output_dir=str(folder), report_to="none", **constraints)
    note = {"note": _UNTRAINED} if trained is None else {}
    provenance = provenance_of(trained, recipe=task, model=recipe.name_of(restored.model), **note)
    return Subject(recipe, restored, args, None, provenance, trained is not None and trained.is_whole)


def provenance_of(trained: Trained | None, **known: Any) -> Provenance:
    """Where a model comes from that is judged without its run.

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


def _recipe(config: RunConfig) -> Recipe:
    """The recipe of a run; each setting must have its declared type."""
    kind = RECIPES[config.recipe]
    types = get_type_hints(kind)
    for name, value in config.settings.items():
        # An int is accepted as a float, but a bool is not accepted as a number.
        allowed = float | int if types[name] is float else types[name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and types[name] is not bool):
            raise TypeError(f"{name} is {str(value)[:60]}")
    return kind(**config.settings)  # type: ignore[arg-type]


def _others(recipe: Workload, data: str, split: str, restored: Restored) -> tuple[Dataset, str]:
    """All test samples of other data."""
    if split != "test":
        raise InputError(f"other data are judged on their test split; got --split {split}. Leave out --data or --split")
    if data == GENERATED:
        generated = replace(recipe, data=data).load(restored)
        return generated.test, generated.name
    return recipe.load_test(data, restored)


@dataclass(frozen=True)
class _Dual:
    """What `DescentTrainer.save_dual` wrote: λ and slack by layer, the cap's λ, σ_x, and whether λ has moved."""

    multipliers: list[float]
    cap: float
    slack: list[float]
    sigma: float
    moved: bool


def _dual(path: Path, depth: int) -> _Dual:
    """The dual state of a model of this depth."""
    shapes = {"multipliers": (depth,), "cap_multiplier": (), "slack": (depth,), "sigma": ()}
    try:
        tensors = load_file(path)
        for name, shape in shapes.items():
            tensor = tensors[name]
            if tensor.shape != shape or not tensor.is_floating_point() or not tensor.isfinite().all():
                raise ValueError(f"{name} must hold finite numbers of shape {shape}")
        moved = bool(tensors.get("moved", True))  # older files do not say
        values: list[Any] = [*(tensors[name].tolist() for name in shapes), moved]
        return _Dual(*values)
    except Exception as error:  # also those of safetensors and torch about types that they do not know
        raise InputError(f"{path} can't be loaded: {reason(error)}. Train the run again.") from None


def settings_of(every: dict[str, Any], idle: set[str]) -> dict[str, Any]:
    """The settings in which two runs on the same data may differ, without seeds and those that have no effect."""
    alpha = {"alpha", "alpha_decay"}  # the summary has α by layer
    left_out = {"data", "cache_dir", "seed", "data_seed", "disable_tqdm", "dataloader_pin_memory", *alpha, *idle}
    return {name: value for name, value in every.items() if name not in left_out}
