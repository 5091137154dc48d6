"""The benchmark of a step's cost: it runs, and refuses in one line what this machine can't do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "step_cost.py"


def run(*options):
    return subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_case_is_timed(dtype):
    settings = ["--depth", "1", "--batch", "1", "--repeats", "1", "--dtype", dtype]
    done = run("--json", "--cases", "UT", *settings, "--device", "cpu", "--threads", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(done.stdout)
    assert row["case"] == "UT-1" and row["mode"] == "exact" and row["ratio"] > 0 and row["flop_bound"] >= 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_large_shape_needs_a_gpu(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("--shape", "8b", "--dtype", "bfloat16", "--device", device)
    assert done.returncode == 2 and not done.stdout
    last = done.stderr.splitlines()[-1]
    assert "error" in last and "--device cuda" in last and "Traceback" not in done.stderr
