"""Measure speculative decoding with exported first layers: acceptance and tokens per second by K, for both methods.

    python benchmarks/speculation.py --data alpaca_data.json --out FOLDER [--steps 300] [--prompts 8] [--tokens 48]

Trains a small Llama on instructions with plain training and with the default constraints, for equally many steps.
For every K it exports the first K layers and answers test prompts greedily: by the whole model, by
``generate(assistant_model=...)`` with the export, and by ``generate(assistant_early_exit=K)``. It stops if an answer
differs from greedy decoding's. Speed is in tokens per second of CPU time, so that other work on the machine matters
less. Prints a Markdown table and writes ``speculation.csv`` in the output folder.
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
from descend.recipes import RECIPES
from descend.records.schema import read_config
from descend.run import export, finished
from descend.tasks.text.language import IGNORED

METHODS = ("erm", "constrained")
MODEL = ["--depth", "8", "--hidden-size", "256", "--max-length", "96", "--noise", "0", "--seed", "0", "--use-cpu"]


def train(method: str, data: Path, out: Path, steps: int) -> None:
    """Train a run, or go on with one that was interrupted."""
    if finished(out):
        return
    half = str(max(1, steps // 2))
    often = ["--max-steps", str(steps), "--eval-strategy", "steps", "--eval-steps", half]
    often += ["--save-strategy", "steps", "--save-steps", half]
    words = ["train", "llm-sft", "--data", str(data), *MODEL, *often, "--method", method, "--out", str(out)]
    if descend([*words, *(["--resume"] if out.exists() else [])]):
        raise SystemExit(f"{out}: training failed")


def prompts(run: Path, count: int) -> list[torch.Tensor]:
    """Test prompts, evenly chosen, each (1, T)."""
    recipe = RECIPES["llm-sft"](**read_config(run).settings)  # type: ignore[arg-type]
    rows = recipe.load(recipe.restore(str(run / "model"))).test
    asked = []
    for place in evenly(len(rows), count):  # type: ignore[arg-type]
        ids, labels = rows[place]["input_ids"], rows[place]["labels"]
        start = next(place for place, label in enumerate(labels) if label != IGNORED)
        asked.append(torch.tensor([ids[:start]]))
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
def measure(run: Path, out: Path, count: int, tokens: int) -> list[dict[str, Any]]:
    """One row for each K."""
    whole = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    asked = prompts(run, count)
    greedy, full = answers(whole, asked, tokens)
    agreed = sum(agreements(LayeredCausalLM(whole), *each) for each in zip(greedy, asked, strict=True))
    written = sum(each.shape[1] - ids.shape[1] for each, ids in zip(greedy, asked, strict=True))
    rows = []
    for layers in range(1, whole.config.num_hidden_layers):
        folder = out / f"{run.name}-{layers}"
        if not folder.exists():
            export(run, layers, folder)
        draft = AutoModelForCausalLM.from_pretrained(folder).eval()
        by_copy, copy_speed = answers(whole, asked, tokens, assistant_model=draft)
        by_exit, exit_speed = answers(whole, asked, tokens, assistant_early_exit=layers)
        same(by_copy, greedy, f"{folder} as assistant_model")
        same(by_exit, greedy, f"assistant_early_exit={layers}")
        rows.append(
            {
                "method": run.name,
                "layers": layers,
                "acceptance": round(float(agreed[layers - 1]) / written, 4),
                "draft_speed": round(answers(draft, asked, tokens)[1], 1),
                "full_speed": round(full, 1),
                "assistant_model": round(copy_speed / full, 3),
                "assistant_early_exit": round(exit_speed / full, 3),
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="instructions in Alpaca's form")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, the exports and the table")
    parser.add_argument("--steps", type=int, default=300, help="training steps of each method (default: 300)")
    parser.add_argument("--prompts", type=int, default=8, help="test prompts to answer (default: 8)")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer (default: 48)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    rows = []
    for method in METHODS:
        train(method, options.data, options.out / method, options.steps)
        rows += measure(options.out / method, options.out, options.prompts, options.tokens)
    with (options.out / "speculation.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(map(str, row.values()))} |")


if __name__ == "__main__":
    main()
