"""The figures on what the method's own settings do: 5 and 14 (the step α), 15 (the dual learning rate η)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan

import numpy as np
from scipy.stats import f

from descend.paper.report.cells import Place, Run, data_name, metric_name
from descend.paper.report.chart import Chart, Panel, shades
from descend.paper.report.claims import Claim, above, every, not_run, number, ranged, within
from descend.paper.report.estimates import Interval, Number, robust, same_seeds, together
from descend.paper.report.parts import BANDS, Shown, advantage, banded, by_level, spoiled, unit
from descend.paper.report.results import Results
from descend.paper.statistics import CONFIDENCE

POINT = 1.0
"""Points of accuracy (per cent of an error) that we take for alike."""

COST = 0.3
"""The same in distribution, as the paper's Section 5.1 has it."""

Family = dict[float, list[Run]]


def figure_5(results: Results) -> Shown:
    """What a larger α does, in and out of distribution."""
    says = (
        "A larger α makes the model more robust to strong noise.",
        f"It costs less than {COST:g} points in distribution.",
    )
    name, title = "figure-5", "The step α: in and out of distribution"
    family, bound = _family(results, "alpha=", lambda run: run.alpha)
    if len(family) < 2:
        needs = "constrained cells at two values of α or more"
        claims = [not_run(name, words, needs) for words in says]
        return Shown(claims, Chart(name, title, BANDS, missing=f"Not run: {needs}."))
    first = next(iter(family.values()))[0]
    levels = robust(tuple(next(iter(family.values())))).noise
    chosen = {"in distribution": first.gamma, "out of distribution": levels[-1]}
    panel = _against(family, "α", _title(first), chosen)
    few, much = together(family[min(family)], family[max(family)])
    outside = advantage(much.at(levels[-1]), few.at(levels[-1]), first.higher).interval
    judged = every(by_level(family[max(family)], family[min(family)], first.gamma), above, -COST)
    span = f"From α = {min(family):g} to {max(family):g}"
    kind = unit(first.higher)
    claims = [
        Claim(name, says[0], above(outside), f"{span} the gain at γ = {levels[-1]:g} is {ranged(outside, kind)}."),
        Claim(
            name,
            says[1],
            judged.held,
            f"{span}, most against it speaks test γ = {judged.worst:g}: a gain of {ranged(judged.end, kind)}.",
        ),
    ]
    return Shown([spoiled(claim, bound) for claim in claims], Chart(name, title, BANDS, [panel], 1))


def figure_14(results: Results) -> Shown:
    """What a larger α does at three noise levels."""
    says = (
        f"At weak and middling noise accuracy does not depend on α (here: within {POINT:g} point).",
        "Seeds differ more at strong noise than at weak.",
    )
    title = "The step α at three noise levels"
    return _three_levels("figure-14", title, "α", _family(results, "alpha=", lambda run: run.alpha), *says)


def figure_15(results: Results) -> Shown:
    """What the dual learning rate does at three noise levels."""
    says = f"At every noise level results depend little on the dual learning rate (here: within {POINT:g} point)."
    title = "The dual learning rate η at three noise levels"
    found = _family(results, "dual_lr=", lambda run: _setting(run, "dual_lr"))
    return _three_levels("figure-15", title, "η", found, says)


