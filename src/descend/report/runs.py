"""Runs as the page shows them, grouped into those that compare."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from descend.methods import CLASSES, GREY, Style
from descend.methods.erm import ERM
from descend.report.words import metric_name
from descend.results import Results, Summary, Unit

# In the order of legends and tables: the constrained last. A model that Descend did not train is drawn like plain
# training, which it is held against.
_ORDER = sorted(CLASSES.values(), key=lambda kind: (kind.asks, kind.constrained))
METHOD_NAMES = {"plain": "As given"} | {kind.name: kind.label for kind in _ORDER}
STYLES = {"plain": ERM.style} | {kind.name: kind.style for kind in _ORDER}

# A method keeps its style on every page, and one of another version is `GREY`; a second arm of one method gets a spare
# style.
SPARE_STYLES = (
    Style("#8a4a2f", "#c99a7e", "h"),
    Style("#7d6b00", "#ddc94a", "P"),
    Style("#5b57d6", "#a7a4ff", "X"),
)


def mean(values: Sequence[float]) -> float:
    """The mean, also of values that are not finite."""
    return sum(values) / len(values)


def mean_rows(rows: Iterable[Sequence[float]]) -> list[float]:
    """The mean over rows, such as one per seed, at each layer that all rows have."""
    return [mean(column) for column in zip(*rows, strict=False)]


@dataclass(frozen=True)
class Arm:
    """The runs of one method with one setting: they differ in their seeds only.

    Attributes:
        label: What its folders' names have in common; its ``kind`` where that is nothing or another arm's too.
        kind: Its method, and the settings in which it differs from other arms.
        style: How it is drawn.
        runs: Its runs, by seed.
    """

    label: str
    kind: str
    style: Style
    runs: list[Results]

    @property
    def summary(self) -> Summary:
        """The summary of the first seed."""
        return self.runs[0].summary

    def along(self, entry: str, level: float) -> list[list[float]]:
        """The values of layers 0 … L at a noise level, of each seed that has them.

        Args:
            entry: An entry of the summary by noise level, such as ``layer_losses`` or ``probe.layer_losses``.
            level: The noise level γ.
        """
        tables = [attrgetter(entry)(run.summary) for run in self.runs]
        return [table[level] for table in tables if level in table]

    def over_noise(self) -> dict[float, list[float]]:
        """γ → the last layer's metric there, of each seed that was evaluated at it."""
        tables = [dict(zip(run.summary.noise, run.summary.values, strict=True)) for run in self.runs]
        levels = sorted({level for table in tables for level in table})
        return {level: [table[level] for table in tables if level in table] for level in levels}

    def losses_to_reach(self, level: float) -> dict[int, float]:
        """What the layers had to reach at a noise level, the mean over seeds; empty for a run without constraints."""
        summaries = [run.summary for run in self.runs if run.summary.asked]
        rows = [summary.losses_to_reach(level) for summary in summaries if level in summary.layer_losses]
        shared = [layer for layer in (rows[0] if rows else ()) if all(layer in row for row in rows)]
        return {layer: mean([row[layer] for row in rows]) for layer in shared}


class Measure(NamedTuple):
    """What a section opens with: its name for readers, whether more is better, and the summary's entry."""

    name: str
    higher: bool
    entry: str


SAME_SIGMA = 1.02
"""Of two σ_x whose ratio is smaller, γ stands for the same noise."""

_COMPARED_BY = {
    "dataset": "data set",
    "family": "model",
    "train_noise": "training noise",
    "split": "split",
    "checkpoint": "checkpoint",
    "shift": "kind of noise",
    "metric": "metric",
}
"""The entries of a summary that are equal for all runs of a group, in words."""


