"""The figures, the tables and the errors of the report; `test_report_page` looks at the page itself."""

import json
import math
import re
from dataclasses import replace
from html import escape
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from descend.errors import InputError
from descend.methods import METHODS
from descend.report import RunView, figures, group_runs, write_page
from descend.report.frames import Frames, embed
from descend.report.rendering import environment
from descend.report.runs import METHOD_NAMES, SPARE_STYLES, STYLES
from descend.report.tables import depth_table, runs_tables
from descend.report.verdict import verdict
from descend.results import REQUIRED, Summary
from tests.support.pages import NOISE, classifier, fake_run, geometric


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [fake_run(root / "erm", "erm"), fake_run(root / "constrained", "constrained")]


@pytest.fixture
def summary(runs: list[Path]) -> dict:
    """The content of the constrained run's summary.json."""
    return json.loads((runs[1] / "summary.json").read_text())


def page_of(runs: list, folder: Path) -> str:
    """The HTML of a page without its scripts."""
    return write_page(runs, folder / "report.html").read_text().split("<script")[0]


def test_bare_summaries_are_enough(summary: dict, tmp_path: Path) -> None:
    bare = {key: summary[key] for key in REQUIRED}
    bare["layer_losses"] = {"0.15": summary["layer_losses"]["0.15"]}
    (tmp_path / "summary.json").write_text(json.dumps(bare))
    assert write_page([tmp_path], tmp_path, "Bare") == tmp_path / "report.html"


def test_a_run_that_diverged_is_still_shown(summary: dict, tmp_path: Path) -> None:
    broken = {level: [1.0, *[float("nan")] * 6, float("inf")] for level in summary["layer_losses"]}
    known = {"layer_losses": broken, "violations": [None] * 7, "violation_intervals": [[None, None]] * 7}
    known |= {"mean": float("nan"), "values": [float("nan")] * len(NOISE), "feasible": False}
    nulls = {"layer_losses": {level: [1.0, *[None] * 7] for level in broken}, "mean": None, "train_value": None}
    for entries in ({}, nulls | {"values": [None] * len(NOISE)}):
        (tmp_path / "summary.json").write_text(json.dumps(summary | known | entries))
        page = page_of([tmp_path], tmp_path)
        assert "Not feasible" in page and "diverged" in page


def test_a_model_that_is_worse_than_its_input_is_not_called_good(tmp_path: Path) -> None:
    def shown(given: float, **entries):
        rows = {"layer_metrics": {"0.15": [20.0] * 7 + [18.7]}, "input_metrics": {"0.15": given}}
        run = fake_run(tmp_path / "run", "constrained", frames=False, **rows, **entries)
        return verdict(group_runs([RunView.read(run)]))

    good = shown(36.0)
    assert (good.status, good.mark) == ("holds", "✓") and good.advice.startswith("Nothing: ")
    bad = shown(15.2)
    numbers = "RMSE of the output at the training noise 18.70, of the noisy input itself 15.20."
    assert (bad.status, bad.headline) == ("open", good.headline) and bad.lines[-1] == numbers
    broken = shown(15.2, feasible=False, violation_intervals=[[0.01, 0.5]] * 7)
    assert broken.status == "broken" and broken.lines[-1] == numbers
    assert "best_feasible" in broken.advice


