"""Choose a learning rate for every arm of the small study: trials judged on validation data.

    python benchmarks/rates.py run --data DATA --out FOLDER [--only UT-5] [--jobs 2]
    python benchmarks/rates.py table --out FOLDER

Every arm has the same trials at a setting (a recipe on a data set, at the middle depth and one training noise): the
recipe's usual rate and a third of it, with seed 0. Nothing else is searched. The rule: the best mean of the metric over
the noise levels; of a constrained arm, among the trials that meet their constraints, where any does. `run` adds a line
to ``rates.jsonl`` for each arm; what is in it is not run again.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from default_pass import settings, table_cells, title, trained
from descend.models.llama2c import convert
from descend.records.studies import Cell, Settings

FACTORS = (1 / 3, 1.0)
USUAL = {
    "video-ut": 0.012,
    "video-dust": 0.004,
    "video-vit": 0.01,
    "text-ut": 0.004,
    "text-distilbert": 0.0013,
    "text-roberta": 0.0013,
    "llm-sft": 0.006,
}
"""Recipe → a learning rate, rounded from the sweeps of plain training."""
MIDDLE = {"UT": 5, "DUST": 5}
"""Model → the depth of the trials, where there are several."""
VIT = 6
"""The blocks of ViT in the trials; the study has 6 and 12."""

ARMS: dict[str, Settings] = {
    "erm": {"method": "erm"},
    "constrained": {"method": "constrained"},
    "paper": {"method": "constrained", "preset": "paper"},
    "linear": {"method": "linear"},
}
"""The arms of every setting."""
MORE: dict[str, Settings] = {
    "uniform": {"method": "uniform"},
    "r-drop": {"method": "r-drop"},
    "neftune": {"method": "neftune"},
    "layerskip": {"method": "layerskip"},
}
"""Further arms, at the first setting of each model of `FURTHER` that can have them."""
FURTHER = {
    ("video-ut", "ucsd"): ("uniform",),
    ("video-vit", "ucsd"): ("uniform", "layerskip"),
    ("text-ut", "imdb"): ("uniform", "r-drop", "neftune"),
    ("text-distilbert", "imdb"): ("uniform", "r-drop", "neftune", "layerskip"),
    ("text-roberta", "imdb"): ("uniform", "r-drop", "neftune", "layerskip"),
    ("llm-sft", "alpaca"): ("uniform", "neftune", "layerskip"),
}
BUDGET: dict[str, Settings] = {
    "video": {"eval_strategy": "steps", "save_strategy": "steps", "dual_warmup_steps": 0.1},
    "text": {},
    "language": {"dual_warmup_steps": 0.5},
}
"""What gives the paper's preset the steps of the other arms: it asks for ten epochs of video and two of language, of
which the first has no constraints."""
ROWS = "rates.jsonl"


class Trial(NamedTuple):
    """The trials of one arm at one setting."""

    cell: Cell
    arm: str

    @property
    def name(self) -> str:
        """Such as ``UT-5 ucsd γ=0.8 linear``."""
        return f"{title(self.cell)} {self.arm}"


def wanted() -> list[Trial]:
    """All trials: each arm at each setting, at the middle depth."""
    found, seen = [], set()
    for cell in table_cells():
        if cell.model == "ViT":
            cell = cell.model_copy(update={"depth": VIT, "settings": {**cell.settings, "depth": VIT}})
        if cell.depth != MIDDLE.get(cell.model, cell.depth):
            continue
        more = FURTHER.get((cell.recipe, cell.data), ()) if (cell.recipe, cell.data) not in seen else ()
        seen.add((cell.recipe, cell.data))
        found += [Trial(cell, arm) for arm in (*ARMS, *more)]
    return found


def given(trial: Trial, data: Path, out: Path) -> Settings:
    """The settings of an arm at its setting, but for the learning rate."""
    cell = trial.cell
    common, _ = settings(cell, data, out)
    chosen = {"noise_is": "std", **common, **(ARMS | MORE)[trial.arm], "seed": 0}
    if trial.arm == "paper":
        for name in ("patience", "warmup_steps"):  # the paper keeps the last model, and its rate is constant
            chosen.pop(name, None)
        chosen |= BUDGET[cell.task]
        if cell.task == "video":
            chosen |= {"max_steps": _steps(cell, common), "eval_steps": 100, "save_steps": 100}
        if cell.task == "language":
            chosen["num_train_epochs"] = common["num_train_epochs"]
    return chosen


def _steps(cell: Cell, common: Settings) -> Any:
    from descend.recipes import RECIPES as KINDS

    return common.get("max_steps", KINDS[cell.recipe].training.max_steps)


def work(trial: Trial, data: Path, out: Path) -> dict[str, Any]:
    """The row of an arm: its trials, and the rate that the rule chooses."""
    rows = {row["name"]: row for row in read(out)}
    if trial.name in rows:
        return rows[trial.name]
    cell, common, trials = trial.cell, given(trial, data, out), []
    for factor in FACTORS:
        rate = float(f"{USUAL[cell.recipe] * factor:.2g}")
        folder = out / "runs" / f"{cell.recipe}-{cell.depth}_{cell.data}_{cell.gamma:g}_{trial.arm}_{factor:.2g}"
        trials.append(trained(cell.recipe, common | {"learning_rate": rate}, cell.judge, folder))
    row = {
        **{"name": trial.name, "task": cell.task, "recipe": cell.recipe, "data": cell.data, "regime": cell.regime},
        **{
            "depth": cell.depth,
            "gamma": cell.gamma,
            "arm": trial.arm,
            "trials": trials,
            "rate": chosen_rate(trial.arm, trials),
        },
    }
    with (out / ROWS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return row


def chosen_rate(arm: str, trials: list[dict[str, Any]]) -> float | None:
    """The rate of an arm's best trial, by the rule above; None if all diverged."""
    whole = [trial for trial in trials if trial["mean"] is not None]
    if not whole:
        return None
    constrained = (ARMS | MORE)[arm]["method"] == "constrained"
    sign = -1 if whole[0]["higher_is_better"] else 1
    return min(whole, key=lambda trial: (constrained and not trial["feasible"], sign * trial["mean"]))["rate"]


def read(out: Path) -> list[dict[str, Any]]:
    path = out / ROWS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def line(row: dict[str, Any]) -> str:
    """A row as one line of text."""
    words = [
        f"{trial['rate']:g}: diverged"
        if trial["mean"] is None
        else f"{trial['rate']:g}: {trial['mean']:.4g}{'' if trial['feasible'] else ', not feasible'}"
        for trial in row["trials"]
    ]
    return f"{row['name']}: {row['rate']} of {'; '.join(words)}"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and rows")
    parser.add_argument("--only", default="", help="only trials whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    options = parser.parse_args()
    if options.command == "table":
        print("\n".join(line(row) for row in read(options.out)))
        return
    if options.data is None:
        parser.error("run needs --data")
    data, out = options.data.absolute(), options.out.absolute()
    model = out / "models" / "stories260K"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        convert(data / "weights" / "stories260K", model)
    chosen = [trial for trial in wanted() if options.only.lower() in trial.name.lower()]
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(work, chosen, *([each] * len(chosen) for each in (data, out))):
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
