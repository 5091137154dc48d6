"""Compare the default with plain training on every table cell of the small study, with no constraint setting.

    python benchmarks/default_pass.py run --data DATA --out FOLDER [--only UT-5] [--jobs 2]
    python benchmarks/default_pass.py table --out FOLDER

Both methods train each cell at the same learning rates, with seed 42. Each method's rate is chosen on validation data
by the mean of the metric over the cell's noise levels; a run that meets its constraints may be 1 % worse. Only the
chosen run is judged on test data. Finished runs and cells are not repeated.
"""

import argparse
import contextlib
import csv
import io
import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from descend import run
from descend.cli.runs import judged
from descend.cli.settings import read_recipe
from descend.errors import NonFiniteLossError
from descend.models.llama2c import convert
from descend.paper.grid import cells
from descend.paper.workers import Job
from descend.recipes import RECIPES
from descend.recipes.options import options as flags
from descend.records.studies import Cell, Settings
from descend.training import preferred
from descend.training.config import DescentArguments

TABLES = ("table-3", "table-4", "table-5")
RATES = (1 / 3, 1.0)
"""Factors on the study's learning rate, which a sweep of plain training chose."""
METHODS = ("erm", "constrained")
ROWS = "rows.jsonl"
TABLE = "table.csv"
COLUMNS = (
    *("model", "data", "gamma", "feasible", "broken_layers", "falling_layers_erm", "falling_layers_default", "layers"),
    *("last_layer_erm", "last_layer_default", "mean_over_noise_erm", "mean_over_noise_default"),
    *("half_depth_erm", "half_depth_default", "descending_share_erm", "descending_share_default"),
)
KEPT = (
    *("feasible", "certain", "violated", "violations", "bounds", "certified", "train_value", "mean", "values"),
    *("descending_share", "strength", "multipliers", "first_layer", "metric", "higher_is_better", "depth"),
)
"""Fields of `summary.json` that a row keeps."""


def table_cells() -> list[Cell]:
    """The tables' cells of plain training at seed 0, each setting once."""
    unique = {
        (cell.recipe, cell.data, cell.depth, cell.regime, cell.gamma): cell
        for cell in cells(TABLES, "small")
        if cell.seed == 0 and cell.arm == "erm"
    }
    return list(unique.values())


def title(cell: Cell) -> str:
    """The cell's name in the tables, such as ``UT-3 ucsd γ=0.8``."""
    return f"{cell.model}-{cell.depth} {cell.data} γ={cell.gamma:g}"


def settings(cell: Cell, data: Path, out: Path) -> tuple[Settings, float]:
    """The cell's settings without those of constraints, and its learning rate."""
    dropped = {field.name for field in fields(DescentArguments)} - {"patience"}
    dropped |= {"layer", "learning_rate", "seed"}
    chosen: dict[str, Any] = Job(cell, out, data).resolved(cell.settings)
    remaining = {name: value for name, value in chosen.items() if name not in dropped}
    usual = RECIPES[cell.recipe].training.learning_rate
    return remaining, float(chosen.get("learning_rate", usual))


def trained(recipe: str, chosen: Settings, judge: Settings, folder: Path) -> dict[str, Any]:
    """Train one run, unless it is finished, and judge it on validation data at the cell's noise levels."""
    done = folder / "validation.json"
    if done.is_file():
        return json.loads(done.read_text())
    torch.set_num_threads(1)
    words = [recipe, *flags(chosen), "--out", str(folder)]
    trial: dict[str, Any] = {"folder": folder.name, "rate": chosen["learning_rate"], "mean": None}
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            if not run.finished(folder):
                shutil.rmtree(folder, ignore_errors=True)
                name, settings, args, _ = read_recipe(words)
                run.train(name, settings, args)
            _, summary = judged([str(folder), "--split", "validation", *flags(judge)])
            trial |= {
                "mean": summary.mean,
                "feasible": summary.feasible,
                "higher_is_better": summary.higher_is_better,
            }
        except NonFiniteLossError as error:  # a run that diverged is a result
            trial["error"] = str(error)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    done.write_text(json.dumps(trial))
    return trial


def tested(trials: list[dict[str, Any]], method: str, judge: Settings, runs: Path) -> dict[str, Any]:
    """Choose among a method's runs and judge that run on test data; without metrics if all runs diverged."""
    whole = [trial for trial in trials if trial["mean"] is not None]
    if not whole:
        return {"method": method, "trials": trials}
    sign = -1 if whole[0]["higher_is_better"] else 1
    feasible = [method == "constrained" and trial["feasible"] for trial in whole]
    best = whole[preferred([sign * trial["mean"] for trial in whole], feasible)]
    with contextlib.redirect_stderr(io.StringIO()):
        _, summary = judged([str(runs / best["folder"]), *flags(judge)])
    content = summary.content()
    return {
        "method": method,
        "trials": trials,
        "rate": best["rate"],
        "losses": summary.layer_losses[summary.train_noise],
        "layers": summary.layer_metrics[summary.train_noise],
        **{name: content[name] for name in KEPT},
    }


