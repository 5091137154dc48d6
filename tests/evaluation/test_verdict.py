"""The verdict, against computations by hand, the bootstrap and simulation."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from descend import DescentProblem, GeometricTarget, InputError
from descend.evaluation.layers import LayerLosses
from descend.evaluation.satisfaction import certified_falls, margin_of_error, verdict
from descend.jackknife import Numbers, advantage
from descend.report import certificate_sentence, verdict_sentence
from descend.report.intervals import Jackknife
from descend.results import Verdict
from tests.support.cases import slow


def layers(losses, groups=None) -> LayerLosses:
    """Losses as measured; every sample is its own group unless told otherwise."""
    losses = torch.as_tensor(losses, dtype=torch.float64)
    return LayerLosses(losses, torch.arange(len(losses)) if groups is None else torch.as_tensor(groups), [], losses)


def samples(mean, count=400, spread=0.3, seed=0) -> torch.Tensor:
    """Losses of correlated samples around a mean."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(count, len(mean), generator=generator, dtype=torch.float64)
    return torch.tensor(mean, dtype=torch.float64) + spread * (0.7 * shared + 0.7 * own)


def freedom_of(sizes: np.ndarray) -> float:
    """Degrees of freedom of the jackknife's variance as a quadratic form of the means of groups."""
    shares, count = sizes / sizes.sum(), len(sizes)
    about = np.eye(count) - np.outer(np.ones(count), shares)
    matrix = about.T @ np.diag((shares / (1 - shares)) ** 2) @ about
    return np.trace(matrix) ** 2 / np.trace(matrix @ matrix)


def test_the_interval_of_unequal_groups_is_the_jackknifes_in_the_verdict_and_on_the_page():
    """Leave out one group at a time; the degrees of freedom are those of the variance as a quadratic form."""
    generator = np.random.default_rng(0)
    sizes = np.array([1, 1, 2, 3, 1, 10, 1, 4, 2, 1, 1, 5, 2])
    groups, losses = np.repeat(np.arange(13), sizes), generator.normal((10, 9), size=(sizes.sum(), 2))
    found = verdict(DescentProblem(1, alpha=0.1), layers(losses, groups))
    gaps = losses[:, 1] - 0.9 * losses[:, 0]
    without = np.array([gaps[groups != group].mean() for group in range(13)])
    error = math.sqrt(12 / 13 * ((without - gaps.mean()) ** 2).sum())
    freedom = freedom_of(sizes)
    width = student.ppf(0.975, freedom) * error
    assert found.violation_intervals[0] == pytest.approx((gaps.mean() - width, gaps.mean() + width), rel=1e-6)
    assert found.groups == 13 and freedom < 6
    page = Jackknife.of(np.bincount(groups, gaps)[None, None], sizes).ends()
    assert [end.item() for end in page] == pytest.approx(found.violation_intervals[0])


def test_the_interval_of_a_gain_counts_unequal_groups_and_seeds():
    """Variances add up, and so do their squares over their degrees of freedom (Satterthwaite)."""
    generator, sizes = np.random.default_rng(0), np.array([10, 1, 1, 1] * 3 + [10])
    ours, theirs = (
        Numbers(mean + 0.02 * generator.normal(size=3), mean + 0.02 * generator.normal(size=(3, 13))) for mean in (2, 1)
    )
    found = advantage(ours, theirs, True, sizes=sizes)
    a, b = ours.values, theirs.values
    of_seeds = np.var(100 * (a / b.mean() - b * a.mean() / b.mean() ** 2), ddof=1) / 3
    without = 100 * ours.without.mean(0) / theirs.without.mean(0)
    of_groups, freedom = 12 / 13 * ((without - without.mean()) ** 2).sum(), freedom_of(sizes)
    total = of_seeds + of_groups
    width = student.ppf(0.975, total**2 / (of_seeds**2 / 2 + of_groups**2 / freedom)) * total**0.5
    assert (found.low, found.high) == pytest.approx((found.value - width, found.value + width)) and freedom < 4
    assert found.value == pytest.approx(100 * (a.mean() / b.mean() - 1))


LAWS = {"normal": lambda rng, shape: rng.normal(size=shape), "t3": lambda rng, shape: rng.standard_t(3, size=shape)}


