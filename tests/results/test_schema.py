"""The files of a run as typed objects: what is written is what is read, and one clear error for anything else."""

import json
import math
from pathlib import Path

import pytest

from descend.errors import InputError
from descend.recipes import RECIPES
from descend.report.words import exits_words
from descend.results import SCHEMA, AnytimeCurve, Records, Results, Summary, read_completions, read_records
from tests.support.files import ANSWER, CERTIFIED, FILES, GROUPS, LAYERS, RECORD, SEARCH, SUMMARY, SWEEP, TRIAL

LATER = {"new": {"a": [1]}, "ratios": {"mean": 0.5, "newer": 1}}
"""Keys of a later version."""


@pytest.mark.parametrize("name", FILES)
def test_a_file_keeps_every_key_and_value_when_it_is_written_again(tmp_path: Path, name: str) -> None:
    (kind, known), path = FILES[name], tmp_path / name
    for content in (known, known | LATER):
        kind.model_validate(content).write(path)
        kind.read(path).write(path)
        assert json.loads(path.read_text()) == content | {"schema": SCHEMA}


def test_null_is_a_number_that_is_not_finite_and_what_is_missing_has_a_default() -> None:
    summary = Summary.model_validate(SUMMARY)
    assert math.isnan(summary.mean) and math.isnan(summary.values[1]) and math.isnan(summary.layer_losses[1e-05][1])
    assert (summary.auc, summary.bounds, summary.depth) == (None, [None, 1.5], 2)
    exits = summary.exit  # in the file its value has the metric's name
    assert exits.chosen.value == exits.confidence[0].value == 0.8 and "1.20 of 2 layers" in exits_words(
        exits, "accuracy"
    )
    required = (key for key, field in Summary.model_fields.items() if field.is_required())
    assert Summary.model_validate({key: SUMMARY[key] for key in required}).status == "undecided"
    metrics = {"1e-05": [0.1, None, 0.9], "0.0": [0.5, 0.9, 0.9]}
    curves = Summary.model_validate(SUMMARY | {"layer_metrics": metrics}).anytime
    assert [(curve.noise, curve.first_within[2]) for curve in curves] == [(0.0, 1), (1e-05, 2)]


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("metric", "higher", "first", "area"),
    [
        ([0.5, 0.87, 0.89, 0.90, 0.91], True, {1: 3, 2: 2, 5: 1}, (0.705 + 0.87 + 0.89 + 0.90) / 4),
        ([0.5, 0.9, 0.5, 0.91], True, {1: 3, 2: 3, 5: 3}, None),  # a deeper layer that is worse counts
        ([0.95, 0.9], True, {1: 0, 2: 0, 5: 0}, 0.925),  # better than full depth
        ([20.0, 10.5, 10.2, 10.1, 10.0], False, {1: 3, 2: 2, 5: 1}, (15 + 10.5 + 10.2 + 10.1) / 4),
        ([3.0, 0.0], False, {1: 1, 2: 1, 5: 1}, 1.5),
        ([-0.9, -0.985, -1.0], False, {1: 2, 2: 1, 5: 1}, None),  # percent of the absolute value
        ([0.5, 0.89, 0.8999, 0.91], True, {1: 3, 2: 1, 5: 1}, None),  # more than a point is not within a point
        ([INF, 1.0, 1.0], False, {1: 1, 2: 1, 5: 1}, NAN),
        ([1.0, NAN, 1.0], False, {1: 2, 2: 2, 5: 2}, NAN),
        ([1.0, 1.0, NAN], False, {1: None, 2: None, 5: None}, NAN),
        ([1.0, 1.0, INF], False, {1: None, 2: None, 5: None}, NAN),
    ],
)
def test_the_anytime_curve(metric, higher, first, area) -> None:
    curve = AnytimeCurve.of(0.5, metric, higher_is_better=higher)
    assert curve.noise == 0.5 and curve.first_within == first and curve.metric == pytest.approx(metric, nan_ok=True)
    assert area is None or curve.area == pytest.approx(area, nan_ok=True)


