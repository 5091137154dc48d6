"""``cells.jsonl``: one line for each finished cell. A cell is done if and only if it has a line there."""

import json
import math
import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from descend.errors import SaveError
from descend.reading import json_lines
from descend.results import (
    LOCK_FILE,
    Groups,
    Record,
    locked,
    put,
    read_completions,
    read_config,
    read_groups,
    read_records,
    read_summary,
    read_train_losses,
)
from reproduction.records import CELLS_FILE, Answer, Cell, Curve, FinishedCell, Settings, parse_cell

OLD_FILE = "superseded.jsonl"
LOCK = f"cells{LOCK_FILE}"

ANSWERS_FILE = "answers-{gamma:g}.json"
"""In a run's folder: the answers of its language model at one noise level."""

MOST_STEPS = 60
"""Points kept of a curve, enough to draw it."""

DIGITS = 6
"""Significant digits of numbers: more than any figure shows, and a third of the bytes."""

MOST_GROUPS = 200
"""Groups of samples kept: more would not make an interval more exact, and each has a score at every noise level."""

_TRAINED = ("multiplier", "loss", "violation", "weight", "slack")


def read(out: Path) -> dict[str, FinishedCell]:
    """The finished cells of a study's folder by name, the first of each; none if there is no file.

    A last line that was cut off is left out.

    Raises:
        InputError: If another line is not a finished cell.
    """
    file = out / CELLS_FILE
    cells: dict[str, FinishedCell] = {}
    for number, content in json_lines(file, appended=True) if file.exists() else ():
        line = parse_cell(content, f"{file}, line {number},")
        cells.setdefault(line.cell.name, line)
    return cells


def mixed(out: Path) -> list[str]:
    """A warning for each arm whose seeds ran with different settings though their cells ask for the same.

    Raises:
        InputError: If a line is not a finished cell.
    """
    arms: dict[str, dict[str, Settings]] = {}
    for name, line in read(out).items():
        if line.summary is not None:
            arm = json.dumps([line.cell.recipe, {**line.cell.settings, "seed": None}], sort_keys=True)
            arms.setdefault(arm, {})[name] = line.summary.settings
    warnings = []
    for runs in arms.values():
        (first, settings), *others = runs.items()
        differing = {
            name for _, other in others for name in {*settings, *other} if settings.get(name) != other.get(name)
        }
        if differing:
            names = ", ".join(name for name, other in others if other != settings)
            warnings.append(
                f"{names}: other settings than {first} ({', '.join(sorted(differing))}), though the study asks for the "
                "same. The recipe's defaults have changed. Remove the older lines to run them again."
            )
    return warnings


def append(out: Path, line: FinishedCell) -> None:
    """Add a line, synced to the disk when this returns; concurrent processes wait for each other.

    Raises:
        SaveError: If the disk takes no more.
    """
    file = out / CELLS_FILE
    with locked(out, LOCK, wait=True):
        try:
            with file.open("a+b") as stream:
                _drop_half_a_line(stream)
                stream.write(_dumped(line))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise SaveError.at(file, error) from error


def supersede(out: Path, known: Container[str]) -> int:
    """Move lines of cells that are no longer asked for into `OLD_FILE`; returns how many.

    Raises:
        InputError: If a line is not a finished cell.
        SaveError: If the disk takes no more.
    """
    with locked(out, LOCK, wait=True):
        lines = read(out)
        old = [line for name, line in lines.items() if name not in known]
        if old:
            with (out / OLD_FILE).open("ab") as stream:
                stream.writelines(map(_dumped, old))
            remaining = b"".join(_dumped(line) for name, line in lines.items() if name in known)
            put(out / CELLS_FILE, lambda part: part.write_bytes(remaining))
    return len(old)


def _drop_half_a_line(stream: Any) -> None:
    """Remove what a kill or a power cut left behind the last whole line."""
    end = place = stream.seek(0, os.SEEK_END)
    block = b""
    while place and b"\n" not in block:
        start = max(0, place - 2**16)
        stream.seek(start)
        block, place = stream.read(place - start), start
    end_of_lines = place + block.rfind(b"\n") + 1
    if end_of_lines < end:
        stream.truncate(end_of_lines)