def cell_rows(cell: Cell, data: Path, out: Path) -> list[dict[str, Any]]:
    """Train and judge a cell by both methods: one row each."""
    common, rate = settings(cell, data, out)
    rows = []
    for method in METHODS:
        trials = []
        for factor in RATES:
            name = f"{cell.recipe}-{cell.depth}_{cell.data}_{cell.gamma:g}_{method}_{factor:g}"
            chosen = common | {"method": method, "learning_rate": float(f"{rate * factor:.4g}")}
            trials.append(trained(cell.recipe, chosen, cell.judge, out / "runs" / name))
        facts = {"cell": title(cell), "task": cell.task, "model": cell.model, "data": cell.data, "gamma": cell.gamma}
        rows.append({**facts, "depth": cell.depth, **tested(trials, method, cell.judge, out / "runs")})
    return rows


def work(cell: Cell, data: Path, out: Path) -> list[dict[str, Any]]:
    """Rows of a cell, or none if the file has them already."""
    if any(row["cell"] == title(cell) for row in _read(out)):
        return []
    rows = cell_rows(cell, data, out)
    with (out / ROWS).open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _read(out: Path) -> list[dict[str, Any]]:
    path = out / ROWS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def carry_out(data: Path, out: Path, only: str, jobs: int) -> None:
    """Run all cells, write the table and print how many cells meet each target."""
    out.mkdir(parents=True, exist_ok=True)
    model = out / "models" / "stories260K"
    wanted = [cell for cell in table_cells() if only.lower() in title(cell).lower()]
    if any(cell.task == "language" for cell in wanted) and not model.exists():
        convert(data / "weights" / "stories260K", model)
    with ProcessPoolExecutor(jobs) as pool:
        for rows in pool.map(work, wanted, *([each] * len(wanted) for each in (data, out))):
            for row in rows:
                print(line(row), flush=True)
    print(table(out))


def line(row: dict[str, Any]) -> str:
    """A row as one line of text."""
    if "losses" not in row:
        return f"{row['cell']} {row['method']}: diverged"
    return (
        f"{row['cell']} {row['method']} at {row['rate']:.4g}: feasible {row['feasible']} (broken {row['violated']}), "
        f"falls {falls(row)}/{row['depth']}, {row['metric']} {row['train_value']:.4g}, mean {row['mean']:.4g}"
    )


def falls(row: dict[str, Any]) -> int:
    """Number of layers at which the mean loss falls."""
    return sum(after < before for before, after in pairwise(row["losses"]))


def table(out: Path) -> str:
    """Write all cells to ``table.csv`` in the folder and return how many meet each target."""
    pairs: dict[str, dict[str, dict[str, Any]]] = {}
    for row in _read(out):
        pairs.setdefault(row["cell"], {})[row["method"]] = row
    counts: dict[str, list[bool]] = {}

    def count(name: str, holds: bool) -> None:
        counts.setdefault(name, []).append(holds)

    with (out / TABLE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for pair in pairs.values():
            erm, ours = pair["erm"], pair["constrained"]
            facts = [erm["model"] + f"-{erm['depth']}", erm["data"], f"{erm['gamma']:g}"]
            for row in (erm, ours):
                count(f"not diverged, {row['method']}", "losses" in row)
            if "losses" not in erm or "losses" not in ours:
                writer.writerow([*facts, "diverged"])
                continue
            for row in (erm, ours):
                count(f"falls at every layer, {row['method']}", falls(row) == row["depth"])
            higher = ours["higher_is_better"]
            worse = (
                (erm["train_value"] - ours["train_value"]) if higher else ours["train_value"] / erm["train_value"] - 1
            )
            mean = (erm["mean"] / ours["mean"] if higher else ours["mean"] / erm["mean"]) - 1
            half = [row["layers"][len(row["layers"]) // 2] for row in (erm, ours)]
            count("feasible", ours["feasible"])
            count("last layer within 1 % or 1 point", worse <= 0.01)
            count("mean over noise at most .5 % worse", mean <= 0.005)
            if ours["task"] == "video":
                count("descending share at least ERM's (video)", ours["descending_share"] >= erm["descending_share"])
            if ours["model"] == "ViT":
                count("half depth at most .6 of ERM's (ViT)", half[1] <= 0.6 * half[0])
            writer.writerow(
                [
                    *(*facts, "yes" if ours["feasible"] else "no", " ".join(map(str, ours["violated"]))),
                    *(falls(erm), falls(ours), erm["depth"]),
                    *(f"{row['train_value']:.4g}" for row in (erm, ours)),
                    *(f"{row['mean']:.4g}" for row in (erm, ours)),
                    *(f"{value:.4g}" for value in half),
                    *(f"{row['descending_share']:.3f}" for row in (erm, ours)),
                ]
            )
    return "\n".join(f"{name}: {sum(cells)} of {len(cells)}" for name, cells in counts.items())


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and rows")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    options = parser.parse_args()
    if options.command == "table":
        print(table(options.out))
        return
    if options.data is None:
        parser.error("run needs --data")
    carry_out(options.data.absolute(), options.out.absolute(), options.only, options.jobs)


if __name__ == "__main__":
    main()
