"""The page of a sweep: trials, importance of the settings, and the chosen settings."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from descend.errors import InputError, reason
from descend.report.rendering import write_interactive
from descend.report.runs import Style
from descend.report.tables import number
from descend.report.views import Body, Cell, FigureView, Row, Sentence, Span, Table, VerdictView
from descend.results.sweeps import SWEEP_FILE, SweepFile
from descend.sweep.report import figures
from descend.sweep.report.searched import Method, styles

_HISTORY = """Every finished trial in the order in which they began, and the best value so far. Gaps are trials that
were pruned or diverged."""
_IMPORTANCE = """How much each setting distinguishes the best tenth of the finished trials from all of them (PED-ANOVA).
It covers the searched ranges only, does not say which direction is better, and needs many trials. A method with a
single setting is left out."""
_PARALLEL = """Each line is a trial: its settings, then its value. Violet is the best and yellow the worst; the chosen
trial is thick. Dotted trials were pruned or diverged and have no value."""
_CURVES = """The mean over the noise levels on a few validation samples, during training. A pruned trial ends in a
cross; see the rule above. The chosen trial is thick."""


def write_sweep(folder: Path) -> Path:
    """Write the page of a sweep into its folder.

    Args:
        folder: The sweep's folder, with ``sweep.json``.

    Returns:
        The path of the page.

    Raises:
        InputError: If ``sweep.json`` is missing or damaged.
    """
    sweep = SweepFile.read(folder / SWEEP_FILE)
    methods = [Method.of(method, search) for method, search in sweep.methods.items()]
    try:
        plots = _plots(methods, sweep.metric, sweep.higher_is_better)
    except (ValueError, KeyError, OverflowError) as error:  # a trial's setting outside its range
        raise InputError(f"{folder / SWEEP_FILE} can't be drawn: {reason(error)}. Run the sweep again.") from None
    return write_interactive(
        folder,
        "sweep.html",
        pictures=sweep.recipe.startswith("video-"),
        title=f"Descend: sweep {folder.absolute().name}",
        subtitle=f"{sweep.model}, {sweep.recipe}: settings chosen on validation data",
        verdict=_verdict(methods, sweep),
        table=_methods_table(methods, styles(methods), sweep.metric),
        figures=[FigureView(key, heading, words, wide=wide) for key, (_, heading, words, wide) in plots.items()],
        commands="\n".join(each.search.best.command for each in methods if each.search.best),
        data=[
            {
                "state": {"log": True},
                "plots": {key: json.loads(figure.to_json()) for key, (figure, *_) in plots.items()},
            }
        ],
    )


def _plots(methods: list[Method], metric: str, higher: bool) -> dict[str, tuple[go.Figure, str, str, bool]]:
    looks = styles(methods)
    plots = {"history": (figures.history(methods, metric, higher, looks), "Trial by trial", _HISTORY, False)}
    if any(len(each.search.importance) > 1 for each in methods):
        plots["importance"] = figures.importance(methods, looks), "What mattered", _IMPORTANCE, False
    for each in methods:
        key = f"curves-{each.method}"
        plots[key] = (
            figures.curves(each, metric, higher, looks[each.method]),
            f"{each.name}: trials during training",
            _CURVES,
            False,
        )
    for each in methods:
        if len(each.ranges) > 1:
            heading = f"{each.name}: settings and value of each trial"
            plots[f"parallel-{each.method}"] = figures.parallel(each, metric, higher), heading, _PARALLEL, True
    return plots


def _verdict(methods: list[Method], sweep: SweepFile) -> VerdictView:
    equal = len({len(each.trials) for each in methods}) <= 1
    best = ", ".join(f"{each.name} {number(each.chosen.value if each.chosen else None)}" for each in methods)
    lines: list[Sentence] = []
    if not equal:
        words = "The methods have different numbers of trials, so their results can't be compared."
        lines.append([Span(words, bold=True)])
    lines += [
        [
            Span(
                f"{each.name}: chosen values near an end of their range, better ones may lie beyond: "
                f"{', '.join(each.search.edges)}."
            )
        ]
        for each in methods
        if each.search.edges
    ]
    lines.append([Span(sweep.rule)])
    words = "The best of many trials is an optimistic estimate: evaluate the chosen settings on test data, with "
    lines.append([Span(words + "other seeds.")])
    headline = f"Best mean {sweep.metric} on validation data: {best}"
    return VerdictView("open" if equal else "tentative", "", headline, lines)


def _methods_table(methods: list[Method], looks: Mapping[str, Style], metric: str) -> Table:
    rows = []
    for each in methods:
        counts, best = Counter(trial.state for trial in each.trials), each.chosen
        feasible = {True: "yes", False: "no"}.get(best.feasible, "–") if best and best.feasible is not None else "–"
        words = [
            each.name,
            *(str(counts[state]) for state in ("finished", "pruned", "diverged")),
            number(best.value if best else None),
            feasible,
        ]
        rows.append(Row([Cell(word) for word in words], looks[each.method]))
    return Table(("Method", "Finished", "Pruned", "Diverged", f"Best mean {metric}", "Feasible"), [Body(rows)])
