"""The benchmark of a step's cost: it runs, and refuses in one line what this machine can't do."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support.forking import Forking

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "step_cost.py"


@pytest.fixture(scope="module")
def run() -> Iterator[Callable]:
    """Run the benchmark, in a process that has imported most of what it needs."""
    forking = Forking("descend.training.trainer", "torch.profiler", "torch._dynamo")

    def run(*options: str):
        return forking.run(f"""
import runpy, sys
sys.argv = {[str(BENCHMARK), *options]!r}
runpy.run_path({str(BENCHMARK)!r}, run_name="__main__")
""")

    yield run
    forking.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_case_is_timed(run, dtype):
    settings = ["--depth", "1", "--batch", "1", "--repeats", "1", "--dtype", dtype]
    done = run("--json", "--cases", "UT", *settings, "--device", "cpu", "--threads", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(done.stdout)
    assert row["case"] == "UT-1" and row["mode"] == "exact" and row["ratio"] > 0 and row["flop_bound"] >= 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_large_shape_needs_a_gpu(run, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("--shape", "8b", "--dtype", "bfloat16", "--device", device)
    assert done.returncode == 2 and not done.stdout
    last = done.stderr.splitlines()[-1]
    assert "error" in last and "--device cuda" in last and "Traceback" not in done.stderr
