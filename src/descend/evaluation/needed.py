"""How many layers suffice, and whether the last one is as good as a baseline's, with confidence."""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from descend.errors import InputError, refuse
from descend.jackknife import degrees_of_freedom, skewness, standard_error
from descend.results import (
    CONFIDENCE,
    ENOUGH_GROUPS,
    KEPT_WITHIN,
    SHARED,
    WITHIN,
    Choice,
    CompareWith,
    Gain,
    Groups,
    Kept,
    LayerGroups,
    LayerScores,
    LayersNeeded,
    Results,
    Summary,
    Validation,
    best_layer,
    first_within,
    is_kept,
)

NO_BEST = (
    "--compare-with best (compare_with) chooses the best layer on validation data, and there are none here. Evaluate a "
    "run on its own data, give validation=… in Python, or compare with last."
)

PLAIN = ("erm", "probe")
"""Methods of which the model hears the last layer's loss alone: what others are held against, in this order."""


Sums = LayerScores | LayerGroups
"""Scores of all layers, by group or by blocks of groups."""


@dataclass(frozen=True)
class Against:
    """A model's layers against a full depth, at one noise level, by independent groups of samples or blocks of groups.

    Attributes:
        counts: Samples in each group or block, (B,).
        scores: Sums of the metric's scores of each layer, (B, L+1).
        full: Those of the full depth that they are held to, (B,).
        root: Whether the metric is the root of the mean score.
        higher_is_better: Whether more of it is better.
        sizes: Samples in each independent group, (G,); a single one where nothing is known of other groups.
        bounded: Whether scores lie in [0, 1], so that layers can be certified and not only estimated.
        own: Whether the full depth is the model's own.
    """

    counts: np.ndarray
    scores: np.ndarray
    full: np.ndarray
    root: bool
    higher_is_better: bool
    sizes: np.ndarray
    bounded: bool = False
    own: bool = False

    def excess(self, percent: float, confidence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r"""How far each layer is beyond a tolerance, with the ends of one-sided intervals.

        With the mean score m_l of layer l and M of the full depth it is, for x = ``percent`` / 100,

        .. math:: M - m_l - x \quad\text{or, where less is better,}\quad m_l - (1+x)\,M

        with (1+x)² where the metric is the root of the mean score, and 1−x where M is negative. It is linear in the
        scores, so samples are paired. Below 0 the layer is within the tolerance; one that is not finite is beyond any.
        Intervals are the jackknife's, with Student's t, and where scores are bounded two corrections:

        - Answers that are right or wrong hardly differ between two layers, and their error may be 0 by chance. It is
          at least :math:`\sqrt{x(1-x)/G}`, that of a share x of lost answers. Here :math:`G = N^2 / \sum_g n_g^2` is
          the number of equal groups that vary as much as groups of n_g samples whose answers are all alike. At x = 0,
          where no answer differs, it is :math:`1/(G+2)`, as if half an answer were lost and half a one gained (Agresti
          and Min, 2005).
        - Where a few groups are much worse than the others, the upper end is moved by Johnson's term for the skewness
          (1978, :math:`\kappa_3 (1 + 2t^2) / 6\kappa_2`), and never down.

        Args:
            percent: The tolerance: points of a metric that is better when higher, else relative to the full depth.
            confidence: Of each end.

        Returns:
            The lower ends, the means and the upper ends, each (L+1,); the ends are NaN below `ENOUGH_GROUPS` groups.
        """
        x = percent / 100
        if self.higher_is_better:
            sums = self.full[:, None] - self.scores - x * self.counts[:, None]
        else:
            sign = -1 if self.full.sum() < 0 else 1
            sums = self.scores - (1 + sign * x) ** (2 if self.root else 1) * self.full[:, None]
        mean = sums.sum(0) / self.counts.sum()
        lost = ~np.isfinite(self.scores.sum(0))
        mean[lost] = np.inf
        if min(len(self.counts), len(self.sizes)) < ENOUGH_GROUPS:
            unknown = np.where(lost, np.inf, np.nan)
            return unknown, mean, unknown
        quantile = student.ppf(confidence, degrees_of_freedom(self.counts))
        with np.errstate(invalid="ignore"):  # of what has diverged
            width = quantile * standard_error(sums, self.counts)
            skewed = width + skewness(sums, self.counts) * (1 + 2 * quantile**2) / 6
        if self.higher_is_better:
            share = (self.sizes**2).sum() / self.sizes.sum() ** 2
            least = np.sqrt(x * (1 - x) * share) if x else np.where(sums.any(0), 0, share / (1 + 2 * share))
            width = np.maximum(width, quantile * least)
        above = np.maximum(width, skewed) if self.bounded else width
        if self.own:
            width[-1] = above[-1] = 0.0  # the last layer is its own full depth
        return np.where(lost, np.inf, mean - width), mean, np.where(lost, np.inf, mean + above)

    def needed(self) -> dict[int, int | None]:
        """For 1, 2 and 5 percent the smallest K from which on all layers are within it; None if none is.

        The layers are tested one after the other from the last one on, until one is not within the tolerance: a fixed
        sequence of tests, each at the full confidence (Maurer, Hothorn and Lehmacher, 1995). It is `SHARED`.
        """
        smallest: dict[int, int | None] = {}
        for percent in WITHIN:
            high = self.excess(percent, SHARED)[2]
            within = int((high[::-1] <= 0).cumprod().sum())  # layers from the last one on
            smallest[percent] = len(high) - within if within else None
        return smallest

    def choice(self, layer: int, percent: float) -> Choice:
        """What these samples say of a layer and all deeper ones, without its time.

        *Proven* by the tests of `needed`, whoever chose the layer, or *estimated* where scores are not bounded;
        *broken* if its lower end is beyond the tolerance. With more samples an interval's width falls by the root of
        their number.
        """
        low, mean, high = self.excess(percent, SHARED)
        within: Kept = "proven" if self.bounded else "estimated"
        state: Kept = within if (high[layer:] <= 0).all() else "broken" if low[layer] > 0 else "open"
        with np.errstate(divide="ignore", invalid="ignore"):  # of what has diverged
            width = (high - mean)[layer:]
            times = float(np.where(mean[layer:] < 0, (width / mean[layer:]) ** 2, np.nan).max())
        more = (self.scores[:, layer] - self.full).sum() / self.counts.sum()
        worse = self._worse(-more if self.higher_is_better else more, 0)
        at_most = self._worse(high[layer:].max(), percent)
        return Choice(layer=layer, state=state, at_most=at_most, worse=worse, times=times)

    def gain(self, layer: int) -> Gain:
        """How much better than full depth this layer is, the only one, with its 95 % interval."""
        high, mean, low = (-self._worse(float(each[0]), 0) for each in self.excess(0, (1 + CONFIDENCE) / 2))
        return Gain(layer=layer, gain=mean, low=low, high=high)

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
    baseline: Results | None,
    *,
    noise: float,
    higher_is_better: bool,
    seconds: list[float] | None,
    validation: Validation | None = None,
    compare_with: CompareWith | None = None,
    full_depth: CompareWith | None = None,
    folder: Path | None = None,
) -> tuple[LayersNeeded, dict[float, Kept]]:
    """How many layers suffice, and at which noise levels the last one keeps the baseline's quality.

    Args:
        groups: Scores of every layer by groups of samples.
        baseline: To whose full depth layers are held; None for their own model's.
        noise: The level γ at which layers are counted.
        higher_is_better: Whether more of the metric is better.
        seconds: The time to each layer; None where it was not measured.
        validation: The layers on validation data, on which K is chosen; None to choose none. None is chosen either
            where the baseline was measured on other validation data.
        compare_with: The layer that counts as full depth in both models: the ``last`` one, or the ``best`` on
            validation data, from which layers are then counted. None where each model has a full depth of its own:
            ``full_depth`` in this one, and the one it was evaluated with in the baseline.
        full_depth: Which layer counts in this model without ``compare_with``. None for the last one; a model without a
            baseline whose last layer is not within 2 percent of its best one there counts by the best.
        folder: The run's, from which the baseline is named; None for none.

    Returns:
        Both; without a baseline there is nothing to keep.

    Raises:
        InputError: If the baseline was evaluated on other samples or other noise, or on the same validation data
            without ``noise``; or if there are no validation data to choose the best layer on.
    """
    ours, theirs, bounded = _paired(groups, baseline)
    depth, metric = len(ours.scores[0]) - 1, validation.metric if validation else []
    best = best_layer(metric, higher_is_better=higher_is_better) if metric else depth
    beaten = bool(metric) and not is_kept(metric[-1], metric[best], higher_is_better)
    refuse((compare_with == "best" and not metric, NO_BEST))
    ours_by = compare_with or (full_depth if metric else None) or ("best" if baseline is None and beaten else "last")
    top = best if ours_by == "best" else depth
    theirs_on_validation = metric
    if baseline is not None and validation:
        theirs_on_validation = []  # of other validation data: no K is chosen
        if compare_with == "best" or baseline.knows(validation.samples, validation.fingerprint):
            theirs_on_validation = baseline.validated(validation.samples, validation.fingerprint, noise)
    reference, theirs_by = top, ours_by
    if baseline is not None:
        theirs_by = compare_with or baseline.summary.full_depth or "last"
        reference = len(theirs.scores[0]) - 1
        if compare_with == "best":
            reference = best_layer(theirs_on_validation, higher_is_better=higher_is_better)
        elif theirs_by == "best":
            reference = baseline.summary.top

    def against(level: float, layers: slice, full: list[float], *, own: bool) -> Against:
        return Against(
            np.array(ours.counts),
            np.array(ours.scores[ours.noise.index(level)][layers]).T,
            np.array(full),
            groups.root,
            higher_is_better,
            sizes=np.array([sum(groups.counts)] if groups.single else groups.counts),
            bounded=bounded,
            own=own,
        )

    levels = {
        level: against(
            level,
            slice(top + 1),
            theirs.scores[theirs.noise.index(level)][reference],
            own=baseline is None,
        )
        for level in ours.noise
    }
    trained = levels[noise]

    def share(layer: int | None) -> float | None:
        return None if layer is None or seconds is None else seconds[layer] / seconds[-1]

    def timed(choice: Choice) -> Choice:
        return choice.model_copy(update={"time": share(choice.layer)})

    chosen: dict[int, Choice | None] = {}
    for percent in WITHIN if theirs_on_validation else ():
        full = theirs_on_validation[reference]
        layer = first_within(metric[: top + 1], full, percent, higher_is_better=higher_is_better)
        chosen[percent] = None if layer is None else timed(trained.choice(layer, percent))
    entries: dict[str, Any] = {}
    if best < depth and (ours_by == "best" or beaten):
        last = ours.scores[ours.noise.index(noise)][depth]
        entries["best"] = against(noise, slice(best, best + 1), last, own=False).gain(best)
    if chosen.get(KEPT_WITHIN, True) is None and baseline is not None and validation:
        entries["excluded"] = _on_validation(validation, baseline, noise, top, reference, groups.root, higher_is_better)
    kept: dict[float, Kept] = {}
    if baseline is not None:
        lasts = {level: each.choice(top, KEPT_WITHIN) for level, each in levels.items()}
        kept = {level: each.state for level, each in lasts.items()}
        mean = float(trained.full.sum() / trained.counts.sum())
        entries |= {name: getattr(baseline.summary, name) for name in ("steps", "learning_rate")}
        entries["seed"] = None if baseline.summary.method == "plain" else baseline.summary.seed  # as it is: no training
        named = baseline.folder
        if named is not None and folder is not None:
            named = named.resolve()
            with suppress(ValueError):  # on another drive
                named = Path(os.path.relpath(named.parent, folder.resolve()), named.name)
        entries |= {"baseline": str(named), "last": timed(lasts[noise]), "full_layer": reference}
        entries["full"] = math.sqrt(mean) if groups.root else mean
    smallest = trained.needed()
    needed = LayersNeeded(
        **entries,
        noise=noise,
        compared_with=ours_by,
        held_to=theirs_by,
        top=top,
        bounded=bounded,
        within=smallest,
        time={percent: share(layer) for percent, layer in smallest.items()},
        chosen=chosen,
    )
    return needed, kept


