"""How many layers suffice: intervals by hand, the share of wrong answers, and a run against a baseline."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from torch.nn.utils.rnn import pad_sequence

from descend import InputError
from descend.evaluation.layers import Batches, survey
from descend.evaluation.needed import Against, held, held_to_plain, layers_needed
from descend.jackknife import degrees_of_freedom, fewest_groups
from descend.report.answer import Answer
from descend.report.terminal import answer_lines
from descend.report.words import gain_words
from descend.results import (
    KEPT_WITHIN,
    SHARED,
    Choice,
    Gain,
    Groups,
    LayerGroups,
    LayerScores,
    LayersNeeded,
    Results,
    Summary,
    Validation,
)
from descend.run.evaluating import by_group, results_of
from descend.tasks.text import Classification
from tests.support import own
from tests.support.cases import slow_but
from tests.support.documented import ROOT
from tests.support.subjects import measured, subject

MANY = np.ones(10**6)


def against(scores: np.ndarray, full: np.ndarray, **more: object) -> Against:
    """Scores (B, L+1) and those of full depth (B,), ten samples in each block."""
    settings = {"root": False, "higher_is_better": False, "sizes": MANY} | more
    return Against(np.full(len(full), 10), 10 * scores, 10 * full, **settings)


def test_intervals_by_hand():
    """For blocks of one size the jackknife is the usual standard error of paired differences."""
    rng = np.random.default_rng(0)
    full, layer = rng.normal(1, 0.1, 20), rng.normal(1.1, 0.1, 20)
    for more, beyond in (
        ({}, layer - 1.02 * full),
        ({"root": True}, layer - 1.02**2 * full),
        ({"higher_is_better": True}, full - layer - 0.02),
    ):
        low, mean, high = against(layer[:, None], full, **more).excess(2, 0.9)
        assert mean[0] == pytest.approx(beyond.mean())
        width = beyond.std(ddof=1) / 20**0.5 * student.ppf(0.9, 19)
        assert [low[0], high[0]] == pytest.approx([beyond.mean() - width, beyond.mean() + width])


@pytest.mark.parametrize("sign", [1, -1])
def test_few_groups_that_are_much_worse_move_the_upper_end_by_johnsons_term(sign):
    """κ₃ (1 + 2t²) / 6κ₂ of the mean, from the deviations of the groups; never down."""
    losses = 0.2 + sign * np.array([0.6] * 2 + [0.01 * place for place in range(18)])
    low, mean, high = against(losses[:, None], np.full(20, 0.4), bounded=True).excess(2, 0.9)
    # The mean's influences: each group's deviation over the 19 others.
    parts = (losses - losses.mean()) / 19
    quantile = student.ppf(0.9, 19)
    width = quantile * losses.std(ddof=1) / 20**0.5
    term = (parts**3).sum() / (parts**2).sum() * (1 + 2 * quantile**2) / 6
    assert term * sign > 0.01
    assert high[0] - mean[0] == pytest.approx(width + max(term, 0.0)) and mean[0] - low[0] == pytest.approx(width)


def test_answers_that_are_all_alike_leave_room_for_one_that_is_lost():
    """A layer that loses 1 % of the answers loses none of 60 in 55 % of the draws; its interval must cover 1 %."""
    right = (np.arange(60) % 3 > 0).astype(float)
    one = Against(np.ones(60), np.stack([right, right], 1), right, False, True, np.ones(60), True)
    gain = one.gain(0)
    width = 100 * student.ppf(0.975, 59) / 62
    assert (gain.gain, gain.low, gain.high) == pytest.approx((0, -width, width)) and width > 1


@pytest.mark.parametrize("largest", [10**4, 10**5, 10**7])
def test_a_group_with_nearly_all_samples_leaves_one_degree_of_freedom(largest):
    """tr(A)² / tr(A²) of the matrix itself, which is that of the largest group against the others."""
    sizes = np.array([largest] + [1] * 11)
    w = sizes / sizes.sum()
    d = (w / np.array([(sizes.sum() - size) / sizes.sum() for size in sizes])) ** 2
    half = (np.eye(12) - np.outer(w, np.ones(12))) * np.sqrt(d)
    half[0, 0] = (sizes[1:].sum() / sizes.sum()) * np.sqrt(d[0])
    matrix = half @ half.T
    assert degrees_of_freedom(sizes) == pytest.approx(np.trace(matrix) ** 2 / (matrix**2).sum(), rel=1e-3)


def test_a_last_layer_that_is_not_finite_is_told_of_itself():
    assert [gain_words(Gain(layer=0, gain=gain), False, "the whole") for gain in (np.inf, -np.inf)] == [
        "finite, unlike the whole",
        "not finite, unlike the whole",
    ]


def test_unequal_blocks_weigh_by_their_samples():
    counts, scores = np.array([1, 3, 6] * 5), np.arange(15.0)[:, None] * np.array([[1], [3], [6]] * 5)
    low, mean, high = Against(counts, scores, np.zeros(15), False, False, counts).excess(1, 0.9)
    assert [mean[0], (low + high)[0] / 2] == pytest.approx([scores.sum() / counts.sum()] * 2)


FULL = np.ones(20) + np.linspace(-0.001, 0.001, 20)
LAYERS = np.stack([2 * FULL, 1.0 * FULL, 1.015 * FULL, 1.04 * FULL, FULL], 1)
OTHERS = np.random.default_rng(1).uniform(1, 2, (30, 4))
NEVER = {1: None, 2: None, 5: None}
ONES = np.ones(20)
POINTS = {"higher_is_better": True, "bounded": True, "sizes": ONES}


@pytest.mark.parametrize(
    ("scores", "full", "more", "needed", "kept"),
    [
        # All deeper layers must be within too.
        (LAYERS, FULL, {}, {1: 4, 2: 4, 5: 1}, "estimated"),
        (-LAYERS, -FULL, {"higher_is_better": True}, {1: 4, 2: 4, 5: 1}, "estimated"),
        # The own full depth is always within, another may never be.
        (OTHERS, OTHERS[:, -1], {}, {1: 3, 2: 3, 5: 3}, "estimated"),
        (OTHERS, OTHERS[:, -1] / 2, {}, NEVER, "broken"),
        (np.stack([-0.985 * ONES, -ONES], 1), -ONES, {"own": True}, {1: 1, 2: 0, 5: 0}, "estimated"),
        # However few they are, the own full depth is within itself, and another that never differs is not known.
        *(
            (np.stack([ONES, ONES], 1), ONES, POINTS | {"own": own}, dict.fromkeys(NEVER, within), state)
            for own, within, state in ((True, 1, "proven"), (False, None, "open"))
        ),
        # Few blocks or one group prove nothing.
        (np.ones((11, 3)), np.ones(11), {}, NEVER, "open"),
        (np.ones((20, 3)), np.ones(20), {"sizes": np.array([20])}, NEVER, "open"),
        # What is not finite is broken.
        *(
            (np.stack([np.ones(count), np.full(count, lost)], 1), np.ones(count), {}, NEVER, "broken")
            for count in (3, 20)
            for lost in (np.inf, np.nan)
        ),
    ],
)
def test_the_layers_that_suffice_and_whether_full_depth_is_kept(scores, full, more, needed, kept):
    one = against(scores, full, **more)
    assert (one.needed(), one.choice(scores.shape[1] - 1, KEPT_WITHIN).state) == (needed, kept)


@pytest.mark.parametrize("percent", slow_but([2], [1, 2, 5]))
def test_a_layer_beyond_a_tolerance_is_seldom_said_to_suffice_and_one_well_within_mostly(percent):
    """Layer 1 lies just beyond it: the three tolerances together have 95 % confidence, a third of 5 % each."""
    rng, draws = np.random.default_rng(percent), 2000
    wrong = dict.fromkeys((percent / 100 + 0.0005, percent / 100 - 0.025), 0)
    for excess in wrong:
        for _ in range(draws):
            full = rng.normal(1, 0.05, 30)
            layers = [factor + 0.5 * (full - 1) + rng.normal(0, 0.01, 30) for factor in (1.6, 1 + excess)]
            found = against(np.stack([*layers, full], 1), full).needed()[percent]
            wrong[excess] += found is not None and found <= 1
    beyond, within = (count / draws for count in wrong.values())
    assert beyond < 0.05 / 3 + 3 * (0.05 / 3 / draws) ** 0.5 and within > 0.5


@pytest.mark.parametrize("count", [30, 300])
def test_answers_that_seldom_differ_prove_little(count):
    """A layer that loses 2 % of what full depth answers rightly mostly loses none of a few texts."""
    rng, wrong, counts = np.random.default_rng(4), 0, np.full(30, count / 30)
    for _ in range(1000):
        right = (rng.random(count) > 0.0201).astype(float).reshape(30, -1).sum(1)
        one = Against(counts, np.stack([right, counts], 1), counts, False, True, np.ones(count), True)
        wrong += one.needed()[2] == 0
    assert wrong <= 1000 * 0.05


BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "intervals.py"))
NOMINAL, DRAWS = 0.05 / 3, 400


@pytest.mark.parametrize("kind", ["1,000 of 1", "1,000, lognormal", "990 of 1, 10 of 100", "990 of 1, 10 of 1,000"])
@pytest.mark.parametrize("percent", slow_but([2], [1, 2, 5]))
def test_a_layer_at_the_tolerance_is_seldom_certified_whatever_the_sizes_of_groups(kind, percent):
    """Its answers are lost group by group, correlation .9."""
    sizes = BENCHMARK["GROUPS"][kind]
    lost = BENCHMARK["lost"](sizes, 0.9, percent / 100, DRAWS)
    assert lost.sum(1).mean() / sizes.sum() == pytest.approx(percent / 100, rel=0.2)  # it is at the tolerance
    assert BENCHMARK["certified"](sizes, lost, percent)[1] <= NOMINAL + 2.6 * (NOMINAL / DRAWS) ** 0.5


def test_layers_within_are_certified_on_equal_groups_as_often_as_before():
    sizes = BENCHMARK["GROUPS"]["1,000 of 4"]
    before, now = BENCHMARK["certified"](sizes, BENCHMARK["lost"](sizes, 0.3, 0.02 / 3, DRAWS), 2)
    assert now >= before > 0.9


def test_answers_that_are_lost_whole_are_not_outweighed_by_slightly_better_ones():
    """Of token accuracy: most answers are a little better at a layer, and so few are lost that it is at 1 point."""
    sizes, better = np.full(300, 100), 0.01 / 0.98
    answers = (1 + better) * BENCHMARK["lost"](sizes, 1.0, 0.02, 1000) - better * sizes
    assert answers.sum(1).mean() / sizes.sum() == pytest.approx(0.01, rel=0.1)
    before, now = BENCHMARK["certified"](sizes, answers, 1)
    assert now <= NOMINAL + 2.6 * (NOMINAL / 1000) ** 0.5 < before


@pytest.mark.parametrize(("sizes", "within"), [([1] * 600, 0), ([5] * 600, 0), ([1] * 590 + [1000] * 10, None)])
def test_the_floor_counts_the_sizes_of_groups_and_not_of_blocks(sizes, within):
    """Thirty blocks would forbid every certificate, and six hundred groups of which ten hold all allow none."""
    right = LayerScores(noise=[1.0], counts=sizes, scores=[[sizes, sizes]])
    sums = [[[20] * 30] * 2]
    blocks = LayerGroups(noise=[1.0], counts=[20] * 30, losses=sums, scores=sums, by_group=right)
    one = Groups(noise=[1.0], root=False, counts=sizes, scores=[sizes], layers=blocks, fingerprint="a")
    needed, kept = layers_needed(one, plain(one), **GIVEN | {"higher_is_better": True, "seconds": None})
    assert (needed.within[1], needed.bounded) == (within, True)
    assert kept == {1.0: "open" if within is None else "proven"}


def test_a_chosen_layer_is_certified_exactly_where_the_test_reaches_it():
    """Whoever chose K: the tests from the last layer on are the same, so no power is lost by choosing before."""
    rng = np.random.default_rng(5)
    full = rng.normal(1, 0.05, 30)
    one = against(np.stack([full * f for f in (1.5, 1.03, 1.019, 1.011, 1.0)], 1) + rng.normal(0, 0.02, (30, 5)), full)
    for percent, smallest in one.needed().items():
        found = [one.choice(layer, percent) for layer in range(5)]
        certain = [layer >= (5 if smallest is None else smallest) for layer in range(5)]
        assert [each.state == "estimated" for each in found] == certain and found[0].state == "broken"
        assert [each.at_most <= percent for each in found] == certain  # the bound says the same
    noisy = 1.02 * full + rng.normal(0, 0.2, 30)
    kept = [against(scores[:, None], full).choice(0, KEPT_WITHIN).state for scores in (full, 1.1 * full, noisy)]
    assert kept == ["estimated", "broken", "open"]


def test_so_many_times_as_many_samples_would_certify_a_layer():
    """The deepest layers count too: K may be better than full depth, and a deeper layer nearly too bad."""
    rng = np.random.default_rng(6)
    full = rng.normal(1, 0.05, 40)
    scores = np.stack([full * f for f in (0.99, 1.015, 1.0)], 1) + rng.normal(0, 0.05, (40, 3))
    one = against(scores, full).choice(0, 2)
    assert one.state == "open" and one.times > 2
    for copies, enough in ((round(0.7 * one.times), False), (round(1.4 * one.times), True)):
        more = against(np.tile(scores, (copies, 1)), np.tile(full, copies))
        assert (more.choice(0, 2).state == "estimated") == enough
    assert np.isnan(against(scores * [1, 1.1, 1], full).choice(0, 2).times)


@pytest.mark.parametrize(
    ("layer", "full", "more", "percent", "worse"),
    [
        (1.1, 1.0, {}, 5, 10),
        (1.1**2, 1.0, {"root": True}, 5, 10),
        (-1.1, -1.0, {"higher_is_better": True}, 0, 10),
        (-1.0, -1.2, {}, 5, 100 * 0.2 / 1.2),  # of |M|
        (-0.985, -1.0, {"own": True}, 2, 1.5),
    ],
)
def test_the_bound_is_in_the_unit_of_the_tolerance(layer, full, more, percent, worse):
    one = against(np.stack([layer * ONES, full * ONES], 1), full * ONES, **more)
    found = one.choice(0, percent)
    assert (found.at_most, found.worse) == (pytest.approx(worse), pytest.approx(worse))


# --- against a baseline


DATA = ("imdb", "test", "gaussian", "accuracy")
SUMMARY = {
    **{"recipe": "text-roberta", "method": "linear", "seed": 0, "model": "RoBERTa-6", "metric": "accuracy"},
    **{"higher_is_better": True, "noise": [0.0, 1.0], "values": [0.9, 0.8], "mean": 0.85, "train_noise": 1.0},
    **{"layer_losses": {"0.0": [1.0] * 7, "1.0": [1.0] * 7}, "dataset": "imdb", "groups": 100},
    **{"feasible": True, "layers_needed": {"noise": 1.0, "within": {}}},
}


def answered(**known: object) -> Answer:
    """The answer of a summary that has these entries."""
    return Answer.of(Summary(**SUMMARY | known))


def groups(scores: np.ndarray, levels: tuple[float, ...] = (0.0, 1.0), **changes: object) -> Groups:
    """Of scores (L+1, B) at two noise levels."""
    counts = [1] * scores.shape[1]
    layers = LayerGroups(noise=levels, counts=counts, losses=[scores.tolist()] * 2, scores=[scores.tolist()] * 2)
    return Groups(noise=[0.0, 1.0], root=False, counts=counts, scores=[counts] * 2, layers=layers, **changes)


def plain(own: Groups, **changes: object) -> Results:
    """A baseline that was evaluated on 9 validation samples."""
    validation = {
        **{"samples": 9, "metric": [2.0, 0.5, 0.5], "fingerprint": "a"},
        **{"layer_metrics": {0.0: [2.0, 0.5, 0.5], 1.0: [3.0, 2.0, 1.0]}},
        **changes,
    }
    known = Summary(**SUMMARY).model_copy(update={"validation": Validation(**validation)})  # type: ignore[arg-type]
    return Results(known, own, Path("plain"))


OURS = groups(np.ones((3, 20)), fingerprint="a")
GIVEN = {"noise": 1.0, "higher_is_better": False, "seconds": [1, 2, 4]}


def test_layers_are_held_to_a_baseline_or_to_their_own_full_depth():
    needed, kept = layers_needed(OURS, plain(OURS), **GIVEN)
    assert (needed.within, needed.time) == ({1: 0, 2: 0, 5: 0}, {1: 0.25, 2: 0.25, 5: 0.25})
    assert (needed.baseline, needed.noise, kept) == ("plain", 1.0, {0.0: "estimated", 1.0: "estimated"})
    alone, nothing = layers_needed(OURS, None, **GIVEN | {"seconds": None})
    assert (alone.baseline, alone.time, nothing) == (None, {1: None, 2: None, 5: None}, {})


@pytest.mark.parametrize(
    ("theirs", "data", "words"),
    [
        (groups(np.ones((3, 20))), DATA, "other samples than this model"),  # of an older version
        (groups(np.ones((3, 20)), fingerprint="b"), DATA, "other samples than this model"),
        (groups(np.ones((3, 20)), (0.0, 2.0)), DATA, "noise 1;"),
        (groups(np.full((3, 20), np.nan)), DATA, "plain diverged"),
        (OURS, ("mnli", *DATA[1:]), "data imdb; this model on mnli"),
        (OURS, ("imdb", "validation", *DATA[2:]), "split test; this model on validation"),
        (OURS, (*DATA[:2], "uniform", "accuracy"), "noise gaussian; this model on uniform"),
        (OURS, (*DATA[:3], "rmse"), "metric accuracy; this model on rmse"),
    ],
)
def test_a_baseline_must_be_of_the_same_samples_noise_and_data(theirs, data, words):
    with pytest.raises(InputError, match=words):
        layers_needed(OURS, plain(theirs).of(data), **GIVEN)


def test_a_baseline_without_scores_by_group_is_no_measure_for_a_run_with_them():
    """It would turn a certificate into an estimate that calls an accuracy unbounded."""
    both = rated([0.5, 0.9]).model_copy(update={"fingerprint": "a"})
    older = both.model_copy(update={"layers": both.layers.model_copy(update={"by_group": None})})
    with pytest.raises(InputError, match="baseline plain only one has scores of all layers by group"):
        layers_needed(both, plain(older), **GIVEN)


@pytest.mark.parametrize(
    ("noise", "changes", "layers"),
    [
        (1.0, {}, [1, 1, 1]),
        (0.0, {}, [None] * 3),  # the clean baseline is better there: no layer of the run would be within
        (1.0, {"samples": 8}, []),  # on other samples: K is not chosen
        (1.0, {"fingerprint": "b"}, []),
    ],
)
def test_a_layer_is_chosen_against_a_baseline_at_the_same_noise_and_on_the_same_samples(noise, changes, layers):
    validation = Validation(samples=9, metric=[2.0, 1.0, 1.0], fingerprint="a")
    needed, _ = layers_needed(OURS, plain(OURS, **changes), **GIVEN | {"noise": noise}, validation=validation)
    assert [choice and choice.layer for choice in needed.chosen.values()] == layers


def test_a_baseline_that_lacks_the_level_where_a_layer_is_chosen_says_how_to_read_it():
    ours, lacks = evaluated("ours", "linear", FULL[None] * [[2], [1]]), {"layer_metrics": {0.0: [2.0, 1.0]}}
    summary = ours.summary
    validation = summary.validation.model_copy(update=lacks)
    changed = summary.model_copy(update={"method": "erm", "validation": validation})
    bare = replace(ours, folder=Path("a plain"), summary=changed)
    command = "type: descend evaluate 'a plain' --noise 0,1 --validation-noise 1"
    with pytest.raises(InputError, match=command):
        held(ours, bare)
    found = held_to_plain([ours, bare])[0]
    assert found.layers_needed.baseline is None and command in found.layers_needed.why


def test_the_fingerprint_is_of_inputs_and_targets_and_not_of_batches_or_padding():
    texts = [{"input_ids": list(range(1, 3 + place)), "labels": place % 2} for place in range(5)]
    other = [*texts[:4], texts[4] | {"input_ids": [9, *texts[4]["input_ids"][1:]]}]
    turned = [*texts[:4], texts[4] | {"labels": 1}]

    def padded(samples):
        ids = pad_sequence([torch.tensor(each["input_ids"]) for each in samples], batch_first=True)
        labels = torch.tensor([each["labels"] for each in samples])
        return {"input_ids": ids, "attention_mask": ids > 0, "labels": labels}

    (whole, share), (batched, _), *others = (
        survey(Classification(), Batches(size, collate=padded).loader(data))
        for size, data in ((5, texts), (2, texts), (5, other), (5, turned), (5, texts[:4]))
    )
    assert whole == batched and share == 0.6
    assert len({whole, *(each for each, _ in others)}) == 4


def evaluated(name: str, method: str, scores: np.ndarray, **changes: object) -> Results:
    """An evaluation of (L+1, B) scores that are better when lower, with those of the validation data their means."""
    rows = {"0.0": scores.mean(1).tolist(), "1.0": scores.mean(1).tolist()}
    known: dict = {
        **{"method": method, "model": f"RoBERTa-{len(scores) - 1}", "metric": "rmse", "higher_is_better": False},
        **{"layer_losses": rows, "validation": {"samples": 9, "metric": rows["1.0"], "layer_metrics": rows}},
    }
    own = groups(scores, fingerprint=str(scores.shape[1]))
    return Results(Summary(**SUMMARY | known | changes), own, Path(name))


def test_runs_are_held_to_the_deepest_plain_training_of_their_model():
    scores = np.array([2, 1.3, 1.015, 1.0])[:, None] * FULL
    runs = [
        evaluated("cut", "erm", scores[:3]),  # its own last layer would be its best
        evaluated("other-seed", "erm", scores, seed=1),
        evaluated("worse", "erm", 1.1 * scores),
        evaluated("plain", "erm", scores, steps=7),
        evaluated("linear", "linear", 0.99 * scores),
        evaluated("another", "linear", scores, recipe="text-ut"),
    ]
    needed = [summary.layers_needed for summary in held_to_plain(runs)]
    assert [each.baseline for each in needed] == ["../plain", None, "../plain", None, "../plain", None]
    # An answer that was held to an evaluation which is there no more is given up.
    before = {"layers_needed": {"noise": 1.0, "within": {2: 3}, "baseline": "plain"}, "kept": {"1.0": "proven"}}
    gone = [evaluated("plain", "erm", scores[:, :19]), evaluated("linear", "linear", scores, **before)]
    linear = held_to_plain(gone)[1]
    assert linear.layers_needed is not None and (linear.layers_needed.baseline, linear.kept) == (None, {})
    cut, linear = needed[0], needed[4]
    assert cut and cut.within == {1: None, 2: 2, 5: 2}
    assert cut.chosen[1] is None and (cut.chosen[2].layer, cut.chosen[2].state) == (2, "estimated")  # type: ignore[union-attr]
    assert linear and linear.chosen[1].layer == linear.within[1] == 2  # type: ignore[union-attr]
    last = linear.last
    assert last and (last.layer, last.state, round(last.worse), round(last.at_most)) == (3, "estimated", -1, -1)
    assert (linear.full, linear.steps) == (pytest.approx(FULL.mean()), 7)
    clean = evaluated("clean", "erm", 0.5 * scores, train_noise=0.0)  # better, where it is measured without noise
    assert held_to_plain([clean, runs[2], runs[4]])[2].layers_needed.baseline == "../worse"  # type: ignore[union-attr]
    assert held_to_plain([clean, runs[4]])[1].layers_needed.baseline == "../clean"  # type: ignore[union-attr]
    of_seed = held_to_plain([runs[1], runs[4]])[1]
    assert "held to the full depth of other-seed of seed 1" in answer_lines(Answer.of(of_seed))


# --- the best layer


def rated(accuracies: list[float], count: int = 600) -> Groups:
    """Right answers by layer, of texts in one order: what a better layer has right, others have too or lose."""
    right = np.arange(count)[None] < np.round(np.array(accuracies) * count)[:, None]
    sums = LayerScores(noise=[1.0], counts=[1] * count, scores=[right.tolist()])
    thirty = [right.reshape(len(right), -1, 30).sum(1).tolist()]
    blocks = LayerGroups(noise=[1.0], counts=[count // 30] * 30, losses=thirty, scores=thirty, by_group=sums)
    return Groups(noise=[1.0], root=False, counts=[1] * count, scores=[sums.scores[0][-1]], layers=blocks)


IMAGES = [0.5, 0.9, 0.925, 0.94, 0.9, 0.877]


@pytest.mark.parametrize(
    ("compare_with", "test", "chosen", "headline"),
    [
        (
            None,
            IMAGES,
            [3, 2, 1],
            "Layer 3, the best on validation data, is 6.3 points better than the whole (95 %: 4.4 to 8.3). "
            "2 of 5 layers may suffice within 2 points of layer 3: open",
        ),
        ("best", [*IMAGES[:3], 0.84, 0.84, 0.85], [3, 2, 1], "By validation data layer 3 is the best; here it is 1."),
        (
            "last",
            IMAGES,
            [1, 1, 1],
            "The last layer is not the best: layer 3 has 0.94, it 0.877. 1 of 5 ",
        ),
    ],
)
def test_layers_are_compared_with_the_best_one_of_validation_data(compare_with, test, chosen, headline):
    """Its gain over the last is measured on test data: chosen there it would be flattered."""
    validation = Validation(samples=200, metric=IMAGES, layer_metrics={1.0: IMAGES})
    given = GIVEN | {"higher_is_better": True, "seconds": None, "validation": validation}
    needed, _ = layers_needed(rated(test), None, **given, compare_with=compare_with)
    assert [each and each.layer for each in needed.chosen.values()] == chosen
    assert needed.compared_with == (compare_with or "best") and needed.best is not None
    apart = test[3] - test[5]
    width = 100 * student.ppf(0.975, 599) * (abs(apart) * (1 - abs(apart)) / 599) ** 0.5
    assert (needed.best.gain, needed.best.high) == pytest.approx((100 * apart, 100 * apart + width), abs=0.05)
    assert -0.3 < needed.best.low - (100 * apart - width) < 0.05  # skewness may lower it
    rows = {"layer_metrics": {1.0: test}, "layer_losses": {1.0: test}}
    known = {"layers_needed": needed, "validation": validation} | rows
    assert answered(**known).headline.startswith(headline)


def test_a_model_whose_last_layer_is_nearly_the_best_is_compared_with_it_unless_asked():
    metric = [0.5, 0.9, 0.91, 0.9]
    validation = Validation(samples=200, metric=metric, layer_metrics={1.0: metric})
    given = GIVEN | {"higher_is_better": True, "seconds": None}
    tops = [
        layers_needed(rated(metric), None, **given, validation=validation, compare_with=each)[0].top
        for each in (None, "last", "best")
    ]
    assert tops == [3, 3, 2]
    with pytest.raises(InputError, match="chooses the best layer on validation data, and there are none here"):
        layers_needed(rated(metric), None, **given, compare_with="best")


def test_the_best_layer_is_held_to_the_best_one_of_a_baseline():
    validation = Validation(samples=9, metric=[0.5, 0.95, 0.9], layer_metrics={1.0: [0.5, 0.95, 0.9]}, fingerprint="a")
    ours, theirs = (
        rated(each).model_copy(update={"fingerprint": "a"}) for each in ([0.5, 0.95, 0.9], [0.94, 0.5, 0.9])
    )
    rows = {"metric": [0.94, 0.5, 0.9], "layer_metrics": {1.0: [0.94, 0.5, 0.9]}}
    given = GIVEN | {"higher_is_better": True, "validation": validation}
    for compare_with, top, full, last in (("last", 2, 0.9, "proven"), ("best", 1, 0.94, "proven")):
        needed, kept = layers_needed(ours, plain(theirs, **rows), **given, compare_with=compare_with)
        assert (needed.top, needed.full_layer) == (top, 2 if compare_with == "last" else 0)
        assert (needed.full, needed.last.state, kept) == (pytest.approx(full), last, {1.0: last})
    assert "held to the best layer, 0, of plain" in answer_lines(answered(layers_needed=needed))


def test_a_model_as_it_is_counts_by_its_best_layer_whichever_side_it_is_on():
    """Held to plain training, and with plain training held to it, unless somebody says what counts."""
    metric, trained = [0.5, 0.9, 0.95, 0.8], [0.5, 0.6, 0.8, 0.94]
    rows = [
        {"samples": 9, "fingerprint": "a", "metric": each, "layer_metrics": {1.0: each}} for each in (metric, trained)
    ]
    alone = {"noise": 1.0, "within": {}, "compared_with": "best", "top": 2}
    three = SUMMARY | {"model": "RoBERTa-3", "layer_losses": {"1.0": [1.0] * 4}}
    known = [{"method": "plain", "layers_needed": alone}, {"method": "erm"}]
    given = [rated(each).model_copy(update={"fingerprint": "a"}) for each in (metric, trained)]
    frozen, erm = (
        Results(Summary(**three | more | {"validation": row}), own, Path(more["method"]))
        for more, row, own in zip(known, rows, given, strict=True)
    )
    ours = held(frozen, erm)
    needed = ours.layers_needed
    assert (needed.top, needed.full_layer, needed.held_to, needed.last.worse) == (2, 3, "last", pytest.approx(-1))
    assert needed.chosen[2].layer == 2 and needed.chosen[5].layer == 1
    needed = held(erm, frozen).layers_needed
    assert (needed.top, needed.full_layer, needed.held_to, needed.last.worse) == (3, 2, "best", pytest.approx(1))
    assert "held to the best layer, 2, of plain" in answer_lines(answered(layers_needed=needed))
    assert held(frozen, erm, "last").layers_needed.top == 3
    assert held(erm, frozen, "last").layers_needed.full_layer == 3
    assert held(frozen, None).layers_needed.top == 2


@pytest.mark.parametrize(("percent", "fewest"), [(1, 452), (2, 225), (5, 89)])
def test_fewer_groups_certify_nothing_though_no_answer_is_lost(percent, fewest):
    """So says the page on the verdict."""
    least = fewest_groups(percent / 100, SHARED)
    assert least == fewest
    for count, certain in ((least - 1, False), (least, True)):
        ones = np.ones(count)
        one = Against(ones, np.stack([ones, ones], 1), ones, False, True, ones, bounded=True)
        assert (one.needed()[percent] == 0) == certain


def test_so_few_groups_are_said_to_be_too_few():
    needed = LayersNeeded(noise=1.0, within=NEVER, bounded=True, top=3, chosen={2: Choice(layer=3, state="proven")})
    words = (
        "100 independent groups can't certify within 2 points a layer that is just as good: that takes at least 225."
    )
    known = {"samples": 400, "layer_metrics": {1.0: [0.8] * 7}}
    assert words in answer_lines(answered(layers_needed=needed, **known))
    for more in ({"groups": 225}, {"layers_needed": needed.model_copy(update={"within": {2: 1}})}):
        assert "that takes at least" not in answer_lines(answered(**{"layers_needed": needed} | known | more))


def test_where_validation_data_exclude_every_layer_the_headline_says_how_many_and_how_surely():
    """Though the test data call the last layer as good as the baseline's."""
    metric, worse = [0.5, 0.9], [0.5, 0.85]
    counts, blocks = [4] * 30, {}
    for name, rates in (("ours", worse), ("theirs", metric)):
        right = np.arange(120)[None] < 120 * np.array(rates)[:, None]
        sums = np.random.default_rng(0).permutation(right, axis=1).reshape(2, 30, 4).sum(2)
        blocks[name] = LayerScores(noise=[1.0], counts=counts, scores=[sums.tolist()])
    known = {"samples": 120, "fingerprint": "a"}
    validation = Validation(metric=worse, blocks=blocks["ours"], **known)
    rows = {"metric": metric, "layer_metrics": {1.0: metric}, "blocks": blocks["theirs"]}
    both = rated(metric).model_copy(update={"fingerprint": "a"})
    given = GIVEN | {"higher_is_better": True, "validation": validation}
    needed, kept = layers_needed(both, plain(both, **known | rows), **given)
    known = {"layers_needed": needed, "validation": validation, "layer_metrics": {1.0: metric}, "kept": kept}
    headline = answered(**known, layer_losses={1.0: metric}).headline
    apart = (np.array(blocks["ours"].scores[0][1]) - blocks["theirs"].scores[0][1]) / 4
    width = 100 * student.ppf(0.975, 29) * apart.std(ddof=1) / 30**0.5
    assert headline == (
        f"On 120 validation samples the last layer is 5.0 points worse than the full depth of plain (95 %: "
        f"{5 - width:.1f} to {5 + width:.1f}); on test data the same, surely at most 1.2 worse"
    )


