"""A worker of a sweep: it trains and evaluates trials until N of every method are done."""

import json
import math
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL, exc, make_url
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

from descend import run
from descend.declared import options
from descend.errors import InputError, Interrupted, NonFiniteLossError, SaveError, reason, refuse, refusing
from descend.methods import CLASSES
from descend.reading import is_inside
from descend.recipes.configuring import configure
from descend.results import (
    CONFIG_FILE,
    DATABASE_FILE,
    FRAMES_FILE,
    MODELS,
    PAGE_FILE,
    SUMMARY_FILE,
    SWEEP_FILE,
    Summary,
    SweepFile,
    forget_models,
    refuse_foreign,
    remove,
)
from descend.run.training import planned_steps
from descend.seeds import Stream, derived
from descend.settings import settings_of_others
from descend.sweep.space import EQUAL, RULE, TRIALS, Ranges, draw, folder_of, line, recipe_values, searched_by, space
from descend.writing import locked, refuse_link

SPLIT = "validation"
"""The split that trials are chosen on."""

POLL, HEARTBEAT, GRACE, RETRIES = 2, 15, 90, 3
"""Seconds before a waiting worker looks again; between two heartbeats of a trial; without one after which its worker
counts as killed. And how often a trial is resumed after its worker was killed, before another trial replaces
it. A trial that a person interrupted is always resumed."""

PRUNER = optuna.pruners.PercentilePruner(75.0, n_startup_trials=5)
"""Once five trials have finished, a trial is pruned if three quarters of the finished ones were better. Finished trials
are the good ones, so a pruner at their median would stop trials that win later."""

PREFIX, SETTINGS, GIVEN = "descend ", "settings", "given"
"""How a study's name begins, before its method; its attributes with the settings that all its trials share, and with
the flags that a person gave."""

LOST_BEFORE = "lost"
"""The attribute of a trial that says how often its worker was killed."""

ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
BEGUN = (*ENDED, TrialState.RUNNING, TrialState.WAITING)

TABLES = {"studies", "version_info", "alembic_version"}
"""Tables of Optuna's databases."""

LOST = (exc.SQLAlchemyError, optuna.exceptions.StorageInternalError)
"""The exceptions of a database that does not answer."""


