"""Measuring and the verdict, against computations by hand, the bootstrap and simulation."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from torch.utils.data import Subset

from descend import UT, DescentProblem, InputError, UTConfig
from descend.core import GeometricTarget
from descend.evaluation.evaluate import evaluate
from descend.evaluation.evaluators import input_metrics, pictures
from descend.evaluation.layers import LayerLosses
from descend.evaluation.satisfaction import certified_falls, margin_of_error, verdict
from descend.noise import GaussianNoise, UniformNoise
from descend.results import certificate_sentence, verdict_sentence
from descend.seeds import of_sample
from descend.tasks.video import VideoDenoising, load_video, unpatchify
from tests.support.subjects import measured, outcome, subject

TASK, SIGMA = VideoDenoising(), 0.2


@pytest.fixture(scope="module")
def windows():
    return Subset(load_video(None, 2, stride=40, seed=0).test, range(3, 24))  # 21: no multiple of a batch


@pytest.fixture(scope="module")
def model() -> UT:
    model = UT(UTConfig(depth=3))
    with torch.no_grad():
        for value in model.parameters():
            value += 0.002 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
    return model


def layers(losses, groups=None) -> LayerLosses:
    """Losses as measured; every sample a group of its own unless told otherwise."""
    losses = torch.as_tensor(losses, dtype=torch.float64)
    return LayerLosses(losses, torch.arange(len(losses)) if groups is None else torch.as_tensor(groups), [], losses)


def samples(mean, count=400, spread=0.3, seed=0) -> torch.Tensor:
    """Losses of correlated samples around a mean."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(count, len(mean), generator=generator, dtype=torch.float64)
    return torch.tensor(mean, dtype=torch.float64) + spread * (0.7 * shared + 0.7 * own)


# --- measure


def test_measure_is_the_computation_by_hand(model, windows):
    found = measured(model, TASK, windows, GaussianNoise(0.8, SIGMA, 7))
    losses, squares = [], torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        for place in range(len(windows)):
            clean = windows[place]["patches"]
            noise = torch.Generator().manual_seed(of_sample(7, place))
            noisy = clean + 0.8 * SIGMA * torch.randn(clean.shape, generator=noise)
            outputs = [model.readout(hidden)[0] for hidden in model.layer_outputs(noisy[None])]
            assert torch.equal(outputs[0], noisy)
            losses.append([(each - clean).norm(dim=-1).sum(0).mean().item() / 2 for each in outputs])
            squares += torch.tensor([(each - clean).double().square().mean().item() for each in outputs])
    torch.testing.assert_close(found.losses, torch.tensor(losses, dtype=torch.float64), rtol=1e-5, atol=0)
    assert found.metrics == pytest.approx((255 * (squares / len(windows)).sqrt()).tolist(), rel=1e-5)
    falls = [after < before for row in losses for before, after in pairwise(row)]
    assert found.descending_share == pytest.approx(np.mean(falls))


def test_neither_batches_nor_the_mode_of_the_model_change_what_is_measured(model, windows):
    found = []
    for training, size in ((True, 1), (False, 16)):
        found.append(measured(model.train(training), TASK, windows, GaussianNoise(0.8, SIGMA), size))
        assert model.training is training
    torch.testing.assert_close(found[0].losses, found[1].losses, rtol=1e-6, atol=0)
    assert found[0].metrics == pytest.approx(found[1].metrics, rel=1e-6)
    clean = measured(model, TASK, windows, GaussianNoise(0.0, SIGMA))
    assert clean.metrics[0] == 0 and not clean.losses[:, 0].any()  # UT's embedded input is what it was given


