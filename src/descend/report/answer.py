"""What an evaluation answers, in words and numbers: the one object that terminal, page and card write."""

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple, Self

from descend.jackknife import fewest_groups
from descend.report.words import (
    STATES,
    capitalized,
    certificate_sentence,
    full_depth_words,
    gain_words,
    groups_words,
    layers_words,
    listed,
    metric_name,
    number,
    tolerance_words,
    verdict_sentence,
    worse_words,
)
from descend.results import (
    CONFIDENCE,
    KEPT_WITHIN,
    SHARED,
    SMALL_SLACKNESS,
    Choice,
    Gain,
    Summary,
    first_within,
)

MOST_TIMES = 1000
"""How many times as many samples are named that would certify K."""


class Sufficient(NamedTuple):
    """How many layers suffice within one tolerance; texts are empty where something is not known.

    Attributes:
        percent: The tolerance.
        within: The tolerance with its unit.
        layers: K of L.
        metric: That of layer K.
        time: The time to K against that to the last layer.
        state: How sure K is.
        more: What else is known of it, to follow the state.
    """

    percent: int
    within: str
    layers: str
    metric: str = ""
    time: str = ""
    state: str = ""
    more: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of the table."""
        return self.within, self.layers, self.metric, self.time, self.state + self.more


class Constraint(NamedTuple):
    """A layer of a constrained run at the training noise; None where something is not known or there is no constraint.

    Attributes:
        layer: 0 … L; layer 0 where the cap is on it.
        loss: f_l.
        bound: What the loss had to reach.
        violation: Above 0 where the bound is missed.
        interval: The violation's.
        broken: Whether the verdict calls the constraint broken.
        certified: By which share the layer certainly lowers the loss.
        multiplier: λ_l when the model was saved.
        slackness: λ_l · (violation − slack) as a share of the objective.
    """

    layer: int
    loss: float
    bound: float | None
    violation: float | None
    interval: tuple[float, float] | None
    broken: bool
    certified: float | None
    multiplier: float | None
    slackness: float | None


@dataclass(frozen=True)
class Answer:
    """How many layers suffice, and of a constrained run whether its constraints hold and its dual has converged.

    Attributes:
        summary: The evaluation.
        headline: Whether K layers suffice within 2 percent, without a full stop.
        rows: K for each tolerance.
        terms: What the rows rest on, in sentences.
        verdict: Whether the constraints hold.
        certificate: By how much layers certainly lower the loss; empty where the verdict is open.
        dual: Whether the dual has converged; empty of a run without constraints or multipliers.
        constraints: The layers of a run that was asked for descent; empty of others.
    """

    summary: Summary
    headline: str
    rows: list[Sufficient]
    terms: list[str]
    verdict: str
    certificate: str
    dual: str
    constraints: list[Constraint]

    @classmethod
    def of(cls, summary: Summary) -> Self:
        """The answer of an evaluation."""
        return cls(
            summary,
            headline=_headline(summary),
            rows=[_sufficient(summary, percent) for percent in summary.layers_needed.within],
            terms=_terms(summary),
            verdict=_verdict(summary),
            certificate="" if summary.few_groups else certificate_sentence(summary, summary.unit),
            dual=_dual(summary),
            constraints=_constraints(summary) if summary.asked and summary.violations else [],
        )


# --- how many layers suffice


def _headline(summary: Summary) -> str:
    needed, depth, top = summary.layers_needed, summary.depth, summary.top
    within = tolerance_words(KEPT_WITHIN, summary.higher_is_better)
    whole, choice = full_depth_words(summary), needed.choice(KEPT_WITHIN)
    last, unit = _top_words(summary), summary.unit
    none = f"None of {depth} {unit}s can be left out" if depth > 1 else f"The only {unit} can't be left out"
    if needed.baseline is None and needed.best and top < depth:
        return _ship(summary, needed.best, choice)
    if choice is None and needed.excluded and summary.validation:
        worse = gain_words(needed.excluded, summary.higher_is_better, whole)
        here = "" if needed.last is None else f"; on {summary.split} data {worse_words(needed.last, summary)}"
        return f"On {summary.validation.samples} validation samples {last} is {worse}{here}"
    if choice is None and needed.chosen:
        return f"On validation data {last} is not within {within} of {whole}"
    if choice is None and needed.baseline is None:
        return f"It is not certain how many {unit}s suffice within {within}"
    if choice is None:
        certain = "" if summary.kept.get(needed.noise) == "broken" else "certain to be "
        return f"{capitalized(last)} is not {certain}within {within} of {whole}"
    if choice.layer < top:
        better = "" if needed.baseline else _not_the_best(summary)
        return f"{better} {_suffices(summary, choice)}".lstrip()
    if needed.baseline is None and not needed.chosen:
        return f"No {unit} below the last one is {_certified(summary)} within {within}"
    if needed.baseline is None:
        return f"{none} within {within}"
    verb = {"proven": "is", "estimated": "is", "open": "may be", "broken": "is not"}[choice.state]
    sure = f"{verb} within {within} of {whole}: {STATES[choice.state]}"
    return f"{none}; the last one {sure}" if top == depth else f"{capitalized(last)} {sure}"


def _ship(summary: Summary, best: Gain, choice: Choice | None) -> str:
    """That an inner layer is the best one, and whether still fewer layers suffice."""
    words, unit = gain_words(best, summary.higher_is_better, "the whole"), summary.unit
    words += ", estimated" * (summary.layers_needed.bounded is False)
    if best.low > 0:
        words = f"{capitalized(unit)} {best.layer}, the best on validation data, is {words}"
    else:
        words = f"By validation data {unit} {best.layer} is the best; here it is {words}: open"
    if choice is None or choice.layer == best.layer:
        return words
    return f"{words}. {_suffices(summary, choice, f' of {unit} {best.layer}')}"


def _suffices(summary: Summary, choice: Choice, of: str = "") -> str:
    """Whether K layers suffice within 2 percent, of the full depth or ``of`` another layer, and how sure that is."""
    within = tolerance_words(KEPT_WITHIN, summary.higher_is_better) + of
    layers, several = layers_words(choice.layer, summary), bool(choice.layer)
    if choice.state == "open" and choice.worse > KEPT_WITHIN:
        chosen = f"By validation data {layers} {'suffice' if several else 'is'} within {within}"
        return f"{chosen}; here that is {worse_words(choice, summary)}: open"
    verbs = {
        "proven": ("is", "suffice"),
        "estimated": ("is", "suffice"),
        "open": ("may be", "may suffice"),
        "broken": ("is not", "do not suffice"),
    }
    words = f"{capitalized(layers)} {verbs[choice.state][several]} within {within}"
    return words if choice.state == "broken" else f"{words}: {STATES[choice.state]}"


def _sufficient(summary: Summary, percent: int) -> Sufficient:
    """K for a tolerance, its metric, its time and how sure it is."""
    needed, depth = summary.layers_needed, summary.depth
    within, choice = tolerance_words(percent, summary.higher_is_better), needed.choice(percent)
    if choice is None:
        return Sufficient(percent, within, f"no {summary.unit}" + " on validation data" * bool(needed.chosen))
    metric, certain, more = summary.layer_metrics.get(needed.noise), needed.within[percent], ""
    state = "not enough" if choice.state == "broken" else STATES[choice.state]
    itself = choice.layer == summary.top and needed.baseline is None
    if choice.layer == depth:
        more = f"; the last one {state}" if needed.baseline else ""
        state = "none can be left out"
    elif itself:
        state = "the best"
    if choice.state != "proven" and not itself and (worse := worse_words(choice, summary)):
        more += f", {'but ' * (choice.worse > percent)}{worse}"
    if choice.state in ("open", "broken") and certain is not None and certain < summary.top:
        more += f"; {_certified(summary)}: {summary.unit} {certain}"
    return Sufficient(
        percent,
        within,
        layers_words(choice.layer, summary),
        number(metric[choice.layer]) if metric else "",
        "" if choice.time is None else f"{100 * choice.time:.0f} % of the full time",
        state,
        more,
    )


def _terms(summary: Summary) -> list[str]:
    """What the rows rest on, and whether the last layer is as good as the baseline's."""
    needed, within = summary.layers_needed, tolerance_words(KEPT_WITHIN, summary.higher_is_better)
    metric, choice, name = summary.layer_metrics.get(needed.noise), needed.choice(KEPT_WITHIN), metric_name(summary)
    unit = summary.unit
    how = "K was chosen on validation data and tested" if needed.chosen else "Tested"
    alone = " for this one trained model; with another seed it may differ" * (summary.method != "plain")
    lines = [
        f"{name} at γ = {needed.noise:g}, held to {full_depth_words(summary)}. {how} on {summary.split} data, with "
        f"{CONFIDENCE:.0%} confidence{alone}."
    ]
    if needed.bounded is False:
        lines.append(
            f"{name} is not known to be a share of the samples, so no test can certify it. These are estimates: they "
            f"assume that there are no rare samples, which these data lack, on which one {unit} is much worse."
        )
    if levels := [level for level in sorted({0.0, needed.noise}) if level in summary.kept]:
        kept = ", ".join(f"{STATES[summary.kept[level]]} at γ = {level:g}" for level in levels)
        last = f"Last {unit}" if summary.top == summary.depth else f"{capitalized(unit)} {summary.top}"
        lines.append(f"{last} within {within} of that: {kept}.")
    if needed.why:
        lines.append(f"It is not held to the plain training beside it: {needed.why}")
    if metric and choice and choice.layer == summary.depth > 1 and needed.baseline is None:
        lines.append(
            f"The last {unit} has {number(metric[-1])}, the one before it {number(metric[-2])}. A model that is "
            f"trained with fewer {unit}s from the start may do as well."
        )
    lines += _beside_baseline(summary)
    if needed.baseline or choice is None:
        lines.append(_not_the_best(summary))
    lines.append(_budgets(summary))
    lines.append(enough_sentence(summary))
    if summary.commonest is not None and metric and 0 <= metric[-1] <= 1 and summary.samples:  # not in percent
        error = math.sqrt(metric[-1] * (1 - metric[-1]) / summary.samples)
        if metric[-1] - NormalDist().inv_cdf(CONFIDENCE) * error <= summary.commonest:
            chance = f"always naming the commonest class has {summary.commonest:.3g}"
            lines.append(f"The last {unit} may have learned nothing: {chance}.")
    return list(filter(None, lines))


