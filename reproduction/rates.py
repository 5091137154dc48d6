"""Choose a learning rate for every arm of the small study: trials judged on validation data.

    python -m reproduction.rates run --data DATA --out FOLDER [--only video-ut] [--jobs 2]
    python -m reproduction.rates choose --out FOLDER
    python -m reproduction.rates table --out FOLDER

There is one search for each recipe, as the paper has for video: at the middle depth on the first data set, seed 0.
Every arm has three trials there: the recipe's usual rate, a third of it and three times as much. `erm-noisier` has
ERM's chosen rate, and three levels of training noise. Nothing else is searched. The rule: the best mean of the metric
over the noise levels; of the two constrained arms, among the trials that meet their constraints, where any does. `run`
adds a line to ``rates.jsonl`` for each arm, and runs no trial twice; `choose` writes what the rule chooses to the
study's settings; `table` prints all trials, and which choices lie at an edge.
"""

import argparse
import contextlib
import io
import json
from concurrent.futures import ProcessPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from descend import run
from descend.cli.runs import evaluated
from descend.cli.settings import read_recipe
from descend.errors import NonFiniteLossError
from descend.results.ownership import clear
from descend.settings import options as flags
from examples.convert_llama2c import convert
from reproduction.grid import ARMS, COMPARED, FURTHER, RECIPES, Grid, task_of
from reproduction.records import Cell, Settings
from reproduction.workers import Job

SCALE = "small"
FACTORS = (1 / 3, 1.0, 3.0)
NOISES = (1.25, 1.5, 2.0)
"""Factors on the training noise, for `erm-noisier`."""
USUAL = {
    "video-ut": 0.012,
    "video-dust": 0.004,
    "video-vit": 0.01,
    "text-ut": 0.004,
    "text-distilbert": 0.0013,
    "text-roberta": 0.0013,
    "llm-sft": 0.006,
}
"""Recipe → the middle learning rate, rounded from earlier searches for plain training."""
NOISIER = "erm-noisier"
ROWS = "rates.jsonl"


def searches() -> list[tuple[str, str]]:
    """Recipe and arm of each search; ERM's comes before that of its noise."""
    return [(recipe, arm) for of in RECIPES.values() for recipe in of for arm in (*COMPARED, *FURTHER.get(recipe, ()))]


def trials(recipe: str, arm: str, rows: list[dict[str, Any]]) -> list[Cell]:
    """The cells of a search."""
    grid = Grid(SCALE)
    data = next(iter(grid.scale.gammas[task_of(recipe)]))
    plain = grid.cell(recipe, data, arm, 0)
    if arm == NOISIER:
        rate = next(row["chosen"]["learning_rate"] for row in rows if (row["recipe"], row["arm"]) == (recipe, "erm"))
        changed: list[Settings] = [
            {"learning_rate": rate, "noise": round(factor * plain.gamma, 6)} for factor in NOISES
        ]
    else:
        changed = [{"learning_rate": float(f"{factor * USUAL[recipe]:.2g}")} for factor in FACTORS]
    return [plain.model_copy(update={"settings": {**plain.settings, **each}}) for each in changed]