def _three_levels(
    name: str, title: str, axis: str, found: tuple[Family, list[Run]], alike: str, apart: str = ""
) -> Shown:
    """A setting that results are claimed not to depend on: at weak noise alone, where seeds lie ``apart`` at strong."""
    family, bound = found
    if len(family) < 2:
        needs = f"constrained cells at two values of {axis} or more"
        claims = [not_run(name, words, needs) for words in (alike, apart) if words]
        return Shown(claims, Chart(name, title, BANDS, missing=f"Not run: {needs}."))
    first = next(iter(family.values()))[0]
    noise = robust(tuple(next(iter(family.values())))).noise
    levels = sorted({noise[0], noise[len(noise) // 2], noise[-1]})
    panel = _against(family, axis, _title(first), {f"test γ = {level:g}": level for level in levels})
    panel = replace(panel, log_x=axis == "η" and min(family) > 0)
    chart = Chart(name, title, BANDS, [panel], 1)
    asked = levels[:-1] if apart and len(levels) > 1 else levels
    changes = {(level, value): change for level in asked for value, change in _changes(family, level).items()}
    judged = every(changes, within, POINT)
    level, value = judged.worst
    told = (
        f"Most against it speaks {axis} = {value:g} at test γ = {level:g}: from {axis} = {min(family):g} it differs by "
        f"{ranged(judged.end, unit(first.higher))}."
    )
    claims = [Claim(name, alike, judged.held, told)]
    if apart:
        claims.append(_spread(name, apart, family, levels))
    return Shown([spoiled(claim, bound) for claim in claims], chart)


def _changes(family: Family, level: float) -> dict[float, Number]:
    """By how much the result of each value differs from that of the smallest."""
    found = {}
    for value, runs in family.items():
        if value != min(family):
            ours, base = together(runs, family[min(family)])
            found[value] = advantage(ours.at(level), base.at(level), ours.higher)
    return found


def _spread(name: str, says: str, family: Family, levels: Sequence[float]) -> Claim:
    arms = same_seeds(*family.values())
    if len(arms[0]) < 2:
        return not_run(name, says, "two seeds or more")
    # Values share their seeds, so that they are no samples of their own: each level has the freedom of its seeds alone.
    ends = [np.array([[_value(run, level) for run in runs] for runs in arms]) for level in (levels[0], levels[-1])]
    weak, strong = (100 * float(np.sqrt(values.var(1, ddof=1).mean())) for values in ends)
    ratio = strong / weak if weak else nan
    reach = float(f.ppf((1 + CONFIDENCE) / 2, len(arms[0]) - 1, len(arms[0]) - 1)) ** 0.5
    found = Interval(ratio, ratio / reach, ratio * reach)
    told = (
        f"The standard deviation over {len(arms[0])} seeds, in the mean over {len(arms)} values, is {number(strong)} "
        f"points at test γ = {levels[-1]:g} and {number(weak)} at {levels[0]:g}: {ranged(found)} times as large."
    )
    return Claim(name, says, above(found, 1.0), told)


def _value(run: Run, level: float) -> float:
    return dict(zip(run.view.noise, run.view.values, strict=True))[level]


def _against(family: Family, axis: str, title: str, levels: dict[str, float]) -> Panel:
    """The metric against a setting, a line for each noise level."""
    first = next(iter(family.values()))[0]
    styles = shades(len(levels))
    series = []
    for (name, level), style in zip(levels.items(), styles, strict=True):
        ends = [robust(tuple(family[value])).at(level).interval for value in sorted(family)]
        series.append(banded(name, style, sorted(family), ends))
    return Panel(title, axis, metric_name(first), series)


def _family(results: Results, start: str, value: Callable[[Run], float | None]) -> tuple[Family, list[Run]]:
    """Value of a setting → constrained runs, of the place that has the most values; the table's own are among them.

    Beside them all runs that belong there, those too of which nobody knows the value any more since they diverged.
    """
    found: dict[Place, Family] = {}
    for run in results.variants(start):
        try:
            given = float(run.variant.removeprefix(start))
        except ValueError:
            continue
        found.setdefault(run.place, {}).setdefault(given, []).append(run)
    if not found:
        return {}, []
    place, family = max(found.items(), key=lambda item: len(item[1]))
    varied = set(family)
    table = [run for run in results.runs if not run.variant and run.arm == "constrained" and run.place == place]
    for run in table:
        own = value(run)
        if own is not None and own not in varied:
            family.setdefault(own, []).append(run)
    bound = [*table, *(run for runs in family.values() for run in runs if run.variant)]
    return {value: sorted(family[value], key=lambda run: run.seed) for value in sorted(family)}, bound


def _title(run: Run) -> str:
    return f"{run.model}-{run.depth}, {data_name(run.data)}, γ = {run.gamma:g}"


def _setting(run: Run, name: str) -> float | None:
    found = run.view.settings.get(name)
    return float(found) if isinstance(found, int | float) else None
