"""The numbers that a page opens with, computed again from the runs' sums by group."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from descend.report import RunView, figures, group_runs, write_page
from descend.report.answer import answer
from descend.report.frames import Frames, embed
from descend.report.headline import evaluated_differently, headline
from descend.report.intervals import GroupScores, Jackknife
from descend.report.opening import strip
from tests.support.pages import NOISE, classifier, fake_run

GROUPS = 24
LAYERS = (1, 3, 7)
BASE = np.linspace(0.5, 0.9, 8)[:, None] + 0.1 * np.random.default_rng(0).normal(
    size=GROUPS
)  # hard groups are hard to all


def means(seed: int, better: float = 0.0) -> np.ndarray:
    """A score at each layer and group, (8, GROUPS)."""
    return BASE + better + 0.01 * np.random.default_rng(seed).normal(size=(8, GROUPS))


def evaluated(
    folder: Path, method: str, scores: np.ndarray | None, *, size: int | list[int] = 5, root: bool = False, **entries
) -> Path:
    """A run of which each group has ``size`` samples with these mean scores, or the sizes in turn."""
    if scores is not None:
        values = (np.sqrt(scores.mean(1)) if root else scores.mean(1)).tolist()
        entries = {"layer_metrics": {"0.15": values}} | entries
    fake_run(folder, method, frames=False, **entries if root else classifier(**entries))
    if scores is not None:
        counts = np.resize(size, scores.shape[1]).tolist()
        sums = (np.array(counts) * scores).tolist()
        layers = {"noise": [0.15], "counts": counts, "losses": [sums], "scores": [sums]}
        content = {"noise": NOISE, "root": root, "counts": counts, "scores": [sums[-1]] * len(NOISE), "layers": layers}
        (folder / "groups.json").write_text(json.dumps(content))
    return folder


def shown(*folders: Path):
    (group,) = group_runs([RunView.read(folder) for folder in folders])
    table, notes = headline(group)
    cells = {
        (name, row.cells[0].text): [(float(cell.text), cell.note) for cell in row.cells[1:]]
        for name, rows in table.bodies
        for row in rows
    }
    return table, cells, " ".join(notes)


def ends(note: str) -> list[float]:
    return [float(end) for end in note.split(" to ")]


def students(values: np.ndarray) -> list[float]:
    width = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return [values.mean() - width, values.mean() + width]


def test_every_method_has_its_numbers_and_differences_are_paired(tmp_path: Path) -> None:
    scores = {"erm": means(1), "constrained": means(2, 0.02), "linear": means(3), "layerskip": means(4, -0.02)}
    table, cells, words = shown(*(evaluated(tmp_path / method, method, each) for method, each in scores.items()))
    assert table.heads == ["Accuracy", "Layer 1", "Half depth, layer 3", "Full depth, layer 7"]
    names = {"erm": "ERM", "constrained": "Constrained", "linear": "Linear weights", "layerskip": "LayerSkip"}
    minus = "Minus ERM, on the same samples"
    assert set(cells) == {("", name) for name in names.values()} | {
        (minus, name) for method, name in names.items() if method != "erm"
    }
    for method, name in names.items():
        for layer, (value, note) in zip(LAYERS, cells["", name], strict=True):
            own = scores[method][layer]
            assert value == pytest.approx(own.mean(), abs=6e-4)
            assert ends(note) == pytest.approx(students(own), abs=6e-4)
        if method == "erm":
            continue
        for layer, (value, note) in zip(LAYERS, cells[minus, name], strict=True):
            apart = scores[method][layer] - scores["erm"][layer]
            assert value == pytest.approx(apart.mean(), rel=0.01)
            low, high = students(apart)
            assert ends(note) == pytest.approx([low, high], rel=1e-2, abs=6e-5)
            # Unpaired it would be several times as wide.
            assert high - low < 0.3 * np.subtract(*reversed(ends(cells["", name][0][1])))
    assert "in its own unit; higher is better" in words and "over 24 groups of samples" in words
    assert "%" not in words.replace("95\u00a0%", "") and "point" not in words


def test_groups_of_unequal_sizes_widen_the_intervals_and_blocks_are_named(tmp_path: Path) -> None:
    sizes, scores = np.resize([10, 1, 1, 1], GROUPS), {"erm": means(1), "constrained": means(2, 0.02)}
    folders = [
        evaluated(tmp_path / method, method, each, size=sizes.tolist(), samples=500, groups=500)
        for method, each in scores.items()
    ]
    _, cells, words = shown(*folders)
    shares = sizes / sizes.sum()
    about = np.eye(GROUPS) - np.outer(np.ones(GROUPS), shares)
    matrix = about.T @ np.diag((shares / (1 - shares)) ** 2) @ about
    freedom = np.trace(matrix) ** 2 / np.trace(matrix @ matrix)
    for key, of_group in (
        (("", "ERM"), scores["erm"][7]),
        (("Minus ERM, on the same samples", "Constrained"), scores["constrained"][7] - scores["erm"][7]),
    ):
        mean = shares @ of_group
        error = np.sqrt((1 - 1 / GROUPS) * ((shares * (of_group - mean) / (1 - shares)) ** 2).sum())
        low, high = ends(cells[key][-1][1])
        assert [low, high] == pytest.approx(mean + student.ppf(0.975, freedom) * error * np.array([-1, 1]), rel=1e-2)
    assert freedom < 8 and "In small print: 95\u00a0% intervals over 500 groups of samples, in 24 blocks" in words
    assert "too narrow" not in words
    few = evaluated(tmp_path / "few", "erm", means(1), groups=11)
    assert "With so few groups they may be too narrow." in shown(few)[2]


@pytest.mark.parametrize("sizes", [[4], [10, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("count", [12, 20, 40])
def test_intervals_cover_the_mean_over_samples(count: int, sizes: list[int]) -> None:
    """2,500 draws, each a level of its own, where half of the variance is the groups'."""
    of_group, rng = np.resize(sizes, count), np.random.default_rng(0)
    sums = of_group * rng.normal(size=(2500, count)) + np.sqrt(of_group) * rng.normal(size=(2500, count))
    table = GroupScores(np.arange(2500), False, of_group.astype(float), sums)
    low, high = Jackknife.of([table]).ends()
    assert ((low <= 0) & (high >= 0)).mean() >= 0.94


