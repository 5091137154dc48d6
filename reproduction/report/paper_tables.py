"""The paper's Tables 3 (mean RMSE) and 4 (area under the accuracy), ours beside theirs."""

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Any

from reproduction.published import AREA_REACH, Row, table_3, table_4
from reproduction.report.cells import Run, arm_name, data_name
from reproduction.report.estimates import gain, robust
from reproduction.report.results import FORMS, Results, Setting
from reproduction.report.tables import Table


def mean_rmse(results: Results) -> Table:
    """Mean RMSE of the video models over test noise."""
    title = "Mean RMSE over test noise (lower is better)"
    return _beside(results, "table-3", "video", title)


def areas(results: Results) -> Table:
    """Area under the accuracy of the text classifiers over test noise."""
    title = "Area under the accuracy over test noise (higher is better)"
    return _beside(results, "table-4", "text", title)


def printed(setting: Setting) -> Row | None:
    """The paper's numbers in a setting; None for the strong regime, which is ours, and where the paper has none."""
    if setting.task not in _PRINTED or setting.regime not in ("", "paper"):
        return None
    rows, depths = _PRINTED[setting.task]
    return next((row for row in rows() if _key(row, depths) == _key(setting, depths)), None)


def _beside(results: Results, name: str, task: str, title: str) -> Table:
    settings = results.where(task=task)
    paper = _PRINTED[task][0]()
    compared = ("erm", *FORMS)
    others = dict.fromkeys(arm for setting in settings for arm in setting.arms if arm not in compared)
    columns = [column for form in FORMS for column in (arm_name(form), f"Gain %: {arm_name(form)}")]
    papers = ("Printed: ERM", "Printed: constrained", "Printed: gain %")
    # An area to the paper's reach, and beside it one over all that was judged.
    wide = [f"{arm_name(arm)}, all noise" for arm in compared] if any(isfinite(one.reach) for one in settings) else []
    ours = (arm_name("erm"), *columns[:2], *papers, *columns[2:])
    best = [f"{arm_name(arm)}, best run" for arm in compared] if task == "text" else []
    heads = ("Model", "L", "Data", "γ", "Noise", *ours, *map(arm_name, others), *wide, *best)
    rows, met = [], set()
    for setting in settings:
        row = printed(setting)
        met |= {row} if row else set()
        most = setting.reach
        by_form = [part for form in FORMS for part in (_value(setting.runs(form), most), _gained(setting, form))]
        values = [_value(setting.plain, most), *by_form[:2], *_printed(row), *by_form[2:]]
        beside = [_value(setting.runs(arm), most) for arm in others]
        whole = [_value(setting.runs(arm)) for arm in compared] if wide else []
        picked = [_value(_best(setting.runs(arm)), most) for arm in compared] if best else []
        rows.append([*named(setting), *values, *beside, *whole, *picked])
    words = (
        "Mean over seeds, and its 95 % interval over seeds and test samples. Gain: how much better constrained is than "
        "ERM, in per cent of ERM's number. Printed: the paper's numbers. Models, noise and settings "
        f"are not the paper's, so only gains compare. {len(met)} of the paper's {len(paper)} cells have one of ours "
        "beside them."
    )
    if wide:
        words += (
            f" Areas go up to γ = {AREA_REACH:g}. The paper's range is lost in its text; over 4 its areas on IMDb "
            f"would be accuracies below chance. The {len(wide)} columns of all noise are over all that was judged."
        )
    if best:
        words += (
            " Best run: for texts the paper reports the best of several runs. Here this is the seed with the lowest "
            "validation loss of the last layer, for every method alike; test data choose nothing."
        )
    return Table(name, title, words, heads, rows)


_PRINTED: dict[str, tuple[Callable[[], Sequence[Row]], tuple[str, ...]]] = {
    "video": (table_3, ("UT", "DUST")),
    "text": (table_4, ("UT",)),
}
"""Task → its table, and the models whose depths are ours too."""


def _key(one: Row | Setting, depths: Sequence[str]) -> tuple[Any, ...]:
    return (one.model, one.depth if one.model in depths else None, one.data, round(one.gamma, 6))


def named(setting: Setting) -> list[str]:
    """Model, depth, data set, training noise and regime, as a table names them."""
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


def _best(runs: Sequence[Run]) -> list[Run]:
    """The run with the lowest validation loss, alone."""
    return [min(runs, key=lambda run: run.validation_loss)] if runs else []


def _gained(setting: Setting, arm: str) -> str:
    if not setting.compares(arm):
        return "–"
    end = gain(setting, arm).interval
    if not isfinite(end.value):
        return "diverged"
    return f"{end.value:+.2f}" + (f" ({end.low:+.2f} to {end.high:+.2f})" if end.known else "")


def _printed(row: Row | None) -> list[str]:
    if row is None:
        return ["–", "–", "–"]
    return [f"{row.unconstrained:g}", f"{row.constrained:g}", f"{row.gain:+.2f}"]
