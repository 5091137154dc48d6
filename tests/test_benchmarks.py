"""The benchmarks of a step: its cost, the kernels that it starts and the waits of the host, beside a plain step."""

import json
import runpy
import subprocess
import sys

import pytest
import torch

from tests.support.documented import ROOT

STEP_COST, LAUNCHES = (ROOT / "benchmarks" / f"{name}.py" for name in ("step_cost", "launches"))
CASES = {"UT-7": 1.10, "DistilBERT-6": 1.10, "Llama-16": 1.25}


def run(monkeypatch, capsys, *options):
    """The exit status of the benchmark, in this process, and what it prints."""
    monkeypatch.setattr("sys.argv", [str(STEP_COST), *options])
    status = 0
    try:
        runpy.run_path(str(STEP_COST), run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    return status, *capsys.readouterr()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_case_is_timed(monkeypatch, capsys, dtype):
    settings = ["--depth", "1", "--batch", "1", "--repeats", "1", "--dtype", dtype, "--device", "cpu"]
    status, out, err = run(monkeypatch, capsys, "--json", "--cases", "UT", *settings)
    assert status == 0, err[-2000:]
    (row,) = json.loads(out)
    assert row["case"] == "UT-1" and row["mode"] == "exact" and row["ratio"] > 0 and row["flop_bound"] >= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_large_shape_needs_a_gpu(monkeypatch, capsys, device):
    status, out, err = run(monkeypatch, capsys, "--shape", "8b", "--dtype", "bfloat16", "--device", device)
    assert status == 2 and not out and "--device cuda" in err.splitlines()[-1]


def test_the_readers_that_are_fuzzed_can_be_imported(tmp_path):
    assert "sweep.json" in runpy.run_path(str(ROOT / "benchmarks" / "fuzz.py"))["readers"](tmp_path)


@pytest.fixture(scope="module")
def counted() -> list[dict]:
    """The rows of all cases, counted in one process."""
    command = [sys.executable, str(LAUNCHES), "--json", "--cases", *CASES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]  # no line of another kind


@pytest.mark.parametrize(("case", "most"), CASES.items())
def test_launches_and_syncs_of_a_step(counted, case, most):
    rows = {row["trainer"]: row for row in counted if row["case"] == case}
    assert rows.keys() == {"plain", "erm", "constrained"}
    plain, constrained = rows["plain"], rows["constrained"]
    assert plain["launches"] > 100 and plain["syncs"] > 0
    assert constrained["launches"] <= most * plain["launches"]
    assert constrained["syncs"] <= plain["syncs"]
    ours = {f"{path.parent.name}/{path.name}" for path in (ROOT / "src" / "descend").rglob("*.py")}
    waits = {site.split(" at ")[-1].split(":")[0] for site in constrained["sites"]}
    assert waits & ours <= {"training/step.py"}  # the step's losses, after all its work is queued
