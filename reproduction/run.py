"""Run the cells of a study that are not done, several at a time; any number of sessions go on with one study."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from descend import InputError
from descend.jackknife import over_noise
from descend.results import forget_models, put, remove
from descend.writing import appending
from reproduction.cells import EVERY_STEP, FIXED, REPLAYS, SEARCH, Cell, Scale, cells, search_key

CELL_FILE, FAILED_FILE, CHOSEN_FILE, LOG_FILE = "cell.json", "failed.json", "chosen.json", "log.txt"
STUDY_FILE = "study.json"
"""In a study's folder: which scale it is."""
RECORDS = "records.jsonl"
"""In a run's folder: what it logged, a row a line."""
RUN, MEAN = "run", "mean"
"""In a cell's folder: the run's folder, and one with the mean of its weights, as if a run had logged them."""

THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} | {"TOKENIZERS_PARALLELISM": "false"}

INTERRUPTED = 130
BUSY = "is in use by another process"
"""What ``descend`` says of a run that a process of a killed session still trains: it is left to that."""


@dataclass
class Study:
    """A study's folder.

    Attributes:
        folder: The folder.
        name: The name of its scale.
        scale: Its scale.
        data: This machine's folder of data sets.
        models: That of pretrained models.
        known: A file that ``collect`` wrote of an earlier part of the study, perhaps on another machine; its cells are
            not run again.
    """

    folder: Path
    name: str
    scale: Scale
    data: Path = Path("data")
    models: Path = Path("models")
    known: Path | None = None

    @property
    def places(self) -> dict[str, Path]:
        """Placeholder in options → folder."""
        here, study = Path(__file__).parent, self.folder.absolute()
        return {"data": self.data.absolute(), "models": self.models.absolute(), "here": here, "study": study}

    @cached_property
    def earlier(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The head of the file ``known``, and its rows by the cell's name."""
        if self.known is None:
            return {"chosen": {}, "edges": []}, {}
        head, *rows = map(json.loads, self.known.read_text("utf-8").splitlines())
        return head, {row["name"]: row for row in rows}

    @property
    def chosen(self) -> dict[str, Any]:
        """What the searches chose so far, by search."""
        return self.earlier[0]["chosen"] | (read_json(self.folder / CHOSEN_FILE) or {})

    def cells(self) -> list[Cell]:
        """All cells, in the order of worth."""
        return cells(self.scale, self.chosen)

    def of(self, cell: Cell) -> Path:
        """A cell's folder."""
        return self.folder / "cells" / cell.name

    def state(self, cell: Cell) -> str:
        """``done``, ``failed``, ``waits``, ``no data`` or ``to do``."""
        folder, row = self.of(cell), self.row(cell)
        if row is not None and not self._replayed(cell):
            return "failed" if row["diverged"] else "done"
        if (folder / RUN / "summary.json").is_file():
            return "done"
        if (folder / FAILED_FILE).is_file():
            return "failed"
        if cell.waits:
            return "waits"
        return "no data" if any(not self._exists(path) for path in cell.paths()) else "to do"

    def _exists(self, path: str) -> bool:
        """Whether data, a model or a run to replay, which must have ended, are there."""
        place = Path(path.format_map(self.places))
        return (place / "summary.json" if path.startswith("{study}") and place.name == RUN else place).exists()

    def _replayed(self, cell: Cell) -> bool:
        """Whether a run of which `known` has the row must be run again, because others wait for its weights."""
        return cell.variant == EVERY_STEP and any(
            cell.name in path and self.state(other) == "no data" for other in self.cells() for path in other.paths()
        )

    def row(self, cell: Cell) -> Any:
        """A cell's row in the file ``known``; None if it is not there, or if the cell was run here."""
        here = (self.of(cell) / RUN / "summary.json").is_file()
        return None if here else self.earlier[1].get(cell.name)

    def validated(self, cell: Cell) -> Any:
        """What a search chooses by, see `measured_on_validation`, from the cell's row or its own files."""
        row = self.row(cell)
        if row is not None:
            return row.get("validated")
        return measured_on_validation(self.of(cell) / RUN, self.scale.models[cell.model].by_layers)

    def seconds(self, known: Sequence[Cell]) -> "Seconds":
        """Estimates of the seconds of cells, by those that are done."""
        taken = [
            (cell, (self.row(cell) or read_json(self.of(cell) / CELL_FILE) or {}).get("seconds")) for cell in known
        ]
        return Seconds(self.scale, [(cell, float(seconds)) for cell, seconds in taken if seconds])

    def choose(self) -> None:
        """Write ``chosen.json``: the choice of each search whose trials have all ended, and the weights of `REPLAYS`.

        The mean over the seeds of a trial decides, on validation data. Whether the constraints hold is reported and
        decides nothing, and neither do test data.
        """
        with FileLock(self.folder / f".{CHOSEN_FILE}.lock"):
            chosen = self.chosen
            searches: dict[str, list[Cell]] = {}
            for cell in self.cells():
                if cell.variant == EVERY_STEP:
                    chosen |= self._replays(cell)
                elif cell.panel == SEARCH:
                    searches.setdefault(search_key(self.scale, cell, cell.arm), []).append(cell)
            for key, trials in searches.items():
                ended = key not in chosen and all(map(self._over, trials))
                if ended and (best := self._best(trials)):
                    chosen[key] = best
            if chosen != self.chosen:
                write_json(self.folder / CHOSEN_FILE, chosen)

    def _over(self, trial: Cell) -> bool:
        """Whether a trial ended or diverged; one that failed otherwise is to be run again."""
        state = self.state(trial)
        failed = read_json(self.of(trial) / FAILED_FILE) or {"diverged": True}  # a row that failed had diverged
        return state == "done" or (state == "failed" and failed["diverged"])

    def _replays(self, cell: Cell) -> dict[str, Any]:
        """What `REPLAYS` take of a run that logged its weights at every step: its folder, and one with their mean.

        The mean is over the steps after the warm-up, and the same warm-up comes before it.
        """
        folder = self.of(cell)
        if not (folder / RUN / "summary.json").is_file():
            return {}
        if not (folder / MEAN / RECORDS).is_file():
            records = [json.loads(line) for line in (folder / RUN / RECORDS).read_text("utf-8").splitlines()]
            logged = [each for each in records if (each["split"], each["metric"]) == ("train", "weight")]
            *used, _ = sorted({each["step"] for each in logged})  # those after the last step were never used
            last = max(each["layer"] for each in logged)
            begin = min((each["step"] for each in logged if each["layer"] < last and each["value"]), default=used[0])
            mean = [
                fmean(each["value"] for each in logged if each["layer"] == layer and begin <= each["step"] <= used[-1])
                for layer in range(last + 1)
            ]
            # The weights of the warm-up from the first step on, and the mean after it.
            rows = [each for each in logged if each["step"] == used[0] < begin]
            rows += [row | {"step": begin, "value": value} for row, value in zip(logged, mean, strict=False)]
            (folder / MEAN).mkdir(exist_ok=True)
            put(
                folder / MEAN / RECORDS,
                lambda part: part.write_text("".join(json.dumps(each) + "\n" for each in rows), "utf-8"),
            )
        choice = [{"settings": {"layer_weights": f"{{study}}/cells/{cell.name}/{each}"}} for each in (RUN, MEAN)]
        return {
            search_key(self.scale, cell, arm): {"fixed": each, "searched": each}
            for arm, each in zip(REPLAYS, choice, strict=True)
        }

    def _best(self, trials: Sequence[Cell]) -> dict[str, Any] | None:
        """The best settings of a search: with α and cap as fixed in advance, of all, and for the last layer alone."""
        model = self.scale.models[trials[0].model]
        ranked = []
        for number, given in enumerate(model.trials[trials[0].arm], 1):
            runs = [trial for trial in trials if trial.variant == f"trial-{number}"]
            found = [self.validated(run) for run in runs]
            if None not in found:  # else a run failed, or its metric is not finite
                row: dict[str, Any] = {"settings": given, "trials": [run.name for run in runs], "number": number}
                row |= {name: fmean(each[name] for each in found) for name in ("value", "last", "feasible")}
                ranked.append(row)
        if not ranked:
            return None
        fixed = [row for row in ranked if not set(FIXED) & set(row["settings"])]
        best = {
            "fixed": max(fixed or ranked, key=itemgetter("value")),
            "searched": max(ranked, key=itemgetter("value")),
        }
        return {**best, "last": max(ranked, key=itemgetter("last"))}


def measured_on_validation(run: Path, by_layers: bool) -> dict[str, float] | None:
    """What a search chooses by: numbers of an evaluated run on validation data; more is better.

    Args:
        run: The run's folder.
        by_layers: Whether ``value`` is the mean metric of the deeper half of the layers on clean data, else it is the
            last layer's number over noise.

    Returns:
        ``value``; ``last``, the last layer's number; ``feasible``, 1 if the verdict says so. None if the run was not
        evaluated or a number is not finite.
    """
    summary = read_json(run / "summary.json")
    if summary is None:
        return None
    measured = summary.get("validation") or summary  # a run that is evaluated on validation data has it there alone
    # Validation data are measured at the training level too, which may not be one of the levels of the test.
    tested = {float(level) for level in summary.get("noise") or measured["layer_metrics"]}
    rows = sorted((float(level), row) for level, row in measured["layer_metrics"].items() if float(level) in tested)
    levels = [level for level, _ in rows]
    metrics = np.array([row for _, row in rows], float)  # (G, L+1)
    sign = 1 if summary["higher_is_better"] else -1
    last = float(sign * over_noise(levels, metrics[:, -1], summary["higher_is_better"]))
    depth = metrics.shape[1] - 1
    value = float(sign * metrics[0, depth // 2 :].mean()) if by_layers else last
    if not (math.isfinite(value) and math.isfinite(last)):
        return None
    return {"value": value, "last": last, "feasible": float(bool(summary.get("feasible")))}


@dataclass
class Seconds:
    """Estimates how long cells take.

    Attributes:
        scale: Their scale, whose models have first estimates.
        taken: Finished cells and their seconds.
    """

    scale: Scale
    taken: Sequence[tuple[Cell, float]]

    @cached_property
    def _like(self) -> dict[tuple[str, str, int, str], list[float]]:
        like: dict[tuple[str, str, int, str], list[float]] = {}
        for cell, seconds in self.taken:
            like.setdefault((cell.model, cell.data, cell.depth, cell.arm), []).append(seconds)
        return like

    @cached_property
    def _speed(self) -> dict[str, float]:
        """Model → the seconds of its finished cells over their first estimates."""
        models = {cell.model for cell, _ in self.taken}
        pairs = [(cell.model, seconds / self._first(cell)) for cell, seconds in self.taken]
        return {model: median(ratio for name, ratio in pairs if name == model) for model in models}

    def _first(self, cell: Cell) -> float:
        fixed, layer = self.scale.models[cell.model].seconds
        return fixed + layer * cell.depth

    def of(self, cell: Cell) -> float:
        """The seconds of one cell on one core: the median of like cells, or the first estimate at their speed."""
        like = self._like.get((cell.model, cell.data, cell.depth, cell.arm))
        return median(like) if like else self._first(cell) * self._speed.get(cell.model, 1.0)


@dataclass
class Session:
    """Runs what is not done of a study.

    Attributes:
        study: The study.
        wanted: Words of which a cell's name must contain one; all cells if there are none.
        minutes: After so many no cell is started.
        again: Whether cells that failed are tried again.
    """

    study: Study
    wanted: Sequence[str] = ()
    minutes: float = float("inf")
    again: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    tried: set[str] = field(default_factory=set)
    running: set[subprocess.Popen] = field(default_factory=set)
    busy: int = 0
    """Cells that workers have in hand."""
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._turn = threading.Lock()
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        self.commit = found.stdout.strip()
        """Of the code that runs; empty outside of a repository."""

    def go(self, workers: int) -> int:
        """Run cells in so many processes until none is left, the time is over or SIGINT or SIGTERM comes.

        Returns:
            The exit status: 0, or 130 if it was stopped.
        """
        self.study.folder.mkdir(parents=True, exist_ok=True)
        before = {each: signal.signal(each, self.stop) for each in (signal.SIGINT, signal.SIGTERM)}
        with ThreadPoolExecutor(workers) as pool:
            working = [pool.submit(self._work) for _ in range(workers)]
            while wait(working, 0.5, FIRST_EXCEPTION).not_done:  # a signal is handled between two waits
                if any(worker.done() and worker.exception() for worker in working):
                    self.stop()
        for each, handler in before.items():
            signal.signal(each, handler)
        for worker in working:
            worker.result()
        return INTERRUPTED if self.stopping.is_set() else 0

    def stop(self, *_: object) -> None:
        """Let every run save and stop; a run goes on from there in the next session."""
        self.stopping.set()
        for process in list(self.running):
            process.terminate()

    def _work(self) -> None:
        while not self.stopping.is_set() and time.monotonic() - self.began < 60 * self.minutes:
            with self._turn:
                cell, lock = self._next()
                self.busy += cell is not None
            if cell is None:
                if not self.busy or not self._waiting():
                    return
                time.sleep(2)  # another worker's trial may be the last of a search
                continue
            try:
                self._run(cell)
            finally:
                lock.release()
                with self._turn:
                    self.busy -= 1

    def _left(self) -> list[Cell]:
        return [cell for cell in wanted_of(self.study.cells(), self.wanted) if cell.name not in self.tried]

    def _waiting(self) -> bool:
        return any(cell.waits for cell in self._left())

    def _next(self) -> tuple[Cell | None, Any]:
        """The first cell that can be run and that no other session runs, with its lock."""
        self.study.choose()
        for cell in self._left():
            state = self.study.state(cell)
            if state != "to do" and not (state == "failed" and self.again):
                continue
            folder = self.study.of(cell)
            if not (folder / RUN).resolve().is_relative_to(self.study.folder.resolve()):
                raise InputError(f"{folder / RUN} is a link that leads out of {self.study.folder}. Remove it.")
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock", blocking=False, thread_local=False)
            with suppress(Timeout):
                lock.acquire()
                self.tried.add(cell.name)
                return cell, lock
        return None, None

    def _run(self, cell: Cell) -> None:
        folder, began = self.study.of(cell), time.monotonic()
        remove(folder / FAILED_FILE)
        earlier = (read_json(folder / CELL_FILE) or {}).get("seconds") or 0.0
        for words in cell.commands(folder / RUN, self.study.places):
            if words[0] == "train":
                config = read_json(folder / RUN / "config.json")
                if config is not None and config.get("seconds") is not None:
                    continue  # trained in an earlier session
                words = [*words, *(["--resume"] if config is not None else [])]
            if words[0] == "complete" and Path(words[-1]).is_file():
                continue
            status, reason = self._called(words, folder)
            if status:
                break
        taken = earlier + time.monotonic() - began
        commit = {"commit": self.commit} if self.commit else {}
        write_json(folder / CELL_FILE, {**cell.fields, "seconds": round(taken, 1), **commit})
        killed = status in (INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL)
        stopped = self.stopping.is_set() or killed or BUSY in reason
        if status and not stopped:
            write_json(folder / FAILED_FILE, {"reason": reason, "status": status, "diverged": "finite" in reason})
        elif not status:
            forget_models(folder / RUN, self.study.folder)
        outcome = "done" if not status else "stopped" if stopped else f"failed: {reason}"
        print(f"{time.strftime('%H:%M')} {cell.name}: {outcome}, {taken / 60:.1f} min", flush=True)

    def _called(self, words: Sequence[str], folder: Path) -> tuple[int, str]:
        """Call ``descend`` with its output in the cell's log; returns its status and the last line that it printed."""
        with appending(folder / LOG_FILE) as log:
            print(f"\n$ descend {' '.join(words)}", file=log, flush=True)
            process = subprocess.Popen(
                ["nice", "-n", "10", sys.executable, "-m", "descend", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | THREADS,
                start_new_session=True,  # Ctrl-C is for this command, which then asks each of its processes once
            )
            self.running.add(process)
            if self.stopping.is_set():
                process.terminate()
            status = process.wait()
            self.running.discard(process)
        lines = (folder / LOG_FILE).read_text("utf-8").strip().splitlines()
        return status, lines[-1]


def listing(study: Study, wanted: Sequence[str]) -> list[str]:
    """A line for each cell whose name contains a wanted word, and the hours that are left."""
    planned = wanted_of(study.cells(), wanted)
    states = {cell.name: study.state(cell) for cell in planned}
    seconds = study.seconds([cell for cell in planned if states[cell.name] == "done"])
    lines = [f"{states[cell.name]:8} {seconds.of(cell) / 60:6.1f} min  {cell.panel:14} {cell.name}" for cell in planned]
    for panel in (*dict.fromkeys(cell.panel for cell in planned), "all"):
        alike = [cell for cell in planned if panel in (cell.panel, "all")]
        left = [cell for cell in alike if states[cell.name] not in ("done", "failed")]
        hours = sum(map(seconds.of, left)) / 3600
        lines.append(f"{panel:14} {len(alike):4} cells, {len(left):4} left, {hours:5.1f} core-hours left")
    return lines


def jobs(study: Study, wanted: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """What is not done of a study, for a machine that works off a list of command lines from the repository's root.

    Args:
        study: The study, with that machine's folders of data and models.
        wanted: Words of which a cell's name must contain one; all cells if there are none.

    Returns:
        A job for each cell, in the order of worth: its name, the arguments of ``descend`` for each command, in which
        ``RUN`` stands for the run's folder, and its fields. Then, how many cells are left out, by reason.
    """
    listed = []
    left_out = {"wait for a search": 0, "replay a run of this study": 0}
    places = study.places | {"here": Path(__package__)}
    for cell in wanted_of(study.cells(), wanted):
        state = study.state(cell)
        if state == "waits":
            left_out["wait for a search"] += 1
        elif state in ("to do", "no data"):  # the data are on the other machine
            if any("{study}" in path for path in cell.paths()):
                left_out["replay a run of this study"] += 1
                continue
            tags = {name: cell.fields[name] for name in _TAGS}
            listed.append({"name": cell.name, "argv": cell.commands(Path("RUN"), places), "tags": tags})
    return listed, left_out


_TAGS = ("panel", "model", "data", "depth", "gamma", "arm", "form", "variant", "seed")


def wanted_of(planned: Sequence[Cell], wanted: Sequence[str]) -> list[Cell]:
    """The cells whose name contains one of some words; all of them without words."""
    return [cell for cell in planned if not wanted or any(word in cell.name for word in wanted)]


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is none."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file as a whole or not at all."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    put(path, lambda part: part.write_text(text, "utf-8"))
