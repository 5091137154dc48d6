"""The files of a run as typed objects: what is written is what is read, and one clear error for anything else."""

import json
import math
from pathlib import Path

import pytest

from descend.errors import InputError
from descend.results import (
    REQUIRED,
    SCHEMA,
    AnytimeCurve,
    Comparison,
    Decisions,
    Groups,
    Record,
    RunConfig,
    Summary,
    read_comparison,
    read_completions,
    read_config,
    read_groups,
    read_records,
    read_summary,
)
from descend.results.records import Records

EXIT = {
    "full": 0.9,
    "depth": 2,
    "confidence": [{"threshold": 0.5, "layers": 1.2, "accuracy": 0.8}],
    "patience": [{"patience": 1, "layers": 1.9, "accuracy": 0.9}],
    "chosen": {"threshold": 0.5, "layers": 1.2, "accuracy": 0.8, "time_ratio": 0.7},
}
SUMMARY = {
    **{"recipe": "text", "method": "constrained", "seed": 0, "model": "BERT", "dataset": "imdb"},
    **{"metric": "accuracy", "higher_is_better": True, "noise": [0.0, 1e-05], "values": [0.9, None], "mean": None},
    **{"auc": None, "train_noise": 1e-05, "layer_losses": {"0.0": [3, 2, 1], "1e-05": [3.0, None, 1.0]}},
    **{"violations": [-0.1, 0.2], "violation_intervals": [[-0.2, 0.0], [None, None]], "bounds": [None, 1.5]},
    **{"limits": [None, None, 0.5], "settings": {"depth": 2, "data": None}, "exit": EXIT, "energy": {"0.0": [1, 2, 3]}},
}
CONFIG = {
    **{"recipe": "video-ut", "method": "erm", "seed": 1, "model": "UT-2", "sigma": None},
    **{"settings": {"data": "generated", "depth": 2}, "training": {"max_steps": 3}},
}
LAYERS = {"noise": [1.0], "counts": [5], "losses": [[[1.0], [2.0]]], "scores": [[[3.0], [4.0]]]}
GROUPS = {
    **{"noise": [0.0, 1.0], "root": True, "single": False, "counts": [2, 3], "scores": [[1.0, 2.0], [3.0, None]]},
    "layers": LAYERS,
}


def test_a_summary_keeps_every_key_and_value_when_it_is_written_again(tmp_path: Path) -> None:
    later = {"new": {"a": [1]}, "ratios": {"mean": 0.5, "newer": 1}}  # keys of a later version
    for content in (SUMMARY, SUMMARY | later):
        Summary.model_validate(content).write(tmp_path / "summary.json")
        assert json.loads((tmp_path / "summary.json").read_text()) == content | {"schema": SCHEMA}
    exits = read_summary(tmp_path).exit
    assert exits.chosen.value == exits.confidence[0].value == 0.8 and "1.20 of 2 layers" in exits.sentence("accuracy")
    assert Summary.model_validate({key: SUMMARY[key] for key in REQUIRED}).status == "open"


def test_null_is_a_number_that_is_not_finite() -> None:
    summary = Summary.model_validate(SUMMARY)
    assert math.isnan(summary.mean) and math.isnan(summary.values[1]) and math.isnan(summary.layer_losses[1e-05][1])
    assert (summary.auc, summary.bounds, summary.depth) == (None, [None, 1.5], 2)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("metric", "higher", "first", "area"),
    [
        ([0.5, 0.87, 0.89, 0.90, 0.91], True, {1: 3, 2: 2, 5: 1}, (0.705 + 0.87 + 0.89 + 0.90) / 4),
        ([0.5, 0.9, 0.5, 0.91], True, {1: 3, 2: 3, 5: 3}, None),  # a deeper layer that is worse counts
        ([0.95, 0.9], True, {1: 0, 2: 0, 5: 0}, 0.925),  # better than full depth
        ([20.0, 10.5, 10.2, 10.1, 10.0], False, {1: 3, 2: 2, 5: 1}, (15 + 10.5 + 10.2 + 10.1) / 4),
        ([3.0, 0.0], False, {1: 1, 2: 1, 5: 1}, 1.5),
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


def test_anytime_curves_follow_from_the_metrics_and_are_written(tmp_path: Path) -> None:
    assert Summary.model_validate(SUMMARY).anytime == []
    metrics = {"1e-05": [0.1, None, 0.9], "0.0": [0.5, 0.9, 0.9]}
    summary = Summary.model_validate(SUMMARY | {"layer_metrics": metrics})
    assert [(curve.noise, curve.first_within) for curve in summary.anytime] == [
        (0.0, {1: 1, 2: 1, 5: 1}),
        (1e-05, {1: 2, 2: 2, 5: 2}),
    ]
    summary.model_copy(update={"anytime": summary.anytime}).write(tmp_path / "summary.json")
    first, second = json.loads((tmp_path / "summary.json").read_text())["anytime"]
    within = {"1": 1, "2": 1, "5": 1}
    assert first == {"noise": 0.0, "metric": [0.5, 0.9, 0.9], "first_within": within, "area": 0.8}
    assert second["area"] is None and read_summary(tmp_path).anytime[0] == summary.anytime[0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": "one"}, "seed"),
        ({"values": [1.0]}, "2 noise levels but 1 values"),
        ({"layer_losses": {"0.0": [1, 2, 3]}}, "training noise 1e-05"),
        ({"layer_losses": {"1e-05": [1]}}, "layer_losses"),
        ({"layer_losses": {"0.0": [1, 2], "1e-05": [1, 2, 3]}}, "layer_losses"),
        ({"layer_losses": {"low": [1, 2, 3]}}, "layer_losses.low"),
        ({"noise": [0.0, float("nan")]}, "noise levels must be finite"),
        ({"values": [10**400, 1]}, "values.0"),
        ({"limits": [0.5]}, "limits"),
        ({"bounds": [1.0]}, "bounds"),
        ({"certified": [0.1] * 8}, "certified"),
        ({"noise": "loud"}, "noise should be a valid list"),
        ({"violation_intervals": [[1, 2], [1]]}, "violation_intervals.1"),
        ({"exit": {"full": 1}}, "exit.chosen"),
        ({"anytime": [{"noise": 0, "metric": [1], "first_within": {}, "area": 1}]}, "anytime"),
        ({"anytime": [{"noise": 0, "metric": [1, 1, 1], "first_within": {"1": 3}, "area": 1}]}, "first_within"),
        ({"exit": 3}, "exit"),
        ({"depth": 4}, "4 layers"),
        ({"schema": SCHEMA + 1}, "Upgrade"),
        ({"schema": 0}, "schema"),
    ],
)
def test_an_entry_that_does_not_fit_is_named(tmp_path: Path, change: dict, named: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(SUMMARY | change))
    with pytest.raises(InputError) as error:
        read_summary(tmp_path)
    assert str(error.value).startswith(str(path)) and named in str(error.value)


