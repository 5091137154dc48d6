"""Where trials are kept, and whose turn it is: Optuna's studies, shared by workers that may die."""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.pruners import PercentilePruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from descend.errors import InputError, Interrupted, reason
from descend.run import differences
from descend.seeds import Stream, derived
from descend.training import preferred

HEARTBEAT, GRACE = 15, 90
"""Seconds from one sign of life of a trial to the next, and without one until it counts as killed."""

TRIES = 3
"""How often a trial that was killed is taken up again; then another takes its place."""

UNPRUNED = 5
"""Trials of a method that must have finished before others are pruned."""

KEPT = 75.0
"""Per cent of the finished trials that must be better before one is pruned: those that finish are the good ones, so
that their median would end what later wins."""

LOST = (SQLAlchemyError, StorageInternalError)
"""What a database that fails raises."""

PREFIX = "descend "
"""Before a method in the name of its study."""

SETTINGS = "settings"
"""Of a study: what all its trials have in common."""

DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def open_storage(url: str) -> RDBStorage:
    """Open the database that a URL names, or make its tables.

    Raises:
        InputError: If there is none to be had.
    """
    trouble: Exception | None = None
    try:
        asked = make_url(url)
        shown = asked.render_as_string(hide_password=True)
        if shown.startswith("sqlite") and asked.database in (None, "", ":memory:"):
            raise ArgumentError  # gone with the process
    except (ArgumentError, ValueError):  # a port that is no number is the latter
        raise InputError(
            "--storage must be the URL of a database, as sqlite:///sweep.db or postgresql://user@host/name; got "
            f"{_masked(url)!r}."
        ) from None
    for _ in range(5):  # two workers may make the tables at once, and one of them fails
        try:
            return RDBStorage(
                url,
                # A worker that writes keeps the others waiting, for milliseconds.
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
    raise InputError(f"the storage {shown} can't be opened: {_said(trouble)}.") from None


def _masked(url: str) -> str:
    """Text that is no URL, without what may be a password in it: all between its scheme and the last @."""
    return re.sub(r"(?s)^(.*?://)?.*@", r"\1***@", url)


def _said(error: BaseException | None) -> str:
    """What a database says, without what was asked of it."""
    while error is not None and isinstance(error.__cause__ or getattr(error, "orig", None), Exception):
        error = error.__cause__ or getattr(error, "orig", None)
    return reason(error or OSError()).rstrip(".")


def lost(error: BaseException) -> Interrupted:
    """A storage that does not answer any more, in words."""
    return Interrupted(f"the storage does not answer: {_said(error)}. What was at work is taken up by the next call.")


def studies(storage: RDBStorage) -> dict[str, optuna.Study]:
    """The studies of a sweep, by method."""
    names = [name for name in optuna.get_all_study_names(storage) if name.startswith(PREFIX)]
    return {name.removeprefix(PREFIX): optuna.load_study(study_name=name, storage=storage) for name in names}


def _ran(study: optuna.Study) -> bool:
    fresh = (TrialState.FAIL, TrialState.WAITING)
    trials = study.get_trials(deepcopy=False)
    return any(trial.state not in fresh or trial.system_attrs.get("retry_history") for trial in trials)


def _again(study: optuna.Study, trial: FrozenTrial) -> None:
    """Put a trial that did not come to its end into the queue once more."""
    RetryHeartbeatStaleTrialCallback(max_retry=TRIES, inherit_intermediate_values=True)(study, trial)


class TooMany(Exception):
    """A trial that was begun beyond the number asked for, since several workers asked at once."""


@dataclass(frozen=True)
class Search:
    """A method's part of a sweep: its study, and the trials that it still has.

    Attributes:
        method: Its name.
        study: What Optuna knows of its trials.
        trials: N, how many trials are to be finished or pruned.
        seed: Of the sampler.
        space: What is searched.
    """

    method: str
    study: optuna.Study
    trials: int
    seed: int
    space: Mapping[str, BaseDistribution]

    @classmethod
    def open(
        cls,
        storage: RDBStorage,
        method: str,
        space: Mapping[str, BaseDistribution],
        *,
        trials: int,
        seed: int,
        maximize: bool,
        settings: Mapping[str, Any],
        first: Mapping[str, float | str],
    ) -> "Search":
        """Take up a method's study, or begin it.

        Args:
            storage: The database.
            method: The method.
            space: What is searched.
            trials: N.
            seed: Of the sampler.
            maximize: Whether more is better.
            settings: What all its trials have in common, and how they are searched.
            first: What the first trial is to be.

        Raises:
            InputError: If what is in the storage is another sweep.
        """
        asked = json.loads(json.dumps(settings))
        for other, study in studies(storage).items():
            if not _ran(study):
                continue
            before = study.user_attrs.get(SETTINGS, {})
            differing = differences(before, asked, set() if other == method else {"method", "searched"})
            if differing:
                raise InputError(
                    f"the storage holds a sweep of other settings: {differing}. Give the same command to go on with "
                    "it, or choose another storage and --out."
                )
        name = f"{PREFIX}{method}"
        try:
            study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize" if maximize else "minimize"
            )
            study.enqueue_trial(dict(first))
        except DuplicatedStudyError:
            study = optuna.load_study(storage=storage, study_name=name)
        study.pruner = PercentilePruner(KEPT, n_startup_trials=UNPRUNED)
        study.set_user_attr(SETTINGS, asked)
        return cls(method, study, trials, seed, space)

    @property
    def begun(self) -> int:
        """Trials that are done, or that someone is at, or is about to be."""
        return sum(trial.state is not TrialState.FAIL for trial in self._trials)

    @property
    def ran(self) -> bool:
        """Whether there is a trial that anything came of, or may yet."""
        return _ran(self.study)

    @property
    def done(self) -> bool:
        """Whether as many trials are done as were asked for."""
        return sum(trial.state in DONE for trial in self._trials) >= self.trials

    @property
    def free(self) -> bool:
        """Whether there is a trial to be carried out that nobody is at."""
        return self.begun < self.trials or any(trial.state is TrialState.WAITING for trial in self._trials)

    @property
    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def recall(self) -> None:
        """Take back trials whose workers give no sign of life any more."""
        optuna.storages.fail_stale_trials(self.study)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Killed between its beginning and its first sign of life, which Optuna does not look at.
            began = trial.datetime_start
            if "worker" not in trial.user_attrs and began and time.time() - began.timestamp() > GRACE:
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def claim(self, number: int) -> None:
        """See whether a trial that has begun is one of the N: those with the lowest numbers are.

        What it draws then depends on its number and the trials before it, not on which worker has it.

        Raises:
            TooMany: If it is none.
        """
        before = [trial for trial in self._trials if trial.number < number and trial.state is not TrialState.FAIL]
        if len(before) >= self.trials:
            raise TooMany
        seed = derived(Stream.SWEEP, self.seed, number) % 2**32  # numpy's old generators take no more
        self.study.sampler = TPESampler(seed=seed, n_startup_trials=min(10, max(1, self.trials // 3)))

    def give_back(self, number: int) -> None:
        """Leave a trial that was interrupted to whoever comes next."""
        _again(self.study, self.study.trials[number])

    @property
    def best(self) -> FrozenTrial | None:
        """The trial that the rule selects, see `RULE`: the best value; of constrained ones one that is feasible."""
        sign = -1 if self.study.direction is optuna.study.StudyDirection.MAXIMIZE else 1
        finished = [
            trial
            for trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if trial.value is not None and math.isfinite(trial.value)
        ]
        if not finished:
            return None
        # The paper chooses by the metric alone.
        counts = self.method == "constrained" and not self.study.user_attrs.get(SETTINGS, {}).get("preset")
        costs = [sign * (trial.value or 0.0) for trial in finished]
        return finished[preferred(costs, [counts and bool(trial.user_attrs.get("feasible")) for trial in finished])]
