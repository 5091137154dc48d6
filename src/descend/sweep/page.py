"""The page of a sweep, from its ``sweep.json`` alone: trials, importance of the settings, and the chosen settings."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from descend.errors import InputError, reason
from descend.report.figures import Plot
from descend.report.rendering import drawn, write_interactive
from descend.report.runs import METHOD_NAMES, SPARE_STYLES, STYLES
from descend.report.tables import Cell, Row, Table, number
from descend.report.verdict import VerdictBox
from descend.results.sweeps import SWEEP_FILE, SweepFile
from descend.sweep import figures
from descend.sweep.figures import Method

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
    methods, spare = [], list(SPARE_STYLES)
    for key, search in sweep.methods.items():
        style = STYLES.get(key) or (spare.pop(0) if spare else SPARE_STYLES[-1])
        methods.append(Method(key, METHOD_NAMES.get(key, key), style, search))
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
        table=_methods_table(methods, sweep.metric),
        figures=plots,
        commands="\n".join(method.search.best.command for method in methods if method.search.best),
        data=[{"state": {"log": True}, "plots": drawn(plots)}],
    )


def _plots(methods: Sequence[Method], metric: str, higher: bool) -> list[Plot]:
    plots = [Plot("history", figures.history(methods, metric, higher), "Trial by trial", _HISTORY)]
    if any(len(method.search.importance) > 1 for method in methods):
        plots.append(Plot("importance", figures.importance(methods), "What mattered", _IMPORTANCE))
    for method in methods:
        heading = f"{method.name}: trials during training"
        plots.append(Plot(f"curves-{method.key}", figures.curves(method, metric, higher), heading, _CURVES))
    for method in methods:
        if len(method.search.searched) > 1:
            heading, figure = (
                f"{method.name}: settings and value of each trial",
                figures.parallel(method, metric, higher),
            )
            plots.append(Plot(f"parallel-{method.key}", figure, heading, _PARALLEL, wide=True))
    return plots


def _verdict(methods: Sequence[Method], sweep: SweepFile) -> VerdictBox:
    equal = len({len(method.search.trials) for method in methods}) <= 1
    values = [(method.name, method.search.best.value if method.search.best else None) for method in methods]
    best = ", ".join(f"{name} {number(value)}" for name, value in values)
    unequal = Markup("<b>The methods have different numbers of trials, so their results can't be compared.</b>")
    lines: list[str] = [] if equal else [unequal]
    for method in methods:
        if method.search.edges:
            ends = "chosen values near an end of their range, better ones may lie beyond"
            lines.append(f"{method.name}: {ends}: {', '.join(method.search.edges)}.")
    words = "The best of many trials is an optimistic estimate: evaluate the chosen settings on test data, with "
    headline = f"Best mean {sweep.metric} on validation data: {best}"
    return VerdictBox("open" if equal else "undecided", "", headline, [*lines, sweep.rule, f"{words}other seeds."])


def _methods_table(methods: Sequence[Method], metric: str) -> Table:
    rows = []
    for method in methods:
        best = method.search.best
        states = [trial.state for trial in method.search.trials]
        words = [method.name, *(str(states.count(state)) for state in ("finished", "pruned", "diverged"))]
        feasible = {True: "yes", False: "no", None: "–"}[best.feasible if best else None]
        rows.append(Row([*map(Cell, words), Cell(number(best.value if best else None)), Cell(feasible)], method.style))
    heads = ("Method", "Finished", "Pruned", "Diverged", f"Best mean {metric}", "Feasible")
    return Table(heads, [("", rows)])
