"""What constraints give over noise: the protocol, fair gains, the mechanism and the primaries, of made-up rows."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from reproduction import methods_page, page
from reproduction.cells import SEARCH, cells
from reproduction.figures import NotRunError, figure_5, seeds_of
from reproduction.grids import SCALES
from reproduction.robustness import LACKING, counts, done, fairly, mechanism, protocol, share, sign_of, signs
from reproduction.table import Table, seeds_that_decide
from reproduction.tables import published_place

NOISE = [0.0, 1.0, 2.0]
TEXT = {"model": "MiniLM", "data": "imdb", "depth": 6, "gamma": 1.0, "form": "", "higher": True}
VIDEO = {"model": "UT", "data": "ped2", "depth": 5, "gamma": 0.9, "form": "untied", "higher": False}


def run(place, arm, seed, values, panel="robustness", variant="", validation=None, **more):
    """A row: its values at each noise level, alike in all of 20 groups of test samples."""
    values, higher = [float(each) for each in values], place["higher"]
    number = float(np.trapezoid(values, NOISE) if higher else np.mean(values))
    scores = [[(value if higher else value**2)] * 20 for value in values]
    return {
        **{"name": f"{place['model']}-{arm}-{variant}-{seed}", "panel": panel, **place, "arm": arm, "variant": variant},
        **{"seed": seed, "diverged": False, "noise": NOISE, "values": values, "number": number, "counts": [1] * 20},
        **{"validation": validation or values, "scores": scores, "root": not higher, "device": "cpu", "seconds": 9.0},
        **{"settings": {"learning_rate": 1e-3, "alpha": 0.1, "dual_lr": 0.5}, "holds": seed < 3},
        **{"metric": "accuracy" if higher else "rmse", "sigma": 0.179},
        **{"trained": {"multiplier": {"1": 0.25, "2": 0.5}}} | more,
    }


def table(rows, trials=()):
    columns = ["name", "panel", "arm", "form", "variant", "seed", "diverged", "model", "data", "depth", "gamma"]
    columns += ["device", "seconds"]
    frames = [pd.DataFrame(list(each), columns=None if each else columns) for each in (rows, trials)]
    return Table("methods", {}, [0.0, 1.0], *frames)


def test_the_protocol_takes_the_best_of_several_by_validation_data_and_one_run_on_video():
    # The best by validation is seed 1 and trial 2, which are not the best on test data.
    plain = [run(TEXT, "erm", 0, [0.9, 0.9, 0.9], validation=[0.5] * 3)]
    plain.append(run(TEXT, "erm", 1, [0.8, 0.7, 0.6], validation=[0.8] * 3))
    fresh = [run(TEXT, "algorithm-1", 0, [0.99] * 3)]
    tried = [("trial-1", [0.95] * 3, [0.1] * 3), ("trial-2", [0.8, 0.8, 0.6], [0.9] * 3)]
    trials = [run(TEXT, "algorithm-1", 1000, test, SEARCH, name, seen) for name, test, seen in tried]
    video = [
        run(VIDEO, arm, seed, [seed + more] * 3) for arm, more in (("erm", 5), ("algorithm-1", 6)) for seed in (0, 1)
    ]
    made = protocol(table([*plain, *fresh, *video], trials)).set_index("model")
    assert (made.loc["MiniLM", "plain"], made.loc["MiniLM", "constrained"]) == pytest.approx((1.4, 1.5))
    assert made.loc["MiniLM", "runs"] == "best of 2 seeds, best of 2 trials" and list(made.sign) == ["+", "−"]
    assert (made.loc["UT", "plain"], made.loc["UT", "constrained"], made.loc["UT", "runs"]) == (5, 6, "seed 0")


def test_every_printed_cell_is_named_and_those_that_are_lacking_counted():
    given = table(
        [
            run(place, arm, 0, [value] * 3)
            for place in (TEXT, VIDEO)
            for arm, value in (("erm", 0.5), ("algorithm-1", 0.6))
        ]
    )
    made = signs(given)
    assert made.table.value_counts().to_dict() == {"Table 3": 105, "Table 4": 72}
    ours = made[made["our runs"] != LACKING].set_index("our model")
    assert ours.ours.to_dict() == {"UT-5": "−", "MiniLM-6": "+"}
    # Table 3 prints 10.815 and 11.643 of UT-5 on UCSD at γ = .15; Table 4 has DistilBERT in MiniLM's place.
    assert ours.loc["UT-5", "printed: constrained"] == 10.815 and ours.loc["MiniLM-6", "model"] == "DistilBERT"
    counted = counts(given).set_index(["table", "cells"])
    assert list(counted.loc[("Table 4", "the paper, all cells")])[:3] == [57, 3, 12]  # as counted of the paper
    assert counted.loc[("Table 3", "the paper, all cells"), "ahead"] == 74
    assert list(counted.loc[("Table 3", "ours")])[:4] == [0, 0, 1, 0]
    assert counted.loc[("Table 3", "cells that we lack")].iloc[-1] == "104"


@pytest.mark.parametrize(
    ("data", "sigma", "gamma", "printed"),
    [
        *(
            ("ped2", 0.1794, gamma, near)
            for gamma, near in ((0.9, 0.15), (0.7, 0.09), (0.78, 0.11), (0.85, 0.13), (0, 0))
        ),
        *(("avenue", 0.25335, gamma, near) for gamma, near in ((0.77, 0.15), (0.6, 0.09), (0.66, 0.11), (0.72, 0.13))),
        ("avenue", 0.25335, 0.9, None),  # .205, stronger than all that is printed
    ],
)
def test_a_setting_stands_beside_the_printed_noise_that_is_nearly_as_strong(data, sigma, gamma, printed):
    place = VIDEO | {"data": data, "gamma": gamma}
    given = table([run(place, "erm", 0, [5.0] * 3, sigma=sigma)])
    assert published_place(given, place) == ("UT", 5, {"ped2": "ucsd"}.get(data, data), printed)


def test_numbers_that_are_printed_alike_are_level():
    assert [sign_of(1.4862, given, True) for given in (1.4864, 1.4872, 1.4841)] == ["=", "+", "−"]


def test_the_interval_of_a_share_counts_clusters_that_agree_as_one():
    """Closed forms of Clopper and Pearson's interval: all of n, and 1 of 2."""
    assert share(np.array([True] * 12), [*"aaabbbcccddd"]) == pytest.approx((0.025 ** (1 / 4), 1.0))
    assert share(np.array([False] * 4), [*"aabb"]) == pytest.approx((0.0, 1 - 0.025 ** (1 / 2)))
    # Three clusters of one cell each: the variance between them is that of independent cells but for 3 / 2.
    won = np.array([True, False, True, False, True, False])
    low, high = share(won, [*"aabbcc"])  # half of each cluster: no variance between them, so three cells
    assert low == pytest.approx(1 - high) and low < share(won, [*"abcdef"])[0]
    assert all(math.isnan(end) for end in share(np.array([True]), ["a"]))


