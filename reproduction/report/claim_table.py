"""The paper's claims as a table: what each says, the cells it needs, its statistic and its test."""

from functools import partial

from reproduction.published import table_3, table_4, wins
from reproduction.report import duality, selections, theorems
from reproduction.report.claims import Claim, Row, above, below, percent, within
from reproduction.report.evidence import answers, counts, layers, method, noise, theory
from reproduction.report.evidence.counts import DIVERGED
from reproduction.report.evidence.method import NEAR
from reproduction.report.results import Results

POINT = 1.0
"""Points of accuracy (per cent of an error) that count as equal; the paper says "comparable"."""

COST = 0.3
"""The same for α in distribution, by the paper's Section 5.1."""

VIDEO_COST = 2.0
"""Per cent of an error that count as no loss; the paper says "slight to no degradation"."""

LANGUAGE_COST = 0.5
"""Points of token accuracy that count as no loss; the paper says "virtually no" loss in distribution."""

PAPER_WINS = {"table-3": wins(table_3()) / len(table_3()), "table-4": wins(table_4()) / len(table_4())}
_WINS = {
    name: f"{wins(rows)} of {len(rows)}, {percent(wins(rows) / len(rows))}"
    for name, rows in (("table-3", table_3()), ("table-4", table_4()))
}
_GONE = [sum(getattr(row, arm) > DIVERGED for row in table_3()) for arm in ("constrained", "unconstrained")]

_BOTH = "ERM and constrained"
_AGAINST = "Strongest counter-evidence: {worst}, "
_SMOOTH = (
    "Along the layers ERM's loss rises by {theirs} % of its highest value, the constrained one's by {ours} %; the "
    "difference is {difference}."
)
_ENDS = (
    "At the weakest test noise the gain over ERM is {weak}, at the strongest {strong}, averaged over {curves} curves."
    "{change}"
)
_DISTILBERT = "DistilBERT on {imdb} at two training noise levels or more"

