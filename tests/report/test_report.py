"""What the page says: its numbers, computed again from the runs' sums by group, its verdicts, its names, its errors."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from descend.cli import main
from descend.errors import InputError
from descend.report import figures, write_page
from descend.report.answer import Answer
from descend.report.asked import asked
from descend.report.gains import gain_lines, gains
from descend.report.numbers import evaluated_differently, layers_needed, numbers
from descend.report.runs import METHOD_NAMES, SPARE_STYLES, STYLES, Group, group_runs
from descend.report.samples import embed
from descend.report.terminal import run_lines
from descend.results import Frames, Latency, Results, Summary
from descend.settings import METHODS
from tests.support.pages import NOISE, classifier, fake_run, geometric

GROUPS = 24
BASE = np.linspace(0.5, 0.9, 8)[:, None] + 0.1 * np.random.default_rng(0).normal(
    size=GROUPS
)  # hard groups are hard to all


def means(seed: int, better: float = 0.0) -> np.ndarray:
    """A score at each layer and group, (8, GROUPS)."""
    return BASE + better + 0.01 * np.random.default_rng(seed).normal(size=(8, GROUPS))


def evaluated(
    folder: Path, method: str, scores: np.ndarray | None, *, size: int = 5, root: bool = False, **entries
) -> Path:
    """A run of which each group has ``size`` samples with these mean scores."""
    if scores is not None:
        values = (np.sqrt(scores.mean(1)) if root else scores.mean(1)).tolist()
        entries = {"layer_metrics": {"0.15": values}} | entries
    fake_run(folder, method, frames=False, **entries if root else classifier(**entries))
    if scores is not None:
        counts, sums = [size] * scores.shape[1], (size * scores).tolist()
        layers = {"noise": [0.15], "counts": counts, "losses": [sums], "scores": [sums]}
        content = {"noise": NOISE, "root": root, "counts": counts, "scores": [sums[-1]] * len(NOISE), "layers": layers}
        (folder / "groups.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Results]:
    """Makes an evaluated run that has these entries, without a folder."""
    folder = tmp_path_factory.mktemp("runs")
    known = {each: fake_run(folder / each, each, frames=False) / "summary.json" for each in ("erm", "constrained")}
    contents = {method: json.loads(file.read_text()) for method, file in known.items()}

    def made(method: str = "constrained", **entries) -> Results:
        content = contents.get(method, contents["erm"]) | {"method": method} | entries
        return Results(Summary.model_validate(content))

    return made


def group_of(*runs: Path | Results) -> Group:
    (group,) = group_runs([run if isinstance(run, Results) else Results.read(run) for run in runs])
    return group


def shown(*runs: Path) -> tuple[dict, str]:
    """The cells of the table of numbers by arm and column, and the words below it."""
    table, notes = numbers(group_of(*runs))
    rows = table.rows
    return {row.cells[0].text: dict(zip(table.heads, row.cells, strict=True)) for row in rows}, " ".join(notes)


def page_of(runs: list, folder: Path) -> str:
    """The HTML of a page without its scripts."""
    return write_page(runs, folder / "report.html").read_text().rsplit("<script", 1)[0]


def ends(note: str) -> list[float]:
    return [float(end) for end in note.split(" to ")]


def students(values: np.ndarray) -> list[float]:
    width = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return [values.mean() - width, values.mean() + width]


# --- the answer and its numbers


HALF, FULL, MINUS = "Half depth, layer 3", "Full depth, layer 7", "Minus erm"


def test_every_method_has_its_numbers_and_differences_are_paired(tmp_path: Path) -> None:
    scores = {"erm": means(1), "constrained": means(2, 0.02), "linear": means(3)}
    cells, words = shown(*(evaluated(tmp_path / method, method, each) for method, each in scores.items()))
    for method in scores:
        name = method  # that of its folder
        for head, layer in ((HALF, 3), (FULL, 7)):
            own = scores[method][layer]
            assert float(cells[name][head].text) == pytest.approx(own.mean(), abs=6e-4)
            assert ends(cells[name][head].note) == pytest.approx(students(own), abs=6e-4)
        if method == "erm":
            assert cells[name][MINUS].text == "itself"
            continue
        apart = scores[method][7] - scores["erm"][7]
        assert float(cells[name][MINUS].text) == pytest.approx(apart.mean(), rel=0.01)
        # Unpaired it would be wide.
        assert ends(cells[name][MINUS].note) == pytest.approx(students(apart), rel=1e-2, abs=6e-5)
    assert "higher is better" in words and "over 24 groups of samples" in words and "too narrow" not in words
    few = evaluated(tmp_path / "few", "erm", means(1), groups=11)
    assert "So few groups may make them too narrow." in shown(few)[1]


def test_a_cut_model_stands_beside_the_whole_one(tmp_path: Path) -> None:
    whole, scores = evaluated(tmp_path / "whole", "erm", means(1)), means(2)[:4]
    losses = {str(level): [1.0, 0.8, 0.7, 0.6] for level in NOISE}
    entries = {"model": "DistilBERT-3", "depth": 3, "layer_losses": losses, "limits": [], "bounds": []}
    entries |= {"violations": [], "violation_intervals": [], "certified": [], "probe": {}, "latency": None}
    entries |= {"multipliers": [], "slack": []}
    cut = evaluated(tmp_path / "cut", "linear", scores, **entries)
    cells, _ = shown(whole, cut)
    numbers = cells["cut"]
    assert float(numbers["Full depth"].text) == pytest.approx(scores[-1].mean(), abs=6e-4)
    assert ends(numbers["Minus whole"].note) == pytest.approx(students(scores[-1] - means(1)[-1]), abs=6e-4)
    assert group_of(whole, cut).name.startswith("DistilBERT on ")


def test_a_root_is_taken_of_the_mean_over_groups_and_seeds_widen(tmp_path: Path) -> None:
    scores = [np.abs(means(seed)) + 3 for seed in (1, 2)]
    folders = [evaluated(tmp_path / f"{at}", "erm", each, root=True, seed=at) for at, each in enumerate(scores)]
    cells, words = shown(folders[0])
    low, high = np.sqrt(students(scores[0][7]))
    assert float(cells["0"][FULL].text) == pytest.approx(np.sqrt(scores[0][7].mean()), abs=6e-3)
    assert ends(cells["0"][FULL].note) == pytest.approx([low, high], abs=0.1 * (high - low) + 5e-3)
    assert "lower is better" in words and "of these trained models alone" in words
    cells, words = shown(*folders)
    by_seed = np.sqrt([each[7].mean() for each in scores])
    low, high = ends(cells["ERM"][FULL].note)
    assert "and 2 seeds" in words and "±" in cells["ERM"]["RMSE, mean over noise"].text and low < by_seed.min() < high
    assert float(cells["ERM"][FULL].text) == pytest.approx(by_seed.mean(), abs=6e-3)


@pytest.mark.parametrize("theirs", [{"scores": means(2), "size": 6}, {"scores": None}, {"scores": means(2), "seed": 5}])
def test_what_can_not_be_paired_has_no_difference(tmp_path: Path, theirs: dict) -> None:
    erm = [evaluated(tmp_path / f"{seed}", "erm", means(seed), seed=seed) for seed in (1, 2)]
    cells, words = shown(*erm, evaluated(tmp_path / "other", "linear", **{"seed": 1} | theirs))
    assert cells["Linear weights"]["Minus ERM"] == ("–", "", False) and "– where there are none" in words


@pytest.mark.parametrize(
    ("entries", "calibrated", "words"),
    [
        ({"strength": 0.8}, None, "violations do not compare: strength 0.2 (ERM); strength 0.8 (Constrained)."),
        ({"sigma": 0.1835}, None, None),  # 2 % more than ERM's: each model learns its embedding
        ({"sigma": 0.5}, None, "γ stands for different noise: σ_x is 0.18 to 0.5."),
        ({"noise": NOISE[:-1], "values": [0.7] * 5}, None, "The mean over noise is over different levels"),
        ({"samples": 70}, None, "The number of samples differs: 60 (ERM); 70 (Constrained)."),
        ({}, True, "losses do not compare: not calibrated (ERM); calibrated (Constrained)."),
        ({}, None, None),
    ],
)
def test_runs_that_are_not_evaluated_alike_are_not_compared_silently(view, entries, calibrated, words) -> None:
    alike = {"strength": 0.2, "samples": 60, "alpha": [], "asked": True}
    runs = [view("erm", **alike), view(**alike | entries)]
    for run, known in zip(runs, (False, calibrated), strict=True):
        vars(run)["calibrated"] = known
    lines = evaluated_differently(group_of(*runs))
    assert (len(lines) == 1 and words in lines[0]) if words else lines == []


@pytest.mark.parametrize(("temperature", "calibrated"), [(1.3, True), (1.0, False), (None, False)])
def test_whether_a_run_is_calibrated_is_read_from_its_config(tmp_path: Path, temperature, calibrated) -> None:
    folder = fake_run(tmp_path, "erm", frames=False)
    config = {"recipe": "text-distilbert", "method": "erm", "seed": 0, "model": "m", "settings": {}, "training": {}}
    (folder / "config.json").write_text(json.dumps(config | {"temperature": temperature}))
    assert Results.read(folder).calibrated is calibrated


def needed(layer: int, state: str, **entries: object) -> dict:
    """Summary entries of a run whose layer suffices within 2 points."""
    choice = {"layer": layer, "state": state, "at_most": 3.26, "time": 0.5}
    known = {"noise": 0.15, "within": {"1": None, "2": layer, "5": layer}}
    return {"layers_needed": known | {"chosen": {"1": None, "2": choice, "5": choice}} | entries}


def test_a_section_begins_with_the_layers_that_suffice(view, tmp_path: Path) -> None:
    plain = view("erm", **classifier() | needed(3, "proven"))
    other = needed(5, "open", baseline="runs/plain", seed=7) | {"kept": {"0.0": "proven", "0.15": "broken"}}
    found = layers_needed(group_of(plain, view("linear", **classifier() | other)))
    rows = {row.cells[0].text: [(cell.text, cell.note) for cell in row.cells[1:]] for row in found.tables[0].rows}
    assert found.headline == "Within 2 points: ERM: 3 of 7 layers, certified; Linear weights: 5 of 7 layers, open"
    assert rows["ERM"] == [
        ("no layer on validation data", ""),
        *[("3 of 7 layers", "0.583, 50 % of the full time; certified")] * 2,
    ]
    assert (
        rows["Linear weights"][1][1]
        == "0.643, 50 % of the full time; open, at most 3.3 points worse; certified: layer 5"
    )
    words = " ".join(found.lines)
    assert "<b>ERM.</b> Accuracy at γ = 0.15, held to its own full depth" in words
    assert "held to the full depth of plain of seed 7" in words and "refuted at γ = 0.15" in words
    # A single run says it in the headline; what was not asked for descent is neither feasible nor broken.
    page = page_of([plain], tmp_path)
    assert ">3 of 7 layers suffice within 2 points: certified</h3>" in page and "What was asked" not in page


def test_a_charts_numbers_are_those_of_the_runs(view) -> None:
    runs = [view(method, input_metrics={"0.15": 36.0}) for method in ("erm", "constrained")]
    group, own = group_of(*runs), runs[1].summary
    losses = own.layer_losses[0.15]
    table = figures.losses(group).numbers
    assert table.heads[1:] == ["ERM", "Constrained", "Constrained, had to reach"]
    cells = [[cell.text for cell in row.cells[2:]] for row in table.rows]
    reach = ["–", *(f"{0.9 * loss:.2f}" for loss in losses[:-1])]
    assert cells == [[f"{loss:.2f}", bound] for loss, bound in zip(losses, reach, strict=True)]
    assert figures.robustness(group).numbers.rows[-1].cells[2].text == f"{own.values[-1]:.2f}"
    assert figures.robustness(group_of(view("erm", layer_losses={"0.15": losses}))) is None
    longer = group_of(runs[0], view("constrained", input_metrics={"0.15": 36.0}, past_losses={"0.15": [4.5, 5.5]}))
    assert figures.further(group) is None and figures.further(longer).numbers.heads == ["iteration", "Constrained"]
    ends = [[cell.text for cell in row.cells] for row in figures.further(longer).numbers.rows[-3:]]
    assert ends == [["7", f"{losses[-1]:.2f}"], ["8", "4.50"], ["9", "5.50"]]
    assert figures.quality(group_of(runs[0])).numbers.heads == ["layer (0: before the first block)", "ERM"]
    texts = group_of(*(view(method, **classifier()) for method in ("erm", "constrained")))
    headings = [each.heading for each in figures.samples(texts)]
    assert headings == ["Early exits"]
    assert "The noisy input itself has 36.00." not in shown(*runs)[1]  # those are losses
    rmse = view("erm", layer_metrics={"0.15": [20.0] * 8}, input_metrics={"0.15": 36.0})
    assert "The noisy input itself has 36.00." in shown(rmse)[1]


def test_iterations_are_called_so_and_what_follows_the_trained_ones_is_told(view, tmp_path: Path) -> None:
    rmse = {"layer_metrics": {"0.15": [30.0, 20.0, 9.0, 8.0, 7.5, 7.2, 7.1, 7.0]}, "past_metrics": {"0.15": [7.1, 7.3]}}
    entries = {"unit": "iteration", "past_losses": {"0.15": [4.5, 5.5]}, "state_norms": [0.5] * 8 + [2.0, 6.0]}
    run = view(**rmse, **entries | MISSED | {"violation_intervals": [[0.1, 0.5]] * 7})
    lines = "\n".join(run_lines(run.summary))
    assert "INFEASIBLE: iteration 4 breaks its constraint" in lines and "layer" not in lines
    assert "\nIterations at γ = 0.15:\niteration  0: rmse 30.00" in lines
    assert "Past training: iteration 9 has rmse 7.30, 0.3 worse than iteration 7." in lines
    unbounded = "the state grows without bound: its root mean square is 0.5 at iteration 7 and 6.00 at iteration 9."
    assert f"WARNING: {unbounded}" in lines
    group = group_of(run)
    assert figures.quality(group).numbers.heads[0] == "iteration (0: the start)"
    (norms,) = figures.norms(group)
    assert [row.cells[1].text for row in norms.numbers.rows] == ["0.5"] * 8 + ["2.00", "6.00"]
    assert "Size of the state" in page_of([run], tmp_path)
    # A state that settles, a single layer and a model of layers give no warning and no chart.
    better = view(**rmse | {"past_metrics": {"0.15": [6.9, 6.0]}}, **entries | {"state_norms": [0.5] * 10})
    lines = "\n".join(run_lines(better.summary))
    assert "iteration 9 has rmse 6.00, 1.00 better than iteration 7." in lines and "WARNING" not in lines
    assert figures.norms(group_of(view())) == [] and not any("teration" in line for line in run_lines(view().summary))
    with pytest.raises(ValueError, match="state_norms must have one entry for each of 9 iterations"):
        view(**entries | {"state_norms": [0.5] * 8})


def test_what_does_not_fit_is_thinned_evenly() -> None:
    noisy = np.random.default_rng(0).integers(0, 256, (6, 2, 32, 32), dtype=np.uint8)
    frames = {"ERM": Frames(NOISE, noisy[0], noisy, noisy[:, None].repeat(3, axis=1))}
    whole = embed(frames, 10**9, NOISE[0])
    half = embed(frames, len(json.dumps(whole)) // 3, NOISE[0])
    assert whole["clips"] == 2 and len(whole["noise"]) == 6
    assert half["clips"] == 1 and half["noise"] == [NOISE[0], NOISE[2], NOISE[4], NOISE[5]]
    assert embed(frames, 100, NOISE[0]) is None
    error = noisy[5, 1].astype(float) - noisy[0, 1]
    assert whole["panels"][2]["rmse"][5][2][1] == pytest.approx(np.sqrt(np.mean(error**2)), abs=0.01)


def test_bare_summaries_are_enough(view, tmp_path: Path) -> None:
    content = view().summary.content()
    required = (key for key, field in Summary.model_fields.items() if field.is_required())
    bare = {key: content[key] for key in required} | {"layer_losses": {0.15: content["layer_losses"][0.15]}}
    page = page_of([Results(Summary.model_validate(bare))], tmp_path)
    text = re.sub(r"<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert content["model"] in text and f"{content['layer_losses'][0.15][-1]:.2f}" in text
    assert not re.search(r"\b(nan|None|inf)\b", text)


# --- what was asked


def test_a_model_that_is_worse_than_its_input_is_not_called_good(view) -> None:
    def said(given: float, **entries):
        rows = {"layer_metrics": {"0.15": [20.0] * 7 + [18.7]}, "input_metrics": {"0.15": given}}
        return asked(group_of(view(**rows, **entries)))

    good, bad = said(36.0), said(15.2)
    assert (good.status, good.mark) == ("holds", "✓") and good.advice.startswith("Nothing: ")
    line = "RMSE of the output at the training noise 18.70, of the noisy input 15.20."
    assert (bad.status, bad.headline, bad.lines[-1]) == ("open", good.headline, line)
    broken = said(15.2, feasible=False, violation_intervals=[[0.01, 0.5]] * 7)
    assert broken.status == "broken" and broken.lines[-1] == line and "best_feasible" in broken.advice


def test_a_table_has_what_each_layer_had_to_reach_and_what_is_certain(view) -> None:
    box = asked(group_of(view(**geometric(violated=[3]))))
    rows = [[cell.text for cell in row.cells] for row in box.tables[0].rows]
    assert rows[0][2:] == ["–", "–", "54.7%", "–"] and rows[1][2] == "5.50" and rows[3][4] == "not certain"
    assert [row.cells[3].strong for row in box.tables[0].rows] == [False, False, True, *[False] * 4]
    assert any("layer 1 by 54.7%" in line for line in box.lines)
    low, high = ends(box.tables[0].rows[1].cells[3].note)
    assert high - low == pytest.approx(0.2, abs=0.02)
    assert asked(group_of(view(groups=3))).tables[0].rows[1].cells[3].note == ""


@pytest.mark.parametrize(("settings", "first"), [({}, 0), ({}, 1), ({"cap_layer": 1}, 0)])
def test_the_cap_is_a_bound_like_the_others(view, settings, first) -> None:
    """In the table on the row of the layer that it is on, in the figure a bar there."""
    cap = {"cap": 9.0, "cap_violation": 0.3, "cap_interval": [0.1, 0.5], "cap_multiplier": 0.25, "first_layer": first}
    known = geometric(violated=[0], multipliers=[0.0] * 7, **cap)
    group = group_of(view(**known, **({"settings": settings} if settings else {})))
    first = settings.get("cap_layer", first)
    row = asked(group).tables[0].rows[0]
    assert [row.cells[place].text for place in (0, 2, 3, 5)] == [f"Layer {first}", "9.00", "0.3", "0.25"]
    assert row.cells[3].strong and ends(row.cells[3].note) == [0.1, 0.5]
    numbers_of = figures.losses(group).numbers
    reached = numbers_of.heads.index(next(head for head in numbers_of.heads if head.endswith("had to reach")))
    assert numbers_of.rows[first].cells[reached].text == "9.00"


MISSED = {"feasible": False, "certain": False, "violated": [4], "violations": [0, 0, 0, 0.4, 0, 0, 0]}
MISSED |= {"bounds": [3.6] * 7}
FEW = {"groups": 3, "certain": False, "certified": [math.nan] * 7}
VERDICTS: dict[str, dict] = {
    "holds": {"feasible": True, "certain": True},
    "undecided": {"feasible": True, "certain": False},
    "by chance": MISSED | {"violation_intervals": [[-0.1, 0.5]] * 7},
    "cap by chance": MISSED | {"violated": [0], "cap": 3.0, "cap_violation": 0.3, "cap_interval": [-0.1, 0.5]},
    "broken": MISSED | {"violation_intervals": [[0.1, 0.5]] * 7},
    "cap broken": MISSED | {"violated": [0], "cap": 3.0, "cap_violation": 0.3, "cap_interval": [0.1, 0.5]},
    "unnamed": {"feasible": False, "certain": False},
    "few": FEW | {"violation_intervals": [[math.nan, math.nan]] * 7},
    "few, missed": FEW | MISSED | {"violation_intervals": [[-0.1, 0.5]] * 7},
    "few, older": FEW | MISSED | {"violation_intervals": [[0.1, 0.5]] * 7},  # few groups forbid its interval
    "few, not finite": FEW | MISSED | {"violations": [0, 0, 0, None, 0, 0, 0]},
}
LOOKS = {
    "holds": ("✓", "Feasible"),
    "undecided": ("≈", "Feasible as far as the data can tell"),
    "open": ("–", "Open"),
    "missed": ("≈", "Open"),
    "not_significant": ("≈", "Infeasible, but not proven"),
    "broken": ("✕", "Infeasible"),
}


def violated(entries: dict) -> bool:
    """Whether a number says by how much a constraint is missed."""
    return bool(entries.get("violated")) and None not in entries.get("violations", [])


@pytest.mark.parametrize(
    ("runs_are", "status"),
    [
        (["holds"], "holds"),
        (["holds", "holds"], "holds"),
        (["undecided"], "undecided"),
        (["holds", "undecided"], "undecided"),
        (["by chance"], "not_significant"),
        (["cap by chance"], "not_significant"),
        (["by chance", "cap by chance"], "not_significant"),
        (["by chance", "broken"], "broken"),
        (["broken"], "broken"),
        (["cap broken"], "broken"),
        (["unnamed"], "broken"),
        (["few"], "open"),
        (["few, missed"], "missed"),
        (["few, older"], "missed"),
        (["few, not finite"], "broken"),
    ],
)
def test_the_page_claims_no_more_than_the_data(view, runs_are: list[str], status: str) -> None:
    box = asked(group_of(*(view(**VERDICTS[name], seed=seed) for seed, name in enumerate(runs_are))))
    mark, headline = LOOKS[status]
    # Misses are said whatever the number of groups is, and the box is not that of an open verdict.
    assert box.status == ("not_significant" if status == "missed" else status)
    pattern = r"(?:(\d of [78] constraints missed)(, by \d+ %)?: )?(.*?)(?:, in \d of 2 runs)?"
    missed, by, said = re.fullmatch(pattern, box.headline).groups()
    assert (box.mark, said.lower()) == (mark, headline.lower()) and (missed or runs_are == ["unnamed"])
    assert bool(by) == any(violated(VERDICTS[name]) for name in runs_are)
    assert ("missed, by" in " ".join(box.lines)) == any(violated(VERDICTS[name]) for name in runs_are)
    assert (" of 2 runs" in box.headline) == (len(runs_are) == 2)
    assert ("evaluate on more data first" in box.advice) == (status == "not_significant")
    assert ("at least 12 groups" in box.advice) == (status in ("open", "missed"))
    assert ("by a lower --alpha" in box.advice) == (status not in ("holds", "open"))


def test_layers_whose_mean_loss_rises_are_named_though_none_is_missed(view) -> None:
    losses = [4.0, 3.0, 3.01, 2.0, 2.0, 1.5, 1.6, 1.0]
    told = Answer.of(view(layer_losses={str(level): losses for level in NOISE}).summary).verdict
    assert "The mean loss rises at layers 2, 6." in told
    assert "rises" not in Answer.of(view().summary).verdict


def test_an_open_verdict_says_what_is_missed_and_what_to_lower(view) -> None:
    """Six constraints missed by 14 to 21 % are no white box, however few the groups are."""
    missed = {"violations": [-0.1, *[0.14] * 5, 0.21], "bounds": [1.0] * 7, "violated": [2, 3, 4, 5, 6, 7]}
    box = asked(group_of(view(**FEW | {"feasible": False} | missed)))
    assert (box.status, box.headline) == ("not_significant", "6 of 7 constraints missed, by 14 to 21 %: open")
    assert "at least 12 groups" in box.advice and "by a lower --alpha" in box.advice


@pytest.mark.parametrize(
    ("asks", "advice"),
    [
        ({"alpha": [], "strength": 0.8}, "a lower --strength"),
        ({"alpha": [], "within": 0.0}, "a higher --within"),
        ({"alpha": [], "after": 2}, "a later layer in --after"),
        ({"alpha": []}, "weaker constraints"),
    ],
)
def test_the_advice_names_the_setting_that_a_run_has(view, asks, advice) -> None:
    box = asked(group_of(view(**VERDICTS["broken"] | {"strength": None} | asks)))
    assert f"ask for less by {advice}." in box.advice


def test_a_difference_is_of_the_same_samples_cut_alike(tmp_path: Path) -> None:
    """Of as many samples, one of which was cut otherwise, there is none."""
    plain, *others = (
        Results.read(evaluated(tmp_path / name, method, means(0)))
        for name, method in (("plain", "erm"), ("alike", "linear"), ("other", "linear"))
    )
    runs = [
        replace(run, groups=run.groups and run.groups.model_copy(update={"fingerprint": mark}))
        for run, mark in zip((plain, *others), "aab", strict=True)
    ]
    differences = [numbers(group_of(runs[0], run))[0].rows[1].cells[3].text for run in runs[1:]]
    assert differences == ["0.00", "–"]


def test_windows_of_one_clip_tell_no_spread(tmp_path: Path) -> None:
    runs = [
        Results.read(evaluated(tmp_path / name, name, means(0, better)))
        for name, better in (("erm", 0.0), ("linear", 0.1))
    ]
    ends = {}
    for single in (False, True):
        known = [
            replace(run, groups=run.groups and run.groups.model_copy(update={"fingerprint": "a", "single": single}))
            for run in runs
        ]
        found = gains(group_of(*known))
        ends[single] = [math.isnan(end) for each in (found[0].over, *found[0].levels.values()) for end in each[1:4]]
        (line,) = gain_lines(found)
        assert ("% (95 %: " in line, "; 1 group of test samples, " in line) == (not single, single)
    assert all(ends[True]) and not any(ends[False])


def test_networks_of_one_shape_have_one_clock(view) -> None:
    """Also those of one's own, of which no settings are known: the hash of their weights says so."""

    def timed(milliseconds: float, network: str | None) -> Results:
        latency = {"device": "CPU", "batch_size": 16, "network": network, "milliseconds": [milliseconds] * 8}
        return view(("erm", "linear", "constrained")[int(10 * milliseconds) % 3], recipe="Digits", latency=latency)

    runs = [timed(0.9, "one"), timed(0.7, "one"), timed(0.5, "another")]
    group = group_of(*runs)
    clocks = {arm.runs[0].summary.latency.network: group.milliseconds(arm)[0] for arm in group.arms}
    assert clocks == {"one": 0.7, "another": 0.5}


