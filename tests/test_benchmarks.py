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
def unrolled():
    return runpy.run_path(str(ROOT / "benchmarks" / "unrolled.py"))


def unrolled_row(network, arm, rate, seed, losses, unrolled):
    tests = dict.fromkeys(unrolled["NETWORKS"][network].shifts, losses)
    return {"network": network, "arm": arm, "rate": rate, "seed": seed, "validation": losses, "test": tests}


def test_a_rate_is_the_best_in_the_mean_and_then_has_five_seeds(unrolled):
    cell = unrolled["Cell"]
    losses = {3e-3: (0.3, 0.3, 0.3), 1e-2: (0.1, 0.1, 0.9), 3e-2: (0.2, 0.2, 0.4)}  # means .3, .37 and .27
    rows = [
        unrolled_row("LISTA", "erm", rate, seed, [1.0] * 10 + [losses[rate][seed]], unrolled)
        for rate in losses
        for seed in range(3)
    ]
    assert unrolled["chosen_rate"](rows, "LISTA", "erm") == 3e-2
    todo = list(unrolled["open_cells"](rows))
    assert todo[:3] == [cell("LISTA", "erm", 3e-2, 3), cell("LISTA", "erm", 3e-2, 4), cell("LISTA", "linear", 3e-3, 0)]
    diverged = [row | {"validation": [1.0] * 10 + [float("nan")]} if row["rate"] == 3e-2 else row for row in rows]
    assert unrolled["chosen_rate"](diverged, "LISTA", "erm") == 3e-3


def test_differences_are_in_decibels_and_paired_by_seed(unrolled):
    """A loss of half is −3.01 dB; of t with one degree of freedom the 97.5 % quantile is 12.706."""
    pairs = [(0.2, 0.1), (0.4, 0.1)]
    rows = {
        arm: [
            unrolled_row("PGD", arm, 3e-3, seed, [1.0] * 5 + [pair[place]], unrolled) for seed, pair in enumerate(pairs)
        ]
        for place, arm in enumerate(("erm", "linear"))
    }
    found = unrolled["difference"](rows["linear"], rows["erm"], "K")
    assert found.mean == pytest.approx((-3.0103 - 6.0206) / 2, abs=1e-4)
    assert found.half == pytest.approx(12.706 * 3.0103 / 2, rel=1e-3)  # the standard error of two is half their gap
    every = [*rows["erm"], *rows["linear"]]
    text = "\n".join(unrolled["tables"](every))
    assert "| `erm` | 0.003 | 2 | -5.48 | -0.66 |" in text and "| `linear` | 0.003 | 2 | -4.52 ± 19.12 |" in text
    assert "| PGD, K: `geometric-.2` against `erm` |" in text


@pytest.mark.slow
def test_every_arm_of_every_network_runs_a_few_steps(unrolled):
    for name, network in unrolled["NETWORKS"].items():
        network.settings["max_steps"] = 160
        for arm in unrolled["arms_of"](name):
            row = unrolled["run_cell"](unrolled["Cell"](name, arm, 1e-3, 0))
            length = 1 + network.iterations * (3 if network.tied else 1)
            assert {len(losses) for losses in row["test"].values()} == {length} and "diverged" not in row
            assert row["test"].keys() == network.shifts.keys()


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