DAMAGED = [
    {"losses": [], "scores": []},
    {"losses": [[]], "scores": [[]]},
    {"losses": [[[1.0]]], "scores": [[[1.0]]]},
    {"counts": [], "losses": [[[], []]], "scores": [[[], []]]},
    {"noise": [], "losses": [], "scores": []},
    {"scores": [[[1.0], [1.0], [1.0]]]},
    {"counts": [0]},
]


SEARCHES = [
    {"trials": None},
    {"searched": {"x": {"low": -1, "high": 1, "log": True}}},
    {"searched": {"x": {"low": 2, "high": 1}}},
    *({"trials": [TRIAL | each]} for each in ({"number": 10**9}, {"settings": [1]}, {"curve": {"steps": [1]}})),
    {"trials": [TRIAL | {"curve": {"steps": [1] * 9, "values": []}}]},
]
UNCERTAIN = [
    *({"threshold": each} for each in (2, True)),
    *({"risk": each} for each in (5, True)),
    *({"confidence": each} for each in (0, 7)),
    {"noise": -1},
]
NAMED = ("violated", "undecided", "binding")
NEEDED = {"noise": 1e-05, "within": {"1": 2}}
BEYOND = [
    {"within": {"1": 3}},
    {"top": -1},
    {"chosen": {"2": {"layer": 99, "state": "open"}}},
    {"best": {"layer": 3, "gain": 1}},
]
WRONG = [
    ("summary.json", SUMMARY | {"seed": "one"}, "seed"),
    ("summary.json", SUMMARY | {"values": [1.0]}, "2 noise levels but 1 values"),
    ("summary.json", SUMMARY | {"layer_losses": {"0.0": [1, 2, 3]}}, "training noise 1e-05"),
    ("summary.json", SUMMARY | {"layer_losses": {"1e-05": [1]}}, "layer_losses"),
    ("summary.json", SUMMARY | {"layer_losses": {"0.0": [1, 2], "1e-05": [1, 2, 3]}}, "layer_losses"),
    ("summary.json", SUMMARY | {"layer_losses": {"low": [1, 2, 3]}}, "layer_losses.low"),
    ("summary.json", SUMMARY | {"noise": [0.0, float("nan")]}, "noise levels must be finite"),
    ("summary.json", SUMMARY | {"values": [10**400, 1]}, "values.0"),
    ("summary.json", SUMMARY | {"limits": [0.5]}, "limits"),
    ("summary.json", SUMMARY | {"bounds": [1.0]}, "bounds"),
    ("summary.json", SUMMARY | {"certified": [0.1] * 8}, "certified"),
    ("summary.json", SUMMARY | {"noise": "loud"}, "noise: Input should be a valid list; got 'loud'"),
    ("summary.json", SUMMARY | {"violation_intervals": [[1, 2], [1]]}, "violation_intervals.1"),
    ("summary.json", SUMMARY | {"exit": {"full": 1}}, "exit.depth: Field required"),
    ("summary.json", SUMMARY | {"anytime": [{"noise": 0, "metric": [1], "first_within": {}, "area": 1}]}, "anytime"),
    (
        "summary.json",
        SUMMARY | {"anytime": [{"noise": 0, "metric": [1, 1, 1], "first_within": {"1": 3}, "area": 1}]},
        "first_within",
    ),
    ("summary.json", SUMMARY | {"exit": 3}, "exit"),
    ("summary.json", SUMMARY | {"depth": 4}, "4 layers"),
    *(("summary.json", SUMMARY | {each: [0.1]}, f"{each} must have one entry") for each in ("multipliers", "slack")),
    *(("summary.json", SUMMARY | {each: [3]}, f"{each} must name layers from 0 to 2; got 3") for each in NAMED),
    ("summary.json", SUMMARY | {"after": 3}, "after must name layers from 0 to 2; got 3"),
    *(
        ("summary.json", SUMMARY | {"layers_needed": NEEDED | each}, "layers_needed must name layers")
        for each in BEYOND
    ),
    ("summary.json", SUMMARY | {"schema": SCHEMA + 1}, "Upgrade"),
    ("summary.json", SUMMARY | {"schema": 0}, "schema"),
    *(("summary.json", each, r"summary\.json") for each in ([], 3, None, "text", {}, {"runs": [], "folders": []})),
    ("config.json", {"architectures": ["BertModel"], "hidden_size": 8}, r"config\.json: recipe: Field required"),
    ("groups.json", GROUPS | {"scores": [[1.0], [2.0]]}, "scores.*2.*2"),
    *(("groups.json", GROUPS | {"layers": LAYERS | each}, r"groups\.json.*layers") for each in DAMAGED),
    *(("decisions.json", each, r"decisions\.json") for each in ([], {"noise": 0})),
    ("decisions.json", {"noise": 0, "texts": [{"text": "a", "decisions": [ANSWER]}]}, r"decisions\.json"),
    *(("certified_exit.json", CERTIFIED | each, "evaluate --exit --risk again") for each in UNCERTAIN),
    ("certified_exit.json", {}, r"certified_exit\.json: threshold: Field required"),
    ("answers.json", [{"instruction": "a", "output": "b"}, {"instruction": 3}], r"answers\.json, row 1: instruction"),
    ("records.jsonl", RECORD | {"step": "late"}, r"line 1: step"),
    *(("sweep.json", SWEEP | {"methods": {"erm": SEARCH | each}}, r"sweep\.json.*methods.erm") for each in SEARCHES),
    *(("sweep.json", SWEEP | {"methods": each}, r"sweep\.json.*methods") for each in (None, {"erm": 3})),
]


