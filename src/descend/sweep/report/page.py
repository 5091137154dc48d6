"""The page of a sweep: what was searched, what mattered, and what was chosen."""

import json
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from descend.errors import InputError, reason
from descend.records.studies import SWEEP_FILE, SweepFile, read_sweep
from descend.report.page import figure_block, put_page
from descend.report.runs import Style
from descend.report.tables import _number, _row, _table
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
    looks = styles(methods)
    blocks = "".join(figure_block(key, heading, words, wide=wide) for key, (_, heading, words, wide) in plots.items())
    commands = "\n".join(escape(each.search.best.command) for each in methods if each.search.best)
    todo = f"<h3>What was chosen, to type</h3><pre><code>{commands}</code></pre>" if commands else ""
    return put_page(
        folder,
        title=f"Descend: sweep {folder.absolute().name}",
        subtitle=escape(f"{sweep.model}, {sweep.recipe}: settings chosen on validation data"),
        verdict=_verdict(methods, sweep),
        table=_methods_table(methods, looks, sweep.metric),
        sections=[f'<section data-section="0"><div class="plots">{blocks}</div>{todo}</section>'],
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


def _verdict(methods: list[Method], sweep: SweepFile) -> str:
    numbers = [len(each.trials) for each in methods]
    equal = len(set(numbers)) <= 1
    found = ", ".join(f"{escape(each.name)} {_number(each.chosen.value if each.chosen else None)}" for each in methods)
    warning = "" if equal else "<p><b>The methods have had different numbers of trials: they do not compare.</b></p>"
    warning += "".join(
        f"<p>{escape(each.name)} chose at the end of a range, better values may lie beyond: "
        f"{escape(', '.join(each.search.edges))}.</p>"
        for each in methods
        if each.search.edges
    )
    return (
        f'<div class="verdict {"open" if equal else "tentative"}"><h2 class="headline">Best mean '
        f"{escape(sweep.metric)} on validation data: {found}</h2>{warning}<p>{escape(sweep.rule)}</p>"
        "<p>A best of many trials is better than it will be on other data: judge what was chosen on test data, with "
        "other seeds.</p></div>"
    )


def _methods_table(methods: list[Method], looks: Mapping[str, Style], metric: str) -> str:
    heads = ("Method", "Finished", "Pruned", "Diverged", f"Best mean {escape(metric)}", "Feasible")
    rows = []
    for each in methods:
        counts, best = Counter(trial.state for trial in each.trials), each.chosen
        feasible = {True: "yes", False: "no"}.get(best.feasible, "–") if best and best.feasible is not None else "–"
        cells = [
            escape(each.name),
            *(str(counts[state]) for state in ("finished", "pruned", "diverged")),
            _number(best.value if best else None),
            feasible,
        ]
        rows.append(_row(heads, cells, looks[each.method]))
    return _table(heads, f"<tbody>{''.join(rows)}</tbody>")
