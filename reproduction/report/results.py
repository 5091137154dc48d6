"""A study's finished runs, grouped into settings in which methods compare."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from descend.errors import InputError
from descend.reading import json_lines
from descend.report import Frames
from descend.results import Ratios, Summary
from reproduction.published import AREA_REACH
from reproduction.records import CELLS_FILE, Cell, FinishedCell, parse_cell
from reproduction.report.cells import ARM_NAMES, DATA, Place, Run, data_name, metric_name

_GENERATED = {"imdb": "generated", "ucsd": "scenes"}

_METRICS = {"video": ("rmse", False), "text": ("accuracy", True), "language": ("token_accuracy", True)}
_UNKNOWN = Summary(
    recipe="",
    method="",
    seed=0,
    model="",
    dataset="",
    metric="loss",
    higher_is_better=False,
    noise=[0.0],
    values=[nan],
    mean=nan,
    train_noise=0.0,
    layer_losses={0.0: [nan, nan]},
)

FORMS = ("paper", "constrained")
"""The two arms with constraints: preset paper, our first reading of the paper's settings, and the default."""

MODELS = ("UT", "DUST", "ViT", "DistilBERT", "RoBERTa", "Llama")


@dataclass(frozen=True, eq=False)
class Setting:
    """Comparable runs: one task, model, data set, depth, training noise and regime; seeds by method."""

    task: str
    model: str
    data: str
    depth: int
    gamma: float
    regime: str
    arms: dict[str, list[Run]]

    @property
    def place(self) -> Place:
        """The setting's key."""
        return (self.task, self.model, self.data, self.depth, self.gamma, self.regime)

    @property
    def plain(self) -> list[Run]:
        """The ERM runs at this training noise; at γ = 0 both kinds of ERM are the same."""
        return self.arms.get("erm") or (self.arms.get("erm-clean", []) if self.gamma == 0 else [])

    @property
    def constrained(self) -> list[Run]:
        """The constrained runs."""
        return self.arms.get("constrained", [])

    def runs(self, arm: str) -> list[Run]:
        """The runs of an arm; `plain` for ``erm``."""
        return self.plain if arm == "erm" else self.arms.get(arm, [])

    def compares(self, arm: str, over: str = "erm") -> bool:
        """Whether there are runs of an arm and of another."""
        return bool(self.runs(arm) and self.runs(over))

    @property
    def paired(self) -> bool:
        """Whether there are both ERM runs and runs of a form of constraints."""
        return any(self.compares(form) for form in FORMS)

    @property
    def reach(self) -> float:
        """The highest test noise of an area: the paper's for texts in its regime, else unlimited."""
        return AREA_REACH if self.task == "text" and self.regime in ("", "paper") else inf

    @property
    def unbound(self) -> bool:
        """Whether all multipliers of all constrained runs are 0 at all recorded steps."""
        curves = [run.curves.get("multiplier") for run in self.constrained if not run.diverged]
        return bool(curves) and all(curve and curve.values and not np.any(curve.values) for curve in curves)

    @property
    def words(self) -> str:
        """The setting in words."""
        return f"{self.model}-{self.depth}, {data_name(self.data)}, γ = {self.gamma:g}"

    @property
    def metric(self) -> str:
        """The metric's name, as a reader writes it."""
        return metric_name(next(run for runs in self.arms.values() for run in runs))