def enough_sentence(summary: Summary) -> str:
    """How many samples would certify K, or any layer; empty where that is not known or nothing is open."""
    if summary.few_groups:
        return f"Too few samples to certify anything: {groups_words(summary.groups)}."
    needed = summary.layers_needed
    choice = needed.chosen.get(KEPT_WITHIN)
    if not summary.samples or choice is None or choice.state != "open" or not 1 < choice.times < MOST_TIMES:
        return _too_few_sentence(summary)
    enough = float(f"{choice.times * summary.samples:.2g}")
    decide, within = (
        "estimate" if needed.bounded is False else "certify",
        tolerance_words(KEPT_WITHIN, summary.higher_is_better),
    )
    return f"To {decide} K within {within} takes about {enough:,.0f} such samples, if no number changes."


def _too_few_sentence(summary: Summary) -> str:
    """That so few groups certify no layer that is just as good; empty where they certified one, or are enough."""
    needed, groups = summary.layers_needed, summary.groups
    itself = None if needed.baseline else summary.top
    if not (needed.bounded and needed.chosen and summary.higher_is_better and groups):
        return ""
    least = fewest_groups(KEPT_WITHIN / 100, SHARED)
    if groups >= least or needed.within.get(KEPT_WITHIN) not in (None, itself):
        return ""
    within = tolerance_words(KEPT_WITHIN, summary.higher_is_better)
    each = "samples" if groups == summary.samples else "groups"
    return (
        f"{groups} independent {each} can't certify within {within} a {summary.unit} that is just as good: that takes "
        f"at least {least}."
    )


