"""The default against plain training: every table cell of the small study, no constraint setting anywhere.

    python benchmarks/default_pass.py run --data DATA --out FOLDER [--only UT-5] [--jobs 2]
    python benchmarks/default_pass.py table --out FOLDER

Each cell is trained by plain training and by the default, at the same learning rates, with the seed 42. Of each method
the learning rate is chosen on validation data, by the mean of the metric over the noise levels that the cell is judged
by: a run that meets its constraints may be 1 % worse. Only the chosen run is judged on test data. What is done is not
done again.
"""

import argparse
import contextlib
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
from descend.cli.parsing import read_recipe
from descend.cli.runs import judged
from descend.cli.studies import flags
from descend.errors import NonFiniteLossError
from descend.models.llama2c import convert
from descend.paper.grid import cells
from descend.paper.workers import Job
from descend.recipes import RECIPES
from descend.records.studies import Cell, Settings
from descend.training import preferred
from descend.training.config import DescentArguments

TABLES = ("table-3", "table-4", "table-5")
RATES = (1 / 3, 1.0)
"""What the study's learning rate, found by a sweep of plain training, is multiplied by."""
METHODS = ("erm", "constrained")
ROWS = "rows.jsonl"
KEPT = (
    *("feasible", "certain", "violated", "violations", "bounds", "certified", "train_value", "mean", "values"),
    *("descending_share", "strength", "multipliers", "first_layer", "metric", "higher_is_better", "depth"),
)
"""What a row has of a summary."""


def table_cells() -> list[Cell]:
    """Plain training's cells of the tables, seed 0, each setting once."""
    found = {
        (cell.recipe, cell.data, cell.depth, cell.regime, cell.gamma): cell
        for cell in cells(TABLES, "small")
        if cell.seed == 0 and cell.arm == "erm"
    }
    return list(found.values())


def title(cell: Cell) -> str:
    """What a person calls it."""
    return f"{cell.model}-{cell.depth} {cell.data} γ={cell.gamma:g}"


def settings(cell: Cell, data: Path, out: Path) -> tuple[Settings, float]:
    """A cell's settings but those of constraints, and its learning rate."""
    dropped = {field.name for field in fields(DescentArguments)} - {"patience"}
    dropped |= {"layer", "learning_rate", "seed"}
    settings = Job(cell, out, data).resolved(cell.settings)
    usual = RECIPES[cell.recipe].training["learning_rate"]
    kept = {name: value for name, value in settings.items() if name not in dropped}
    return kept, float(settings.get("learning_rate", usual))


def trained(recipe: str, settings: Settings, judge: Settings, folder: Path) -> dict[str, Any]:
    """One run, and what it is on validation data, under the noise that it will be judged by."""
    done = folder / "validation.json"
    if done.is_file():
        return json.loads(done.read_text())
    torch.set_num_threads(1)
    words = [recipe, *flags(settings), "--out", str(folder)]
    found: dict[str, Any] = {"folder": folder.name, "rate": settings["learning_rate"], "mean": None}
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            if not run.finished(folder):
                shutil.rmtree(folder, ignore_errors=True)
                name, chosen, args, _ = read_recipe(words)
                run.train(name, chosen, args)
            _, summary = judged([str(folder), "--split", "validation", *flags(judge)])
            found |= {name: summary[name] for name in ("mean", "feasible", "higher_is_better")}
        except NonFiniteLossError as error:  # a run that diverged is a result
            found["error"] = str(error)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    done.write_text(json.dumps(found))
    return found


def tested(trials: list[dict[str, Any]], method: str, judge: Settings, runs: Path) -> dict[str, Any]:
    """Of a method's runs the chosen one on test data, as columns of a row; nothing but the runs where all diverged."""
    whole = [trial for trial in trials if trial["mean"] is not None]
    if not whole:
        return {"method": method, "trials": trials}
    sign = -1 if whole[0]["higher_is_better"] else 1
    feasible = [method == "constrained" and trial["feasible"] for trial in whole]
    best = whole[preferred([sign * trial["mean"] for trial in whole], feasible)]
    with contextlib.redirect_stderr(io.StringIO()):
        _, summary = judged([str(runs / best["folder"]), *flags(judge)])
    level = next(name for name in summary["layer_losses"] if float(name) == summary["train_noise"])
    return {
        "method": method,
        "trials": trials,
        "rate": best["rate"],
        "losses": summary["layer_losses"][level],
        "layers": summary["layer_metrics"][level],
        **{name: summary[name] for name in KEPT},
    }


