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
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState, create_trial
from PIL import Image
from playwright.sync_api import Browser
from transformers import TrainerControl
from transformers import TrainerState as State

from descend import DescentConfig, DescentTrainer, InputError, run
from descend.cli import main
from descend.cli.settings import read_recipe
from descend.methods import METHODS
from descend.results.ownership import written_by_descend
from descend.results.sweeps import SweepFile
from descend.run import mean_metric
from descend.settings import options as flags
from descend.sweep import storage
from descend.sweep.report.figures import reach
from descend.sweep.report.page import write_sweep
from descend.sweep.results import sentences, write
from descend.sweep.space import described, edges, read_ranges, recipe_values, space
from descend.sweep.storage import Search, TooMany, open_storage
from descend.sweep.worker import _Pruning
from tests.support.browser import HOSTILE, Guarded, Visit
from tests.support.forking import prepared

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


def worker(out: Path, trials: int, *more: str) -> multiprocessing.Process:
    """Another process at the same sweep, which takes a trial for killed after few seconds."""
    process = multiprocessing.get_context(prepared()).Process(
        target=work, args=(words(out, trials, *more), os.environ["DESCEND_CACHE"])
    )
    process.start()
    return process


def work(command: list[str], cache: str) -> None:
    os.environ["DESCEND_CACHE"] = cache
    storage.HEARTBEAT, storage.GRACE = 1, 3
    sys.exit(main(command))


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A sweep of three trials of each method, the strength searched too; read it, don't change it."""
    out = tmp_path_factory.mktemp("swept") / "sweep"
    assert main(words(out, 3, *STRENGTH)) == 0
    return out


# --- what a sweep is


def test_a_sweeps_database_lies_in_its_folder_whatever_its_name(tmp_path):
    folder = tmp_path / "lr?1 #2 50%20 {x}"
    folder.mkdir()
    open_storage(storage.database_url(folder / "sweep.db")).engine.dispose()
    assert list(tmp_path.rglob("*")) == [folder, folder / "sweep.db"] and written_by_descend(folder / "sweep.db")


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


def test_a_trials_value_is_the_mean_that_evaluation_gives_on_the_validation_split(swept):
    best = found(swept)["methods"]["constrained"]["best"]
    summary = json.loads((swept / best["folder"] / "summary.json").read_text())
    assert (summary["split"], summary["mean"], summary["noise"]) == ("validation", best["value"], best["noise"])
    assert len(best["noise"]) == 8
    _, recipe, args, _ = read_recipe(shlex.split(best["command"])[2:])
    model = recipe.restore(str(swept / best["folder"] / "model")).model
    assert mean_metric(recipe, model, recipe.load(), args, most=10**6, levels=best["noise"]) == pytest.approx(
        best["value"]
    )
    # A trial that is pruned is so by this: at every step but the last.
    few = mean_metric(recipe, model, recipe.load(), args, most=2, levels=best["noise"])
    assert few != pytest.approx(best["value"]) and abs(few / best["value"] - 1) < 0.5
    assert all(abs(value / best["value"] - 1) < 0.5 for value in best["curve"]["values"])


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


def test_the_line_to_type_is_the_run_that_was_chosen(swept):
    best = found(swept)["methods"]["constrained"]["best"]
    typed = shlex.split(best["command"])
    assert typed[:3] == ["descend", "train", "video-ut"]
    _, recipe, args, _ = read_recipe(typed[2:])
    config = json.loads((swept / best["folder"] / "config.json").read_text())
    assert (recipe.depth, recipe.window) == (2, 2)
    for name in ("learning_rate", "alpha", "strength", "dual_lr", "dual_optimizer", "resilience", "first_layer"):
        assert config["training"][name] == getattr(args, name)


def test_a_second_call_runs_nothing_and_more_trials_run_the_rest(swept, tmp_path, capsys):
    before = (swept / "sweep.json").read_text()
    assert main(words(swept, 3, *STRENGTH)) == 0
    assert (swept / "sweep.json").read_text() == before
    said = capsys.readouterr().out
    assert "trial" not in said.split("For every method")[0]
    best = found(swept)["methods"]["erm"]["best"]
    assert best["command"] in said and f"{best['value']:.4g} in {best['folder']}" in said
    assert str(swept / "report.html") in said


def test_what_is_given_is_not_searched():
    _, _, args, _ = read_recipe([*FLAGS, "--alpha", "0.2", "--dual-lr", "0.1", "--out", "none"])
    assert space(args, {"alpha", "dual_lr"}).keys() == {"learning_rate", "dual_optimizer", "resilience"}
    erm = read_recipe([*FLAGS, "--method", "erm", "--out", "none"])[2]
    assert space(erm, set()).keys() == {"learning_rate"}
    capped = read_recipe(["text-ut", "--data", "generated", "--alpha", "0.1", "--cap", "0.7", "--out", "none"])[2]
    assert space(capped, {"alpha"})["cap"].low < 0.7 < space(capped, {"alpha"})["cap"].high
    assert flags({"alpha": 0.1, "alpha_decay": 0.5}) == ["--alpha", "0.1", "--alpha-decay", "0.5"]


