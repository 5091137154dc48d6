"""A constrained step starts hardly more kernels than a plain one, and has the host wait no more often."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "launches.py"
SOURCE = Path(__file__).parents[1] / "src" / "descend"


CASES = {"UT-7": 1.10, "DistilBERT-6": 1.10, "RoBERTa-24": 1.10, "Llama-16": 1.25}


@pytest.fixture(scope="module")
def counted() -> list[dict]:
    """The rows of all cases, counted in one process."""
    command = [sys.executable, str(BENCHMARK), "--json", "--cases", *CASES]
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
    ours = {f"{path.parent.name}/{path.name}" for path in SOURCE.rglob("*.py")}
    waits = {site.split(" at ")[-1].split(":")[0] for site in constrained["sites"]}
    assert waits & ours <= {"training/step.py"}  # the step's losses, after all its work is queued