def test_a_root_is_taken_of_the_mean_over_groups(tmp_path: Path) -> None:
    scores = [np.abs(means(seed)) + 3 for seed in (1, 2)]
    folders = [
        evaluated(tmp_path / str(place), "erm", each, root=True, seed=place) for place, each in enumerate(scores)
    ]
    _, cells, words = shown(folders[0])
    value, note = cells["", "ERM"][-1]
    assert value == pytest.approx(np.sqrt(scores[0][7].mean()), abs=6e-3)
    low, high = np.sqrt(students(scores[0][7]))
    assert ends(note) == pytest.approx([low, high], abs=0.1 * (high - low) + 5e-3)
    assert "lower is better" in words and "of these trained models alone" in words
    _, cells, words = shown(*folders)  # two seeds
    assert "and 2 seeds" in words
    by_seed = np.sqrt([each[7].mean() for each in scores])
    low, high = ends(cells["", "ERM"][-1][1])
    assert cells["", "ERM"][-1][0] == pytest.approx(by_seed.mean(), abs=6e-3) and low < by_seed.min() < high


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({"scores": means(2)[:, 1:]}, "they were evaluated on different samples"),
        ({"scores": means(2), "size": 6}, "they were evaluated on different samples"),
        ({"scores": None}, "not both have the layers’ scores by group of samples; evaluate them again"),
    ],
)
def test_what_can_not_be_paired_has_no_difference_and_says_why(tmp_path: Path, theirs: dict, reason: str) -> None:
    other = evaluated(tmp_path / "constrained", "constrained", **theirs)
    _, cells, words = shown(evaluated(tmp_path / "erm", "erm", means(1)), other)
    assert {name for name, _ in cells} == {""} and reason in words
    three = (evaluated(tmp_path / f"{seed}", "erm", means(seed), seed=seed) for seed in (1, 2))
    _, cells, words = shown(*three, evaluated(tmp_path / "late", "linear", means(5), seed=5))
    assert "they have no seeds in common" in words


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"strength": 0.8}, "bounds, so violations do not compare: strength 0.2 (ERM); strength 0.8 (Constrained)."),
        ({"sigma": 0.1835}, None),  # 2 % more than ERM's: each model learns its embedding
        ({"sigma": 0.5}, "γ stands for different noise: σ_x 0.18 (ERM); σ_x 0.5 (Constrained)."),
        ({"noise": NOISE[:-1], "values": [0.7] * 5}, "The mean over noise is over different levels"),
        ({"samples": 70}, "The number of samples differs: 60 (ERM); 70 (Constrained)."),
        ({"calibrated": True}, "losses do not compare: not calibrated (ERM); calibrated (Constrained)."),
        ({}, None),
    ],
)
def test_runs_that_are_not_evaluated_alike_are_not_compared_silently(tmp_path: Path, entries: dict, words: str) -> None:
    alike = {"strength": 0.2, "samples": 60}
    folders = []
    for method, own in (("erm", {}), ("constrained", entries)):
        known = alike | own
        temperature = 1.3 if known.pop("calibrated", False) else None
        folders.append(evaluated(tmp_path / method, method, means(1), **known))
        summary = json.loads((folders[-1] / "summary.json").read_text())
        (folders[-1] / "summary.json").write_text(json.dumps(summary | {"alpha": None}))
        config = {"recipe": "text-distilbert", "method": method, "seed": 0, "model": "m", "settings": {}}
        (folders[-1] / "config.json").write_text(json.dumps(config | {"training": {}, "temperature": temperature}))
    lines = evaluated_differently(group_runs([RunView.read(folder) for folder in folders])[0])
    assert (len(lines) == 1 and words in lines[0]) if words else lines == []


