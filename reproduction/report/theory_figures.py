"""Theory beside practice: Theorems 1, 2 and 4, Corollary 3, and the energies of UT and DUST."""

from dataclasses import replace
from math import isfinite, nan

from reproduction.report.cells import Place, arm_name
from reproduction.report.chart import PLAIN, Chart, Line, Panel, arm_style
from reproduction.report.claims import number, percent
from reproduction.report.duality import Duality, dualities
from reproduction.report.evidence.theory import largest
from reproduction.report.parts import SEEDS, layer_series
from reproduction.report.results import FORMS, Results
from reproduction.report.selections import finite_runs, with_energy
from reproduction.report.tables import Table
from reproduction.report.theorems import GapBound, gap_bounds, gaps, lowest_loss, noise_distance, shifts, transfers


def theory_1(results: Results) -> Chart:
    """The best gap so far, min over k ≤ l of f_k − f*, against the measured part of Theorem 2's bound."""
    words = (
        "Drawn with the lowest loss that any layer of any method and depth reached on this data for f*. Measured: α, "
        "the smallest of the layers; ζ, the largest difference over layers between the losses of training and test "
        "samples, both in test mode; and u, the largest slack of a layer, which the relaxed constraint adds to ζ. The "
        "theorem's ζ is the largest over all models, so it may be larger. Named, not measured: C, δ and ν of the term "
        "Cδν/(1−δ), which would raise the bound. It is not drawn where it lies above the input's own gap: there it "
        f"says nothing. {SEEDS}"
    )
    by_place: dict[Place, dict[str, GapBound]] = {}
    for form, view in results.forms.items():
        for bound in gap_bounds(view):
            by_place.setdefault(bound.setting.place, {})[form] = bound
    panels = []
    for bounds in by_place.values():
        setting = next(iter(bounds.values())).setting
        best, lines = lowest_loss(results, setting), []
        runs = {"erm": finite_runs(setting, "erm")}
        for form, bound in bounds.items():
            runs[form] = finite_runs(bound.setting, "constrained")
            if bound.telling:
                lines.append(Line(bound.bound, f"(ζ + u)/α, {arm_name(form)}", "y"))
        rows = {arm: [gaps(run, setting.gamma, best) for run in members] for arm, members in runs.items()}
        series = [layer_series(arm_name(arm), arm, values) for arm, values in rows.items() if values]
        panels.append(Panel(setting.words, "layer (0 is the input)", "best gap so far", series, lines=lines))
    known = any(isfinite(bound.bound) for bounds in by_place.values() for bound in bounds.values())
    missing = "" if known else "Not run: constrained cells with the losses of training samples in test mode."
    return Chart("theory-1", "The gap that is left along the layers, and Theorem 2", words, panels, 3, missing)


def theory_2(results: Results) -> Chart:
    """The largest violation as test noise leaves that of training, against Corollary 3's linear growth."""
    words = (
        "The largest f_l − (1 − α_l) f_(l−1) over layers, in units of f_0 at the training noise; ERM is held to the "
        "same constraints. Distance: how far the noise's standard deviation is from that of training, in units of σ_x, "
        "or of √σ_x where γσ_x is a variance; transport between the two noises costs at most a multiple of it. The "
        f"factor C of the corollary is not measured; table-theory has a lower bound on it. {SEEDS}"
    )
    form, view = _theory_form(results)
    panels = []
    for shift in shifts(view):
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
                shown = form if arm == "constrained" else arm
                line = layer_series(arm_name(shown), shown, rows)
                series.append(replace(line, x=[noise_distance(runs[0], level) for level in shift.levels]))
        lines = [Line(0, "holds below", "y")]
        panels.append(
            Panel(
                shift.setting.words, "distance from the training noise", "largest violation / f_0", series, lines=lines
            )
        )
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


