"""Sweeps through the command line: real trials, several workers, a kill in the middle, the rule, the page."""

import json
import math
import multiprocessing
import os
import platform
import re
import shlex
import shutil
import socket
import sqlite3
import sys
import time
from contextlib import closing, nullcontext
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from playwright.sync_api import Browser
from transformers import TrainerControl, TrainerState

from descend import run
from descend.cli import commands, main
from descend.cli.settings import read_recipe
from descend.report import write_sweep
from descend.results import is_ours, read_config
from descend.results.sweeps import Searched, SweepFile
from descend.settings import METHODS
from descend.sweep import worker
from descend.sweep.space import edges, folder_of, read_ranges, recipe_values, searched_by, sentences, space
from tests.support.browser import HOSTILE, Visit
from tests.support.cases import slow_but
from tests.support.runs import refused, said, stop_after

# An evaluation and a checkpoint at each of four steps, on a handful of windows.
BRIEF = """--data generated --depth 2 --window 2 --stride 40 --max-steps 4 --eval-steps 1 --save-steps 1
    --dual-warmup-steps 1 --use-cpu"""
FLAGS = ["video-ut", *BRIEF.split()]
STRENGTH = ["--range", "strength=0.2:1"]
ERM = ["--method", "erm"]


def words(out: Path, trials: int, *more: str) -> list[str]:
    return ["sweep", *FLAGS, "--trials", str(trials), "--judge-noise", "0,0.8", "--out", str(out), *more]


def found(out: Path) -> dict:
    return json.loads((out / "sweep.json").read_text())


def trials_of_erm(out: Path) -> list[dict]:
    return found(out)["methods"]["erm"]["trials"]


def started(command: list[str]) -> multiprocessing.Process:
    """Another process at a sweep, which takes a trial for killed after few seconds.

    It is forked from one that has imported what trainers need, and done nothing else: to fork one that has trained is
    not safe everywhere.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["descend.training.trainer", "descend.run"])
    process = context.Process(target=work, args=(command,))
    process.start()
    return process


def work(command: list[str]) -> None:
    worker.HEARTBEAT, worker.GRACE = 1, 3
    sys.exit(main(command))


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A sweep of three trials of each method, the strength searched too; read it, don't change it."""
    out = tmp_path_factory.mktemp("swept") / "lr?1 #2 50%20 {x}"
    assert main(words(out, 3, *STRENGTH)) == 0
    return out


# --- what a sweep is


def test_every_method_has_as_many_trials_and_what_was_chosen_is_the_lowest(swept):
    content = found(swept)
    assert (content["recipe"], content["metric"], content["split"]) == ("video-ut", "rmse", "validation")
    assert "lowest mean rmse over the noise levels" in content["rule"] and "seeds" not in content["rule"]
    assert content["methods"].keys() == {"erm", "constrained"} and is_ours(swept / "sweep.json")
    own = arguments()
    for method, part in content["methods"].items():
        trials = part["trials"]
        assert [(trial["number"], trial["state"]) for trial in trials] == [(place, "finished") for place in range(3)]
        assert part["counts"] == {"finished": 3}
        assert part["best"]["value"] == min(trial["value"] for trial in trials)
        assert sum(part["importance"].values()) == pytest.approx(1)
        assert part["searched"].keys() == trials[0]["settings"].keys() - {"first_layer"}
        assert all(value == own.resolved(name) for name, value in trials[0]["settings"].items())
        for trial in trials:
            config = json.loads((swept / trial["folder"] / "config.json").read_text())
            assert config["method"] == method
            assert config["training"]["learning_rate"] == trial["settings"]["learning_rate"]
            assert (swept / trial["folder"] / "model").is_dir() is (trial["number"] == part["best"]["number"])
            assert trial["curve"]["steps"] == [1, 2, 3]  # too few to prune by
        assert not list((swept / "trials").glob("*/checkpoint-*")) + list((swept / "trials").glob("*/frames.npz"))


