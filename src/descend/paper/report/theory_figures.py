"""Theory beside practice: Theorem 2 (the gap that is left), Corollary 3 (violations under shift), energies."""

from dataclasses import replace
from math import isfinite, nan

from descend.paper.report.cells import arm_name
from descend.paper.report.chart import Chart, Line, Panel
from descend.paper.report.evidence.theory import largest
from descend.paper.report.parts import SEEDS, layer_series
from descend.paper.report.results import Results
from descend.paper.report.selections import finite_runs, gap_bounds, gaps, lowest_loss, shifts, with_energy


def theory_1(results: Results) -> Chart:
    """The best gap so far, min over k ≤ l of f_k − f*, against the measured part of Theorem 2's bound."""
    words = (
        "Drawn with the lowest loss that any layer of any method and depth reached on this data for f*. Measured: α, "
        "the smallest of the layers, and ζ, the largest difference between training and test loss of a layer. Named, "
        "not measured: C, δ and ν of the term Cδν/(1−δ), which would raise the bound. It is not drawn where it lies "
        f"above the input's own gap: there it says nothing. {SEEDS}"
    )
    panels, bounds = [], gap_bounds(results)
    for bound in bounds:
        setting, best = bound.setting, lowest_loss(results, bound.setting)
        rows = {
            arm: [gaps(run, setting.gamma, best) for run in finite_runs(setting, arm)] for arm in ("erm", "constrained")
        }
        series = [layer_series(arm_name(arm), arm, values) for arm, values in rows.items() if values]
        lines = [Line(bound.bound, "ζ/α", "y")] if bound.telling else []
        panels.append(Panel(setting.words, "layer (0 is the input)", "best gap so far", series, lines=lines))
    missing = "" if any(isfinite(bound.bound) for bound in bounds) else "Not run: constrained cells with their curves."
    return Chart("theory-1", "The gap that is left along the layers, and Theorem 2", words, panels, 3, missing)


def theory_2(results: Results) -> Chart:
    """The largest violation as test noise leaves that of training, against Corollary 3's linear growth."""
    words = (
        "The largest f_l − (1 − α_l) f_(l−1) over layers, in units of f_0 at the training noise; ERM is held to the "
        "same constraints. Distance: |γ − γ_train|, to which that of transport between the two noises is proportional; "
        f"the factor C of the corollary is fitted, not measured. {SEEDS}"
    )
    panels = []
    for shift in shifts(results):
        gamma, series = shift.setting.gamma, []
        for arm, runs in shift.arms.items():
            rows = [
                [
                    float(largest(shift.rates, (run.losses(gamma) or [nan])[0], *(run.losses(level) or [])))
                    for level in shift.levels
                ]
                for run in runs
            ]
            if rows:
                series.append(
                    replace(layer_series(arm_name(arm), arm, rows), x=[level - gamma for level in shift.levels])
                )
        lines = [Line(0, "holds below", "y")]
        panels.append(Panel(shift.setting.words, "γ − γ of training", "largest violation / f_0", series, lines=lines))
    missing = "" if panels else "Not run: constrained cells."
    return Chart("theory-2", "Violations under shifted noise, and Corollary 3", words, panels, 3, missing)


def theory_3(results: Results) -> Chart:
    """The energy of UT's and DUST's own objective along the layers."""
    panels = []
    for setting in with_energy(results):
        series = []
        for arm, runs in setting.arms.items():
            rows = [run.summary.energy[setting.gamma] for run in runs if setting.gamma in run.summary.energy]
            if rows:
                series.append(layer_series(arm_name(arm), arm, rows))
        panels.append(Panel(setting.words, "layer (0 is the input)", "energy", series))
    missing = "" if panels else "Not run: cells of UT or DUST with their energies."
    return Chart("theory-3", "Energies along the layers of UT and DUST", SEEDS, panels, 3, missing)
