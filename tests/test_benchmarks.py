"""The benchmarks of a step: its cost, the kernels that it starts and the waits of the host, beside a plain step."""

import json
import runpy
import subprocess
import sys

import pytest

from tests.support.documented import ROOT

STEP_COST, LAUNCHES = (ROOT / "benchmarks" / f"{name}.py" for name in ("step_cost", "launches"))
CASES = {"UT-7": 1.10, "DistilBERT-6": 1.10, "Llama-16": 1.25}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_case_is_timed(monkeypatch, capsys, dtype):
    settings = ["--depth", "1", "--batch", "1", "--repeats", "1", "--dtype", dtype, "--device", "cpu"]
    monkeypatch.setattr("sys.argv", [str(STEP_COST), "--json", "--cases", "UT", *settings])
    runpy.run_path(str(STEP_COST), run_name="__main__")
    (row,) = json.loads(capsys.readouterr().out)
    assert row["case"] == "UT-1" and row["mode"] == "exact" and row["ratio"] > 0 and row["flop_bound"] >= 1


@pytest.mark.slow
def test_alpha_alone_holds_where_adam_without_a_cap_did_not():
    """The forms that `DescentConfig(alpha=0.4)` chooses and chose, in a plain loop."""
    rules = runpy.run_path(str(ROOT / "benchmarks" / "alpha_rules.py"))
    worst = {name: rules["trained"](0, 800, 0.4, **case)[1].max() for name, case in rules["CASES"].items()}
    assert worst["sgd, both sides, cap"] <= 0.01 < 0.05 < worst["adam, one side, no cap"]


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