def test_each_verdict_is_said_once_and_by_whom(view, tmp_path: Path) -> None:
    holds, fails = {"violated": [], "split": "te&st"}, MISSED | {"violated": [3], "split": "te&st"}
    fails |= {"violation_intervals": [[0.1, 0.5]] * 7}
    entries = {(0.1, 0): holds, (0.1, 1): fails, (0.2, 0): fails}
    page = page_of([view(alpha=[alpha], seed=seed, **each) for (alpha, seed), each in entries.items()], tmp_path)
    assert "<b>Constrained, α = 0.1, seed 0.</b> Feasible: every constraint holds on the te&amp;st data." in page
    words = "INFEASIBLE: layer 3 breaks its constraint on the te&amp;st data."
    assert f"<b>Constrained, α = 0.1, seed 1; Constrained, α = 0.2.</b> {words}" in page and page.count(words) == 1
    alone = page_of([view()], tmp_path)
    assert "Constrained.</b>" not in alone and alone.count("Binding (λ &gt; 0): layers 2, 5.") == 1


# --- which runs share a section and an arm


@pytest.mark.slow
def test_runs_evaluated_on_other_data_or_models_are_kept_apart(view, tmp_path: Path) -> None:
    differing = {
        "": {},
        ", evaluated on the validation split": {"split": "validation"},
        ", best feasible checkpoint": {"checkpoint": "best_feasible"},
        ", evaluated on the tr<i>n split, best feasible checkpoint": {"split": "tr<i>n", "checkpoint": "best_feasible"},
        ", under laplace noise": {"shift": "laplace"},
    }
    names = [f"UT-7 on ped2<b>, trained at γ = 0.15{words}" for words in differing]
    runs = [view(**entries) for entries in differing.values()]
    assert [group.name for group in group_runs(runs)] == names
    page = page_of(runs, tmp_path)
    assert all(f"<h2>{escape(name)}</h2>" in page for name in names)
    assert "5 runs in 5 settings, which are not compared with each other: they differ in split, checkpoint" in page
    page = page_of(runs[1:2], tmp_path)
    assert f'<p class="subtitle">{escape(names[1])}</p>' in page
    # Data of one name are told apart by the noisy input, where it differs.
    runs = [view(input_metrics={"0.15": metric}) for metric in (12.344, 12.3441, 15.0)]
    groups = [(len(group.runs), group.name.removeprefix(names[0])) for group in group_runs(runs)]
    assert groups == [(2, ", where the noisy input has RMSE 12.3"), (1, ", where the noisy input has RMSE 15")]
    assert group_of(runs[2]).name == names[0]


