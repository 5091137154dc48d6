"""A worker of a sweep: it trains and evaluates trials until N of every method are done."""

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, TrialPruned
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from torch import nn
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

from descend import run
from descend.contract import resolve
from descend.errors import InputError, Interrupted, NonFiniteLossError, SaveError
from descend.recipes import Recipe
from descend.results import Summary, locked
from descend.results.ownership import DATABASE_FILE, FRAMES_FILE, PAGE_FILE, refuse_foreign, remove
from descend.results.sweeps import SWEEP_FILE, SweepFile
from descend.settings import options
from descend.sweep.results import tell, write
from descend.sweep.space import Ranges, described, draw, recipe_values, space
from descend.sweep.storage import LOST, Search, TooMany, database_url, lost, open_storage, studies
from descend.training import steps_of_epoch
from descend.training.config import DescentConfig

SPLIT = "validation"
TRIALS = "trials"
"""The name of the folder that holds the trials' run folders."""

GLANCED = 64
"""Validation samples on which the pruner compares running trials."""

POLL = 2.0
"""Seconds to wait before asking again whether other workers' trials have ended."""

Build = Callable[[list[str], Path], tuple[str, Recipe, DescentConfig]]
"""Builds a run: (flags of ``descend train`` after the recipe's name, output folder) → (recipe's name, recipe, args)."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


def sweep(
    out: Path,
    build: Build,
    given: list[str],
    *,
    methods: Sequence[str],
    trials: int,
    seeds: int = 1,
    storage: str | None = None,
    ranges: Ranges | None = None,
    levels: Sequence[float] | None = None,
) -> SweepFile:
    """Search the settings of a recipe with the same number of trials for each method.

    Several processes may call this at the same time with the same storage and the same ``out``. A later call resumes
    trials that were killed or interrupted.

    Args:
        out: The sweep's folder: ``sweep.json``, and a run folder in ``trials/`` for every trial.
        build: Builds a recipe and its training arguments from flags.
        given: The user's flags; they hold for all trials and are not searched.
        methods: The methods to search, such as ``erm`` and ``constrained``.
        trials: N, how many trials of each method must finish or be pruned.
        seeds: K, training runs per trial, with consecutive seeds; the trial's value is their mean. Pruning happens in
            the first run only.
        storage: URL of the database; SQLite in ``out`` by default.
        ranges: Setting → (lowest, highest) value to search, in place of the default range.
        levels: Noise levels γ; a trial's value is its mean metric over them. Those of ``descend evaluate`` by default.

    Returns:
        The content of ``sweep.json``.

    Raises:
        InputError: If a setting is out of range, every searched setting is fixed by a flag, or the storage can't be
            used or holds another sweep.
        Interrupted: On Ctrl-C or SIGTERM, or if the storage stops answering. The running trial is saved, and the next
            call resumes it.
    """
    if trials < 1:
        raise InputError(f"--trials must be at least 1, for each method; got {trials}.")
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1; got {seeds}.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "a trial runs in one process; start more workers by the same command, each by itself, not by torchrun."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # Optuna calls heartbeats experimental
        worker = _Worker(out, build, given, methods, trials, seeds, storage, ranges or {}, levels)
        try:
            worker.carry_out()
            return worker.write()
        except LOST as error:
            raise lost(error) from None


class _Worker:
    def __init__(
        self,
        out: Path,
        build: Build,
        given: list[str],
        methods: Sequence[str],
        trials: int,
        seeds: int,
        storage: str | None,
        ranges: Ranges,
        levels: Sequence[float] | None,
    ):
        self.out, self.build, self.given = out, build, given
        self.trials, self.seeds, self._ranges = trials, seeds, ranges
        self._number: int | None = None  # the running trial's number
        fixed = {word.split("=")[0].lstrip("-").replace("-", "_") for word in given if word.startswith("--")}
        self._fixed = fixed
        bases: dict[str, DescentConfig] = {}
        for method in methods:
            self.name, self.recipe, bases[method] = self._built(method, [], out / TRIALS)
            self.recipe = self.recipe.completed()
            bases[method].primal_dual(self.recipe.depth)
            run.check_method(self.recipe, method)
            if not space(bases[method], fixed, ranges):
                raise InputError(f"nothing is left to search for {method}: flags set every searched setting.")
        searched = {name for args in bases.values() for name in space(args, fixed, ranges)}
        for name in ranges.keys() - searched:
            why = "a flag sets it too" if name in fixed else "no searched method has it"
            raise InputError(f"--range {name} has no effect: {why}. Leave it out.")
        self._bases = bases
        self.levels = run.usual_levels(self.recipe) if levels is None else list(levels)
        self.task = self.recipe.task()
        refuse_foreign([out / name for name in (SWEEP_FILE, DATABASE_FILE, PAGE_FILE)], "another folder with --out")
        self.data = self.recipe.load()  # raises on unusable data before the folder is created
        out.mkdir(parents=True, exist_ok=True)
        self._storage: RDBStorage = open_storage(storage or database_url(out / DATABASE_FILE))
        self.searches = [self._search(method) for method in methods]
        if (out / SWEEP_FILE).exists() and not any(search.ran for search in self._all()):
            raise InputError(
                f"{out / SWEEP_FILE} belongs to a sweep that the storage does not hold, and would be written over; "
                "choose another folder with --out, or the storage of that sweep."
            )

    def _built(self, method: str, chosen: list[str], folder: Path) -> tuple[str, Recipe, DescentConfig]:
        return self.build([*self.given, "--method", method, *chosen], folder)

    def _search(self, method: str) -> Search:
        args = self._bases[method]
        distributions = space(args, self._fixed, self._ranges)
        search = Search.open(
            self._storage,
            method,
            distributions,
            trials=self.trials,
            seed=args.seed,
            maximize=self.task.higher_is_better,
            settings={
                **asdict(self.recipe),
                **run.stored(args),
                "recipe": self.name,
                "seeds": self.seeds,
                "levels": self.levels,
                "searched": described(distributions),
            },
            initial=recipe_values(args, distributions),
        )
        if not search.ran and any((self.out / TRIALS).glob(f"{method}-*")):
            raise InputError(
                f"{self.out / TRIALS} holds trials of {method} that the storage does not hold; choose another folder "
                "with --out, or the storage of that sweep."
            )
        return search

    def carry_out(self) -> None:
        """Run trials until N of every method are done; wait for those that other workers run."""
        waits = False
        while True:
            for search in self.searches:
                search.recall()
                self._tidy(search)
            left = [search for search in self.searches if not search.done]
            if not left:
                return
            free = [search for search in left if search.free]
            if free:  # alternate between methods, so that an interrupted sweep has equally many of each
                self._next(min(free, key=lambda search: search.begun))
                waits = False
                continue
            if not waits:
                tqdm.write("waiting for other workers' trials …")
            waits = True
            time.sleep(POLL)

    def _next(self, search: Search) -> None:
        self._number = None
        try:
            search.study.optimize(lambda trial: self._trial(search, trial), n_trials=1, catch=(TooMany,))
        except (KeyboardInterrupt, Interrupted, SaveError):
            if self._number is not None and search.study.trials[self._number].state is TrialState.FAIL:
                search.give_back(self._number)
            raise
        except Exception:
            # If this machine was suspended, another worker may have resumed the trial in the meantime.
            if self._number is None or not _retried(search, self._number):
                raise
            tqdm.write(f"{search.method} {self._number}: another worker has resumed it.")
            return
        if self._number is not None:
            tqdm.write(tell(search, search.study.trials[self._number], self.task.metric))
            self.write()  # so that the results so far can be read

    def _trial(self, search: Search, trial: optuna.Trial) -> float:
        """Run one trial and return its value: the mean metric over noise levels and seeds."""
        search.claim(trial.number)
        self._number = trial.number
        self._storage.record_heartbeat(trial._trial_id)  # now: Optuna's thread sends its first one later
        trial.set_user_attr("worker", f"{os.uname().nodename} {os.getpid()}")
        args = self._bases[search.method]
        chosen = options(draw(trial, search.space))
        begun = RetryHeartbeatStaleTrialCallback.retried_trial_number(search.study.trials[trial.number])
        folder = self.out / TRIALS / f"{search.method}-{trial.number if begun is None else begun:03d}"
        trial.set_user_attr("flags", chosen)
        trial.set_user_attr("folder", f"{TRIALS}/{folder.name}")

        def glance(model: nn.Module) -> float:
            network, _ = resolve(model, self.task, None)
            common: Any = {"data": self.data, "args": args, "most": GLANCED, "levels": self.levels}
            return run.mean_metric(self.recipe, network, **common)

        worst = -math.inf if self.task.higher_is_better else math.inf
        try:
            summaries = [self._judged(search.method, chosen, folder, 0, [_Pruning(trial, glance)])]
            for offset in range(1, self.seeds):
                summaries.append(self._judged(search.method, chosen, folder, offset))
        except NonFiniteLossError as error:
            trial.set_user_attr("diverged", str(error))
            return worst
        values = [summary.mean for summary in summaries]
        trial.set_user_attr("values", values)
        trial.set_user_attr("feasible", all(summary.feasible for summary in summaries))
        trial.set_user_attr("seconds", sum(summary.seconds or 0.0 for summary in summaries))
        trial.set_user_attr("noise", summaries[0].noise)
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else worst

    def _judged(
        self, method: str, chosen: list[str], folder: Path, offset: int, callbacks: Sequence[TrainerCallback] = ()
    ) -> Summary:
        """Train and evaluate a trial with one seed, or finish what an earlier worker began.

        Args:
            method: The method.
            chosen: The flags of the trial's settings.
            folder: The trial's run folder.
            offset: Added to the method's seed; above 0 the run has a folder of its own.
            callbacks: Given to the trainer.
        """
        if offset:
            seed = self._bases[method].seed + offset
            folder, chosen = folder.with_name(f"{folder.name}-seed{seed}"), [*chosen, "--seed", str(seed)]
        name, _, args = self._built(method, chosen, folder)  # the recipe is the same for all trials
        if not run.finished(folder):
            resume = folder.is_dir()
            run.train(name, self.recipe, args, resume=resume, callbacks=callbacks, loaded=self.data)
        with locked(folder):
            return run.evaluate(folder, split=SPLIT, noise=self.levels, frames=1, loaded=self.data)

    def _tidy(self, search: Search) -> None:
        """Delete the models, checkpoints and frames of all completed trials but the best one's models."""
        over = search.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        best = search.best  # read last, so that a trial that ends in between is not in `over`
        for trial in over:
            folder = self.out / str(trial.user_attrs.get("folder"))
            keep = {"model", "best_feasible"} if best is not None and trial.number == best.number else set()
            for path in (*folder.glob("*"), *folder.parent.glob(f"{folder.name}-seed*/*")):
                if (path.is_dir() and path.name not in keep) or path.name == FRAMES_FILE:
                    remove(path)  # another worker may do so at the same time

    def write(self) -> SweepFile:
        """Write ``sweep.json``."""
        facts = {
            "recipe": self.name,
            "model": self.recipe.label,
            "metric": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "split": SPLIT,
            "levels": self.levels,
            "given": self.given,
            "trials": self.trials,
            "seeds": self.seeds,
        }
        return write(self.out, facts, self._all())

    def _all(self) -> list[Search]:
        """The searches of this call, and those of other methods in the storage."""
        searches = {search.method: search for search in self.searches}
        for method, study in studies(self._storage).items():
            searches.setdefault(method, Search(method, study, self.trials, 0, {}))
        return list(searches.values())