# --- metrics without bounds


def test_a_metric_without_bounds_is_estimated_and_the_assumption_is_said():
    rows = {"metric": "loss", "higher_is_better": False, "layer_metrics": {1.0: [2.0] + [1.0] * 6}}
    needed, _ = layers_needed(OURS, None, **GIVEN)
    assert (needed.bounded, needed.choice(2).state) == (False, "estimated")
    answer = answer_lines(answered(**rows, layers_needed=needed))
    assert "within 2 %: estimated, 95 %." in answer and "certified" not in answer and "surely" not in answer
    assert (
        "Loss is not known to be a share of the samples, so no test can certify it. These are estimates: they assume"
        in answer
    )


@pytest.mark.parametrize(
    ("task", "scale", "bounded"),
    [
        ({"metric": "accuracy", "higher_is_better": True}, 1, True),
        ({"metric": "accuracy", "higher_is_better": True}, 100, False),  # in percent
        ({"metric": "recall", "higher_is_better": True}, 1, False),  # nothing is known of it
        ({"metric": "recall", "higher_is_better": True, "bounded": True}, 1, True),
        ({"metric": "loss", "higher_is_better": False}, 1, False),
        ({"metric": "error rate", "higher_is_better": False, "bounded": True}, 1, False),  # no test is made for it
    ],
)
def test_a_task_says_whether_its_metric_is_bounded(task, scale, bounded):
    """The default is safe: only an accuracy is known to be a share, and only if its scores are."""
    body = {"score": lambda self, prediction, target: scale * (prediction.argmax(-1) == target).float()}
    seen = subject(own.layers(), type("Own", (own.Classes,), task | body)(), own.samples(40))
    assert results_of(seen).summary.layers_needed.bounded is bounded


