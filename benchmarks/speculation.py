"""Measure drafting by the first layers of trained language models: acceptance and tokens per second by K.

    python benchmarks/speculation.py RUN [RUN ...] --layers 6,12,18,24

RUN is a folder of ``descend train lm`` or ``llm-sft``. Test prompts are answered greedily: by the whole model, by the
first K layers as ``descend export`` cuts them, by ``generate(assistant_model=...)`` with these, and where all layers
are read by the last one's readout by ``generate(assistant_early_exit=K)``. It stops if an assisted answer differs from
greedy decoding's. Speed is in tokens per second of CPU time, so that other work on the machine matters less. Prints a
table.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers.utils import logging

from descend.models.first_layers import keep_first
from descend.recipes import RECIPES
from descend.results import read_config
from descend.run.early import agreements
from descend.tasks.splits import evenly
from descend.tasks.text.language import IGNORED


def answers(model: Any, asked: list[torch.Tensor], tokens: int, **how: Any) -> tuple[list[torch.Tensor], float]:
    """Greedy answers, with their prompts, and the new tokens per second of CPU time."""
    settings = {"max_new_tokens": tokens, "do_sample": False, **how}
    model.generate(asked[0], **settings)  # warm
    began = time.process_time()
    written = [model.generate(ids, attention_mask=torch.ones_like(ids), **settings) for ids in asked]
    seconds = time.process_time() - began
    return written, sum(each.shape[1] - ids.shape[1] for each, ids in zip(written, asked, strict=True)) / seconds


@torch.no_grad()
def measure(run: Path, every: list[int], count: int, tokens: int) -> list[dict[str, Any]]:
    """One row for each K."""
    config = read_config(run)
    recipe: Any = RECIPES[config.recipe].kind(**config.settings)  # type: ignore[arg-type]

    def restored() -> Any:
        return recipe.restore(str(run / "model"))

    model, tokenizer = restored()
    model, test = model.eval(), recipe.load(model, tokenizer).test
    asked = []
    for sample in (test[place] for place in evenly(len(test), count)):
        start = next(place for place, label in enumerate(sample["labels"]) if label != IGNORED)
        asked.append(torch.tensor([sample["input_ids"][:start]]))
    greedy, full = answers(model.saved, asked, tokens)
    agreed = torch.stack([agreements(model, *each) for each in zip(greedy, asked, strict=True)]).sum(0)
    written = sum(each.shape[1] - ids.shape[1] for each, ids in zip(greedy, asked, strict=True))
    rows = []
    for layers in every:
        draft = restored()[0].eval()
        keep_first(draft, layers)
        row: dict[str, Any] = {
            "run": run.name,
            "K": layers,
            "acceptance": round(float(agreed[layers - 1]) / written, 3),
            "tokens/s, whole model": round(full, 1),
            "first K alone": round(answers(draft.saved, asked, tokens)[1], 1),
        }
        ways = {"assistant_model": draft.saved, "assistant_early_exit": layers}
        if model.own_exits is not None:
            del ways["assistant_early_exit"]  # Transformers drafts with the last layer's readout
        for name, value in ways.items():
            assisted, speed = answers(model.saved, asked, tokens, **{name: value})
            if not all(map(torch.equal, assisted, greedy)):
                raise SystemExit(f"{run}, {name} with K = {layers}: an answer differs from greedy decoding's")
            row[name] = round(speed, 1)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of trained runs")
    parser.add_argument("--layers", required=True, help="every K to time, such as 6,12,18,24")
    parser.add_argument("--prompts", type=int, default=8, help="test prompts to answer (default: 8)")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer (default: 48)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    every = [int(each) for each in options.layers.split(",")]
    rows = [row for run in options.runs for row in measure(run, every, options.prompts, options.tokens)]
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
