"""The default against plain training: every table cell of the small study, no constraint setting anywhere.

    python benchmarks/default_pass.py run --data DATA --out FOLDER [--only UT-5] [--jobs 2]
    python benchmarks/default_pass.py table --out FOLDER

Each cell is trained by plain training and by the default, at the same learning rates, with the seed 42. Of each method
the learning rate is chosen on validation data, by the mean of the metric over the noise levels that the cell is judged
by: a run that meets its constraints may be 1 % worse.
Only the chosen run is judged on test data. What is done is not done again.
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

from descend.errors import NonFiniteLossError
from descend.study.grid import Cell, cells
from descend.trainer import TOLERANCE

TABLES = ("table-3", "table-4", "table-5")
RATES = (1 / 3, 1.0)
"""What the study's learning rate, found by a sweep of plain training, is multiplied by."""
METHODS = ("erm", "constrained")
ROWS = "rows.jsonl"


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


def settings(cell: Cell, data: Path, out: Path) -> tuple[dict[str, str], float]:
    """A cell's flags but those of constraints, and its learning rate."""
    from descend.config import DescentArguments

    dropped = {f"--{one.name.replace('_', '-')}" for one in fields(DescentArguments)} - {"--patience"}
    dropped |= {"--layer", "--learning-rate", "--seed"}
    flags = dict(zip(cell.flags[::2], cell.flags[1::2], strict=True))
    kept = {name: value for name, value in flags.items() if name not in dropped}
    places = {"{root}": str(data), "{out}": str(out)}
    for mark, place in places.items():
        kept = {name: value.replace(mark, place) for name, value in kept.items()}
    from descend.recipes import RECIPES

    usual = RECIPES[cell.recipe].training["learning_rate"]
    return kept, float(flags.get("--learning-rate", usual))


def train(cell: Cell, method: str, factor: float, data: Path, out: Path) -> dict[str, Any]:
    """One run, and what it is on validation data, under the noise that it will be judged by."""
    import torch

    from descend import run
    from descend.cli.parsing import read_recipe
    from descend.cli.runs import judged

    folder = out / "runs" / f"{cell.recipe}-{cell.depth}_{cell.data}_{cell.gamma:g}_{method}_{factor:g}"
    done = folder / "validation.json"
    if done.is_file():
        return json.loads(done.read_text())
    torch.set_num_threads(1)
    flags, rate = settings(cell, data, out)
    words = [word for pair in flags.items() for word in pair]
    words += ["--method", method, "--learning-rate", f"{rate * factor:.4g}", "--out", str(folder)]
    found: dict[str, Any] = {"folder": folder.name, "rate": rate * factor, "mean": None, "feasible": None}
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            if not run.finished(folder):
                shutil.rmtree(folder, ignore_errors=True)
                name, recipe, args, _ = read_recipe([cell.recipe, *words])
                run.train(name, recipe, args)
            _, summary = judged([str(folder), "--split", "validation", *cell.judge])
            found |= {name: summary[name] for name in ("mean", "feasible", "higher_is_better")}
        except NonFiniteLossError as error:  # a run that diverged is a result
            found["error"] = str(error)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    done.write_text(json.dumps(found))
    return found


def chosen(runs: list[dict[str, Any]], constrained: bool) -> dict[str, Any] | None:
    """The best learning rate by the mean over noise; a run that meets its constraints may be 1 % worse."""
    whole = [each for each in runs if each["mean"] is not None]
    if not whole:
        return None
    sign = 1 if whole[0]["higher_is_better"] else -1
    ranked = sorted(whole, key=lambda each: -sign * each["mean"])
    best = ranked[0]
    feasible = [each for each in ranked if each["feasible"] and constrained]
    return next((each for each in feasible if abs(each["mean"] - best["mean"]) <= TOLERANCE * best["mean"]), best)


def cell_rows(cell: Cell, data: Path, out: Path) -> list[dict[str, Any]]:
    """The chosen run of each method, judged on test data."""
    from descend.cli.runs import judged

    rows = []
    for method in METHODS:
        runs = [train(cell, method, factor, data, out) for factor in RATES]
        best = chosen(runs, method == "constrained")
        row: dict[str, Any] = {"cell": title(cell), "task": cell.task, "model": cell.model, "depth": cell.depth}
        row |= {"data": cell.data, "gamma": cell.gamma, "method": method, "trials": runs}
        if best is not None:
            row["rate"] = best["rate"]
            with contextlib.redirect_stderr(io.StringIO()):
                _, summary = judged([str(out / "runs" / best["folder"]), *cell.judge])
            level = next(name for name in summary["layer_losses"] if float(name) == summary["train_noise"])
            row |= {
                "losses": summary["layer_losses"][level],
                "layers": summary["layer_metrics"][level],
                **{name: summary[name] for name in ("feasible", "certain", "violated", "violations", "bounds")},
                **{
                    name: summary[name] for name in ("certified", "train_value", "mean", "descending_share", "strength")
                },
                **{name: summary[name] for name in ("multipliers", "metric", "higher_is_better", "first_layer")},
            }
        rows.append(row)
    return rows


def work(cell: Cell, data: Path, out: Path) -> list[dict[str, Any]]:
    """A cell, unless it is done."""
    done = [row for row in _read(out) if row["cell"] == title(cell)]
    if done:
        return []
    rows = cell_rows(cell, data, out)
    with (out / ROWS).open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _read(out: Path) -> list[dict[str, Any]]:
    path = out / ROWS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def run(data: Path, out: Path, only: str, jobs: int) -> None:
    """All cells, and then the table."""
    from descend.models.llama2c import convert

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
    run(options.data.absolute(), options.out.absolute(), options.only, options.jobs)


if __name__ == "__main__":
    main()
