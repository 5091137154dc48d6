"""Cells carried out by the command line of Descend: stopped and gone on with, failed, chosen among, listed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from descend import InputError
from descend.methods.weighted import logged_weights
from descend.results import Records, atomic_folder
from reproduction.__main__ import main
from reproduction.cells import EVERY_STEP, LAST, REPLAYS, SEARCH, SEARCH_SEED, Row, cells
from reproduction.grids import SCALES
from reproduction.run import BUSY, FAILED_FILE, MEAN, RUN, Session, Study, measured_on_validation, read_json, write_json
from reproduction.table import collected

pytestmark = pytest.mark.slow

SMOKE = SCALES["smoke"]
ROWS = [Row("main", "UT", ["scenes"], [2], [0.8], ["linear"], [0], ["untied"])]


def study(folder, rows=ROWS, **changes):
    model = replace(SMOKE.models["UT"], **{"trials": {}} | changes)
    return Study(folder, "smoke", replace(SMOKE, rows=rows, models={"UT": model}))


def test_a_stopped_run_goes_on_and_is_done_once(tmp_path):
    """Ctrl-C ends a session with 130 and a checkpoint; the next session resumes, and a third has nothing to do."""
    words = ["run", "UT-2_scenes_0.8_erm_untied_trial-1", "--scale", "smoke", "--out", str(tmp_path), "--workers", "1"]
    session = subprocess.Popen([sys.executable, "-m", "reproduction", *words], stdout=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 300
        while not list(tmp_path.glob("cells/*/run/checkpoint-*")):
            assert session.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        session.send_signal(signal.SIGINT)
        out, _ = session.communicate(timeout=300)
    finally:
        session.kill()
    (folder,) = tmp_path.glob("cells/*")
    assert session.returncode == 130 and "stopped" in out and not (folder / FAILED_FILE).exists()
    assert main(words) == 0
    log = (folder / "log.txt").read_text()
    trained = [line.endswith("--resume") for line in log.splitlines() if line.startswith("$ descend train")]
    assert trained == [False, True] and (folder / RUN / "summary.json").is_file()
    assert not list((folder / RUN).glob("checkpoint-*")) and read_json(folder / "cell.json")["seconds"] > 0
    assert main(words) == 0 and (folder / "log.txt").read_text() == log


@pytest.mark.parametrize(
    ("status", "reason", "state"),
    [
        (2, "learning_rate must be at least 0", "failed"),
        (1, "the loss of layer 2 is not finite", "diverged"),
        (2, f"the run {BUSY} 7 on a machine", "to do"),
    ],
)
def test_what_a_cell_ends_with_is_recorded_and_a_failed_one_tried_again_if_asked(
    tmp_path, monkeypatch, status, reason, state
):
    ended = study(tmp_path)
    (cell,) = ended.cells()
    calls = []

    def called(self, words, folder):
        calls.append(words)
        return status, f"descend: {reason}"

    monkeypatch.setattr(Session, "_called", called)
    left = state == "to do"  # another process trains it
    for again, tries in ((False, 1), (False, 1 + left), (True, 2 + left)):
        assert Session(ended, again=again).go(workers=1) == 0 and len(calls) == tries
    assert ended.state(cell) == ("to do" if left else "failed")
    failed = {"reason": f"descend: {reason}", "status": status, "diverged": state == "diverged"}
    assert read_json(ended.of(cell) / FAILED_FILE) == (None if left else failed)


def validated(folder, metrics, feasible=True, higher=False):
    """An evaluated run whose layers have these metrics on validation data: level → layers."""
    (folder / RUN).mkdir(parents=True)
    layers = {f"{level}": row for level, row in metrics.items()}
    known = {"higher_is_better": higher, "feasible": feasible, "validation": {"layer_metrics": layers}}
    write_json(folder / RUN / "summary.json", known)


def test_the_training_level_counts_only_where_the_test_has_it(tmp_path):
    validated(tmp_path, {0.0: [0.2, 0.8], 0.9: [0.0, 0.0], 1.0: [0.2, 0.6]}, higher=True)
    file = tmp_path / RUN / "summary.json"
    for noise, area in (([0.0, 1.0], 0.7), ([0.0, 0.9, 1.0], 0.5 * 0.9 * 0.8 + 0.5 * 0.1 * 0.6)):
        write_json(file, {**read_json(file), "noise": noise})
        assert measured_on_validation(tmp_path / RUN, by_layers=False)["value"] == pytest.approx(area)


def test_the_choice_is_the_best_mean_over_seeds_whether_it_holds_or_not(tmp_path):
    panels = {SEARCH: range(1000, 1003), "main": [0]}
    rows = [replace(ROWS[0], panel=panel, arms=["algorithm-1"], seeds=seeds) for panel, seeds in panels.items()]
    trials = [{"dual_lr": rate} for rate in (0.01, 0.02)] + [{"dual_lr": 0.03, "alpha": 0.1}, {"dual_lr": 0.04}]
    searched = study(tmp_path, rows, trials={"algorithm-1": trials})
    *tried, main_cell = searched.cells()
    assert len(tried) == 12 and searched.state(main_cell) == "waits"
    # One seed of the first trial is the best of all runs; by the mean the second is better; it breaks its constraints.
    errors = {"trial-1": (5.0, 9.0, 9.0), "trial-2": (7.0, 7.2, 7.1), "trial-3": (6.0, 6.1, 6.2)}
    for cell in tried[:-1]:
        if cell.variant in errors:
            error = errors[cell.variant][cell.seed - SEARCH_SEED]
            metrics = {0.0: [9.0, 9.0, error - 1], 1.0: [9.0, 9.0, error + 1]}
            validated(searched.of(cell), metrics, feasible=cell.variant == "trial-1")
        else:
            searched.of(cell).mkdir(parents=True)
            write_json(searched.of(cell) / FAILED_FILE, {"reason": "not finite", "diverged": True})
    searched.choose()
    assert searched.chosen == {}  # the last trial's last seed is to do
    searched.of(tried[-1]).mkdir(parents=True)
    write_json(searched.of(tried[-1]) / FAILED_FILE, {"reason": "not finite", "diverged": True})
    searched.choose()
    choice = searched.chosen["UT untied algorithm-1"]
    assert choice["fixed"]["settings"] == trials[1] and choice["searched"]["settings"] == trials[2]
    assert choice["fixed"]["value"] == pytest.approx(-7.1) and choice["fixed"]["feasible"] == 0.0
    cell = searched.cells()[-1]
    assert searched.state(cell) == "to do" and cell.settings["dual_lr"] == 0.02 and cell.settings["alpha"] == 0.22


def test_a_search_by_layers_chooses_by_the_deeper_half_and_another_time_by_the_last_layer(tmp_path):
    panels = {SEARCH: ({"": {}}, [SEARCH_SEED]), "layers": ({"": {}, LAST: {}}, [0])}
    rows = [
        replace(ROWS[0], panel=panel, variants=variants, seeds=seeds) for panel, (variants, seeds) in panels.items()
    ]
    trials = [{"learning_rate": rate} for rate in (0.01, 0.02)]
    searched = study(tmp_path, rows, trials={"linear": trials}, paper={}, by_layers=True)
    one, other, *waiting = searched.cells()
    assert [cell.variant for cell in waiting] == ["", LAST]
    # Three layers: the deeper half are 1, 2 and 3. The embedding decides nothing.
    for cell, layers in ((one, [0.9, 0.5, 0.6, 0.9]), (other, [0.1, 0.8, 0.8, 0.7])):
        validated(searched.of(cell), {0.0: layers}, higher=True)
    searched.choose()
    rates = [cell.settings["learning_rate"] for cell in searched.cells()[2:]]
    assert rates == [0.02, 0.01]
    (searched.of(one) / RUN / "summary.json").unlink()  # now one rate is best for both: one cell is enough
    searched.folder.joinpath("chosen.json").unlink()
    write_json(searched.of(one) / FAILED_FILE, {"reason": "not finite", "diverged": True})
    searched.choose()
    assert [cell.variant for cell in searched.cells()[2:]] == [""]


def test_weights_of_every_step_are_replayed_and_their_mean_is_held_after_the_same_warm_up(tmp_path):
    place = ("UT", ["scenes"], [2], [0.8])
    variants = {EVERY_STEP: {"logging_steps": 1}}
    rows = [
        Row("source", *place, ["algorithm-1"], [0], ["untied"], variants),
        Row("mechanism", *place, REPLAYS, [1], ["untied"]),
    ]
    given = study(tmp_path, rows)
    source, *waiting = given.cells()
    assert [given.state(cell) for cell in (source, *waiting)] == ["to do", "waits", "waits"]
    given.choose()
    assert given.chosen == {}
    validated(given.of(source), {0.8: [1.0, 1.0, 1.0]})
    records = Records(given.of(source) / RUN / "records.jsonl", RUN)
    logged = [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [-0.5, 0.25, 1.0], [-0.25, 0.5, 1.5], [9.0, 9.0, 9.0]]
    for step, weights in enumerate(logged, 1):
        records.rows({"weight": weights}, step=step, split="train", noise=None)
    given.choose()
    _, replayed, mean = given.cells()
    assert given.state(replayed) == given.state(mean) == "to do"
    words = [cell.commands(tmp_path / "run", given.places)[0] for cell in (replayed, mean)]
    assert str(given.of(source) / RUN) in words[0] and str(given.of(source) / MEAN) in words[1]
    # Of each of the first four steps; the last log is of no step.
    assert logged_weights(given.of(source) / MEAN) == {1: [0, 0, 1], 3: [-0.375, 0.375, 1.25]}
    assert str(tmp_path) not in json.dumps(replayed.settings)
    # Elsewhere the source's row alone is there: it is run again for its weights, until the replays' rows are there too.
    head = {"scale": "smoke", "chosen": given.chosen, "edges": []}
    known = [{"name": cell.name, "diverged": None} for cell in (source, replayed, mean)]
    for rows_known, states in ((known[:1], ["to do", "no data", "no data"]), (known, ["done"] * 3)):
        (file := tmp_path / "known.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (head, *rows_known)))
        elsewhere = replace(study(tmp_path / "elsewhere", rows), known=file)
        assert [elsewhere.state(cell) for cell in elsewhere.cells()] == states


def test_a_link_in_the_place_of_a_run_is_not_followed(tmp_path):
    (cell, *_), other = study(tmp_path / "study").cells(), tmp_path / "other"
    with atomic_folder(other / "model") as part:
        (part / "weights").touch()
    (folder := study(tmp_path / "study").of(cell)).mkdir(parents=True)
    (folder / RUN).symlink_to(other, target_is_directory=True)
    with pytest.raises(InputError, match="is a link that leads out of"):
        Session(study(tmp_path / "study"), [cell.name]).go(1)
    assert (other / "model" / "weights").is_file() and not (folder / "log.txt").exists()


def test_two_sessions_share_a_study(tmp_path, monkeypatch):
    """A cell that another session runs is left to it."""
    shared = study(tmp_path, rows=[replace(ROWS[0], seeds=range(2))])
    called = []

    def instead(self, words, folder):
        called.append((id(self), words[1] if words[0] == "evaluate" else words[0]))
        time.sleep(0.2)
        if words[0] == "evaluate":
            (folder / RUN).mkdir()
            write_json(folder / RUN / "summary.json", {})
        return 0, ""

    monkeypatch.setattr(Session, "_called", instead)
    sessions = [Session(shared), Session(shared)]
    cell, lock = sessions[0]._next()
    assert sessions[1].go(workers=2) == 0
    assert [json.dumps(cell.name) in json.dumps(words) for _, words in called] == [False, False]
    lock.release()
    assert Session(shared).go(workers=2) == 0 and len(called) == 4 and os.listdir(shared.folder / "cells")


def test_another_machine_works_off_a_list_of_command_lines(tmp_path, capsys):
    """Cells that are done are not in it; a run that comes back in a cell's folder counts as done."""
    file, words = tmp_path / "jobs.json", ["--scale", "smoke", "--out", str(tmp_path / "study")]
    command = ["jobs", "UT-2_scenes", *words, "--data", "/root/data", "--models", "/root/models", "--file", str(file)]
    assert main(command) == 0
    listed = read_json(file)
    waiting = sum(bool(cell.waits) for cell in cells(SMOKE, {}) if "UT-2_scenes" in cell.name)
    assert f"4 jobs in {file}; {waiting} wait for a search; 0 replay" in capsys.readouterr().out
    assert [job["tags"]["variant"] for job in listed] == ["trial-1", "trial-2"] * 2
    train, evaluate = listed[0]["argv"]
    assert train[:2] == ["train", "video-ut"] and train[-3:] == ["--out", "RUN", "--quiet"]
    assert evaluate[:2] == ["evaluate", "RUN"] and str(tmp_path) not in json.dumps(listed)
    validated(tmp_path / "study" / "cells" / listed[0]["name"], {0.8: [1.0]})
    assert main(command) == 0 and [job["name"] for job in read_json(file)] == [job["name"] for job in listed[1:]]


