"""How many layers suffice, and whether the last one is as good as a baseline's, with confidence."""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.stats import t as student

from descend.errors import InputError, refuse
from descend.jackknife import degrees_of_freedom, standard_error
from descend.results import (
    CONFIDENCE,
    ENOUGH_GROUPS,
    GROUPS_FILE,
    KEPT_WITHIN,
    WITHIN,
    Choice,
    Groups,
    Kept,
    LayerGroups,
    LayersNeeded,
    Summary,
    Validation,
    first_within,
    read_groups,
    read_summary,
)

SHARED = 1 - (1 - CONFIDENCE) / len(WITHIN)
"""The confidence of each tolerance: that of the three together is `CONFIDENCE` (Bonferroni)."""


PLAIN = ("erm", "probe")
"""Methods of which the model hears the last layer's loss alone: what others are held against, in this order."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluated model. As a baseline it is what others are held to: the best plain training of the same model.

    Attributes:
        name: Its folder.
        summary: Its ``summary.json``.
        groups: Its ``groups.json``, which a baseline has.
    """

    name: str
    summary: Summary
    groups: Groups | None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a baseline, or a run to be held to one.

        Args:
            folder: An evaluated run, or the folder in it of an evaluation on other data.

        Raises:
            InputError: If there was none, or a file is missing or damaged.
        """
        found = cls(str(folder), read_summary(folder), read_groups(folder))
        if found.groups is None:
            raise InputError(f"{folder} has no {GROUPS_FILE}: evaluate it again.")
        return found

    @property
    def data(self) -> tuple[str, str, str, str]:
        """The data set's name, its split, the kind of noise, and the metric."""
        return self.summary.dataset, self.summary.split, self.summary.shift, self.summary.metric

    def of(self, data: tuple[str, str, str, str]) -> Self:
        """The baseline, for a model that is evaluated on these data.

        Raises:
            InputError: If the baseline was evaluated on others.
        """
        pairs = zip(("data", "split", "noise", "metric"), data, self.data, strict=True)
        refuse(
            *(
                (
                    ours != theirs,
                    f"the baseline {self.name} was evaluated on the {what} {theirs}; this model on {ours}. Evaluate "
                    "both on the same.",
                )
                for what, ours, theirs in pairs
            )
        )
        return self

    def knows(self, samples: int, fingerprint: str | None) -> bool:
        """Whether it was evaluated on these validation samples: their number and their hash, as in `Validation`."""
        measured = self.summary.validation
        return measured is not None and (measured.samples, measured.fingerprint) == (samples, fingerprint)

    def full_depth(self, samples: int, fingerprint: str | None, noise: float) -> float:
        """The last layer's metric on validation data, to which layers are held where K is chosen.

        Args:
            samples: How many validation samples K is chosen on.
            fingerprint: Their hash, as in `Validation`.
            noise: The level γ at which it is chosen.

        Raises:
            InputError: If the baseline was measured on others or not at this level.
        """
        measured = self.summary.validation
        if measured is None or not self.knows(samples, fingerprint) or noise not in measured.layer_metrics:
            levels = ",".join(f"{level:g}" for level in sorted({*self.summary.noise, noise}))
            raise InputError(
                f"the baseline {self.name} was not evaluated at γ = {noise:g} on the {samples} validation "
                "samples on which K is chosen. If it is a run on the same data, type: "
                f"descend evaluate {shlex.quote(self.name)} --noise {levels} --validation-noise {noise:g}"
            )
        return measured.layer_metrics[noise][-1]

    def layers_at(self, levels: Iterable[float], fingerprint: str | None) -> LayerGroups:
        """The sums of a baseline's layers, for a model that is evaluated at these levels on these samples.

        Args:
            levels: Noise levels γ.
            fingerprint: The samples' hash, see `Groups`; without one it is not known whether they are the same.

        Raises:
            InputError: If the baseline was evaluated on other samples or at other levels, or it diverged.
        """
        assert self.groups is not None
        layers = self.groups.layers
        missing = [f"{level:g}" for level in levels if level not in layers.noise]
        refuse(
            (
                bool(missing),
                f"the baseline {self.name} was not evaluated at the noise {', '.join(missing)}; evaluate both at the "
                "same levels: --noise, or noise= in Python.",
            ),
            (
                not np.isfinite([scores[-1] for scores in layers.scores]).all(),
                f"the baseline {self.name} diverged: its last layer is not finite. Give another.",
            ),
            (
                fingerprint is None or fingerprint != self.groups.fingerprint,
                f"the baseline {self.name} was evaluated on other samples than this model, or on texts or images cut "
                "or scaled otherwise. Evaluate both on the same data, with the same --limit.",
            ),
        )
        return layers


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

        with (1+x)² where the metric is the root of the mean score, and 1−x where M is negative. It is linear in the
        scores, so samples are paired. Below 0 the layer is within the tolerance; one that is not finite is beyond any.
        Intervals are the jackknife's over blocks, with Student's t. Answers that are right or wrong hardly differ
        between two layers, and their error may be 0 by chance: of G groups it counts at least √(x(1−x)/G), that of a
        share x of changed answers.

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
            sign = -1 if self.full.sum() < 0 else 1
            sums = self.scores - (1 + sign * x) ** (2 if self.root else 1) * self.full[:, None]
        mean = sums.sum(0) / self.counts.sum()
        lost = ~np.isfinite(self.scores.sum(0))
        if min(len(self.counts), self.groups) < ENOUGH_GROUPS:
            return np.where(lost, np.inf, np.nan), np.where(lost, np.inf, np.nan)
        with np.errstate(invalid="ignore"):  # of what has diverged
            error = standard_error(sums, self.counts)
        if self.higher_is_better:
            error = np.maximum(error, np.sqrt(x * (1 - x) / self.groups))
        if self.own:
            error[-1] = 0.0  # the last layer is its own full depth
        width = error * student.ppf(confidence, degrees_of_freedom(self.counts))
        return np.where(lost, np.inf, mean - width), np.where(lost, np.inf, mean + width)

    def needed(self) -> dict[int, int | None]:
        """For 1, 2 and 5 percent the smallest K from which on all layers are within it; None if none is.

        The layers are tested one after the other from the last one on, until one is not within the tolerance: a fixed
        sequence of tests, each at the full confidence (Maurer, Hothorn and Lehmacher, 1995). It is `SHARED`.
        """
        smallest: dict[int, int | None] = {}
        for percent in WITHIN:
            _, high = self.excess(percent, SHARED)
            within = int((high[::-1] <= 0).cumprod().sum())  # layers from the last one on
            smallest[percent] = len(high) - within if within else None
        return smallest

    def choice(self, layer: int, percent: float) -> Choice:
        """What these samples say of a layer and all deeper ones, without its time.

        *Proven* by the tests of `needed`, whoever chose the layer; *broken* if it is certain to be beyond itself. With
        more samples an interval's width falls by the root of their number.
        """
        low, high = self.excess(percent, SHARED)
        state: Kept = "proven" if (high[layer:] <= 0).all() else "broken" if low[layer] > 0 else "open"
        with np.errstate(divide="ignore", invalid="ignore"):  # of what has diverged
            middle, width = (low + high)[layer:] / 2, (high - low)[layer:] / 2
            times = float(np.where(middle < 0, (width / middle) ** 2, np.nan).max())
        more = (self.scores[:, layer] - self.full).sum() / self.counts.sum()
        worse = self._worse(-more if self.higher_is_better else more, 0)
        at_most = self._worse(high[layer:].max(), percent)
        return Choice(layer=layer, state=state, at_most=at_most, worse=worse, times=times)

    def _worse(self, excess: float, percent: float) -> float:
        """How much worse than full depth it is, in percent, to be beyond a tolerance by an `excess`."""
        x, full = percent / 100, abs(self.full.sum() / self.counts.sum())
        with np.errstate(divide="ignore", invalid="ignore"):  # where full depth makes no error
            if self.higher_is_better:
                worse = x + excess
            elif self.root:
                worse = np.sqrt(np.maximum((1 + x) ** 2 + excess / full, 0)) - 1
            else:
                worse = x + excess / full
        return 100 * float(worse)


