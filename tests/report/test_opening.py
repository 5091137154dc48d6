"""The sentence that a page opens with says what its numbers say, and no more."""

from pathlib import Path

import numpy as np
import pytest

from descend.report import RunView, group_runs
from descend.report.frames import Frames, embed
from descend.report.opening import opening
from descend.report.sentence import Curve, Scale, sentence
from tests.support.pages import classifier, fake_run

RMSE, ACCURACY = Scale("RMSE", higher=False), Scale("Accuracy", higher=True)
FALLING = [90.0, 60.0, 45.0, 20.0, 9.0]
EARLY = [90.0, 20.0, 15.0, 10.0, 9.1]


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("arms")
    runs = [fake_run(root / method, method, frames=False) for method in ("erm", "constrained")]
    (group,) = group_runs([RunView.read(run) for run in runs])
    return group.arms


def said(arms, ours: list[float], plain: list[float] | None, scale: Scale = RMSE) -> str:
    baseline = Curve(arms[0], plain, "plain training") if plain else None
    return sentence(Curve(arms[1], ours, "constrained training"), baseline, scale)


def test_a_gain_is_told_with_its_numbers(arms) -> None:
    assert said(arms, EARLY, FALLING) == (
        "Half of the layers already give RMSE 15.0 with constrained training; plain training needs all 4 layers for "
        "that (45.0 at half depth); at full depth constrained training is 1.1% worse (9.10 against 9.00)."
    )
    earlier = said(arms, EARLY, [90.0, 60.0, 45.0, 14.0, 9.0])
    assert "plain training needs 3 layers for that" in earlier
    never = said(arms, EARLY, [90.0, 60.0, 45.0, 20.0, 16.0])
    assert "reaches that at no layer" in never and "at full depth constrained training is 43% better (9.10" in never
    odd = said(arms, EARLY[:4], FALLING[:4])
    assert odd.startswith("1 of 3 layers already gives RMSE 20.0")


def test_no_gain_and_a_loss_are_told_as_such(arms) -> None:
    assert "gains nothing along the layers" in said(arms, FALLING, FALLING)
    worse = said(arms, FALLING, EARLY)
    assert worse.startswith("Constrained training is worse along the layers") and "is 1.1% better (9.00" in worse
    costly = said(arms, [90.0, 20.0, 15.0, 13.0, 12.0], FALLING)
    assert "at full depth constrained training is 33% worse (12.0 against 9.00)" in costly
    assert "diverged" in said(arms, [*EARLY[:4], float("nan")], FALLING)
    assert said(arms, [9.0, 5.0], [9.0, 7.0]) == "At full depth constrained training is 29% better (5.00 against 7.00)."


def test_a_single_run_has_its_own_sentence(arms) -> None:
    assert said(arms, FALLING, None).startswith("This model needs all of its 4 layers")
    assert said(arms, [90.0, 10.0, 9.2, 9.1, 9.0], None).startswith("The first 2 of 4 layers already give RMSE 9.20")
    assert said(arms, [90.0, 20.0, 15.0, 9.2, 9.0], None).startswith("3 of 4 layers give RMSE 9.20")
    assert said(arms, [9.0, 9.0, 9.0, 9.0, 9.0], None).startswith("The layers improve nothing")


def test_an_accuracy_within_its_sampling_error_gains_nothing(arms) -> None:
    ours, plain = [0.5, 0.52, 0.53, 0.53, 0.53], [0.5, 0.5, 0.5, 0.5, 0.52]
    assert "already give accuracy 0.530" in said(arms, ours, plain, ACCURACY)
    assert "gains nothing" in said(arms, ours, plain, Scale("Accuracy", higher=True, samples=250))


@pytest.mark.parametrize(
    ("ours", "plain", "words"),
    [
        (0.01319, 0.01274, "constrained training is 3.5% worse (0.0132 against 0.0127)."),
        (8.93, 8.90, "the two differ by 0.3% (8.93 against 8.90)."),
        (8.9001, 8.9, "both give RMSE 8.90."),
        (0.0, 0.0, "both give RMSE 0.00."),
    ],
)
def test_full_depth_is_compared_in_per_cent(arms, ours: float, plain: float, words: str) -> None:
    assert said(arms, [90.0, 20.0, ours], [90.0, 60.0, plain]).endswith(f"at full depth {words}")


@pytest.mark.parametrize(
    ("ours", "plain", "samples", "words"),
    [
        (0.53, 0.52, None, "the two differ by 1 point (0.530 against 0.520)."),
        (0.55, 0.52, 9000, "x is 3 points better (0.550 against 0.520)."),
        (
            0.5,
            0.52,
            250,
            "x is 2 points worse (0.500 against 0.520), which may be chance on 250 samples.",
        ),
    ],
)
def test_accuracies_are_compared_in_points(arms, ours: float, plain: float, samples: int | None, words: str) -> None:
    scale = Scale("Accuracy", higher=True, samples=samples)
    curves = Curve(arms[1], [0.3, 0.5, ours], "x"), Curve(arms[0], [0.3, 0.5, plain], "y")
    assert sentence(*curves, scale).endswith(f"at full depth {words}")


