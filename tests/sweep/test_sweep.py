"""Sweeps through the command line: real trials, several workers, a kill in the middle, the rule, the page."""

import json
import math
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import optuna
import pytest
from axe_playwright_python.sync_playwright import Axe
from optuna.trial import TrialState, create_trial
from PIL import Image
from playwright.sync_api import Browser
from transformers import TrainerControl
from transformers import TrainerState as State

from descend import InputError, run
from descend.cli import main
from descend.cli.settings import read_recipe
from descend.methods import METHODS
from descend.report import write_sweep
from descend.results.ownership import written_by_descend
from descend.results.sweeps import Searched, SweepFile
from descend.run import mean_metric
from descend.sweep import worker
from descend.sweep.results import searched_by, sentences
from descend.sweep.space import edges, read_ranges, recipe_values, space
from tests.support.browser import HOSTILE, Guarded, Visit
from tests.support.forking import prepared
from tests.support.runs import stop_after

# An evaluation and a checkpoint at each of four steps, on a handful of windows.
BRIEF = """--data generated --depth 2 --window 2 --max-steps 4 --eval-steps 1 --save-steps 1 --dual-warmup-steps 1
    --use-cpu"""
FLAGS = ["video-ut", *BRIEF.split()]
STRENGTH = ["--range", "strength=0.2:1"]


@pytest.fixture(scope="module", autouse=True)
def clips(tmp_path_factory):
    """Three short clips, in place of the generated ones that every trial would make again."""
    root, rng = tmp_path_factory.mktemp("clips"), np.random.default_rng(0)
    for side, count in (("training", 2), ("testing", 1)):
        for clip in range(count):
            folder = root / "videos" / side / "frames" / f"{clip:02d}"
            folder.mkdir(parents=True)
            for frame in range(6):
                pixels = rng.integers(0, 256, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).resize((160, 160)).save(folder / f"{frame}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DESCEND_CACHE", str(root / "cache"))
        FLAGS.extend(["--data", str(root / "videos")])
        yield


def words(out: Path, trials: int, *more: str) -> list[str]:
    return ["sweep", *FLAGS, "--trials", str(trials), "--out", str(out), *more]


def found(out: Path) -> dict:
    return json.loads((out / "sweep.json").read_text())


def started(out: Path, trials: int, *more: str) -> multiprocessing.Process:
    """Another process at the same sweep, which takes a trial for killed after few seconds."""
    command, cache = words(out, trials, *more), os.environ["DESCEND_CACHE"]
    process = multiprocessing.get_context(prepared()).Process(target=work, args=(command, cache))
    process.start()
    return process


def work(command: list[str], cache: str) -> None:
    os.environ["DESCEND_CACHE"] = cache
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
    assert "lowest mean rmse over the noise levels" in content["rule"]
    assert content["methods"].keys() == {"erm", "constrained"}
    for method, part in content["methods"].items():
        assert [trial["number"] for trial in part["trials"]] == [0, 1, 2]
        assert part["counts"] == Counter(trial["state"] for trial in part["trials"])
        ended = [trial for trial in part["trials"] if trial["state"] == "finished"]
        assert part["best"]["value"] == min(trial["value"] for trial in ended)
        assert sum(part["importance"].values()) == pytest.approx(1) if len(ended) > 1 else part["importance"] == {}
        assert part["searched"].keys() == part["trials"][0]["settings"].keys() - {"first_layer"}
        for trial in part["trials"]:
            config = json.loads((swept / trial["folder"] / "config.json").read_text())
            assert config["method"] == method
            assert config["training"]["learning_rate"] == trial["settings"]["learning_rate"]
            assert (swept / trial["folder"] / "model").is_dir() is (trial["number"] == part["best"]["number"])
            assert (trial["state"], trial["curve"]["steps"]) == ("finished", [1, 2, 3])  # too few to prune by
        assert not list((swept / "trials").glob("*/checkpoint-*")) + list((swept / "trials").glob("*/frames.npz"))