ROWS = (
    Row(
        "figure-1",
        "The loss along ERM's layers is uneven, with rises; under constraints it falls more smoothly.",
        f"RoBERTa on {{imdb}} with {_BOTH}",
        selections.roberta,
        partial(layers.smoother, neither="not held"),
        _SMOOTH,
        above,
    ),
    Row(
        "figure-1",
        "As the noise grows beyond that of training, the constrained model's accuracy decays more slowly.",
        f"RoBERTa on {{imdb}} with {_BOTH}",
        selections.roberta,
        noise.decay,
        "From γ = {gamma:g} to {last:g} accuracy falls by {ours} points under constraints and by {theirs} with ERM; "
        "the difference in favour of constrained is {found}.",
        above,
    ),
    Row(
        "figure-2",
        "On noise stronger than in training, constrained models are better in more panels than not (paper: better in "
        "5 of 9, alike in 3, worse in 1).",
        f"video cells of {_BOTH}",
        selections.main_regime,
        noise.panels_ahead,
        "Constrained is ahead in {count}: significantly better in {better}, worse in {worse}, undecided in {open}; "
        "{mean}.",
        above,
        0.5,
    ),
    Row(
        "figure-2",
        "On {ucsd} every constrained model has a lower error than ERM under noise stronger than in training.",
        "video cells on {ucsd}",
        lambda results: selections.main_regime(results, data=results.known("ucsd")),
        noise.panel_gains,
        "Gains on {ucsd}: {ends}.",
        above,
    ),
    Row(
        "figure-2",
        f"Up to the training noise constraints cost little or nothing (here: at most {VIDEO_COST:g} % of the error).",
        f"video cells of {_BOTH}",
        selections.main_regime,
        noise.panel_costs,
        _AGAINST + "with a gain of {end}.",
        above,
        -VIDEO_COST,
    ),
    Row(
        "figure-3",
        "Deeper constrained models have a lower error under strong noise.",
        "UT or DUST at two depths or more",
        lambda results: selections.by_depth(results, ("UT", "DUST")),
        partial(noise.deeper, erm=False),
        "From the smallest depth to the largest constrained gains {ours} at the strongest test noise, averaged over "
        "{panels} panels.",
        above,
    ),
    Row(
        "figure-3",
        "ERM does not gain from depth as constrained training does.",
        "UT or DUST at two depths or more",
        lambda results: selections.by_depth(results, ("UT", "DUST")),
        partial(noise.deeper, erm=True),
        "From the smallest depth to the largest ERM gains {theirs} at the strongest test noise, averaged over {panels} "
        "panels; constrained gains {ours}, which is more by {between}.",
        above,
    ),
    Row(
        "figure-4",
        "On {imdb}, constrained DistilBERT and RoBERTa are more accurate under noise stronger than in training.",
        "DistilBERT or RoBERTa on {imdb}",
        lambda results: selections.on_imdb(results, "DistilBERT", "RoBERTa"),
        partial(noise.classifier_gains, models=2),
        "Gains: {ends}.{lacking}",
        above,
    ),
    Row(
        "figure-4",
        "On {imdb} the gain is larger for the larger model: RoBERTa's exceeds DistilBERT's.",
        "both DistilBERT and RoBERTa on {imdb}",
        lambda results: selections.on_imdb(results, "DistilBERT", "RoBERTa"),
        noise.larger_gain,
        "On {imdb} RoBERTa's gain less DistilBERT's is {found}.",
        above,
    ),
    Row(
        "figure-4",
        f"Constrained UT is as accurate as ERM (here: within {POINT:g} point).",
        "UT on texts",
        lambda results: selections.classifiers(results, "UT"),
        noise.classifier_gains,
        "Gains: {ends}.",
        within,
        POINT,
    ),
    Row(
        "figure-4",
        f"Up to the training noise constraints cost next to nothing (here: at most {POINT:g} point).",
        f"text cells of {_BOTH}",
        selections.classifiers,
        noise.classifier_costs,
        _AGAINST + "with a gain of {end}.",
        above,
        -POINT,
    ),
    Row(
        "figure-5",
        "A larger α makes the model more robust to strong noise.",
        "constrained cells at two values of α or more",
        selections.alphas,
        method.largest_alpha,
        "From α = {low:g} to {high:g} the gain at γ = {last:g} is {found}.",
        above,
    ),
    Row(
        "figure-5",
        f"It costs less than {COST:g} points in distribution.",
        "constrained cells at two values of α or more",
        selections.alphas,
        method.alpha_cost,
        "From α = {low:g} to {high:g}, strongest counter-evidence: {worst}, with a gain of {end}.",
        above,
        -COST,
    ),
    Row(
        "figure-6",
        "The constrained language model descends more evenly along its layers.",
        f"a language model with {_BOTH}",
        lambda results: results.where(task="language", paired=True),
        partial(layers.smoother, neither="undecided"),
        _SMOOTH,
        above,
    ),
    Row(
        "figure-6",
        "It is more accurate under strong noise.",
        f"a language model with {_BOTH}",
        lambda results: results.where(task="language", paired=True),
        noise.strong_noise,
        "Over test noise above γ = {gamma:g} the gain is {found}.",
        above,
    ),
    Row(
        "figure-6",
        f"Up to the training noise it is as accurate (here: at most {LANGUAGE_COST:g} points less).",
        f"a language model with {_BOTH}",
        lambda results: results.where(task="language", paired=True),
        noise.weak_noise,
        "Gains: {ends}.",
        above,
        -LANGUAGE_COST,
    ),
    Row(
        "figure-7",
        "Constrained DUST lowers the loss at every layer, at every depth.",
        f"DUST with {_BOTH}",
        selections.dust,
        layers.descent,
        _AGAINST + "where the loss changes by {end}.",
        below,
    ),
    Row(
        "figure-7",
        "Unconstrained DUST does not: somewhere its loss rises.",
        f"DUST with {_BOTH}",
        selections.dust,
        layers.erm_rise,
        "ERM's worst step is {worst}, where the loss changes by {found}.",
        above,
        once=True,
    ),
    Row(
        "figure-8",
        "UT and ViT trade quality at weak noise for more of it at strong noise.",
        "cells of UT or ViT",
        lambda results: selections.main_regime(results, "UT", "ViT"),
        partial(noise.trade_off, fading=False),
        _ENDS,
        above,
    ),
    Row(
        "figure-8",
        "Constrained DUST is ahead most at weak noise, and less so as the noise grows.",
        "cells of DUST",
        lambda results: selections.main_regime(results, "DUST"),
        partial(noise.trade_off, fading=True),
        _ENDS,
        above,
    ),
    Row(
        "figure-9",
        "More training noise makes constrained models more robust to strong noise.",
        _DISTILBERT,
        lambda results: selections.by_training_noise(results, "DistilBERT", results.known("imdb")),
        noise.robuster,
        "From γ = {low:g} to {high:g} in training, constrained accuracy at test γ = {last:g} changes by {found}.",
        above,
    ),
    Row(
        "figure-9",
        "On clean inputs it costs constrained models less than ERM.",
        _DISTILBERT,
        lambda results: selections.by_training_noise(results, "DistilBERT", results.known("imdb")),
        noise.clean_cost,
        "From γ = {low:g} to {high:g} in training, accuracy on clean inputs falls by {ours} points under constraints "
        "and by {theirs} with ERM; the gain of constrained is {found}.",
        above,
    ),
    Row(
        "figure-9",
        "The error along the layers falls more smoothly under constraints.",
        _DISTILBERT,
        lambda results: selections.by_training_noise(results, "DistilBERT", results.known("imdb")),
        noise.error_rises,
        "ERM's error rises along the layers by more than the constrained one's: {found}, averaged over training noise, "
        "{seeds} seeds.",
        above,
    ),
    Row(
        "figure-10",
        "DistilBERT's gain under noise grows with the training noise.",
        "DistilBERT at two training noise levels or more",
        lambda results: selections.several_noises(results, "DistilBERT", "mnli", "imdb"),
        noise.growing_gain,
        "From the least to the most training noise the gain changes by {found}.",
        above,
    ),
    Row(
        "figure-10",
        "UT's gain is not largest at the strongest training noise: the effect is not uniform.",
        "UT at two training noise levels or more",
        lambda results: selections.several_noises(results, "UT", "mnli", "imdb"),
        noise.uneven_gain,
        "{gains}.",
        above,
    ),
    Row(
        "figure-11",
        "A constrained run that is not feasible at the end is worse than one that is, at every noise level.",
        "an infeasible constrained cell, and constrained runs beside it",
        selections.made_infeasible,
        method.infeasible_is_worse,
        "It is compared with the {beside} constrained runs beside it, of which {feasible} met their constraints. "
        "Strongest counter-evidence: {worst}, with a gain in {metric} of {end}.",
        below,
    ),
    Row(
        "figure-11",
        "The verdict finds it and names the layers.",
        "a constrained cell that is infeasible",
        selections.made_infeasible,
        method.verdict_names_layers,
        "{infeasible} of {runs} runs are judged infeasible. In {count} each layer that the verdict names missed its "
        "bound at the end of training too, on other data than the verdict's. {verdict}",
        above,
    ),
    Row(
        "figure-12",
        "Under constraints a layer lowers a single sample's loss more often than not (paper: on "
        f"{percent(method.PAPER_SHARE, 1)} of steps).",
        "constrained cells with ratios of samples",
        selections.with_ratios,
        method.sample_descent,
        "The loss of a sample falls on {points} of steps{free} ({paper}).",
        above,
        0.5,
    ),
    Row(
        "figure-12",
        f"Ratios gather near 1 − α (here: the median within {NEAR:g} α of it; paper: mean 0.87, median 0.82).",
        "constrained layers, and ratios of samples",
        selections.with_ratios,
        method.median_ratio,
        "A layer's median ratio is {median}, averaged over the layers that have a constraint; from 1 − α = {rate} it "
        "differs by {difference}.",
        within,
        NEAR,
    ),
    Row(
        "figure-13",
        "Constrained models lower the loss at every layer, in every setting of the texts.",
        f"text cells of {_BOTH}",
        lambda results: results.where(task="text", paired=True),
        layers.descent,
        "In {count} of the settings the mean loss falls at every layer, with ERM in {erm}. "
        "Strongest counter-evidence: {worst}, where the loss changes by {end}.",
        below,
    ),
    Row(
        "figure-14",
        f"At weak and middling noise accuracy does not depend on α (here: within {POINT:g} point).",
        "constrained cells at two values of α or more",
        selections.alphas,
        partial(method.changes, name="α", strongest=False),
        _AGAINST + "which differs from that of {least:g} by {end}.",
        within,
        POINT,
    ),
    Row(
        "figure-14",
        "Seeds differ more at strong noise than at weak.",
        "constrained cells at two values of α or more, with two seeds or more",
        selections.alphas,
        method.seed_spread,
        "The standard deviation over {seeds} seeds, averaged over {values} values, is {strong} points at test "
        "γ = {last:g} and {weak} at {first:g}: {found} times as large.",
        above,
        1.0,
    ),
    Row(
        "figure-15",
        f"At every noise level results depend little on the dual learning rate (here: within {POINT:g} point).",
        "constrained cells at two values of η or more",
        selections.dual_lrs,
        partial(method.changes, name="η", strongest=True),
        _AGAINST + "which differs from that of {least:g} by {end}.",
        within,
        POINT,
    ),
    Row(
        "figure-16",
        "Under noise the unconstrained model's answers fall into repetition; the constrained model's do so less.",
        f"answers of {_BOTH}",
        selections.answered,
        answers.less_repetition,
        "At γ = {level:g} ERM repeats more than it does without noise by {more}, and more than constrained does by "
        "{less}; one seed of each method: other seeds may differ by more.",
        above,
    ),
    *(
        row
        for name, task in (("table-3", "video"), ("table-4", "text"))
        for row in (
            Row(
                name,
                f"Constrained models are better in most cells (paper: {_WINS[name]}).",
                f"cells of {_BOTH}",
                partial(selections.table_regimes, task=task),
                counts.table_wins,
                "{where}, constrained is better in {count}, with {ties}, sign test p = {p} (cells share data and "
                "seeds, and are treated as independent); significantly better in {better}, and significantly worse in "
                "{worse}; {mean}.{apart}",
                above,
                0.5,
            ),
            Row(
                name,
                "They win a larger share of cells than in the paper.",
                f"cells of {_BOTH}",
                partial(selections.table_regimes, task=task),
                counts.table_share,
                f"{{where}}, {{count}} of {{cells}} ({{share}}) against the paper's {percent(PAPER_WINS[name])}: "
                "95 % interval {low} to {high}; {ties}.",
                above,
                PAPER_WINS[name],
            ),
        )
    ),
    Row(
        "table-3",
        f"No run diverges (paper: {_GONE[0]} constrained cells and {_GONE[1]} unconstrained did).",
        "cells of video",
        lambda results: results.where(task="video"),
        counts.none_diverges,
        "{count} of {runs} runs have a mean RMSE above {most} or none (95 % interval {low} to {high}){named}.",
        above,
        once=True,
        whole=True,
    ),
    Row(
        "theory-1",
        "Theorem 2: the best gap left at the last layer is within the bound, of which (ζ + u)/α is measured (here: "
        "with 0, below which no loss lies, for f*).",
        "constrained cells with the losses of training samples in test mode",
        theorems.gap_bounds,
        theory.gap_within_bound,
        "In {within} of {telling} settings even the loss itself, which is at least the gap, is below (ζ + u)/α. In "
        "{silent} more (ζ + u)/α lies above the input's own gap and says nothing. Furthest above it, or closest: "
        "{where}, {gap} against {bound}. The term that is not measured could make up for a miss, so runs can't refute "
        "this. {diverged}",
        above,
    ),
    Row(
        "theory-1",
        "More layers leave a smaller gap, as they do to the bound of Theorem 2.",
        "one model at two depths or more",
        selections.depth_families,
        theory.smaller_gap,
        "The gap is smaller at the largest depth than at the smallest in {smaller} of {families} families. "
        "Strongest counter-evidence: {worst}, a change of {end}.",
        below,
    ),
    Row(
        "theory-2",
        "Corollary 3: violations grow no faster than linearly in the distance from the training distribution.",
        "two test noise levels above that of training",
        theorems.shifts,
        theory.linear_growth,
        "At the strongest noise every layer's violation lies below its line over the nearer half of the levels in "
        "{under} of {settings} settings. Furthest above, or least below: a layer of {where}, by {worst} of f_0. The "
        "corollary's own factor is not measured and may be larger than that of the nearer levels, so runs can't refute "
        "this.",
        below,
    ),
    Row(
        "theory-2",
        "Under the strongest shift constrained models violate the constraints less than ERM does.",
        f"cells of {_BOTH}",
        theorems.shifts,
        theory.fewer_violations,
        "Less in {fewer} of {settings} settings. Strongest counter-evidence: {worst}, a difference of {end} of f_0.",
        below,
    ),
    Row(
        "theory-3",
        "UT's and DUST's layers lower their own energy at every step (Appendices C.2 and C.3).",
        "cells of UT or DUST with their energies",
        selections.with_energy,
        layers.energy,
        "The energy falls at every layer in {falling} of {pairs} (setting, method) pairs. "
        "Strongest counter-evidence: {worst}, where the energy changes by {end}.",
        below,
        once=True,
    ),
    Row(
        "theory-4",
        "At the end of training a primal value and the Lagrangian agree, as they do at Theorem 1's saddle point (here: "
        f"within {theory.MEET:g} % of the primal value).",
        "cells of preset paper with the losses and multipliers of training",
        duality.dualities,
        theory.values_meet,
        "They agree in {near} of {settings} settings. Strongest counter-evidence: {worst}, {end} of the primal value. "
        "The dual function lies below the Lagrangian by an unknown amount: agreement does not bound the duality gap.",
        below,
        theory.MEET,
    ),
)
"""In the paper's order."""


def judge(figure: str, results: Results) -> list[Claim]:
    """The claims of one figure or table, each for preset paper and for the default."""
    return [claim for row in ROWS if row.figure == figure for claim in row.judge(results)]
