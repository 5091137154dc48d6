"""Depth: K, intervals and the rule of methods_plan.md, on accuracies that are known."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_rel

from descend.jackknife import combined
from reproduction.depth import compared, difference, layers, pairs, picture, rule, suffices
from reproduction.table import Table

SEEDS = range(5)


def runs(arm, means, variant="", spread=0.001):
    """Five runs of an arm, a row each; seeds differ by a known amount at all layers alike."""
    return [
        {"panel": "layers", "model": "tiny-exits", "arm": arm, "variant": variant, "seed": seed, "diverged": False}
        | {"metrics": [mean + spread * (seed - 2) for mean in means], "settings": {"learning_rate": 1e-4}}
        for seed in SEEDS
    ]


def table(*rows):
    return Table("methods", {}, [], pd.DataFrame([row for each in rows for row in each]), pd.DataFrame())


FOUND = table(
    runs("probe", [0.5, 0.6, 0.7, 0.80, 0.86]),
    runs("probe", [0.5, 0.6, 0.7, 0.82, 0.90], variant="last"),
    runs("linear", [0.5, 0.6, 0.8, 0.895, 0.90], spread=0.002),
    runs("useful-.8", [0.5, 0.8, 0.8, 0.85, 0.90], spread=0.003),
)


@pytest.mark.parametrize(
    ("accuracy", "points", "k"),
    [
        ([0.5, 0.89, 0.8, 0.89, 0.9], 1, 3),  # a later layer is worse: layer 1 is not enough
        ([0.89, 0.89, 0.9], 1, 0),
        ([0.5, 0.9, 0.88], 1, None),
        ([0.5, 0.9, 0.88], 2, 1),
    ],
)
def test_k_is_the_first_layer_from_which_on_all_are_within(accuracy, points, k):
    assert suffices(accuracy, 0.9, points) == k


def test_layers_are_held_to_plain_training_at_the_rate_best_for_its_last_layer():
    found = layers(FOUND).set_index("method")
    assert list(found["K within 1"]) == ["none", "3", "4"]
    assert list(found["K within 5"]) == ["4", "3", "3"]
    assert list(found["another is better at"]) == ["1, 2, 3, 4", "1", "3"]
    assert found.loc["weights l/L", "layer 3"] == "0.895"


def test_intervals_are_students_and_paired_by_seed():
    rng = np.random.default_rng(0)
    one, other = runs("linear", [0.5, 0.6]), runs("probe", [0.5, 0.5])
    for row in (*one, *other):
        row["metrics"] = list(rng.normal(0.5, 0.1, 2))
    pair = [pd.DataFrame(rows).sample(frac=1, random_state=seed) for seed, rows in enumerate((one, other))]
    mean, low, high = difference(*pair)
    for layer in (0, 1):
        test = ttest_rel([row["metrics"][layer] for row in one], [row["metrics"][layer] for row in other])
        expected = test.confidence_interval()
        assert (low[layer], high[layer]) == pytest.approx((expected.low, expected.high))
        assert mean[layer] == pytest.approx(
            np.mean([row["metrics"][layer] for row in one]) - np.mean([row["metrics"][layer] for row in other])
        )
    found = compared(table(one, other), "tiny-exits", "linear", "probe")
    test = ttest_rel(*([np.mean(row["metrics"]) for row in rows] for rows in (one, other)))
    assert (found.p, found.seeds) == (pytest.approx(test.pvalue), 5) and math.isnan(found.tested_p)
    assert found.parts == {"seeds": (pytest.approx((found.value / test.statistic) ** 2), 4)}


def test_the_deeper_half_has_the_variance_over_test_samples_where_rows_have_their_blocks():
    """Three blocks of ten: ours is right in 6, 8 and 7 of them, the other in 5, 5 and 5, at every seed alike."""
    one, other = runs("linear", [0.5, 0.7], spread=0.002), runs("probe", [0.5, 0.5])
    for rows, right in ((one, [6.0, 8.0, 7.0]), (other, [5.0] * 3)):
        for row in rows:
            row["half"] = {"counts": [10] * 3, "scores": right}
    found = compared(table(one, other), "tiny-exits", "linear", "probe")
    seeds = (0.001**2 * 2.5 / 5, 4)
    assert found.parts == {"seeds": pytest.approx(seeds), "groups": pytest.approx((0.1**2 / 3, 2))}
    error, freedom = combined([seeds, (0.1**2 / 3, 2)])
    width = student.ppf(0.975, freedom) * error
    assert (found.value, found.low, found.groups) == (pytest.approx(0.1), pytest.approx(0.1 - width), 3)
    assert math.isnan(compared(table(one), "tiny-exits", "linear", "useful-.8").value)


def test_the_rule_counts_the_deeper_half_and_names_who_harms_the_last_layer():
    found = rule(FOUND).set_index("method")
    assert list(found["worse at, layers L/2 to L"]) == [3, 0, 1]
    assert list(found["last layer worse than plain training's"]) == ["tiny-exits", "–", "–"]
    assert list(found["the rule's choice"]) == ["", "yes", ""] and set(found.runs) == {"tiny-exits (5 seeds)"}
    assert len(picture(FOUND).axes) == 1 and layers(table()).empty


def test_without_a_method_that_is_never_worse_the_rule_takes_the_one_that_is_at_the_fewest_layers():
    """Each is better than the other somewhere in the deeper half: probe at layer 4, linear at 2 and 3."""
    crossed = table(runs("probe", [0.5, 0.6, 0.7, 0.8, 0.9]), runs("linear", [0.5, 0.6, 0.8, 0.85, 0.85]))
    found = rule(crossed).set_index("method")
    assert list(found.iloc[:, 1]) == [2, 1] and list(found["the rule's choice"]) == ["", "yes"]


def test_pairs_of_methods_have_intervals_that_are_simultaneous_over_layers():
    """Differences by seed are −.001, 0, .001 times a spread about the mean: t of 4 degrees at .05 / 4."""
    one, other = runs("probe", [0.5, 0.6, 0.7, 0.8, 0.9]), runs("linear", [0.5, 0.7, 0.7, 0.8, 0.9], spread=0.003)
    (row,) = pairs(table(one, other)).to_dict("records")
    width = 100 * student.ppf(1 - 0.025 / 4, 4) * 0.002 * np.sqrt(2.5 / 5)
    assert row["layer 1"] == f"−10.0 (−{10 + width:.1f} to −{10 - width:.1f})" and row["seeds of both"] == 5
    assert "layer 0" not in row