def test_fair_gains_are_of_shared_seeds_apart_by_training_noise_and_without_the_sixth_seed():
    rows = [run(TEXT, "erm", seed, [0.8, 0.8, 0.4]) for seed in range(3)]
    rows += [run(TEXT, "algorithm-1", seed, [0.8, 0.88, 0.6]) for seed in (1, 2, 3)]
    rows += [run(TEXT, arm, 5, [0.1] * 3, "mechanism") for arm in ("erm", "algorithm-1")]
    (row,) = fairly(table(rows)).to_dict("records")
    # Areas: .8 + .6 = 1.4 against .84 + .74 = 1.58; up to γ = 1 .8 against .84; at 2 alone .4 against .6.
    gains = [row[scope].value for scope in ("all noise", "up to γ_train", "beyond")]
    assert gains == pytest.approx([100 * (1.58 / 1.4 - 1), 5.0, 50.0])
    assert (row["seeds of both"], row["test groups"]) == ("2 of 4", 20)
    assert (row["plain"], row["constrained"], row["Σλ at the end"]) == ("1.4", "1.58", 0.75)
    assert row["learning rates"] == "0.001"
    assert (row["α"], row["η_λ"], row["holds"]) == ("0.1", "0.5", "2 of 3")
    at_most = [each | {"gamma": 2.0} for each in rows if each["panel"] == "robustness"]
    assert str(fairly(table(at_most)).beyond[0]) == "–"  # no test noise is above that of training