def layers_needed(
    groups: Groups,
    baseline: Evaluated | None,
    *,
    noise: float,
    higher_is_better: bool,
    seconds: list[float] | None,
    validation: Validation | None = None,
) -> tuple[LayersNeeded, dict[float, Kept]]:
    """How many layers suffice, and at which noise levels the last one keeps the baseline's quality.

    Args:
        groups: Scores of every layer by blocks of samples.
        baseline: To whose full depth layers are held; None for their own model's.
        noise: The level γ at which layers are counted.
        higher_is_better: Whether more of the metric is better.
        seconds: The time to each layer; None where it was not measured.
        validation: The layers on validation data, on which K is chosen; None to choose none. None is chosen either
            where the baseline was measured on other validation data.

    Returns:
        Both; without a baseline there is nothing to keep.

    Raises:
        InputError: If the baseline was evaluated on other samples or other noise, or on the same validation data
            without ``noise``.
    """
    ours = groups.layers
    theirs = ours if baseline is None else baseline.layers_at(ours.noise, groups.fingerprint)
    levels = {
        level: Against(
            np.array(ours.counts),
            np.array(ours.scores[place]).T,
            np.array(theirs.scores[theirs.noise.index(level)][-1]),
            groups.root,
            higher_is_better,
            groups=1 if groups.single else len(groups.counts),
            own=baseline is None,
        )
        for place, level in enumerate(ours.noise)
    }
    trained = levels[noise]

    def share(layer: int | None) -> float | None:
        return None if layer is None or seconds is None else seconds[layer] / seconds[-1]

    def timed(choice: Choice) -> Choice:
        return choice.model_copy(update={"time": share(choice.layer)})

    chosen: dict[int, Choice | None] = {}
    if validation and (baseline is None or baseline.knows(validation.samples, validation.fingerprint)):
        full = validation.metric[-1]
        if baseline is not None:
            full = baseline.full_depth(validation.samples, validation.fingerprint, noise)
        for percent in WITHIN:
            layer = first_within(validation.metric, full, percent, higher_is_better=higher_is_better)
            chosen[percent] = None if layer is None else timed(trained.choice(layer, percent))
    smallest, depth = trained.needed(), len(ours.scores[0]) - 1
    held_to: dict[str, Any] = {}
    kept: dict[float, Kept] = {}
    if baseline is not None:
        last = {level: each.choice(depth, KEPT_WITHIN) for level, each in levels.items()}
        kept = {level: each.state for level, each in last.items()}
        held_to = {name: getattr(baseline.summary, name) for name in ("seed", "steps", "learning_rate")}
        mean = float(trained.full.sum() / trained.counts.sum())
        full = math.sqrt(mean) if groups.root else mean
        held_to |= {"baseline": baseline.name, "last": timed(last[noise]), "full": full}
    needed = LayersNeeded(
        **held_to,
        noise=noise,
        within=smallest,
        time={percent: share(layer) for percent, layer in smallest.items()},
        chosen=chosen,
    )
    return needed, kept