def sweep(
    out: Path,
    recipe: str,
    given: Mapping[str, Any],
    *,
    methods: Sequence[str],
    trials: int,
    seeds: int = 1,
    storage: str | None = None,
    ranges: Ranges,
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
    refuse(
        (
            given.get("after") is not None,
            "a sweep compares the last layer's metric, and --after trains for another layer's; leave it out.",
        ),
        (trials < 1, f"--trials must be at least 1, for each method; got {trials}."),
        (seeds < 1, f"--seeds must be at least 1; got {seeds}."),
        (
            int(os.environ.get("WORLD_SIZE", "1")) > 1,
            "a trial runs in one process; start more workers by the same command, each by itself, not by torchrun.",
        ),
    )
    worker = _Worker(out, recipe, given, methods, trials, seeds, ranges, levels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"optuna|descend\.sweep")  # Optuna calls heartbeats experimental
        try:
            worker.open(storage or URL.create("sqlite", database=str(out / DATABASE_FILE)).render_as_string())
            worker.carry_out()
            return worker.write()
        except LOST as error:
            raise Interrupted(
                f"the storage does not answer: {_message(error)}. The next call resumes the interrupted trial."
            ) from None


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """Open the database at a URL, and create its tables if there are none.

    Raises:
        InputError: If the URL is malformed, the driver is missing, or the database can't be opened.
    """
    sqlite = url.startswith("sqlite")
    try:
        if sqlite:
            database = make_url(url).database
            if database in (None, "", ":memory:"):
                raise exc.ArgumentError("a database in memory ends with the process")
            _refuse_foreign(Path(str(database)))
        return optuna.storages.RDBStorage(
            url,
            # SQLite has one writer at a time; the others wait for milliseconds.
            engine_kwargs={"connect_args": {"timeout": 60}} if sqlite else {"pool_pre_ping": True},
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=_retry_lost,
        )
    except (ImportError, ValueError, *LOST) as error:  # ValueError: the port is not a number
        shown = re.sub(r"(?s)^((?>(?:.*?://)?)[^:]*):.*@", r"\1:***@", url)  # without the password
        raise InputError(
            f"{shown} can't be opened: {_message(error)}. --storage must be the URL of a database, as "
            "sqlite:///sweep.db or postgresql://user@host/name, whose driver is installed, as by pip install "
            "'psycopg[binary]'."
        ) from None


def _refuse_foreign(database: Path) -> None:
    """Refuse an SQLite file that holds something else than Optuna's studies, before it gets their tables.

    Raises:
        InputError: If it does, or is a link or no such file.
    """
    refuse_link(database)
    if not database.exists():
        return
    with refusing(f"{database} is no database of SQLite", "Choose another place."):
        uri = f"{database.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    refuse((bool(names) and not names & TABLES, f"{database} holds other tables than a sweep's. Choose another place."))


def _message(error: BaseException) -> str:
    """The database driver's own message, without the SQL statement that SQLAlchemy adds."""
    return reason(error.__cause__ or error).rstrip(".")


def _retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Enqueue an interrupted trial again, for any worker."""
    optuna.storages.RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)(study, trial)


def _retry_lost(study: optuna.Study, trial: FrozenTrial) -> None:
    """The same for a trial whose worker was killed, but at most `RETRIES` times: the trial may be what killed it."""
    lost = trial.user_attrs.get(LOST_BEFORE, 0)
    if lost < RETRIES:
        trial.set_user_attr(LOST_BEFORE, lost + 1)
        _retry(study, trial)


def _recall(study: optuna.Study) -> None:
    """Enqueue trials again whose workers no longer send heartbeats."""
    optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        # Optuna ignores a trial that was killed before its first heartbeat.
        age = time.time() - (trial.datetime_start or datetime.now()).timestamp()
        if trial.user_attrs.get("begun") != trial.number and age > GRACE:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _note(trial: optuna.Trial, **facts: Any) -> None:
    for name, value in facts.items():
        trial.set_user_attr(name, value)


def _count(study: optuna.Study, *states: TrialState) -> int:
    return len(study.get_trials(deepcopy=False, states=states))


def _written(given: Mapping[str, Any]) -> list[str]:
    """Given settings as flags. A number of steps may be a share and is parsed as a float: written as 1 and not 1.0."""
    whole = {key: int(value) for key, value in given.items() if isinstance(value, float) and value.is_integer()}
    return options({**given, **whole})


class _TooMany(Exception):
    """Several workers asked for a trial at the same time, and this one exceeds the number of trials."""


class _Worker:
    def __init__(
        self,
        out: Path,
        name: str,
        given: Mapping[str, Any],
        methods: Sequence[str],
        trials: int,
        seeds: int,
        ranges: Ranges,
        levels: Sequence[float] | None,
    ):
        """Check all settings, and load the data."""
        self.out, self.name, self.given, self.methods = out, name, given, methods
        configured = {method: self._configured(method, {}, out / TRIALS) for method in methods}
        self._arguments = {method: each.arguments for method, each in configured.items()}
        self._spaces = {method: space(args, given, ranges) for method, args in self._arguments.items()}
        # The paper's preset may change the network by the method; data and task are the same for all.
        self._recipes = {method: each.recipe.completed() for method, each in configured.items() if each.recipe}
        recipe = self._recipes[methods[0]]
        empty = [method for method, searched in self._spaces.items() if not searched]
        unused = ranges.keys() - set().union(*self._spaces.values())
        fixed, strange = ", ".join(unused & given.keys()), ", ".join(unused - given.keys())
        refuse(
            (bool(empty), f"nothing is left to search for {', '.join(empty)}: flags set every searched setting."),
            (bool(fixed), f"--range {fixed} has no effect: a flag sets it too. Leave it out."),
            (bool(strange), f"--range {strange} has no effect: no searched method has it. Leave it out."),
        )
        task, levels = recipe.task(), run.usual_levels(recipe) if levels is None else list(levels)
        self.file = SweepFile(
            descend=version("descend"),
            recipe=name,
            model=recipe.label,
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            split=SPLIT,
            levels=levels,
            given=_written(given),
            trials=trials,
            seeds=seeds,
            rule=RULE.format(
                better="highest" if task.higher_is_better else "lowest",
                metric=task.metric,
                levels=", ".join(f"{level:g}" for level in levels),
                seeds=f" and over {seeds} seeds" if seeds > 1 else "",
            ),
            methods={},
        )
        refuse_foreign([out / each for each in (SWEEP_FILE, PAGE_FILE)], "another folder with --out")
        if not (out / SWEEP_FILE).exists():  # beside which a comparison of its trials may lie
            of_a_run = [name for name in (CONFIG_FILE, SUMMARY_FILE) if (out / name).exists()]
            told = f"{out} holds a run or its results ({', '.join(of_a_run)}). Choose another folder with --out."
            refuse((bool(of_a_run), told))
        # What no trial could begin with is refused before the folder is created: data, methods and constraints.
        self.data = recipe.load()
        model = recipe.network(self.data)
        for method, args in self._arguments.items():
            if self._recipes[method] != recipe:
                recipe = self._recipes[method]
                model = recipe.network(self.data)
            CLASSES[method].check(task, model)
            args.problem(model.depth, model.first_layer)
            if not getattr(args, "packing", False):  # TRL packs rows, which a trial alone does
                args.warmup(*planned_steps(args, len(self.data.train)))  # type: ignore[arg-type]

    def _configured(self, method: str, chosen: Mapping[str, Any], folder: Path) -> run.Run:
        """The recipe and its arguments for a trial."""
        return configure(self.name, **{**self._given_to(method), **chosen, "method": method, "output_dir": str(folder)})

    def _given_to(self, method: str) -> dict[str, Any]:
        """The given settings without those that another of the methods alone uses."""
        others = settings_of_others(method) - settings_of_others(*self.methods)
        return {key: value for key, value in self.given.items() if key not in others}

    def open(self, url: str) -> None:
        """Open the storage, and a study of each method."""
        self.out.mkdir(parents=True, exist_ok=True)
        with locked(self.out, wait=True):  # so that one worker makes the tables and the studies
            self._storage = open_storage(url)
            for method in self.methods:
                self._open_study(method)

    def _open_study(self, method: str) -> None:
        """Create a method's study, unless there is one; refuse a storage or a folder of another sweep."""
        args, searched, known = self._arguments[method], self._spaces[method], self._studies()
        kinds = {name: kind.model_dump(exclude_unset=True) for name, kind in searched.items()}
        facts = {"recipe": self.name, "seeds": self.file.seeds, "levels": self.file.levels, "searched": kinds}
        settings = json.loads(json.dumps({**asdict(self._recipes[method]), **run.stored(args), **facts}))
        for other, study in known.items():
            # The paper's plain DUST is tied, its constrained one is not.
            free = set() if other == method else {"method", "searched", "tied"} | settings_of_others()
            if differing := run.differences(study.user_attrs[SETTINGS], settings, free):
                raise InputError(
                    f"the storage holds a sweep of other settings: {differing}. Give the same command to go on with "
                    "it, or choose another storage and --out."
                )
        choose = "that the storage does not hold; choose another folder with --out, or the storage of that sweep."
        refuse(
            (
                method not in known and any((self.out / TRIALS).glob(f"{method}-*")),
                f"{self.out / TRIALS} holds trials of {method} {choose}",
            ),
            (
                not known and (self.out / SWEEP_FILE).exists(),
                f"{self.out / SWEEP_FILE} would be written over: it is of a sweep {choose}",
            ),
        )
        if method not in known:
            study = optuna.create_study(
                storage=self._storage,
                study_name=f"{PREFIX}{method}",
                direction="maximize" if self.file.higher_is_better else "minimize",
                load_if_exists=True,
            )
            study.enqueue_trial(recipe_values(args, searched))
            study.set_user_attr(GIVEN, _written(self._given_to(method)))
            study.set_user_attr(SETTINGS, settings)

    def _studies(self) -> dict[str, optuna.Study]:
        """Method → its study in the storage, also of methods that this call does not search."""
        names = [name for name in optuna.get_all_study_names(self._storage) if name.startswith(PREFIX)]
        studies = [optuna.load_study(study_name=name, storage=self._storage, pruner=PRUNER) for name in names]
        return {each.study_name.removeprefix(PREFIX): each for each in studies if SETTINGS in each.user_attrs}

    def carry_out(self) -> None:
        """Run trials until N of every method are done; wait for those that other workers run."""
        studies = {method: study for method, study in self._studies().items() if method in self.methods}
        while left := {method: study for method, study in studies.items() if _count(study, *ENDED) < self.file.trials}:
            for method, study in left.items():  # in turn, so that an interrupted sweep has equally many of each
                if _count(study, *BEGUN) < self.file.trials or _count(study, TrialState.WAITING):
                    self._run(method, study)
                else:
                    tqdm.write("waiting for other workers' trials …", end="\r")
                    time.sleep(POLL)
                    _recall(study)

    def _run(self, method: str, study: optuna.Study) -> None:
        """Run one trial, and say how it ended."""
        try:
            study.optimize(lambda trial: self._value(method, trial), n_trials=1, catch=(_TooMany,))
        except ValueError:  # Optuna's, where a worker without heartbeats was slow and not dead
            if not any(self._number in each.system_attrs.get("retry_history", ()) for each in study.trials):
                raise
        content = self.write()  # so that the results so far can be read
        if study.trials[self._number].state in ENDED:
            tqdm.write(line(content, method, self._number))

    def _value(self, method: str, trial: optuna.Trial) -> float:
        """Run a trial and return its value: the mean metric over noise levels and seeds.

        What it draws depends on its number and on the trials before it, not on the worker.

        Raises:
            _TooMany: If N trials with lower numbers have begun.
        """
        self._number, study, asked = trial.number, trial.study, self.file.trials
        if sum(other.number < trial.number for other in study.get_trials(deepcopy=False, states=BEGUN)) >= asked:
            raise _TooMany
        seed = derived(Stream.SWEEP, self._arguments[method].seed, trial.number) % 2**32  # 32 bits for numpy
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(1, asked // 3)))
        settings = draw(trial, self._spaces[method])
        name = folder_of(method, trial)
        _note(trial, begun=trial.number, folder=name, worker=f"process {os.getpid()}")
        worst = -math.inf if self.file.higher_is_better else math.inf
        try:
            summaries = [self._evaluated(method, trial, settings, name, k) for k in range(self.file.seeds)]
        except NonFiniteLossError as error:
            _note(trial, diverged=str(error))
            return worst
        except (KeyboardInterrupt, Interrupted, SaveError):
            _retry(study, study.trials[trial.number])
            raise
        values = [summary.mean for summary in summaries]
        feasible = all(summary.feasible for summary in summaries) if summaries[0].asked else None
        seconds = sum(summary.seconds or 0.0 for summary in summaries)
        _note(trial, values=values, feasible=feasible, seconds=seconds, noise=summaries[0].noise)
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else worst

    def _evaluated(self, method: str, trial: optuna.Trial, drawn: Mapping[str, Any], name: str, k: int) -> Summary:
        """Train and evaluate a trial with its seed k, or finish what an earlier worker began."""
        seed = self._arguments[method].seed + k
        folder = self.out / (f"{name}-seed{seed}" if k else name)
        refuse((not is_inside(self.out, folder), f"{folder} is a link that leads out of {self.out}. Remove it."))
        begun = self._configured(method, {**drawn, "seed": seed}, folder)
        callbacks = [] if k else [_Pruning(trial, self.file.metric)]
        resume = folder.is_dir()
        if resume:
            with locked(folder, wait=True):  # the earlier worker may be slow and not dead
                pass
        if not run.finished(folder):
            assert begun.recipe is not None
            run.train(begun.recipe, begun.arguments, begun.given, resume=resume, callbacks=callbacks, loaded=self.data)
        with locked(folder, wait=True):
            trained = run.Run.read(folder)
            trained.data = self.data
            return trained.evaluate(split=SPLIT, noise=self.file.levels, frames=1)

    def write(self) -> SweepFile:
        """Write ``sweep.json``, and delete the frames, checkpoints and models of its trials, but the chosen models."""
        command = ["descend", "train", self.file.recipe]
        with locked(self.out, wait=True):  # several workers may finish at the same time
            methods = {}
            for method, study in self._studies().items():
                given = study.user_attrs.get(GIVEN, _written(self._given_to(method)))  # older ones have none
                methods[method] = searched_by(study, study.user_attrs[SETTINGS], [*command, *given])
            content = self.file.model_copy(update={"methods": methods})
            if not content.unequal:
                content = content.model_copy(update={"rule": EQUAL + content.rule})
            content.write(self.out / SWEEP_FILE)
        best = {search.best.folder for search in content.methods.values() if search.best}
        for trial in (trial for search in content.methods.values() for trial in search.trials):
            folder, keep = self.out / str(trial.folder), MODELS if trial.folder in best else ()
            seeds = folder.parent.glob(f"{folder.name}-seed*")
            for each in (folder, *(each for each in seeds if each.name.rpartition("-seed")[2].isdecimal())):
                forget_models(each, self.out, keep)  # another worker may do so at the same time
                if is_inside(self.out, each):
                    remove(each / FRAMES_FILE)
        return content


class _Pruning(TrainerCallback):
    """Reports the metric on validation data to Optuna at every evaluation, and prunes a trial that falls behind.

    It prunes neither in the first half of a run, because a good run may learn late, nor at the last step, where pruning
    saves nothing. All trials of a method have the same warm-up of multipliers, so they compare during it too.

    Args:
        trial: The trial.
        metric: The task's metric.
    """

    def __init__(self, trial: optuna.Trial, metric: str):
        self.trial, self.metric = trial, metric

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        step = state.global_step
        if step < state.max_steps:
            self.trial.report(metrics[f"eval_{self.metric}"], step)  # Optuna ignores a step that it knows
            if 2 * step >= state.max_steps and self.trial.should_prune():
                raise optuna.TrialPruned
