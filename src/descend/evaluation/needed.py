"""How many layers suffice, and whether the last one is as good as a baseline's, with confidence."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from scipy.stats import t as student

from descend.errors import InputError
from descend.jackknife import degrees_of_freedom, standard_error
from descend.results import (
    CONFIDENCE,
    ENOUGH_GROUPS,
    GROUPS_FILE,
    Groups,
    Kept,
    LayerGroups,
    LayersNeeded,
    Summary,
    read_groups,
    read_summary,
)
from descend.results.findings import KEPT_WITHIN, WITHIN


@dataclass(frozen=True)
class Baseline:
    """An evaluated model to whose full depth others are held: the best plain training of the same model.

    Attributes:
        name: Its folder.
        data: The data set's name, its split, the kind of noise, and the metric.
        groups: Its ``groups.json``.
    """

    name: str
    data: tuple[str, str, str, str]
    groups: Groups

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The files of an evaluation.

        Args:
            folder: An evaluated run, or the folder in it of an evaluation on other data.

        Raises:
            InputError: If there was none, or a file is damaged.
        """
        summary, groups = read_summary(folder), read_groups(folder)
        if groups is None:
            raise InputError(f"the baseline {folder} has no {GROUPS_FILE}: evaluate it again.")
        return cls(str(folder), _data(summary), groups)

    def of(self, data: tuple[str, str, str, str]) -> Self:
        """The baseline, for a model that is evaluated on these data.

        Raises:
            InputError: If the baseline was evaluated on others.
        """
        for ours, theirs, what in zip(data, self.data, ("data", "split", "noise", "metric"), strict=True):
            if ours != theirs:
                raise InputError(
                    f"the baseline {self.name} was evaluated on the {what} {theirs}; this model on {ours}. Evaluate "
                    "both on the same."
                )
        return self

    def check_levels(self, levels: Iterable[float]) -> None:
        """Raise an `InputError` unless the baseline's layers were evaluated at these noise levels."""
        layers = self.groups.layers
        if layers is None or not layers.scores:
            raise InputError(f"the baseline {self.name} is from an older version: evaluate it again.")
        if missing := [f"{level:g}" for level in levels if level not in layers.noise]:
            raise InputError(
                f"the baseline {self.name} was not evaluated at the noise {', '.join(missing)}; evaluate both at the "
                "same levels, by --noise."
            )


@dataclass(frozen=True)
class Against:
    """A model's layers against a full depth, at one noise level, by blocks of independent samples.

    Attributes:
        counts: Samples in each block, (B,).
        scores: Sums of the metric's scores of each layer, (B, L+1).
        full: Those of the full depth that they are held to, (B,).
        root: Whether the metric is the root of the mean score.
        higher_is_better: Whether more of it is better.
        groups: How many independent groups the blocks hold; 1 where nothing is known of other groups.
        own: Whether the full depth is the model's own.
    """

    counts: np.ndarray
    scores: np.ndarray
    full: np.ndarray
    root: bool
    higher_is_better: bool
    groups: int
    own: bool = False

    def excess(self, percent: float, confidence: float) -> tuple[np.ndarray, np.ndarray]:
        r"""The ends of one-sided intervals of how far each layer is beyond a tolerance, both (L+1,).

        With the mean score m_l of layer l and M of the full depth it is, for x = ``percent`` / 100,

        .. math:: M - m_l - x \quad\text{or, where less is better,}\quad m_l - (1+x)\,M

        with (1+x)² where the metric is the root of the mean score. It is linear in the scores, so samples are paired.
        Below 0 the layer is within the tolerance. Intervals are the jackknife's over blocks, with Student's t. Answers
        that are right or wrong hardly differ between two layers, and their error may be 0 by chance: of G groups it
        counts at least √(x(1−x)/G), that of a share x of changed answers.

        Args:
            percent: The tolerance: points of a metric that is better when higher, else relative to the full depth.
            confidence: Of each end.

        Returns:
            The lower and the upper ends; NaN below `ENOUGH_GROUPS` blocks.
        """
        x = percent / 100
        if self.higher_is_better:
            sums = self.full[:, None] - self.scores - x * self.counts[:, None]
        else:
            sums = self.scores - (1 + x) ** (2 if self.root else 1) * self.full[:, None]
        mean = sums.sum(0) / self.counts.sum()
        if min(len(self.counts), self.groups) < ENOUGH_GROUPS:
            return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
        with np.errstate(invalid="ignore"):  # of what has diverged
            error = standard_error(sums, self.counts)
        if self.higher_is_better:
            error = np.maximum(error, np.sqrt(x * (1 - x) / self.groups))
        if self.own:
            error[-1] = 0.0  # the last layer is its own full depth
        width = error * student.ppf(confidence, degrees_of_freedom(self.counts))
        return mean - width, mean + width

    def needed(self) -> dict[int, int | None]:
        """For 1, 2 and 5 percent the smallest K from which on all layers are within it; None if none is.

        The layers are tested one after the other from the last one on, until one is not within the tolerance: a fixed
        sequence of tests, each at the full confidence (Maurer, Hothorn and Lehmacher, 1995). The confidence of 95 % is
        that of the three percents together (Bonferroni).
        """
        smallest: dict[int, int | None] = {}
        for percent in WITHIN:
            _, high = self.excess(percent, 1 - (1 - CONFIDENCE) / len(WITHIN))
            layer = len(high)
            while layer and high[layer - 1] <= 0:
                layer -= 1
            smallest[percent] = layer if layer < len(high) else None
        return smallest

    def kept(self) -> Kept:
        """Whether the last layer is within 2 percent of the full depth: proven, open, or broken if that is excluded."""
        low, high = self.excess(KEPT_WITHIN, CONFIDENCE)
        return "proven" if high[-1] <= 0 else "broken" if low[-1] > 0 else "open"