@pytest.mark.parametrize("sizes", [[4], [1, 10], [10, 1, 1, 1], range(1, 11)], ids=str)
@pytest.mark.parametrize("count", [12, 20, 40])
@pytest.mark.parametrize("law", LAWS)
def test_intervals_cover_the_mean_over_samples_of_few_unequal_groups(law, count, sizes):
    """Each column of losses is a separate draw, 2,500 in all: half of the variance is the groups'."""
    sizes = np.resize(np.array(sizes), count)
    groups, rng, draws = np.repeat(np.arange(count), sizes), np.random.default_rng(0), 2500
    losses = LAWS[law](rng, (count, draws))[groups] + LAWS[law](rng, (len(groups), draws))
    margin = margin_of_error(layers(losses, groups), torch.eye(draws, dtype=torch.float64), tails=2)
    assert (np.abs(losses.mean(0)) <= margin.numpy()).mean() >= 0.94


@pytest.mark.parametrize("mean", [[1, 1, 1, 1.0016], slow([1.0016, 1, 1.0016, 1])])
def test_intervals_cover_where_two_bounds_tie(mean):
    """The last layer's bound is the lowest of losses that chance alone tells apart."""
    problem, generator = DescentProblem(3, target=GeometricTarget(0.0)), torch.Generator().manual_seed(0)
    mean = torch.tensor(mean, dtype=torch.float64)
    truth, covered, runs = problem.violations(mean)[1:].tolist(), 0, 200
    for _ in range(runs):
        losses = mean * (1 + 0.01 * torch.randn(40, 4, generator=generator, dtype=torch.float64))
        found = verdict(problem, layers(losses)).violation_intervals
        covered += all(low <= each <= high for each, (low, high) in zip(truth, found, strict=True))
    assert covered / runs > 0.92  # 0.84 by the slopes of the bound that happens to be lower


def test_the_intervals_are_simultaneous_over_the_constraints_in_force():
    """The cap is constraint 0, on the exit where the chain starts; before it nothing is in force."""
    losses = samples([7.0, 5.0, 2.0, 1.7, 1.4, 1.2], count=50)
    found = verdict(DescentProblem(5, alpha=[0.1, 0.1, 0.1, 0.2, 0.1], cap=3.0, first=2), layers(losses))
    factors = torch.tensor([0.9, 0.8, 0.9], dtype=torch.float64)
    gaps = torch.cat([losses[:, 2:3] - 3.0, losses[:, 3:] - factors * losses[:, 2:-1]], 1)
    widths = 2.593260 * gaps.std(0) / math.sqrt(50)  # the quantile of 1 - 0.05 / (2 · 4), 49 degrees of freedom
    ends = torch.stack([gaps.mean(0) - widths, gaps.mean(0) + widths], 1).tolist()
    found_ends = [found.cap_interval, *found.violation_intervals]
    np.testing.assert_allclose(found_ends, [ends[0], [0, 0], [0, 0], *ends[1:]], rtol=1e-5)
    expected = [gaps[:, 0].mean().item(), 0, 0, *gaps[:, 1:].mean(0).tolist()]
    assert [found.cap_violation, *found.violations] == pytest.approx(expected)


@pytest.mark.parametrize("stop_gradient", [False, True])
def test_the_ratio_form_agrees_with_the_bootstrap(stop_gradient):
    losses = samples([2.0, 1.7, 1.4], count=300)
    found = verdict(DescentProblem(2, alpha=0.1, form="ratio", stop_gradient=stop_gradient), layers(losses))
    generator = torch.Generator().manual_seed(1)
    means = losses[torch.randint(300, (20000, 300), generator=generator)].mean(1)
    ratios = means[:, 1:] / means[:, :-1] - 0.9
    tails = torch.tensor([0.0125, 0.9875], dtype=torch.float64)
    for (low, high), boot in zip(found.violation_intervals, ratios.quantile(tails, dim=0).T.tolist(), strict=True):
        assert [low, high] == pytest.approx(boot, abs=0.06 * (boot[1] - boot[0]))


def test_certified_falls_are_students_one_sided_bound_for_all_layers_together():
    """Every layer before the last has one loss for all samples: the textbook's interval for a mean, of two tails."""
    after = torch.tensor([0.5, 0.7, 0.6, 0.8, 0.4] * 3, dtype=torch.float64)
    first = torch.ones(15, dtype=torch.float64)
    found = certified_falls(layers(torch.stack([first, first / 2, after / 2], 1)))
    standard_error = after.std().item() / math.sqrt(15)
    assert found == pytest.approx([0.5, 1 - 0.6 - 2.144787 * standard_error], rel=1e-6)  # t(0.975, 14)
    assert certified_falls(layers([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]] * 6))[1] == 0  # after a loss of 0