def test_the_chosen_trial_is_the_run_of_the_printed_command_and_its_value_that_of_an_evaluation(swept):
    assert written_by_descend(swept / "sweep.db")
    best = found(swept)["methods"]["constrained"]["best"]
    summary, config = (
        json.loads((swept / best["folder"] / name).read_text()) for name in ("summary.json", "config.json")
    )
    assert (summary["split"], summary["mean"], summary["noise"]) == ("validation", best["value"], best["noise"])
    assert len(best["noise"]) == 8
    typed = shlex.split(best["command"])
    assert typed[:3] == ["descend", "train", "video-ut"]
    _, recipe, args, _ = read_recipe(typed[2:])
    assert (recipe.depth, recipe.window) == (2, 2)
    for name in ("learning_rate", "alpha", "strength", "dual_lr", "dual_optimizer", "resilience", "first_layer"):
        assert config["training"][name] == getattr(args, name)
    model = recipe.restore(str(swept / best["folder"] / "model")).model
    whole = mean_metric(recipe, model, recipe.load(), args, most=10**6, levels=best["noise"])
    assert whole == pytest.approx(best["value"])
    # A trial that is pruned is so by this: at every step but the last.
    few = mean_metric(recipe, model, recipe.load(), args, most=2, levels=best["noise"])
    assert few != pytest.approx(best["value"]) and abs(few / best["value"] - 1) < 0.5
    assert all(abs(value / best["value"] - 1) < 0.5 for value in best["curve"]["values"])
    own = arguments()
    for part in found(swept)["methods"].values():
        assert all(value == own.resolved(name) for name, value in part["trials"][0]["settings"].items())


def test_trials_are_chosen_by_the_noise_levels_that_are_given(tmp_path, capsys):
    out = tmp_path / "sweep"
    assert main(words(out, 1, "--judge-noise", "0,1.6")) == 0
    content = found(out)
    assert content["levels"] == [0, 1.6] and "over the noise levels 0, 1.6 on the validation split" in content["rule"]
    for part in content["methods"].values():
        summary = json.loads((out / part["best"]["folder"] / "summary.json").read_text())
        assert summary["noise"] == part["best"]["noise"] == [0, 1.6]
        assert part["best"]["value"] == pytest.approx(sum(summary["values"]) / 2)
        # Pruned by the same levels: at half of the run the mean of few samples is of their size.
        assert all(abs(value / part["best"]["value"] - 1) < 0.5 for value in part["best"]["curve"]["values"])
    capsys.readouterr()
    assert main(words(out, 2, "--judge-noise", "0,0.8")) == 2
    assert "other settings: levels" in capsys.readouterr().err
    assert main(words(tmp_path / "other", 1, "--judge-noise", "high")) == 2
    assert "noise must be levels as 0,0.1,0.2" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_a_trial_of_several_seeds_is_their_mean(tmp_path, swept, monkeypatch, capsys):
    out = tmp_path / "sweep"
    more = ("--method", "erm", "--seeds", "2", "--seed", "3")
    original, calls = run.evaluate, []

    def interrupted(folder, **settings):
        calls.append(folder.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(folder, **settings)

    monkeypatch.setattr(run, "evaluate", interrupted)
    assert main(words(out, 1, *more)) == 130
    # What is trained of a trial is not trained again.
    trained = {path.parent.name: path.stat().st_mtime_ns for path in (out / "trials").glob("*/config.json")}
    assert trained.keys() == {"erm-000", "erm-000-seed4"}
    assert main(words(out, 1, *more)) == 0
    assert trained == {path.parent.name: path.stat().st_mtime_ns for path in (out / "trials").glob("*/config.json")}
    content = found(out)
    (trial,) = content["methods"]["erm"]["trials"]
    summaries = [json.loads((out / "trials" / name / "summary.json").read_text()) for name in trained]
    assert {summary["seed"] for summary in summaries} == {3, 4}
    assert sorted(trial["values"]) == sorted(summary["mean"] for summary in summaries)
    assert trial["value"] == pytest.approx(sum(trial["values"]) / 2) and len(set(trial["values"])) == 2
    assert trial["seconds"] == pytest.approx(sum(summary["seconds"] for summary in summaries))
    assert content["seeds"] == 2 and "its final model and over 2 seeds;" in content["rule"]
    assert "seeds" not in found(swept)["rule"] and not list((out / "trials").glob("*/checkpoint-*"))
    capsys.readouterr()
    assert main(words(out, 1, *more[:2], "--seed", "3")) == 2
    assert "seeds (was 2, now 1)" in capsys.readouterr().err


def test_a_second_call_runs_nothing_and_more_trials_run_the_rest(swept, tmp_path, capsys):
    before = (swept / "sweep.json").read_text()
    assert main(words(swept, 3, *STRENGTH)) == 0
    assert (swept / "sweep.json").read_text() == before
    said = capsys.readouterr().out
    assert "trial" not in said.split("For every method")[0]
    best = found(swept)["methods"]["erm"]["best"]
    assert best["command"] in said and f"{best['value']:.4g} in {best['folder']}" in said
    assert str(swept / "report.html") in said


def arguments(*more: str, recipe: list[str] = FLAGS):
    return read_recipe([*recipe, *more, "--out", "none"])[2]


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
            for each in METHODS.keys() - {"constrained"}
        ),
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
    pruning = worker._Pruning(study.ask(), {"the user's model": value}.__getitem__)
    with pytest.raises(optuna.TrialPruned) if pruned else nullcontext():
        pruning.on_evaluate(None, State(global_step=step, max_steps=10), TrainerControl(), model="the user's model")


