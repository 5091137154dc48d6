"""Cells carried out by the command line of Descend: stopped and gone on with, failed, chosen among, listed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from reproduction.__main__ import main
from reproduction.cells import SEARCH, SEARCH_SEED, Row, search_key
from reproduction.grids import SCALES
from reproduction.run import BUSY, FAILED_FILE, RUN, Session, Study, read_json, write_json
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


def test_the_choice_is_the_best_feasible_trial(tmp_path):
    panels = {SEARCH: [SEARCH_SEED], "main": [0]}
    rows = [replace(ROWS[0], panel=panel, arms=["algorithm-1"], seeds=seeds) for panel, seeds in panels.items()]
    trials = [{"dual_lr": rate} for rate in (0.01, 0.02)] + [{"dual_lr": 0.03, "alpha": 0.1}, {"dual_lr": 0.04}]
    searched = study(tmp_path, rows, trials={"algorithm-1": trials})
    *tried, main_cell = searched.cells()
    assert len(tried) == 4 and searched.state(main_cell) == "waits"
    # The lowest error breaks its constraints; the best that holds has another α; the last failed.
    for cell, feasible, mean in zip(tried, (False, True, True), (7.0, 9.0, 8.0), strict=False):
        (searched.of(cell) / RUN).mkdir(parents=True)
        known = {"higher_is_better": False, "method": "constrained", "feasible": feasible, "mean": mean}
        write_json(searched.of(cell) / RUN / "summary.json", known)
    searched.choose()
    assert searched.chosen == {}
    searched.of(tried[3]).mkdir(parents=True)
    write_json(searched.of(tried[3]) / FAILED_FILE, {"reason": "diverged"})
    searched.choose()
    choice = searched.chosen["UT untied algorithm-1"]
    assert choice["fixed"]["settings"] == trials[1] and choice["searched"]["settings"] == trials[2]
    cell = searched.cells()[-1]
    assert searched.state(cell) == "to do" and cell.settings["dual_lr"] == 0.02 and cell.settings["alpha"] == 0.22


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


def test_cells_that_were_collected_are_not_run_again(tmp_path, capsys):
    """Cells in the file of an earlier part count as done, although their folders are lost."""
    before, file = tmp_path / "before", tmp_path / "study.jsonl"
    words = ["run", "UT-2_scenes_0.8_erm_untied_s", "--scale", "smoke", "--workers", "2"]
    first = study(before)
    cell, other = first.cells()[0], replace(first.cells()[0], seed=1)
    head = {"scale": "smoke", "chosen": {}, "edges": [0.0, 1.0]}
    rows = [{"name": cell.name, "diverged": None, "seconds": 9}, {"name": other.name, "diverged": "not finite"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
    after = replace(study(tmp_path / "after"), known=file)
    assert [first.state(cell), after.state(cell), after.state(other)] == ["to do", "done", "failed"]
    assert collected(after) == [head, rows[0]] and after.seconds([cell]).of(cell) == 9
    trial = replace(cell, panel=SEARCH)
    assert after.state(trial) == "to do"  # its search has no choice yet, for which the trial's files are needed
    head["chosen"] = {search_key(cell.model, cell.form, cell.arm): {}}
    file.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
    assert replace(after, known=file).state(trial) == "done" and Session(after).go(1) == 0
    with pytest.raises(SystemExit):
        main([*words, "--out", str(tmp_path / "after"), "--known", str(before)])
    assert f"--known must be a file that collect wrote of scale smoke; got {before}." in capsys.readouterr().err