ANSWER = {"answer": "yes", "confidence": 0.5, "right": True}
ONE = {"text": "a", "decisions": [ANSWER]}
UNEVEN = [{"text": "a", "decisions": [ANSWER] * 2}, {"text": "b", "decisions": [ANSWER] * 3}]
DAMAGED = [
    {"losses": [], "scores": []},
    {"losses": [[]], "scores": [[]]},
    {"losses": [[[1.0]]], "scores": [[[1.0]]]},
    {"counts": [], "losses": [[[], []]], "scores": [[[], []]]},
    {"noise": [], "losses": [], "scores": []},
    {"scores": [[[1.0], [1.0], [1.0]]]},
    {"counts": [0]},
]


@pytest.mark.parametrize(
    ("read", "content", "words"),
    [
        *(
            (read_summary, content, r"summary\.json")
            for content in ([], 3, None, "text", {}, {"runs": [], "folders": []})
        ),
        (read_summary, ..., "descend evaluate"),
        (lambda folder: read_summary(folder / "none"), ..., "not a run folder"),
        (read_config, {"architectures": ["BertModel"], "hidden_size": 8}, r"config\.json .*recipe"),
        (read_groups, {"scores": [[1.0], [2.0]]}, "scores.*2.*2"),
        *((read_groups, {"layers": LAYERS | each}, r"groups\.json.*layers") for each in DAMAGED),
        *((Decisions, each, r"decisions\.json") for each in ([], {"noise": 0}, {"noise": 0, "texts": [ONE]})),
        (Decisions, {"noise": 0, "texts": UNEVEN}, "each layer"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line(tmp_path: Path, read, content: object, words: str) -> None:
    name = {read_config: "config.json", read_groups: "groups.json", Decisions: "decisions.json"}.get(
        read, "summary.json"
    )
    content = GROUPS | content if read is read_groups else content
    if content is not ...:
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match=words) as error:
        read.read(tmp_path / name) if read is Decisions else read(tmp_path)
    assert "\n" not in str(error.value)


def test_a_config_before_and_after_the_run_ends(tmp_path: Path) -> None:
    config = RunConfig.model_validate(CONFIG)
    config.write(tmp_path / "config.json")
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG | {"schema": SCHEMA}
    assert not read_config(tmp_path).finished
    config.model_copy(update={"seconds": 1.5, "sigma": 0.2}).write(tmp_path / "config.json")
    ended = read_config(tmp_path)
    assert ended.finished and (ended.sigma, ended.settings) == (0.2, {"data": "generated", "depth": 2})


def test_groups_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_groups(tmp_path) is None
    Groups.model_validate(GROUPS).write(tmp_path / "groups.json")
    assert json.loads((tmp_path / "groups.json").read_text()) == GROUPS | {"schema": SCHEMA}


def test_a_comparison_holds_whole_summaries(tmp_path: Path) -> None:
    summary = Summary.model_validate(SUMMARY)
    Comparison(runs=[summary], folders=["../a"]).write(tmp_path / "summary.json")
    comparison = read_comparison(tmp_path)
    assert comparison is not None and comparison.folders == ["../a"] and isinstance(comparison.runs[0], Summary)
    assert comparison.runs[0].content() == summary.content() or math.isnan(comparison.runs[0].mean)
    summary.write(tmp_path / "summary.json")
    assert read_comparison(tmp_path) is None


def test_rows_of_records_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    row = {"run": "a", "step": 1, "split": "train", "layer": 0, "noise": None, "metric": "loss", "value": None}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"value": 2}) + "\n" + '{"run": "a", "st')
    first, second = read_records(path)
    assert isinstance(first, Record) and math.isnan(first.value) and second.value == 2
    path.write_text(json.dumps(row | {"step": "late"}) + "\n")
    with pytest.raises(InputError, match=r"line 1, .*step"):
        list(read_records(path))


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


def test_answers_are_read_by_their_type(tmp_path):
    file = tmp_path / "answers.json"
    file.write_text(json.dumps([{"instruction": "a", "output": "b", "generator": "m"}]))
    (answer,) = read_completions(file)
    assert (answer.instruction, answer.output, answer.generator, answer.dataset) == ("a", "b", "m", "")
    file.write_text(json.dumps([{"instruction": "a", "output": "b"}, {"instruction": 3}]))
    with pytest.raises(InputError, match=r"answers\.json, row 1, .*output"):
        read_completions(file)