def layers_needed(
    groups: Groups, baseline: Baseline | None, *, noise: float, higher_is_better: bool, seconds: list[float] | None
) -> tuple[LayersNeeded, dict[float, Kept]]:
    """How many layers suffice, and at which noise levels the last one keeps the baseline's quality.

    Args:
        groups: Scores of every layer by blocks of samples.
        baseline: To whose full depth layers are held; None for their own model's.
        noise: The level γ at which layers are counted.
        higher_is_better: Whether more of the metric is better.
        seconds: The time to each layer; None where it was not measured.

    Returns:
        Both; without a baseline there is nothing to keep.

    Raises:
        InputError: If the baseline was evaluated on other samples or other noise.
    """
    ours = groups.layers
    assert ours is not None
    theirs = ours if baseline is None else _of_the_same(groups, baseline)
    kept: dict[float, Kept] = {}
    smallest: dict[int, int | None] = {}
    for place, level in enumerate(ours.noise):
        full = np.array(theirs.scores[theirs.noise.index(level)][-1])
        against = Against(
            np.array(ours.counts),
            np.array(ours.scores[place]).T,
            full,
            groups.root,
            higher_is_better,
            groups=1 if groups.single else len(groups.counts),
            own=baseline is None,
        )
        if baseline is not None:
            kept[level] = against.kept()
        if level == noise:
            smallest = against.needed()
    time = {
        percent: None if layer is None or seconds is None else seconds[layer] / seconds[-1]
        for percent, layer in smallest.items()
    }
    name = None if baseline is None else baseline.name
    return LayersNeeded(baseline=name, noise=noise, within=smallest, time=time), kept


def held_to_plain(folders: Sequence[Path]) -> list[Summary]:
    """The summaries of evaluated runs, with layers held to the full depth of the plain training among them.

    That is the first run of ``erm`` on the same data with the same seed, or with any. Runs of ``erm``, and those
    without such a baseline, stay as they were evaluated.
    """
    summaries = [read_summary(folder) for folder in folders]
    plain = [pair for pair in zip(folders, summaries, strict=True) if pair[1].method == "erm"]
    held = []
    for folder, summary in zip(folders, summaries, strict=True):
        same = [pair for pair in plain if _data(pair[1]) == _data(summary)]
        same.sort(key=lambda pair: pair[1].seed != summary.seed)  # in their order otherwise
        groups = read_groups(folder)
        if summary.method != "erm" and same and groups is not None and groups.layers is not None:
            with suppress(InputError):  # other samples or levels: its own full depth stays
                needed, kept = layers_needed(
                    groups,
                    Baseline.read(same[0][0]),
                    noise=summary.train_noise,
                    higher_is_better=summary.higher_is_better,
                    seconds=summary.latency.milliseconds if summary.latency else None,
                )
                summary = summary.model_copy(update={"layers_needed": needed, "kept": kept})
        held.append(summary)
    return held


def _data(summary: Summary) -> tuple[str, str, str, str]:
    return summary.dataset, summary.split, summary.shift, summary.metric


def _of_the_same(groups: Groups, baseline: Baseline) -> LayerGroups:
    """The layers of a baseline that was evaluated on the same samples."""
    ours, theirs = groups.layers, baseline.groups.layers
    assert ours is not None
    baseline.check_levels(ours.noise)
    assert theirs is not None
    if not ours.scores:
        raise InputError("the layers' scores are unknown: an older version evaluated this model. Evaluate it again.")
    if (ours.counts, groups.counts) != (theirs.counts, baseline.groups.counts):
        raise InputError(
            f"the baseline {baseline.name} was evaluated on {sum(theirs.counts)} samples in "
            f"{len(baseline.groups.counts)} groups; this model on {sum(ours.counts)} in {len(groups.counts)}. Evaluate "
            "both on the same data."
        )
    return theirs
