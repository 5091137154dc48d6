"""``descend evaluate``: a run's folder, a saved classifier of Transformers, or a pretrained model as it is."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedConfig

from descend.declared import flag_of
from descend.errors import InputError, refuse
from descend.evaluation.early import exits, latency, speculation
from descend.evaluation.evaluate import Evaluator, Subject, usual_curve
from descend.evaluation.evaluators import (
    decided,
    energies,
    input_metrics,
    on_validation,
    pictures,
)
from descend.evaluation.layers import Batches, embedding_std, few
from descend.evaluation.needed import NO_BEST, Evaluated
from descend.evaluation.probes import fit_exits, fit_probes
from descend.models import LayeredCausalLM, LayeredClassifier, broken, causal, encoders, images
from descend.noise import SHIFTS
from descend.progress import is_quiet
from descend.reading import read_json
from descend.recipes import GENERATED, RECIPES, Data, Recipe
from descend.recipes.base import absolute_or_name, config_of
from descend.results import (
    CERTIFIED_FILE,
    CONFIDENCE,
    CONFIG_FILE,
    ELSEWHERE,
    MODELS,
    RESULTS,
    SUMMARY_FILE,
    CertifiedExit,
    CompareWith,
    Provenance,
    Summary,
    refuse_foreign,
    write_card,
)
from descend.run.describing import evaluated, run_card
from descend.run.loading import of_model, of_run
from descend.run.training import tell
from descend.seeds import Stream, derived
from descend.settings import settings_of
from descend.tasks.text.language import IGNORED
from descend.writing import locked, refuse_link

FITTED = {"text": 2000, "image": 2000, "lm": 256}
"""Training samples that exits are fitted to, by recipe: as many as a CPU reads in a few minutes."""

MEASURED = {"text": 1000, "image": 1000, "lm": 64}
"""Test samples, and at most as many validation samples: what a CPU reads at every layer in a few minutes."""


def results_folder(folder: Path, data: str | None = None, task: str | None = None) -> Path:
    """Where an evaluation writes: the run's folder, or for other data than its own a folder in it.

    Args:
        folder: The run; or with ``task`` a model of Transformers, which names no data.
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
    validation_noise: list[float] | str | None = None,
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
    baseline: Path | None = None,
    compare_with: CompareWith | None = None,
    loaded: Data | None = None,
) -> Summary:
    """Evaluate a run, or a classifier of Transformers, at every layer and noise level.

    Writes ``summary.json``, ``groups.json`` (the metric by group of samples) and, for video, ``frames.npz``, or for
    a classifier ``decisions.json`` in the folder that `results_folder` names.

    Args:
        folder: The run; or with ``task`` a folder that Transformers' `save_pretrained` wrote.
        data: Other data, evaluated on their test split or, without splits, as a whole; by default the run's own.
        noise: Levels γ; by default those of `usual_levels`.
        validation_noise: Levels γ at which validation data are read, on which K is chosen, beside 0 and the training
            level; ``"all"`` for those of ``noise``. A baseline of runs of another training noise needs theirs.
        shift: The kind of noise, one of `SHIFTS`; the verdict is taken under it too, at the training level.
        split: ``test``, ``validation`` or ``train``.
        model: The run's model: ``model`` or ``best_feasible``.
        task: ``classification`` for a classifier that Descend did not train.
        dataset: The kind of such a classifier's data, ``imdb`` or ``mnli``; by default recognized from the files.
        probe: Also fit a linear probe to every layer, on the training split, and evaluate it.
        exit: Also evaluate early exits.
        risk: Certify the exit threshold for this risk, see `descend.evaluation.risk_control`; it is saved with the
            model, where `DescentClassifier` finds it.
        confidence: How sure that bound must be; 0.95 unless given.
        unseen: With ``task`` and ``risk``: you vouch that the model was trained on no sample of ``data``. A run knows
            its own validation split and needs no such word.
        seed: The seed of the noise, the same for runs to be compared.
        frames: How many frames, images or beginnings of texts to keep for the page.
        most: Evaluate on so many samples, taken evenly; by default on all.
        baseline: The run to whose full depth layers are held, evaluated on the same data: the best plain training; by
            default the model's own full depth.
        compare_with: The layer that counts as full depth: the ``last`` one, or the ``best`` on validation data. By
            default the last one, but the best of a model without a baseline whose last layer is not within 2 percent of
            it on validation data.
        loaded: The run's own data, if they are loaded already.

    Raises:
        InputError: If the folder holds no finished run and no classifier, or the data can't be what it is evaluated on,
            or the baseline was evaluated on others.
    """
    refuse(
        (frames < 1, f"frames must be at least 1; got {frames}."),
        (most is not None and most < 2, f"--limit (most) must be at least 2 samples; got {most}."),
        (
            dataset is not None and task is None,
            "--dataset goes with --task; a run knows its own data, and others in their form by --data.",
        ),
        (shift not in SHIFTS, f"shift must be one of {', '.join(SHIFTS)}; got {shift!r}."),
        (risk is not None and not exit, "--risk chooses the threshold of early exits; add --exit."),
        (
            risk is None and confidence is not None,
            "--confidence goes with --risk; add --risk, such as --risk 0.01.",
        ),
        (
            unseen and (task is None or risk is None),
            "--unseen goes with --task and --risk; a run knows its own validation split. Leave it out.",
        ),
        (
            risk is not None and task is not None and not unseen,
            "--risk takes data that the model has not seen, in any split; what a model without its run was trained on "
            "is unknown, and on its training data it loses too few answers. Give data that it has not seen by --data, "
            "and say that it has not by --unseen.",
        ),
        *(
            (
                share is not None and not 0 < share < 1,
                f"--{name} must be a number between 0 and 1, such as 0.01; got {share}.",
            )
            for name, share in (("risk", risk), ("confidence", confidence))
        ),
        (compare_with == "best" and (data is not None or split != "test"), NO_BEST),
        (task not in (None, "classification"), f"task must be classification; got {task!r}."),
        (task is not None and data is None, "a model that is not a run names no data; give them by --data."),
        (
            validation_noise is not None and (data is not None or split != "test"),
            "--validation-noise goes with the run's own test data: with others no validation data are read. Leave it "
            "out.",
        ),
        (
            data is not None and split != "test",
            f"other data are evaluated on their test split; got --split {split}. Leave out --data or --split",
        ),
    )
    confidence = CONFIDENCE if confidence is None else confidence
    place = results_folder(folder, data, task)
    carrier = folder / model if task is None else folder
    for subfolder in {place, carrier} - {folder}:  # a stranger's run may hold one that leads elsewhere
        refuse_link(subfolder)
    written = [place / name for name in RESULTS] + ([carrier / CERTIFIED_FILE] if risk is not None else [])
    refuse_foreign(written, "other data" if data is not None and task is None else "another folder")
    source = None if place == folder else absolute_or_name(str(data))
    before = _earlier(place).get("source") if source else None
    if before not in (None, source):
        raise InputError(
            f"{place} holds the evaluation on {before}, which would be lost. Rename one of the two data folders, or "
            "move the results."
        )
    known = None if baseline is None else Evaluated.read(baseline if place == folder else baseline / place.name)
    saved = of_run(folder, model) if task is None else of_model(folder, "text", str(data), dataset)
    recipe, restored, network = saved.recipe, saved.restored, saved.restored.model
    if names := broken(network):
        tqdm.write(f"WARNING: {carrier} has weights that are NaN or infinite: {names}.", file=sys.stderr)
    classifies = isinstance(network, LayeredClassifier)
    refuse(
        (
            (probe or exit) and not isinstance(network, LayeredClassifier | LayeredCausalLM),
            "only models of text can be probed or left early; leave out --probe and --exit. To stop a denoiser "
            "after layer K: descend denoise --layer K, or descend export --layers K.",
        ),
        (probe and not classifies, "only classifiers can be probed; leave out --probe."),
        (
            risk is not None and not classifies,
            "--risk certifies the exits of classifiers; a language model's drafts are checked by all its layers. "
            "Leave out --risk.",
        ),
        (
            (probe or exit) and split != "test",
            f"--probe and --exit choose on validation data and are evaluated on test; got --split {split}.",
        ),
    )
    run_data = (loaded or recipe.load(restored)) if data is None else None
    splits = cache(lambda: run_data or recipe.load(restored))  # read once, and only if needed
    generated = replace(recipe, data=GENERATED).load(restored) if data == GENERATED else None
    if (parts := run_data or generated) is not None:
        samples, name = getattr(parts, split), parts.name
    else:
        samples, name = recipe.load_test(str(data), restored)
    if most is not None:
        samples = few(samples, most)
    recipe.task().check(samples, network.limits)
    network.to(saved.args.device)
    sigma = embedding_std(network, recipe.task(), splits().train, saved.batches) if saved.sigma is None else saved.sigma
    subject = Subject(
        network,
        recipe.task(),
        samples,
        saved.problem,
        recipe.corruption(sigma, seed, shift),
        noise or usual_levels(recipe, shift),
        saved.provenance.model_copy(update={"source": source} if source else {}),
        name=name,
        split=split,
        shift=shift,
        batches=saved.batches,
        baseline=None if known is None else known.of((name, split, shift, recipe.task().metric)),
        compare_with=compare_with,
    )
    evaluators: list[Evaluator] = [
        input_metrics,
        latency,
        energies,
        partial(pictures, count=frames),
        partial(decided, tokenizer=restored.tokenizer, count=frames),
    ]
    if probe and isinstance(network, LayeredClassifier):
        # Its own draws: those of the evaluated samples belong to their numbers too.
        fresh = subject.noise.at(subject.noise.level, seed=derived(Stream.PROBES, seed))
        probed = fit_probes(network, subject.task, splits().train, splits().validation, fresh, saved.batches)
        subject = replace(subject, probed=probed)
    if exit and classifies:
        evaluators.append(partial(exits, validation=splits().validation, risk=risk, confidence=confidence))
    elif exit:
        evaluators.append(partial(speculation, ignored=IGNORED))
    if run_data is not None and split == "test":
        evaluators.append(on_validation(subject, run_data.validation, most=most, noise=validation_noise))
    summary = evaluated(subject, evaluators, place)
    if summary.exit is not None and (bound := summary.exit.guarantee) is not None:
        certified = CertifiedExit(**bound.model_dump(include=set(CertifiedExit.model_fields)))
        certified.write(carrier / CERTIFIED_FILE)
    if task is None and place == folder:
        write_card(folder / model, run_card(folder, network.saved, checkpoint=model))
    return summary


