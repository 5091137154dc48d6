"""``cells.jsonl``: what a study has measured, one line for each finished cell, and the truth on what is done."""

import json
import math
import os
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from descend.errors import InputError, SaveError
from descend.paper.grid import Cell
from descend.reading import json_lines, read_json
from descend.records import locked, put

CELLS_FILE, OLD_FILE = "cells.jsonl", "superseded.jsonl"
LOCK = "cells.lock"

ANSWERS_FILE = "answers-{gamma:g}.json"
"""In a run's folder: what its language model answers at one noise level."""

MOST_STEPS = 60
"""Of a curve: enough to draw it."""

DIGITS = 6
"""Significant digits of numbers: more than any figure shows, and a third of the bytes."""

_TRAINED = ("multiplier", "loss", "violation", "weight", "slack")


def read(out: Path) -> dict[str, dict[str, Any]]:
    """The lines of a study's folder by the names of their cells, the first of each; none where there is no file.

    A last line that was cut off is left out.

    Raises:
        InputError: If another line is no JSON object, or has no cell with a name.
    """
    file = out / CELLS_FILE
    if not file.exists():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for number, line in json_lines(file, appended=True):
        cell = line.get("cell")
        if not isinstance(cell, dict) or not isinstance(cell.get("name"), str):
            raise InputError(f"{file}, line {number}: expected a finished cell, with its name. Remove the line.")
        found.setdefault(cell["name"], line)
    return found


def seconds(out: Path, line: Mapping[str, Any]) -> float:
    """What a cell took, by its line.

    Raises:
        InputError: If the line has no such number.
    """
    found = line.get("seconds")
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InputError(
            f"{out / CELLS_FILE}: the line of {line['cell']['name']} must have seconds, a number; got "
            f"{str(found)[:60]!r}. Remove the line; it is run again."
        )
    return found


def mixed(out: Path) -> list[str]:
    """A warning for each arm whose seeds ran with different settings though their cells ask for the same.

    Raises:
        InputError: If a line is no JSON object, or has no cell with a name.
    """
    arms: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, line in read(out).items():
        asked, summary = line["cell"].get("settings"), line.get("summary")
        if isinstance(asked, dict) and isinstance(summary, dict) and isinstance(summary.get("settings"), dict):
            arm = json.dumps([line["cell"].get("recipe"), {**asked, "seed": None}], sort_keys=True)
            arms.setdefault(arm, {})[name] = summary["settings"]
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


def append(out: Path, line: Mapping[str, Any]) -> None:
    """Add a line, on the disk itself when this returns; processes that append at once wait for each other.

    Raises:
        SaveError: If the disk takes no more.
    """
    file = out / CELLS_FILE
    with locked(out, LOCK, wait=True):
        try:
            with file.open("a+b") as stream:
                _drop_half_a_line(stream)
                stream.write(_dumped(_rounded(line)))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise SaveError.at(file, error) from error


def supersede(out: Path, known: Container[str]) -> int:
    """Put lines of cells that are no longer asked for, as those of other settings, into `OLD_FILE`; returns how many.

    Raises:
        InputError: If a line is no JSON object, or has no cell with a name.
        SaveError: If the disk takes no more.
    """
    with locked(out, LOCK, wait=True):
        lines = read(out)
        old = [line for name, line in lines.items() if name not in known]
        if old:
            with (out / OLD_FILE).open("ab") as stream:
                stream.writelines(map(_dumped, old))
            kept = b"".join(_dumped(line) for name, line in lines.items() if name in known)
            put(out / CELLS_FILE, lambda part: part.write_bytes(kept))
    return len(old)


def _drop_half_a_line(stream: Any) -> None:
    """What a kill or a power cut has left behind the last whole line would spoil the next one."""
    end = place = stream.seek(0, os.SEEK_END)
    block = b""
    while place and b"\n" not in block:
        start = max(0, place - 2**16)
        stream.seek(start)
        block, place = stream.read(place - start), start
    kept = place + block.rfind(b"\n") + 1
    if kept < end:
        stream.truncate(kept)


def line(cell: Cell, folder: Path, seconds: float, folders: Mapping[str, Path]) -> dict[str, Any]:
    """What is kept of a judged run.

    Args:
        cell: The cell that it is of.
        folder: Its run folder.
        seconds: What it took.
        folders: What stands for which folder of this machine: a line names none of them.
    """
    rows = list(_rows(folder / "records.jsonl"))
    groups = folder / "groups.json"
    found = {
        "cell": cell.content(),
        "summary": read_json(folder / "summary.json"),
        "groups": read_json(groups) if groups.exists() else None,
        "curves": {metric: curve for metric in _TRAINED if (curve := _curve(rows, "train", metric))},
        "validation": _validation(rows),
        "kept": read_json(folder / "config.json").get("step"),
        "completions": _completions(cell, folder),
        "seconds": seconds,
    }
    return _portable(found, folders)


def diverged(cell: Cell, reason: str, seconds: float) -> dict[str, Any]:
    """The line of a run whose loss was no number: a finding, which is counted and not tried again."""
    return {"cell": cell.content(), "summary": None, "diverged": reason, "seconds": seconds}


def _rows(file: Path) -> list[dict[str, Any]]:
    return [row for _, row in json_lines(file, appended=True)] if file.exists() else []


def _curve(rows: list[dict[str, Any]], split: str, metric: str) -> dict[str, Any]:
    """A metric's values by layer over the steps; of many steps every so many, and the last.

    The first value is that of layer ``first``. A layer without a value at a step, as the inner ones of a step of plain
    ERM, has null there.
    """
    by_step: dict[int, dict[int, float | None]] = {}
    for row in rows:
        if (row["split"], row["metric"]) == (split, metric):
            by_step.setdefault(row["step"], {})[row["layer"]] = row["value"]
    if not by_step:
        return {}
    steps = sorted(by_step)
    steps = steps[:: -math.ceil(len(steps) / MOST_STEPS)][::-1]
    layers = sorted({layer for values in by_step.values() for layer in values})
    values = [[by_step[step].get(layer) for layer in layers] for step in steps]
    return {"first": layers[0], "steps": steps, "values": values}


def _validation(rows: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = dict.fromkeys(row["metric"] for row in rows if row["split"] == "validation")
    curves = {metric: _curve(rows, "validation", metric) for metric in metrics}
    steps: list[int] = next((curve["steps"] for curve in curves.values()), [])
    return {"steps": steps, **{metric: curve["values"] for metric, curve in curves.items()}}


def _completions(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    return [
        {"prompt": row["instruction"], "noise": gamma, "text": row["output"]}
        for gamma in answered(cell)
        for row in read_json(folder / ANSWERS_FILE.format(gamma=gamma))
    ]


def answered(cell: Cell) -> list[float]:
    """The levels γ at which a cell's language model is asked: none, and that of the training."""
    return sorted({0.0, cell.gamma}) if cell.answer else []


def _portable(content: Any, folders: Mapping[str, Path]) -> Any:
    """Replace paths of this machine by their placeholders."""
    text = json.dumps(content)
    for mark, folder in sorted(folders.items(), key=lambda pair: -len(str(pair[1]))):  # the inner one first
        written = re.escape(json.dumps(str(folder))[1:-1])
        text = re.sub(rf"(?<![\w.-]){written}(?![\w-])", mark, text)  # and no other folder that begins alike
    return json.loads(text)


def _dumped(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _rounded(content: Any) -> Any:
    """Numbers of `DIGITS` digits, whole ones without a point, none for those that are not finite."""
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