def theory_4(results: Results) -> Chart:
    """A primal value and the Lagrangian along training of preset paper, whose saddle point Theorem 1 is about."""
    words = (
        "Preset paper, from the losses and multipliers of its training log. Primal: f_L + ‖[g]₊‖²/2ρ, the last "
        "layer's loss and the price of the slack that this model needs, with the violations g of the layers and the "
        "cap. Lagrangian: f_L + λᵀg − ρ‖λ‖²/2, at the best slack for these multipliers (eq. 37). Their difference is "
        "0 where complementary slackness holds and never negative. It is no certified duality gap: the dual function "
        "is the least Lagrangian of any model, and this model's is only known to lie above it. In each title: the "
        "difference over the last tenth of training, in per cent of the primal value. Losses are those of training "
        f"batches, with dropout. {SEEDS}"
    )
    panels = []
    for setting, runs in dualities(results.judging("paper")).items():
        steps = min((run.steps for run in runs), key=len)
        rows = {
            "primal": [_at(steps, run, run.primal) for run in runs],
            "Lagrangian": [_at(steps, run, run.dual) for run in runs],
            "f_L": [_at(steps, run, run.losses) for run in runs],
        }
        styles = {"primal": arm_style("paper"), "Lagrangian": arm_style("erm"), "f_L": PLAIN}
        series = [
            replace(layer_series(name, name, values), style=styles[name], x=steps, dashed=name == "f_L")
            for name, values in rows.items()
        ]
        positive = all(value > 0 for one in series for value in (*one.y, *one.low) if isfinite(value))
        left = sum(run.end() for run in runs) / len(runs)
        title = f"{setting.words}: {percent(left, 1)}"
        panels.append(Panel(title, "training step", "value", series, log_y=positive))
    missing = "" if panels else "Not run: cells of preset paper with the losses and multipliers of training."
    return Chart("theory-4", "Primal value and Lagrangian along training, and Theorem 1", words, panels, 3, missing)


def table_theory(results: Results) -> Table:
    """The rise of the loss under shift, and what Assumption 7 and Theorem 4 allow."""
    form, view = _theory_form(results)
    heads = ("Setting", "Test γ", "C, at least", "Cd", "ERM", arm_name(form), "Cτ", "Cτ/α", "Says something")
    rows = [
        [
            *(one.shift.setting.words, f"{one.level:g}", number(one.constant), number(one.allowed)),
            *(number(one.rise("erm")), number(one.rise("constrained")), number(one.any_gap), number(one.term)),
            "yes" if one.telling else "no",
        ]
        for one in transfers(view)
    ]
    words = (
        "ERM and the constrained column: by how much f_L rises from the training noise to the test noise, averaged "
        "over seeds. Cd: the rise that Assumption 7 alone allows any model. Cτ, with τ = 2d: by how much it lets "
        "any model's gap to the optimum grow. Cτ/α: the same term of Theorem 4, for constrained models alone. d is "
        "the distance of transport between the two noises, in units of σ_x√d for inputs of dimension d (√(σ_x d) "
        "where γσ_x is a variance). C is the largest slope of any layer's loss in any of these runs. The "
        "assumption's C is at least that, and by this choice no row can break Cd. The last column: whether Cτ/α "
        "lies below the loss of the noisy input itself."
        if rows
        else "Not run: constrained cells judged beyond their training noise."
    )
    return Table(
        "table-theory", "The rise of the loss under shifted noise, Assumption 7 and Theorem 4", words, heads, rows
    )


def _theory_form(results: Results) -> tuple[str, Results]:
    """Preset paper, whose constraints have the form of the theorems, and the study's view of it; else the default."""
    return next(iter(results.forms.items()), (FORMS[0], results.judging(FORMS[0])))


def _at(steps: list[float], run: Duality, values: list[float]) -> list[float]:
    """A run's values at some steps; NaN where it has none."""
    known = dict(zip(run.steps, values, strict=True))
    return [known.get(step, nan) for step in steps]