def test_the_chosen_trial_is_the_run_of_the_printed_command_and_its_value_that_of_an_evaluation(swept, capsys):
    before = (swept / "sweep.json").read_text()
    out, _ = said(capsys, *words(swept, 3, *STRENGTH))  # a second call runs nothing
    assert (swept / "sweep.json").read_text() == before and "trial" not in out.split("For every method")[0]
    best = found(swept)["methods"]["constrained"]["best"]
    assert best["command"] in out and f"{best['value']:.4g} in {best['folder']}" in out
    assert str(swept / "report.html") in out
    summary, config = (
        json.loads((swept / best["folder"] / name).read_text()) for name in ("summary.json", "config.json")
    )
    assert (summary["split"], summary["mean"], summary["noise"]) == ("validation", best["value"], best["noise"])
    assert best["noise"] == [0, 0.8]
    typed = shlex.split(best["command"])
    assert typed[:3] == ["descend", "train", "video-ut"]
    planned, _ = read_recipe(typed[2:])
    recipe, args = planned.recipe, planned.arguments
    assert (recipe.depth, recipe.window) == (2, 2)
    for name in ("learning_rate", "alpha", "strength", "dual_lr", "dual_optimizer", "resilience", "first_layer"):
        assert config["training"][name] == getattr(args, name)
    # A trial is pruned by the metric of the evaluations in training.
    rows = [json.loads(row) for row in (swept / best["folder"] / "records.jsonl").read_text().splitlines()]
    last = {row["step"]: row["value"] for row in rows if (row["metric"], row["layer"]) == ("rmse", 2)}
    curve = best["curve"]
    assert curve["values"] == [last[step] for step in curve["steps"]]


@pytest.mark.slow
def test_each_method_trains_its_own_form_of_the_preset_and_its_command_repeats_it(tmp_path, capsys):
    """The paper's plain DUST has one dictionary; a setting of one method stands in that method's command alone."""
    brief = f"video-dust {BRIEF} --atoms 16 --preset paper --inner-weight 0.5 --max-steps 1".split()
    out, methods = tmp_path / "sweep", {"erm": True, "linear": False}
    command = ["sweep", *brief, "--judge-noise", "0.8", "--trials", "1", "--out", str(out)]
    assert main([*command, "--method", ",".join(methods)]) == 0
    for method, tied in methods.items():
        best = found(out)["methods"][method]["best"]
        trained, typed = read_config(out / best["folder"]), shlex.split(best["command"])
        planned, _ = read_recipe(typed[2:])
        assert planned.recipe.tied is trained.settings["tied"] is tied
        assert ("--inner-weight" in typed) is (method == "linear")
        assert "tied" not in trained.overridden
    before = found(out)["methods"]["linear"]["best"]["command"]
    command[command.index("--inner-weight") : command.index("--inner-weight") + 2] = []
    command[command.index("--trials") + 1] = "2"
    said_now, _ = said(capsys, *command, *ERM)  # a later call may search one method further
    assert found(out)["methods"]["linear"]["best"]["command"] == before
    assert "different numbers of trials" in said_now and "as many trials" not in said_now + found(out)["rule"]


@pytest.mark.slow
def test_a_trial_is_the_mean_over_seeds_of_the_given_noise_levels(tmp_path, capsys):
    out, more = tmp_path / "sweep", [*ERM, "--seeds", "2", "--seed", "3", "--judge-noise", "0,1.6"]
    assert main(words(out, 1, *more)) == 0
    (trial,), content = trials_of_erm(out), found(out)
    summaries = [json.loads(file.read_text()) for file in (out / "trials").glob("*/summary.json")]
    assert {summary["seed"] for summary in summaries} == {3, 4}
    assert all(summary["noise"] == content["levels"] == [0, 1.6] for summary in summaries)
    assert all(summary["mean"] == pytest.approx(sum(summary["values"]) / 2) for summary in summaries)
    assert sorted(trial["values"]) == sorted(summary["mean"] for summary in summaries)
    assert trial["value"] == pytest.approx(sum(trial["values"]) / 2) and len(set(trial["values"])) == 2
    assert trial["seconds"] == pytest.approx(sum(summary["seconds"] for summary in summaries))
    assert "over the noise levels 0, 1.6 on the validation split" in content["rule"] and content["seeds"] == 2
    assert "its final model and over 2 seeds;" in content["rule"]
    for changed, message in (
        (["--seeds", "1"], "seeds (was 2, now 1)"),
        (["--judge-noise", "0,0.8"], "other settings: levels"),
    ):
        assert message in refused(capsys, *words(out, 2, *more, *changed))


