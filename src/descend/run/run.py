"""The one noun: a model with its task, data, constraints and noise, and the results of its evaluation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from descend.declared import GENERATED, SPLITS
from descend.errors import InputError, refuse
from descend.progress import is_quiet
from descend.reading import read_json, refuse_file
from descend.recipes.base import absolute_or_name
from descend.results import (
    CARD_FILE,
    CERTIFIED_FILE,
    ELSEWHERE,
    MODELS,
    RECORDS_FILE,
    RESULTS,
    SUMMARY_FILE,
    CertifiedExit,
    CompareWith,
    Results,
    Summary,
    Verdict,
    put,
    refuse_foreign,
    write_card,
)
from descend.writing import refuse_link

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from descend.core import DescentProblem
    from descend.evaluation.layers import Batches, LayerLosses
    from descend.models import LayeredModel
    from descend.noise import Noise
    from descend.objective import Objective
    from descend.recipes import Data, Recipe
    from descend.report.answer import Answer
    from descend.results import Provenance
    from descend.run.evaluating import Evaluator, FurtherEvaluator
    from descend.tasks import Task
    from descend.training import DescentMixin


class _Loaded:
    """An attribute that the loader of a folder gives with others, all at once, when one is first asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, run: Run | None, owner: type) -> Any:
        if run is None:
            return self
        vars(run).update(run.loaded())
        return vars(run)[self.name]


