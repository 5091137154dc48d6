"""How many layers suffice: intervals by hand, the share of wrong answers, and a run against a baseline."""

import numpy as np
import pytest
from scipy.stats import t as student

from descend import InputError
from descend.evaluation.needed import Against, Baseline, layers_needed
from descend.results import Groups, LayerGroups, LayersNeeded, Summary
from descend.results.wording import needed_sentence


def against(scores: np.ndarray, full: np.ndarray, **more: bool) -> Against:
    """Scores (B, L+1) and those of full depth (B,), ten samples in each block."""
    settings = {"root": False, "higher_is_better": False, "groups": 10**6} | more
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
        low, high = against(layer[:, None], full, **more).excess(2, 0.9)
        width = beyond.std(ddof=1) / 20**0.5 * student.ppf(0.9, 19)
        assert [low[0], high[0]] == pytest.approx([beyond.mean() - width, beyond.mean() + width])


def test_unequal_blocks_weigh_by_their_samples():
    counts, scores = np.array([1, 3, 6] * 5), np.arange(15.0)[:, None] * np.array([[1], [3], [6]] * 5)
    one = Against(counts, scores, np.zeros(15), False, False, 15)
    low, high = one.excess(1, 0.9)
    assert (low + high)[0] / 2 == pytest.approx(scores.sum() / counts.sum())


def test_all_deeper_layers_must_be_within_too():
    full = np.ones(20) + np.linspace(-0.001, 0.001, 20)
    scores = np.stack([2 * full, 1.0 * full, 1.015 * full, 1.04 * full, full], 1)
    assert against(scores, full).needed() == {1: 4, 2: 4, 5: 1}
    assert against(-scores, -full, higher_is_better=True).needed() == {1: 4, 2: 4, 5: 1}


def test_the_own_full_depth_is_always_within_and_another_may_never_be():
    rng = np.random.default_rng(1)
    scores = rng.uniform(1, 2, (30, 4))
    assert all(layer is not None for layer in against(scores, scores[:, -1]).needed().values())
    assert against(scores, scores[:, -1] / 2).needed() == {1: None, 2: None, 5: None}


def test_too_few_blocks_prove_nothing():
    scores = np.ones((11, 3))
    assert against(scores, np.ones(11)).needed() == {1: None, 2: None, 5: None}
    assert against(scores, np.ones(11)).kept() == "open"


def test_the_last_layer_is_kept_broken_or_open():
    rng = np.random.default_rng(2)
    full = rng.normal(1, 0.05, 30)
    states = [against(factor * full[:, None], full).kept() for factor in (1.0, 1.1)]
    noisy = against((1.02 * full + rng.normal(0, 0.2, 30))[:, None], full)
    assert [*states, noisy.kept()] == ["proven", "broken", "open"]


def test_a_layer_beyond_the_tolerance_is_seldom_said_to_suffice():
    """Layer 1 lies just beyond each tolerance in turn: 95 % confidence is that of all three together."""
    rng, draws, wrong = np.random.default_rng(3), 2000, 0
    for _ in range(draws):
        full = rng.normal(1, 0.05, 30)
        layers = [factor + 0.5 * (full - 1) + rng.normal(0, 0.03, 30) for factor in (1.6, 1.021, 1.0)]
        found = against(np.stack(layers, 1), full).needed()
        wrong += any(layer is not None and layer <= 1 for layer in (found[1], found[2]))
    assert wrong / draws < 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5


DATA = ("imdb", "test", "gaussian", "accuracy")


def test_answers_that_seldom_differ_prove_little():
    """A layer that loses 2 % of what full depth answers rightly mostly loses none of a few texts."""
    rng, wrong = np.random.default_rng(4), {30: 0, 300: 0}
    for count in wrong:
        for _ in range(1000):
            right = (rng.random((count, 1)) > 0.0201).astype(float)
            blocks = np.arange(count) % 30
            sums, counts = np.zeros((30, 1)), np.bincount(blocks).astype(float)
            np.add.at(sums, blocks, right)
            one = Against(counts, np.concatenate([sums, counts[:, None]], 1), counts, False, True, count)
            wrong[count] += one.needed()[2] == 0
    assert max(wrong.values()) <= 1000 * 0.05, wrong


def test_samples_of_one_group_prove_nothing():
    one = groups(np.ones((3, 20)), single=True)
    needed, kept = layers_needed(one, Baseline("plain", DATA, one), noise=0.0, higher_is_better=True, seconds=None)
    assert needed.within == {1: None, 2: None, 5: None} and set(kept.values()) == {"open"}