def arguments(*more: str, recipe: list[str] = FLAGS):
    return read_recipe([*recipe, *more, "--out", "none"])[0].arguments


TEXT = ["text-ut", "--data", "generated"]
RATE, DUAL = {"learning_rate"}, {"dual_lr", "dual_optimizer", "resilience"}
PROBLEM = RATE | DUAL | {"alpha", "alpha_decay"}


@pytest.mark.parametrize(
    ("more", "given", "ranges", "searched", "unknown"),
    [
        (["--alpha", "0.1"], set(), [], PROBLEM, set()),
        (["--alpha", "0.2", "--dual-lr", "0.1"], {"alpha", "dual_lr"}, [], RATE | DUAL - {"dual_lr"}, set()),
        (["--alpha", "0.1"], set(), ["cap=1:5", "dual-lr=0.01:0.2"], PROBLEM | {"cap"}, {"cap"}),
        (["--alpha", "0.3,0.2", "--resilience", "0"], set(), [], PROBLEM, {"alpha", "resilience"}),
        (["--alpha", "0.1", "--cap", "0.7"], {"alpha"}, [], PROBLEM - {"alpha", "alpha_decay"} | {"cap"}, set()),
        ([], set(), [], RATE, set()),
        ([], set(), ["strength=0.2:0.9"], RATE | {"strength"}, set()),
        *(
            (["--method", each], set(), ["cap=1:5", "strength=0.2:1"], RATE, set())
            for each in METHODS.keys() - {"constrained", "useful"}
        ),
        (["--method", "useful"], set(), ["strength=0.2:1"], RATE | {"strength"}, set()),
    ],
)
def test_what_is_searched_and_begun_with(more, given, ranges, searched, unknown):
    args, ends = arguments(*more, recipe=TEXT), read_ranges(ranges)
    kinds = space(args, given, ends)
    assert kinds.keys() == searched and recipe_values(args, kinds).keys() == searched - unknown
    rate = arguments("--method", "erm", recipe=TEXT).learning_rate
    usual = {"learning_rate": (rate / 10, rate * 10), "cap": (0.35, 1.4)}
    for name, kind in kinds.items():
        assert (kind.low, kind.high) == (usual | ends).get(name, (kind.low, kind.high))
        assert kind.choices or kind.log is (name not in ("alpha_decay", "strength"))


@pytest.mark.parametrize(
    ("more", "text", "video"),
    [
        ([], ["erm", "linear"], ["erm", "constrained"]),
        (["--range", "strength=0.2:1"], ["erm", "useful"], ["erm", "constrained"]),
        (["--range", "alpha=0.02:0.3"], ["erm", "constrained"], ["erm", "constrained"]),
        (["--preset", "paper"], ["erm", "constrained"], ["erm", "constrained"]),
        (["--method", "uniform"], ["uniform"], ["uniform"]),
        (["--keep-layers", "2", "--heal"], ["erm"], None),  # of texts alone
    ],
)
def test_a_sweep_searches_the_method_that_its_settings_and_ranges_ask_for(more, text, video, tmp_path, monkeypatch):
    class Begun(Exception):
        """The methods of a sweep that would begin."""

    def begun(*_, methods, **__):
        raise Begun(methods)

    monkeypatch.setattr(worker, "sweep", begun)
    for recipe, asked in {"text": text, **({"video-ut": video} if video else {})}.items():
        model = ["--model", "a/b"] if recipe == "text" else []
        with pytest.raises(Begun) as methods:
            commands.sweep(
                [recipe, *model, "--data", "generated", "--out", str(tmp_path / "sweep"), "--trials", "1", *more]
            )
        assert methods.value.args[0] == asked