def held(run: Evaluated, baseline: Evaluated | None) -> Summary:
    """The summary of an evaluated run with ``groups``, with layers held to a baseline, or to their own full depth.

    Raises:
        InputError: As `layers_needed`.
    """
    assert run.groups is not None
    summary = run.summary
    needed, kept = layers_needed(
        run.groups,
        baseline,
        noise=summary.train_noise,
        higher_is_better=summary.higher_is_better,
        seconds=summary.latency.milliseconds if summary.latency else None,
        validation=summary.validation,
    )
    return summary.model_copy(update={"layers_needed": needed, "kept": kept})


def held_to_plain(runs: Sequence[Evaluated]) -> list[Summary]:
    """The summaries of evaluated runs, with layers held to the full depth of the plain training among them.

    That is the deepest run of `PLAIN` of the same model on the same data, with the same seed or with any; of several
    the best on validation data. That run itself, and those without such a baseline, stay as they were evaluated.
    """
    plain = [run for run in runs if run.summary.method in PLAIN and run.groups]
    summaries = []
    for run in runs:
        summary, groups = run.summary, run.groups
        same = (other for other in plain if _kind(other) == _kind(run))
        best = min(same, key=lambda other: _rank(other.summary, summary.seed), default=run)  # of equal ones the first
        if best is not run and groups and summary.train_noise in groups.layers.noise:
            try:
                summary = held(run, best)
            except InputError as error:  # other samples or levels: it is held to its own full depth
                summary = held(run, None)
                needed = summary.layers_needed.model_copy(update={"why": str(error)})
                summary = summary.model_copy(update={"layers_needed": needed})
        summaries.append(summary)
    return summaries


def _rank(plain: Summary, seed: int) -> tuple[float, ...]:
    """What the baseline of a run with this seed has the least of."""
    last = plain.validation.metric[-1] if plain.validation else math.nan
    worse = (-last if plain.higher_is_better else last) if math.isfinite(last) else math.inf
    return -plain.depth, plain.seed != seed, PLAIN.index(plain.method), worse


def _kind(run: Evaluated) -> tuple[object, ...]:
    """What a run has in common with its baseline: the data, and the model but for its depth."""
    summary = run.summary
    return *run.data, summary.recipe, summary.family, summary.settings.get("model")
