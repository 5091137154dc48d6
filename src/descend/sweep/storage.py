"""Optuna's studies in a database that several workers share, and which worker runs which trial."""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.pruners import PercentilePruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from descend.errors import InputError, Interrupted, reason
from descend.results.sweeps import Searched
from descend.run import differences
from descend.seeds import Stream, derived
from descend.training import preferred

HEARTBEAT, GRACE = 15, 90
"""Seconds between two heartbeats of a trial, and seconds without one after which it counts as killed."""

TRIES = 3
"""How often a killed trial is resumed before another trial replaces it."""

UNPRUNED = 5
"""Trials of a method that must have finished before the pruner stops others."""

PERCENTILE = 75.0
"""A trial is pruned if this percentage of the finished trials was better. Finished trials are the good ones, so a
pruner at their median would stop trials that win later."""

LOST = (SQLAlchemyError, StorageInternalError)
"""The exceptions of a database that does not answer."""

PREFIX = "descend "
"""The prefix of a study's name; the method follows."""

SETTINGS = "settings"
"""The study attribute that holds the settings that all its trials share."""


def database_url(path: Path) -> str:
    """The URL of an SQLite file, whatever characters its path has."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def open_storage(url: str) -> RDBStorage:
    """Open the database at a URL, and create its tables if there are none.

    Raises:
        InputError: If the URL is malformed, the driver is missing, or the database can't be opened.
    """
    trouble: Exception | None = None
    try:
        asked = make_url(url)
        shown = asked.render_as_string(hide_password=True)
        if shown.startswith("sqlite") and asked.database in (None, "", ":memory:"):
            raise ArgumentError  # a database in memory ends with the process
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        raise InputError(
            "--storage must be the URL of a database, as sqlite:///sweep.db or postgresql://user@host/name; got "
            f"{_masked(url)!r}."
        ) from None
    for _ in range(5):  # if two workers create the tables at the same time, one of them fails and tries again
        try:
            return RDBStorage(
                url,
                # SQLite has one writer at a time; the others wait for milliseconds.
                engine_kwargs={"connect_args": {"timeout": 60}}
                if url.startswith("sqlite")
                else {"pool_pre_ping": True},
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=_again,
            )
        except (ImportError, NoSuchModuleError) as error:
            what = "pip install 'psycopg[binary]'" if url.startswith("postgresql") else "install its Python driver"
            raise InputError(f"{shown} needs a driver that is not there ({reason(error)}): {what}.") from None
        except LOST as error:
            trouble = error
            time.sleep(0.2)
    raise InputError(f"the storage {shown} can't be opened: {_driver_message(trouble)}.") from None


def _masked(url: str) -> str:
    """Hide a possible password in text that is not a URL: all between the scheme and the last @."""
    return re.sub(r"(?s)^(.*?://)?.*@", r"\1***@", url)


def _driver_message(error: BaseException | None) -> str:
    """The database driver's own message, without the SQL statement that SQLAlchemy adds."""
    while error is not None and isinstance(error.__cause__ or getattr(error, "orig", None), Exception):
        error = error.__cause__ or getattr(error, "orig", None)
    return reason(error or OSError()).rstrip(".")


def lost(error: BaseException) -> Interrupted:
    """The error to raise when the storage stops answering."""
    return Interrupted(
        f"the storage does not answer: {_driver_message(error)}. The next call resumes the interrupted trial."
    )


def _again(study: optuna.Study, trial: FrozenTrial) -> None:
    """Enqueue an interrupted trial again, up to `TRIES` times."""
    RetryHeartbeatStaleTrialCallback(max_retry=TRIES, inherit_intermediate_values=True)(study, trial)


def searches(storage: RDBStorage, trials: int) -> dict[str, "Search"]:
    """Method → its search in the storage, of N trials."""
    names = [name for name in optuna.get_all_study_names(storage) if name.startswith(PREFIX)]
    methods = {name.removeprefix(PREFIX): optuna.load_study(study_name=name, storage=storage) for name in names}
    return {method: Search(method, study, trials) for method, study in methods.items()}


class TooMany(Exception):
    """Several workers asked for a trial at the same time, and this one exceeds the number of trials."""


