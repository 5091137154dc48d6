"""The charts of a group of runs; each is None where no run has its numbers."""

from collections.abc import Sequence
from math import isnan
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex

from descend.report.charts import MUTED, Chart, Series, chart
from descend.report.gains import Gains
from descend.report.runs import Arm, Group, mean, mean_rows
from descend.results import KEPT_WITHIN, Results

MOST_POINTS, MOST_LEVELS = 300, 6


def quality(group: Group) -> Chart:
    """The measure along the layers at the training noise, with a ring at each K."""
    measure, level, given = group.measure, group.train_noise, group.input_value
    series = [line for arm in group.arms for line in _along(arm, measure.entry, level)]
    series += [ring for arm in group.arms for ring in _rings(arm, range(group.depth + 1))]
    if given is not None and measure.entry == "layer_metrics":
        places = list(range(group.depth + 1))
        series.append(Series("Noisy input", places, [given] * len(places), MUTED, line="--", width=1.5))
    noise = f"at the training noise, γ\u00a0=\u00a0{level:g}" if level else "without noise"
    words = f"{measure.name} on {group.summary.split} data if the network is left after each {group.unit}, {noise}."
    if any(each.hollow for each in series):
        words += f" A ring marks the {group.unit} K that suffices within 2 points or percent."
    better = "higher" if measure.higher else "lower"
    return chart(
        f"{measure.name} along the {group.unit}s", words,
        (_axis(group), f"{measure.name} ({better} is better)"), series,
        log=None, layers=True, mark=(group.depth // 2, "half depth") if group.depth > 2 else None,
    )  # fmt: skip


def further(group: Group) -> Chart | None:
    """The measure of unrolled networks that ran past the iterations of their training."""
    measure, level, series = group.measure, group.train_noise, []
    past = measure.entry.replace("layer", "past")
    for arm in group.arms:
        both = [run for run in arm.runs if level in getattr(run.summary, past)]
        rows = [getattr(run.summary, measure.entry)[level] + getattr(run.summary, past)[level] for run in both]
        if rows:
            series.append(_line(arm, range(min(map(len, rows))), list(zip(*rows, strict=False))))
    if not series:
        return None
    words = (
        f"The networks have {group.depth} iterations in training; to the right of the dashed line their block runs "
        "more often than that."
    )
    return chart(
        f"{measure.name} past the trained iterations", words, ("iteration", measure.name), series,
        log=None, layers=True, mark=(group.depth, "trained"),
    )  # fmt: skip


def time(group: Group) -> Chart | None:
    """The measure against the measured milliseconds per sample up to each layer."""
    series = []
    for arm in group.arms:
        values, times = mean_rows(arm.along("layer_metrics", group.train_noise)), group.milliseconds(arm)
        if values and times:
            series += [Series(arm.label, times, values, arm.style.light, arm.style.marker), *_rings(arm, times)]
    if not series:
        return None
    timed = [run.summary.latency for run in group.runs if run.summary.latency]
    measured = " and on ".join(dict.fromkeys(f"{each.device}, in batches of {each.batch_size}" for each in timed))
    words = f"What a budget of time buys, measured on {measured}. Of networks of one shape the least time counts."
    return chart(f"{group.metric} against time", words, ("milliseconds per sample", group.metric), series, log=None)


def losses(group: Group) -> Chart:
    """The loss along the layers: what each layer under a constraint had to reach, and linear probes."""
    series = [line for arm in group.arms for line in _along(arm, "layer_losses", group.train_noise)]
    words = [
        f"How wrong the answer is if it is read off after each {group.unit}. On a log scale a steady descent is a "
        "straight line."
    ]
    for arm in group.arms:
        if probed := mean_rows(arm.along("probe.layer_losses", group.train_noise)):
            name = f"{arm.label}, linear probe"
            series.append(Series(name, range(len(probed)), probed, arm.style.light, ".", ":"))
            words.append(
                "Dotted: a linear probe fitted to each layer, which shows what a layer knows, whatever its head can "
                "read."
            )
        if to_reach := arm.losses_to_reach(group.train_noise):
            name, colour = f"{arm.label}, had to reach", arm.style.light
            series.append(Series(name, list(to_reach), list(to_reach.values()), colour, "_", "", size=16))
            words.append("A layer under a constraint must land on or below its short bar.")
    return chart(
        f"Loss along the {group.unit}s",
        " ".join(dict.fromkeys(words)),
        (_axis(group), "loss"),
        series,
        log=True,
        layers=True,
    )


def robustness(group: Group) -> Chart | None:
    """The last layer's metric against noise."""
    if len(group.noise_levels) < 2:
        return None
    series = []
    for arm in group.arms:
        values = arm.over_noise()
        series.append(_line(arm, list(values), list(values.values())))
    words = (
        f"The last {group.unit}’s answer as the input gets noisier. To the right of the dashed line lies stronger "
        "noise than in training: the flatter a curve stays there, the more robust its network."
    )
    words = f"{words} {group.sigma_apart}".rstrip()
    axes, mark = ("noise level γ", group.metric), (group.train_noise, "training noise")
    return chart(f"{group.metric} against noise", words, axes, series, log=None, mark=mark)


def gain_over_noise(group: Group, found: Sequence[Gains]) -> Chart | None:
    """How much better each arm is than plain training at each noise level, with 95 % intervals."""
    if not found or len(group.noise_levels) < 2:
        return None
    series = [
        Series("Plain training", group.noise_levels, [0.0] * len(group.noise_levels), MUTED, line="--", width=1.5)
    ]
    for each in found:
        values = list(each.levels.values())
        known = not any(isnan(value.low) for value in values)
        ends = ([value.low for value in values], [value.high for value in values]) if known else None
        style, name = each.arm.style, each.arm.label
        series.append(
            Series(name, list(each.levels), [value.value for value in values], style.light, style.marker, ends=ends)
        )
    words = (
        f"How much better {group.metric} is than plain training’s of the same seeds, in percent of that; above 0 is "
        "better. Bands are 95 % intervals over groups of test samples, and over seeds where there are several."
    )
    axes, mark = ("noise level γ", "gain, %"), (group.train_noise, "training noise")
    return chart("Gain over plain training", words, axes, series, mark=mark)


def by_noise(group: Group) -> list[Chart]:
    """The measure along the layers at other noise levels than the training's, on one scale."""
    measure, levels = group.measure, [level for level in group.noise_levels if level != group.train_noise]
    shown = {level: [line for arm in group.arms for line in _along(arm, measure.entry, level)] for level in levels}
    every = [line for lines in shown.values() for line in lines]
    words, axes = f"The same networks, left after each {group.unit}.", (_axis(group), measure.name)
    return [
        chart(f"{measure.name} at γ = {level:g}", words, axes, shown[level], log=None, layers=True, like=every)
        for level in levels[:: -(-len(levels) // MOST_LEVELS) or 1]
    ]


def samples(group: Group) -> list[Chart]:
    """What leaving early costs."""
    series = []
    for arm in group.arms:
        if exits := next((run.summary.exit for run in arm.runs if run.summary.exit), None):
            points = sorted(exits.confidence, key=lambda point: point.layers)
            x, y = [point.layers for point in points], [point.value for point in points]
            series.append(Series(arm.label, x, y, arm.style.light, "."))
            ends = [exits.chosen.layers, exits.depth], [exits.chosen.value, exits.full]
            series.append(Series("", *ends, arm.style.light, arm.style.marker, "", size=9))
    words = (
        f"{group.metric} left where a sample stops at the first layer that is sure enough, on clean inputs. Large "
        "marks: the threshold chosen on validation data, and full depth."
    )
    return [chart("Early exits", words, ("layers used, on average", group.metric), series)] if series else []


def prices(group: Group) -> list[Chart]:
    """The multipliers over training steps, of one run of each constrained arm."""
    found, bound = [], [arm for arm in group.arms if arm.summary.asked]
    words = (
        "The price of each constraint during training. A multiplier grows while its layer breaks the constraint and "
        "sinks back towards zero while it holds; one that never stops growing asks too much."
    )
    for arm in bound:
        if run := next((run for run in arm.runs if run.history), None):
            whose = f" ({arm.label})" if len(bound) > 1 else ""
            found.append(chart(f"Multipliers{whose}", words, ("training step", "multiplier λ"), _multipliers(run)))
    return found


def norms(group: Group) -> list[Chart]:
    """The size of the state along the iterations of networks with one block."""
    series, furthest = [], group.depth
    for arm in group.arms:
        if rows := [run.summary.state_norms for run in arm.runs if run.summary.state_norms]:
            series.append(_line(arm, range(min(map(len, rows))), list(zip(*rows, strict=False))))
            furthest = max(furthest, *(len(row) - 1 for row in rows))
    words = (
        "The root mean square of the entries of the state after each iteration, at the training noise. A state that "
        "settles can go on; one that grows past the trained iterations diverges."
    )
    axes, mark = (_axis(group), "root mean square"), (group.depth, "trained") if furthest > group.depth else None
    return [chart("Size of the state", words, axes, series, log=True, layers=True, mark=mark)] if series else []


def _axis(group: Group) -> str:
    """The title of an axis along the layers."""
    return "iteration (0: the start)" if group.unit == "iteration" else "layer (0: before the first block)"


def _multipliers(run: Results) -> list[Series]:
    depth, series = max(run.history, default=0), []
    for layer, values in run.history.items():
        if not any(values.values()) if layer == 0 else not run.summary.asks(layer):
            continue
        steps, stride = list(values), -(-len(values) // MOST_POINTS)
        shown = [*steps[:-1:stride], steps[-1]]
        colour = to_hex(colormaps["plasma"](0.2 + 0.6 * (layer - 1) / max(depth - 1, 1))) if layer else MUTED
        name = (f"{run.summary.unit} {layer}" if layer % -(-depth // 12) == 0 else "") if layer else "cap"
        series.append(Series(name, shown, [values[step] for step in shown], colour, line="-" if layer else ":"))
    return series


def _along(arm: Arm, entry: str, level: float) -> list[Series]:
    """An arm's line through the means of the seeds' values by layer; none where it was not measured."""
    rows = arm.along(entry, level)
    return [_line(arm, range(len(rows[0])), list(zip(*rows, strict=False)))] if rows else []


def _line(arm: Arm, x: Sequence[Any], columns: Sequence[Sequence[float]]) -> Series:
    """A line through the seeds' means and, with several seeds, a band from their lowest to their highest."""
    ends = (list(map(min, columns)), list(map(max, columns))) if len(arm.runs) > 1 else None
    return Series(arm.label, list(x), list(map(mean, columns)), arm.style.light, arm.style.marker, ends=ends)


def _rings(arm: Arm, places: Sequence[float]) -> list[Series]:
    """A ring around each layer K of an arm's runs that was chosen for 2 percent."""
    rings = []
    for run in arm.runs:
        needed = run.summary.layers_needed
        choice, row = needed.choice(KEPT_WITHIN), run.summary.layer_metrics.get(run.summary.train_noise)
        if choice and row and choice.layer < len(places) and (needed.baseline or run.summary.better_layer is None):
            x, y = [places[choice.layer]], [row[choice.layer]]
            rings.append(Series("", x, y, arm.style.light, "o", "", size=12, hollow=True))
    return rings