def test_what_does_not_fit_is_thinned_evenly() -> None:
    generator = np.random.default_rng(0)
    noisy = generator.integers(0, 256, (6, 2, 32, 32), dtype=np.uint8)
    frames = Frames(NOISE, noisy[0], noisy, noisy[:, None].repeat(3, axis=1))
    whole = embed({"ERM": frames}, 10**9, NOISE[0])
    half = embed({"ERM": frames}, len(json.dumps(whole)) // 3, NOISE[0])
    assert whole["clips"] == 2 and len(whole["noise"]) == 6
    assert half["clips"] == 1 and half["noise"] == [NOISE[0], NOISE[2], NOISE[4], NOISE[5]]
    assert embed({"ERM": frames}, 100, NOISE[0]) is None
    error = noisy[5, 1].astype(float) - noisy[0, 1]
    assert whole["panels"][2]["rmse"][5][2][1] == pytest.approx(np.sqrt(np.mean(error**2)), abs=0.01)


def test_figures_stand_alone(runs: list[Path]) -> None:
    (group,) = group_runs([RunView.read(folder) for folder in runs])
    erm, constrained = group.runs
    losses = figures.layer_losses(group)
    strongest = losses.frames[-1].data
    assert list(strongest[0].y) == erm.summary.layer_losses[NOISE[-1]]
    assert [frame.name for frame in losses.frames] == [str(level) for level in NOISE]
    limits = strongest[2].y
    assert limits == pytest.approx([0.9 * loss for loss in constrained.summary.layer_losses[NOISE[-1]][:-1]])
    assert list(figures.error_by_noise(group).data[1].y) == constrained.summary.values
    lines = figures.multipliers(constrained).data
    assert [line.name for line in lines] == [str(layer) for layer in range(1, 8)]
    assert len(lines[0].x) <= figures.MOST_POINTS + 1 and lines[0].x[-1] == 1999
    (marks,) = figures.violations(group).data  # nothing was asked of plain training
    assert marks.name == "Constrained" and marks.line.color is None
    broken = replace(constrained, summary=constrained.summary.model_copy(update={"violated": [0, 2]}))
    symbols = figures.violations(*group_runs([broken])).data[0].marker.symbol
    assert [layer for layer, symbol in enumerate(symbols, start=1) if symbol == "x-open"] == [2]


def test_limits_are_those_that_the_run_was_evaluated_by(runs: list[Path], summary: dict, tmp_path: Path) -> None:
    def bars(**entries):
        (run,) = group_runs([RunView(Summary.model_validate(summary | entries))])[0].runs
        traces = figures.layer_losses(*group_runs([run])).data
        return run.summary.layer_losses[0.15], [trace for trace in traces if trace.name == "had to reach"]

    losses, (later,) = bars(limits=[None, None, 0.7, None, 0.8, 0.8, 0.8, 0.5])
    assert list(later.x) == [2, 4, 5, 6, 7]
    assert later.y[0] == pytest.approx(0.7 * losses[1]) and later.y[-1] == pytest.approx(0.5 * losses[6])
    assert bars(limits=None)[1] == bars(limits=[None] * 8)[1] == []
    del summary["limits"]
    assert bars()[1] == []
    words, others = "must land on or below its short bar", "Without α the bars are shown at the training noise alone."
    page = page_of(runs, tmp_path)
    assert words in page and others not in page
    assert words not in page_of([RunView(Summary.model_validate(summary))], tmp_path)
    page = page_of([RunView(Summary.model_validate(summary | geometric()))], tmp_path)
    assert words in page and others in page


def test_each_metric_has_a_table_and_a_section_of_its_own(runs: list[Path], tmp_path: Path) -> None:
    same = {"dataset": "ped2<b>", "model": "UT-7"}
    accuracy = fake_run(tmp_path / "accuracy", "erm", frames=False, **classifier(**same))
    views = [RunView.read(folder) for folder in (runs[0], accuracy, runs[1])]
    groups = group_runs(views)
    assert [(group.metric, len(group.runs)) for group in groups] == [("RMSE", 2), ("Accuracy", 1)]
    tables = runs_tables(groups)
    assert [table.heads[1] for table in tables] == ["RMSE, mean over noise", "Accuracy, mean over noise"]
    assert [sum(len(rows) for _, rows in table.bodies) for table in tables] == [2, 1]
    page = page_of(views, tmp_path)
    assert page.count("mean over noise</th>") == 2 and page.count('data-section="') == 2


def rings(figure) -> list:
    return [trace for trace in figure.data if trace.mode == "markers+text"]


def test_quality_against_depth_marks_the_first_layers_close_to_full_depth(tmp_path: Path) -> None:
    rows = {"0.15": [30.0, 20.0, 12.0, 11.0, 10.4, 10.15, 10.05, 10.0], "0.6": [30.0, 9.0, *[10.0] * 6]}
    timed = {"device": "CPU", "batch_size": 8, "milliseconds": [1.0 + layer for layer in range(8)]}
    folders = [
        fake_run(tmp_path / "erm", "erm", frames=False, layer_metrics=rows, latency=timed),
        fake_run(
            tmp_path / "other", "constrained", frames=False, layer_metrics=rows, latency={**timed, "device": "GPU"}
        ),
        fake_run(tmp_path / "bare", "linear", frames=False),  # neither metrics nor times
    ]
    (group,) = group_runs([RunView.read(folder) for folder in folders])
    depth, when = figures.by_depth(group), figures.by_time(group)
    assert depth.layout.yaxis.type == "log"
    near = ([6, 5, 4], ["1", "2", "5"])
    assert [(list(ring.x), list(ring.text)) for ring in rings(depth)] == [near, ([], []), near]
    assert [(list(ring.x), list(ring.y)) for ring in rings(when)] == [([7.0, 6.0, 5.0], [10.05, 10.15, 10.4])] * 2
    at = next(frame for frame in when.frames if frame.name == "0.6")
    assert list(at.data[-1].text) == ["1, 2, 5"] and list(at.data[-1].x) == [2.0] and list(at.data[0].y) == rows["0.6"]
    assert all(len(frame.data) == len(figure.data) for figure in (depth, when) for frame in figure.frames)
    table = depth_table(group)
    assert [name for name, _ in table.bodies] == ["γ = 0.15", "γ = 0.6"]
    assert [cell.text for cell in table.bodies[0][1][0].cells[1:4]] == ["layer 6", "layer 5", "layer 4"]
    assert table.bodies[0][1][0].cells[1].note == "7 ms"
    assert "on GPU" in figures.time_words(group) and "do not compare" in figures.time_words(group)
    alike = [*folders[:1], fake_run(tmp_path / "alike", "constrained", frames=False, layer_metrics=rows, latency=timed)]
    (pair,), (alone,) = (group_runs([RunView.read(each) for each in some]) for some in (alike, alike[:1]))
    assert "the machine was busier with one of them" in figures.time_words(pair)
    assert "busier" not in figures.time_words(alone)
    assert "<figure>" in page_of(folders, tmp_path)


def test_metrics_that_are_not_finite_and_older_summaries_have_pages(tmp_path: Path) -> None:
    rows = {"0.15": [None] * 8, "0.6": [1.0, None, *[1.0] * 5, None]}
    broken = fake_run(tmp_path / "broken", "erm", frames=False, layer_metrics=rows)
    (group,) = group_runs([RunView.read(broken)])
    assert [len(ring.x) for ring in rings(figures.by_depth(group))] == [0]
    assert depth_table(group).bodies[0][1][0].cells[1].text == "–"
    page = page_of([broken], tmp_path)
    assert "RMSE along the layers" in page and "against time" not in page
    older = fake_run(tmp_path / "older", "erm", frames=False)
    assert "along the layers</h3>" in page_of([older], tmp_path)


def test_bounds_without_alpha_are_bars_at_the_training_noise(runs: list[Path], tmp_path: Path) -> None:
    entries = [geometric(), geometric(bounds=[None, 5.7, 4.8, None, 3.5, 3.0, 2.6]), geometric(strength=0.1)]
    entries = [each | {"settings": {"strength": each["strength"]}} for each in entries]
    folders = [
        fake_run(tmp_path / str(seed), "constrained", seed=seed, frames=False, **each)
        for seed, each in enumerate(entries)
    ]
    unconstrained = fake_run(tmp_path / "erm", "erm", frames=False, **geometric())  # evaluated, but never held to them
    (group,) = group_runs([RunView.read(folder) for folder in (unconstrained, *folders)])
    figure = figures.layer_losses(group)
    first, second = [trace for trace in figure.data if trace.name == "had to reach"]
    assert list(first.x) == [2, 3, 5, 6, 7]  # the layers that both seeds have a bound for
    assert list(first.y) == pytest.approx([5.6, 4.7, 3.4, 2.9, 2.5])
    assert list(second.x) == [2, 3, 4, 5, 6, 7] and list(second.y) == geometric()["bounds"][1:]
    assert [trace.marker.line.color for trace in (first, second)] == [arm.style.light for arm in group.arms[1:]]
    assert (first.marker.symbol, first.mode, first.hovertemplate) == ("line-ew", "markers", "%{y:.4g}")
    assert (first.showlegend, second.showlegend) == (True, False)
    for frame in figure.frames:
        assert len(frame.data) == len(figure.data)
        known = [len(trace.x) for trace in frame.data if trace.name == "had to reach"]
        assert known == ([5, 6] if frame.name == "0.15" else [0, 0])


def test_bounds_tell_which_layers_are_under_a_constraint(tmp_path: Path) -> None:
    run = RunView.read(fake_run(tmp_path / "run", "constrained", frames=False, **geometric()))
    (trace,) = figures.violations(*group_runs([run])).data
    assert [point[0] for point in trace.customdata] == [2, 3, 4, 5, 6, 7]
    assert [line.name for line in figures.multipliers(run).data] == ["2", "3", "4", "5", "6", "7"]


def cells(html: str) -> list[list[str]]:
    """The rows of the tables of layers in some HTML."""
    rows = re.findall(r'<tr><th scope="row">(Layer .*?)</tr>', html)
    return [re.sub(r"</t[hd]>(<td[^>]*>)?", "|", row).strip("|").split("|") for row in rows]


def test_a_table_has_what_each_layer_had_to_reach_and_what_is_certain(
    runs: list[Path], summary: dict, tmp_path: Path
) -> None:
    losses = dict(summary["layer_losses"], **{"0.15": [9.0, 6.5, 5.4, 4.7, 3.9, 3.3, 2.8, 2.4]})
    entries = geometric(layer_losses=losses, violations=[0, -0.1, 0.1, 0, 0, 0, 0], violated=[3])
    view = RunView(Summary.model_validate(summary | entries))
    page = page_of([view], tmp_path)
    assert "<details open><summary>Layer by layer</summary>" in page
    for head in ("Loss", "Had to reach", "Violation", "Lowers the loss by at least"):
        assert f'<th scope="col">{head}</th>' in page and f'data-head="{head}"' in page
    rows = cells(page)
    assert rows[:3] == [
        ["Layer 1", "6.50", "–", "–", "54.7%"],
        ["Layer 2", "5.40", "5.50", "-0.1", "3.5%"],
        ["Layer 3", "4.70", "4.60", "<strong>0.1</strong>", "not certain"],
    ]
    assert [row[-1] for row in rows[3:]] == ["not certain", "not certain", "10.0%", "10.0%"]
    # An older summary, and one in the ratio form, whose bounds are shares of the loss before.
    page = page_of([runs[1]], tmp_path)
    assert [row[-1] for row in cells(page)] == ["–"] * 7
    ratio = RunView(Summary.model_validate(summary | {"layer_losses": losses, "bounds": [0.9] * 7}))
    page = page_of([ratio], tmp_path)
    assert cells(page)[1][2] == "5.85"
    other = RunView(Summary.model_validate(summary | entries | {"alpha": [0.2]}))
    both = page_of([runs[0], view, other], tmp_path)
    assert both.count("<summary>Layer by layer (Constrained, α = ") == both.count("<details>") == 2


def shown_verdict(view) -> str:
    return str(environment("descend.report").get_template("macros.html").module.verdict(view))


def test_what_is_certain_stands_below_the_verdict(runs: list[Path], summary: dict, tmp_path: Path) -> None:
    view = RunView(Summary.model_validate(summary | geometric(certificate="Layer 1 by 54.7% & more.")))
    html = shown_verdict(verdict(group_runs([view])))
    assert "<p>All 7 constraints hold; layers 2 and 5 bind.</p>" in html
    page = page_of([view], tmp_path)
    assert "<li>Layer 1 by 54.7% &amp; more.</li>" in page
    assert "<li>What each layer had to reach follows from the losses, at a strength of 0.7.</li>" in page
    html = shown_verdict(verdict(group_runs([RunView(Summary.model_validate(summary))])))
    assert "<p>All 7 constraints hold; layers 2 and 5 bind.</p>" in html and "strength" not in html


MISSED = {"feasible": False, "certain": False, "violated": [4]}
FEW = {"groups": 3, "certain": False, "certified": [math.nan] * 7, "verdict": "Open: 3 groups of samples."}
VERDICTS: dict[str, dict] = {
    "holds": {"feasible": True, "certain": True},
    "undecided": {"feasible": True, "certain": False},
    "older": {"feasible": True, "certain": None},
    "by chance": MISSED | {"violation_intervals": [[-0.1, 0.5]] * 7},
    "cap by chance": MISSED | {"violated": [0], "cap_violation": 0.3, "cap_interval": [-0.1, 0.5]},
    "broken": MISSED | {"violation_intervals": [[0.1, 0.5]] * 7},
    "cap broken": MISSED | {"violated": [0], "cap_violation": 0.3, "cap_interval": [0.1, 0.5]},
    "unnamed": {"feasible": False, "certain": False},
    "few": FEW | {"violation_intervals": [[math.nan, math.nan]] * 7},
    "few, missed": FEW | MISSED | {"violation_intervals": [[-0.1, 0.5]] * 7},
    "few, older": FEW | MISSED | {"violation_intervals": [[0.1, 0.5]] * 7},  # few groups forbid its interval
    "few, not finite": FEW | MISSED | {"violations": [0, 0, 0, None, 0, 0, 0]},
    "not judged": {"feasible": None, "certain": None},
}
HOLDS, TOLD = "Feasible: every layer lowers the loss as asked", "Feasible as far as the data can tell"
CHANCE, BROKEN = (
    "Not feasible, but not proven: that a bound is missed may be chance",
    "Not feasible: the constraints do not",
)
OPEN = "Open: these data are too few to tell whether the constraints hold"


@pytest.mark.parametrize(
    ("runs_are", "status", "headline", "cell"),
    [
        (["holds"], "holds", HOLDS, ("yes", "")),
        (["holds", "holds"], "holds", f"{HOLDS}, in all 2 runs", ("2 of 2", "")),
        (["undecided"], "undecided", TOLD, ("yes", "as far as can be told")),
        (["older"], "undecided", TOLD, ("yes", "as far as can be told")),
        (
            ["holds", "undecided"],
            "undecided",
            f"{TOLD}, in all 2 runs; beyond doubt in 1",
            ("2 of 2", "as far as can be told"),
        ),
        (["by chance"], "not_significant", CHANCE, ("no", "not proven")),
        (["cap by chance"], "not_significant", CHANCE, ("no", "not proven")),
        (
            ["by chance", "cap by chance"],
            "not_significant",
            "Not feasible in 2 of 2 runs, proven in none",
            ("0 of 2", "not proven"),
        ),
        (
            ["by chance", "not judged"],
            "not_significant",
            "Not feasible in 1 of 2 runs, proven in none",
            ("no", "not proven"),
        ),
        (["by chance", "broken"], "broken", "Not feasible in 2 of 2 runs, proven in 1", ("0 of 2", "")),
        (["broken"], "broken", f"{BROKEN} hold", ("no", "")),
        (["cap broken"], "broken", f"{BROKEN} hold", ("no", "")),
        (["unnamed"], "broken", f"{BROKEN} hold", ("no", "")),
        (
            ["broken", "cap broken"],
            "broken",
            "Not feasible in 2 of 2 runs: there the constraints do not hold",
            ("0 of 2", ""),
        ),
        (["few"], "open", OPEN, ("open", "so far yes")),
        (["few, missed"], "open", OPEN, ("open", "so far no")),
        (["few, older"], "open", OPEN, ("open", "so far no")),
        (["few, missed", "not judged"], "open", OPEN, ("open", "so far no")),
        (["few, not finite"], "broken", f"{BROKEN} hold", ("no", "")),
        (["holds", "not judged"], "open", OPEN, ("yes", "as far as can be told")),
    ],
)
def test_the_page_claims_no_more_than_the_data(
    summary: dict, runs_are: list[str], status: str, headline: str, cell: tuple[str, str]
) -> None:
    summaries = [summary | VERDICTS[name] | {"seed": seed} for seed, name in enumerate(runs_are)]
    views = [RunView(Summary.model_validate(each)) for each in summaries]
    groups = group_runs(views)
    html = shown_verdict(verdict(groups))
    assert html.startswith(f'<div class="verdict {status}">') and f"{headline}</h2>" in html
    assert ("evaluate on more data first" in html) == any("chance" in name for name in runs_are)
    assert cell in [(each.text, each.note) for each in runs_tables(groups)[0].bodies[0][1][0].cells]
    if all(name.startswith("few") for name in runs_are):  # no interval is shown
        (trace,) = figures.violations(groups[0]).data
        assert {words for _, words in trace.customdata} == {""} and np.isnan(trace.error_y.array).all()
        words = "<p>3 groups of samples.</p><p><b>What to do.</b> Evaluate on at least 12 groups of samples"
        assert status == "broken" or ("easible" not in html and words in html)


def test_intervals_are_shown_from_twelve_groups_on(summary: dict) -> None:
    enough = group_runs([RunView(Summary.model_validate(summary | {"groups": 12}))])
    assert all(words.startswith(" (from ") for _, words in figures.violations(enough[0]).data[0].customdata)


@pytest.mark.parametrize(
    ("recipe", "words", "others"),
    [
        ("video-ut", ["evaluate it with --model best_feasible", " of descend train"], "descend.evaluate"),
        ("Digits", ["load it and give it to descend.evaluate"], " --"),
    ],
)
def test_a_script_is_advised_in_python(summary: dict, recipe: str, words: list[str], others: str) -> None:
    known = {"feasible": False, "certain": False, "recipe": recipe}
    html = shown_verdict(verdict(group_runs([RunView(Summary.model_validate(summary | known))])))
    assert all(each in html for each in words) and others not in html


def test_each_verdict_is_said_once_and_by_whom(runs: list[Path], summary: dict, tmp_path: Path) -> None:
    words = {(0.1, 0): "One & all hold.", (0.1, 1): "Layer 3 fails.", (0.2, 0): "Layer 3 fails."}
    views = [
        RunView(Summary.model_validate(summary | {"alpha": alpha, "seed": seed, "verdict": said}))
        for (alpha, seed), said in words.items()
    ]
    page = page_of(views, tmp_path)
    assert "<p><b>Constrained, α = 0.1, seed 0.</b> One &amp; all hold.</p>" in page
    assert page.count("Layer 3 fails.") == 1
    assert "<b>Constrained, α = 0.1, seed 1; Constrained, α = 0.2.</b> Layer 3 fails." in page
    page = page_of(runs, tmp_path)  # ERM and constrained
    assert "<b>Constrained.</b> All 7" in page and "<b>Constrained.</b> Asked of layers 1 to 7: " in page
    assert "Constrained.</b>" not in page_of(runs[1:], tmp_path)
    assert page.count("All 7 constraints hold; layers 2 and 5 bind.") == page.count("2 and 5") == 1


def test_runs_evaluated_on_other_data_or_models_are_kept_apart(tmp_path: Path) -> None:
    evaluated = {
        "": {},
        ", evaluated on the validation split": {"split": "validation"},
        ", best feasible checkpoint": {"checkpoint": "best_feasible"},
        ", evaluated on the tr<i>n split, best feasible checkpoint": {"split": "tr<i>n", "checkpoint": "best_feasible"},
        ", under laplace noise": {"shift": "laplace"},
    }
    folders = [
        fake_run(tmp_path / str(place), "constrained", frames=False, **entries)
        for place, entries in enumerate(evaluated.values())
    ]
    names = [f"UT-7 on ped2<b>, trained at γ = 0.15{words}" for words in evaluated]
    assert [group.name for group in group_runs([RunView.read(folder) for folder in folders])] == names
    page = page_of(folders, tmp_path)
    assert all(f"<h2>{escape(name)}</h2>" in page for name in names)
    page = page_of(folders[1:2], tmp_path)
    assert f'<p class="subtitle">{escape(names[1])}</p>' in page and "Constraints on validation data" in page


def test_data_of_one_name_are_kept_apart_where_their_noisy_input_differs(tmp_path: Path) -> None:
    given = [12.344, 12.3441, 15.0]
    folders = [
        fake_run(tmp_path / str(place), "constrained", frames=False, input_metrics={"0.15": metric})
        for place, metric in enumerate(given)
    ]
    groups = group_runs([RunView.read(folder) for folder in folders])
    assert [len(group.runs) for group in groups] == [2, 1]
    base = "UT-7 on ped2<b>, trained at γ = 0.15, where the noisy input has RMSE"
    assert [group.name for group in groups] == [f"{base} 12.3", f"{base} 15"]
    (alone,) = group_runs([RunView.read(folders[2])])
    assert alone.name == "UT-7 on ped2<b>, trained at γ = 0.15"


def test_other_alphas_are_other_arms(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path / str(alpha), "constrained", alpha=alpha, frames=False) for alpha in (0.1, 0.2)]
    (group,) = group_runs([RunView.read(folder) for folder in folders])
    assert [arm.label for arm in group.arms] == ["Constrained, α = 0.1", "Constrained, α = 0.2"]
    assert len({arm.style for arm in group.arms}) == 2