def test_the_noisy_input_has_its_number_and_its_line(tmp_path: Path) -> None:
    rows = {"erm": [90.0, 60, 50, 45, 40, 30, 20, 9], "constrained": [90.0, 40, 30, 20, 15, 10, 9, 9]}
    runs = [
        fake_run(tmp_path / method, method, frames=False, layer_metrics={"0.15": row}, input_metrics={"0.15": 36.0})
        for method, row in rows.items()
    ]
    (group,) = group_runs([RunView.read(run) for run in runs])
    figure, notes = figures.opening(group), headline(group)[1]
    lines = {trace.name: list(trace.y) for trace in figure.data if trace.showlegend is not False}
    assert list(lines) == ["ERM", "Constrained", "Noisy input"] and lines["Noisy input"] == [36.0] * 8
    assert lines["ERM"] == rows["erm"]
    assert "The noisy input itself: RMSE 36.00." in notes
    # Without the metric along the layers the numbers are losses.
    older = [fake_run(tmp_path / f"older-{method}", method, frames=False) for method in rows]
    (group,) = group_runs([RunView.read(run) for run in older])
    assert headline(group)[0].heads[0] == "Loss"


def test_frames_of_every_method_have_their_numbers(tmp_path: Path) -> None:
    clean = np.full((1, 16, 16), 100, np.uint8)
    noisy = clean[None] + np.uint8(20)
    layers = np.stack([noisy[:, 0] + np.uint8(add) for add in (30, 30, 0, 0, 0, 0, 0, 0)], axis=1)[:, :, None]
    methods = {"erm": "ERM", "linear": "Linear weights", "constrained": "Constrained"}
    runs = [RunView.read(fake_run(tmp_path / method, method, frames=False)) for method in methods]
    (group,) = group_runs(runs)
    pictures = embed({name: Frames([0.15], clean, noisy, layers) for name in methods.values()}, 10**6, 0.15)
    (_, first), (_, second), *_ = strip(group, pictures)
    assert [(still["label"], still["words"]) for still in first] == [(name, "RMSE 50.0") for name in methods.values()]
    assert second[0]["alt"] == "ERM, layer 1, RMSE 50.0"


