"""examples/own_model.py, which docs/own_model.md quotes: a model, a task, two runs and the page that compares them."""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "own_model.py"


def code() -> list[str]:
    """The example without its docstring and empty lines."""
    text = EXAMPLE.read_text("utf-8")
    body = ast.parse(text).body[1:]
    return [line for line in text.splitlines()[body[0].lineno - 1 :] if line.strip()]


def test_it_is_short_and_the_guide_quotes_it():
    assert len(code()) <= 45
    guide = (ROOT / "docs" / "own_model.md").read_text("utf-8")
    quoted = [line for block in guide.split("```python\n")[1:] for line in block.split("```")[0].splitlines()]
    missing = [line for line in code() if line not in quoted]
    assert missing == []


def test_it_ends_in_a_page_that_compares_both(tmp_path):
    done = subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "out" / "page"
    assert f"{page / 'report.html'}" in done.stdout
    erm, constrained = json.loads((page / "summary.json").read_text())["runs"]
    assert (erm["method"], constrained["method"]) == ("erm", "constrained")
    assert constrained["train_value"] > 0.9 and constrained["feasible"]