def _paired(groups: Groups, baseline: Results | None) -> tuple[Sums, Sums, bool]:
    """Scores of all layers, a baseline's (or the same again), and whether they are bounded: then they are by group."""
    other = groups if baseline is None else baseline.groups_at(groups.layers.noise, groups.fingerprint)
    ours, theirs = groups.layers.by_group, other.layers.by_group
    refuse(
        (
            baseline is not None and (ours and ours.counts) != (theirs and theirs.counts),
            f"of the model and the baseline {baseline and baseline.folder} only one has scores of all layers by group: "
            "the other was evaluated by an older version. Evaluate both again.",
        )
    )
    return (groups.layers, other.layers, False) if ours is None or theirs is None else (ours, theirs, True)


def _on_validation(
    validation: Validation,
    baseline: Results,
    noise: float,
    layer: int,
    reference: int,
    root: bool,
    higher_is_better: bool,
) -> Gain | None:
    """How much better a layer is there than a baseline's; None where one has no scores by blocks."""
    ours, theirs = validation.blocks, baseline.summary.validation and baseline.summary.validation.blocks
    if ours is None or not theirs or ours.counts != theirs.counts or noise not in theirs.noise:
        return None
    counts = np.array(ours.counts)
    scores = np.array(ours.scores[ours.noise.index(noise)][layer])[:, None]
    full = np.array(theirs.scores[theirs.noise.index(noise)][reference])
    return Against(counts, scores, full, root, higher_is_better, sizes=counts).gain(layer)