@dataclass(frozen=True)
class Group:
    """The arms that compare: those whose summaries have equal entries `_COMPARED_BY`.

    ``other_data`` is the noisy input's own metric where another group has the same entries but other data.
    """

    arms: list[Arm]
    other_data: float | None = None

    @property
    def runs(self) -> list[Results]:
        """All runs of the group, arm by arm."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def summary(self) -> Summary:
        """The summary of the first run, for what all runs share."""
        return self.arms[0].summary

    @property
    def train_noise(self) -> float:
        """γ of the training."""
        return self.summary.train_noise

    @property
    def unit(self) -> Unit:
        """What a layer is called; a layer where the runs differ."""
        return self.summary.unit if len({run.summary.unit for run in self.runs}) == 1 else "layer"

    @property
    def depths(self) -> set[int]:
        """The depths of the runs."""
        return {run.summary.depth for run in self.runs}

    @property
    def depth(self) -> int:
        """The largest depth among the runs."""
        return max(self.depths)

    @property
    def metric(self) -> str:
        """The metric's name for readers."""
        return metric_name(self.summary)

    @property
    def measure(self) -> Measure:
        """The metric along the layers; the loss where no arm has the metric at each layer."""
        if self.summary.metric != "loss" and any(arm.along("layer_metrics", self.train_noise) for arm in self.arms):
            return Measure(self.metric, self.summary.higher_is_better, "layer_metrics")
        return Measure("Loss", False, "layer_losses")

    @property
    def input_value(self) -> float | None:
        """The metric of the noisy input itself at the training noise; None where it was not measured."""
        known = [run.summary.input_metrics.get(self.train_noise) for run in self.runs if self.train_noise]
        return next((value for value in known if value is not None), None)

    def milliseconds(self, arm: Arm) -> list[float]:
        """Per sample up to each layer of an arm, the least of networks of its shape timed alike; empty if none was."""
        alike = [other for other in self.arms if other is arm or _shape(other.summary) == _shape(arm.summary)]
        timed = [run.summary.latency for other in alike for run in other.runs if run.summary.latency]
        return list(map(min, zip(*(each.milliseconds for each in timed), strict=True)))

    @property
    def sigma_apart(self) -> str:
        """That γ stands for different noise, in words; σ_x differs a little where models learn their embedding."""
        sigmas = [sigma for run in self.runs if (sigma := run.summary.sigma)]
        if not sigmas or max(sigmas) <= SAME_SIGMA * min(sigmas):
            return ""
        return f"γ stands for different noise: σ_x is {min(sigmas):.3g} to {max(sigmas):.3g}."

    @property
    def noise_levels(self) -> list[float]:
        """The noise levels at which layer losses are known, in order."""
        return sorted({level for run in self.runs for level in run.summary.layer_losses})

    @property
    def name(self) -> str:
        """The group in words, with what was evaluated where that is not the final model on test data."""
        first, plain = self.summary, all(run.summary.method == "plain" for run in self.runs)
        words = f"{first.model if len(self.depths) == 1 else first.family} on {first.dataset}, " + (
            "as given" if plain else f"trained at γ = {first.train_noise:g}"
        )
        words += f", evaluated on the {first.split} split" if first.split != "test" else ""
        words += f", under {first.shift} noise" if first.shift != "gaussian" else ""
        words += f", {first.checkpoint.replace('_', ' ')} checkpoint" if first.checkpoint != "model" else ""
        words += f", where the noisy input has {self.metric} {self.other_data:.3g}" if self.other_data else ""
        return words


def groups_differ(groups: Sequence[Group]) -> str:
    """In what some groups differ, in words."""
    apart = [words for name, words in _COMPARED_BY.items() if len({getattr(each.summary, name) for each in groups}) > 1]
    apart += ["the noisy input"] if len({group.other_data for group in groups}) > 1 else []
    return ", ".join(apart)


def group_runs(runs: Sequence[Results]) -> list[Group]:
    """Gather runs by what makes them comparable (see `Group`), then by method, ERM before the others, and setting.

    Two data sets may have one name. Every run is evaluated under the same draws of noise, so where the metric of the
    noisy input differs, the data do.
    """
    groups: dict[tuple[Any, ...], dict[float | None, list[Results]]] = {}
    for run in runs:
        key = attrgetter(*_COMPARED_BY)(run.summary)
        given = run.summary.input_metrics.get(run.summary.train_noise)
        mark = None if given is None else float(f"{given:.4g}")
        groups.setdefault(key, {}).setdefault(mark, []).append(run)
    return [
        Group(_arms(members), mark if len(marks) > 1 else None)
        for marks in groups.values()
        for mark, members in marks.items()
    ]


def _setting(summary: Summary) -> dict[str, Any]:
    """The settings in which arms of one method may differ: all but the seed; α only if training used it."""
    steps = tuple(summary.alpha)
    alpha = {"α": steps[:1] if len(set(steps)) == 1 else steps} if summary.asked else {}
    named = ("depth", "keep_layers")  # settings that say how many layers there are
    settings = {name: value for name, value in summary.settings.items() if name not in named}
    return {"recipe": summary.recipe, **alpha, **settings, "layers": summary.depth}