def test_samples_are_grouped_as_the_data_say_or_stand_alone(model, windows):
    rows = [windows[place] for place in range(5)]
    grouped = [row | {"group": 7 + place // 2} for place, row in enumerate(rows)]
    alone = [{name: value for name, value in row.items() if name != "group"} for row in rows]
    clips = measured(model, TASK, grouped, GaussianNoise(0.1, SIGMA))
    alone = measured(model, TASK, alone, GaussianNoise(0.1, SIGMA), batch_size=2)
    assert clips.groups.tolist() == [7, 7, 8, 8, 9]
    assert alone.groups.tolist() == list(range(5))
    torch.testing.assert_close(clips.losses, alone.losses, rtol=1e-6, atol=0)


# --- the verdict


def test_the_interval_of_unequal_groups_is_the_jackknifes():
    """Leave out one group at a time; the degrees of freedom are those of the variance as a quadratic form."""
    generator = np.random.default_rng(0)
    sizes = np.array([1, 1, 2, 3, 1, 10, 1, 4, 2, 1, 1, 5, 2])
    groups, losses = np.repeat(np.arange(13), sizes), generator.normal((10, 9), size=(sizes.sum(), 2))
    found = verdict(DescentProblem(1, alpha=0.1), layers(losses, groups))
    gaps = losses[:, 1] - 0.9 * losses[:, 0]
    without = np.array([gaps[groups != group].mean() for group in range(13)])
    error = math.sqrt(12 / 13 * ((without - gaps.mean()) ** 2).sum())
    shares = sizes / sizes.sum()
    about = np.eye(13) - np.outer(np.ones(13), shares)
    matrix = about.T @ np.diag((shares / (1 - shares)) ** 2) @ about
    freedom = np.trace(matrix) ** 2 / np.trace(matrix @ matrix)
    width = student.ppf(0.975, freedom) * error
    assert found.violation_intervals[0] == pytest.approx((gaps.mean() - width, gaps.mean() + width), rel=1e-6)
    assert found.groups == 13 and freedom < 6


LAWS = {"normal": lambda rng, shape: rng.normal(size=shape), "t3": lambda rng, shape: rng.standard_t(3, size=shape)}


@pytest.mark.parametrize("sizes", [[4], [1, 10], [10, 1, 1, 1], range(1, 11)], ids=str)
@pytest.mark.parametrize("count", [12, 20, 40])
@pytest.mark.parametrize("law", LAWS)
def test_intervals_cover_the_mean_over_samples_of_few_unequal_groups(law, count, sizes):
    """Each column of losses is a draw of its own, 2,500 in all: half of the variance is the groups'."""
    sizes = np.resize(np.array(sizes), count)
    groups, rng, draws = np.repeat(np.arange(count), sizes), np.random.default_rng(0), 2500
    losses = LAWS[law](rng, (count, draws))[groups] + LAWS[law](rng, (len(groups), draws))
    margin = margin_of_error(layers(losses, groups), torch.eye(draws, dtype=torch.float64), tails=2)
    assert (np.abs(losses.mean(0)) <= margin.numpy()).mean() >= 0.94


@pytest.mark.parametrize("mean", [[1, 1, 1, 1.0016], [1.0016, 1, 1.0016, 1]])
def test_intervals_cover_where_two_bounds_tie(mean):
    """The last layer's bound is the lowest of losses that chance alone tells apart."""
    problem, generator = DescentProblem(3, target=GeometricTarget(0.0)), torch.Generator().manual_seed(0)
    mean = torch.tensor(mean, dtype=torch.float64)
    truth, covered, runs = problem.violations(mean)[1:].tolist(), 0, 300
    for _ in range(runs):
        losses = mean * (1 + 0.01 * torch.randn(40, 4, generator=generator, dtype=torch.float64))
        found = verdict(problem, layers(losses)).violation_intervals
        covered += all(low <= each <= high for each, (low, high) in zip(truth, found, strict=True))
    assert covered / runs > 0.92  # 0.84 by the slopes of the bound that happens to be lower


def test_below_twelve_groups_the_verdict_is_open():
    losses, groups = samples([2.0, 1.7, 1.4], count=600), torch.arange(600)
    problem, broken = DescentProblem(2, alpha=0.1), DescentProblem(2, alpha=0.5)
    for count in (1, 2, 11):
        few, missed = (verdict(each, layers(losses, groups % count)) for each in (problem, broken))
        assert few.groups == count
        assert (few.feasible, few.certain, few.violated, few.undecided) == (True, False, [], [1, 2])
        assert (missed.feasible, missed.certain, missed.violated) == (False, False, [1, 2])
        assert few.status == missed.status == "open" and missed.not_significant == [1, 2]
        assert all(math.isnan(each) for each in (*few.violation_intervals[0], *few.certified))
        start = f"Open: {count} group{'s' * (count > 1)} of samples, at least 12 are needed"
        rest = "for a verdict, such as 12 clips or texts. So far"
        no_miss = f"{start} {rest} no constraint is missed by more than 1% on held-out data."
        misses = f"{start} {rest} layers 1, 2 miss their bounds by more than 1% on the test data."
        assert (verdict_sentence(few), verdict_sentence(missed, "the test data")) == (no_miss, misses)
        assert certificate_sentence(few) == ""
    enough, missed = (verdict(each, layers(losses, groups % 12)) for each in (problem, broken))
    assert enough.certain and verdict_sentence(enough) == "Feasible: every constraint holds on held-out data."
    assert missed.violated == [1, 2] and (enough.status, missed.status) == ("holds", "broken")


@pytest.mark.parametrize("form", ["difference", "ratio"])
def test_groups_of_one_size_count_as_their_means_and_a_stopped_gradient_changes_nothing(form):
    losses = samples([2.0, 1.7, 1.4], count=120)
    problem, stopped = (DescentProblem(2, alpha=0.1, cap=2.1, form=form, stop_gradient=stop) for stop in (False, True))
    grouped = layers(losses, torch.arange(120) % 12)
    found, means = verdict(problem, grouped), verdict(problem, layers(losses.unflatten(0, (10, 12)).mean(0)))
    assert found == verdict(stopped, grouped) and found.groups == means.groups == 12
    np.testing.assert_allclose(
        [found.cap_interval, *found.violation_intervals], [means.cap_interval, *means.violation_intervals]
    )


def test_the_intervals_are_simultaneous():
    losses = samples([2.0, 1.7, 1.4, 1.2], count=50)
    found = verdict(DescentProblem(3, alpha=[0.1, 0.2, 0.1], cap=3.0), layers(losses))
    gaps = torch.stack(
        [
            losses[:, 0] - 3.0,
            losses[:, 1] - 0.9 * losses[:, 0],
            losses[:, 2] - 0.8 * losses[:, 1],
            losses[:, 3] - 0.9 * losses[:, 2],
        ]
    )
    widths = 2.593260 * gaps.std(1) / math.sqrt(50)  # the quantile of 1 - 0.05 / (2 · 4), 49 degrees of freedom
    found_widths = [(high - low) / 2 for low, high in [found.cap_interval, *found.violation_intervals]]
    assert found_widths == pytest.approx(widths.tolist(), rel=1e-5)


@pytest.mark.parametrize("stop_gradient", [False, True])
def test_the_ratio_form_agrees_with_the_bootstrap(stop_gradient):
    losses = samples([2.0, 1.7, 1.4], count=300)
    problem = DescentProblem(2, alpha=0.1, form="ratio", stop_gradient=stop_gradient)
    found = verdict(problem, layers(losses))
    generator = torch.Generator().manual_seed(1)
    means = losses[torch.randint(300, (20000, 300), generator=generator)].mean(1)
    ratios = means[:, 1:] / means[:, :-1] - 0.9
    tails = torch.tensor([0.0125, 0.9875], dtype=torch.float64)
    for (low, high), boot in zip(found.violation_intervals, ratios.quantile(tails, dim=0).T.tolist(), strict=True):
        assert [low, high] == pytest.approx(boot, abs=0.06 * (boot[1] - boot[0]))


@pytest.mark.parametrize("form", ["difference", "ratio"])
def test_at_the_boundary_a_false_alarm_is_rare(form):
    # Every constraint holds with equality: any 'violated' is false. Simultaneous 95 % leaves at most half of 5 % above.
    problem = DescentProblem(3, alpha=0.2, form=form)
    mean, runs = [2.0, 1.6, 1.28, 1.024], 1500
    # Noise well below the tolerance of 1 %, which is about the size of a violation, not about chance.
    found = [verdict(problem, layers(samples(mean, count=100, spread=0.02, seed=seed))) for seed in range(runs)]
    assert np.mean([not each.feasible for each in found]) < 0.05
    # And the intervals cover, all at once, as often as they say.
    covered = [all(low <= 0 <= high for low, high in each.violation_intervals) for each in found]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("excess", "broken"), [(0.009, False), (0.011, True)])
@pytest.mark.parametrize(
    ("problem", "constraint"),
    [
        (DescentProblem(2, alpha=0.1), 2),
        (DescentProblem(2, alpha=0.1, form="ratio"), 2),
        (DescentProblem(2, alpha=0.1, cap=2.0), 0),
        (DescentProblem(2, alpha=0.1, cap=1.5, first=1), 0),
    ],
)
def test_a_miss_of_more_than_one_percent_of_the_bound_is_broken_however_wide_its_interval(
    problem, constraint, excess, broken
):
    mean = [2.0, 1.5, 1.35 * (1 + excess)] if constraint else [2.0, 1.5, 1.2]
    if constraint == 0:
        mean = [value * problem.cap / mean[problem.first] * (1 + excess) for value in mean]
    losses = samples(mean, count=12, spread=1.0)
    losses += torch.tensor(mean, dtype=torch.float64) - losses.mean(0)
    found = verdict(problem, layers(losses))
    low, high = [found.cap_interval, *found.violation_intervals][constraint]
    assert low < 0 < high
    assert (constraint in found.violated, constraint in found.undecided) == (broken, not broken)


@pytest.mark.parametrize("form", ["difference", "ratio"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", [(0, 2), (slice(None), 2), (slice(None), slice(1, None)), (slice(None), slice(None))])
def test_a_loss_that_is_not_finite_meets_no_constraint(form, value, where):
    losses = samples([2.0, 1.5, 1.1], count=50)
    losses[where] = value
    found = verdict(DescentProblem(2, alpha=0.1, form=form), layers(losses))
    assert not found.feasible and not found.certain
    assert 2 in found.violated
    assert found.status == "broken" and verdict_sentence(found).startswith("INFEASIBLE: layer")


def test_the_cap_is_constraint_zero_and_what_is_not_in_force_has_no_verdict():
    losses = samples([9.0, 3.0, 1.0])
    found = verdict(DescentProblem(2, alpha=0.1, cap=2.0, first=1), layers(losses))
    assert found.violated == [0]
    assert found.cap_violation == pytest.approx(losses[:, 1].mean().item() - 2)
    assert found.cap_interval[0] > 0
    assert (found.violations[0], found.violation_intervals[0]) == (0, (0, 0))
    rising = verdict(DescentProblem(2, alpha=0.1, first=1), layers(samples([1.0, 9.0, 3.0])))
    assert rising.certain and rising.violated == rising.undecided == []
    assert verdict(DescentProblem(2), layers(samples([1.0, 2.0, 3.0]))).certain  # ERM's own problem has no constraint


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


START = {
    "holds": "Feasible: every constraint holds on the data.",
    "undecided": "Feasible as far as the data can tell: no constraint is broken on the data, but it can't be excluded",
    "not_significant": "INFEASIBLE, but not proven:",
    "broken": "INFEASIBLE:",
}
CHANCE = "by more than 1% on the data, which may be chance. Evaluate on more samples."
BOTH = (
    "layer 2 breaks its constraint on the data. Layer 1 misses its bound by more than 1%, which may be chance: evaluate"
)
VERDICTS = [  # the mean losses, the cap, the samples; violated, undecided, the status and the sentence after its start
    ([2.0, 1.5, 1.1], None, 400, [], [], "holds", ""),
    ([2.0, 1.8, 1.1], None, 400, [], [1], "undecided", " for layer 1."),
    ([2.0, 1.8, 1.62], None, 400, [], [1, 2], "undecided", " for layers 1, 2."),
    ([2.0, 1.5, 1.1], 2.0, 400, [], [0], "undecided", " for the cap."),
    ([2.0, 2.2, 1.1], None, 400, [1], [], "broken", " layer 1 breaks its constraint on the data."),
    ([2.0, 2.2, 1.98], None, 400, [1], [2], "broken", " layer 1 breaks its constraint on the data."),
    ([2.0, 2.2, 2.4], None, 400, [1, 2], [], "broken", " layers 1, 2 break their constraints on the data."),
    ([2.0, 1.5, 1.35], 1.0, 400, [0], [2], "broken", " the cap breaks its constraint on the data."),
    ([2.0, 2.2, 1.1], 1.0, 400, [0, 1], [], "broken", " the cap and layer 1 break their constraints on the data."),
    ([2.0, 1.9, 1.1], None, 12, [1], [], "not_significant", f" layer 1 misses its bound {CHANCE}"),
    (
        [2.0, 1.9, 1.8],
        1.9,
        12,
        [0, 1, 2],
        [],
        "not_significant",
        f" the cap and layers 1, 2 miss their bounds {CHANCE}",
    ),
    ([2.0, 1.9, 5.0], None, 12, [1, 2], [], "broken", f" {BOTH} on more samples."),
]


@pytest.mark.parametrize(("mean", "cap", "count", "violated", "undecided", "status", "words"), VERDICTS)
def test_the_verdict_and_its_words_say_what_may_be_chance(mean, cap, count, violated, undecided, status, words):
    losses = samples(mean, count=count, spread=0.3 if count > 12 else 0.5)
    losses += torch.tensor(mean, dtype=torch.float64) - losses.mean(0)  # exactly this mean
    found = verdict(DescentProblem(2, alpha=0.1, cap=cap), layers(losses))
    assert verdict_sentence(found, "the data") == START[status] + words
    assert (found.violated, found.undecided, found.status) == (violated, undecided, status)
    assert (found.feasible, found.certain) == (not violated, not violated + found.undecided)
    ends = [found.cap_interval, *found.violation_intervals]
    assert found.not_significant == [constraint for constraint in found.violated if ends[constraint][0] <= 0]


# --- levels and pictures


def test_every_level_is_measured_and_the_verdict_taken_at_the_training_noise(model, windows):
    problem = DescentProblem(3, alpha=0.1)
    summary = evaluate(subject(model, TASK, windows, GaussianNoise(0.8, SIGMA), levels=[1.5, 0], problem=problem))
    summary = json.loads(json.dumps(summary.content()))
    at = {level: measured(model, TASK, windows, GaussianNoise(level, SIGMA)) for level in (0.0, 0.8, 1.5)}
    assert summary["noise"] == [0, 1.5]
    assert summary["values"] == [at[0.0].metrics[-1], at[1.5].metrics[-1]]
    assert summary["mean"] == pytest.approx(sum(summary["values"]) / 2)
    assert (summary["train_noise"], summary["train_value"]) == (0.8, at[0.8].metrics[-1])
    assert summary["layer_losses"] == {str(level): one.losses.mean(0).tolist() for level, one in at.items()}
    assert summary["layer_metrics"] == {str(level): one.metrics for level, one in at.items()}
    assert [(row["noise"], row["metric"]) for row in summary["anytime"]] == [(level, at[level].metrics) for level in at]
    assert summary["anytime"][0]["first_within"].keys() == {"1", "2", "5"}
    found = verdict(problem, at[0.8])
    assert summary.items() >= {"violations": found.violations, "groups": found.groups, "samples": 21}.items()
    assert (summary["descending_share"], summary["undecided"]) == (at[0.8].descending_share, found.undecided)
    assert summary["verdict"] == verdict_sentence(found, "the test data")


@pytest.mark.parametrize("kind", [GaussianNoise, UniformNoise])
def test_the_input_itself_is_measured_under_the_same_draws(model, windows, kind):
    """UT's exit 0 is its noisy input."""
    noise = kind(0.8, SIGMA, 7)
    found = outcome(input_metrics, subject(model, TASK, windows, noise), dict.fromkeys((0.0, 0.8, 1.6)))
    for level, value in found.items():
        assert value == pytest.approx(measured(model, TASK, windows, noise.at(level)).metrics[0], rel=1e-6)
    assert found[0.8] == pytest.approx(0.8 * SIGMA * 255, rel=0.01)  # the same spread, whatever the kind


def test_pictures_are_of_samples_taken_evenly_at_every_level_and_layer(model, windows):
    seen = subject(model, TASK, windows, GaussianNoise(0.8, SIGMA, 3), levels=[0.0, 0.8, 2.0])
    found = outcome(pictures, seen, count=2)
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        "clean": ((2, 160, 160), np.uint8),
        "noisy": ((3, 2, 160, 160), np.uint8),
        "reconstruction": ((3, 4, 2, 160, 160), np.uint8),
        "noise": ((3,), np.float64),
    }
    assert found["noise"].tolist() == [0, 0.8, 2]
    np.testing.assert_array_equal(found["noisy"][0], found["clean"])
    np.testing.assert_array_equal(found["reconstruction"][:, 0], found["noisy"])  # UT's layer 0
    # The noise is that of the measurement, by the window's own number.
    noisy = GaussianNoise(0.8, SIGMA, 3)(windows[5]["patches"][None], indices=[5])[0]
    frame = (unpatchify(noisy[1]) * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    np.testing.assert_array_equal(found["noisy"][1, 0], frame)
    few = outcome(pictures, subject(model, TASK, Subset(windows, range(2))), count=5)
    assert few["clean"].shape == (2, 160, 160)


# --- the geometric target's verdict, and what is certain of each layer


def test_the_geometric_target_is_evaluated_by_the_held_out_losses_alone():
    problem, losses = DescentProblem(3, target=GeometricTarget(0.0)), samples([4.0, 2.0, 1.5, 1.0], spread=0.05)
    found, bounds = verdict(problem, layers(losses)), problem.bounds(losses.mean(0))[1:]
    assert found.bounds == pytest.approx(bounds.tolist()) and found.certain
    assert found.violations == pytest.approx((losses.mean(0)[1:] - bounds).tolist())
    assert verdict(problem, layers(samples([4.0, 4.1, 1.5, 1.0], spread=0.05))).violated == [1]


def test_certified_falls_of_one_layer_are_students_one_sided_bound():
    """With f_0 = 1 for every sample the fall is 1 − the mean of f_1: the textbook's interval."""
    after = torch.tensor([0.5, 0.7, 0.6, 0.8, 0.4] * 3, dtype=torch.float64)
    found = certified_falls(layers(torch.stack([torch.ones(15, dtype=torch.float64), after], 1)))
    standard_error = after.std().item() / math.sqrt(15)
    assert found == pytest.approx([1 - 0.6 - 1.761310 * standard_error], rel=1e-6)  # t(0.95, 14)


def test_certified_falls_hold_for_all_layers_in_19_of_20_repetitions():
    mean = [4.0, 2.0, 1.9, 2.0]
    true = [1 - after / before for before, after in pairwise(mean)]
    repetitions, wrong = 1000, 0
    for seed in range(repetitions):
        found = certified_falls(layers(samples(mean, count=40, seed=seed)))
        wrong += any(low > fall for low, fall in zip(found, true, strict=True))
    assert wrong / repetitions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)
    assert wrong > 0
    assert certified_falls(layers(samples(mean)))[0] > 0.4 and certified_falls(layers(samples(mean)))[2] < 0


def test_a_certificate_lists_no_fall_that_reads_as_none_and_a_layer_after_a_loss_of_zero_lowers_nothing():
    found = verdict(DescentProblem(2, alpha=0.1), layers(samples([2.0, 1.7, 1.4])))
    for falls, words in (
        ([0.03, 0.0004], "With 95% confidence these layers lower the loss at least: layer 1 by 3.0%."),
        ([0.0004, -0.1], "No layer is certain to lower the loss by 0.1% on these data."),
    ):
        assert certificate_sentence(found.model_copy(update={"certified": falls})) == words
    assert certified_falls(layers([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]] * 6))[1] == 0
