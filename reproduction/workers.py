"""Run cells in several processes, each cell once, even if several commands work in one folder."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from descend.errors import InputError, Interrupted, NonFiniteLossError, SaveError, StudyError, reason
from descend.results import LOCK_FILE, locked, read_config
from descend.results.ownership import FEASIBLE_FOLDER, clear, remove
from reproduction import cell_store
from reproduction.grid import HERE, OUT, ROOT
from reproduction.records import Cell, Settings

RUNS = "runs"
"""In a study's folder: the run folders, with their logs and lock files beside them."""

MOST_TRIES = 3
"""How often a cell is tried whose process is killed or stopped."""

PATIENCE = 2.0
"""Seconds between looks at cells that another command is running."""


@dataclass(frozen=True)
class Job:
    """A cell to run.

    Attributes:
        cell: The cell.
        out: The study's folder.
        root: The folder of real data; None if no cell needs any.
    """

    cell: Cell
    out: Path
    root: Path | None

    @property
    def folder(self) -> Path:
        """The cell's run folder."""
        return self.out.absolute() / RUNS / self.cell.name

    @property
    def folders(self) -> dict[str, Path]:
        """Placeholder in a cell's settings → its folder."""
        placeholders = {OUT: self.out.absolute(), HERE: Path(__file__).parent}
        return placeholders | ({ROOT: self.root.absolute()} if self.root is not None else {})

    def resolved(self, settings: Settings) -> Settings:
        """Settings with folders in place of placeholders."""
        return {name: self._placed(value) if isinstance(value, str) else value for name, value in settings.items()}

    def _placed(self, value: str) -> str:
        for mark, folder in self.folders.items():
            value = value.replace(mark, str(folder))
        return value


Work = Callable[[Job], None]
"""Trains and judges a cell in its folder, resuming an earlier try; a function that can be pickled."""


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        outcome: ``done``; ``diverged``; ``already``: another process has done it; ``elsewhere``: another process is
            running it; ``stopped``; ``failed``; ``unsaved``: the disk is full; ``killed``.
        why: The reason, if something went wrong.
        seconds: The time it took, if it finished.
    """

    outcome: str
    why: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """The outcome of all cells so far.

    Attributes:
        seconds: Name → seconds of each cell that finished here.
        diverged: Name → reason of each cell whose loss became NaN or infinite.
        failed: Name → reason of each cell that could not be run.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    diverged: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, cell: Cell, ended: Ended) -> None:
        """Record how a cell ended."""
        if ended.outcome in ("done", "diverged"):
            self.seconds[cell.name] = ended.seconds
        if ended.outcome == "diverged":
            self.diverged[cell.name] = ended.why
        if ended.outcome in ("failed", "killed", "stopped"):
            self.failed[cell.name] = ended.why


def carry_out(
    jobs: Sequence[Job],
    work: Work,
    *,
    workers: int,
    preload: Sequence[str] = (),
    tell: Callable[[Cell, Report], None] = lambda *_: None,
) -> Report:
    """Run cells, each in a new process, and skip those that are done by then.

    A process locks its cell, and the lock ends with the process, so several commands can share a study, also on several
    machines with one disk. A cell that another command has locked is waited for, and run here if that command ends
    without finishing it.

    Args:
        jobs: The cells.
        work: Runs one cell.
        workers: Processes at a time.
        preload: Modules to import once, before processes are forked.
        tell: Called after every cell, with the outcome of all so far.

    Raises:
        KeyboardInterrupt: On Ctrl-C or SIGTERM, after all workers have saved and stopped; at once on the second.
        StudyError: If the disk is full.
    """
    report, tries = Report(), Counter[str]()
    waiting, elsewhere, looked = deque(jobs), list[Job](), time.monotonic()
    with _Crew(work, workers, preload) as crew:
        while waiting or elsewhere or crew.busy:
            while waiting and crew.free:
                crew.start(waiting.popleft())
            for job, ended in crew.ended(PATIENCE):
                if ended.outcome == "unsaved":
                    raise StudyError(f"{job.cell.name}: {ended.why}")
                if ended.outcome == "elsewhere":
                    elsewhere.append(job)
                    continue
                if ended.outcome in ("killed", "stopped"):  # only this process, not the command
                    tries[job.cell.name] += 1
                    if tries[job.cell.name] < MOST_TRIES:
                        waiting.appendleft(job)
                        continue
                report.add(job.cell, ended)
                tell(job.cell, report)
            if elsewhere and not waiting and time.monotonic() - looked > PATIENCE:
                looked = time.monotonic()
                waiting.extend(elsewhere)  # the process that starts one checks whether it is done or still locked
                elsewhere.clear()
    return report