def test_every_method_has_its_own_name_style_and_marker_and_erm_comes_first(view) -> None:
    assert METHODS.keys() < METHOD_NAMES.keys() == STYLES.keys()
    expected = [method for method in METHOD_NAMES if method in METHODS]
    assert expected[0] == "erm" and expected[-1] == "constrained"
    arms = group_of(*(view(name, settings={}) for name in reversed(METHODS))).arms
    found = [(arm.summary.method, arm.label, arm.style) for arm in arms]
    assert found == [(method, METHOD_NAMES[method], STYLES[method]) for method in expected]
    named = [style for method, style in STYLES.items() if method != "plain"]
    markers = [style.marker for style in (*named, *SPARE_STYLES)]
    assert len(set(markers)) == len(markers)


def test_only_seeds_share_an_arm_and_labels_say_what_differs(view) -> None:
    settings = [(0, "ratio"), (0, "ratio"), (1, "ratio"), (1, "difference")]
    entries = [{"settings": {"first_layer": layer, "form": form}} for layer, form in settings]
    runs = [view(**each, seed=seed) for seed, each in enumerate(entries)] + [view(**entries[0], alpha=[0.2])]
    assert {arm.label: [run.summary.seed for run in arm.runs] for arm in group_of(*runs).arms} == {
        "Constrained, α = 0.1, first layer 0, form ratio": [0, 1],
        "Constrained, α = 0.1, first layer 1, form ratio": [2],
        "Constrained, α = 0.1, first layer 1, form difference": [3],
        "Constrained, α = 0.2, first layer 0, form ratio": [0],
    }
    assert len(group_of(view(alpha=[0.3, 0.2, 0.1]), view(alpha=[0.3, 0.1, 0.1])).arms) == 2


def test_a_multiplier_of_a_layer_that_the_run_has_not_is_refused(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", "erm", frames=False)
    row = {"run": "a", "step": 1, "split": "train", "layer": 8, "noise": 0.1, "metric": "multiplier", "value": 1}
    (folder / "records.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="layers 0 to 7"):
        assert Results.read(folder).history


def test_a_comparison_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    runs = [str(fake_run(tmp_path / each, each, frames=False)) for each in ("erm", "constrained")]
    assert main(["compare", *runs, "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "report.html").read_text()
    assert "constrained" in page and str(tmp_path) not in page and str(Path.home()) not in page


def test_tied_networks_of_two_depths_are_timed_apart(view) -> None:
    """They have the same weights, and so the same hash."""
    runs = []
    for depth in (3, 6):
        timed = Latency(device="CPU", batch_size=4, network="ab", milliseconds=[float(depth)] * (depth + 1))
        summary = view(settings={"depth": depth}).summary
        runs.append(Results(summary.model_copy(update={"depth": depth, "latency": timed})))
    group = group_of(*runs)
    assert [group.milliseconds(arm) for arm in group.arms] == [[3.0] * 4, [6.0] * 7]