def test_dust_is_compared_with_both_forms_of_plain_training_the_papers_pair_first():
    place = VIDEO | {"model": "DUST"}
    rows = [run(place | {"form": form}, "erm", 0, [value] * 3) for form, value in (("untied", 10.0), ("tied", 5.0))]
    rows.append(run(place, "algorithm-1", 0, [8.0] * 3))
    made = fairly(table(rows))
    assert list(made["against plain"]) == ["tied", "untied"]
    assert [gain.value for gain in made["all noise"]] == pytest.approx([-60.0, 20.0])
    assert list(protocol(table(rows)).plain) == [5.0]


def test_the_mechanism_pairs_replays_with_the_sixth_seed_too_and_counts_what_is_missing():
    rows = [
        run(TEXT, arm, seed, [value + 0.0001 * (seed - 3)] * 3, "mechanism" if seed == 5 else "robustness")
        for arm, value in (("erm", 0.5), ("algorithm-1", 0.6))
        for seed in range(6)
    ]
    rows += [run(TEXT, "replayed", seed, [0.6 + 0.0001 * (seed - 3)] * 3, "mechanism") for seed in range(1, 6)]
    rows += [run(TEXT, "algorithm-1", 0, [0.55] * 3, "mechanism", "alpha=0.4")]
    made = mechanism(table(rows)).set_index("method")
    replayed = made.loc["weights of seed 0, replayed"]
    assert replayed["against plain training, all noise"].seeds == 5
    assert replayed["against plain training, all noise"].value == pytest.approx(20)
    assert replayed["against the chosen constraints, beyond"].value == pytest.approx(0)
    alone = made.loc["constrained, α = .4", "against plain training, all noise"]
    assert alone.value == pytest.approx(100 * (0.55 / 0.4997 - 1))
    told = made["as good as the chosen constraints"]
    assert list(told[["weights of seed 0, replayed", "plain training", "uniform weights"]]) == ["yes", "no", "–"]
    level = [row | {"values": [0.6] * 3, "number": 1.2, "scores": [[0.6] * 20] * 3} for row in rows]
    told = mechanism(table(level)).set_index("method")["as good as the chosen constraints"]
    assert list(told[["weights of seed 0, replayed", "uniform weights"]]) == ["nothing to explain", "–"]
    main = [row for row in rows if row["panel"] == "robustness"]
    assert list(made.loc["uniform weights", ["seeds", "number"]]) == [0, "–"] and mechanism(table(main)).empty


def test_the_mechanism_of_each_setting_stands_by_itself():
    rows = [run(TEXT, "linear", 0, [0.5] * 3, "mechanism"), run(TEXT, "erm", 0, [0.4] * 3)]
    for data, value in (("ped2", 10.0), ("avenue", 8.0)):
        place = VIDEO | {"data": data}
        rows += [run(place, "erm", seed, [10.0] * 3) for seed in range(2)]
        rows += [run(place, "linear", seed, [value] * 3, "mechanism") for seed in range(2)]
    made = mechanism(table(rows)).set_index(["data", "method"])["against plain training, all noise"]
    gains = {data: made[data, "weights l/L"].value for data in (TEXT["data"], "ped2", "avenue")}
    assert gains == pytest.approx({TEXT["data"]: 25, "ped2": 0, "avenue": 20})
    assert "their mean, constant" in made[TEXT["data"]].index and "their mean, constant" not in made["ped2"].index


@pytest.mark.parametrize(("mean", "deviation", "level"), [(1.0, 1.0, 0.05), (0.2, 1.0, 0.05 / 6), (1.0, 2.0, 0.05 / 6)])
def test_the_seeds_that_would_decide_are_those_of_a_t_test_with_the_same_mean_and_spread(mean, deviation, level):
    needed = seeds_that_decide(mean, {"seeds": (deviation**2 / 5, 4)}, 5, level)

    def p(count):
        sample = np.arange(count, dtype=float)
        return ttest_1samp(mean + deviation * (sample - sample.mean()) / sample.std(ddof=1), 0).pvalue

    assert p(needed) < level <= p(needed - 1)