def test_cells_that_were_collected_are_not_run_again(tmp_path, capsys):
    """Cells in the file of an earlier part count as done, although their folders are lost."""
    before, file = tmp_path / "before", tmp_path / "study.jsonl"
    words = ["run", "UT-2_scenes_0.8_erm_untied_s", "--scale", "smoke", "--workers", "2"]
    first = study(before)
    cell, other = first.cells()[0], replace(first.cells()[0], seed=1)
    head = {"scale": "smoke", "chosen": {}, "edges": [0.0, 1.0]}
    rows = [
        {"name": cell.name, "diverged": None, "seconds": 9, "validated": {"value": 1.0}},
        {"name": other.name, "diverged": "not finite"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
    after = replace(study(tmp_path / "after"), known=file)
    assert [first.state(cell), after.state(cell), after.state(other)] == ["to do", "done", "failed"]
    assert collected(after) == [head, rows[0]] and after.seconds([cell]).of(cell) == 9
    assert after.state(replace(cell, panel=SEARCH)) == "done" and after.validated(cell) == {"value": 1.0}
    assert replace(after, known=file).state(cell) == "done" and Session(after).go(1) == 0
    with pytest.raises(SystemExit):
        main([*words, "--out", str(tmp_path / "after"), "--known", str(before)])
    assert f"--known must be a file that collect wrote of scale smoke; got {before}." in capsys.readouterr().err
