"""Evaluate any model from Python, as ``descend evaluate`` does a run."""

import logging
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Trainer, default_data_collator
from transformers.trainer_utils import RemoveColumnsCollator, has_length

from descend.errors import MissingPackageError, refuse, refusing
from descend.evaluation.early import latency
from descend.evaluation.evaluate import Evaluator, Subject, usual_curve
from descend.evaluation.evaluators import decided, input_metrics, on_validation
from descend.evaluation.layers import Batches, embedding_std
from descend.evaluation.needed import NO_BEST, Evaluated
from descend.extras import required
from descend.models import LibraryModel
from descend.noise import GaussianNoise
from descend.objective import Objective
from descend.reading import refuse_file
from descend.results import (
    CARD_FILE,
    RECORDS_FILE,
    RESULTS,
    SUMMARY_FILE,
    TRAINED_KEY,
    CompareWith,
    Summary,
    Trained,
    put,
    refuse_foreign,
)
from descend.run.describing import evaluated, stored
from descend.run.loading import dual_entries, provenance_of, settings_of, trained_problem
from descend.tasks import Task
from descend.training import DescentMixin

PACKED = "seq_lengths"
"""The field of several texts in one row, which TRL's collator reads."""

SHOWN = 10
"""Texts or images whose answers at each layer the page shows."""

logger = logging.getLogger(__name__)


def evaluate(
    model: Trainer | nn.Module,
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
    baseline: str | Path | None = None,
    validation: Any = None,
    validation_noise: Sequence[float] | str | None = None,
    compare_with: CompareWith | None = None,
) -> Summary:
    """Evaluate a model at every layer and noise level: is the loss lower at each layer, and how sure is that?

    A model that Descend trained is held to the constraints of its training, at its noise, as a trainer or its saved
    configuration says; any other model to 1 % less loss at every layer.

    Args:
        model: A `DescentTrainer`, or a model: of Transformers, of this package, or made by `descend.layered`. Of
            Transformers' own `Trainer` the model, batch size and collator are taken.
        dataset: Samples that training did not see. Compare models on the same samples in the same order. A
            `DescentSFTTrainer` takes rows as those it was trained on. Of tokens for a model of Transformers, columns
            that its ``forward`` does not name are left out.
        task: The loss and metric; needed for a model without a trainer, unless it is one of Transformers.
        noise: Levels γ of the robustness curve; by default eight from 0 to 3.5 times the training noise, or 0 alone.
        out: The folder for ``summary.json``, ``groups.json`` and ``report.html``; by default the trainer's folder. A
            model without a trainer writes files only if it is given. ``descend compare`` takes such folders. The page
            needs the extra ``report``; without it a warning says so. Of a classifier ``decisions.json`` holds a few
            images, or with a trainer that has a tokenizer a few texts, and what the layers take them for.
        name: The data set's name.
        split: Which data these are: ``test``, ``validation`` or ``train``.
        seed: Of the noise, the same for models to be compared.
        batch_size: Samples at a time; by default the trainer's, or 16.
        collate: Makes a batch of samples; by default the trainer's, or Transformers' ``default_data_collator``, which
            does not pad: for texts give ``DataCollatorWithPadding(tokenizer)``.
        baseline: The folder of a model that was evaluated on the same samples, to whose full depth layers are held in
            ``layers_needed`` and ``kept``: the best plain training; by default the model's own full depth.
        validation: Other samples than ``dataset``, on at most 1,000 of which K of ``layers_needed`` is chosen. By
            default of ``split="test"`` the trainer's ``eval_dataset`` if it is a single one.
        validation_noise: Levels γ at which those are read beside 0 and the training level; ``"all"`` for those of
            ``noise``. A baseline of models of another training noise needs theirs.
        compare_with: The layer that counts as full depth: ``"last"``, or ``"best"``, the best on the validation data.
            By default the last one, but the best of a model without a baseline whose last layer is not within 2 percent
            of it on validation data.

    Returns:
        The summary, as in ``summary.json``: ``feasible``, ``verdict``, ``layer_losses``, ``values`` …

    Raises:
        InputError: If the model, the task, the data and the noise do not fit together, there are fewer than two
            samples, or a layer's mean loss is negative.
    """
    trainer = model if isinstance(model, DescentMixin) else None
    refuse(
        (
            compare_with not in (None, "last", "best"),
            f"compare_with must be 'last' or 'best'; got {compare_with!r}.",
        ),
        (split not in ("test", "validation", "train"), f"split must be test, validation or train; got {split!r}."),
        (
            not isinstance(model, Trainer | nn.Module),
            f"expected a trainer or a model; got {type(model).__name__}.",
        ),
        (
            trainer is not None and task is not None,
            "expected no task: the trainer has one. Leave it out, or give the model without the trainer.",
        ),
    )
    held_to = None if baseline is None else Evaluated.read(Path(baseline))
    if isinstance(model, Trainer):
        batch_size = batch_size or model.args.eval_batch_size
    if trainer is None and isinstance(model, Trainer):
        collate, model = collate or model.data_collator, model.model  # type: ignore[assignment]
    objective: Objective = Objective(model, task) if trainer is None else trainer.objective  # type: ignore[arg-type]
    folder = Path(out) if out is not None else trainer.args.folder if trainer is not None else None
    copies = trainer is not None and folder is not None and trainer.args.folder.absolute() != folder.absolute()
    if folder is not None:
        refuse_file(folder, "another folder: out=…")
        names = [*RESULTS, *([RECORDS_FILE] if copies else [])]
        refuse_foreign([folder / name for name in names], "another folder: out=…")
    if trainer is not None:
        known = trainer.eval_dataset
        chooses = validation is None and split == "test" and known is not dataset
        if chooses and has_length(known) and not isinstance(known, dict):
            validation = known
        collate = collate or trainer.evaluation_collator()
        columns = trainer.evaluation_columns
        dataset, validation = (
            columns(each) if hasattr(each, "column_names") else each for each in (dataset, validation)
        )
    refuse((compare_with == "best" and validation is None, NO_BEST))
    collate = collate or _stacked
    reads = objective.sample_fields
    sample = dataset[0] if hasattr(dataset, "__getitem__") and len(dataset) else None
    tokens = isinstance(objective.model, LibraryModel) and isinstance(sample, Mapping) and "input_ids" in sample
    if trainer is None and reads is not None and tokens:
        collate = RemoveColumnsCollator(collate, [*reads, PACKED])
    subject = _subject(trainer, objective, dataset, noise, seed, batch_size or 16, collate)
    data = name, split, subject.shift, subject.task.metric
    subject = replace(subject, name=name, split=split, baseline=held_to and held_to.of(data), compare_with=compare_with)
    if trainer is not None and not trainer.is_world_process_zero():
        folder = None  # the main process writes
    evaluators: list[Evaluator] = [input_metrics, latency]
    if validation is not None:
        evaluators.append(on_validation(subject, validation, noise=validation_noise))
    if folder is not None:  # they are for the page alone
        tokenizer = None if trainer is None else trainer.tokenizer_to_save
        evaluators.append(partial(decided, tokenizer=tokenizer, count=SHOWN))
    summary = evaluated(subject, evaluators, folder)
    if folder is not None:
        if trainer is not None:
            records = trainer.args.folder / RECORDS_FILE
            if copies and records.is_file():
                put(folder / RECORDS_FILE, partial(shutil.copyfile, records))  # the page draws multipliers from it
            trainer.summary = summary
            if (trainer.args.folder / CARD_FILE).is_file():
                trainer.create_model_card()
        draw_page(folder)
    return summary