def test_what_was_chosen_at_an_end_of_its_range_is_named(swept):
    searched = {
        "learning_rate": Searched(low=0.001, high=0.1, log=True),
        "alpha_decay": Searched(low=0.3, high=1.0, log=False),
        "dual_optimizer": Searched(choices=["adam", "sgd"]),
    }
    inside = {"learning_rate": 0.0013, "alpha_decay": 0.34, "dual_optimizer": "adam"}
    for name, value, line in (
        ("dual_optimizer", "sgd", []),
        ("learning_rate", 0.08, ["learning_rate 0.08 of 0.001 to 0.1"]),
        ("learning_rate", 0.0012, ["learning_rate 0.0012 of 0.001 to 0.1"]),
        ("alpha_decay", 1.0, []),  # α can't decay by less than not at all
        ("alpha_decay", 0.33, ["alpha_decay 0.33 of 0.3 to 1"]),
    ):
        assert edges(inside | {name: value}, searched) == line
    content = found(swept)
    content["methods"]["erm"]["edges"] = ["learning_rate 0.1 of 0.001 to 0.1"]
    assert "better may lie beyond: learning_rate 0.1 of" in sentences(SweepFile.model_validate(content))


# --- the rule


LATER = [(3.0, True), (2.0, False), (2.0, True), (2.0, True), (2.5, True)]
NEAR = [(2.0, False), (2.03, True), (2.019, True), (2.01, False)]


@pytest.mark.parametrize(
    ("method", "preset", "trials", "chosen"),
    [
        ("constrained", None, LATER, 3),
        ("constrained", None, NEAR, 3),
        ("constrained", "paper", NEAR, 1),
        ("erm", None, NEAR, 1),
    ],
)
@pytest.mark.parametrize(("sign", "direction"), [(1, "minimize"), (-1, "maximize")])
def test_a_feasible_trial_may_be_a_little_worse_and_a_diverged_one_does_no_harm(
    sign, direction, method, preset, trials, chosen
):
    study = optuna.create_study(direction=direction)
    settings = {"method": method, "preset": preset, "searched": {}}
    assert searched_by(study, settings, []).best is None
    study.add_trial(create_trial(value=sign * math.inf, user_attrs={"diverged": "…"}))
    assert searched_by(study, settings, []).best is None
    for value, feasible in trials:
        study.add_trial(create_trial(value=sign * value, user_attrs={"feasible": feasible}))
    study.add_trial(create_trial(value=sign * 1.0, state=TrialState.PRUNED))
    search = searched_by(study, settings, [])
    assert search.best.number == chosen
    assert search.counts == {"diverged": 1, "finished": len(trials), "pruned": 1}


@pytest.mark.parametrize(
    ("finished", "step", "value", "pruned"),
    [
        (4, 6, 9.0, False),  # the worst, but only four have finished
        (5, 6, 3.9, False),  # worse than most of them
        (5, 6, 4.1, True),
        (5, 5, 9.0, True),
        (5, 4, 9.0, False),  # before the middle
        (5, 10, 9.0, False),  # at its end
    ],
)
def test_a_trial_is_pruned_that_is_far_behind_from_the_middle_on(finished, step, value, pruned):
    study = optuna.create_study(pruner=worker.PRUNER)
    for each in range(1, finished + 1):
        study.add_trial(create_trial(value=each, intermediate_values=dict.fromkeys((4, 5, 6, 10), each)))
    state, metrics = TrainerState(global_step=step, max_steps=10), {"eval_rmse": value}
    with pytest.raises(optuna.TrialPruned) if pruned else nullcontext():
        worker._Pruning(study.ask(), "rmse").on_evaluate(None, state, TrainerControl(), metrics)


# --- workers that come and go


@pytest.mark.parametrize(
    "server",
    [
        [],
        pytest.param(
            ["--storage", os.environ.get("DESCEND_POSTGRES", "")],
            marks=pytest.mark.skipif("DESCEND_POSTGRES" not in os.environ, reason="DESCEND_POSTGRES is no database"),
        ),
    ],
    ids=["sqlite", "postgres"],
)
def test_two_workers_and_one_that_was_killed_make_exactly_as_many(swept, tmp_path, monkeypatch, server):
    """A trial that was killed goes on from its checkpoint and comes to the same value as one that was not."""
    out = tmp_path / "sweep"
    command = words(out, 3, *ERM, *server)
    killed = started(command)
    try:
        until = time.monotonic() + 300
        while not (out / "trials" / "erm-000" / "checkpoint-1").is_dir():
            assert time.monotonic() < until and killed.is_alive()
            time.sleep(0.002)
    finally:
        killed.kill()
        killed.join()
    other = started(command)
    monkeypatch.setattr(worker, "HEARTBEAT", 1)
    monkeypatch.setattr(worker, "GRACE", 3)
    assert main(command) == 0
    other.join(300)
    assert other.exitcode == 0
    trials, first = trials_of_erm(out), trials_of_erm(swept)[0]
    assert len(trials) == len({trial["folder"] for trial in trials}) == 3
    (again,) = (trial for trial in trials if trial["retries"])
    same = ("flags", "value", "curve")
    assert again["folder"] == "trials/erm-000" and [again[name] for name in same] == [first[name] for name in same]