class Results:
    """All finished cells of a study.

    Args:
        runs: The runs, each once.
        folder: The study's folder, for pictures of its runs.
    """

    def __init__(self, runs: Iterable[Run], folder: Path | None = None):
        self.runs = list(runs)
        self.folder = folder
        self._views: dict[str, Results] = {}

    @classmethod
    def read(cls, out: Path) -> "Results":
        """Read a study's folder.

        Raises:
            InputError: If there is no ``cells.jsonl``, or a line of it is no finished cell.
        """
        path = out / CELLS_FILE
        if not path.is_file():
            raise InputError(f"{out} holds no study: expected {CELLS_FILE} in it. Run `python -m reproduction` first.")
        lines = json_lines(path, appended=True)
        return cls.of((parse_cell(line, f"{path}, line {number},") for number, line in lines), out)

    @classmethod
    def of(cls, lines: Iterable[FinishedCell], folder: Path | None = None) -> "Results":
        """Read the lines of a ``cells.jsonl``; of two lines with one name the first counts.

        Raises:
            InputError: If two runs of one arm have the same seed.
        """
        runs: dict[str, Run] = {}
        failed = []
        for line in lines:
            if line.summary is None:
                failed.append(line)
            else:
                runs.setdefault(line.cell.name, Run.of(line, line.summary))
        for line in failed:
            runs.setdefault(line.cell.name, Run.of(line, _without_numbers(line, runs.values())))
        seeds: dict[tuple[Any, ...], str] = {}
        for run in runs.values():
            other = seeds.setdefault(_key(run), run.name)
            if other != run.name:
                raise InputError(
                    f"{other} and {run.name} are of one seed of the same arm, run with different settings: they can't "
                    f"count as two seeds. Remove the line of one from {CELLS_FILE}."
                )
        return cls(runs.values(), folder)

    @cached_property
    def settings(self) -> list[Setting]:
        """All settings in the paper's order, without the runs of ablations."""
        tables = [run for run in self.runs if not run.variant]
        by_place: dict[Place, dict[str, list[Run]]] = {}
        for run in tables:
            if run.arm != "erm-clean":
                by_place.setdefault(run.place, {}).setdefault(run.arm, []).append(run)
        clean: dict[tuple[str, str, str, int, str], list[Run]] = {}
        for run in tables:
            if run.arm == "erm-clean":
                clean.setdefault((*run.place[:4], run.regime), []).append(run)
        for place, runs in clean.items():
            # Runs trained without noise compare with every training noise of their regime.
            beside = [key for key in by_place if (*key[:4], key[5]) == place] or [(*place[:4], 0.0, place[4])]
            for key in beside:
                by_place.setdefault(key, {})["erm-clean"] = runs
        settings = [Setting(*key, _sorted(arms)) for key, arms in by_place.items()]
        return sorted(settings, key=_order)

    def judging(self, form: str) -> "Results":
        """The study as a claim about constrained training reads it: with one of the two forms of constraints.

        Args:
            form: ``paper`` or ``constrained``. Its runs are the arm ``constrained``; those of the other form are left
                out.
        """
        if form not in self._views:
            runs = [run for run in self.runs if run.arm == form or run.arm not in FORMS]
            named = [replace(run, cell=run.cell.model_copy(update={"arm": "constrained"})) for run in runs]
            one = [changed if run.arm == "paper" else run for run, changed in zip(runs, named, strict=True)]
            self._views[form] = Results(one, self.folder)
        return self._views[form]

    @cached_property
    def forms(self) -> dict[str, "Results"]:
        """`judging` for each form that was run."""
        return {form: self.judging(form) for form in FORMS if any(run.arm == form for run in self.runs)}

    def of_cells(self, cells: Iterable[Cell]) -> "Results":
        """The runs of some cells of the grid, whatever settings they were run with."""
        asked = {_key(cell) for cell in cells}
        return Results((run for run in self.runs if _key(run) in asked), self.folder)

    def known(self, data: str) -> str:
        """A data set of the paper, or the generated one in its place if only that was run."""
        datasets = {run.data for run in self.runs}
        other = _GENERATED.get(data, data)
        return other if data not in datasets and other in datasets else data

    def where(self, **wanted: Any) -> list[Setting]:
        """Select settings by their fields; a tuple lists alternatives.

        Example: ``results.where(task="video", model=("UT", "DUST"))``.
        """
        return [
            setting
            for setting in self.settings
            if all(
                getattr(setting, name) in (value if isinstance(value, tuple) else (value,))
                for name, value in wanted.items()
            )
        ]

    def variants(self, start: str) -> list[Run]:
        """Runs of an ablation whose variants' names begin alike."""
        return sorted((run for run in self.runs if run.variant.startswith(start)), key=lambda run: (run.name, run.seed))

    def frames(self, run: Run) -> Frames | None:
        """A run's pictures; None if its folder is gone."""
        path = self.folder / "runs" / run.name / "frames.npz" if self.folder else None
        if path is None or Path(run.name).name != run.name or not os.path.isfile(path):
            return None  # also for a name too long for a file, for which Path.is_file raises
        return Frames.load(path)


def _key(one: Run | Cell) -> tuple[Any, ...]:
    """The key by which two runs are the same."""
    return (one.task, one.model, one.data, one.depth, one.gamma, one.regime, one.arm, one.variant, one.seed)


def _sorted(arms: Mapping[str, list[Run]]) -> dict[str, list[Run]]:
    order = list(ARM_NAMES)
    names = sorted(arms, key=lambda arm: (order.index(arm) if arm in order else len(order), arm))
    return {name: sorted(arms[name], key=lambda run: run.seed) for name in names}


def _order(setting: Setting) -> tuple[Any, ...]:
    def place(name: str, names: Sequence[str]) -> tuple[int, str]:
        return (names.index(name) if name in names else len(names), name)

    return (
        ("video", "text", "language").index(setting.task) if setting.task in ("video", "text", "language") else 3,
        *(setting.regime != "paper", setting.regime, place(setting.model, MODELS)),
        *(setting.depth, place(setting.data, tuple(DATA)), setting.gamma),
    )


def _without_numbers(line: FinishedCell, runs: Iterable[Run]) -> Summary:
    """The summary of a diverged run: it has no numbers and counts as worse than any other.

    The other entries are those of the most similar run of its task. Without one, the metric follows from the task, so
    that a diverged run is never left out.
    """
    cell = line.cell

    def shared(run: Run) -> list[bool]:
        names = ("model", "data", "regime", "depth", "gamma", "arm", "variant")
        return [getattr(run, name) == getattr(cell, name) for name in names]

    beside = [run for run in runs if run.task == cell.task and not run.diverged]
    nearest = max(beside, key=shared, default=None)
    same = nearest is not None and all(shared(nearest))
    if nearest is not None:
        pattern = nearest.summary
    else:
        metric, higher = _METRICS.get(cell.task, ("loss", False))
        changed = {"metric": metric, "higher_is_better": higher, "noise": [cell.gamma], "train_noise": cell.gamma}
        pattern = _UNKNOWN.model_copy(update=changed)
    levels = {*pattern.layer_losses, cell.gamma}
    unknown: dict[str, Any] = {
        **{"seed": cell.seed, "values": [nan] * len(pattern.noise), "mean": nan, "auc": None, "train_value": nan},
        **{"layer_losses": dict.fromkeys(levels, [nan] * (cell.depth + 1)), "layer_metrics": {}, "anytime": []},
        "ratios": Ratios(),
        **{"violations": [], "violation_intervals": [], "violated": [], "feasible": False, "certain": True},
        **{"bounds": [], "certified": [], "certificate": "", "descending_share": None, "energy": {}, "cap": None},
        "limits": pattern.limits if same else [],
        "settings": pattern.settings if same else cell.settings,
        "verdict": f"Diverged: {line.diverged}",
    }
    return pattern.model_copy(update=unknown)