def _odds(task, prediction, target):
    return task.losses(prediction, target).exp() ** -1


def test_more_groups_than_a_file_should_hold_are_put_together(monkeypatch):
    monkeypatch.setattr("descend.run.evaluating.MOST_SUMS", 15)
    task = type("Rates", (own.Classes,), {"bounded": True, "higher_is_better": True, "score": _odds})()
    levels = {0.0: measured(own.layers(), task, own.samples(40))}
    sums = by_group(subject(own.layers(), task, own.samples(40)), levels, "").layers.by_group
    assert len(sums.counts) == 15 and sum(sums.counts) == 40
    assert np.sum(sums.scores, -1)[0] == pytest.approx(levels[0.0].scores.sum(0).numpy(), rel=1e-5)


# --- in words


CHOSEN = {
    1: None,
    2: Choice(layer=5, state="open", at_most=3.14, time=0.84),
    5: Choice(layer=4, state="proven", at_most=4.9, time=0.6),
}
NEEDED = LayersNeeded(
    baseline="runs/plain", seed=1, noise=1.0, within={1: None, 2: 6, 5: 4}, time={2: 1.0, 5: 0.6}, chosen=CHOSEN
)
PLAIN = {"baseline": "plain", "noise": 1.0, "within": NEVER}
SURE = "with 95% confidence for this one trained model; with another seed it may differ."
ANSWERS = [
    (
        {"layers_needed": NEEDED, "kept": {0.0: "proven", 1.0: "open", 2.0: "broken"}},
        [
            "5 of 6 layers may suffice within 2 points: open.",
            "  within 1 point   no layer on validation data",
            "  within 2 points  5 of 6 layers                84 % of the full time  open, at most 3.1 points worse",
            "  within 5 points  4 of 6 layers                60 % of the full time  certified",
            "Accuracy at γ = 1, held to the full depth of plain of seed 1. K was chosen on validation data and tested "
            f"on test data, {SURE}",
            "Last layer within 2 points of that: certified at γ = 0, open at γ = 1.",
        ],
    ),
    (  # without validation data K is the one that the test data certify
        {
            "layers_needed": LayersNeeded(noise=1.0, within={1: None, 2: 0, 5: 0}),
            **{"metric": "rmse", "higher_is_better": False},
        },
        [
            "The embedding alone is within 2 %: certified.",
            "  within 1 %  no layer",
            *(f"  within {percent} %  the embedding alone  certified" for percent in (2, 5)),
            f"RMSE at γ = 1, held to its own full depth. Tested on test data, {SURE}",
        ],
    ),
    *(  # a refuted K is not said to suffice
        (
            {"layers_needed": LayersNeeded(noise=1.0, within=NEVER, chosen=dict.fromkeys(NEVER, choice))},
            [f"{words}.", *(f"  within {unit}  {name}  not enough" for unit in ("1 point ", "2 points", "5 points"))],
        )
        for choice, words, name in (
            (Choice(layer=1, state="broken"), "1 of 6 layers do not suffice within 2 points", "1 of 6 layers"),
            (Choice(layer=0, state="broken"), "The embedding alone is not within 2 points", "the embedding alone"),
        )
    ),
    (  # few groups, and samples that speak against the choice
        {
            "layers_needed": LayersNeeded(
                noise=1.0, within=NEVER, chosen=dict.fromkeys(NEVER, Choice(layer=2, state="open", worse=2.5))
            )
        },
        [
            "By validation data 2 of 6 layers suffice within 2 points; here that is 2.5 points worse: open.",
            "  within 1 point   2 of 6 layers  open, but 2.5 points worse",
            "  within 2 points  2 of 6 layers  open, but 2.5 points worse",
            "  within 5 points  2 of 6 layers  open, 2.5 points worse",
        ],
    ),
    *(  # the last layer, held to another model
        (
            {"layers_needed": LayersNeeded(**PLAIN, chosen={2: Choice(layer=6, state=state)})},
            [
                "None of 6 layers can be left out; the last one "
                f"{verb} within 2 points of the full depth of plain: {words}."
            ],
        )
        for state, verb, words in (
            ("open", "may be", "open"),
            ("proven", "is", "certified"),
            ("broken", "is not", "refuted"),
        )
    ),
    (  # the baseline's number, the budget, the better layer, and how many samples are enough
        {
            "layers_needed": LayersNeeded(
                **PLAIN | {"within": {}},
                chosen={2: Choice(layer=4, state="open", worse=1.0, at_most=3.0, times=4.0)},
                last=Choice(layer=6, state="open", worse=-0.5, at_most=0.7),
                full=0.845,
                steps=300,
            ),
            **{"layer_metrics": {1.0: [0.5, 0.6, 0.7, 0.9, 0.84, 0.84, 0.85]}, "kept": {1.0: "proven"}},
            "validation": {"samples": 9, "metric": [0.5, 0.6, 0.7, 0.95, 0.8, 0.8, 0.9]},
            **{"steps": 600, "samples": 200, "settings": {"learning_rate": 0.001}},
        },
        [
            "4 of 6 layers may suffice within 2 points: open.",
            "Accuracy at γ = 1, held to the full depth of plain. K was chosen on validation data and tested on test "
            f"data, {SURE}",
            "Last layer within 2 points of that: certified at γ = 1.",
            "The last layer has 0.85, the baseline's 0.845: 0.5 points better, surely at most 0.7 worse.",
            "The last layer is not the best: layer 3 has 0.9, it 0.85.",
            "The baseline had 300 steps at the default learning rate, this model 600 steps at the learning rate 0.001. "
            "Try each for both.",
            "To certify K within 2 points takes about 800 such samples, if no number changes.",
        ],
    ),
    (
        {"layers_needed": LayersNeeded(**PLAIN), "kept": {1.0: "broken"}},
        ["The last layer is not within 2 points of the full depth of plain."],
    ),
    (  # a last layer that is not the best is said first, where layers are held to it
        {
            "layers_needed": LayersNeeded(noise=1.0, within={2: 0}),
            "layer_metrics": {1.0: [0.77, 0.81, 0.84, 0.843, 0.84, 0.79, 0.757]},
            "validation": {"samples": 9, "metric": [0.7, 0.8, 0.81, 0.82, 0.81, 0.8, 0.75]},
        },
        [
            "The last layer is not the best: layer 3 has 0.843, it 0.757. "
            "The embedding alone is within 2 points: certified.",
            "  within 2 points  the embedding alone  0.77  certified",
            f"Accuracy at γ = 1, held to its own full depth. Tested on test data, {SURE}",
        ],
    ),
    (  # the last layer, held to itself, is certain and no answer
        {"layers_needed": LayersNeeded(noise=1.0, within={1: 6, 2: 6, 5: 4})},
        [
            "No layer below the last one is certified within 2 points.",
            "  within 1 point   6 of 6 layers  none can be left out",
            "  within 2 points  6 of 6 layers  none can be left out",
            "  within 5 points  4 of 6 layers  certified",
        ],
    ),
    (
        {"layers_needed": LayersNeeded(noise=1.0, within=NEVER), "groups": 3},
        [
            "It is not certain how many layers suffice within 2 points.",
            *(f"  within {unit}  no layer" for unit in ("1 point ", "2 points", "5 points")),
            f"Accuracy at γ = 1, held to its own full depth. Tested on test data, {SURE}",
            "Too few samples to certify anything: 3 groups, at least 12 are needed.",
        ],
    ),
    (  # what validation data say is no verdict of the test data; nothing was learned
        {
            "layers_needed": LayersNeeded(baseline="plain", noise=1.0, within={2: 6}, chosen={2: None}),
            **{"kept": {1.0: "proven"}, "samples": 100, "commonest": 0.5},
            "layer_metrics": {"0.0": [0.5] * 7, "1.0": [0.58] * 7},
        },
        [
            "On validation data the last layer is not within 2 points of the full depth of plain.",
            "  within 2 points  no layer on validation data",
            "Accuracy at γ = 1, held to the full depth of plain. K was chosen on validation data and tested on test "
            f"data, {SURE}",
            "Last layer within 2 points of that: certified at γ = 1.",
            "The last layer may have learned nothing: always naming the commonest class has 0.5.",
        ],
    ),
]


@pytest.mark.parametrize(("known", "lines"), ANSWERS)
def test_how_many_layers_suffice_in_words(known, lines):
    assert answer_lines(answered(**known)).splitlines()[: len(lines) or None] == lines
