"""What the layers of some runs give and cost: the metric at each layer, the layers needed, milliseconds."""

from collections.abc import Sequence
from math import inf, isfinite, nan

from descend.results import AnytimeCurve
from reproduction.report.cells import Run
from reproduction.report.estimates import Number, rows_along


def curve_at(run: Run, level: float) -> AnytimeCurve | None:
    """A run's quality by depth at a noise level; None if it was not judged there, or diverged."""
    return next((curve for curve in run.summary.anytime if abs(curve.noise - level) < 1e-9), None)


def curves(runs: Sequence[Run], level: float) -> list[AnytimeCurve]:
    """The curves of the runs that have one."""
    return [known for run in runs if (known := curve_at(run, level)) is not None]


def half(depth: int) -> int:
    """The layer at half depth, L/2 rounded up."""
    return (depth + 1) // 2


def metrics(runs: Sequence[Run], level: float) -> list[Number]:
    """The metric of layers 0 … L at a noise level, in the mean over seeds.

    A diverged run counts as worst; the number is NaN if another run was not judged at this level.
    """
    rows = []
    for run in runs:
        known = curve_at(run, level)
        worst = -inf if run.higher else inf
        rows.append(known.metric if known else [worst if run.diverged else nan] * (run.depth + 1))
    return rows_along(rows)


def layers_within(runs: Sequence[Run], level: float, percent: int) -> list[int]:
    """For each run the first layer from which on all are within some per cent of full depth.

    Args:
        runs: Runs of one depth; those without a curve at this level are left out.
        level: The noise level γ.
        percent: 1, 2 or 5, see `AnytimeCurve.first_within`.
    """
    return [layer for known in curves(runs, level) if (layer := known.first_within[percent]) is not None]


def milliseconds(runs: Sequence[Run], level: float, percent: int | None = None) -> list[float]:
    """For each run that was timed the milliseconds per sample up to a layer.

    Args:
        runs: Runs of one depth.
        level: The noise level γ.
        percent: Up to the layer of `layers_within`; None for all layers.
    """
    times = []
    for run in runs:
        if run.summary.latency is not None:
            layers = [run.depth] if percent is None else layers_within([run], level, percent)
            times += [run.summary.latency.milliseconds[layer] for layer in layers]
    return [time for time in times if isfinite(time)]
