"""The page of a sweep: what was searched, what mattered, and what was chosen."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from descend.errors import InputError, reason
from descend.records.studies import SWEEP_FILE, SweepFile, read_sweep
from descend.report.rendering import write_interactive
from descend.report.runs import Style
from descend.report.tables import number
from descend.report.views import Body, Cell, FigureView, Row, Sentence, Span, Table, VerdictView
from descend.sweep.report import figures
from descend.sweep.report.searched import Method, styles

_HISTORY = """Every trial that came to its end, in the order in which they began, and the best so far. Gaps are trials
that were pruned or diverged."""
_IMPORTANCE = """The share of each setting in what tells the best tenth of the finished trials from all of them
(PED-ANOVA). It says what mattered within the ranges searched, not which way; on few trials it says little. A method
with a single setting is left out."""
_PARALLEL = """A line is a trial, from setting to setting and on to what came of it: from violet, the best, to yellow,
the worst; the chosen one is thick. Dotted: pruned or diverged, with no value."""
_CURVES = """The mean over the noise levels on a few validation samples while the trials ran. A trial that was behind
from the middle on, by the rule above, was pruned: it ends in a cross. The chosen one is thick."""


def write_sweep(folder: Path) -> Path:
    """Write the page of a sweep into its folder.

    Args:
        folder: That of the sweep, with ``sweep.json``.

    Returns:
        The file written.

    Raises:
        InputError: If ``sweep.json`` is missing or damaged.
    """
    sweep = read_sweep(folder)
    methods = [Method.of(method, search) for method, search in sweep.methods.items()]
    try:
        plots = _plots(methods, sweep.metric, sweep.higher_is_better)
    except (ValueError, KeyError, OverflowError) as error:  # a trial's setting that lies in no range
        raise InputError(f"{folder / SWEEP_FILE} can't be drawn: {reason(error)}. Run the sweep again.") from None
    return write_interactive(
        folder,
        "sweep.html",
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
            f"{each.name}: while they ran",
            _CURVES,
            False,
        )
    for each in methods:
        if len(each.ranges) > 1:
            heading = f"{each.name}: settings and what came of them"
            plots[f"parallel-{each.method}"] = figures.parallel(each, metric, higher), heading, _PARALLEL, True
    return plots


def _verdict(methods: list[Method], sweep: SweepFile) -> VerdictView:
    equal = len({len(each.trials) for each in methods}) <= 1
    best = ", ".join(f"{each.name} {number(each.chosen.value if each.chosen else None)}" for each in methods)
    lines: list[Sentence] = []
    if not equal:
        words = "The methods have had different numbers of trials: they do not compare."
        lines.append([Span(words, bold=True)])
    lines += [
        [Span(f"{each.name} chose at a range's end, better may lie beyond: {', '.join(each.search.edges)}.")]
        for each in methods
        if each.search.edges
    ]
    lines.append([Span(sweep.rule)])
    words = "A best of many trials is better than it will be on other data: judge what was chosen on test data, with "
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