def test_no_number_of_seeds_makes_up_for_too_few_test_samples():
    assert seeds_that_decide(1.0, {"seeds": (1.0, 4), "groups": (4.0, 39)}, 5, 0.05) == math.inf
    assert seeds_that_decide(1.0, {"seeds": (1.0, 4), "groups": (0.1, 39)}, 5, 0.05) > 5
    assert seeds_that_decide(0.01, {"seeds": (1.0, 4)}, 5, 0.05) is None  # more than are considered
    assert seeds_that_decide(1.0, {"groups": (0.1, 39)}, 1, 0.05) is None


def test_primaries_say_what_is_decided_open_or_not_run():
    draw = np.random.default_rng(0).normal(0, 0.001, 5)
    rows = [run(TEXT, "erm", seed, [0.5] * 3) for seed in range(5)]
    rows += [run(TEXT, "algorithm-1", seed, [0.55 + draw[seed]] * 3) for seed in range(5)]
    few = run(VIDEO, "erm", 0, [5.0] * 3) | {"counts": [1] * 7, "scores": [[25.0] * 7] * 3}
    rows += [few | {"seed": seed} for seed in range(2)]
    rows += [few | {"seed": seed, "arm": "algorithm-1", "number": 4.0 + seed} for seed in range(2)]
    made = methods_page.primaries(table(rows)).set_index("setting")
    sure = made.loc["MiniLM, imdb, γ_train = 1"]
    assert (sure.result, sure["seeds that would decide"], sure.seeds) == ("better", "–", 5)
    alone = ttest_1samp(0.55 + draw, 0.5).pvalue
    assert float(sure["p (Holm)"]) == pytest.approx(6 * alone, rel=0.05)  # the smallest of six
    video = made.loc["UT, ped2, γ_train = 0.9"]
    assert video.result == "undecided: 7 groups of test samples, of 12 that are needed" and video["p (Holm)"] == "–"
    assert set(made.result.iloc[[1, 2, 4, 5]]) == {"no seed of both is there"}
    single = methods_page.primaries(table([row for row in rows if row["seed"] == 0])).iloc[0]
    assert (single.result, single["p (Holm)"]) == ("undecided: one seed", "–")  # whatever its test samples say
    told = [row["seeds that would decide"] for row in (video, single)]
    assert told == ["no number: it needs 12 groups", "not known from one seed"]
    gone = [run(TEXT, "algorithm-1", seed, [0.5] * 3) | {"diverged": seed == 0} for seed in range(5)]
    assert methods_page.primaries(table([*rows[:5], *gone])).result[0] == "undecided: diverged"


def test_an_ablations_line_is_the_mean_over_the_seeds_that_all_its_values_have():
    rows = []
    for variant, alpha, values in (("", 0.1, (0.5, 0.7, 0.1)), ("alpha=0.4", 0.4, (0.6, 0.8))):
        for seed, value in enumerate(values):
            more = {"settings": {"alpha": alpha}}
            rows.append(run(TEXT, "algorithm-1", seed, [value] * 3, variant=variant, **more))
    figure = figure_5(table(rows))
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_allclose(line.get_xydata(), [[0.1, 0.6], [0.4, 0.7]])
    assert figure.axes[0].get_title().endswith("2 seeds") and seeds_of(pd.DataFrame({"seed": [3, 3]})) == "one seed"
    with pytest.raises(NotRunError, match="two values"):
        figure_5(table(rows[:3]))


def test_a_page_is_made_of_the_rows_that_are_there_and_counts_the_others(tmp_path):
    rows = [run(TEXT, arm, seed, [0.5, 0.6, 0.7]) for arm in ("erm", "algorithm-1") for seed in range(2)]
    losses = {"losses": {"1": [0.7] * 7}, "metrics": [0.5] * 7}
    planned = cells(SCALES["methods"], {})[0].name
    rows = [row | losses for row in rows]
    rows[0]["name"] = planned
    given = table(rows)
    html = page.write(given, tmp_path / "drawn").read_text("utf-8")
    counted = done(given)
    assert counted.done.sum() == 1 and (counted.planned - counted.done == counted.missing).all()
    assert {path.stem for path in (tmp_path / "drawn" / "tables").glob("*.csv")} == set(methods_page.TABLES)
    assert "figure-1.png" in html and "it needs cells of depth" in html and "DINOv2" in html
    nothing = replace(given, rows=table([]).rows)
    page.write(nothing, tmp_path / "none")
    assert done(nothing).done.sum() == 0 and len(fairly(nothing)) == 0