class _Crew:
    """Processes that run one cell each; all have ended at the end of the ``with`` block."""

    def __init__(self, work: Work, workers: int, preload: Sequence[str]):
        self.work, self.workers = work, workers
        self.busy: dict[int, tuple[Job, Any, Connection]] = {}
        # The server imports everything once and forks. It never computes, so no thread is lost by forking.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__, *preload])

    def __enter__(self) -> "_Crew":
        return self

    def __exit__(self, *error: object) -> None:
        processes = [process for _, process, _ in self.busy.values()]
        try:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
        except KeyboardInterrupt:  # the second one
            for process in processes:
                process.kill()
            raise

    @property
    def free(self) -> bool:
        """Whether there is room for another process."""
        return len(self.busy) < self.workers

    def start(self, job: Job) -> None:
        """Start a process for a cell."""
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_worker, args=(job, self.work, theirs), name=job.cell.name)
        process.start()
        theirs.close()
        self.busy[process.sentinel] = (job, process, ours)

    def ended(self, timeout: float) -> Iterator[tuple[Job, Ended]]:
        """The cells whose processes have ended; waits at most ``timeout`` seconds for one."""
        for sentinel in connection.wait(list(self.busy), timeout):
            job, process, ours = self.busy.pop(sentinel)  # type: ignore[arg-type]
            process.join()
            log = f"its log is {job.folder}.log"
            with ours:
                try:
                    ended = ours.recv()
                except EOFError:  # it was killed before it could answer
                    ended = Ended("killed", f"its process ended with status {process.exitcode}, every time")
            lasting = ended.outcome in ("failed", "killed", "stopped")
            yield job, ended._replace(why=f"{ended.why} ({log})") if lasting else ended


def _worker(job: Job, work: Work, ours: Connection) -> None:
    """The main function of a process."""
    os.setpgrp()  # Ctrl-C is for the command, which then asks each of its processes once
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tqdm.set_lock(threading.RLock())  # tqdm's default lock is a system semaphore, which a kill would leak
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    try:
        with (job.folder.parent / f"{job.cell.name}.log").open("a") as log:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(log.fileno(), stream.fileno())
        ended = _tried(job, work)
    except (KeyboardInterrupt, Interrupted):
        ended = Ended("stopped", "its process was asked to stop, every time")
    ours.send(ended)


def _end_with_the_command() -> None:
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _tried(job: Job, work: Work) -> Ended:
    with ExitStack() as claim:
        try:
            claim.enter_context(locked(job.folder.parent, f"{job.cell.name}{LOCK_FILE}"))
        except InputError:
            return Ended("elsewhere")
        if job.cell.name in cell_store.read(job.out):
            _tidy(job.folder)  # the process that did it may have been killed before tidying
            return Ended("already")
        began = time.monotonic()
        try:
            if (job.folder / "summary.json").is_file() and not (job.folder / "model").is_dir():
                clear(job.folder, "another folder with --out")  # its line was removed from cells.jsonl: run it again
            try:
                work(job)
            except NonFiniteLossError as error:
                ended = Ended("diverged", reason(error), time.monotonic() - began)
                line = cell_store.diverged(job.cell, ended.why, ended.seconds)
            else:
                # A resumed run counts all of its training.
                trained = read_config(job.folder).seconds or 0.0
                ended = Ended("done", seconds=max(time.monotonic() - began, trained))
                line = cell_store.line(job.cell, job.folder, ended.seconds, job.folders)
            cell_store.append(job.out, line)
        except SaveError as error:
            return Ended("unsaved", str(error))
        except Interrupted:
            raise
        except Exception as error:
            traceback.print_exc()
            return Ended("failed", reason(error))
        _tidy(job.folder)
        return ended


def _tidy(folder: Path) -> None:
    """Delete the weights: the page needs only the line in ``cells.jsonl`` and small files."""
    for heavy in (folder / "model", folder / FEASIBLE_FOLDER, *folder.glob("checkpoint-*")):
        remove(heavy)