def _subject(
    trainer: DescentMixin | None,
    objective: Objective,
    dataset: Any,
    noise: Sequence[float] | None,
    seed: int,
    batch_size: int,
    collate: Callable[[list[Any]], dict[str, Any]],
) -> Subject:
    """A model in memory with what it is evaluated on: the problem and the noise of its training, as far as known."""
    network = objective.model
    known = Trained.of(getattr(getattr(network.saved, "config", None), TRAINED_KEY, None)) if trainer is None else None
    trained = objective.noise or GaussianNoise(0.0)
    if known is not None and known.shift == trained.kind:
        trained = GaussianNoise(known.noise, noise_is=known.noise_is)
    levels = (
        usual_curve(trained.level)
        if noise is None
        else [GaussianNoise(level).level for level in np.ravel(noise).tolist()]
    )
    noisy = max([*levels, trained.level]) > 0
    objective.check_data({"data": dataset}, collate, noise=noisy)
    refuse(
        (
            len(dataset) < 2,
            f"expected at least 2 samples, without which there is no confidence interval; got {len(dataset)}.",
        ),
        (not levels, "noise must hold at least one level; got none. Leave it out for the usual levels."),
    )
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    batches = Batches(batch_size, device, collate)
    sigma = trainer.sigma if trainer is not None else None
    if sigma is None and noisy:
        sigma = embedding_std(network, objective.task, dataset, batches)
    more: dict[str, Any] = {}
    if trainer is None:
        problem = trained_problem(known, network)
    else:
        args, dual = trainer.args, trainer.dual
        problem = args.problem(network.depth, network.first_layer)
        more = {
            "method": args.method,
            "seed": args.seed,
            "settings": settings_of(stored(args), args.idle),
            "temperature": trainer.temperature,
            "seconds": trainer.seconds if trainer.state.global_step else None,
            "steps": trainer.state.global_step or None,
            **dual_entries(dual.multipliers.tolist(), dual.slack.tolist(), dual.moved, args),
        }
    label = f"{type(network.saved).__name__}-{network.depth}"
    return Subject(
        network,
        objective.task,
        dataset,
        problem,
        trained.at(trained.level, seed=seed, sigma=sigma),
        levels,
        provenance_of(known, recipe=type(objective.task).__name__, model=label, **more),
        shift=trained.kind,
        batches=batches,
    )


def draw_page(folder: Path) -> Path | None:
    """Write ``report.html`` beside a folder's ``summary.json``.

    Args:
        folder: The folder of an evaluated model.

    Returns:
        The page; None if the packages that draw it are not installed, which one warning says.
    """
    try:
        with required("report.html"):
            from descend.report import write_page
    except MissingPackageError:
        logger.warning(
            "%s has the verdict, without a page: report.html needs packages that are not installed. Run: pip install "
            "'descend[report]', then: descend report %s",
            folder / SUMMARY_FILE,
            shlex.quote(str(folder)),
        )
        return None
    return write_page([folder], folder)


def _stacked(samples: list[Any]) -> dict[str, Any]:
    """A batch by Transformers' default collator, which can't pad."""
    with refusing(
        "these samples don't make a batch",
        "Give collate; for texts of different lengths transformers.DataCollatorWithPadding(tokenizer).",
    ):
        return default_data_collator(samples)
