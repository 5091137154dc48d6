"""Tables that are not in the paper: methods over all settings, every setting, and forms of models and noise."""

from collections.abc import Sequence
from math import isnan
from typing import Any

from descend.results import ENOUGH_GROUPS, WITHIN
from reproduction.grid import FORM_ARMS, FORMS, NOISE_IS
from reproduction.report.cells import Place, Run, arm_name, data_name
from reproduction.report.estimates import Interval, gain, robust
from reproduction.report.layers_needed import metrics
from reproduction.report.overview import INTERVALS, ArmOverview, Gains, certain, falls, feasible, outcome, overview
from reproduction.report.results import MODELS, Results, Setting
from reproduction.report.tables import Table, with_ends
from reproduction.report.theorems import lowest_allowed, lowest_loss

JUDGED = ("paper", "constrained", "linear")
"""The arms whose gains over ERM `table_cells` shows."""

NOISE_AS_STD = "noise_is=std"
READINGS = {"std": "a standard deviation", "variance": "a variance"}
VARIANTS = {NOISE_AS_STD, *(name for forms in FORMS.values() for name in forms)}


def table_arms(results: Results) -> Table:
    """One row for each method."""
    heads = (
        *("Method", "Settings", "Runs", "Diverged", "Feasible", "Falls", "Certain"),
        *("Layer L: error, %", "Layer L: accuracy, points", "Layer L/2: error, %", "Layer L/2: accuracy, points"),
        *("Over noise, %", "Better", "Worse", "Undecided"),
        *(f"Layers within {each} %" for each in WITHIN),
        *("ms: all layers", "ms: within 5 %"),
    )
    words = (
        "Each row is over the settings in which this method and ERM were run; not all methods were run in all. "
        "Feasible: runs of preset paper meet their α and cap, those of the default its target. Other methods are "
        "held to the default's target, for which they were not trained. Falls: the mean test loss falls at each of the "
        "layers 1 to L. Certain: of these runs, those in which every fall is certain at 95 % confidence; "
        f"on fewer than {ENOUGH_GROUPS} clips or texts none is. All three are "
        "at the run's own training noise. Diverged: without a finite loss; Table 3's rule, a mean RMSE above 60, can "
        "name more. Gains over ERM are medians over settings, and positive where the method is "
        "better: of errors in per cent of ERM's, of accuracies in points. Layers L and L/2 (rounded up) are read at "
        "the training noise. Over noise: the gain in the mean error or the area under the accuracy, in per cent; in "
        f"brackets the settings whose 95 % interval excludes 0. {INTERVALS} Layers within p %: the share of L from "
        "which on all layers are within p points of the same run's last layer (p per cent of an error), the mean over "
        "settings. Milliseconds are per sample. In brackets ERM's number in the same settings. A diverged run counts "
        "as worst in gains, and is left out of layers and milliseconds."
    )
    rows = [_arm_row(arm, given) for arm, given in overview(results).items()]
    return Table("table-arms", "What each method gives, over all settings", words, heads, rows)


def _arm_row(arm: str, given: ArmOverview) -> list[str]:
    counts = [given.settings, given.runs, given.diverged, given.feasible, given.falls, given.certain]
    gains, over = [given.error, given.accuracy, given.half_error, given.half_accuracy], given.over_noise
    compared = ["–"] * 3
    if arm != "erm":
        compared = [f"{over.better} ({over.surely_better})", f"{over.worse} ({over.surely_worse})", f"{over.undecided}"]
    ours, theirs = given.cost, given.erm_cost
    pairs = [(ours.layers[each], theirs.layers[each], ".2f") for each in WITHIN]
    pairs += [(ours.full, theirs.full, ".3g"), (ours.needed, theirs.needed, ".3g")]
    costs = [
        with_ends(Interval(mine), digits) + (f" ({base:{digits}})" if arm != "erm" and not isnan(base) else "")
        for mine, base, digits in pairs
    ]
    return [
        *(arm_name(arm), *map(str, counts)),
        *(with_ends(Interval(gained), "+z.2f") for gained in (*gains, over.middle)),
        *(*compared, *costs),
    ]


def table_cells(results: Results) -> Table:
    """One row for each setting: each form of constraints, and linear weights, against plain training."""
    heads = ["Model", "L", "Data", "γ", "Regime", f"{arm_name('erm')}: last layer"]
    for arm in JUDGED:
        shown = ("gain %", "verdict") if arm == "linear" else ("feasible", "falls", "last layer", "gain %", "verdict")
        heads += [f"{arm_name(arm)}: {column}" for column in shown]
    heads += [f"{arm_name('paper')}: allowed last loss", "Lowest loss reached"]
    settings = [setting for setting in results.settings if any(map(setting.runs, ("erm", *JUDGED)))]
    given = overview(results)
    counts = [_counted(arm, given[arm].over_noise, given[arm].settings) for arm in JUDGED if arm in given]
    gains = {setting: gain(setting).interval.value for setting in settings if setting.compares("constrained")}
    lost = [
        f"{setting.words} ({with_ends(Interval(gained), '+z.2f')} %)" for setting, gained in gains.items() if gained < 0
    ]
    words = [
        "Last layer: its metric at the training noise, the mean over seeds. Falls: runs whose mean test loss falls at "
        "each layer; in brackets those of them in which every fall is certain at 95 % confidence, on fewer than "
        f"{ENOUGH_GROUPS} clips or texts none. Gain: how much "
        "better than ERM in the mean error over test noise, or in the area under the accuracy, in per cent of ERM's, "
        f"with its paired interval. {INTERVALS} Better or worse: the interval excludes 0. "
        "Allowed last loss: the largest f_L that preset paper's α and cap allow together. Lowest loss reached: of "
        "any layer of this model on these data, by any method and at any depth, whichever is lowest.",
        *counts,
    ]
    if lost:
        words.append(f"Settings in which {arm_name('constrained')} is worse: {'; '.join(lost)}.")
    title, rows = "Every setting, against plain training", [_cell_row(results, setting) for setting in settings]
    return Table("table-cells", title, " ".join(words), heads, rows)


