"""Descend beside plmsommelier 1.0.0: which layer of a frozen encoder, on 1,500 texts, and how often each is wrong.

    pip install plmsommelier==1.0.0
    python benchmarks/layer_pickers.py MODEL IMDB --out ROWS.jsonl [--splits 20]

Each split draws 1,500 of IMDb's texts, cut to their first 90 words, so that both tools read the same tokens. All other
texts are held out: there each tool's readouts of all layers are scored. A split that stands in ROWS.jsonl is not run
again; the table of reproduction/records/layer_pickers.md is printed from that file.

plmsommelier takes a BERT for one of proteins and puts a blank between all letters. Here it does not.
"""

import argparse
import csv
import json
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from plmsommelier import embed_layers, load_dataset, load_model, select_layer
from plmsommelier.select import fit_predict, score
from transformers import AutoModel, AutoTokenizer

from descend import Run

TEXTS, WORDS, TOKENS = 1500, 90, 128
TOLERANCE = 0.02
"""Of plmsommelier: how far below the peak a layer may lie, as a share of it."""


def reviews(folder: Path) -> tuple[list[str], np.ndarray]:
    """IMDb's texts, cut to their first words, and their classes."""
    files = sorted(folder.glob("t*/[np]*/*.txt"))
    words = (file.read_text(encoding="utf-8").replace("<br />", " ").split() for file in files)
    by_text = {" ".join(text[:WORDS]): int(file.parent.name == "pos") for text, file in zip(words, files, strict=True)}
    return list(by_text), np.array(list(by_text.values()))


@torch.no_grad()
def mean_pooled(model: str, texts: list[str]) -> torch.Tensor:
    """The mean over tokens of every layer's states, (L+1, N, H), by Transformers alone."""
    network, tokenizer = (
        AutoModel.from_pretrained(model, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(model),
    )
    pooled = []
    for first in range(0, len(texts), 32):
        batch = tokenizer(
            texts[first : first + 32], truncation=True, max_length=TOKENS, padding=True, return_tensors="pt"
        )
        mask = batch["attention_mask"][None, :, :, None]
        states = torch.stack(network(**batch, output_hidden_states=True).hidden_states)
        pooled.append((states * mask).sum(2) / mask.sum(2))
    return torch.cat(pooled, 1)


def ours(model: str, file: Path, held: list[int], states: torch.Tensor, classes: np.ndarray) -> dict:
    """What `descend layers` chooses and certifies, and the accuracy of its readouts on texts that it never saw."""
    began = time.perf_counter()
    run = Run.frozen(model, str(file))
    summary = run.evaluate()
    seconds = time.perf_counter() - began
    needed, heads = summary.layers_needed, [run.model.part("score", layer) for layer in range(len(states))]
    accuracy = [
        float((head(layer[held]).argmax(-1).numpy() == classes[held]).mean())
        for head, layer in zip(heads, states, strict=True)
    ]
    return {
        "tool": "descend",
        "top": needed.top,
        "pick": needed.chosen[2].layer,
        "certified": {str(points): layer for points, layer in needed.within.items()},
        "held": accuracy,
        "test": summary.layer_metrics[0.0],
        "seconds": seconds,
    }


def theirs(plm, file: Path, probe: str, held: list[int], place: dict[str, int], features, classes) -> dict:
    """What plmsommelier picks and how sure it is, and the score of its probes on texts that it never saw."""
    data = load_dataset(file, task="classification", label_col="label", sample=TEXTS, max_seq_len=None)
    train, validation = ([place[text] for text in part] for part in (data.train_seqs, data.val_seqs))
    found = select_layer(data, features[:, train], features[:, validation], model_name="", probe=probe)
    scores = []
    for layer in features.astype(np.float32):
        answers = fit_predict(
            layer[train], data.train_y, layer[held], classes[held], task="classification", probe=probe
        )
        scores.append(score(answers, classes[held], "classification"))
    return {"tool": f"plmsommelier, {probe}", "pick": found.best_layer, "confidence": found.confidence, "held": scores}


def table(rows: list[dict]) -> None:
    """How often each is sure, how often that is wrong, and what its picks lose."""
    for tool in dict.fromkeys(row["tool"] for row in rows):
        own = [row for row in rows if row["tool"] == tool]
        print(tool)
        for points in ("1", "2", "5") if tool == "descend" else ():
            layers = [row["certified"].get(points) for row in own]
            sure = [
                (row["held"], row["top"], layer) for row, layer in zip(own, layers, strict=True) if layer is not None
            ]
            fewer = sum(layer < top for _, top, layer in sure)
            wrong = sum(held[top] - held[layer] > int(points) / 100 for held, top, layer in sure)
            print(f"  certified within {points} points: {layers}; fewer layers in {fewer}; wrong: {wrong}")
        for level in ("high", "moderate", "low") if tool != "descend" else ():
            said = [row for row in own if row["confidence"] == level]
            wrong = sum(row["held"][row["pick"]] < (1 - TOLERANCE) * max(row["held"]) for row in said)
            print(f"  {level} confidence: {len(said)} of {len(own)}; wrong: {wrong}")
        lost = [1 - row["held"][row["pick"]] / max(row["held"]) for row in own]
        print(f"  picks: {[row['pick'] for row in own]}")
        print(f"  below the best held-out score by {np.mean(lost):.1%} of it in the mean, at most {max(lost):.1%}")


def main() -> None:
    """Run the splits that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("imdb", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=20)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    missing = sorted({*range(options.splits)} - {row["split"] for row in rows})
    if missing:
        texts, classes = reviews(options.imdb)
        place = {text: number for number, text in enumerate(texts)}
        states = mean_pooled(options.model, texts)
        plm = load_model(options.model)
        plm.quirks = {}
        features = embed_layers(plm, texts)
    for split in missing:
        order = random.Random(split).sample(range(len(texts)), len(texts))
        drawn, held = order[:TEXTS], order[TEXTS:]
        with TemporaryDirectory() as folder:
            files = [Path(folder, f"{column}.csv") for column in ("text", "sequence")]
            for file in files:
                with file.open("w", newline="", encoding="utf-8") as handle:
                    named = ((texts[each], ("neg", "pos")[classes[each]]) for each in drawn)
                    csv.writer(handle).writerows([(file.stem, "label"), *named])
            found = [ours(options.model, files[0], held, states, classes)]
            found += [theirs(plm, files[1], probe, held, place, features, classes) for probe in ("knn", "lr")]
        rows += [{"split": split, **row} for row in found]
        with options.out.open("a") as handle:
            handle.writelines(json.dumps(row) + "\n" for row in rows[-len(found) :])
        print(f"split {split} done", flush=True)
    table(rows)


if __name__ == "__main__":
    main()