def groups(scores: np.ndarray, **changes: object) -> Groups:
    """Of scores (L+1, B) at two noise levels."""
    counts = [1] * scores.shape[1]
    layers = LayerGroups(noise=[0.0, 1.0], counts=counts, losses=[scores.tolist()] * 2, scores=[scores.tolist()] * 2)
    known = {"noise": [0.0, 1.0], "root": False, "counts": counts, "scores": [counts] * 2, "layers": layers}
    return Groups(**(known | changes))  # type: ignore[arg-type]


def test_a_baseline_must_be_of_the_same_samples_and_noise():
    ours = groups(np.ones((3, 20)))
    needed, kept = layers_needed(
        ours, Baseline("plain", DATA, ours), noise=1.0, higher_is_better=False, seconds=[1, 2, 4]
    )
    assert (needed.within, needed.time) == ({1: 0, 2: 0, 5: 0}, {1: 0.25, 2: 0.25, 5: 0.25})
    assert (needed.baseline, needed.noise, kept) == ("plain", 1.0, {0.0: "proven", 1.0: "proven"})
    alone, nothing = layers_needed(ours, None, noise=0.0, higher_is_better=False, seconds=None)
    assert (alone.baseline, alone.time, nothing) == (None, {1: None, 2: None, 5: None}, {})
    for other, words in (
        (groups(np.ones((3, 21))), "21 samples in 21 groups; this model on 20 in 20. Evaluate both"),
        (groups(np.ones((3, 20)), layers=None), "older version"),
        (groups(np.ones((3, 20)), layers=ours.layers.model_copy(update={"noise": [0.0, 2.0]})), "noise 1;"),  # type: ignore[union-attr]
    ):
        with pytest.raises(InputError, match=words):
            layers_needed(ours, Baseline("plain", DATA, other), noise=1.0, higher_is_better=False, seconds=None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (("mnli", *DATA[1:]), "data imdb; this model on mnli"),
        (("imdb", "validation", "gaussian", "accuracy"), "split test; this model on validation"),
        (("imdb", "test", "uniform", "accuracy"), "noise gaussian; this model on uniform"),
        ((*DATA[:3], "rmse"), "metric accuracy; this model on rmse"),
    ],
)
def test_a_baseline_of_other_data_is_refused(data, words):
    baseline = Baseline("plain", DATA, groups(np.ones((3, 20))))
    assert baseline.of(DATA) is baseline
    with pytest.raises(InputError, match=words):
        baseline.of(data)


SUMMARY = {
    **{"recipe": "text-roberta", "method": "linear", "seed": 0, "model": "RoBERTa-6", "metric": "accuracy"},
    **{"higher_is_better": True, "noise": [0.0, 1.0], "values": [0.9, 0.8], "mean": 0.85, "train_noise": 1.0},
    **{"layer_losses": {"0.0": [1.0] * 7, "1.0": [1.0] * 7}, "dataset": "imdb", "groups": 100},
}


def test_how_many_layers_suffice_in_words():
    needed = LayersNeeded(baseline="plain", noise=1.0, within={1: None, 2: 5, 5: 4}, time={2: 0.84, 5: None})
    known = {"layers_needed": needed, "kept": {0.0: "proven", 1.0: "open", 2.0: "broken"}}
    assert needed_sentence(Summary(**SUMMARY | known)) == (
        "Layers that suffice, with 95% confidence, for the accuracy of the full depth of plain at γ = 1: 5 of 6 within "
        "2 % (84 % of the time), 4 of 6 within 5 %. Last layer within 2 % of it: certain at γ = 0, open at γ = 1."
    )
    same = needed.model_copy(update={"within": {1: 3, 2: 3, 5: 3}, "time": {}})
    assert "at γ = 1: 3 of 6 within 1 %. Last" in needed_sentence(Summary(**SUMMARY | known | {"layers_needed": same}))
    none = LayersNeeded(noise=1.0, within={1: None, 2: None, 5: None})
    broken = {"layers_needed": none, "kept": {0.0: "broken"}}
    assert needed_sentence(Summary(**SUMMARY | broken)).endswith("Last layer within 2 % of it: excluded at γ = 0.")
    assert needed_sentence(Summary(**SUMMARY | {"layers_needed": none})) == (
        "Layers that suffice: none is certain to have the accuracy of its own full depth within 5 %."
    )
    assert needed_sentence(Summary(**SUMMARY | known | {"groups": 3})) == (
        "How many layers suffice is open: 3 groups of samples, at least 12 are needed."
    )
    assert needed_sentence(Summary(**SUMMARY)) == ""
