"""A worker of a sweep: it trains and evaluates trials until N of every method are done."""

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, TrialPruned
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from torch import nn
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

from descend import run
from descend.contract import resolve
from descend.errors import InputError, Interrupted, NonFiniteLossError, SaveError
from descend.methods import METHODS
from descend.recipes import configure
from descend.recipes.configuring import Configured
from descend.results import Summary, locked
from descend.results.ownership import DATABASE_FILE, FRAMES_FILE, PAGE_FILE, refuse_foreign, remove
from descend.results.sweeps import SWEEP_FILE, Searched, SweepFile
from descend.settings import options
from descend.sweep.results import tell, write
from descend.sweep.space import Ranges, described, draw, recipe_values, space
from descend.sweep.storage import LOST, Search, TooMany, database_url, lost, open_storage, searches
from descend.training import steps_of_epoch

SPLIT = "validation"
TRIALS = "trials"
"""The name of the folder that holds the trials' run folders."""

GLANCED = 64
"""Validation samples on which the pruner compares running trials."""

POLL = 2.0
"""Seconds to wait before asking again whether other workers' trials have ended."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


def sweep(
    out: Path,
    recipe: str,
    given: Mapping[str, Any],
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
        recipe: The recipe's name.
        given: The user's settings; they hold for all trials and are not searched.
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
        InputError: If a setting is out of range, every searched setting is given, or the storage can't be
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
        worker = _Worker(out, recipe, given, methods, trials, seeds)
        worker.prepare(storage, ranges or {}, levels)
        try:
            worker.carry_out()
            return worker.write()
        except LOST as error:
            raise lost(error) from None


class _Worker:
    def __init__(self, out: Path, name: str, given: Mapping[str, Any], methods: Sequence[str], trials: int, seeds: int):
        self.out, self.name, self.given, self.methods = out, name, given, methods
        self.trials, self.seeds = trials, seeds
        self._number: int | None = None  # the running trial's number

    def prepare(self, storage: str | None, ranges: Ranges, levels: Sequence[float] | None) -> None:
        """Check all settings, load the data and open the studies."""
        self._bases = {method: self._configured(method, {}, self.out / TRIALS) for method in self.methods}
        spaces = {method: space(base.arguments, self.given, ranges) for method, base in self._bases.items()}
        for method, (_, recipe, args) in self._bases.items():
            self.recipe = recipe.completed()
            self.recipe.check_arguments(args)
            if not spaces[method]:
                raise InputError(f"nothing is left to search for {method}: flags set every searched setting.")
        for name in ranges.keys() - set().union(*spaces.values()):
            why = "a flag sets it too" if name in self.given else "no searched method has it"
            raise InputError(f"--range {name} has no effect: {why}. Leave it out.")
        self.levels = run.usual_levels(self.recipe) if levels is None else list(levels)
        self.task = self.recipe.task()
        files = [self.out / name for name in (SWEEP_FILE, DATABASE_FILE, PAGE_FILE)]
        refuse_foreign(files, "another folder with --out")
        self.data = self.recipe.load()  # raises on unusable data before the folder is created
        self.out.mkdir(parents=True, exist_ok=True)
        self._storage = open_storage(storage or database_url(self.out / DATABASE_FILE))
        self.searches = [self._search(method, searched) for method, searched in spaces.items()]
        if (self.out / SWEEP_FILE).exists() and not any(search.ran for search in self._all()):
            raise InputError(
                f"{self.out / SWEEP_FILE} belongs to a sweep that the storage does not hold, and would be written "
                "over; choose another folder with --out, or the storage of that sweep."
            )

    def _configured(self, method: str, chosen: Mapping[str, Any], folder: Path) -> Configured:
        """The recipe and its arguments for a trial: settings that another of the methods alone uses are left out."""
        others = set().union(*(METHODS.get(each, set()) for each in self.methods if each != method))
        settings = {key: value for key, value in self.given.items() if key not in others}
        return configure(self.name, **{**settings, **chosen, "method": method, "output_dir": str(folder)})

    def _search(self, method: str, searched: Mapping[str, Searched]) -> Search:
        args = self._bases[method].arguments
        facts = {"recipe": self.name, "seeds": self.seeds, "levels": self.levels, "searched": described(searched)}
        search = Search.open(
            self._storage,
            method,
            searched,
            trials=self.trials,
            seed=args.seed,
            maximize=self.task.higher_is_better,
            settings={**asdict(self.recipe), **run.stored(args), **facts},
            initial=recipe_values(args, searched),
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
            else:
                if not waits:
                    tqdm.write("waiting for other workers' trials …")
                time.sleep(POLL)
            waits = not free

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
            history = RetryHeartbeatStaleTrialCallback.retry_history
            if not any(self._number in history(trial) for trial in search.study.get_trials(deepcopy=False)):
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
        chosen = draw(trial, search.space)
        begun = RetryHeartbeatStaleTrialCallback.retried_trial_number(search.study.trials[trial.number])
        name = f"{search.method}-{trial.number if begun is None else begun:03d}"
        trial.set_user_attr("folder", f"{TRIALS}/{name}")
        args = self._bases[search.method].arguments

        def glance(model: nn.Module) -> float:
            network, _ = resolve(model, self.task, None)
            common: Any = {"data": self.data, "args": args, "most": GLANCED, "levels": self.levels}
            return run.mean_metric(self.recipe, network, **common)

        worst = -math.inf if self.task.higher_is_better else math.inf
        summaries = []
        try:
            for seed in range(args.seed, args.seed + self.seeds):
                first = seed == args.seed
                folder = self.out / TRIALS / (name if first else f"{name}-seed{seed}")
                settings = chosen if first else {**chosen, "seed": seed}
                callbacks = [_Pruning(trial, glance)] if first else []
                summaries.append(self._evaluated(search.method, settings, folder, callbacks))
        except NonFiniteLossError as error:
            trial.set_user_attr("diverged", str(error))
            return worst
        values = [summary.mean for summary in summaries]
        known = {
            "values": values,
            "feasible": all(summary.feasible for summary in summaries) if summaries[0].asked else None,
            "seconds": sum(summary.seconds or 0.0 for summary in summaries),
            "noise": summaries[0].noise,
        }
        for name, value in known.items():
            trial.set_user_attr(name, value)
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else worst

    def _evaluated(
        self, method: str, chosen: Mapping[str, Any], folder: Path, callbacks: Sequence[TrainerCallback]
    ) -> Summary:
        """Train and evaluate a trial with one seed, or finish what an earlier worker began."""
        name, _, args = self._configured(method, chosen, folder)  # the recipe is the same for all trials
        if not run.finished(folder):
            resume = folder.is_dir()
            run.train(name, self.recipe, args, resume=resume, callbacks=callbacks, loaded=self.data)
        with locked(folder):
            return run.evaluate(folder, split=SPLIT, noise=self.levels, frames=1, loaded=self.data)

    def _tidy(self, search: Search) -> None:
        """Delete the models, checkpoints and frames of all completed trials but the best one's models."""
        over = search.ended()
        best = search.best  # read last, so that a trial that ends in between is not in `over`
        for trial in over:
            folder = self.out / str(trial.user_attrs.get("folder"))
            keep = {"model", "best_feasible"} if best is not None and trial.number == best.number else set()
            for path in (*folder.glob("*"), *folder.parent.glob(f"{folder.name}-seed*/*")):
                if (path.is_dir() and path.name not in keep) or path.name == FRAMES_FILE:
                    remove(path)  # another worker may do so at the same time

    def write(self) -> SweepFile:
        """Write ``sweep.json``."""
        # A number of steps may be a share, so it is parsed as a float: written as it was typed, 1 and not 1.0.
        whole = {name: int(each) for name, each in self.given.items() if isinstance(each, float) and each.is_integer()}
        facts = {
            "recipe": self.name,
            "model": self.recipe.label,
            "metric": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "split": SPLIT,
            "levels": self.levels,
            "given": options({**self.given, **whole}),
            "trials": self.trials,
            "seeds": self.seeds,
        }
        return write(self.out, facts, self._all())

    def _all(self) -> list[Search]:
        """The searches of this call, and those of other methods in the storage."""
        now = {search.method: search for search in self.searches}
        return list((searches(self._storage, self.trials) | now).values())


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