def needed(layer: int, state: str, **entries: object) -> dict:
    """Summary entries of a run whose layer suffices within 2 points."""
    choice = {"layer": layer, "state": state, "at_most": 3.26, "time": 0.5}
    return {
        "layers_needed": {
            **{"noise": 0.15, "within": {"1": None, "2": layer, "5": layer}},
            **{"chosen": {"1": None, "2": choice, "5": choice}, **entries},
        }
    }


def test_a_section_begins_with_the_layers_that_suffice(tmp_path: Path) -> None:
    held = needed(5, "open", baseline="runs/erm", seed=0) | {"kept": {"0.0": "proven", "0.15": "broken"}}
    runs = [
        fake_run(tmp_path / "erm", "erm", frames=False, **classifier() | needed(3, "proven")),
        fake_run(tmp_path / "linear", "linear", frames=False, seed=1, **classifier() | held),
        fake_run(tmp_path / "older", "linear", frames=False, **classifier()),
    ]
    views = [RunView.read(run) for run in runs]
    (group,) = group_runs(views)
    shown = answer(group)
    assert shown and shown.table and shown.headline == "How many layers suffice"
    assert shown.table.heads[:5] == ["Method", "Within 1 point", "Within 2 points", "Within 5 points", "All layers"]
    rows = {
        (row.cells[0].text, row.cells[0].note): [(cell.text, cell.note) for cell in row.cells[1:]]
        for row in shown.table.bodies[0][1]
    }
    plain, linear = rows["ERM", ""], rows["Linear weights", "seed 1"]
    assert plain[:2] == [("none", ""), ("3\u00a0of\u00a07", "certified, 3.5\u00a0ms")] and plain[4:] == [("–", "")] * 2
    assert linear[1] == ("5\u00a0of\u00a07", "open, up to 3.3\u00a0worse, 5.5\u00a0ms")
    assert linear[3:] == [("7", "7.5\u00a0ms"), ("proven", ""), ("broken", "")]
    assert rows["Linear weights", "seed 0"][:3] == [("–", "")] * 3
    words = " ".join(shown.lines)
    assert "ERM to its own full depth; Linear weights to the full depth of erm of seed 0" in words
    # A single run says it in the headline, and what was not asked for descent is neither feasible nor broken.
    page = write_page([views[0]], tmp_path / "report.html").read_text().split("<script")[0]
    assert "3 of 7 layers suffice within 2 points: certified</h2>" in page and "easible" not in page
    assert 'class="verdict' not in page and "Had to reach" not in page and "Not trained by" in page
    few = [("zero", 0, "proven"), ("refuted", 1, "broken")]
    for name, layer, state in few:
        fake_run(tmp_path / name, "linear", frames=False, **classifier() | needed(layer, state))
    zero, refuted = (answer(group_runs([RunView.read(tmp_path / name)])[0]) for name, *_ in few)
    assert zero and zero.table and zero.headline == "The embedding alone is within 2 points: certified"
    assert refuted and refuted.table and refuted.headline == "1 of 7 layers do not suffice within 2 points"
    cells = [shown.table.bodies[0][1][0].cells[2] for shown in (zero, refuted)]
    assert [(cell.text, cell.note.split(",")[0]) for cell in cells] == [
        ("the embedding alone", "certified"),
        ("1\u00a0of\u00a07", "not enough"),
    ]
    older = answer(group_runs([views[2]])[0])
    assert older and older.headline == "How many layers suffice was not measured"
    asked = [RunView.read(fake_run(tmp_path / "asked", "constrained", frames=False))]
    assert answer(group_runs(asked)[0]) is None
