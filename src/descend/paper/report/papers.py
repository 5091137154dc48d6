"""The paper's tables: 1, 2 and 5 (settings), 3 (mean RMSE) and 4 (area under the accuracy), ours beside theirs."""

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

from descend.paper import statistics
from descend.paper.published import AREA_REACH, Row, table_3, table_4, wins
from descend.paper.report.cells import Run, arm_name, data_name, few
from descend.paper.report.claims import Claim, above, below, most, not_run, percent
from descend.paper.report.estimates import robust, share, together
from descend.paper.report.parts import Shown, gain, mean_gain, reach
from descend.paper.report.results import Results, Setting
from descend.paper.report.tables import Table
from descend.report.runs import format_alpha

DIVERGED = 60.0
"""RMSE above which a run counts as diverged: in the paper's Table 3 six cells lie at 63 to 138, the others below 37."""

# What a reader would set, by its name in a run's settings.
SETTINGS = {
    **{"strength": "strength", "learning_rate": "learning rate"},
    **{"dual_optimizer": "dual optimizer", "dual_lr": "η", "resilience": "ρ"},
    **{"slack": "slack", "dual_warmup_steps": "dual warm-up", "first_layer": "first layer"},
    **{"stop_gradient": "stop gradient", "dropout": "dropout", "max_steps": "steps", "num_train_epochs": "epochs"},
}


def table_1(results: Results) -> Shown:
    """The settings of the video models."""
    return _settings(results, "table-1", "video", "Settings chosen for video")


def table_2(results: Results) -> Shown:
    """The settings of the text classifiers."""
    return _settings(results, "table-2", "text", "Settings chosen for texts")


def table_5(results: Results) -> Shown:
    """The settings of the language model."""
    return _settings(results, "table-5", "language", "Settings chosen for the language model")


def _settings(results: Results, name: str, task: str, title: str) -> Shown:
    gathered: dict[tuple[str, ...], list[Setting]] = {}
    for setting in results.where(task=task):
        for arm, runs in setting.arms.items():
            told = _told(runs[0])
            gathered.setdefault((setting.model, arm_name(arm), *told.values()), []).append(setting)
    heads = ("Model", "Method", "Data", "L", "γ", "α", "cap", *SETTINGS.values())
    rows = [(*key[:2], *_where(settings), *key[2:]) for key, settings in gathered.items()]
    used = [place for place in range(len(heads)) if place < 6 or any(row[place] not in ("", "–") for row in rows)]
    words = (
        "One row for each set of settings, and where it is used. Most columns of the paper's table are lost in its "
        "text, so its numbers are not beside ours."
        if rows
        else f"No cell of {task} was run."
    )
    table = Table(
        name, title, words, [heads[place] for place in used], [[row[place] for place in used] for row in rows]
    )
    return Shown(table=table)


def _told(run: Run) -> dict[str, str]:
    """α, the cap and other settings in words; what only constraints have is left out of other methods."""
    bound = run.arm == "constrained"
    alpha = format_alpha(run.view.alpha) if bound and run.view.alpha else "–"
    told = {"alpha": alpha, "cap": _word(run.cap) if bound else "–"}
    return told | {name: _word(run.view.settings.get(name)) for name in SETTINGS}