class _Pruning(TrainerCallback):
    """Reports a trial's value to Optuna at every evaluation, and prunes a trial that falls behind.

    It prunes neither in the first half of a run, because a good run may learn late, nor before the multipliers of a
    constrained run have moved, nor at the last step, where pruning saves nothing.

    Args:
        trial: The trial.
        glance: Estimates the trial's value from the user's model.
    """

    def __init__(self, trial: optuna.Trial, glance: Callable[[Any], float]):
        self.trial, self.glance = trial, glance
        self.seen: set[int] = set(trial.study.trials[trial.number].intermediate_values)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        if step >= state.max_steps:
            return
        if step not in self.seen:  # a resumed trial has already reported some steps
            self.seen.add(step)
            self.trial.report(self.glance(kwargs["model"]), step)
        epoch = steps_of_epoch(args, state, kwargs["train_dataloader"])
        warmup = args.warmup(state.max_steps, epoch) if args.method == "constrained" else 0
        if step > warmup and 2 * step >= state.max_steps and self.trial.should_prune():
            raise TrialPruned(f"at step {step}")


def _retried(search: Search, number: int) -> bool:
    history = RetryHeartbeatStaleTrialCallback.retry_history
    return any(number in history(trial) for trial in search.study.get_trials(deepcopy=False))