@pytest.mark.parametrize(("heartbeats", "retries"), slow_but([], [(1, 2), (0, 0)]))
def test_a_worker_waits_for_anothers_trial_takes_none_too_many_and_replaces_a_lost_one(
    tmp_path, monkeypatch, capsys, heartbeats, retries
):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    out, train = tmp_path / "sweep", run.train
    monkeypatch.setattr(run, "train", interrupted)
    assert main(words(out, 1, *ERM)) == 130
    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(worker, "GRACE", 1)
    storage = worker.open_storage(f"sqlite:///{out / 'sweep.db'}")
    study = optuna.load_study(study_name="descend erm", storage=storage)
    for _ in range(heartbeats):
        storage.record_heartbeat(study.ask()._trial_id)
    study.enqueue_trial({}) if heartbeats else study.ask()
    assert "waiting for other workers" in said(capsys, *words(out, 1, *ERM))[0]
    assert [trial.state for trial in study.trials][-1] is TrialState.COMPLETE
    assert [trial["retries"] for trial in trials_of_erm(out)] == [retries]


def test_an_interrupted_sweep_goes_on_and_what_its_trials_draw_does_not_depend_on_that(
    swept, tmp_path, monkeypatch, capsys
):
    assert main(words(tmp_path / "sweep", 1, *ERM)) == 0
    stop_after(monkeypatch, 3)  # in the second trial
    line = words(tmp_path / "sweep", 2, *ERM)
    assert f"Go on with: descend {shlex.join(line)}" in said(capsys, *line, status=130)[1]
    assert main(line) == 0
    before, after = trials_of_erm(swept)[:2], trials_of_erm(tmp_path / "sweep")
    assert [(each["flags"], each["value"]) for each in before] == [(each["flags"], each["value"]) for each in after]
    assert before[0]["flags"] != before[1]["flags"] and [each["retries"] for each in after] == [0, 1]


def test_a_trial_is_given_up_where_its_worker_was_killed_too_often_and_not_where_a_person_stopped_it(tmp_path):
    study = optuna.create_study(storage=worker.open_storage(f"sqlite:///{tmp_path / 'sweep.db'}"))
    study.enqueue_trial({"rate": 1.0})
    again = [worker._retry] * (2 * worker.RETRIES) + [worker._retry_lost] * (worker.RETRIES + 1)
    for retry in again:
        trial = study.ask()
        assert trial.suggest_float("rate", 0, 2) == 1
        study.tell(trial, state=TrialState.FAIL)
        retry(study, study.trials[trial.number])
    assert len(study.trials) == len(again) and not study.get_trials(states=(TrialState.WAITING,))


def test_a_trial_that_diverges_is_finished_and_the_worst(tmp_path, capsys):
    out = tmp_path / "sweep"
    shown, _ = said(capsys, *words(out, 1, "--method", "constrained", "--learning-rate", "1e30", "--alpha", "0.1"))
    assert "diverged: step" in shown and "none: no trial ended with a finite one" in shown
    part = found(out)["methods"]["constrained"]
    (trial,) = part["trials"]
    assert (trial["state"], trial["value"], part["best"]) == ("diverged", None, None)
    assert "is not finite" in trial["why"]


def test_a_setting_of_a_searched_method_is_given_once_for_a_sweep(tmp_path):
    given = {"data": "generated", "layer_dropout": 0.1, "tied": False}
    searching = worker._Worker(tmp_path, "text-ut", given, ["erm", "layerskip"], 1, 1, {}, None)
    rates = {method: args.layer_dropout for method, args in searching._arguments.items()}
    assert rates == {"erm": 0.2, "layerskip": 0.1}