def test_a_difference_that_seeds_explain_may_be_chance(arms) -> None:
    def words(ours: list[float], plain: list[float]) -> str:
        ends = [(values, sum(values) / len(values)) for values in (ours, plain)]
        curves = [Curve(arm, [90.0, 20.0, mean], "x", values) for arm, (values, mean) in zip(arms, ends, strict=True)]
        return sentence(*curves, RMSE)

    assert words([9.0, 10.0, 11.0], [9.0, 9.5, 10.3]).endswith("), which may be chance over seeds.")
    assert words([10.0, 10.1, 10.2], [9.0, 9.1, 9.05]).endswith(").")
    assert words([10.0, 10.0], [9.0, 9.0]).endswith(").") and words([10.0], [9.0]).endswith(").")


def test_one_layer_that_is_better_than_all_is_told_as_such(arms) -> None:
    assert said(arms, [90.0, 12.3, 12.6, 12.7], None) == (
        "The first of 3 layers already gives RMSE 12.3, within 5% of all 3 (12.7); the layers after it make it worse."
    )


def test_the_noisy_input_is_beside_the_layers(tmp_path: Path) -> None:
    rows = {"erm": [90.0, 60, 50, 45, 40, 30, 20, 9], "constrained": [90.0, 40, 30, 20, 15, 10, 9, 9]}

    def opened(given: float) -> tuple[str, list[str], list[float]]:
        runs = [
            fake_run(
                tmp_path / method,
                method,
                frames=False,
                layer_metrics={"0.15": row},
                train_value=row[-1],
                input_metrics={"0.15": given},
            )
            for method, row in rows.items()
        ]
        (group,) = group_runs([RunView.read(run) for run in runs])
        view, figure = opening(0, group, None)
        lines = {trace.name: list(trace.y) for trace in figure.data if trace.showlegend is not False}
        return view.sentence, list(lines), lines["Noisy input"]

    words, names, line = opened(36.0)
    assert words.endswith(
        "The noisy input itself has RMSE 36.0; worse than doing nothing: constrained training at layer 1 and plain "
        "training at layers 1 to 4."
    ) or words.endswith("plain training at layers 1 to 4 and constrained training at layer 1.")
    assert names == ["Plain training", "Constrained training", "Noisy input"] and line == [36.0] * 8
    words, _, _ = opened(95.0)
    assert words.endswith(" The noisy input itself has RMSE 95.0.")
    words, _, _ = opened(5.0)
    assert "plain training at every layer" in words


def test_a_picture_that_is_worse_than_its_input_says_so(tmp_path: Path) -> None:
    clean = np.full((1, 16, 16), 100, np.uint8)
    noisy = clean[None] + np.uint8(20)
    layers = np.stack([noisy[:, 0] + np.uint8(add) for add in (30, 30, 0, 0, 0, 0, 0, 0)], axis=1)[:, :, None]
    (group,) = group_runs([RunView.read(fake_run(tmp_path / "run", "constrained", frames=False))])
    pictures = embed({"Constrained": Frames([0.15], clean, noisy, layers)}, 10**6)
    words = [still.words for layer in opening(0, group, pictures)[0].strip for still in layer.stills]
    assert words[:3] == ["RMSE 50.0", "RMSE 50.0, worse than the input", "RMSE 20.0"]


def test_the_plot_has_the_sentences_numbers(tmp_path: Path) -> None:
    rows = {"erm": [0.5, 0.5, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9], "constrained": [0.5, 0.6, 0.7, 0.8, 0.85, 0.88, 0.9, 0.9]}
    runs = [
        fake_run(tmp_path / method, method, frames=False, **classifier(layer_metrics={"0.15": row}))
        for method, row in rows.items()
    ]
    (group,) = group_runs([RunView.read(run) for run in runs])
    view, figure = opening(0, group, None)
    assert view.sentence.startswith("3 of 7 layers already give accuracy 0.800 with constrained training")
    assert "all" not in view.sentence.split(";")[0] and view.strip == []
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == ["Plain training", "Constrained training"]
    numbers = [number for trace in figure.data if trace.text for number in trace.text]
    assert set(numbers) == {"0.800", "0.550", "0.900"}
    # Without the metric along the layers it speaks of the loss.
    older = [fake_run(tmp_path / f"older-{method}", method, frames=False) for method in rows]
    (group,) = group_runs([RunView.read(run) for run in older])
    assert " loss " in opening(0, group, None)[0].sentence


def test_arms_of_one_method_have_names_that_fit_a_sentence(tmp_path: Path) -> None:
    long = {f"setting_{place}": "a value of its own" for place in range(9)}
    folders = [fake_run(tmp_path / f"{alpha}", "constrained", frames=False, alpha=alpha) for alpha in (0.1, 0.2)]
    folders.append(fake_run(tmp_path / "erm", "erm", frames=False))
    (group,) = group_runs([RunView.read(folder) for folder in folders])
    view, figure = opening(0, group, None)
    assert "with Constrained, α = 0.1" in view.sentence or "Constrained, α = 0.1 " in view.sentence
    assert "plain training" in view.sentence
    folders.append(fake_run(tmp_path / "long", "constrained", frames=False, settings=long))
    (group,) = group_runs([RunView.read(folder) for folder in folders])
    view, figure = opening(0, group, None)
    assert "onstrained training 1 of 3" in view.sentence and "setting_0" not in view.sentence
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == ["Plain training", *(f"Constrained training {place} of 3" for place in (1, 2, 3))]