# --- workers that come and go


def test_what_a_trial_draws_does_not_depend_on_who_runs_it(swept, tmp_path):
    for trials in (1, 2):
        assert main(words(tmp_path / "sweep", trials, "--method", "erm")) == 0
    before, after = (found(out)["methods"]["erm"]["trials"][:2] for out in (swept, tmp_path / "sweep"))
    assert [(each["flags"], each["value"]) for each in before] == [(each["flags"], each["value"]) for each in after]
    assert before[0]["flags"] != before[1]["flags"]


def test_two_workers_and_one_that_was_killed_make_exactly_as_many(swept, tmp_path, monkeypatch):
    """A trial that was killed goes on from its checkpoint and comes to the same value as one that was not."""
    out = tmp_path / "sweep"
    killed = started(out, 3, "--method", "erm")
    try:
        until = time.monotonic() + 300
        while not (out / "trials" / "erm-000" / "checkpoint-1").is_dir():
            assert time.monotonic() < until and killed.is_alive()
            time.sleep(0.002)
    finally:
        killed.kill()
        killed.join()
    other = started(out, 3, "--method", "erm")
    monkeypatch.setattr(worker, "HEARTBEAT", 1)
    monkeypatch.setattr(worker, "GRACE", 3)
    assert main(words(out, 3, "--method", "erm")) == 0
    other.join(300)
    assert other.exitcode == 0
    part = found(out)["methods"]["erm"]
    assert len(part["trials"]) == 3
    (again,) = (trial for trial in part["trials"] if trial["retries"])
    first = found(swept)["methods"]["erm"]["trials"][0]
    assert again["folder"] == "trials/erm-000"
    assert (again["flags"], again["value"], again["curve"]) == (first["flags"], first["value"], first["curve"])
    assert len({trial["folder"] for trial in part["trials"]}) == 3


@pytest.mark.parametrize(("heartbeats", "retries"), [(1, 2), (0, 0)])
def test_a_worker_waits_for_anothers_trial_takes_none_too_many_and_replaces_a_lost_one(
    tmp_path, monkeypatch, capsys, heartbeats, retries
):
    out, train = tmp_path / "sweep", run.train
    monkeypatch.setattr(run, "train", lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGINT))
    assert main(words(out, 1, "--method", "erm")) == 130
    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(worker, "GRACE", 1)
    storage = worker.open_storage(f"sqlite:///{out / 'sweep.db'}")
    study = optuna.load_study(study_name="descend erm", storage=storage)
    for _ in range(heartbeats):
        storage.record_heartbeat(study.ask()._trial_id)
    study.enqueue_trial({}) if heartbeats else study.ask()
    assert main(words(out, 1, "--method", "erm")) == 0
    assert "waiting for other workers" in capsys.readouterr().out
    assert [trial.state for trial in study.trials][-1] is TrialState.COMPLETE
    (trial,) = found(out)["methods"]["erm"]["trials"]
    assert trial["retries"] == retries