START = {
    "holds": "Feasible: every constraint holds on the data.",
    "undecided": "Feasible as far as the data can tell: no constraint is broken on the data, but it can't be excluded",
    "not_significant": "INFEASIBLE, but not proven:",
    "broken": "INFEASIBLE:",
    "open": "Open:",
}
CHANCE = "by more than 1% on the data, which may be chance. Evaluate on more samples."
BOTH = (
    "layer 2 breaks its constraint on the data. Layer 1 misses its bound by more than 1%, which may be chance: evaluate"
)
FEW = " {} of samples, at least 12 are needed for a verdict, such as 12 clips or texts. So far {} by more than 1%{}"
NO_MISS, MISSES = ("no constraint is missed", " on the data."), ("layers 1, 2 miss their bounds", " on the data.")
RATIO, CAP, LATER = {"form": "ratio"}, {"cap": 2.0}, {"cap": 1.5, "first": 1}
GEOMETRIC = {"alpha": None, "target": GeometricTarget(0.0)}
NAN, INF = math.nan, math.inf
# The mean losses, the constraints, the groups; violated, undecided, the status and the sentence after its start.
VERDICTS = [
    ([2.0, 1.5, 1.1], {}, 400, [], [], "holds", ""),
    ([2.0, 1.8, 1.1], {}, 400, [], [1], "undecided", " for layer 1."),
    ([2.0, 1.8, 1.62], {}, 400, [], [1, 2], "undecided", " for layers 1, 2."),
    ([2.0, 1.5, 1.1], CAP, 400, [], [0], "undecided", " for the cap."),
    ([2.0, 2.2, 1.1], {}, 400, [1], [], "broken", " layer 1 breaks its constraint on the data."),
    ([2.0, 2.2, 1.98], {}, 400, [1], [2], "broken", " layer 1 breaks its constraint on the data."),
    ([2.0, 2.2, 2.4], {}, 400, [1, 2], [], "broken", " layers 1, 2 break their constraints on the data."),
    ([2.0, 1.5, 1.35], {"cap": 1.0}, 400, [0], [2], "broken", " the cap breaks its constraint on the data."),
    ([2, 2.2, 1.1], {"cap": 1}, 400, [0, 1], [], "broken", " the cap and layer 1 break their constraints on the data."),
    ([2.0, 1.9, 1.1], {}, 12, [1], [], "not_significant", f" layer 1 misses its bound {CHANCE}"),
    (
        [2, 1.9, 1.8],
        {"cap": 1.9},
        12,
        [0, 1, 2],
        [],
        "not_significant",
        f" the cap and layers 1, 2 miss their bounds {CHANCE}",
    ),
    ([2.0, 1.9, 5.0], {}, 12, [1, 2], [], "broken", f" {BOTH} on more samples."),
    # Missed by less and by more than 1 % of the bound, however wide the interval.
    ([2.0, 1.5, 1.35 * 1.009], {}, 12, [], [1, 2], "undecided", " for layers 1, 2."),
    ([2.0, 1.5, 1.35 * 1.011], {}, 12, [2], [1], "not_significant", f" layer 2 misses its bound {CHANCE}"),
    ([2.0, 1.5, 1.35 * 1.009], RATIO, 12, [], [1, 2], "undecided", " for layers 1, 2."),
    ([2.0, 1.5, 1.35 * 1.011], RATIO, 12, [2], [1], "not_significant", f" layer 2 misses its bound {CHANCE}"),
    ([2.018, 1.5, 1.2], CAP, 12, [], [0, 1, 2], "undecided", " for the cap and layers 1, 2."),
    ([2.022, 1.5, 1.2], CAP, 12, [0], [1, 2], "not_significant", f" the cap misses its bound {CHANCE}"),
    ([2.0, 1.5 * 1.009, 1.2], LATER, 12, [], [0, 2], "undecided", " for the cap and layer 2."),
    ([2.0, 1.5 * 1.011, 1.2], LATER, 12, [0], [2], "not_significant", f" the cap misses its bound {CHANCE}"),
    # A loss that is not finite meets no constraint.
    ([2.0, 1.5, NAN], {}, 400, [2], [1], "broken", " layer 2 breaks its constraint on the data."),
    ([2.0, 1.5, INF], RATIO, 400, [2], [1], "broken", " layer 2 breaks its constraint on the data."),
    ([2.0, INF, INF], {}, 400, [1, 2], [], "broken", " layers 1, 2 break their constraints on the data."),
    ([NAN] * 3, RATIO, 400, [1, 2], [], "broken", " layers 1, 2 break their constraints on the data."),
    # What is not in force.
    ([1.0, 9.0, 3.0], {"first": 1}, 400, [], [], "holds", ""),
    ([1.0, 2.0, 3.0], {"alpha": None}, 400, [], [], "holds", ""),
    # A geometric target of strength 0: no layer may raise the loss.
    ([2.0, 1.9, 1.8], GEOMETRIC, 400, [], [], "holds", ""),
    ([2.0, 2.2, 1.1], GEOMETRIC, 400, [1], [], "broken", " layer 1 breaks its constraint on the data."),
    # Too few groups prove nothing.
    ([2.0, 1.5, 1.1], {}, 1, [], [1, 2], "open", FEW.format("1 group", *NO_MISS)),
    ([20.0, 5.0, 1.0], {}, 11, [], [1, 2], "open", FEW.format("11 groups", *NO_MISS)),
    ([2.0, 2.2, 2.4], {}, 11, [1, 2], [], "open", FEW.format("11 groups", *MISSES)),
]


