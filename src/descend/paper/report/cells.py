"""A line of a study's ``cells.jsonl``: one run, and what of it figures are made of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np

from descend.errors import InputError, reason
from descend.paper.groups import Table
from descend.records.schema import Summary, parse_summary
from descend.report.runs import METHOD_NAMES, alphas

DATA = {
    **{"avenue": "Avenue", "shanghaitech": "ShanghaiTech", "ucsd": "UCSD", "imdb": "IMDb", "mnli": "MNLI"},
    **{"alpaca": "Alpaca", "scenes": "Generated scenes", "generated": "Generated data"},
}

Place = tuple[str, str, str, int, float, str]
"""Task, model, data set, depth, training noise and regime: where methods compare."""

_WORDS = ("task", "model", "data", "regime", "arm", "variant", "name")


class Answer(NamedTuple):
    """What a language model goes on with from a prompt, each token under noise γ."""

    prompt: str
    noise: float
    text: str


@dataclass(frozen=True, eq=False)
class Run:
    """A line of ``cells.jsonl``: which cell of the grid, what was measured, and how training went.

    ``view`` is its summary. ``layers`` maps γ to the losses by blocks of
    groups, the table's levels being the layers 0 … L. ``curves`` maps a quantity to its steps and rows by layer,
    ``validation`` a metric to its rows, of which ``kept`` is the place of the model that was kept, and ``kept_step``
    its step, infinite where the last is or nothing says. ``energy`` is that
    of the layer's own objective, by γ. ``edges`` and ``shares`` are the histogram of f_l / f_{l−1} over samples, one
    row per layer 1 … L.
    """

    name: str
    task: str
    model: str
    data: str
    depth: int
    gamma: float
    regime: str
    arm: str
    variant: str
    seed: int
    view: Summary
    groups: Table | None = None
    layers: dict[float, Table] = field(default_factory=dict)
    curves: Mapping[str, Any] = field(default_factory=dict)
    validation: Mapping[str, list[list[float]]] = field(default_factory=dict)
    kept: int = -1
    kept_step: float = inf
    completions: list[Answer] = field(default_factory=list)
    energy: dict[float, list[float]] = field(default_factory=dict)
    edges: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)
    cap: float | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, line: Mapping[str, Any], source: str, view: Summary | None = None) -> "Run":
        """Check a line and give its entries their types; ``view`` stands for a summary that it lacks.

        Raises:
            InputError: If an entry is missing or of the wrong type.
        """
        try:
            cell, summary = line["cell"], line["summary"]
            words = {key: str(cell.get(key) or "") for key in _WORDS}
            histogram = (summary.get("ratios") or {}).get("histogram") or {}
            energy, edges = summary.get("energy") or {}, _floats(histogram.get("edges") or [])
            depth, gamma = int(cell["depth"]), float(cell["gamma"])
            if depth < 1 or not isfinite(gamma):
                raise ValueError(f"depth {depth} and γ = {gamma}")
            judged = view or parse_summary(summary, source)
            if view is None and (judged.depth != depth or gamma not in judged.layer_losses):
                raise ValueError(f"its summary is not of depth {depth}, or has no losses at γ = {gamma:g}")
            for value in judged.settings.values():
                if isinstance(value, int):
                    float(value)  # one that no number of a figure could be
            kept, kept_step = _kept(line)
            return cls(
                **words,
                depth=depth,
                gamma=gamma,
                seed=int(cell["seed"]),
                view=judged,
                groups=_groups(line.get("groups"), source),
                layers=_layers((line.get("groups") or {}).get("layers"), source),
                curves={str(name): _curve(rows, depth) for name, rows in (line.get("curves") or {}).items()},
                validation={
                    str(name): [_floats(row) for row in rows]
                    for name, rows in (line.get("validation") or {}).items()
                    if name != "steps"
                },
                kept=kept,
                kept_step=kept_step,
                completions=[
                    Answer(str(each["prompt"]), float(each["noise"]), str(each["text"]))
                    for each in line.get("completions") or []
                ],
                energy={float(level): _floats(row) for level, row in energy.items()},
                edges=edges,
                shares=_shares(histogram, edges),
                cap=None if summary.get("cap") is None else float(summary["cap"]),
                seconds=None if line.get("seconds") is None else float(line["seconds"]),
            )
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            told = f"{type(error).__name__}: {reason(error)}"
            raise InputError(
                f"{source} is no finished cell of a study: {told}. Remove the line; it is run again."
            ) from None

    @property
    def place(self) -> Place:
        """Where it belongs."""
        return (self.task, self.model, self.data, self.depth, self.gamma, self.regime)

    @property
    def diverged(self) -> bool:
        """Whether it has no numbers."""
        return not isfinite(self.view.mean)

    @property
    def higher(self) -> bool:
        """Whether more of the metric is better."""
        return self.view.higher_is_better

    @property
    def rate(self) -> float | None:
        """The share of the loss before it that a layer must not exceed, where it is one for all that are held to it."""
        asked = {round(limit, 9) for limit in self.view.limits[1:] if limit is not None}
        return asked.pop() if len(asked) == 1 else None

    @property
    def alpha(self) -> float | None:
        """α, where it is one for all layers that have a constraint."""
        asked = {round(step, 9) for step in alphas(self.view.limits).values()}
        return asked.pop() if len(asked) == 1 else None

    def losses(self, level: float) -> list[float] | None:
        """f_0 … f_L at a noise level."""
        return self.view.layer_losses.get(level)

    def trained(self, quantity: str, last: float = 0.1) -> np.ndarray | None:
        """A curve's mean by layer over the last share of training, up to the model that was kept."""
        curve = self.curves.get(quantity)
        if not curve or not curve["values"]:
            return None
        rows = np.array(curve["values"], float)
        rows = rows[: max(1, sum(step <= self.kept_step for step in curve["steps"]))]
        kept = rows[-max(1, round(last * len(rows))) :]
        known = np.isfinite(kept)
        total = np.where(known, kept, 0).sum(0)
        return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)


