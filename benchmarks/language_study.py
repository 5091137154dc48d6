"""Instruction tuning of a small pretrained model: ERM against constrained, exact and sampled, adapters, packed texts.

    python examples/convert_llama2c.py FOLDER MODEL      a llama2.c checkpoint, such as stories260K
    python benchmarks/language_study.py tune  --model MODEL --data alpaca_data.json --out DIR    on the validation split
    python benchmarks/language_study.py study --model MODEL --data alpaca_data.json --out DIR    on the test split

Every run is one ``descend train`` and one ``descend evaluate``; runs that are done are not repeated.
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runs import accuracy_columns, carry_out, spread

SEEDS = (0, 1, 2)
LEVELS = "0:4:0.5"
SETTINGS = Path(__file__).with_name("language_settings.json")


def job(options: argparse.Namespace, name: str, flags: str, seed: int, split: str) -> dict:
    """One run; ``name`` is erm or that of a constrained arm."""
    method = "erm" if name.startswith("erm") else "constrained"
    train = ["llm-sft", "--method", method, "--seed", str(seed), "--model", str(options.model), "--data", options.data]
    judge = ["--noise", LEVELS, "--split", split] + (["--exit"] if split == "test" and not seed else [])
    folder = options.out / split / f"{name}-{seed}-{flags}".replace(" ", "").replace("/", "")
    return carry_out([*train, *flags.split()], judge, folder)


def row(summary: dict) -> str:
    at = summary["layer_losses"][str(summary["train_noise"])]
    return (
        f"AUC {summary['auc']:.3f}  values {' '.join(f'{value:.3f}' for value in summary['values'])}  "
        f"feasible {summary['feasible']} {summary['violated']}  losses {' '.join(f'{loss:.2f}' for loss in at)}  "
        f"λ {' '.join(f'{value:.2f}' for value in summary['multipliers'])}  {summary['seconds']:.0f} s"
    )


def tune(options: argparse.Namespace) -> None:
    candidates = json.loads(options.settings.read_text())["candidates"]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            (name, flags, pool.submit(job, options, name, flags, 0, "validation"))
            for name, rows in candidates.items()
            for flags in rows
        ]
        for name, flags, run in runs:
            print(f"{name} {flags}: {row(run.result())}", flush=True)


def study(options: argparse.Namespace) -> None:
    settings = json.loads(options.settings.read_text())
    with ThreadPoolExecutor(options.jobs) as pool:
        arms = {
            name: [pool.submit(job, options, name, flags, seed, "test") for seed in seeds]
            for part, seeds in (("chosen", SEEDS), ("once", SEEDS[:1]))
            for name, flags in settings[part].items()
        }
        print("| method | AUC | clean | at γ = 1.5 | at γ = 4 | worst violation | feasible | loss by layer | seconds |")
        print("|---|---|---|---|---|---|---|---|---|")
        for name, runs in arms.items():
            found = [run.result() for run in runs]
            layers = zip(*(each["layer_losses"][str(each["train_noise"])] for each in found), strict=True)
            columns = [
                *accuracy_columns(found),
                spread([max(each["violations"]) for each in found], 3),
                f"{sum(each['feasible'] for each in found)}/{len(found)}",
                " ".join(f"{statistics.mean(each):.2f}" for each in layers),
                f"{statistics.mean(each['seconds'] for each in found):.0f}",
            ]
            print(f"| {name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("tune", "study"))
    parser.add_argument("--model", type=Path, required=True, help="a pretrained model's folder")
    parser.add_argument("--data", required=True, help="instructions in Alpaca's form")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--settings", type=Path, default=SETTINGS)
    parser.add_argument("--jobs", type=int, default=2)
    {"tune": tune, "study": study}[(parsed := parser.parse_args()).stage](parsed)