def test_an_interrupted_sweep_says_how_to_go_on_and_does(swept, tmp_path, monkeypatch, capsys):
    stop_after(monkeypatch, 3)
    line = words(tmp_path / "sweep", 1, "--method", "erm")
    assert main(line) == 130
    assert f"Go on with: descend {shlex.join(line)}" in capsys.readouterr().err
    assert main(line) == 0
    (trial,) = found(tmp_path / "sweep")["methods"]["erm"]["trials"]
    first = found(swept)["methods"]["erm"]["trials"][0]
    assert (trial["folder"], trial["retries"], trial["value"]) == ("trials/erm-000", 1, first["value"])


def test_a_trial_that_diverges_is_finished_and_the_worst(tmp_path, capsys):
    out = tmp_path / "sweep"
    assert main(words(out, 1, "--method", "constrained", "--learning-rate", "1e30", "--alpha", "0.1")) == 0
    part = found(out)["methods"]["constrained"]
    (trial,) = part["trials"]
    assert (trial["state"], trial["value"], part["best"]) == ("diverged", None, None)
    assert "is not finite" in trial["why"]
    said = capsys.readouterr().out
    assert "diverged: step" in said and "none: no trial ended with a finite one" in said


@pytest.mark.skipif("DESCEND_POSTGRES" not in os.environ, reason="DESCEND_POSTGRES names no empty database")
def test_two_workers_on_a_server(tmp_path):
    url = os.environ["DESCEND_POSTGRES"]
    workers = [started(tmp_path / "sweep", 4, "--method", "erm", "--storage", url) for _ in range(2)]
    for each in workers:
        each.join(300)
    assert [each.exitcode for each in workers] == [0, 0]
    assert [trial["number"] for trial in found(tmp_path / "sweep")["methods"]["erm"]["trials"]] == [0, 1, 2, 3]


# --- what is refused


@pytest.mark.parametrize(
    ("more", "said"),
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
        (["--method", "erm", "--learning-rate", "1e-3"], "nothing is left to search for erm"),
        (["--resume"], "goes on by itself"),
        (["--alhpa", "0.1"], "did you mean --alpha"),
        (["--data", "no/such/videos"], "no/such/videos"),
        (["--seeds", "0"], "--seeds must be at least 1; got 0"),
        (["--range", "depth=3:5"], "--range takes one of learning_rate, cap"),
        (["--alpha", "0.1", "--range", "cap=1:5", "--cap", "2"], "--range cap has no effect: a flag sets it"),
        (["--range", "cap=1:5", "--method", "erm"], "--range cap has no effect: no searched method"),
    ],
)
def test_mistakes_are_told_in_one_line_and_leave_nothing(tmp_path, capsys, more, said):
    assert main(words(tmp_path / "sweep", 1, *more)) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not (tmp_path / "sweep" / "trials").exists()
    if "--storage" not in more:
        assert not (tmp_path / "sweep").exists()


def test_another_sweep_in_the_storage_is_refused(swept, tmp_path, capsys):
    assert main([*words(swept, 3), "--alpha", "0.1"]) == 2
    assert "alpha (was" in capsys.readouterr().err
    assert main([*words(swept, 3), "--max-steps", "5", "--method", "erm"]) == 2
    assert "max_steps (was 4, now 5)" in capsys.readouterr().err
    (tmp_path / "trials" / "erm-000").mkdir(parents=True)
    assert main(words(tmp_path, 1)) == 2
    assert "holds trials of erm that the storage does not hold" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "trials")
    (tmp_path / "sweep.db").unlink()
    shutil.copy(swept / "sweep.json", tmp_path)  # all that is left of a sweep
    assert main(words(tmp_path, 1)) == 2
    assert "would be written over" in capsys.readouterr().err
    assert found(tmp_path) == found(swept)