def data_name(data: str) -> str:
    """A data set, as a reader writes it."""
    return DATA.get(data, data)


def arm_name(arm: str) -> str:
    """A method, as a reader writes it."""
    return METHOD_NAMES.get(arm, arm)


def metric_name(run: Run) -> str:
    """A run's metric, as a reader writes it."""
    metric = run.view.metric
    return metric.upper() if len(metric) <= 4 else metric.replace("_", " ").capitalize()


def listed(words: Sequence[str]) -> str:
    """Words in a sentence."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def few(words: Sequence[str]) -> str:
    """The first five of some words in a sentence, and whether there are more."""
    return f"{listed(words[:5])}{' and more' if len(words) > 5 else ''}"


def _groups(found: Any, source: str) -> Table | None:
    if not found:
        return None
    try:
        return Table.read(found)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _layers(found: Any, source: str) -> dict[float, Table]:
    if not found:
        return {}
    pairs = zip(found["noise"], found["losses"], strict=True)
    tables = {
        float(level): _groups(
            {"noise": range(len(rows)), "root": False, "counts": found["counts"], "scores": rows}, source
        )
        for level, rows in pairs
    }
    return {level: table for level, table in tables.items() if table}


def _curve(rows: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """A quantity over training; rows end at layer L, and some begin at layer 1."""
    values = [_floats(row) for row in rows["values"]]
    wide = max(map(len, values), default=depth + 1)
    if wide > depth + 1 or any(len(row) != wide for row in values):
        raise ValueError(f"a curve's rows must have one number per layer, of {depth} layers")
    first, steps = int(rows.get("first", depth + 1 - wide)), _floats(rows["steps"])
    if not all(map(isfinite, steps)):
        raise ValueError("a curve's steps must be finite")
    if len(steps) != len(values):
        raise ValueError(f"a curve of {len(steps)} steps must have as many rows, has {len(values)}")
    return {"steps": steps, "values": values, "first": first}


def _kept(line: Mapping[str, Any]) -> tuple[int, float]:
    """Where in the rows of validation the model is that was kept, and its step; the last, if nothing else is told."""
    validation, step = line.get("validation") or {}, line.get("kept")
    rows = {len(values) for name, values in validation.items() if name != "steps"}
    steps = _floats(validation.get("steps") or [])
    if step is None or float(step) not in steps or rows != {len(steps)}:
        return -1, inf
    return steps.index(float(step)), float(step)


def _shares(histogram: Mapping[str, Any], edges: Sequence[float]) -> list[list[float]]:
    rows = [_floats(row) for row in histogram.get("counts") or []]
    if (rows and len(edges) < 2) or not all(0 < low < high < inf for low, high in pairwise(edges)):
        raise ValueError("a histogram's edges must be two or more, finite, above 0, and rise")
    if any(len(row) != len(edges) - 1 for row in rows):
        raise ValueError(f"a histogram of {len(edges)} edges must have one count less")
    return rows


def _floats(values: Iterable[Any]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]
