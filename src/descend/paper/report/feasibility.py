"""The figures on constraints that hold or do not: 11 (an infeasible run, found and named) and 12 (single samples)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from descend.paper.report.cells import Run, arm_name, listed
from descend.paper.report.chart import Chart, Line, Panel, Series, Style, arm_style
from descend.paper.report.claims import Claim, above, below, every, not_run, number, percent, ranged, within
from descend.paper.report.estimates import Interval, ahead, over_seeds, together
from descend.paper.report.parts import BANDS, SEEDS, Shown, layer_series, noise_series, spoiled
from descend.paper.report.results import Results, Setting

RED = Style("#9c1633", "#ff8095", "triangle-down")

NEAR = 0.5
"""How close to 1 − α a median ratio counts as there, in α: at 1 a layer that does nothing would be."""

Histogram = tuple[list[float], list[float]]

# What the paper found in single samples (Appendix B.5).
PAPER_SHARE, PAPER_MEAN, PAPER_MEDIAN = 0.708, 0.87, 0.82

MEDIAN = 0.5
"""Among the quantiles of a summary."""


def figure_11(results: Results) -> Shown:
    """Constrained runs that were made infeasible, beside those that were not, feasible in the end or not."""
    runs, setting = _infeasible(results)
    says = (
        "A constrained run that is not feasible at the end is worse than one that is, at every noise level.",
        "The verdict finds it and names the layers.",
    )
    if not runs or setting is None:
        words = "Not run: an infeasible constrained cell."
        chart = Chart("figure-11", "An infeasible run", BANDS, missing=words)
        return Shown([not_run("figure-11", one, "a constrained cell that is infeasible") for one in says], chart)
    arms = {"erm": setting.plain, "constrained": setting.constrained}
    arms = {arm: rivals for arm, rivals in arms.items() if rivals}
    series = [noise_series(arm_name(arm), arm, rivals) for arm, rivals in arms.items()]
    broken = noise_series("Infeasible", "", runs)
    metric = Panel(
        setting.metric,
        "test noise γ",
        setting.metric,
        [*series, _painted(broken)],
        lines=[Line(setting.gamma, "trained")],
    )
    along = [
        layer_series(arm_name(arm), arm, rows)
        for arm, rivals in arms.items()
        if (rows := [row for run in rivals if (row := run.losses(setting.gamma))])
    ]
    rows = [row for run in runs if (row := run.losses(setting.gamma))]
    along += [_painted(layer_series("Infeasible", "", rows)), *_limits(runs[0], rows)]
    losses = Panel("Loss, with what the constraints ask", "layer (0 is the input)", "loss", along, log_y=True)
    chart = Chart("figure-11", f"An infeasible run: {setting.words}", f"{SEEDS} {BANDS}", [losses, metric], 2)
    return Shown([_worse(says[0], runs, setting), _named(says[1], runs)], chart)


def _infeasible(results: Results) -> tuple[list[Run], Setting | None]:
    """Runs made to be infeasible, and their setting; runs picked for their verdict would tell nothing of verdicts."""
    made = results.variants("infeasible")
    if not made:
        return [], None
    place = made[0].place
    runs = [run for run in made if run.place == place]
    beside = [one for one in results.settings if one.place == place]
    return sorted(runs, key=lambda run: run.seed), next(iter(beside), Setting(*place, arms={"infeasible": runs}))


def _painted(series: Series) -> Series:
    return replace(series, style=RED)


def _limits(run: Run, rows: Sequence[Sequence[float]]) -> list[Series]:
    mean = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    asked = [
        (layer, limit * mean[layer - 1]) for layer, limit in enumerate(run.view.limits) if layer and limit is not None
    ]
    if not asked:
        return []
    layers, bounds = zip(*asked, strict=True)
    return [Series("asked of the infeasible run", arm_style(""), layers, bounds, kind="marks")]


def _worse(says: str, runs: Sequence[Run], setting: Setting) -> Claim:
    beside = setting.constrained
    if not beside:
        return not_run("figure-11", says, f"a constrained run of {setting.words}")
    ours, theirs = together(runs, beside)
    shared = [level for level in ours.noise if level in theirs.noise]
    judged = every({level: ahead(ours.at(level), theirs.at(level), ours.higher) for level in shared}, below)
    feasible = sum(run.view.feasible is True for run in beside)
    told = (
        f"It is held against the {len(beside)} constrained runs beside it, of which {feasible} met their constraints; "
        f"most against it speaks test γ = {judged.worst:g}: a gain in {setting.metric} of {ranged(judged.end, ' %')}."
    )
    # Worse than what is infeasible too says nothing of what being feasible is worth; and to pick seeds by their
    # verdicts would be to choose.
    return Claim("figure-11", says, judged.held if feasible == len(beside) else "undecided", told)


def _named(says: str, runs: Sequence[Run]) -> Claim:
    found = [run for run in runs if run.view.feasible is False and _missing(run)]
    told = (
        f"{len(found)} of {len(runs)} runs are judged infeasible, and every layer that is named missed its bound "
        "at the end of training too, on other data than those of the verdict. "
        f"{(found or list(runs))[0].view.verdict}"
    ).strip()
    return Claim("figure-11", says, "held" if len(found) == len(runs) else "not held", told)


def _missing(run: Run) -> bool:
    """Whether a verdict names layers, and each of them missed its bound in training: the verdict has not seen that."""
    missed = run.trained("violation")
    named = [layer for layer in run.view.violated if layer > 0]
    return missed is not None and bool(named) and all(missed[layer - run.depth - 1] > 0 for layer in named)


def figure_12(results: Results) -> Shown:
    """How f_l / f_{l−1} spreads over single samples, with and without relaxation."""
    setting = _told(results)
    says = (
        "Under constraints a layer lowers a single sample's loss more often than not (paper: on "
        f"{percent(PAPER_SHARE, 1)} of steps).",
        f"Ratios gather near 1 − α (here: the median within {NEAR:g} α of it; paper: mean {PAPER_MEAN:g}, median "
        f"{PAPER_MEDIAN:g}).",
    )
    title = "Single samples: how a layer changes the loss"
    words = "All layers and seeds together, at the training noise. Left of 1 a layer lowers the loss."
    if setting is None:
        missing = "Not run: constrained cells with a histogram of ratios."
        claims = [not_run("figure-12", one, "constrained cells with ratios of samples") for one in says]
        return Shown(claims, Chart("figure-12", title, words, missing=missing))
    bare = [run for run in results.variants("resilience=0") if run.place == setting.place]
    kinds = {
        "Constrained": setting.constrained,
        "Constrained, no relaxation": bare,
        "ERM": setting.plain,
    }
    styles = {"Constrained": "constrained", "Constrained, no relaxation": "constrained", "ERM": "erm"}
    pooled = {name: found for name, runs in kinds.items() if (found := _pooled(runs))}
    series = [
        Series(name, arm_style(styles[name]), *_seen(found, pooled.values()), kind="steps", dashed="no" in name)
        for name, found in pooled.items()
    ]
    rate = setting.constrained[0].rate
    lines = [Line(1, "no change")] + ([Line(rate, "1 − α")] if rate else [])
    panel = Panel(setting.words, "f_l / f_(l−1) of a sample", "share of samples", series, log_x=True, lines=lines)
    missing = "" if bare else "Not run: constrained without relaxation."
    chart = Chart("figure-12", title, words, [panel], 1, missing)
    return Shown([_falling(says[0], setting, bare), _near(says[1], setting)], chart)


def _told(results: Results) -> Setting | None:
    """Where the relaxation was left out, or else RoBERTa on IMDb, or else any with ratios."""
    places = {run.place for run in results.variants("resilience=0")}
    having = [one for one in results.settings if any(run.shares for run in one.constrained)]
    ordered = [one for one in having if one.place in places]
    ordered += [one for one in having if (one.model, one.data) == ("RoBERTa", results.known("imdb"))]
    return next(iter([*ordered, *having]), None)


def _seen(histogram: Histogram, every: Iterable[Histogram]) -> Histogram:
    """Without the outer bins that are next to empty in all histograms of the same edges."""
    edges, heights = histogram
    full = {place for others, row in every if others == edges for place, height in enumerate(row) if height >= 1e-3}
    first, last = min(full, default=0), max(full, default=len(heights) - 1)
    return edges[first : last + 2], heights[first : last + 1]


def _pooled(runs: Sequence[Run]) -> Histogram | None:
    """Edges of the bins and the share of samples in each, over layers and seeds; the outer bins are open."""
    told = [run for run in runs if run.shares and run.edges == runs[0].edges]
    if not told:
        return None
    counts = [sum(column) for column in zip(*(row for run in told for row in run.shares), strict=True)]
    total = sum(counts)
    edges = list(told[0].edges)
    return (edges, [count / total for count in counts]) if total else None


def _falling(says: str, setting: Setting, bare: Sequence[Run]) -> Claim:
    shares = {
        name: over_seeds(found)
        for name, runs in (("ERM", setting.plain), ("without relaxation", bare))
        if (found := _descending(runs))
    }
    ours = over_seeds(_descending(setting.constrained))
    others = "".join(f", {name} {100 * found.value:.1f} %" for name, found in shares.items())
    points = Interval(100 * ours.value, 100 * max(ours.low, 0), 100 * min(ours.high, 1), ours.over)
    free = [layer for layer, limit in enumerate(setting.constrained[0].view.limits) if layer and limit is None]
    those = f", layers without a constraint ({listed([str(layer) for layer in free])}) among them" if free else ""
    paper = f"paper {100 * PAPER_SHARE:.1f} %{others}"
    told = f"The loss of a sample falls on {ranged(points, ' %')} of steps{those} ({paper})."
    return spoiled(Claim("figure-12", says, above(ours, 0.5), told), setting.constrained)


def _descending(runs: Sequence[Run]) -> list[float]:
    """The share of steps on which a sample's loss falls, of the runs that have it."""
    return [run.view.descending_share for run in runs if run.view.descending_share is not None]


def _near(says: str, setting: Setting) -> Claim:
    rate, alpha = setting.constrained[0].rate, setting.constrained[0].alpha
    medians = [median for run in setting.constrained if (median := _median(run)) is not None]
    if rate is None or alpha is None or not medians:
        return not_run("figure-12", says, "one α for all layers, and ratios of samples")
    found = over_seeds([median - rate for median in medians])
    told = (
        f"A layer's median ratio is {number(sum(medians) / len(medians))} in the mean over the layers that have a "
        f"constraint; from 1 − α = {rate:g} it differs by {ranged(found)}."
    )
    return spoiled(Claim("figure-12", says, within(found, NEAR * alpha), told), setting.constrained)


def _median(run: Run) -> float | None:
    """The median over samples of a layer's ratio, in the mean over the layers that are held to 1 − α."""
    view = run.view
    ratios = view.ratios
    if MEDIAN not in ratios.quantiles or len(view.limits) != len(ratios.by_layer) + 1:
        return None
    place = ratios.quantiles.index(MEDIAN)
    held = [row[place] for row, limit in zip(ratios.by_layer, view.limits[1:], strict=True) if limit is not None]
    return sum(held) / len(held) if held else None
