"""A worker of a sweep: trials, each a run of the one training loop, until as many are done as were asked."""

import math
import os
import shutil
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
from descend.records import locked
from descend.records.schema import Summary
from descend.records.studies import SWEEP_FILE, SweepFile
from descend.sweep.results import tell, write
from descend.sweep.space import Ranges, described, draw, flags, own, space
from descend.sweep.storage import LOST, Search, TooMany, lost, open_storage, studies
from descend.training import steps_of_epoch
from descend.training.config import DescentConfig

SPLIT = "validation"
TRIALS = "trials"
"""The folder of a sweep's runs."""

GLANCED = 64
"""Validation samples on which a trial is compared with others while it runs."""

POLL = 2.0
"""Seconds between two looks at what other workers are at."""

Build = Callable[[list[str], Path], tuple[str, Recipe, Any]]
"""Flags as ``descend train`` takes them after the recipe's name, and a folder → recipe's name, recipe, arguments."""

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
    """Search the settings of a recipe for each method, with as many trials for one as for the other.

    Any number of processes may call this at once with the same storage and the same ``out``; what was killed or
    interrupted is taken up by the next.

    Args:
        out: The sweep's folder: ``sweep.json``, and a run folder in ``trials/`` for every trial.
        build: Turns flags into a recipe and its arguments.
        given: The person's own flags, which hold for all trials and are not searched.
        methods: The methods to search, such as ``erm`` and ``constrained``.
        trials: N, trials of each method that end by themselves or are pruned.
        seeds: K, runs of each trial, from the given seed on; the mean over them is the trial's value. A trial that is
            pruned is so in its first.
        storage: URL of the database; SQLite in ``out`` unless given.
        ranges: Where to search a setting, in place of the usual range: its lowest and its highest value.
        levels: Noise levels γ whose mean a trial is chosen by; those of ``descend evaluate`` unless given.

    Returns:
        What ``sweep.json`` holds.

    Raises:
        InputError: If a setting is wrong, nothing is left to search, or the storage can't be used or holds another
            sweep.
        Interrupted: On Ctrl-C or SIGTERM, or where the storage does not answer any more; what was at work is saved,
            and waits for the next call.
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
        warnings.simplefilter("ignore", ExperimentalWarning)  # of heartbeats, which are what we want
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
        self._number: int | None = None  # of the trial that is being carried out
        fixed = {word.split("=")[0].lstrip("-").replace("-", "_") for word in given if word.startswith("--")}
        self._fixed = fixed
        bases: dict[str, DescentConfig] = {}
        for method in methods:
            self.name, self.recipe, bases[method] = self._built(method, [], out / TRIALS)
            self.recipe = self.recipe.completed()
            bases[method].primal_dual(self.recipe.depth)
            if not space(bases[method], fixed, ranges):
                raise InputError(f"nothing is left to search for {method}: all that is searched is given as a flag.")
        searched = {name for args in bases.values() for name in space(args, fixed, ranges)}
        for name in ranges.keys() - searched:
            why = "it is given as a flag too" if name in fixed else "no method that is searched has it"
            raise InputError(f"--range {name} is of no use: {why}. Leave it out.")
        self._bases = bases
        self.levels = run.usual_levels(self.recipe) if levels is None else list(levels)
        self.task = self.recipe.task()
        self.data = self.recipe.load()  # what can't be used is refused before there is anything in the folder
        out.mkdir(parents=True, exist_ok=True)
        self._storage: RDBStorage = open_storage(storage or f"sqlite:///{out / 'sweep.db'}")
        self.searches = [self._search(method) for method in methods]
        if (out / SWEEP_FILE).exists() and not any(search.ran for search in self._all()):
            raise InputError(
                f"{out / SWEEP_FILE} is of a sweep that the storage does not know of, and would be written over; "
                "choose another folder with --out, or the storage that it is in."
            )

    def _built(self, method: str, chosen: list[str], folder: Path) -> tuple[str, Recipe, Any]:
        return self.build([*self.given, "--method", method, *chosen], folder)

    def _search(self, method: str) -> Search:
        args = self._bases[method]
        found = space(args, self._fixed, self._ranges)
        search = Search.open(
            self._storage,
            method,
            found,
            trials=self.trials,
            seed=args.seed,
            maximize=self.task.higher_is_better,
            settings={
                **asdict(self.recipe),
                **run.stored(args),
                **{"recipe": self.name, "seeds": self.seeds, "levels": self.levels, "searched": described(found)},
            },
            first=own(args, found),
        )
        if not search.ran and any((self.out / TRIALS).glob(f"{method}-*")):
            raise InputError(
                f"{self.out / TRIALS} holds trials of {method} that the storage does not know of; choose another "
                "folder with --out, or the storage that they are in."
            )
        return search

    def carry_out(self) -> None:
        """Carry out trials until there are enough of every method; wait for those that others are at."""
        waits = False
        while True:
            for search in self.searches:
                search.recall()
                self._tidy(search)
            left = [search for search in self.searches if not search.done]
            if not left:
                return
            free = [search for search in left if search.free]
            if free:  # methods in turn, so that at any time they have had as many
                self._next(min(free, key=lambda search: search.begun))
                waits = False
                continue
            if not waits:
                tqdm.write("waiting for trials that other workers are at …")
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
            # A worker that slept for long, with its machine, finds that another one has its trial.
            if self._number is None or not _retried(search, self._number):
                raise
            tqdm.write(f"{search.method} {self._number}: another worker has taken it up.")
            return
        if self._number is not None:
            tqdm.write(tell(search, search.study.trials[self._number], self.task.metric))
            self.write()  # what there is can be looked at

    def _trial(self, search: Search, trial: optuna.Trial) -> float:
        """One trial: its value by the rule."""
        search.claim(trial.number)
        self._number = trial.number
        self._storage.record_heartbeat(trial._trial_id)  # before anything can be told from what it has
        trial.set_user_attr("worker", f"{os.uname().nodename} {os.getpid()}")
        args = self._bases[search.method]
        chosen = flags(draw(trial, search.space))
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
            found = [self._judged(search.method, chosen, folder, 0, [_Pruning(trial, glance)])]
            for place in range(1, self.seeds):
                found.append(self._judged(search.method, chosen, folder, place))
        except NonFiniteLossError as error:
            trial.set_user_attr("diverged", str(error))
            return worst
        values = [summary.mean for summary in found]
        trial.set_user_attr("values", values)
        trial.set_user_attr("feasible", all(summary.feasible for summary in found))
        trial.set_user_attr("seconds", sum(summary.seconds or 0.0 for summary in found))
        trial.set_user_attr("noise", found[0].noise)
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else worst

    def _judged(
        self, method: str, chosen: list[str], folder: Path, place: int, callbacks: Sequence[TrainerCallback] = ()
    ) -> Summary:
        """The summary of a trial's run of one seed: trained and judged, or what is left of that."""
        if place:
            seed = self._bases[method].seed + place
            folder, chosen = folder.with_name(f"{folder.name}-seed{seed}"), [*chosen, "--seed", str(seed)]
        name, _, args = self._built(method, chosen, folder)  # what is searched is no part of the recipe
        if not run.finished(folder):
            resume = folder.is_dir()
            run.train(name, self.recipe, args, resume=resume, callbacks=callbacks, loaded=self.data)
        with locked(folder):
            return run.evaluate(folder, split=SPLIT, noise=self.levels, frames=1, loaded=self.data)

    def _tidy(self, search: Search) -> None:
        """Of trials that are over keep the records, and the model of the best alone."""
        over = search.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        best = search.best  # read after them: one that another worker ends between the two is none of them
        for trial in over:
            folder = self.out / str(trial.user_attrs.get("folder"))
            kept = {"model", "best_feasible"} if best is not None and trial.number == best.number else set()
            for path in (*folder.glob("*"), *folder.parent.glob(f"{folder.name}-seed*/*")):
                if path.is_dir() and path.name not in kept:
                    shutil.rmtree(path, ignore_errors=True)  # another worker may be at it too
                elif path.name == "frames.npz":
                    path.unlink(missing_ok=True)

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
        """The methods that are searched, and those that were before."""
        found = {search.method: search for search in self.searches}
        for method, study in studies(self._storage).items():
            found.setdefault(method, Search(method, study, self.trials, 0, {}))
        return list(found.values())


class _Pruning(TrainerCallback):
    """Tells Optuna at every evaluation what a trial is chosen by, and ends one that is behind most others.

    Not before half of the run, since what ends well may learn late; not before the multipliers of a constrained run
    have moved; and not at its end, where there is nothing to save.

    Args:
        trial: The trial.
        glance: The user's model → about the value that it would be chosen by.
    """

    def __init__(self, trial: optuna.Trial, glance: Callable[[Any], float]):
        self.trial, self.glance = trial, glance
        self.seen: set[int] = set(trial.study.trials[trial.number].intermediate_values)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        if step >= state.max_steps:
            return
        if step not in self.seen:  # a trial that was taken up has some already
            self.seen.add(step)
            self.trial.report(self.glance(kwargs["model"]), step)
        epoch = steps_of_epoch(args, state, kwargs["train_dataloader"])
        warmup = args.warmup(state.max_steps, epoch) if args.method == "constrained" else 0
        if step > warmup and 2 * step >= state.max_steps and self.trial.should_prune():
            raise TrialPruned(f"at step {step}")


def _retried(search: Search, number: int) -> bool:
    history = RetryHeartbeatStaleTrialCallback.retry_history
    return any(number in history(trial) for trial in search.study.get_trials(deepcopy=False))