def test_without_alpha_the_learning_rate_alone_is_searched():
    args = read_recipe([*FLAGS, "--out", "none"])[2]
    assert space(args, set()).keys() == {"learning_rate"}
    found = space(args, set(), read_ranges(["strength=0.2:0.9"]))
    assert found.keys() == {"learning_rate", "strength"}
    assert (found["strength"].low, found["strength"].high) == (0.2, 0.9)


def test_a_range_of_ones_own_takes_the_place_of_the_usual():
    _, _, args, _ = read_recipe([*FLAGS, "--alpha", "0.1", "--out", "none"])
    ranges = read_ranges(["cap=1:5", "dual-lr=0.01:0.2"])
    found = space(args, set(), ranges)
    assert [(found[name].low, found[name].high, found[name].log) for name in ("cap", "dual_lr")] == [
        (1, 5, True),
        (0.01, 0.2, True),
    ]
    assert "cap" not in recipe_values(args, found) and recipe_values(args, found)["dual_lr"] == 0.03
    assert space(args, set()).keys() == found.keys() - {"cap"}
    erm = read_recipe([*FLAGS, "--method", "erm", "--out", "none"])[2]
    assert space(erm, set(), ranges) == space(erm, set())


@pytest.mark.parametrize("word", ["cap=", "cap=5:1", "cap=0:1", "cap=1:inf", "cap=a:b", "cap=1:2:3", "alpha=1:2"])
def test_what_is_no_range_is_refused(word):
    with pytest.raises(InputError, match=r"--range.*NAME=LOW:HIGH.*got"):
        read_ranges([word])


def test_what_was_chosen_at_an_end_of_its_range_is_named(swept):
    searched = {
        "learning_rate": {"low": 0.001, "high": 0.1, "log": True},
        "alpha_decay": {"low": 0.3, "high": 1.0, "log": False},
        "dual_optimizer": {"choices": ["adam", "sgd"]},
    }
    inside = {"learning_rate": 0.0013, "alpha_decay": 0.34, "dual_optimizer": "adam"}
    assert edges(inside, searched) == []
    assert edges(inside | {"learning_rate": 0.08}, searched) == ["learning_rate 0.08 of 0.001 to 0.1"]
    assert edges(inside | {"learning_rate": 0.0012}, searched) == ["learning_rate 0.0012 of 0.001 to 0.1"]
    # α can't decay by less than not at all.
    assert edges(inside | {"alpha_decay": 1.0}, searched) == []
    assert edges(inside | {"alpha_decay": 0.33}, searched) == ["alpha_decay 0.33 of 0.3 to 1"]
    content = found(swept)
    content["methods"]["erm"]["edges"] = ["learning_rate 0.1 of 0.001 to 0.1"]
    assert "better may lie beyond: learning_rate 0.1 of" in sentences(SweepFile.model_validate(content))


def test_the_first_trial_of_each_method_is_the_recipes_own(swept):
    _, _, args, _ = read_recipe([*FLAGS, "--out", "none"])
    for part in found(swept)["methods"].values():
        for name, value in part["trials"][0]["settings"].items():
            assert value == args.resolved(name)


def test_what_is_out_of_range_is_not_begun_with():
    _, _, args, _ = read_recipe([*FLAGS, "--resilience", "0", "--alpha", "0.3,0.2", "--out", "none"])
    assert recipe_values(args, space(args, ())).keys() == {"learning_rate", "alpha_decay", "dual_lr", "dual_optimizer"}


# --- the rule, and whose turn it is


def search(url: str, trials: int = 3, initial: Mapping[str, float] = {"alpha": 0.1}, **settings) -> Search:
    args = DescentConfig(output_dir="none", report_to="none")
    common = {"maximize": False, "settings": settings, "initial": initial}
    return Search.open(open_storage(url), "constrained", space(args, ()), trials=trials, seed=0, **common)


@pytest.fixture
def quiet():
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        yield


def end(search: Search, value: float | None, state=TrialState.COMPLETE, **attributes) -> None:
    search.study.add_trial(create_trial(state=state, value=value, user_attrs=attributes))


@pytest.mark.parametrize(("sign", "maximize"), [(1, False), (-1, True)])
def test_the_rule(tmp_path, quiet, sign, maximize):
    at = search(f"sqlite:///{tmp_path / 'a.db'}")
    study = optuna.create_study(direction="maximize" if maximize else "minimize")
    at = Search("constrained", study, 3, 0, at.space)
    assert at.best is None
    end(at, sign * math.inf, diverged="…")
    assert at.best is None
    for value, feasible in ((3.0, True), (2.0, False), (2.0, True), (2.0, True), (2.5, True)):
        end(at, sign * value, feasible=feasible)
    end(at, sign * 1.0, TrialState.PRUNED)
    assert at.best.number == 3