def _arms(runs: Sequence[Results]) -> list[Arm]:
    gathered: list[list[Results]] = []
    for run in sorted(runs, key=lambda run: (*METHOD_NAMES, run.summary.method).index(run.summary.method)):
        kind = (run.summary.method, _setting(run.summary))
        alike = (each for each in gathered if (each[0].summary.method, _setting(each[0].summary)) == kind)
        if not (seeds := next(alike, [])):
            gathered.append(seeds)
        seeds.append(run)
    arms: list[Arm] = []
    everyone = [_setting(other[0].summary) for other in gathered]
    for members, setting in zip(gathered, everyone, strict=True):
        method = members[0].summary.method
        rivals = [known for other, known in zip(gathered, everyone, strict=True) if other[0].summary.method == method]
        differing = [
            _in_words(name, _shown(value, [rival.get(name) for rival in rivals]))
            for name, value in setting.items()
            if any(rival.get(name) != value for rival in (everyone if name == "layers" else rivals))
        ]
        taken = [arm.style for arm in arms]
        style = next(
            (each for each in (STYLES.get(method, GREY), *SPARE_STYLES) if each not in taken),
            SPARE_STYLES[len(arms) % len(SPARE_STYLES)],
        )
        named = ", ".join(filter(None, [METHOD_NAMES.get(method, method), *differing]))
        arms.append(Arm(named, named, style, sorted(members, key=lambda run: run.summary.seed)))
    stems = [_stem([run.name for run in arm.runs]) for arm in arms]
    if all(stems) and len({*stems}) == len(stems):
        arms = [replace(arm, label=stem) for arm, stem in zip(arms, stems, strict=True)]
    return arms


def _stem(names: Sequence[str]) -> str:
    """What names have in common at their beginning, without a seed's first digits and the sign before them."""
    if len(names) == 1:
        return names[0]
    letters = zip(*names, strict=False)
    shared = "".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, letters))
    return shared.rstrip("0123456789").rstrip("-_. ")


_SIZES = ("model", "max_length", "image_size", "window", "hidden_size", "tied", "exits", "pooling", "readout")
"""Settings that a network's time depends on."""


def _shape(summary: Summary) -> object:
    """What a network's time depends on: its hash and its depth, as tied layers have the same weights at any depth.

    In files of older versions it is what a recipe's settings say.
    """
    timed = summary.latency
    if timed is None or (timed.network is None and summary.of_script):
        return id(summary)
    if timed.network is not None:
        return timed.network, summary.depth, timed.device, timed.batch_size
    sizes = [summary.settings.get(name) for name in _SIZES]
    return summary.recipe, summary.model, timed.device, timed.batch_size, sizes


def _shown(value: Any, others: Sequence[Any]) -> Any:
    """A setting for others to read: of a path on this machine the end that tells it from other runs' paths."""
    if not (isinstance(value, str) and Path(value).is_absolute()):
        return value
    ends = (Path(*Path(value).parts[-count:]) for count in range(1, len(Path(value).parts)))
    paths = [Path(other) for other in others if isinstance(other, str) and other != value]
    return str(next((end for end in ends if not any(path.match(str(end)) for path in paths)), Path(value).name))


def _in_words(setting: str, value: Any) -> str:
    if value is None or value == ():
        return ""
    if setting == "α":
        return f"α = {format_alpha(value)}"
    if setting == "layers":
        return f"{value} layers"
    if setting == "heal":
        return "healed" if value else ""
    return str(value) if setting == "recipe" else f"{setting.replace('_', ' ')} {value}"


def format_alpha(alpha: Sequence[float]) -> str:
    """Write α as one number if it is one, else as its range."""
    low, high = min(alpha), max(alpha)
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def by_run(group: Group, said: Iterable[tuple[Results, str]]) -> list[str]:
    """Sentences about runs, each once, with the arms that it is about, and their seeds where these differ.

    Args:
        group: All runs of the section. Where they are of one arm, it is not named.
        said: Runs with a sentence of each; those that are empty are left out.
    """
    sentences: dict[str, list[Results]] = {}
    for run, sentence in said:
        if sentence:
            sentences.setdefault(sentence, []).append(run)
    lines = []
    for sentence, runs in sentences.items():
        whose = []
        for arm in group.arms:
            seeds = [str(run.summary.seed) for run in arm.runs if any(run is each for each in runs)]
            parts = [arm.label] * (len(group.arms) > 1) + [f"seed {', '.join(seeds)}"] * (len(seeds) < len(arm.runs))
            whose += [", ".join(parts)] if seeds and parts else []
        lines.append((Markup("<b>{}.</b> ").format("; ".join(whose)) if whose else "") + sentence)
    return lines
