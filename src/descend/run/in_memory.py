"""Evaluate any model from Python, as ``descend evaluate`` does a run."""

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, default_data_collator
from transformers.trainer_utils import RemoveColumnsCollator, has_length

from descend.contract import refuse_several
from descend.declared import SPLITS
from descend.errors import MissingPackageError, refuse, refusing
from descend.evaluation.layers import Batches
from descend.extras import required
from descend.models import LibraryModel
from descend.noise import GaussianNoise
from descend.objective import Objective
from descend.results import SUMMARY_FILE, TRAINED_KEY, CompareWith, Summary, Trained
from descend.run.describing import stored
from descend.run.loading import dual_entries, provenance_of, settings_of, trained_problem
from descend.run.run import Run
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
    iterations: int | None = None,
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
            of it on validation data, and of a baseline that was not trained and was compared with its best.
        iterations: How often the block of an unrolled network runs, more than its depth L: the summary
            has ``past_losses`` and ``past_metrics`` for the iterations after L. ``descend.layered`` must know what says
            how often, see its ``iterations``. All other results are for the L trained iterations.

    Returns:
        The summary, as in ``summary.json``: ``feasible``, ``verdict``, ``layer_losses``, ``values`` …

    Raises:
        InputError: If the model, the task, the data and the noise do not fit together, there are fewer than two
            samples, or a layer's mean loss is negative.
    """
    run = Run.of(
        model,
        dataset,
        task=task,
        out=out,
        name=name,
        split=split,
        batch_size=batch_size,
        collate=collate,
        validation=validation,
    )
    summary = run.evaluate(
        noise=noise,
        seed=seed,
        baseline=baseline,
        validation_noise=validation_noise,
        compare_with=compare_with,
        iterations=iterations,
    )
    if run.folder is not None:
        draw_page(run.folder)
    return summary


def in_memory(
    model: Any,
    dataset: Any = None,
    *,
    task: Task | None = None,
    out: str | Path | None = None,
    name: str = "held-out data",
    split: str | None = None,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
    validation: Any = None,
) -> dict[str, Any]:
    """What a `Run` has of a model in memory, see `evaluate`: the problem and noise of its training, as far as known."""
    trainer = model if isinstance(model, DescentMixin) else None
    known_data = model.eval_dataset if isinstance(model, Trainer) else None
    single = has_length(known_data) and not isinstance(known_data, dict)
    refuse(
        (
            not isinstance(model, Trainer | nn.Module),
            f"expected a trainer or a model; got {type(model).__name__}.",
        ),
        (
            trainer is not None and task is not None,
            "expected no task: the trainer has one. Leave it out, or give the model without the trainer.",
        ),
        (
            trainer is not None and hasattr(trainer.objective, "reshard"),
            "the parameters are shards of FSDP2, and layers are read from whole ones. Call "
            "trainer.save_pretrained(FOLDER) and evaluate FOLDER in one process; trainer.evaluate(data) gives the "
            "verdict here.",
        ),
        (
            batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1),
            f"batch_size must be a whole number of at least 1; got {batch_size!r}.",
        ),
        (
            split not in (None, *SPLITS),
            f"split must be test, validation or train; got {split!r}.",
        ),
        (
            dataset is None and not single,
            "expected samples that training did not see. "
            + (
                "The trainer has no single eval_dataset of known length: give them."
                if isinstance(model, Trainer)
                else "Give them beside the model."
            ),
        ),
    )
    for kind, samples in (("samples", dataset), ("validation samples", validation)):
        refuse_several(kind, samples)
        refuse(
            (
                samples is not None and not has_length(samples),
                f"expected {kind} in a list or in a data set with a length; got {type(samples).__name__}, a stream. "
                "Read it into a list.",
            )
        )
    refuse((validation is not None and not len(validation), "expected validation samples; got none."))
    if dataset is None:
        dataset, split = known_data, split or "validation"
    split = split or "test"
    if isinstance(model, Trainer):
        batch_size = batch_size or model.args.eval_batch_size
    if trainer is None and isinstance(model, Trainer):
        collate, model = collate or model.data_collator, model.model
    objective: Objective = Objective(model, task) if trainer is None else trainer.objective
    folder = Path(out) if out is not None else trainer.args.folder if trainer is not None else None
    if trainer is not None and not trainer.is_world_process_zero():
        folder = None  # the main process writes
    if trainer is not None:
        if validation is None and split == "test" and known_data is not dataset and single:
            validation = known_data
        collate = collate or trainer.evaluation_collator()
        columns = trainer.evaluation_columns
        dataset, validation = (
            columns(each) if hasattr(each, "column_names") else each for each in (dataset, validation)
        )
    collate = collate or _stacked
    reads = objective.sample_fields
    sample = dataset[0] if hasattr(dataset, "__getitem__") and len(dataset) else None
    tokens = isinstance(objective.model, LibraryModel) and isinstance(sample, Mapping) and "input_ids" in sample
    if trainer is None and reads is not None and tokens:
        collate = RemoveColumnsCollator(collate, [*reads, PACKED])
    network = objective.model
    known = Trained.of(getattr(getattr(network.saved, "config", None), TRAINED_KEY, None)) if trainer is None else None
    noise = objective.noise or GaussianNoise(0.0)
    if known is not None and known.shift == noise.kind:
        noise = GaussianNoise(known.noise, noise_is=known.noise_is)
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
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
    return {
        "folder": folder,
        "recipe": None,
        "model": network,
        "tokenizer": None if trainer is None else trainer.tokenizer_to_save,
        "task": objective.task,
        "problem": problem,
        "noise": noise,
        "batches": Batches(batch_size or 16, device, collate),
        "provenance": provenance_of(known, recipe=type(objective.task).__name__, model=label, **more),
        "samples": dataset,
        "name": name,
        "_split": split,
        "shift": noise.kind,
        "validation": validation,
        "trained_by": trainer,
        "objective": objective,
        "shown": SHOWN,
    }


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