@pytest.mark.parametrize(
    ("method", "preset", "expected"), [("constrained", None, 2), ("constrained", "paper", 0), ("erm", None, 0)]
)
@pytest.mark.parametrize(("sign", "maximize"), [(1, False), (-1, True)])
def test_a_feasible_trial_may_be_a_little_worse(tmp_path, quiet, sign, maximize, method, preset, expected):
    at = search(f"sqlite:///{tmp_path / 'a.db'}")
    study = optuna.create_study(direction="maximize" if maximize else "minimize")
    study.set_user_attr("settings", {"preset": preset})
    at = Search(method, study, 5, 0, at.space)
    for value, feasible in ((2.0, False), (2.03, True), (2.019, True), (2.01, False)):
        end(at, sign * value, feasible=feasible)
    assert at.best.number == expected


def test_a_study_that_another_worker_is_about_to_begin_is_left_out(tmp_path, quiet):
    at = search(f"sqlite:///{tmp_path / 'a.db'}", searched={})
    begun = Search("erm", optuna.create_study(), 3, 0, at.space)
    facts = {"recipe": "video-ut", "model": "UT-2", "higher_is_better": False, "metric": "rmse", "levels": [0.0]}
    written = write(tmp_path, {**facts, "seeds": 1}, [at, begun])
    assert list(written.methods) == ["constrained"]
    assert {file.name for file in tmp_path.iterdir()} == {"a.db", "sweep.json"}, "and no lock is left"


@pytest.mark.parametrize(
    "url", ["me:s3cret@host", "postgresql//me:s3@cret@host/x", "postgresql://me:s3cret@host:port/x"]
)
def test_a_password_is_not_told(url):
    with pytest.raises(InputError, match=r"got '(postgresql://)?\*\*\*@host") as told:
        open_storage(url)
    assert "cret" not in str(told.value)


def test_a_trial_begun_beyond_the_number_asked_for_gives_way(tmp_path, quiet):
    at = search(f"sqlite:///{tmp_path / 'a.db'}", trials=2)
    first, second, third = (at.study.ask() for _ in range(3))
    assert first.suggest_float("alpha", 0.01, 0.7) == 0.1
    at.claim(first.number), at.claim(second.number)
    assert not at.free and not at.done
    with pytest.raises(TooMany):
        at.claim(third.number)
    at.study.tell(third.number, state=TrialState.FAIL)
    at.study.tell(second.number, state=TrialState.FAIL)
    at.give_back(second.number)
    assert at.free
    fourth = at.study.ask()
    at.claim(fourth.number)
    assert fourth.number == 3 and not at.free


def test_draws_depend_on_the_trial_not_on_the_worker(tmp_path, quiet):
    drawn = []
    for worker, order in (("a", (0, 1, 2)), ("b", (2, 1, 0))):
        at = search(f"sqlite:///{tmp_path / worker}.db", trials=3, initial={})
        begun = [at.study.ask() for _ in order]
        values = {}
        for number in order:
            at.claim(number)
            values[number] = begun[number].suggest_float("alpha", 0.01, 0.7)
        drawn.append(values)
    assert drawn[0] == drawn[1] and len(set(drawn[0].values())) == 3


def test_a_trial_is_pruned_that_is_far_behind_from_the_middle_on_but_not_in_warm_up_nor_at_its_end(tmp_path, quiet):
    study = search(f"sqlite:///{tmp_path / 'a.db'}", initial={}).study
    args = DescentConfig(output_dir="none", report_to="none", max_steps=10, dual_warmup_steps=6, use_cpu=True)

    def measure(step: int, value: float) -> None:
        state = State(global_step=step, max_steps=10)
        loop = {"model": "the user's model", "train_dataloader": [0] * 5}
        glance = {"the user's model": value}.__getitem__
        _Pruning(study.ask(), glance).on_evaluate(args, state, TrainerControl(), **loop)

    def finished(value: float) -> None:
        study.add_trial(create_trial(value=value, intermediate_values=dict.fromkeys((4, 5, 6, 7, 10), value)))

    for value in (1.0, 2.0, 3.0, 4.0):
        finished(value)
    measure(7, 9.0)  # the worst, but only four have finished
    finished(5.0)
    measure(7, 3.9)  # worse than most of them
    measure(6, 9.0)  # the multipliers have not moved
    measure(10, 9.0)  # at its end
    with pytest.raises(optuna.TrialPruned):
        measure(7, 4.1)
    args.method = "erm"
    with pytest.raises(optuna.TrialPruned):
        measure(5, 9.0)
    measure(4, 9.0)  # before the middle