def _counted(arm: str, gains: Gains, settings: int) -> str:
    """How often a method is better than ERM, in a sentence."""
    equal = settings - gains.better - gains.worse
    ties = f", and neither in {equal}" if equal else ""
    return (
        f"{arm_name(arm)}: better than ERM in {gains.better} of {settings} settings ({gains.surely_better} decided), "
        f"worse in {gains.worse} ({gains.surely_worse} decided){ties}."
    )


def _cell_row(results: Results, setting: Setting) -> list[str]:
    row = [setting.model, str(setting.depth), data_name(setting.data), f"{setting.gamma:g}", setting.regime or "paper"]
    row.append(_last_layer(setting.plain, setting.gamma))
    for arm in JUDGED:
        runs = setting.runs(arm)
        if arm != "linear":
            row += [str(feasible(runs)), _falls(runs), _last_layer(runs, setting.gamma)]
        gained = gain(setting, arm).interval if setting.compares(arm) else None
        row += [with_ends(gained, "+z.2f"), _outcome(gained)] if gained else ["–", "–"]
    bounds = lowest_allowed(setting), lowest_loss(results, setting)
    return [*row, *(with_ends(Interval(loss), ".3g") for loss in bounds)]


def _falls(runs: Sequence[Run]) -> str:
    sure = certain(runs)
    return f"{falls(runs)}{f' ({sure.number} certain)' if sure.total else ''}"


def _last_layer(runs: Sequence[Run], level: float) -> str:
    return with_ends(Interval(float(metrics(runs, level)[-1].value)), ".4g") if runs else "–"


def _outcome(gained: Interval) -> str:
    """The outcome, and what its interval rests on if not on all seeds and groups."""
    return f"{outcome(gained)}{f', {gained.over}' if gained.over else ''}"


def table_forms(results: Results) -> Table:
    """Weights shared by all layers or not, DUST's two layers, and γσ_x as a variance or a standard deviation."""
    heads = (
        *("Model", "L", "Data", "γ", "γσ_x is", "Weights", "Layer", "Method"),
        *("Runs", "Diverged", "Feasible", "Falls", "Last layer", "Mean over noise"),
    )
    words = (
        "Tied weights are one layer's, used L times; untied layers have their own. The recipes' default is tied, and "
        "preset paper is untied. DUST's default layer is alternating. Last layer: its RMSE at the training noise. "
        "Mean over noise: of its RMSE, with a 95 % interval over seeds and groups of test samples. "
        "With the two readings of γσ_x a run is also tested under its own noise, so RMSEs compare within one reading. "
        "Which reading the paper used: its caps of 6.5 (DUST) and 5.5 (UT) bound the loss f_0 = ½ Σ_t ‖ε_t‖₂ of the "
        "noisy input. At T = 5, γ = 0.15 and σ_x = 0.179 this is 6.55 if γσ_x is a variance: the standard deviation "
        "√(γσ_x) = 0.164 is then 0.92 σ_x. It is 1.07 if γσ_x is a standard deviation. Caps of 6.5 and 5.5 would ask "
        "nothing of a loss of 1.07, so the variance fits."
    )
    places = {run.place for run in results.runs if run.variant in VARIANTS}
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in sorted(results.runs, key=lambda run: run.seed):
        if run.place in places and run.arm in FORM_ARMS and run.variant in ("", *VARIANTS):
            groups.setdefault((run.place, _form(run), run.arm), []).append(run)
    rows = [_form_row(groups[key]) for key in sorted(groups, key=_form_order)]
    title = "Tied and untied weights, DUST's layers, and the two readings of γ"
    return Table("table-forms", title, words, heads, rows)


def _form(run: Run) -> tuple[str, str, str]:
    """What γσ_x is, the weights and DUST's layer, from the arm and the variant."""
    reading = READINGS.get("std" if run.variant == NOISE_AS_STD else NOISE_IS.get(run.regime, ""), "–")
    if run.model not in ("UT", "DUST"):
        return reading, "–", "–"
    usual = "untied" if run.arm == "paper" else "tied"
    layer = "proximal" if run.variant == "proximal" else "alternating"
    weights = run.variant if run.variant in ("tied", "untied") else usual
    return reading, weights, layer if run.model == "DUST" else "–"


def _form_order(key: tuple[Place, tuple[str, ...], str]) -> tuple[Any, ...]:
    place, form, arm = key
    return (MODELS.index(place[1]) if place[1] in MODELS else len(MODELS), place, form, FORM_ARMS.index(arm))


def _form_row(runs: Sequence[Run]) -> list[str]:
    """A row from the runs of one form and method."""
    run = runs[0]
    over_noise = robust(tuple(runs)).summary().interval
    return [
        *(run.model, str(run.depth), data_name(run.data), f"{run.gamma:g}", *_form(run), arm_name(run.arm)),
        *(str(len(runs)), str(sum(run.diverged for run in runs)), str(feasible(runs)), _falls(runs)),
        *(_last_layer(runs, run.gamma), with_ends(over_noise, ".4g")),
    ]