@dataclass(frozen=True)
class Search:
    """The search of one method.

    Attributes:
        method: The method's name.
        study: Its Optuna study.
        trials: N, how many trials must finish or be pruned.
        seed: The sampler's seed.
        space: The search space.
    """

    method: str
    study: optuna.Study
    trials: int
    seed: int = 0
    space: Mapping[str, Searched] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        storage: RDBStorage,
        method: str,
        space: Mapping[str, Searched],
        *,
        trials: int,
        seed: int,
        maximize: bool,
        settings: Mapping[str, Any],
        initial: Mapping[str, float | str],
    ) -> "Search":
        """Load a method's study, or create it.

        Args:
            storage: The database.
            method: The method.
            space: The search space.
            trials: N.
            seed: The sampler's seed.
            maximize: Whether a higher value is better.
            settings: The settings that all trials share, and how they are searched; stored in the study.
            initial: The settings of the first trial.

        Raises:
            InputError: If the storage holds a sweep with other settings.
        """
        asked = json.loads(json.dumps(settings))
        for other in searches(storage, trials).values():
            before, free = other.settings or {}, set() if other.method == method else {"method", "searched"}
            if other.ran and (differing := differences(before, asked, free)):
                raise InputError(
                    f"the storage holds a sweep of other settings: {differing}. Give the same command to go on with "
                    "it, or choose another storage and --out."
                )
        name = f"{PREFIX}{method}"
        try:
            study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize" if maximize else "minimize"
            )
            study.enqueue_trial(dict(initial))
        except DuplicatedStudyError:
            study = optuna.load_study(storage=storage, study_name=name)
        study.pruner = PercentilePruner(PERCENTILE, n_startup_trials=UNPRUNED)
        study.set_user_attr(SETTINGS, asked)
        return cls(method, study, trials, seed, space)

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings that all its trials share; None if another worker has just created the study."""
        return self.study.user_attrs.get(SETTINGS)

    def ended(self, *states: TrialState) -> list[FrozenTrial]:
        """Its trials in some states; those that finished or were pruned unless given."""
        return self.study.get_trials(deepcopy=False, states=states or (TrialState.COMPLETE, TrialState.PRUNED))

    @property
    def begun(self) -> int:
        """The number of trials that are done, running or queued."""
        return sum(trial.state is not TrialState.FAIL for trial in self.study.get_trials(deepcopy=False))

    @property
    def ran(self) -> bool:
        """Whether any trial is done, running, or queued again after an interruption."""
        fresh = (TrialState.FAIL, TrialState.WAITING)
        trials = self.study.get_trials(deepcopy=False)
        return any(trial.state not in fresh or trial.system_attrs.get("retry_history") for trial in trials)

    @property
    def done(self) -> bool:
        """Whether N trials have finished or were pruned."""
        return len(self.ended()) >= self.trials

    @property
    def free(self) -> bool:
        """Whether a trial can start: one is queued, or fewer than N have begun."""
        return self.begun < self.trials or bool(self.ended(TrialState.WAITING))

    def recall(self) -> None:
        """Mark trials as failed, and enqueue them again, if their workers no longer send heartbeats."""
        optuna.storages.fail_stale_trials(self.study)
        for trial in self.ended(TrialState.RUNNING):
            # Optuna ignores a trial that was killed between its start and its first heartbeat.
            began = trial.datetime_start
            if "worker" not in trial.user_attrs and began and time.time() - began.timestamp() > GRACE:
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def claim(self, number: int) -> None:
        """Check that a trial is among the N with the lowest numbers, and seed the sampler for it.

        Its settings then depend on its number and on the trials before it, not on the worker that runs it.

        Raises:
            TooMany: If N trials with lower numbers exist.
        """
        trials = self.study.get_trials(deepcopy=False)
        if sum(trial.number < number and trial.state is not TrialState.FAIL for trial in trials) >= self.trials:
            raise TooMany
        seed = derived(Stream.SWEEP, self.seed, number) % 2**32  # Optuna seeds numpy's RandomState, which takes 32 bits
        self.study.sampler = TPESampler(seed=seed, n_startup_trials=min(10, max(1, self.trials // 3)))

    def give_back(self, number: int) -> None:
        """Enqueue an interrupted trial again, for any worker."""
        _again(self.study, self.study.trials[number])

    @property
    def best(self) -> FrozenTrial | None:
        """The chosen trial: the best value, where a feasible constrained trial may be 1 % worse. See `results.RULE`."""
        sign = -1 if self.study.direction is optuna.study.StudyDirection.MAXIMIZE else 1
        ended = [(trial, sign * trial.value) for trial in self.ended(TrialState.COMPLETE) if trial.value is not None]
        finished = [(trial, cost) for trial, cost in ended if math.isfinite(cost)]
        if not finished:
            return None
        # The paper's preset ignores feasibility here: it chooses by the metric alone.
        counts = self.method == "constrained" and not (self.settings or {}).get("preset")
        feasible = [counts and bool(trial.user_attrs.get("feasible")) for trial, _ in finished]
        return finished[preferred([cost for _, cost in finished], feasible)][0]