# --- workers that come and go


def test_two_workers_and_one_that_was_killed_make_exactly_as_many(swept, tmp_path, monkeypatch):
    """A trial that was killed goes on from its checkpoint and comes to the same value as one that was not."""
    out = tmp_path / "sweep"
    killed = worker(out, 3, "--method", "erm")
    try:
        until = time.monotonic() + 300
        while not (out / "trials" / "erm-000" / "checkpoint-1").is_dir():
            assert time.monotonic() < until and killed.is_alive()
            time.sleep(0.002)
    finally:
        killed.kill()
        killed.join()
    other = worker(out, 3, "--method", "erm")
    monkeypatch.setattr(storage, "HEARTBEAT", 1)
    monkeypatch.setattr(storage, "GRACE", 3)
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


def test_an_interrupted_sweep_says_how_to_go_on_and_does(swept, tmp_path, monkeypatch, capsys):
    original, signals = DescentTrainer.compute_loss, [signal.SIGINT]

    def interrupted(self, *args, **kwargs):
        if self.dual.steps + 1 == 3 and signals:
            signal.raise_signal(signals.pop())
        return original(self, *args, **kwargs)

    monkeypatch.setattr(DescentTrainer, "compute_loss", interrupted)
    out = tmp_path / "sweep"
    line = words(out, 1, "--method", "erm")
    assert main(line) == 130
    assert f"Go on with: descend {shlex.join(line)}" in capsys.readouterr().err
    assert main(line) == 0
    (trial,) = found(out)["methods"]["erm"]["trials"]
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
    workers = [worker(tmp_path / "sweep", 4, "--method", "erm", "--storage", url) for _ in range(2)]
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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_searches_the_same_learning_rates(method):
    plain, args = (
        read_recipe(["text-distilbert", "--data", "generated", "--method", each, "--out", "none"])[2]
        for each in ("erm", method)
    )
    assert described(space(args, set())) == described(space(plain, set()))
    assert described(space(plain, set())).keys() == {"learning_rate"}


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


# --- the page


def test_the_page_of_a_sweep(swept, browser: Browser):
    with Visit(browser, swept / "report.html", viewport={"width": 1280, "height": 900}) as visit:
        assert visit.complaints == []
        assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        headings = visit.page.locator("figure h3").all_inner_texts()
        assert headings[0] == "Trial by trial"
        assert headings[-1] == "Constrained: settings and value of each trial"
        content = found(swept)
        assert content["rule"] in visit.page.locator(".verdict").inner_text()
        for part in content["methods"].values():
            assert part["best"]["command"] in visit.page.locator("pre").inner_text()
        ended = [trial for trial in content["methods"]["erm"]["trials"] if trial["state"] == "finished"]
        assert visit.plot("history", "[...plot.data[0].y]") == [trial["value"] for trial in ended]
        assert visit.plot("parallel-constrained", "plot.data.length") == 3
        before = visit.plot("history", "plot.data[0].marker.color")
        visit.page.emulate_media(color_scheme="dark")
        visit.page.wait_for_timeout(200)
        assert visit.plot("history", "plot.data[0].marker.color") != before
    with Visit(browser, swept / "report.html", viewport={"width": 390, "height": 844}, is_mobile=True) as visit:
        assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth === 390")


def test_what_came_apart_does_not_squash_the_others():
    good = [9.2, 9.3, 9.4, 9.5, 9.6]
    assert reach(good, higher=False) is None and reach([], higher=False) is None
    low, high = reach([*good, 50.0, 99.0], higher=False)
    assert 9.0 < low < 9.2 and 9.6 < high < 12
    low, high = reach([-value for value in (*good, 50.0, 99.0)], higher=True)
    assert -12 < low < -9.6 and -9.2 < high < -9.0
    assert reach([1.0, 1.0, 2.0], higher=False) is None


def test_whatever_a_sweep_holds_is_text(swept, tmp_path, browser: Browser):
    content, hostile = found(swept), " ".join(HOSTILE)
    content |= dict.fromkeys(("recipe", "model", "metric", "rule"), hostile)
    part = content["methods"].pop("constrained")
    part["searched"]["dual_optimizer"] = {"choices": [hostile]}
    for trial in (*part["trials"], part["best"]):
        trial["settings"]["dual_optimizer"] = hostile
    part["best"]["command"], part["edges"] = hostile, [hostile]
    part["searched"][hostile] = {"low": 0, "high": 1, "log": False}
    content["methods"][hostile] = part
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with Guarded(browser, write_sweep(tmp_path)) as visit:
        visit.assert_quiet()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("methods"),
        lambda content: content["methods"]["erm"].pop("trials"),
        lambda content: content["methods"]["erm"]["searched"].update(x={"low": -1, "high": 1, "log": True}),
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
