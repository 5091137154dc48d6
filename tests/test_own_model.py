"""docs/tutorials/own_model.py: a model, a task, two runs and the page that compares them."""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorials" / "own_model.py"


def test_it_is_as_short_as_it_says():
    text = TUTORIAL.read_text("utf-8")
    first = ast.parse(text).body[1].lineno
    lines = [line for line in text.splitlines()[first - 1 :] if line.strip() and not line.startswith("#")]
    assert len(lines) <= 45 and "45 lines" in text


def test_it_ends_in_a_page_that_compares_both(tmp_path):
    done = subprocess.run([sys.executable, str(TUTORIAL), str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "out" / "page"
    assert f"{page / 'report.html'}" in done.stdout
    erm, constrained = json.loads((page / "summary.json").read_text())["runs"]
    assert (erm["method"], constrained["method"]) == ("erm", "constrained")
    assert constrained["train_value"] > 0.9 and constrained["feasible"]
