"""Cells of a study carried out: each once, whoever is killed, stopped or at work in the same folder."""

import json
import math
import multiprocessing
import os
import shutil
import signal
import threading
import time
from functools import partial

import pytest

from descend import InputError, NonFiniteLossError
from descend.results import Record, locked
from reproduction import cell_store, grid
from reproduction.__main__ import main
from reproduction.grid import Wanted, cells, named
from reproduction.records import CELLS_FILE, parse_cell
from reproduction.study import Study
from reproduction.workers import Job, carry_out
from tests.support import studies

# The same for all: one server of forks imports these once.
PRELOAD = ["descend.cli", "descend.run", "descend.recipes.video"]
SUMMARY = studies.line("video", "UT", "scenes", 2, 0.8, "erm", 0)["summary"]
VIDEO = [cell for cell in cells(["figure-3"], "smoke") if cell.model == "UT" and cell.depth == 2]


def changed(cell, variant, **settings):
    fields = {**dict(cell), "variant": variant, "settings": {**cell.settings, **settings}}
    return named(**{key: value for key, value in fields.items() if key != "name"})


@pytest.fixture
def out(tmp_path):
    (tmp_path / "study" / "runs").mkdir(parents=True)
    return tmp_path / "study"


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def kill(lock):
    """Kill whoever holds a claim, as a full memory would."""
    os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)


# --- light work, through the same processes, claims and lines


def light(job: Job, seconds: float = 0.2) -> None:
    """A run's files, and a line in a common file that says who made them."""
    with (job.out / "made.txt").open("a") as made:
        made.write(f"{job.cell.name} {os.getpid()}\n")
    time.sleep(seconds)
    job.folder.mkdir(exist_ok=True)
    settings = {"recipe": job.cell.recipe, "method": "erm", "seed": 0, "model": "UT-2", "settings": {}, "training": {}}
    (job.folder / "config.json").write_text(json.dumps({**settings, "seconds": 0.1}))
    (job.folder / "summary.json").write_text(json.dumps(SUMMARY))


def choosy(job: Job) -> None:
    light(job, 0)
    if job.cell.variant == "bad":
        raise InputError("expected better; got this.")
    if job.cell.variant == "diverged":
        raise NonFiniteLossError("the loss of layer 1 is NaN.\nAnd more.")
    if job.cell.variant == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.cell.variant == "stopped" and made(job.out).count(job.cell.name) == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)


def made(out):
    file = out / "made.txt"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def jobs_of(out, count=4):
    return [Job(changed(VIDEO[0], f"v{place}"), out, None) for place in range(count)]