@pytest.mark.parametrize(("name", "content", "words"), WRONG)
def test_a_damaged_or_foreign_file_is_one_line(tmp_path: Path, name: str, content: object, words: str) -> None:
    readers = {
        **{file: kind.read for file, (kind, _) in FILES.items()},
        **{"answers.json": read_completions, "records.jsonl": lambda path: list(read_records(path))},
    }
    path = tmp_path / name
    path.write_text(json.dumps(content) + "\n")
    with pytest.raises(InputError, match=words) as error:
        readers[name](path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_recipe_is_no_script() -> None:
    kinds = {name: Summary.model_validate(SUMMARY | {"recipe": name}) for name in (*RECIPES, "Classification")}
    assert [name for name, summary in kinds.items() if summary.of_script] == ["Classification"]


def test_groups_of_another_model_are_refused(tmp_path: Path) -> None:
    for name in ("summary.json", "groups.json"):
        (tmp_path / name).write_text(json.dumps(FILES[name][1]))
    with pytest.raises(
        InputError, match=r"groups\.json is of a model of depth 1, and the summary beside it of depth 2"
    ):
        Results.read(tmp_path)


def test_rows_are_written_once_and_cut_back_for_a_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    records = Records(path, "a")
    for step in (1, 2):
        records.rows({"loss": [1.0, math.nan]}, step=step, split="train", noise=0.5)
    records.rows({"loss": [9.0]}, step=2, split="train", noise=0.5)  # there already
    with path.open("a") as file:
        file.write('{"run": "a", "st')
    assert [(row.step, row.layer) for row in read_records(path)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert '"value": null' in path.read_text().splitlines()[1]
    again = Records(path, "a")
    again.truncate_after(1)
    again.rows({"loss": [3.0], "metric": [4.0]}, step=1, split="train", noise=0.5)
    assert [(row.step, row.metric, row.layer) for row in read_records(path)] == [
        *((1, "loss", 0), (1, "loss", 1), (1, "metric", 0))
    ]
