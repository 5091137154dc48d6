"""The page of a sweep: what was searched, what mattered, and what was chosen."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from descend.errors import InputError, reason
from descend.reading import read_json
from descend.report.rendering import write_interactive
from descend.report.runs import Style
from descend.report.sweep import figures
from descend.report.sweep.found import Searched, styles
from descend.report.tables import number
from descend.report.views import Body, Cell, FigureView, Row, Sentence, Span, Table, VerdictView

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
    path = folder / "sweep.json"
    if not path.is_file():
        raise InputError(f"{folder} has no sweep.json; run descend sweep with this --out.")
    content = read_json(path)
    try:
        facts = {name: str(content[name]) for name in ("recipe", "model", "metric", "rule")}
        higher = bool(content["higher_is_better"])
        methods = [Searched.of(str(method), found) for method, found in content["methods"].items()]
        plots = _plots(methods, facts["metric"], higher)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        raise InputError(f"{path} is not that of a sweep: {type(error).__name__}: {reason(error)}.") from error
    return write_interactive(
        folder,
        "sweep.html",
        title=f"Descend: sweep {folder.absolute().name}",
        subtitle=f"{facts['model']}, {facts['recipe']}: settings chosen on validation data",
        verdict=_verdict(methods, facts),
        table=_methods_table(methods, styles(methods), facts["metric"]),
        figures=[FigureView(key, heading, words, wide=wide) for key, (_, heading, words, wide) in plots.items()],
        commands="\n".join(each.command for each in methods if each.command),
        data=[
            {
                "state": {"log": True},
                "plots": {key: json.loads(figure.to_json()) for key, (figure, *_) in plots.items()},
            }
        ],
    )


def _plots(methods: list[Searched], metric: str, higher: bool) -> dict[str, tuple[go.Figure, str, str, bool]]:
    looks = styles(methods)
    plots = {"history": (figures.history(methods, metric, higher, looks), "Trial by trial", _HISTORY, False)}
    if any(len(each.importance) > 1 for each in methods):
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


def _verdict(methods: list[Searched], facts: Mapping[str, str]) -> VerdictView:
    equal = len({len(each.trials) for each in methods}) <= 1
    best = ", ".join(f"{each.name} {number(each.chosen.value if each.chosen else None)}" for each in methods)
    lines: list[Sentence] = []
    if not equal:
        words = "The methods have had different numbers of trials: they do not compare."
        lines.append([Span(words, bold=True)])
    lines += [
        [Span(f"{each.name} chose at a range's end, better may lie beyond: {', '.join(each.edges)}.")]
        for each in methods
        if each.edges
    ]
    lines.append([Span(facts["rule"])])
    words = "A best of many trials is better than it will be on other data: judge what was chosen on test data, with "
    lines.append([Span(words + "other seeds.")])
    headline = f"Best mean {facts['metric']} on validation data: {best}"
    return VerdictView("open" if equal else "tentative", "", headline, lines)


def _methods_table(methods: list[Searched], looks: Mapping[str, Style], metric: str) -> Table:
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