def command(out, seconds, count=4):
    """A command of its own in another process, as a second terminal or machine has it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    carry_out(jobs_of(out, count), partial(light, seconds=seconds), workers=2)


def test_whatever_becomes_of_a_cell_the_others_are_done(out):
    told = []
    found = [Job(changed(VIDEO[0], name), out, None) for name in ("good", "bad", "diverged", "killed", "stopped")]
    report = carry_out(found, choosy, workers=2, preload=PRELOAD, tell=lambda cell, _: told.append(cell.variant))
    names = {job.cell.variant: job.cell.name for job in found}
    assert sorted(told) == sorted(names)
    assert report.failed.keys() == {names["bad"], names["killed"]}
    assert "expected better; got this." in report.failed[names["bad"]]
    assert "status -9" in report.failed[names["killed"]]
    assert made(out).count(names["killed"]) == 3, "tried again twice"
    assert report.diverged == {names["diverged"]: "the loss of layer 1 is NaN."}
    lines = cell_store.read(out)
    assert lines.keys() == {names[each] for each in ("good", "stopped", "diverged")}
    assert lines[names["diverged"]].summary is None and lines[names["diverged"]].diverged
    good = lines[names["good"]]
    assert good.summary.mean == pytest.approx(SUMMARY["mean"], rel=1e-5) and good.seconds > 0
    assert "expected better" in (out / "runs" / f"{names['bad']}.log").read_text()
    (found[0].folder / "model").mkdir()  # as an interrupt between its line and its tidying leaves it
    again = carry_out(found[:1] + found[2:3], choosy, workers=2, preload=PRELOAD)
    assert not (found[0].folder / "model").exists() and (found[0].folder / "summary.json").exists()
    assert not again.seconds and made(out).count(names["diverged"]) == 1, "what is done, diverged or not, is not run"


def test_a_cell_whose_line_was_taken_away_is_run_again(out):
    jobs = jobs_of(out, 2)
    carry_out(jobs, light, workers=2, preload=PRELOAD)
    file = out / CELLS_FILE
    file.write_text("".join(line for line in file.read_text().splitlines(True) if jobs[0].cell.name not in line))
    (jobs[0].folder / "old").touch()
    carry_out(jobs, light, workers=2, preload=PRELOAD)
    assert [made(out).count(job.cell.name) for job in jobs] == [2, 1] and not (jobs[0].folder / "old").exists()
    assert cell_store.read(out).keys() == {job.cell.name for job in jobs}


def test_two_commands_in_one_folder_run_each_cell_once(out):
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=command, args=(out, 1.5, 8))
    other.start()
    until(lambda: made(out))
    report = carry_out(jobs_of(out, 8), partial(light, seconds=1.5), workers=2, preload=PRELOAD)
    other.join()
    assert other.exitcode == 0
    names = {job.cell.name for job in jobs_of(out, 8)}
    assert sorted(made(out)) == sorted(names) and cell_store.read(out).keys() == names
    assert 0 < len(report.seconds) < 8, "both have done some"


def test_what_another_command_leaves_behind_is_taken_over(out):
    (job, *_) = jobs_of(out)
    done = []

    def work():
        done.append(carry_out([job], light, workers=1, preload=PRELOAD))

    with locked(out / "runs", f"{job.cell.name}.descend-lock"):
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(1)
        assert not made(out)
    thread.join()
    assert done[0].seconds.keys() == {job.cell.name}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_leaves_no_process_and_no_claim(out, how):
    other = multiprocessing.get_context("spawn").Process(target=command, args=(out, 60))
    other.start()
    until(lambda: len(made(out)) == 2)
    workers = [int(line.split()[1]) for line in (out / "made.txt").read_text().splitlines()]
    os.kill(other.pid, how)
    other.join(120)
    assert other.exitcode is not None
    until(lambda: not any(running(each) for each in workers), 10)
    for job in jobs_of(out)[:2]:
        with locked(out / "runs", f"{job.cell.name}.descend-lock"):
            pass
    assert not cell_store.read(out)


def running(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- the real thing


def test_a_study_from_the_command_line(out, monkeypatch, capsys):
    """Two cells are trained, one after a kill; one diverges, one can't be run; then there is nothing to do."""
    erm, constrained = VIDEO[0], VIDEO[4]
    assert (erm.arm, constrained.arm) == ("erm", "constrained")
    long = changed(constrained, "", max_steps=40, save_steps=5)
    wild = changed(constrained, "wild", learning_rate=1e30)
    bad = changed(erm, "bad", window=999)
    study = {"figure-1": Wanted("some", lambda _: [long, erm, wild, bad])}
    monkeypatch.setattr(grid, "WANTED", study)
    words = ["figure-1", "--scale", "smoke", "--out", str(out), "--workers", "2"]
    assert main([*words, "--dry-run"]) == 0
    assert "4 cells: 0 done, 4 to run." in capsys.readouterr().out
    assert not (out / "cells.jsonl").exists()

    lock, folder = out / "runs" / f"{long.name}.descend-lock", out / "runs" / long.name
    killed = []

    def killer():
        until(lambda: any(folder.glob("checkpoint-*")))
        kill(lock)
        killed.append(long.name)

    thread = threading.Thread(target=killer)
    thread.start()
    assert main(words) == 1
    thread.join()
    assert killed
    said = capsys.readouterr()
    assert f"{bad.name} failed: clip" in said.err and "1 cells failed" in said.err
    assert f"{wild.name} diverged" in said.out
    lines = cell_store.read(out)
    assert lines.keys() == {long.name, erm.name, wild.name}
    for cell in (long, erm):
        line = lines[cell.name]
        assert line.cell == cell and line.summary.method == cell.arm
        assert len(line.train_losses) == cell.depth + 1 and all(map(math.isfinite, line.train_losses))
        assert line.train_losses != line.summary.layer_losses[cell.gamma]
        assert line.curves["loss"].steps[-1] == line.validation["steps"][-1] == (40 if cell is long else 6)
        assert str(out) not in line.model_dump_json()
        assert not (out / "runs" / cell.name / "model").exists() and (out / "runs" / cell.name / "frames.npz").exists()
    assert lines[long.name].curves["multiplier"].steps == list(range(2, 41, 2)), "gone on, none twice"
    assert "training from the start" not in (out / "runs" / f"{long.name}.log").read_text()

    study["figure-1"] = Wanted("some", lambda _: [long, erm, wild])
    before = (out / "cells.jsonl").read_bytes()
    assert main(words) == 0
    assert "3 cells: 3 done, 0 to run." in capsys.readouterr().out
    assert (out / "cells.jsonl").read_bytes() == before

    study["figure-1"] = Wanted("none of these", lambda _: [])
    kept = {
        file: file.stat().st_mtime_ns for file in out.rglob("*") if file.is_file() and file.parent.name != "figures"
    }
    shutil.rmtree(out / "figures")
    assert main(["report", str(out)]) == 0
    assert "figure-1: not run. " in capsys.readouterr().out
    assert {file.name for file in (out / "figures").iterdir()} >= {"figure-1.svg", "claims.json"}
    kept.pop(out / "report.html")
    assert {file: file.stat().st_mtime_ns for file in kept} == kept, "nothing is run, put aside or written beside it"
    assert not (out / "superseded.jsonl").exists()


