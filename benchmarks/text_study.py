"""Text classification from scratch on IMDb and MNLI: ERM against constrained.

    python benchmarks/text_study.py tune  --data PATH --out DIR    settings, on the validation split
    python benchmarks/text_study.py study --data PATH --out DIR    the table, on the test split

PATH holds ``imdb``, ``mnli/glue_format`` and ``tokenizers/bert-base-uncased``. Every run is one ``descend train`` and
one ``descend evaluate``; runs that are done are not repeated.
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runs import accuracy_columns, carry_out

SEEDS = (0, 1, 2)
LEVELS = "0:4:0.5"
DATA = {
    "imdb": ("--dataset imdb --data {0}/imdb --max-length 128", "{0}/tokenizers/bert-base-uncased"),
    "mnli": ("--dataset mnli --data {0}/mnli/glue_format --max-length 64", "{0}/tokenizers/bert-base-uncased"),
}
SETTINGS = Path(__file__).with_name("text_settings.json")


def job(options: argparse.Namespace, recipe: str, kind: str, name: str, flags: str, seed: int, split: str) -> dict:
    """One run; ``name`` is erm or that of a constrained arm."""
    source, tokenizer = (each.format(options.data) for each in DATA[kind])
    method = "erm" if name.startswith("erm") else "constrained"
    train = [recipe, "--method", method, "--seed", str(seed), *source.split(), "--tokenizer", tokenizer, *flags.split()]
    judge = ["--noise", LEVELS, "--split", split] + (["--exit"] if split == "test" else [])
    folder = options.out / split / f"{recipe}-{kind}-{name}-{seed}-{flags}".replace(" ", "")
    return carry_out(train, judge, folder)


def row(summary: dict) -> str:
    at = summary["layer_losses"][str(summary["train_noise"])]
    return (
        f"AUC {summary['auc']:.3f}  clean {summary['values'][0]:.3f}  at γ {summary['train_value']:.3f}  "
        f"feasible {summary['feasible']}  share {summary['descending_share']:.2f}  losses "
        + " ".join(f"{loss:.3f}" for loss in at)
        + f"  λ {' '.join(f'{value:.2f}' for value in summary['multipliers'])}  {summary['seconds']:.0f} s"
    )


def tune(options: argparse.Namespace) -> None:
    candidates = json.loads(options.settings.read_text())["candidates"]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            (recipe, kind, name, flags, pool.submit(job, options, recipe, kind, name, flags, 0, "validation"))
            for recipe in options.recipes
            for kind in options.kinds
            for name, rows in candidates[recipe].get(kind, {}).items()
            for flags in rows
        ]
        for recipe, kind, name, flags, run in runs:
            print(f"{recipe} {kind} {name} {flags}: {row(run.result())}", flush=True)


def study(options: argparse.Namespace) -> None:
    chosen = json.loads(options.settings.read_text())["chosen"]
    with ThreadPoolExecutor(options.jobs) as pool:
        arms = {
            (recipe, kind, name): [pool.submit(job, options, recipe, kind, name, flags, seed, "test") for seed in SEEDS]
            for recipe in options.recipes
            for kind in options.kinds
            for name, flags in chosen[recipe][kind].items()
        }
        print("| model | data | method | AUC | clean | at training γ | at γ = 4 | feasible | descending | seconds |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for (_, kind, name), runs in arms.items():
            found = [run.result() for run in runs]
            columns = [
                *accuracy_columns(found),
                f"{sum(each['feasible'] for each in found)}/{len(found)}",
                f"{100 * statistics.mean(each['descending_share'] for each in found):.1f} %",
                f"{statistics.mean(each['seconds'] for each in found):.0f}",
            ]
            print(f"| {found[0]['model']} | {kind} | {name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("tune", "study"))
    parser.add_argument("--data", type=Path, required=True, help="the folder of all data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--recipes", nargs="+", default=["text-distilbert", "text-ut"])
    parser.add_argument("--kinds", nargs="+", default=list(DATA))
    parser.add_argument("--settings", type=Path, default=SETTINGS)
    parser.add_argument("--jobs", type=int, default=2)
    {"tune": tune, "study": study}[(parsed := parser.parse_args()).stage](parsed)