def held(run: Results, baseline: Results | None, compare_with: CompareWith | None = None) -> Summary:
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
        compare_with=compare_with,
        full_depth=summary.full_depth,
        folder=run.folder,
    )
    # The words of the evaluation are no longer those of these numbers.
    return summary.model_copy(update={"layers_needed": needed, "kept": kept, "answer": ""})


def held_to_plain(runs: Sequence[Results]) -> list[Summary]:
    """The summaries of evaluated runs, with layers held to the full depth of the plain training among them.

    That is the deepest run of `PLAIN` of the same model on the same data, trained under the same noise if there is one,
    with the same seed or with any; of several the best on validation data. That run itself, and those without such a
    baseline, stay as they were evaluated.
    """
    plain = [run for run in runs if run.summary.method in PLAIN and run.groups]
    summaries = []
    for run in runs:
        summary, groups = run.summary, run.groups
        same = (other for other in plain if _kind(other) == _kind(run))
        best = min(same, key=lambda other: _rank(other.summary, summary), default=run)  # of equal ones the first
        if best is not run and groups and summary.train_noise in groups.layers.noise:
            try:
                summary = held(run, best)
            except InputError as error:  # other samples or levels: it is held to its own full depth
                summary = held(run, None)
                needed = summary.layers_needed.model_copy(update={"why": str(error)})
                summary = summary.model_copy(update={"layers_needed": needed})
        summaries.append(summary)
    return summaries


def _rank(plain: Summary, run: Summary) -> tuple[float, ...]:
    """What the baseline of a run has the least of."""
    last = plain.validation.metric[-1] if plain.validation else math.nan
    worse = (-last if plain.higher_is_better else last) if math.isfinite(last) else math.inf
    other_noise = plain.train_noise != run.train_noise
    return other_noise, -plain.depth, plain.seed != run.seed, PLAIN.index(plain.method), worse


def _kind(run: Results) -> tuple[object, ...]:
    """What a run has in common with its baseline: the data, and the model but for its depth."""
    summary = run.summary
    return *run.data, summary.recipe, summary.family, summary.settings.get("model")