# --- what is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--trials", "0"], "--trials must be at least 1"),
        (["--storage", "sweep.db"], "--storage must be the URL of a database"),
        (["--storage", "sqlite://"], "--storage must be the URL of a database"),
        (["--storage", "nosuch://here/x"], "nosuch"),
        (["--storage", "postgresql://me:secret@127.0.0.1:1/x"], "me:***@127.0.0.1:1/x can't be opened"),
        (["--storage", "sqlite:////no/such/folder/sweep.db"], "unable to open database file"),
        (["--method", "ermm"], "ermm"),
        (["--method", "erm,layerskip"], "layerskip drops whole blocks"),
        (["--method", "erm,neftune"], "neftune adds noise to word embeddings"),
        (["--alpha", "0.1,0.2,0.3"], "alpha"),
        (["--dual-every", "9"], "must leave the constraints a dual step"),
        (["--method", "erm", "--layer-dropout", "0.1"], "--layer-dropout"),
        (["--method", "erm", "--learning-rate", "1e-3"], "nothing is left to search for erm"),
        (["--resume"], "goes on by itself"),
        (["--alhpa", "0.1"], "did you mean --alpha"),
        (["--data", "no/such/videos"], "no/such/videos"),
        (["--seeds", "0"], "--seeds must be at least 1; got 0"),
        (["--range", "depth=3:5"], "--range takes one of learning_rate, cap"),
        (["--alpha", "0.1", "--range", "cap=1:5", "--cap", "2"], "--range cap has no effect: a flag sets it"),
        (["--range", "cap=1:5", "--method", "erm"], "--range cap has no effect: no searched method"),
        *(
            (["--range", each], "NAME=LOW:HIGH")
            for each in ("cap=", "cap=5:1", "cap=0:1", "cap=1:inf", "cap=a:b", "cap=1:2:3", "alpha=1:2")
        ),
        (["--judge-noise", "high"], "noise must be levels as 0,0.1,0.2"),
        (["--storage", "me:s3cret@host"], "me:***@host can't"),
        (["--storage", "postgresql//me:s3@cret@host/x"], "me:***@host/x can't"),
        (["--storage", "postgresql://me:s3cret@host:port/x"], "me:***@host:port/x can't"),
    ],
)
def test_mistakes_are_told_in_one_line_and_leave_nothing(tmp_path, capsys, more, message):
    line = refused(capsys, *words(tmp_path / "sweep", 1, *more))
    assert message in line and "cret" not in line  # no password
    assert not (tmp_path / "sweep" / ("trials" if "--storage" in more else "")).exists()


def test_another_sweep_in_the_storage_is_refused(swept, tmp_path, capsys):
    assert "alpha (was" in refused(capsys, *words(swept, 3), "--alpha", "0.1")
    assert "max_steps (was 4, now 5)" in refused(capsys, *words(swept, 3, *ERM), "--max-steps", "5")
    (tmp_path / "trials" / "erm-000").mkdir(parents=True)
    assert "holds trials of erm that the storage does not hold" in refused(capsys, *words(tmp_path, 1))
    shutil.rmtree(tmp_path / "trials")
    (tmp_path / "sweep.db").unlink()
    shutil.copy(swept / "sweep.json", tmp_path)  # all that is left of a sweep
    assert "did not write: no written.json there lists it" in refused(capsys, *words(tmp_path, 1))
    assert found(tmp_path) == found(swept)
    assert "holds a run or its results (config.json" in refused(capsys, *words(swept / "trials" / "erm-000", 1))


# --- the page


def test_the_page_of_a_sweep(swept, browser: Browser):
    page, content = swept / "report.html", found(swept)
    assert page.stat().st_size < 1.5e6
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844}):
        with Visit(browser, page, viewport=size) as visit:
            visit.assert_fits()
            text, commands = visit.page.inner_text("body"), visit.page.locator("pre").all_inner_texts()
            assert content["rule"] in text
            assert visit.page.locator(".plot svg").count() == 1 + 2 + 3  # of all; of each method by setting and by step
    for method, part in content["methods"].items():
        assert f"{method}: trial {part['best']['number']}, mean rmse {part['best']['value']:.4g}" in text
        assert part["best"]["command"] in commands


