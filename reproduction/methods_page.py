"""What the page of the methods' study shows: its tables, its figures and the six primary comparisons."""

import math
from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from reproduction import depth, robustness
from reproduction.figures import FIGURES as OF_PAPER
from reproduction.figures import NotRunError
from reproduction.table import ENOUGH_GROUPS, MOST_SEEDS, Gain, Table, holm, seeds_that_decide

ROBUSTNESS = (("MiniLM", "imdb", 1.0), ("MiniLM", "mnli", 1.0), ("MPNet", "imdb", 1.0), ("UT", "ped2", 0.9))
"""The settings of the primary comparisons of constrained with plain training: model, data set and γ_train."""

DEPTH = ("DINOv2-exits", "MiniLM-exits")
"""The models of the primary comparisons of `linear` with `useful-.8`."""

ERROR = 0.05
"""Of all primary comparisons together."""


def primaries(table: Table) -> pd.DataFrame:
    """The six primary comparisons with Holm's correction, and the seeds that would decide an undecided one.

    A comparison that was not run counts as p = 1. So does one of a single seed, and one on fewer than `ENOUGH_GROUPS`
    groups of test samples.
    """
    rows, tests = [], []
    for model, data, gamma in ROBUSTNESS:
        change = robustness.gain_of_setting(table, model, data, gamma)
        tests.append(change)
        rows.append(["constrained against plain", f"{model}, {data}, γ_train = {gamma:g}", str(change)])
    for model in DEPTH:
        change = depth.compared(table, model, "linear", "useful-.8")
        tests.append(change)
        words = "–" if math.isnan(change.value) else depth.points(change.value, change.low, change.high)
        rows.append(["linear against useful-.8", f"{model}, mean of the deeper half, points", words])
    adjusted = holm([_tested(test) for test in tests])
    frame = pd.DataFrame(rows, columns=["question", "setting", "difference, 95 %"])
    return frame.assign(
        **{
            "seeds": [test.seeds for test in tests],
            "test groups": [test.groups for test in tests],
            "p (Holm)": [_p(test, p) for test, p in zip(tests, adjusted, strict=True)],
            "result": [_result(test, p) for test, p in zip(tests, adjusted, strict=True)],
            "seeds that would decide": [_seeds(test, p) for test, p in zip(tests, adjusted, strict=True)],
        }
    )


def _tested(test: Gain) -> float:
    return test.tested_p if test.seeds > 1 else math.nan


def _p(test: Gain, adjusted: float) -> str:
    return "–" if math.isnan(_tested(test)) else f"{adjusted:.2g}"


def _result(test: Gain, adjusted: float) -> str:
    if math.isnan(test.value):
        return "no seed of both is there"
    if math.isinf(test.value):
        return f"undecided: {test}"
    if test.seeds < 2:
        return "undecided: one seed"
    if math.isnan(test.tested_p):
        return f"undecided: {test.groups} groups of test samples, of {ENOUGH_GROUPS} that are needed"
    if adjusted >= ERROR:
        return "undecided"
    return "better" if test.value > 0 else "worse"


def _seeds(test: Gain, adjusted: float) -> str:
    """At the strictest step of Holm's correction."""
    if not math.isfinite(test.value) or (not math.isnan(test.tested_p) and adjusted < ERROR):
        return "–"
    if test.seeds < 2:
        return "not known from one seed"
    if math.isnan(test.tested_p):
        return f"no number: it needs {ENOUGH_GROUPS} groups"
    needed = seeds_that_decide(test.value, test.parts, test.seeds, ERROR / (len(ROBUSTNESS) + len(DEPTH)))
    if needed == math.inf:
        return "no number: it needs more test samples"
    return f"more than {MOST_SEEDS}" if needed is None else f"{needed:g}"


def _depth_picture(table: Table) -> Figure:
    """Depth: test accuracy by layer, a thin line a seed; a ring marks the layers that suffice."""
    if not list(depth.by_model(table)):
        raise NotRunError("it needs cells of depth")
    return depth.picture(table)


def _of_main(draw: Callable[[Table], Figure]) -> Callable[[Table], Figure]:
    """A figure of the paper without the sixth seed of the mechanism."""

    def drawn(table: Table) -> Figure:
        return draw(robustness.main_runs(table))

    drawn.__doc__ = draw.__doc__
    return drawn


FIGURES = {"depth": _depth_picture} | {
    f"figure-{number}": _of_main(OF_PAPER[f"figure-{number}"]) for number in (1, 4, 5, 14, 15)
}

TABLES: dict[str, tuple[str, Callable[[Table], pd.DataFrame]]] = {
    "primaries": ("The six primary comparisons, named before the runs", primaries),
    "layers": ("Depth: accuracy by layer, and the layers that suffice", depth.layers),
    "rule": ("Depth: the rule of the plan", depth.rule),
    "pairs": ("Depth: each pair of methods, points of accuracy by layer", depth.pairs),
    "counts": ("By the paper's protocol: how often constrained training is ahead", robustness.counts),
    "protocol": ("By the paper's protocol: our settings", robustness.protocol),
    "fairly": ("Fairly: gains over plain training of the same seeds", robustness.fairly),
    "mechanism": ("Mechanism: what the gain comes from", robustness.mechanism),
    "signs": ("Every cell of Tables 3 and 4, and ours", robustness.signs),
    "done": ("Which cells are there", robustness.done),
}
"""Name → title, and what makes it."""

SECTIONS = {
    "What was asked before the runs": ["primaries"],
    "Depth": ["depth", "layers", "rule", "pairs"],
    "Robustness": ["counts", "protocol", "fairly", "mechanism", *(name for name in FIGURES if name != "depth")],
    "Beside the paper": ["signs"],
    "Which cells are there": ["done"],
}
"""Heading → figures and tables."""

READING = (
    "Depth: clean inputs, a readout for each layer; a difference is in points of accuracy, paired by seed. Robustness: "
    "gains are in per cent of plain training's area under the accuracy or mean RMSE over noise, with 95 % intervals "
    "over seeds and groups of test samples. Bands are the range over seeds, a grey line is the training noise."
)