def test_every_method_has_its_own_name_and_style_and_erm_comes_first(tmp_path: Path) -> None:
    assert METHODS.keys() < METHOD_NAMES.keys() == STYLES.keys()
    folders = [fake_run(tmp_path / method, method, frames=False, settings={}) for method in reversed(METHODS)]
    (group,) = group_runs([RunView.read(folder) for folder in folders])
    expected = [method for method in METHOD_NAMES if method in METHODS]
    assert expected[0] == "erm" and expected[-1] == "constrained"
    assert [(arm.summary.method, arm.label, arm.style) for arm in group.arms] == [
        (method, METHOD_NAMES[method], STYLES[method]) for method in expected
    ]
    page = page_of(folders, tmp_path)
    assert page.count("<h3>Multipliers</h3>") == 1
    opened = page.split('<div class="numbers">')[1].split("</table>")[0]
    assert all(f"</i>{METHOD_NAMES[method]}</th>" in opened for method in expected)
    assert all(head in page for head in ("Training, machine time of this run", "Descending layers"))
    for heads in re.findall("<thead>(.*?)</thead>", page):  # no two columns of one name
        names = re.findall(r'<th scope="col">(.*?)</th>', heads)
        assert len(set(names)) == len(names) > 1


# Machado, Oliveira and Fernandes (2009), at full severity, on linear RGB: the three kinds of colour blindness.
BLINDNESS = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    scaled = TO_XYZ @ rgb.clip(0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(("ground", "paper"), [("light", "#ffffff"), ("dark", "#1c1e23")])
def test_methods_stay_apart_for_colour_blind_eyes_and_stand_out_from_the_page(ground: str, paper: str) -> None:
    colours = {method: linear(getattr(style, ground)) for method, style in STYLES.items() if method != "plain"}
    for blindness in map(np.array, BLINDNESS.values()):
        seen = [lab(blindness @ colour) for colour in colours.values()]
        # 2.3 is what an eye can just tell apart.
        assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 12
    luminance = lambda colour: float(TO_XYZ[1] @ colour)  # noqa: E731
    styles = [getattr(style, ground) for style in (*STYLES.values(), *SPARE_STYLES)]
    for one in styles:
        low, high = sorted((luminance(linear(one)), luminance(linear(paper))))
        assert (high + 0.05) / (low + 0.05) >= 3, one  # WCAG 1.4.11
    symbols = [style.symbol for method, style in STYLES.items() if method != "plain"]
    assert len({*symbols, *(style.symbol for style in SPARE_STYLES)}) == len(symbols) + len(SPARE_STYLES)


def test_only_seeds_share_an_arm_and_labels_say_what_differs(tmp_path: Path) -> None:
    settings = [
        {"first_layer": 0, "form": "ratio"},
        {"first_layer": 0, "form": "ratio"},
        {"first_layer": 1, "form": "ratio"},
        {"first_layer": 1, "form": "difference"},
    ]
    folders = [
        fake_run(tmp_path / str(place), "constrained", seed=place, frames=False, settings=each)
        for place, each in enumerate(settings)
    ]
    folders.append(fake_run(tmp_path / "list", "constrained", frames=False, settings=settings[0], alpha=0.2))
    (group,) = group_runs([RunView.read(folder) for folder in folders])
    assert {arm.label: [run.summary.seed for run in arm.runs] for arm in group.arms} == {
        "Constrained, α = 0.1, first_layer 0, form ratio": [0, 1],
        "Constrained, α = 0.1, first_layer 1, form ratio": [2],
        "Constrained, α = 0.1, first_layer 1, form difference": [3],
        "Constrained, α = 0.2, first_layer 0, form ratio": [0],
    }
    first = group.runs[0]
    lists = [
        replace(first, summary=first.summary.model_copy(update={"alpha": alpha}))
        for alpha in ([0.3, 0.2, 0.1], [0.3, 0.1, 0.1])
    ]
    assert len(group_runs(lists)[0].arms) == 2


def test_a_layer_of_which_nothing_is_asked_has_no_constraint_to_show(tmp_path: Path) -> None:
    limits = [None, None, 0.78, 0.89, *[0.945] * 4]
    run = RunView.read(fake_run(tmp_path / "run", "constrained", limits=limits, violated=[4]))
    (trace,) = figures.violations(*group_runs([run])).data
    assert [point[0] for point in trace.customdata] == [2, 3, 4, 5, 6, 7]
    assert list(trace.y) == run.summary.violations[1:]
    assert [symbol == "x-open" for symbol in trace.marker.symbol] == [False, False, True, False, False, False]
    assert [line.name for line in figures.multipliers(run).data] == ["2", "3", "4", "5", "6", "7"]
    page = page_of([run], tmp_path)
    asked = "Asked of layers 2 to 7: a loss lower than that of the layer before by 22, 11, 5.5, 5.5, 5.5 and 5.5 %."
    assert asked in page
    run = RunView.read(fake_run(tmp_path / "all", "constrained"))
    page = page_of([run], tmp_path)
    assert "Asked of layers 1 to 7: a loss lower than that of the layer before by 10 %." in page


ROW = '{"run": "a", "step": 1, "split": "train", "layer": 1, "noise": 0.1, "metric": "multiplier", "value": 1}'


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("summary.json", None, "descend evaluate"),
        ("summary.json", '{"a": 1,\n oops}', "line 2"),
        ("summary.json", "[]", "JSON object"),
        ("records.jsonl", f'{ROW}\n\n{{"step": 1\n', "line 3"),
        ("records.jsonl", "{}\n", "line 1"),
        ("records.jsonl", ROW.replace('"layer": 1', '"layer": 8') + "\n", "layers 0 to 7"),
        ("frames.npz", "PK no", "frames.npz is damaged"),
        ("summary.json", {"values": [1.0]}, "one value per noise level"),
        ("summary.json", {"train_noise": 9}, "training noise 9.0"),
        ("summary.json", {"limits": [None] * 9}, "limits must have one entry per layer"),
        ("summary.json", {"bounds": [1.0] * 8}, "bounds must have one entry per layer"),
        ("summary.json", {"certified": [0.1] * 8}, "certified must have one entry per layer"),
        ("summary.json", {"noise": "loud"}, "noise should be a valid list"),
    ],
)
def test_errors_say_what_to_do(summary: dict, tmp_path: Path, file: str, content, words: str) -> None:
    folder = fake_run(tmp_path / "run", "erm", frames=False)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(json.dumps(summary | content) if isinstance(content, dict) else content)
    with pytest.raises(InputError, match=re.escape(words)):
        write_page([folder], tmp_path / "report.html", "Damaged")


def test_a_page_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one run"):
        write_page([], tmp_path / "report.html", "None")