def _beside_baseline(summary: Summary) -> list[str]:
    """The layer that counts as full depth beside the baseline's."""
    needed, within, lines = summary.layers_needed, tolerance_words(KEPT_WITHIN, summary.higher_is_better), []
    metric = summary.layer_metrics.get(needed.noise)
    if needed.last and needed.full is not None and metric:
        worse = worse_words(needed.last, summary)
        both = f"{capitalized(_top_words(summary))} has {number(metric[summary.top])}, the baseline's "
        lines.append(f"{both}{number(needed.full)}{': ' * bool(worse)}{worse}.")
        if needed.last.worse < -KEPT_WITHIN and needed.last.at_most < 0 and needed.seed is not None:
            lines.append("A baseline that is so much worse may be a weak one: try it with another rate or seed.")
    validated = summary.validation.metric if summary.validation else []
    beaten = needed.baseline is not None and needed.chosen.get(KEPT_WITHIN, True) is None
    if beaten and summary.top == summary.depth and validated and summary.better_on(validated) is None:
        layer = first_within(validated, validated[-1], KEPT_WITHIN, higher_is_better=summary.higher_is_better)
        if layer not in (None, summary.depth):
            lines.append(
                f"Held to its own last {summary.unit}, {summary.unit} {layer} is within {within} on validation data."
            )
    return lines