def test_a_page_shows_whatever_a_sweep_holds_as_text_and_far_off_trials_in_the_table_alone(
    swept, tmp_path, browser: Browser
):
    content, hostile = found(swept), " ".join(HOSTILE)
    content |= dict.fromkeys(("recipe", "model", "metric", "rule"), hostile)
    part = content["methods"].pop("constrained")
    part["searched"] |= {"dual_optimizer": {"choices": [hostile]}, hostile: {"low": 0, "high": 1, "log": False}}
    for trial in (*part["trials"], part["best"]):
        trial["settings"] |= {"dual_optimizer": hostile, hostile: 0.5}
    part["best"]["command"], part["edges"] = hostile, [hostile]
    others = ({"number": 3}, {"number": 5, "value": 1e6}, {"number": 6, "value": None, "state": "diverged"})
    part["trials"] += [part["trials"][0] | other for other in others]
    content["methods"] = {hostile: part} | content["methods"]
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with Visit(browser, write_sweep(tmp_path)) as visit:
        visit.assert_sound()
        drawn = visit.page.locator("figure table").first.locator("tbody tr th").all_text_contents()
        assert drawn == ["0", "1", "2", "3"]
        rows = visit.page.locator("details", has_text="all trials").first.locator("tr").all_text_contents()
        assert "5finished1e+06" in rows[5] and "6diverged–" in rows[6] and sum("(chosen)" in row for row in rows) == 1
        assert "can't be compared" in visit.page.inner_text("main")


# --- what a stranger's database says


@pytest.mark.parametrize(
    "folder",
    ["/home/me/run", "../run", "trials/erm-000/../../../run", "trials/constrained-000", "trials/erm-0", 7, None],
)
def test_a_trials_folder_is_never_another_one_than_the_sweeps(folder):
    trial = create_trial(value=1.0, user_attrs={"folder": folder})
    trial.number = 4
    assert folder_of("erm", trial) == "trials/erm-004"
    trial.user_attrs["folder"] = "trials/erm-002"  # of an earlier attempt
    assert folder_of("erm", trial) == "trials/erm-002"


@pytest.mark.slow
def test_a_link_in_the_place_of_a_trial_costs_nobody_a_model(tmp_path):
    out, other = tmp_path / "sweep", tmp_path / "other"
    assert main(words(out, 2, *ERM)) == 0
    best = found(out)["methods"]["erm"]["best"]["number"]
    loser = out / "trials" / f"erm-{1 - best:03d}"
    shutil.copytree(out / "trials" / f"erm-{best:03d}", other)
    shutil.rmtree(loser)
    loser.symlink_to(other, target_is_directory=True)
    before = {path: path.stat().st_mtime_ns for path in other.rglob("*")}
    assert main(words(out, 3, *ERM)) == 0
    assert {path: path.stat().st_mtime_ns for path in other.rglob("*")} == before and (other / "model").is_dir()


@pytest.mark.parametrize("place", ["default", "given"])
def test_a_foreign_database_gets_no_tables(tmp_path, capsys, place):
    out = tmp_path / "out"
    out.mkdir()
    file = out / "sweep.db" if place == "default" else tmp_path / "mine.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE notes (line TEXT)")
        database.commit()
    before = file.read_bytes()
    more = [] if place == "default" else ["--storage", f"sqlite:///{file}"]
    assert str(file if place == "given" else "sweep.db") in refused(capsys, *words(out, 1, *ERM, *more))
    assert file.read_bytes() == before


def test_no_file_or_page_of_a_sweep_names_the_host(swept):
    names = {platform.node(), socket.gethostname()} - {"", "localhost"}
    for file in (swept / "sweep.json", swept / "report.html"):
        assert [name for name in names if re.search(rf"\b{re.escape(name)}\b", file.read_text())] == []
    workers = {trial["worker"] for part in found(swept)["methods"].values() for trial in part["trials"]}
    assert all(re.fullmatch(r"process \d+", worker) for worker in workers)


def test_a_token_stands_nowhere(tmp_path, capsys):
    out, token = tmp_path / "sweep", "hf_THESECRET"
    printed = said(capsys, *words(out, 1, *ERM, "--hub-token", token))
    assert token not in "".join(printed)
    assert [path for path in out.rglob("*") if path.is_file() and token.encode() in path.read_bytes()] == []