def test_where_every_cell_fails_each_is_told_and_nothing_is_drawn(out, monkeypatch, capsys):
    bad = changed(VIDEO[0], "bad", window=999)
    monkeypatch.setattr(grid, "WANTED", {"figure-1": Wanted("some", lambda _: [bad])})
    assert main(["figure-1", "--scale", "smoke", "--out", str(out), "--workers", "1"]) == 1
    said = capsys.readouterr().err
    assert f"{bad.name} failed: clip" in said and "holds no study" not in said
    assert not (out / "figures").exists()


def test_a_study_is_refused_before_it_starts(out, tmp_path, capsys):
    def refused(*words):
        assert main([*words]) == 2
        return capsys.readouterr().err

    assert "expected --data-root, a folder with video/ped2 (ucsd)" in refused("figure-7", "--out", str(out))
    said = refused("figure-6", "--out", str(out), "--data-root", str(tmp_path))
    assert "must hold alpaca/alpaca_data.json (alpaca), weights/stories260K (alpaca)" in said
    assert "'large'" in (said := refused("figure-7", "--scale", "large")) and "smoke" in said
    assert "did you mean table-3?" in refused("tabel-3")
    (out / "study.json").write_text('{"scale": "small", "what": ["figure-7"]}')
    assert "holds a study at --scale small" in refused("figure-7", "--scale", "smoke", "--out", str(out))
    run = out.parent / "a-run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert "holds no study, but a run" in refused("figure-7", "--scale", "smoke", "--out", str(run))
    (out / "study.json").unlink()
    study = Study.of(["figure-7"], "smoke", out, None)
    (out / "study.json").write_text('{"scale": "small", "what": ["figure-7"]}')  # another command, meanwhile
    with pytest.raises(InputError, match="--scale small"):
        study.write()
    (out / "study.json").write_text('{"scale": "smoke", "what": 5}')
    assert "what should be a valid list" in refused("figure-3", "--scale", "smoke", "--out", str(out))
    (out / "study.json").unlink()
    for seconds in ({"seconds": "soon"}, {"seconds": None}):
        (out / "cells.jsonl").write_text(json.dumps(line_of(VIDEO[0].name, **seconds)) + "\n")
        said = refused("figure-3", "--scale", "smoke", "--out", str(out))
        assert "cells.jsonl, line 1," in said and "seconds" in said and said.count("\n") == 1
    other = json.dumps(line_of("of-another-scale", seconds=3.0)) + "\n"
    (out / "cells.jsonl").write_text(other)
    assert "has no cell of scale smoke" in refused("figure-3", "--scale", "smoke", "--out", str(out))
    assert (out / "cells.jsonl").read_text() == other and not (out / "study.json").exists()


# --- cells.jsonl


def line_of(name, **other):
    content = studies.line("video", "UT", "scenes", 2, 0.8, "erm", 0)
    content["cell"]["name"] = name
    return content | other


def append(out, name, **other):
    cell_store.append(out, parse_cell(line_of(name, **other), "a line"))