def _earlier(folder: Path) -> dict[str, Any]:
    """What a folder's summary holds; nothing without one.

    Raises:
        InputError: If it is none of a run.
    """
    path = folder / SUMMARY_FILE
    content = read_json(path) if path.is_file() else {}
    refuse((not isinstance(content, dict), f"{path} is no summary of a run. Move it, or choose another folder."))
    return dict(content)


def usual_levels(recipe: Recipe, shift: str = "gaussian") -> list[float]:
    """Eight levels γ from 0 to 3.5 times the training noise, or to 0.7 for token dropout; after clean training 0 alone.

    A kind of noise that was asked for has eight levels in any case.
    """
    if shift == "gaussian":
        return usual_curve(recipe.noise)
    return usual_curve(0.2 if shift == "dropout" else recipe.noise or settings_of(type(recipe))["noise"].default or 1.0)


def frozen_folder(model: str) -> Path:
    """Where the results are written by default: in the working directory, by the name of the model or of its run."""
    path = Path(os.path.abspath(model))
    if path.name in MODELS and (path.parent / CONFIG_FILE).is_file():
        path = path.parent if path.name == MODELS[0] else path.parent.with_name(f"{path.parent.name}-{path.name}")
    return Path(f"{path.name}-layers")


def evaluate_frozen(
    model: str,
    data: str,
    out: Path,
    settings: Mapping[str, Any],
    most: int | None = None,
    compare_with: CompareWith | None = None,
) -> Summary:
    """Fit own exits to a pretrained model that stays as it is, and say how many of its layers suffice.

    Every layer of a text or image model, the last one too, gets a logistic regression on training samples; a language
    model's layers are turned into its last one's by least squares. Layers are held to the model's own full depth, on
    clean test samples.

    Args:
        model: Its folder, or its name on the Hub: an encoder, a vision transformer or a causal language model.
        data: As ``descend train text``, ``image`` and ``lm`` take them.
        out: Where ``summary.json`` and ``groups.json`` are written.
        settings: Of that recipe, such as ``max_length``.
        most: Measure so many test samples; by default `MEASURED`.
        compare_with: The layer that counts as full depth, by default the ``best`` on validation data: the last one of a
            model that was trained for something else has no special standing.

    Raises:
        InputError: If the model is of another kind or the data do not fit it, or ``out`` holds a foreign file, a run
            or results of another model or of other data.
    """
    refuse_foreign([out / name for name in RESULTS], "another folder by --out")
    run = Path(model) / MODELS[0]
    refuse(
        ((run / CONFIG_FILE).is_file(), f"expected a model, and {model} is the folder of a run; give {run}."),
        (
            (out / CONFIG_FILE).exists() or (out / MODELS[0]).exists(),
            f"{out} holds a run or a model, whose evaluation would be lost. Choose another folder by --out.",
        ),
    )
    name = _recipe_of(config_of(model), model)
    refuse(
        (most is not None and most < 2, f"--limit (most) must be at least 2 samples; got {most}."),
        *(
            (
                each not in settings_of(RECIPES[name].settings),
                f"{flag_of(each)} is none of descend train {name}, by which {model} is read. Leave it out.",
            )
            for each in settings
        ),
    )
    kind: Any = RECIPES[name].kind
    if name == "text":
        from descend.recipes.text import LinearlyReadRecipe  # needs the extra `text`

        kind = LinearlyReadRecipe
    recipe: Any = kind(model=model, data=data, **settings).completed()
    known: dict[str, Any] = {"settings": {"model": recipe.model, **settings}, "source": recipe.data}
    before = _earlier(out) or known
    if any(before.get(name) != value for name, value in known.items()):
        raise InputError(
            f"{out} holds results that are not those of {model} on these data in this form, and would be lost. Choose "
            "another folder by --out."
        )
    parts, task = recipe.load(), recipe.task()
    tell(recipe, parts, quiet=is_quiet())
    network: Any = recipe.network(parts)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network.to(device).eval()
    batches = Batches(16, device, recipe.collate(parts.tokenizer))
    for part in (parts.train, parts.validation, parts.test):
        task.check(part, network.limits)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        validation = few(parts.validation, min(most or MEASURED[name], MEASURED[name]))
        fit_exits(network, task, few(parts.train, FITTED[name]), validation, batches)
        how = "by least squares to the last layer's states" if name == "lm" else "by logistic regression"
        subject = Subject(
            network,
            task,
            few(parts.test, most or MEASURED[name]),
            None,
            recipe.corruption(None, 0).at(0.0),
            [0.0],
            Provenance(
                recipe=name,
                method="plain",
                seed=0,
                model=recipe.label,
                note=f"The model was not trained. Each layer's readout was fitted {how}.",
                **known,
            ),
            name=parts.name,
            batches=batches,
            compare_with=compare_with or "best",
        )
        return evaluated(subject, [latency, on_validation(subject, validation)], out)


def _recipe_of(config: PreTrainedConfig, model: str) -> str:
    """The recipe that reads a model's layers."""
    if config.model_type in images.FAMILIES:
        return "image"
    generates = any("CausalLM" in each or "LMHead" in each for each in config.architectures or ())
    if config.model_type in causal.FAMILIES and (generates or config.model_type not in encoders.FAMILIES):
        return "lm"
    if config.model_type in encoders.FAMILIES:
        return "text"
    known = dict.fromkeys([*encoders.FAMILIES, *causal.FAMILIES, *images.FAMILIES])
    raise InputError(
        f"expected an encoder, a vision transformer or a causal language model, of model_type {', '.join(known)}; "
        f"{model} is of {config.model_type!r}. In Python descend.layered reads any model."
    )
