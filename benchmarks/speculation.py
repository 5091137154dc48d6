"""Measure drafting by the first layers: acceptance and tokens per second by K, for plain and constrained training.

    python benchmarks/speculation.py --data alpaca_data.json --out FOLDER [--steps 300] [--at STEP]

Trains a small Llama on instructions with plain training and with the default constraints, for equally many steps.
Answers test prompts greedily: by the whole model, by the first K layers as ``descend export`` cuts them, by
``generate(assistant_model=...)`` with these, and by ``generate(assistant_early_exit=K)``. It stops if an assisted
answer differs from greedy decoding's. Speed is in tokens per second of CPU time, so that other work on the machine
matters less. ``--at`` measures a checkpoint in place of the final model. Prints a Markdown table and writes
``speculation.csv`` in the output folder.
"""

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from descend.cli import main as descend
from descend.evaluation.layers import evenly
from descend.evaluation.speculation import agreements
from descend.models import LayeredCausalLM
from descend.models.first_layers import keep_first
from descend.recipes import RECIPES
from descend.results import read_config
from descend.run import finished
from descend.tasks.text.language import IGNORED

METHODS = ("erm", "constrained")
MODEL = ["--depth", "8", "--hidden-size", "256", "--max-length", "96", "--noise", "0", "--seed", "0", "--use-cpu"]


def train(method: str, data: Path, out: Path, steps: int, place: str) -> None:
    """Train a run, or go on with one that was interrupted, unless it has the model to measure."""
    if finished(out) if place == "model" else (out / place).is_dir():
        return
    half = str(max(1, steps // 2))
    often = ["--max-steps", str(steps), "--eval-strategy", "steps", "--eval-steps", half]
    often += ["--save-strategy", "steps", "--save-steps", half]
    words = ["train", "llm-sft", "--data", str(data), *MODEL, *often, "--method", method, "--out", str(out)]
    if descend([*words, *(["--resume"] if out.exists() else [])]):
        raise SystemExit(f"{out}: training failed")


def prompts(run: Path, place: str, count: int) -> list[torch.Tensor]:
    """Test prompts, evenly chosen, each (1, T)."""
    recipe = RECIPES["llm-sft"](**read_config(run).settings)  # type: ignore[arg-type]
    rows: Any = recipe.load(recipe.restore(str(run / place))).test
    asked = []
    for row in (rows[index] for index in evenly(len(rows), count)):
        start = next(index for index, label in enumerate(row["labels"]) if label != IGNORED)
        asked.append(torch.tensor([row["input_ids"][:start]]))
    return asked


def answers(model: Any, asked: list[torch.Tensor], tokens: int, **how: Any) -> tuple[list[torch.Tensor], float]:
    """Greedy answers, with their prompts, and the new tokens per second of CPU time."""
    settings = {"max_new_tokens": tokens, "do_sample": False, **how}
    model.generate(asked[0], **settings)  # warm
    began = time.process_time()
    written = [model.generate(ids, attention_mask=torch.ones_like(ids), **settings) for ids in asked]
    seconds = time.process_time() - began
    return written, sum(each.shape[1] - ids.shape[1] for each, ids in zip(written, asked, strict=True)) / seconds


def same(ours: list[torch.Tensor], greedy: list[torch.Tensor], how: str) -> None:
    """Stop if an answer differs from greedy decoding's."""
    if not all(map(torch.equal, ours, greedy)):
        raise SystemExit(f"{how}: an answer differs from greedy decoding's")


@torch.no_grad()
def measure(run: Path, place: str, every: list[int], count: int, tokens: int) -> list[dict[str, Any]]:
    """One row for each K."""
    whole = AutoModelForCausalLM.from_pretrained(run / place).eval()
    asked = prompts(run, place, count)
    greedy, full = answers(whole, asked, tokens)
    agreed = sum(agreements(LayeredCausalLM(whole), *each) for each in zip(greedy, asked, strict=True))
    written = sum(each.shape[1] - ids.shape[1] for each, ids in zip(greedy, asked, strict=True))
    rows = []
    for layers in every:
        draft = AutoModelForCausalLM.from_pretrained(run / place).eval()
        keep_first(LayeredCausalLM(draft), layers)
        by_copy, copy_speed = answers(whole, asked, tokens, assistant_model=draft)
        by_exit, exit_speed = answers(whole, asked, tokens, assistant_early_exit=layers)
        same(by_copy, greedy, f"{run}: assistant_model with K = {layers}")
        same(by_exit, greedy, f"{run}: assistant_early_exit={layers}")
        row = {
            "method": run.name,
            "K": layers,
            "acceptance": round(float(agreed[layers - 1]) / written, 3),
            "tokens/s, whole model": round(full, 1),
            "tokens/s, first K alone": round(answers(draft, asked, tokens)[1], 1),
            "tokens/s, assistant_model": round(copy_speed, 1),
            "tokens/s, assistant_early_exit": round(exit_speed, 1),
        }
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="instructions in Alpaca's form")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, the exports and the table")
    parser.add_argument("--steps", type=int, default=300, help="training steps of each method (default: 300)")
    parser.add_argument("--prompts", type=int, default=8, help="test prompts to answer (default: 8)")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer (default: 48)")
    parser.add_argument("--layers", default="1,2,3,4,5,6,7", help="every K to time (default: 1 to 7)")
    parser.add_argument("--at", type=int, metavar="STEP", help="measure this checkpoint, at half or all of the steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    rows = []
    place = "model" if options.at is None else f"checkpoint-{options.at}"
    every = [int(each) for each in options.layers.split(",")]
    for method in METHODS:
        train(method, options.data, options.out / method, options.steps, place)
        rows += measure(options.out / method, place, every, options.prompts, options.tokens)
    with (options.out / "speculation.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(map(str, row.values()))} |")


if __name__ == "__main__":
    main()