def _word(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _where(settings: Sequence[Setting]) -> tuple[str, str, str]:
    """The data sets, depths and training noise of some settings."""
    data = dict.fromkeys(data_name(setting.data) for setting in settings)
    depths, gammas = ({getattr(setting, name) for setting in settings} for name in ("depth", "gamma"))
    return ", ".join(data), ", ".join(map(str, sorted(depths))), ", ".join(f"{gamma:g}" for gamma in sorted(gammas))


def mean_rmse(results: Results) -> Shown:
    """Mean RMSE of the video models over test noise."""
    title = "Mean RMSE over test noise (lower is better)"
    return _beside(results, "table-3", "video", title, table_3(), depths=("UT", "DUST"))


def areas(results: Results) -> Shown:
    """Area under the accuracy of the text classifiers over test noise."""
    title = "Area under the accuracy over test noise (higher is better)"
    return _beside(results, "table-4", "text", title, table_4(), depths=("UT",))


def _beside(results: Results, name: str, task: str, title: str, paper: Sequence[Row], depths: Sequence[str]) -> Shown:
    settings = results.where(task=task)
    known = {_row_key(row, depths): row for row in paper}
    others = dict.fromkeys(arm for setting in settings for arm in setting.arms if arm not in ("erm", "constrained"))
    ours = ("ERM", "Constrained", "Gain %")
    theirs = ("Paper: ERM", "Paper: constrained", "Paper: gain %")
    # An area to the paper's reach, and beside it one over all that was judged.
    wide = [f"{each}, all noise" for each in ours[:2]] if any(isfinite(reach(each)) for each in settings) else []
    heads = ("Model", "L", "Data", "γ", "Noise", *ours, *theirs, *map(arm_name, others), *wide)
    rows, met = [], set()
    for setting in settings:
        # The strong regime is ours: the paper has no number for it.
        row = known.get(_key(setting, depths)) if setting.regime in ("", "paper") else None
        met |= {_key(setting, depths)} if row else set()
        most = reach(setting)
        values = [_value(setting.plain, most), _value(setting.constrained, most), _gained(setting)]
        beside = [_value(setting.arms.get(arm), most) for arm in others]
        whole = [_value(setting.plain), _value(setting.constrained)] if wide else []
        rows.append([*_named(setting), *values, *_printed(row), *beside, *whole])
    words = (
        "Mean over seeds, and its 95 % interval over seeds and test samples. Gain: how much better constrained is than "
        "ERM, in per cent of ERM's number. Models and noise are not the paper's, so what compares is the gain. "
        f"{len(met)} of the paper's {len(paper)} cells have one of ours beside them."
    )
    if wide:
        words += (
            f" Areas go up to γ = {AREA_REACH:g}. The paper's range is lost in its text; over 4 its areas on IMDb "
            "would be accuracies below chance. The last two columns are over all noise that was judged."
        )
    table = Table(name, title, words, heads, rows)
    gone = [] if paper[0].higher_is_better else _diverging(name, settings, paper)
    return Shown([*_counted(name, settings, paper), *gone], table=table)


def _counted(name: str, settings: Sequence[Setting], paper: Sequence[Row]) -> list[Claim]:
    theirs = f"{wins(paper)} of {len(paper)}, {percent(wins(paper) / len(paper))}"
    says = [
        f"Constrained models are better in most cells (paper: {theirs}).",
        "They win a larger share of cells than in the paper.",
    ]
    regimes: dict[str, list[Setting]] = {}
    for setting in settings:
        if setting.paired:
            regimes.setdefault(setting.regime or "paper", []).append(setting)
    if not regimes:
        return [not_run(name, words, "cells of ERM and constrained") for words in says]
    # Each regime apart. What is claimed is of the one that the scale runs most of.
    main, *others = sorted(regimes, key=lambda regime: -len(regimes[regime]))
    pairs = regimes[main]
    found = _won(pairs)
    held, words = most(found.wins, len(pairs))
    gains = [gain(setting) for setting in pairs]
    ends = [one.interval for one in gains]
    sure = sum(above(end) == "held" for end in ends), sum(below(end) == "held" for end in ends)
    where = _regime(main, pairs)
    told = (
        f"{where}, constrained is better in {words}, with {_tied(found)}, sign test p = {found.p_sign:.2g} (cells "
        f"share data and seeds, and are taken for independent); beyond doubt in {sure[0]}, and worse beyond doubt in "
        f"{sure[1]}; {mean_gain(gains)}."
    )
    for regime in others:
        apart = _won(regimes[regime])
        told += f" Counted apart: {_regime(regime, regimes[regime], first=False)}, it is better in {apart.wins} of "
        told += f"{len(regimes[regime])}, with {_tied(apart)}."
    bound = wins(paper) / len(paper)
    more = f"{found.wins} of {len(pairs)} ({percent(found.wins / len(pairs))}) against the paper's {percent(bound)}"
    end = share(found.wins, len(pairs))
    interval = f"95 % interval {percent(end.low)} to {percent(end.high)}"
    return [
        Claim(name, says[0], held, told),
        Claim(name, says[1], above(end, bound), f"{where}, {more}: {interval}; {_tied(found)}."),
    ]


def _won(pairs: Sequence[Setting]) -> statistics.Wins:
    """Wins over cells: what has diverged counts as lost; where both have, or the runs are the same, nobody wins."""
    higher = pairs[0].plain[0].higher
    return statistics.wins([_means(setting) for setting in pairs], higher_is_better=higher)


def _tied(found: statistics.Wins) -> str:
    return f"{found.ties or 'no'} tie{'' if found.ties == 1 else 's'}"


def _regime(regime: str, settings: Sequence[Setting], *, first: bool = True) -> str:
    """A regime and its training noise, as a sentence begins with them or goes on."""
    gammas = ", ".join(f"{gamma:g}" for gamma in sorted({setting.gamma for setting in settings}))
    if regime == "paper":
        return f"{'At' if first else 'at'} the paper's training noise (γ = {gammas})"
    return f"{'In' if first else 'in'} the {regime} regime (γ = {gammas}: our training noise, not the paper's)"


def _means(setting: Setting) -> tuple[float, float]:
    ours, theirs = together(setting.constrained, setting.plain)
    most = reach(setting)
    return float(ours.summary(most).value), float(theirs.summary(most).value)


def _diverging(name: str, settings: Sequence[Setting], paper: Sequence[Row]) -> list[Claim]:
    theirs = sum(row.constrained > DIVERGED for row in paper), sum(row.unconstrained > DIVERGED for row in paper)
    says = f"No run diverges (paper: {theirs[0]} constrained cells and {theirs[1]} unconstrained did)."
    # Trained on clean inputs a model may be that bad under noise and has not diverged; it may stand beside several.
    runs = [run for setting in settings for arm, runs in setting.arms.items() if arm != "erm-clean" for run in runs]
    bad = [run for run in runs if not isfinite(run.view.mean) or run.view.mean > DIVERGED]
    if not runs:
        return [not_run(name, says, "cells of video")]
    found = share(len(bad), len(runs))
    named = f": {few([run.name for run in bad])}" if bad else ""
    told = (
        f"{len(bad)} of {len(runs)} runs have a mean RMSE above {DIVERGED:g} or none (95 % interval "
        f"{percent(found.low, 1)} to {percent(found.high, 1)}){named}."
    )
    return [Claim(name, says, "not held" if bad else "held", told)]


def _row_key(row: Row, depths: Sequence[str]) -> tuple[Any, ...]:
    return (row.model, row.depth if row.model in depths else None, row.data, round(row.gamma, 6))


def _key(setting: Setting, depths: Sequence[str]) -> tuple[Any, ...]:
    return (setting.model, setting.depth if setting.model in depths else None, setting.data, round(setting.gamma, 6))


def _named(setting: Setting) -> list[str]:
    return [setting.model, str(setting.depth), data_name(setting.data), f"{setting.gamma:g}", setting.regime or "paper"]


def _value(runs: Sequence[Run] | None, most: float = inf) -> str:
    if not runs:
        return "–"
    end = robust(tuple(runs)).summary(most).interval
    if not isfinite(end.value):
        return "diverged"
    digits = 2 if abs(end.value) >= 3 else 3
    if not end.known:
        return f"{end.value:.{digits}f}"
    return f"{end.value:.{digits}f} ({end.low:.{digits}f}–{end.high:.{digits}f})"


def _gained(setting: Setting) -> str:
    if not setting.paired:
        return "–"
    end = gain(setting).interval
    if not isfinite(end.value):
        return "diverged"
    return f"{end.value:+.2f}" + (f" ({end.low:+.2f} to {end.high:+.2f})" if end.known else "")


def _printed(row: Row | None) -> list[str]:
    if row is None:
        return ["–", "–", "–"]
    change = row.constrained - row.unconstrained
    gained = 100 * (change if row.higher_is_better else -change) / row.unconstrained
    return [f"{row.unconstrained:g}", f"{row.constrained:g}", f"{gained:+.2f}"]
