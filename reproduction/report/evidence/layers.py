"""The loss and the energy along the layers."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from reproduction.report.cells import Run, arm_name
from reproduction.report.claims import Evidence, Held, counted, number, ranged
from reproduction.report.estimates import Interval, Number, along, computed, rows_along, same_seeds, share
from reproduction.report.results import Setting
from reproduction.report.selections import constrained

Steps = dict[tuple[Setting, int], Number]
"""By setting and layer l = 1 … L: f_l − f_{l−1} averaged over seeds, negative where the layer lowers the loss."""


def layer_errors(run: Run, level: float) -> list[float]:
    """The error rate of each layer."""
    return [1 - value for value in run.summary.layer_metrics.get(level, [])]


def smoother(settings: Sequence[Setting], neither: Held) -> Evidence:
    """How much more ERM's loss rises along the layers, in per cent of its highest value.

    Args:
        settings: The last of them is judged.
        neither: The verdict if neither loss ever rises.
    """
    setting = settings[-1]
    arms = same_seeds(setting.constrained, setting.plain)
    most = max(len(setting.constrained), len(setting.plain))
    ours, theirs = (computed(_rises, *along(runs, setting.gamma, most)) for runs in arms)
    difference = (theirs - ours).interval
    words = {"ours": number(ours.value), "theirs": number(theirs.value), "difference": ranged(difference, " %")}
    flat = all(end.high == 0 for end in (ours.interval, theirs.interval))
    return Evidence(neither if flat else difference, words, constrained=setting.constrained)


def _rises(*losses: Any) -> Any:
    rows = np.array(losses)
    return 100 * np.maximum(np.diff(rows, axis=0), 0).sum(0) / rows.max(0)


def _steps(settings: Iterable[Setting], arm: str) -> Steps:
    return {
        (setting, layer): after - before
        for setting in settings
        for layer, (before, after) in enumerate(pairwise(along(tuple(setting.runs(arm)), setting.gamma)), 1)
    }


def _falling(steps: Steps) -> int:
    """In how many settings every layer lowers the mean loss."""
    return len({setting for setting, _ in steps} - {key[0] for key, step in steps.items() if not step.value < 0})


def descent(settings: Sequence[Setting]) -> Evidence:
    """The change of the loss at every layer under constraints."""
    steps, theirs = _steps(settings, "constrained"), _steps(settings, "erm")
    count = _falling(steps)
    words = {"count": counted(count, len(settings), share(count, len(settings))), "erm": _falling(theirs)}
    return Evidence(steps, words, label=_layer, constrained=constrained(settings))


def _layer(key: tuple[Setting, int]) -> str:
    return f"layer {key[1]} of {key[0].words}"


def erm_rise(settings: Sequence[Setting]) -> Evidence:
    """ERM's worst step, with an interval for the number of steps that it was picked from."""
    steps = _steps(settings, "erm")
    worst = max(steps, key=lambda key: least_down(steps[key]))
    return Evidence(steps[worst].picked(len(steps)), {"worst": _layer(worst)})


def least_down(step: Interval | Number) -> float:
    """A sorting key that puts the largest last, and what is unknown after it."""
    return np.inf if np.isnan(step.value) else float(step.value)


def energy(settings: Sequence[Setting]) -> Evidence:
    """The change of the energy at every layer."""
    steps: dict[tuple[Setting, str, int], Number] = {}
    pairs, falling = 0, 0
    for setting in settings:
        for arm, runs in setting.arms.items():
            rows = [run.summary.energy[setting.gamma] for run in runs if setting.gamma in run.summary.energy]
            changes = [after - before for before, after in pairwise(rows_along(rows))] if rows else []
            pairs, falling = pairs + bool(rows), falling + bool(rows and all(step.value < 0 for step in changes))
            steps |= {(setting, arm, layer): step for layer, step in enumerate(changes, 1)}
    words = {"falling": falling, "pairs": pairs}
    return Evidence(
        steps,
        words,
        label=lambda key: f"layer {key[2]} of {arm_name(key[1])}, {key[0].words}",
        constrained=constrained(settings),
    )
