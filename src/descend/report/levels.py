"""Noise levels in one unit, γ as a standard deviation in units of σ_x; and how runs at two levels are compared."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from descend.declared import options
from descend.errors import InputError
from descend.report.runs import group_runs
from descend.results import Results, Summary, read_config

_LEVELS = ("noise", "train_noise")
"""The names of entries that hold one noise level or several; all others with a level have it as a float key."""


def as_std(level: float, sigma: float) -> float:
    """A level γ of noise whose variance is γσ_x as a standard deviation in units of σ_x: √(γ/σ_x)."""
    return float(f"{(level / sigma) ** 0.5:.3g}")


def in_std(run: Results) -> Results:
    """A run whose levels γ are standard deviations in units of σ_x, whatever its own are.

    One that was trained with γσ_x as the variance, as by ``--preset paper``, has those of `as_std` in place of γ; its
    ``variance`` then says the level of its training as it was given.
    """
    summary = run.summary
    sigma, settings = summary.sigma, summary.settings
    if settings.get("noise_is") != "variance" or not sigma or summary.shift != "gaussian":
        return run
    level = partial(as_std, sigma=sigma)
    shown = _converted(summary, level)
    settings = settings | {"noise_is": "std", "noise": shown.train_noise}
    auc = None if summary.auc is None else _area(shown)
    return replace(
        run,
        summary=shown.model_copy(update={"settings": settings, "auc": auc}),
        groups=None if run.groups is None else _converted(run.groups, level),
        variance=summary.train_noise,
    )


def _converted(item: Any, level: Callable[[float], float]) -> Any:
    """An object of a file with other noise levels."""
    if isinstance(item, list):
        return [_converted(each, level) for each in item]
    if not hasattr(item, "model_copy"):
        return item
    changed: dict[str, Any] = {}
    for name, value in item:
        if name in _LEVELS and value is not None:
            changed[name] = list(map(level, value)) if isinstance(value, list) else level(value)
        elif isinstance(value, dict) and any(isinstance(key, float) for key in value):
            changed[name] = {level(key): each for key, each in value.items()}
        else:
            changed[name] = _converted(value, level)
    return item.model_copy(update=changed)


def _area(summary: Summary) -> float:
    """The trapezoid of the last layer's metric over the noise."""
    points = zip(summary.noise, summary.values, strict=True)
    return sum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in pairwise(points))


def ways_to_compare(runs: Sequence[Results]) -> list[str]:
    """For runs whose noise no plain training among them has, the command that trains it there."""
    lines, groups = [], group_runs([in_std(run) for run in runs])
    for group in groups:
        if any(run.summary.method == "erm" for run in group.runs):
            continue
        ours = group.runs[0]
        plain = [run for other in groups for run in other.runs if _differs_in_noise(run.summary, ours.summary)]
        command = next(filter(None, (_at_noise_of(run, ours) for run in plain)), "")
        if command:
            given = "" if ours.variance is None else f", given as {ours.variance:g} with γσ_x as the variance"
            lines.append(
                f"{plain[0].name} was trained at γ = {plain[0].summary.train_noise:g} and {ours.name} at γ = "
                f"{ours.summary.train_noise:g}{given}. To compare them: {command}"
            )
    return lines


def _differs_in_noise(plain: Summary, ours: Summary) -> bool:
    """Whether one is plain training of the other's recipe and data, at another noise."""
    same = all(getattr(plain, name) == getattr(ours, name) for name in ("recipe", "dataset", "metric", "split"))
    return same and plain.method == "erm" and plain.train_noise != ours.train_noise


def _at_noise_of(plain: Results, ours: Results) -> str:
    """The command that trains a plain run at another run's noise; empty where its own command is not known."""
    given: dict[str, Any] = {}
    with suppress(InputError):
        given = dict(read_config(plain.folder).given) if plain.folder else {}
    if not given:
        return ""
    variance = ours.variance is not None
    level = ours.variance if variance else ours.summary.train_noise
    noise = {"noise": level, "noise_is": "variance" if variance else "std"}
    words = options({name: value for name, value in given.items() if value is not None} | noise)
    out = f"{plain.folder and plain.folder.absolute()}-at-{ours.summary.train_noise:g}"
    return shlex.join(["descend", "train", plain.summary.recipe, *words, "--out", out])