@pytest.mark.parametrize(
    ("refused", "given", "message"),
    [
        *(
            (read_ranges, [word], r"--range.*NAME=LOW:HIGH.*got")
            for word in ("cap=", "cap=5:1", "cap=0:1", "cap=1:inf", "cap=a:b", "cap=1:2:3", "alpha=1:2")
        ),
        (worker.open_storage, "me:s3cret@host", r"me:\*\*\*@host can't"),
        (worker.open_storage, "postgresql//me:s3@cret@host/x", r"me:\*\*\*@host/x can't"),
        (worker.open_storage, "postgresql://me:s3cret@host:port/x", r"me:\*\*\*@host:port/x can't"),
    ],
)
def test_what_is_no_range_or_database_is_refused_and_no_password_is_told(refused, given, message):
    with pytest.raises(InputError, match=message) as told:
        refused(given)
    assert "cret" not in str(told.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("methods"),
        lambda content: content["methods"]["erm"].pop("trials"),
        lambda content: content["methods"]["erm"]["searched"].update(x={"low": -1, "high": 1, "log": True}),
        lambda content: content["methods"]["erm"]["searched"].update(x={"low": 2, "high": 1}),
        lambda content: content["methods"]["erm"]["trials"][0].update(number=10**9),
        lambda content: content["methods"]["erm"]["trials"][0].update(settings=[1]),
        lambda content: content["methods"]["erm"]["trials"][0]["curve"].update(steps=[1] * 9),
        lambda content: content["methods"].update(erm=3),
    ],
)
def test_a_damaged_sweep_is_refused(swept, tmp_path, change):
    content = found(swept)
    change(content)
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"sweep\.json"):
        write_sweep(tmp_path)


# --- the page


def test_the_page_of_a_sweep(swept, browser: Browser):
    page = swept / "report.html"
    assert page.stat().st_size < 1.5e6
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844}):
        with Visit(browser, page, viewport=size) as visit:
            assert (
                visit.complaints == []
                and [violation["id"] for violation in Axe().run(visit.page).response["violations"]] == []
            )
            assert [url for url in visit.requests if not url.startswith(("file:", "data:"))] == []
            assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
            content, text = found(swept), visit.page.inner_text("body")
            assert content["rule"] in text
            for method, part in content["methods"].items():
                assert f"{method}: trial {part['best']['number']}, mean rmse {part['best']['value']:.4g}" in text
                assert part["best"]["command"] in visit.page.locator("pre").all_inner_texts()
            assert visit.page.locator(".plot svg").count() == 1 + 2 + 3  # of all; of each method by setting and by step
            visit.page.locator("details", has_text="constrained: all trials").locator("summary").click()
            chosen = visit.page.locator("tr", has_text="(chosen)").last.inner_text()
            assert f"{content['methods']['constrained']['best']['value']:.4g}" in chosen


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
    part["trials"] += [{**part["trials"][0], "number": 3}, {**part["trials"][0], "number": 5, "value": 1e6}]
    part["trials"] += [{**part["trials"][0], "number": 6, "value": None, "state": "diverged"}]
    content["methods"] = {hostile: part} | content["methods"]
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with Guarded(browser, write_sweep(tmp_path)) as visit:
        visit.assert_quiet()
        drawn = visit.page.locator("figure table").first.locator("tbody tr th").all_text_contents()
        assert drawn == ["0", "1", "2", "3"]
        rows = visit.page.locator("details", has_text="all trials").first.locator("tr").all_text_contents()
        assert ["5finished1e+06" in rows[5], "6diverged–" in rows[6]] == [True, True]
        assert "can't be compared" in visit.page.inner_text("main")