def test_a_line_that_was_cut_off_is_left_out_and_written_over(tmp_path):
    append(tmp_path, "one")
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"cell": {"name": "two"}, "summ')
    assert cell_store.read(tmp_path).keys() == {"one"}
    append(tmp_path, "three", seconds=1 / 3, curves={"loss": {"steps": [1], "values": [[float("nan"), 12345678.9, 2]]}})
    found = cell_store.read(tmp_path)
    assert found.keys() == {"one", "three"}
    (row,) = found["three"].curves["loss"].values
    assert found["three"].seconds == 0.333333 and row[0] != row[0] and row[1:] == [12345700.0, 2.0]
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 2


def test_a_line_without_a_cell_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "cells.jsonl").write_text(json.dumps(line_of("one")) + '\n{"foo": 1}\n')
    with pytest.raises(InputError, match=r"cells\.jsonl, line 2.*cell, seconds"):
        Study.of(["figure-1"], "smoke", tmp_path, None)


def test_a_dry_run_looks_for_the_data_where_it_is_told_to(tmp_path, capsys):
    words = ["figure-2", "--scale", "small", "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(words) == 0
    assert main([*words, "--data-root", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "cells: 0 done" in told.out and "must hold" in told.err and "video/ped2" in told.err


def test_the_losses_of_training_samples_are_kept_where_they_were_measured(tmp_path):
    old = line_of("old")
    del old["train_losses"]
    cell_store.append(tmp_path, parse_cell(old, "a line of before"))
    append(tmp_path, "new", train_losses=[0.5, None, 0.25])
    found = cell_store.read(tmp_path)
    assert found["old"].train_losses is None
    first, between, last = found["new"].train_losses
    assert (first, last) == (0.5, 0.25) and math.isnan(between)
    with pytest.raises(InputError, match="train_losses must be L"):
        append(tmp_path, "wrong", train_losses=[0.5])


def test_half_a_line_alone_and_a_long_one_are_dropped(tmp_path):
    (tmp_path / "cells.jsonl").write_text("{" + "x" * 200_000)
    append(tmp_path, "one")
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write("{" + "y" * 200_000)
    append(tmp_path, "two")
    assert list(cell_store.read(tmp_path)) == ["one", "two"]


def test_lines_of_other_settings_are_put_aside(tmp_path):
    for name in ("one", "two", "three"):
        append(tmp_path, name)
    assert cell_store.supersede(tmp_path, {"two"}) == 2
    assert list(cell_store.read(tmp_path)) == ["two"]
    assert len((tmp_path / "superseded.jsonl").read_text().splitlines()) == 2


def test_seeds_of_one_arm_with_other_settings_are_named(tmp_path, capsys):
    def add(arm, seed, **settings):
        content = line_of(f"{arm}-{seed}")
        content["cell"] |= {"seed": seed, "arm": arm, "settings": {"method": arm, "seed": seed, "x": 1}}
        content["summary"]["settings"] = settings
        cell_store.append(tmp_path, parse_cell(content, "a line"))

    for seed in range(3):
        add("erm", seed, max_steps=40, dropout=0.1)
    assert cell_store.mixed(tmp_path) == []
    for seed in range(3):
        add("constrained", seed, max_steps=50 if seed == 1 else 40)
    append(tmp_path, "gone", summary=None, diverged="loss is nan")
    (warning,) = cell_store.mixed(tmp_path)
    assert warning.startswith("constrained-1: other settings than constrained-0 (max_steps)")
    assert main(["report", str(tmp_path)]) == 2  # two lines of one seed
    assert f"WARNING: {warning}\n" in capsys.readouterr().err


def test_a_curve_keeps_its_last_step_and_says_where_nothing_was_looked_at(tmp_path):
    common = {"run": "r", "split": "train", "metric": "loss", "noise": 0.8}
    rows = [Record(**common, step=step, layer=2, value=step) for step in range(1, 151)]
    rows += [Record(**common, step=150, layer=layer, value=0.5) for layer in (0, 1)]
    curve = cell_store._curve(rows, "train", "loss")
    assert len(curve.steps) <= 60 and curve.steps[-1] == 150
    assert curve.first == 0 and curve.values[-1] == [0.5, 0.5, 150] and all(map(math.isnan, curve.values[0][:2]))