def line(cell: Cell, folder: Path, seconds: float, folders: Mapping[str, Path]) -> FinishedCell:
    """The line of an evaluated run.

    Args:
        cell: The cell.
        folder: Its run folder.
        seconds: The time it took.
        folders: Placeholder → folder of this machine, which must not be in a line.
    """
    records = folder / "records.jsonl"
    rows = list(read_records(records)) if records.exists() else []
    train_losses = read_train_losses(folder)
    finished = FinishedCell(
        cell=cell,
        summary=read_summary(folder),
        groups=_blocks(read_groups(folder)),
        curves={metric: curve for metric in _TRAINED if (curve := _curve(rows, "train", metric))},
        validation=_validation(rows),
        train_losses=None if train_losses is None else train_losses.layer_losses,
        kept=read_config(folder).step,
        completions=_completions(cell, folder),
        seconds=seconds,
    )
    return parse_cell(_portable(_rounded(finished.content()), folders), str(folder))


def _blocks(groups: Groups | None) -> Groups | None:
    """Put groups together at random, the same ones in every run on the same data, until there are few enough."""
    if groups is None or len(groups.counts) <= MOST_GROUPS:
        return groups
    shuffled = np.random.default_rng(0).permutation(len(groups.counts))
    parts = np.array_split(shuffled, MOST_GROUPS)

    def sums(values: Sequence[float]) -> list[float]:
        return [float(np.asarray(values, float)[part].sum()) for part in parts]

    counts = [int(count) for count in sums(groups.counts)]
    return groups.model_copy(update={"counts": counts, "scores": [sums(row) for row in groups.scores]})


def diverged(cell: Cell, reason: str, seconds: float) -> FinishedCell:
    """The line of a run that diverged. It counts as a result and is not tried again."""
    return FinishedCell(cell=cell, summary=None, diverged=reason, seconds=seconds)


def _curve(rows: Sequence[Record], split: str, metric: str) -> Curve | None:
    """A metric's values by layer at up to `MOST_STEPS` steps, the last among them.

    A layer without a value at a step has NaN there, as inner layers have with plain ERM.
    """
    by_step: dict[int, dict[int, float]] = {}
    for row in rows:
        if (row.split, row.metric) == (split, metric):
            by_step.setdefault(row.step, {})[row.layer] = row.value
    if not by_step:
        return None
    steps = sorted(by_step)
    steps = steps[:: -math.ceil(len(steps) / MOST_STEPS)][::-1]
    layers = sorted({layer for values in by_step.values() for layer in values})
    values = [[by_step[step].get(layer, math.nan) for layer in layers] for step in steps]
    return Curve(first=layers[0], steps=[float(step) for step in steps], values=values)


def _validation(rows: Sequence[Record]) -> dict[str, list[Any]]:
    metrics = dict.fromkeys(row.metric for row in rows if row.split == "validation")
    curves = {metric: curve for metric in metrics if (curve := _curve(rows, "validation", metric))}
    steps: list[float] = next((curve.steps for curve in curves.values()), [])
    return {"steps": steps, **{metric: curve.values for metric, curve in curves.items()}}


def _completions(cell: Cell, folder: Path) -> list[Answer]:
    return [
        Answer(prompt=row.instruction, noise=gamma, text=row.output)
        for gamma in answered(cell)
        for row in read_completions(folder / ANSWERS_FILE.format(gamma=gamma))
    ]


def answered(cell: Cell) -> list[float]:
    """The levels γ at which a cell's language model completes prompts: 0 and that of the training."""
    return sorted({0.0, cell.gamma}) if cell.answer else []


def _portable(content: Any, folders: Mapping[str, Path]) -> Any:
    """Replace paths of this machine by their placeholders."""
    text = json.dumps(content)
    for mark, folder in sorted(folders.items(), key=lambda pair: -len(str(pair[1]))):  # the inner one first
        written = re.escape(json.dumps(str(folder))[1:-1])
        text = re.sub(rf"(?<![\w.-]){written}(?![\w-])", mark, text)  # and no other folder that begins alike
    return json.loads(text)


def _dumped(line: FinishedCell) -> bytes:
    return (
        json.dumps(_rounded(line.content()), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        + b"\n"
    )


def _rounded(content: Any) -> Any:
    """Round numbers to `DIGITS` digits; integral ones lose their point, and those that are not finite become None."""
    if isinstance(content, Mapping):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    if isinstance(content, float):
        if not math.isfinite(content):
            return None
        value = float(f"{content:.{DIGITS}g}")
        return int(value) if value.is_integer() else value
    return content