@pytest.mark.parametrize(
    ("known", "worst"),
    [
        ({"cap": 1.0, "cap_violation": 0.3}, 0.3),
        ({"cap": 1.0, "cap_violation": -0.3}, -0.1),
        ({"cap": None, "cap_violation": 0.0}, -0.1),
        ({"cap": 1.0, "cap_violation": NAN}, NAN),
        ({"bounds": [None, 1.0], "violations": [0.5, -0.2]}, -0.2),
        ({"bounds": [None, None]}, -INF),
    ],
)
def test_the_worst_violation_is_of_a_constraint_in_force(known, worst):
    found = Verdict(**{"feasible": True, "violations": [-0.1, -0.2], "bounds": [1.0, 1.0]} | known).worst
    assert found == pytest.approx(worst, nan_ok=True)


@pytest.mark.parametrize(("mean", "constraints", "count", "violated", "undecided", "status", "words"), VERDICTS)
def test_the_verdict_and_its_words_say_what_may_be_chance(mean, constraints, count, violated, undecided, status, words):
    """Each group is of two equal samples."""
    losses = samples(mean, count=count, spread=0.3 if count > 12 else 0.5)
    losses += torch.tensor(mean, dtype=torch.float64) - losses.mean(0)  # exactly this mean
    problem = DescentProblem(2, **{"alpha": 0.1} | constraints)
    found = verdict(problem, layers(losses.repeat(2, 1), torch.arange(count).repeat(2)))
    assert verdict_sentence(found, "the data") == START[status] + words
    assert (found.violated, found.undecided, found.status) == (violated, undecided, status)
    assert (found.feasible, found.certain) == (not violated, not violated + found.undecided)
    assert (certificate_sentence(found) == "") == (status == "open")


@pytest.mark.parametrize("problem", [DescentProblem(2, alpha=0.1, form=form) for form in ("difference", "ratio")])
def test_a_negative_mean_or_a_single_sample_is_refused_and_a_sample_or_a_mean_of_zero_is_not(problem):
    """(1 − α) f lies above a negative f: a layer might raise the loss and be called feasible."""
    for losses, words in (
        ([[-0.5, -0.9, -0.92], [-0.5, -0.9, -0.9]], r"got -0\.91 at layer 2\. .*share of a loss.*Add a constant"),
        ([[2.0, 1.0, 0.5]], r"2 samples.*got 1"),
    ):
        with pytest.raises(InputError, match=words):
            verdict(problem, layers(losses))
    assert verdict(problem, layers([[2.0, -0.1, 0.0], [2.0, 0.5, 0.0], [2.0, 0.5, 0.0]])).feasible


@pytest.mark.parametrize(
    ("falls", "words"),
    [
        ([0.03, 0.0004], "With 95% confidence these layers lower the loss at least: layer 1 by 3.0%."),
        ([0.0004, -0.1], "No layer is certain to lower the loss by 0.1% on these data."),
    ],
)
def test_a_certificate_lists_no_fall_that_reads_as_none(falls, words):
    found = verdict(DescentProblem(2, alpha=0.1), layers(samples([2.0, 1.7, 1.4])))
    assert certificate_sentence(found.model_copy(update={"certified": falls})) == words