def cell_rows(cell: Cell, data: Path, out: Path) -> list[dict[str, Any]]:
    """The chosen run of each method, judged on test data."""
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
    """A cell, unless it is done."""
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
    """All cells, and then the table."""
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
    """A row in words."""
    if "losses" not in row:
        return f"{row['cell']} {row['method']}: diverged"
    return (
        f"{row['cell']} {row['method']} at {row['rate']:.4g}: feasible {row['feasible']} (broken {row['violated']}), "
        f"falls {falls(row)}/{row['depth']}, {row['metric']} {row['train_value']:.4g}, mean {row['mean']:.4g}"
    )


def falls(row: dict[str, Any]) -> int:
    """At how many layers the mean loss falls."""
    return sum(after < before for before, after in pairwise(row["losses"]))


def table(out: Path) -> str:
    """All cells beside one another, and what was asked of them."""
    pairs: dict[str, dict[str, dict[str, Any]]] = {}
    for row in _read(out):
        pairs.setdefault(row["cell"], {})[row["method"]] = row
    lines = [
        "| cell | feasible | falls, ERM | falls, default | last, ERM | last, default | mean, ERM | mean, default "
        "| half depth, ERM | half depth, default | descending share, ERM | default |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    counts: dict[str, list[bool]] = {}

    def count(name: str, holds: bool) -> None:
        counts.setdefault(name, []).append(holds)

    for name, pair in pairs.items():
        erm, ours = pair["erm"], pair["constrained"]
        for row in (erm, ours):
            count(f"not diverged, {row['method']}", "losses" in row)
        if "losses" not in erm or "losses" not in ours:
            lines.append(f"| {name} | diverged |")
            continue
        for row in (erm, ours):
            count(f"falls at every layer, {row['method']}", falls(row) == row["depth"])
        higher = ours["higher_is_better"]
        worse = (erm["train_value"] - ours["train_value"]) if higher else ours["train_value"] / erm["train_value"] - 1
        mean = (erm["mean"] / ours["mean"] if higher else ours["mean"] / erm["mean"]) - 1
        half = [row["layers"][len(row["layers"]) // 2] for row in (erm, ours)]
        count("feasible", ours["feasible"])
        count("last layer within 1 % or 1 point", worse <= 0.01)
        count("mean over noise at most .5 % worse", mean <= 0.005)
        if ours["task"] == "video":
            count("descending share at least ERM's (video)", ours["descending_share"] >= erm["descending_share"])
        if ours["model"] == "ViT":
            count("half depth at most .6 of ERM's (ViT)", half[1] <= 0.6 * half[0])
        lines.append(
            f"| {name} | {'yes' if ours['feasible'] else 'no: ' + ', '.join(map(str, ours['violated']))} "
            + "".join(f"| {falls(row)}/{row['depth']} " for row in (erm, ours))
            + f"| {erm['train_value']:.4g} | {ours['train_value']:.4g} | {erm['mean']:.4g} | {ours['mean']:.4g} "
            + f"| {half[0]:.4g} | {half[1]:.4g} | {erm['descending_share']:.3f} | {ours['descending_share']:.3f} |"
        )
    told = [f"- {name}: {sum(all_of)} of {len(all_of)}" for name, all_of in counts.items()]
    return "\n".join([*lines, "", *told])


def main() -> None:
    """Read the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--out", type=Path, required=True, help="where runs and rows go")
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    options = parser.parse_args()
    if options.command == "table":
        print(table(options.out))
        return
    if options.data is None:
        parser.error("run needs --data")
    carry_out(options.data.absolute(), options.out.absolute(), options.only, options.jobs)


if __name__ == "__main__":
    main()