def work(recipe: str, arm: str, data: Path, out: Path) -> dict[str, Any]:
    """The row of a search: its trials, and what the rule chooses."""
    rows = read(out)
    for row in rows:
        if (row["recipe"], row["arm"]) == (recipe, arm):
            return row
    found = [trial(cell, data, out) for cell in trials(recipe, arm, rows)]
    row = {"recipe": recipe, "arm": arm, "trials": found, "chosen": chosen(arm, found)}
    with (out / ROWS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return row


def trial(cell: Cell, data: Path, out: Path) -> dict[str, Any]:
    """Train a cell and judge it on validation data, unless that is done."""
    torch.set_num_threads(1)
    job, names = Job(cell, out, data), ["learning_rate", *(["noise"] if cell.arm == NOISIER else [])]
    folder = out / "runs" / "_".join([cell.recipe, cell.arm, *(f"{cell.settings[name]:g}" for name in names)])
    done = folder.with_name(f"{folder.name}.json")
    if done.is_file():
        return json.loads(done.read_text("utf-8"))
    clear(folder, "another folder")  # left by a killed process
    row: dict[str, Any] = {**{name: cell.settings[name] for name in names}, "mean": None, "feasible": None}
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            name, recipe, args, _ = read_recipe(
                [cell.recipe, *flags(job.resolved(cell.settings)), "--out", str(folder)]
            )
            run.train(name, recipe, args)
            _, summary = evaluated([str(folder), "--split", "validation", *flags(cell.judge)])
            row |= {"mean": summary.mean, "higher_is_better": summary.higher_is_better}
            if ARMS[cell.arm]["method"] == "constrained":
                row |= {"feasible": summary.feasible, "violated": summary.violated}
        except NonFiniteLossError as error:  # a run that diverged is a result
            row["error"] = str(error)
    done.write_text(json.dumps(row), encoding="utf-8")
    clear(folder, "another folder")
    return row


def chosen(arm: str, found: list[dict[str, Any]]) -> Settings:
    """The settings of the best trial by the rule; none if all diverged."""
    whole = [each for each in found if each["mean"] is not None]
    if not whole:
        return {}
    sign = -1 if whole[0]["higher_is_better"] else 1
    best = min(whole, key=lambda each: (each["feasible"] is False, sign * each["mean"]))
    return {name: best[name] for name in ("learning_rate", "noise") if name in best}


def read(out: Path) -> list[dict[str, Any]]:
    """The finished trials of a search."""
    path = out / ROWS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def choose(out: Path) -> None:
    """Write the chosen settings of all searches to the study's settings."""
    path = Path(str(files("reproduction") / "rates.json"))
    known = json.loads(path.read_text("utf-8"))
    rows = {(row["recipe"], row["arm"]): row["chosen"] for row in read(out)}
    known[SCALE] = {}
    for recipe, arm in searches():
        if rows.get((recipe, arm)):
            known[SCALE].setdefault(recipe, {})[arm] = rows[recipe, arm]
    path.write_text(written(known), encoding="utf-8")
    print(path)


def written(rates: dict[str, Any]) -> str:
    """``rates.json``, with a line for each arm."""
    scales = []
    for scale, recipes in rates.items():
        of = []
        for recipe, arms in recipes.items():
            rows = ",\n".join(f"      {json.dumps(arm)}: {json.dumps(each)}" for arm, each in arms.items())
            of.append(f"    {json.dumps(recipe)}: {{\n{rows}\n    }}")
        scales.append(f"  {json.dumps(scale)}: {{\n" + ",\n".join(of) + "\n  }")
    return "{\n" + ",\n".join(scales) + "\n}\n"


def line(row: dict[str, Any]) -> str:
    """A row as one line of text."""
    words = []
    for each in row["trials"]:
        at = " ".join(f"{each[name]:g}" for name in ("learning_rate", "noise") if name in each)
        missed = ", infeasible" if each["feasible"] is False else ""
        words.append(f"{at}: " + ("diverged" if each["mean"] is None else f"{each['mean']:.4g}{missed}"))
    return f"{row['recipe']} {row['arm']}: {row['chosen']} of {'; '.join(words)}"


def table(rows: list[dict[str, Any]]) -> str:
    """All searches as a Markdown table: the chosen trial in bold, an infeasible one with a dagger."""
    by_search = {(row["recipe"], row["arm"]): row for row in rows}
    lines = ["| recipe | arm | trials |", "|---|---|---|"]
    for recipe, arm in filter(by_search.__contains__, searches()):
        row = by_search[recipe, arm]
        searched = "noise" if arm == NOISIER else "learning_rate"
        words = []
        for each in row["trials"]:
            value = "diverged" if each["mean"] is None else f"{each['mean']:.{'3f' if each['mean'] < 1 else '4g'}}"
            value += " †" if each["feasible"] is False else ""
            chosen_one = all(each[name] == best for name, best in row["chosen"].items())
            words.append(f"{each[searched]:g}: " + (f"**{value}**" if chosen_one else value))
        lines.append(f"| {recipe} | {arm} | {', '.join(words)} |")
    return "\n".join([*lines, "", *edges(list(by_search.values()))])


def edges(rows: list[dict[str, Any]]) -> list[str]:
    """The searches whose choice is the lowest or the highest value tried, in two lines."""
    found: dict[str, list[str]] = {"Chosen at the lowest value tried": [], "Chosen at the highest value tried": []}
    for row in rows:
        searched = "noise" if row["arm"] == NOISIER else "learning_rate"
        tried = [each[searched] for each in row["trials"]]
        for words, end in zip(found, (min(tried), max(tried)), strict=True):
            found[words] += [f"{row['recipe']} {row['arm']}"] if row["chosen"].get(searched) == end else []
    return [f"{words}: {', '.join(names)}." for words, names in found.items() if names]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "choose", "table"))
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and rows")
    parser.add_argument("--only", default="", help="only recipes whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    options = parser.parse_args()
    out = options.out.absolute()
    if options.command == "choose":
        choose(out)
        return
    if options.command == "table":
        print(table(read(out)))
        return
    if options.data is None:
        parser.error("run needs --data")
    data, model = options.data.absolute(), out / "models" / "stories260K"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        convert(data / "weights" / "stories260K", model)
    wanted = [(recipe, arm) for recipe, arm in searches() if options.only in recipe]
    for second in (False, True):  # the noise of ERM needs its rate
        now = [pair for pair in wanted if (pair[1] == NOISIER) == second]
        if not now:
            continue
        with ProcessPoolExecutor(options.jobs) as pool:
            for row in pool.map(work, *zip(*now, strict=True), [data] * len(now), [out] * len(now)):
                print(line(row), flush=True)


if __name__ == "__main__":
    main()