def _budgets(summary: Summary) -> str:
    """That the baseline was trained otherwise; empty where it was not, or that is not known."""
    needed = summary.layers_needed
    trained = [(each.steps, each.learning_rate) for each in (needed, summary)]
    if trained[0] == trained[1] or not all(steps for steps, _ in trained):
        return ""
    theirs, ours = (
        f"{steps:,} steps at the {'default learning rate' if rate is None else f'learning rate {rate}'}"
        for steps, rate in trained
    )
    return f"The baseline had {theirs}, this model {ours}. Try each for both."


def _not_the_best(summary: Summary) -> str:
    """That validation data choose a layer which is better than the last one by more than 2 percent; else empty."""
    best, metric = summary.better_layer, summary.layer_metrics.get(summary.layers_needed.noise, [])
    unit = summary.unit
    if best is None:
        return ""
    return f"The last {unit} is not the best: {unit} {best} has {number(metric[best])}, it {number(metric[-1])}."


def _top_words(summary: Summary) -> str:
    """The layer that counts as full depth."""
    return f"the last {summary.unit}" if summary.top == summary.depth else f"{summary.unit} {summary.top}"


def _certified(summary: Summary) -> str:
    """What the evaluated data can do with a layer."""
    return "estimated" if summary.layers_needed.bounded is False else "certified"


# --- whether the constraints hold, and whether the dual has converged


def _verdict(summary: Summary) -> str:
    words = verdict_sentence(summary, _data(summary), summary.unit)
    if not summary.asked:
        return words
    losses = summary.layer_losses[summary.train_noise]
    if rising := [layer for layer, (before, loss) in enumerate(pairwise(losses), 1) if loss > before]:
        words += f" The mean loss rises at {listed(rising, summary.unit)}."
    if summary.binding:
        words += f" Binding (λ > 0): {listed(summary.binding, summary.unit)}."
    return words


def _data(summary: Summary) -> str:
    return f"the {'training' if summary.split == 'train' else summary.split} data"


def _dual(summary: Summary) -> str:
    dual = summary.dual
    if dual is None:
        return ""
    product = "λ · (violation − slack)" if any(summary.slack) else "λ · violation"
    size = f"{dual.gap:.1%}" if math.isfinite(dual.gap) else "diverged"
    state = "has converged" if dual.converged else "has not converged"
    missed = ""
    if not dual.converged and dual.gap <= SMALL_SLACKNESS:
        misses = "misses its bound" if len(dual.unmet) == 1 else "miss their bounds"
        missed = f"{listed(dual.unmet, summary.unit)} {misses}, though "
    loss = "last loss" if summary.after is None else f"loss of {summary.unit} {summary.after},"
    words = (
        f"The dual {state} on {_data(summary)}: {missed}all |{product}| add up to {size} of the objective, the {loss} "
        f"{number(dual.objective)}; at most {SMALL_SLACKNESS:.0%} is small."
    )
    if dual.at_maximum:
        most = number(summary.max_multiplier)
        words += (
            f" Not counted: {listed(dual.at_maximum, summary.unit)}, missed though λ is the most it may be, {most}."
        )
    if dual.converged or not math.isfinite(dual.gap):
        return words
    worst = dual.worst
    rises = worst in dual.unmet or dual.slackness[worst] > 0
    todo = "misses its bound, so λ has yet to rise" if rises else "is below its bound, so λ has yet to fall"
    furthest, multiplier = listed([worst], summary.unit), number(dual.multipliers[worst])
    return f"{words} Furthest off is {furthest}: with λ = {multiplier} it {todo}."


def _constraints(summary: Summary) -> list[Constraint]:
    losses, to_reach = summary.layer_losses[summary.train_noise], summary.losses_to_reach(summary.train_noise)
    certified, known = [], []
    if not summary.few_groups:
        certified, known = summary.certified, [summary.cap_interval, *summary.violation_intervals]
    dual, rows = summary.dual, []
    violations = [summary.cap_violation, *summary.violations]
    capped = None if summary.cap is None else summary.cap_layer
    for layer in range(0 if capped == 0 else 1, summary.depth + 1):
        asks = layer > 0 and summary.asks(layer)
        place = layer if asks else 0 if layer == capped else None  # in lists of all constraints, the cap's first
        rows.append(
            Constraint(
                layer,
                losses[layer],
                to_reach.get(layer),
                None if place is None else violations[place],
                known[place] if known[1:] and place is not None else None,
                place in summary.violated,
                certified[layer - 1] if certified and layer else None,
                dual.multipliers[place] if dual and place is not None else None,
                dual.slackness[place] if dual and place is not None else None,
            )
        )
    return rows
