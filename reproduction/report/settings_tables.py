"""The paper's Tables 1, 2 and 5: our settings, with every number that survives of the paper's beside them."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from descend.report import format_alpha
from reproduction.published import PrintedSetting, printed_settings, win_rates
from reproduction.report.cells import Run, arm_name, data_name, listed
from reproduction.report.results import FORMS, Results, Setting
from reproduction.report.tables import Table

# The columns of settings, by their names in a run's settings.
SETTINGS = {
    **{"strength": "strength", "learning_rate": "learning rate"},
    **{"dual_optimizer": "dual optimizer", "dual_lr": "η", "resilience": "ρ"},
    **{"slack": "slack", "dual_warmup_steps": "dual warm-up", "first_layer": "first layer"},
    **{"stop_gradient": "stop gradient", "dropout": "dropout", "max_steps": "steps", "num_train_epochs": "epochs"},
}

PRINTED = "Printed in the paper"
"""The method of a row that holds the paper's numbers."""

_NAMES = {"depth": "L", "noise": "γ", "alpha": "α", "cap": "cap", "resilience": "ρ", "dropout": "dropout"}
_HEADS = ("Model", "Method", "Data", "L", "γ", "α", "cap", *SETTINGS.values(), "As printed")


def table_1(results: Results) -> Table:
    """The settings of the video models."""
    return _settings(results, 1, "video", "Settings: video")


def table_2(results: Results) -> Table:
    """The settings of the text classifiers."""
    return _settings(results, 2, "text", "Settings: texts")


def table_5(results: Results) -> Table:
    """The settings of the language model, and what the paper says of AlpacaEval."""
    return _settings(results, 5, "language", "Settings: the language model", alpaca_eval())


def alpaca_eval() -> str:
    """The win rates on AlpacaEval as printed, and what a judge would need."""
    sources: dict[float, dict[float, list[str]]] = {}
    for rate in win_rates():
        sources.setdefault(rate.gamma, {}).setdefault(rate.percent, []).append(rate.source)
    parts = [
        f"{' or '.join(f'{percent:g} % ({listed(places)})' for percent, places in rates.items())} at γ = {gamma:g}"
        for gamma, rates in sources.items()
    ]
    conflict = " The paper and its poster differ." if any(len(rates) > 1 for rates in sources.values()) else ""
    return (
        "On AlpacaEval the paper prints the length-controlled win rate of constrained over plain training: "
        f"{listed(parts)}.{conflict} No judge is run here. One needs AlpacaEval's 805 prompts, the answers of both "
        "models (those of plain training are the reference outputs), and an annotator model with an API key; the "
        "paper's is GPT-5. descend complete writes answers in AlpacaEval's form."
    )


def _settings(results: Results, number: int, task: str, title: str, more: str = "") -> Table:
    printed = printed_settings(number)
    ours = _ours(results, task)
    models = dict.fromkeys([*(row.model for row in printed), *(row[0] for row in ours)])
    rows = [
        row for model in models for row in (*_printed(printed, model), *(each for each in ours if each[0] == model))
    ]
    words = (
        "Our rows: one for each set of settings, and where it is used. The paper's rows: every number that its text "
        "still has. Most heads of its columns are lost, so a question mark stands at a value whose column is our "
        "guess; --preset paper uses these values. A number read as α is printed as 1 − α. The last column has the "
        "numbers in the printed order, and what each is read as."
    )
    words += "" if ours else f" No cell of {task} was run."
    used = [place for place in range(len(_HEADS)) if place < 7 or any(row[place] not in ("", "–") for row in rows)]
    return Table(
        f"table-{number}",
        title,
        f"{words} {more}".strip(),
        [_HEADS[place] for place in used],
        [[row[place] for place in used] for row in rows],
    )


def _printed(printed: Iterable[PrintedSetting], model: str) -> list[list[str]]:
    """The paper's rows of a model, in our columns and as printed."""
    rows = []
    for data, group in groupby((each for each in printed if each.model == model), key=lambda each: each.data):
        numbers = sorted(group, key=lambda each: each.place)
        known = {
            _NAMES[each.setting]: f"{each.value:g}{'?' if each.reading == 'guessed' else ''}"
            for each in numbers
            if each.value is not None
        }
        words = ", ".join(f"{each.printed} ({_reading(each)})" for each in numbers)
        columns = [known.get(head, "–") for head in _HEADS[3:-1]]
        rows.append([model, PRINTED, data_name(data) if data else "all", *columns, words])
    return rows


def _reading(number: PrintedSetting) -> str:
    name = "1 − α" if number.setting == "alpha" else _NAMES.get(number.setting)
    return number.reading if name is None else f"{name}, {number.reading}"


def _ours(results: Results, task: str) -> list[list[str]]:
    """One row for each set of settings of the runs."""
    gathered: dict[tuple[str, ...], list[Setting]] = {}
    for setting in results.where(task=task):
        for arm, runs in setting.arms.items():
            gathered.setdefault((setting.model, arm_name(arm), *_columns(runs[0])), []).append(setting)
    return [[*key[:2], *_where(settings), *key[2:], "–"] for key, settings in gathered.items()]


def _columns(run: Run) -> list[str]:
    """α, the cap and other settings in words; α and the cap are left out of methods without constraints."""
    bound = run.arm in FORMS
    alpha = format_alpha(run.summary.alpha) if bound and run.summary.alpha else "–"
    return [
        alpha,
        _word(run.summary.cap) if bound else "–",
        *(_word(run.summary.settings.get(name)) for name in SETTINGS),
    ]


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