class Run:
    """A model with all that belongs to it: its task, data, constraints and noise, and the results of its evaluation.

    `read` reads one from a folder, `of` makes one of a model in memory, `frozen` of a pretrained model that stays as it
    is, and `descend.configure` describes one that is to be trained.

    What a folder holds is loaded when it is first asked for: the results alone need neither torch nor the model.

    Attributes:
        folder: Where results are; None for a model in memory that writes nothing.
        model: The model, whose layers can be read.
        tokenizer: Its tokenizer or image processor; None without one.
        task: Its loss and metric.
        problem: The constraints of its training; None if they are unknown: then violations of 1 % less loss at every
            layer are measured, which judge nothing.
        noise: The noise of its training, at its level.
        provenance: Where the model comes from.
        batches: How samples become batches, and the device.
        recipe: The recipe that reads its data; None for a model in memory.
        name: The data set's name.
        shift: The kind of noise that it is evaluated under.
    """

    model: LayeredModel = _Loaded()  # type: ignore[assignment]
    tokenizer: Any = _Loaded()
    task: Task = _Loaded()  # type: ignore[assignment]
    problem: DescentProblem | None = _Loaded()  # type: ignore[assignment]
    noise: Noise = _Loaded()  # type: ignore[assignment]
    batches: Batches = _Loaded()  # type: ignore[assignment]
    provenance: Provenance = _Loaded()  # type: ignore[assignment]
    recipe: Recipe | None = _Loaded()  # type: ignore[assignment]

    shift = "gaussian"
    levels: Sequence[float] = (0.0,)
    """Levels γ of the robustness curve of the evaluation that goes on."""
    _split = SPLITS[0]
    home: Path | None = None
    """The folder of the run or model that `read` was given."""
    checkpoint = MODELS[0]
    """Which of the run's models it is."""
    other: str | None = None
    """Other data than the run's own."""
    alone = False
    """Whether it is a saved model without its run."""
    unseen = False
    """Whether the person vouches that a saved model has not seen the data."""
    validated: LayerLosses | None = None
    """What the layers give on clean validation samples, where that is known."""
    trained_by: DescentMixin | None = None
    """The trainer of a model in memory."""
    objective: Objective | None = None
    """What reads the samples of a model in memory."""
    full_depth: CompareWith | None = None
    """Which layer counts as full depth unless an evaluation says it."""
    shown = 2
    """How many samples an evaluation keeps for the page."""
    arguments: Any = None
    """The training arguments of a run that is not trained yet."""
    given: Sequence[str] = ()
    """Names of the settings that a person gave a run that is not trained yet; its model card shows them."""

    def __init__(self, folder: Path | None = None, load: Callable[[], dict[str, Any]] | None = None, **known: Any):
        refuse(
            (
                load is None and not known,
                "a run is made by Run.read(folder), Run.of(trainer or model, samples), Run.frozen(model, data) or "
                "descend.configure(recipe).",
            )
        )
        self.folder = folder
        self.loaded = cache(load or self._nothing)
        self._read = cache(self._read_data)  # once for this run and its copies
        vars(self).update(known)

    def __repr__(self) -> str:
        return f"<Run of {self.home or self.folder or vars(self).get('name') or 'a model in memory'}>"

    def _nothing(self) -> dict[str, Any]:
        raise InputError(
            "this run is not trained yet, so it has no model, task, data or noise: call run.train()."
            if self.arguments is not None
            else f"{self} does not have what was asked for."
        )

    @classmethod
    def read(
        cls,
        folder: str | Path,
        *,
        model: str = MODELS[0],
        data: str | None = None,
        task: str | None = None,
        dataset: str | None = None,
        unseen: bool = False,
    ) -> Self:
        """A trained run's folder; or with ``task`` and ``data`` a saved model, such as an export.

        Args:
            folder: The run; or with ``task`` a folder that Transformers' `save_pretrained` wrote.
            model: The run's model: ``model`` or ``best_feasible``.
            data: Other data than the run's own; it is evaluated on their test split or, without splits, on all of them.
            task: ``classification`` for a classifier without its run.
            dataset: The kind of such a classifier's data, ``imdb`` or ``mnli``; by default recognized from the files.
            unseen: You vouch that such a classifier was trained on no sample of ``data``, so that they may certify
                its early exits.

        Raises:
            InputError: If the arguments do not go together. What the folder holds is checked when it is loaded.
        """
        refuse(
            (
                dataset is not None and task is None,
                "--dataset goes with --task; a run knows its own data, and others in their form by --data.",
            ),
            (task not in (None, "classification"), f"task must be classification; got {task!r}."),
            (task is not None and data is None, "a model that is not a run names no data; give them by --data."),
            (
                unseen and task is None,
                "--unseen goes with --task and --risk; a run knows its own validation split. Leave it out.",
            ),
            (not isinstance(folder, str | Path), f"expected the path of a run's folder; got {folder!r}."),
        )
        home = Path(folder)

        def load() -> dict[str, Any]:
            from descend.run import loading

            if task is None:
                return loading.of_run(home, model)
            return loading.of_model(home, "text", str(data), dataset)

        place = home if task is not None else results_folder(home, data)
        return cls(place, load, home=home, checkpoint=model, other=data, alone=task is not None, unseen=unseen)

    @classmethod
    def of(
        cls,
        model: Trainer | Any,
        dataset: Any = None,
        *,
        task: Task | None = None,
        out: str | Path | None = None,
        name: str = "held-out data",
        split: str | None = None,
        batch_size: int | None = None,
        collate: Callable[[list[Any]], dict[str, Any]] | None = None,
        validation: Any = None,
    ) -> Self:
        """A model in memory.

        Args:
            model: A trainer or a model, as `descend.evaluate` takes them, and so all others.
            dataset: Samples that training did not see; by default the trainer's ``eval_dataset``.
            task: The loss and metric of a model without a trainer.
            out: The folder of the results; by default the trainer's.
            name: The data set's name.
            split: Which data these are; by default ``test``, of the trainer's ``eval_dataset`` ``validation``.
            batch_size: Samples at a time; by default the trainer's, or 16.
            collate: Makes a batch of samples; by default the trainer's.
            validation: Other samples, on which K is chosen.

        Raises:
            InputError: If the model, the task and the data do not fit together.
        """
        from descend.run.in_memory import in_memory

        return cls(
            **in_memory(
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
        )

    @classmethod
    def frozen(
        cls,
        model: str,
        data: str,
        out: str | Path | None = None,
        *,
        most: int | None = None,
        task: str | None = None,
        **settings: Any,
    ) -> Self:
        """A pretrained model that stays as it is; each layer gets a readout that is fitted when it is first needed.

        Every layer of a text or image model, the last one too, gets a logistic regression on training samples; a
        language model's layers are turned into its last one's by least squares. An embedding model has nothing that
        could be fitted: all its layers are read by what is behind its encoder.

        Args:
            model: Its folder, or its name on the Hub: an encoder, a vision transformer or a causal language model.
            data: As ``descend train text``, ``image``, ``lm`` and ``embed`` take them.
            out: Where results are written; None to write nothing.
            most: Measure so many test samples; by default 1,000, of a language model 64.
            task: ``embed`` for an embedding model; None for what the model's family says.
            **settings: Of that recipe, such as ``max_length``.

        Raises:
            InputError: If the model is of another kind or the data do not fit it, or ``out`` holds a foreign file, a
                run or results of another model or of other data.
        """
        from descend.run.frozen import frozen

        return cls(**frozen(model, data, None if out is None else Path(out), settings, most, task))

    # --- training

    def trainer(self, callbacks: Sequence[TrainerCallback] = ()) -> DescentMixin:
        """The trainer of a run that is not trained yet, see `descend.configure`.

        Args:
            callbacks: Callbacks of the training loop.
        """
        recipe = self._to_train
        return recipe.trainer(self if "model" in vars(self) else recipe.resolve(self.arguments), callbacks)

    def train(self, *, resume: bool = False) -> DescentMixin:
        """Train a run in its folder, as ``descend train`` does; `read` then reads it.

        Args:
            resume: Resume from the folder's newest whole checkpoint, or from the start if it has none.

        Returns:
            The trainer. From here on the run is that of the folder, as `read` gives it.

        Raises:
            InputError: As `descend.run.train`.
        """
        from descend.run.training import train

        trainer = train(self._to_train, self.arguments, self.given, resume=resume)
        trained = self.read(self.arguments.folder)
        vars(self).clear()
        vars(self).update(vars(trained))
        return trainer

    @property
    def _to_train(self) -> Recipe:
        """The recipe of a run that is not trained yet."""
        if self.arguments is None or self.recipe is None:
            raise InputError("expected a run that is to be trained. Describe one by descend.configure.")
        return self.recipe

    # --- data

    @property
    def split(self) -> str:
        """Which data are evaluated, unless an evaluation says it: ``test``, ``validation`` or ``train``."""
        return self._split

    @cached_property
    def data(self) -> Data:
        """The recipe's own data: train, validation and test samples.

        Raises:
            InputError: If it is a model in memory, which has `samples` alone.
        """
        return self._read()

    def _read_data(self) -> Data:
        if self.recipe is None:
            raise InputError("a model in memory has no data for training; what it is evaluated on is run.samples.")
        return self.recipe.load(self.model, self.tokenizer)

    @cached_property
    def samples(self) -> Any:
        """The samples that are evaluated."""
        return self._found[0]

    @cached_property
    def name(self) -> str:
        """The data set's name."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Any, str]:
        """The samples of a run's folder that are evaluated, and the name of their data set."""
        assert self.recipe is not None
        if self.other is None:
            return getattr(self.data, self.split), self.data.name
        if self.other == GENERATED:
            generated = replace(self.recipe, data=GENERATED).load(self.model, self.tokenizer)
            return getattr(generated, self.split), generated.name
        if not self.alone and _is_source(Path(self.other).expanduser(), self.recipe.source):
            own = replace(self.recipe, data=self.other).load(self.model, self.tokenizer)
            return getattr(own, self.split), own.name
        return self.recipe.load_test(self.other, self.model, self.tokenizer)

    @property
    def chooses(self) -> bool:
        """Whether there are validation data on which K is chosen."""
        if self.home is not None:
            return self.other is None and self.split == "test"
        return vars(self).get("validation") is not None

    @cached_property
    def validation(self) -> Any:
        """The samples on which K is chosen; None without any."""
        return self.data.validation if self.chooses else None

    # --- results

    @cached_property
    def results(self) -> Results:
        """The results of the last evaluation.

        Raises:
            InputError: If the run was not evaluated.
        """
        refuse((self.folder is None, "expected a run that was evaluated; this one was not. Call run.evaluate() first."))
        assert self.folder is not None
        found = Results.read(self.folder)
        other = found.summary.checkpoint
        refuse(
            (
                self.of_folder and other != self.checkpoint,
                f"{self.folder} holds the evaluation of {other}, not of {self.checkpoint}. Call run.evaluate() first.",
            )
        )
        return found

    @property
    def evaluated(self) -> Summary | None:
        """The summary of this model's last evaluation; None before one."""
        if "results" not in vars(self) and (self.folder is None or not (self.folder / SUMMARY_FILE).is_file()):
            return None
        with suppress(InputError):  # damaged, or of another of the run's models
            return self.results.summary
        return None

    @property
    def verdict(self) -> Verdict:
        """Whether every constraint holds on unseen data, and how sure that is."""
        return self.results.summary

    @property
    def answer(self) -> Answer:
        """How many layers suffice, the verdict and the multipliers; ``str()`` of its parts are sentences."""
        from descend.report.answer import Answer

        return Answer.of(self.results.summary)

    def page(self, out: str | Path | None = None) -> Path | None:
        """Write the page of the last evaluation.

        Args:
            out: The file or its folder; by default ``report.html`` in the run's folder.

        Returns:
            The page; None on another process than the main one, which writes it.

        Raises:
            InputError: If the run was not evaluated, or has no folder and ``out`` is None.
        """
        from descend.report import write_page

        if self.trained_by is not None and not self.trained_by.is_world_process_zero():
            return None
        place = out or self.folder
        if place is None:
            raise InputError("expected a place for the page; a model in memory has no folder. Give out.")
        return write_page([self.results], Path(place))

    def export(self, layers: int, out: str | Path, format: str | None = None) -> list[str]:
        """Write the first K layers as a model of their own.

        Args:
            layers: K, from 1 to the number of layers.
            out: The folder to write; it must be empty or not exist.
            format: ``transformers``, a checkpoint of it; ``onnx``, a ``model.onnx`` for onnxruntime; or
                ``sentence-transformers``, an embedding model. None for the last one of an embedding model, and a
                checkpoint of all others.

        Returns:
            What was written, in words.

        Raises:
            InputError: If the run is not finished, K is out of range, ``out`` is not empty, or the family can't be cut
                or written this way.
        """
        from descend.run import exporting

        refuse((self.arguments is not None, "this run is not trained yet: call run.train()."))
        return exporting.export(self, layers, Path(out), format)

    def evaluate(
        self,
        evaluators: Iterable[FurtherEvaluator] = (),
        *,
        split: str | None = None,
        noise: Sequence[float] | None = None,
        validation_noise: Sequence[float] | str | None = None,
        shift: str | None = None,
        seed: int = 0,
        most: int | None = None,
        baseline: str | Path | None = None,
        compare_with: CompareWith | None = None,
        frames: int | None = None,
        iterations: int | None = None,
    ) -> Summary:
        """Measure every layer at every noise level, take the verdict, and say how many layers suffice.

        Where the run has a folder, it writes ``summary.json``, ``groups.json`` (the metric by group of samples) and,
        for video, ``frames.npz``, or for a classifier ``decisions.json``.

        Args:
            evaluators: Further ones: `EarlyExits` and `LinearProbes` of `descend.run`.
            split: ``test``, ``validation`` or ``train`` of a run's own data; by default ``test``. Samples in memory are
                of the split that `of` was told.
            noise: Levels γ; by default those of `usual_levels`.
            validation_noise: Levels γ at which validation data are read, on which K is chosen, beside 0 and the
                training level; ``"all"`` for those of ``noise``. A baseline of runs of another training noise needs
                theirs.
            shift: The kind of noise, one of `descend.noise.SHIFTS`; the verdict is taken under it too, at the training
                level. By default that of the training.
            seed: The seed of the noise, the same for runs to be compared.
            most: Evaluate on so many samples, taken evenly; by default on all.
            baseline: The evaluated run to whose full depth layers are held, evaluated on the same data: the best plain
                training; by default the model's own full depth.
            compare_with: The layer that counts as full depth: the ``last`` one, or the ``best`` on validation data. By
                default the last one, but the best of a model as it is, on either side, and of a model without a
                baseline whose last layer is not within 2 percent of it on validation data.
            frames: How many frames, images or beginnings of texts to keep for the page.
            iterations: How often the block of a network with tied weights runs, as in `descend.evaluate`.

        Raises:
            InputError: If the folder holds no finished run and no classifier, or the data can't be what it is evaluated
                on, or the baseline was evaluated on others.
        """
        from descend.evaluation.needed import NO_BEST
        from descend.noise import SHIFTS
        from descend.run.early import latency
        from descend.run.evaluating import FurtherEvaluator, LinearProbes, results_of, settle
        from descend.run.evaluators import decided, energies, input_metrics, on_validation, pictures, state_norms

        refuse(
            (self.arguments is not None, "this run is not trained yet: call run.train()."),
            *(
                (
                    value is not None and (isinstance(value, bool) or not isinstance(value, int)),
                    f"{flag} must be a whole number; got {value!r}.",
                )
                for flag, value in (("frames", frames), ("--limit (most)", most), ("seed", seed))
            ),
            (
                not isinstance(evaluators, Iterable)
                or not all(isinstance(each, FurtherEvaluator) for each in evaluators),
                f"expected a list of further evaluators, such as [EarlyExits()]; got {evaluators!r}.",
            ),
        )
        further, shown = list(evaluators), self.shown if frames is None else frames
        run = copy(self)
        if split is not None and split != self.split:
            run._split = split
            for name in ("samples", "name", "validation", "_found") if self.home is not None else ():
                vars(run).pop(name, None)
        refuse(
            (frames is not None and frames < 1, f"frames must be at least 1; got {frames}."),
            (most is not None and most < 2, f"--limit (most) must be at least 2 samples; got {most}."),
            (shift is not None and shift not in SHIFTS, f"shift must be one of {', '.join(SHIFTS)}; got {shift!r}."),
            (run.split not in SPLITS, f"split must be test, validation or train; got {run.split!r}."),
            (
                self.home is None and run.split != self.split,
                f"these samples are of the split {self.split}; got {split}. Make the run of other samples.",
            ),
            (
                compare_with not in (None, "last", "best"),
                f"compare_with must be 'last' or 'best'; got {compare_with!r}.",
            ),
            (compare_with == "best" and not run.chooses, NO_BEST),
            (
                iterations is not None and any(isinstance(each, LinearProbes) for each in further),
                "--iterations and --probe do not go together: probes are fitted to the L trained iterations. Leave one "
                "out.",
            ),
            (
                validation_noise is not None and not run.chooses,
                "--validation-noise goes with the run's own test data: with others no validation data are read. Leave "
                "it out.",
            ),
            (
                self.other is not None and run.split != "test",
                f"other data are evaluated on their test split; got --split {run.split}. Leave out --data or --split",
            ),
        )
        source = run._claim(certifies=any(getattr(each, "risk", None) is not None for each in further))
        known = None
        if baseline is not None:
            known = Results.with_groups(Path(baseline, run.folder.name) if source and run.folder else Path(baseline))
        for each in further:
            each.check(run)
        if further and run.alone:
            run.samples = run.data.test
            told = "test samples are evaluated; early exits are chosen, and probes fitted, on others of these data"
            if not is_quiet():
                tqdm.write(f"{run.name}: {len(run.samples):,} {told}.", file=sys.stderr)
        settle(run, noise, shift, seed, most, iterations)
        if source is not None:
            run.provenance = run.provenance.model_copy(update={"source": source})
        if known is not None:
            known.of((run.name, run.split, run.shift, run.task.metric))
        usual: list[Evaluator] = [input_metrics, latency, partial(state_norms, iterations=iterations)]
        if self.home is not None:
            usual += [energies, partial(pictures, count=shown)]
        if run.folder is not None and shown:
            usual.append(partial(decided, count=shown))
        if run.chooses:
            usual.append(on_validation(run, run.validation, most=most, noise=validation_noise, baseline=known))
        self.results = results_of(
            run,
            [*usual, *further],
            baseline=known,
            compare_with=compare_with,
            full_depth=self.full_depth,
            iterations=iterations,
        )
        if run.folder is not None:
            run._finish(self.results.summary)
        return self.results.summary

    def _claim(self, *, certifies: bool) -> str | None:
        """Refuse places that hold what an evaluation would write over; the place of other data than the run's own."""
        if self.folder is None:
            return None
        if self.home is None:
            refuse_file(self.folder, "another folder: out=…")
            names = [*RESULTS, *([RECORDS_FILE] if self._moves else [])]
            refuse_foreign([self.folder / name for name in names], "another folder: out=…")
            return None
        for subfolder in {self.folder, self.model_folder} - {self.home}:
            refuse_link(subfolder)  # a stranger's run may hold one that leads elsewhere
        written = [self.folder / name for name in RESULTS] + ([self.model_folder / CERTIFIED_FILE] if certifies else [])
        refuse_foreign(written, "other data" if self.folder != self.home else "another folder")
        if self.folder == self.home:
            return None
        source = absolute_or_name(str(self.other))
        before = earlier(self.folder).get("source")
        if before not in (None, source):
            raise InputError(
                f"{self.folder} holds the evaluation on {before}, which would be lost. Rename one of the two data "
                "folders, or move the results."
            )
        return source

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return self.model.depth if self.recipe is None or self.of_folder else self.recipe.depth

    @property
    def of_folder(self) -> bool:
        """Whether it is a run's folder: no saved model alone, and none in memory."""
        return self.home is not None and not self.alone

    @property
    def model_folder(self) -> Path:
        """The folder of a saved model itself."""
        if self.home is None:
            raise InputError("a model in memory has no folder of its own.")
        return self.home if self.alone else self.home / self.checkpoint

    @property
    def _moves(self) -> bool:
        """Whether results go elsewhere than into the trainer's own folder."""
        own = None if self.trained_by is None else self.trained_by.args.folder.absolute()
        return own is not None and self.folder is not None and own != self.folder.absolute()

    def _finish(self, summary: Summary) -> None:
        """Write what an evaluation changes beside its own files: a certified exit, a model's card, a trainer's."""
        assert self.folder is not None
        if self.home is not None and summary.exit is not None and (bound := summary.exit.guarantee) is not None:
            certified = CertifiedExit(**bound.model_dump(include=set(CertifiedExit.model_fields)))
            certified.write(self.model_folder / CERTIFIED_FILE)
        if self.home == self.folder and not self.alone:
            from descend.run.describing import run_card

            write_card(self.model_folder, run_card(self.home, self.model.saved, checkpoint=self.checkpoint))
        if self.trained_by is not None:
            records = self.trained_by.args.folder / RECORDS_FILE
            if self._moves and records.is_file():
                put(self.folder / RECORDS_FILE, partial(copyfile, records))  # the page draws multipliers from it
            self.trained_by.summary = summary
            if (self.trained_by.args.folder / CARD_FILE).is_file():
                self.trained_by.create_model_card()


def results_folder(folder: Path, data: str | None = None) -> Path:
    """Where an evaluation of a run writes: the run's folder, or for other data than its own a folder in it."""
    if data is None:
        return folder
    return folder / f"{ELSEWHERE}{Path(os.path.abspath(Path(data).expanduser())).name}"


def earlier(folder: Path) -> dict[str, Any]:
    """What a folder's summary holds; nothing without one.

    Raises:
        InputError: If it is none of a run.
    """
    path = folder / SUMMARY_FILE
    content = read_json(path) if path.is_file() else {}
    refuse((not isinstance(content, dict), f"{path} is no summary of a run. Move it, or choose another folder."))
    return dict(content)


def _is_source(data: Path, source: str | None) -> bool:
    """Whether data are those that a run was trained on, or seem so, because those are gone and had the same name."""
    if source is None:
        return False
    known = Path(source).expanduser()
    return known.resolve() == data.resolve() or (known.name == data.name and not known.exists())
