"""Compare plain training with the default when they fine-tune a small pretrained DistilBERT.

    python benchmarks/pretrained_encoder.py --data DATA --out FOLDER [--epochs 2]

The encoder is pretrained by masked-language training on IMDb's training texts. Plain training and the default, without
a constraint setting, then fine-tune it on their labels at the same two learning rates. The run with the best mean over
the noise levels on validation data is chosen; one that meets its constraints may be 1 % worse. Only that run is
evaluated on test data, and is a line of ``rows.jsonl``.
"""

import argparse
import contextlib
import io
import json
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    DistilBertConfig,
    DistilBertForMaskedLM,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from descend import run
from descend.cli.runs import evaluated
from descend.cli.settings import read_recipe
from descend.results import Summary
from descend.tasks.text import learn_tokenizer, read_imdb
from descend.training import preferred

LENGTH, RATES, LEVELS = 64, (3e-4, 1e-3), "0:4:1"
METHODS = ("erm", "constrained")


def pretrain(data: Path, out: Path, epochs: float) -> None:
    """Pretrain the encoder on the training texts, in chunks of `LENGTH` tokens."""
    set_seed(0)
    texts = list(read_imdb(str(data / "imdb"))["train"]["text"])
    tokenizer = learn_tokenizer(texts)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    chunks = chunked(tokenizer, texts)
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        dim=128,
        n_layers=4,
        n_heads=4,
        hidden_dim=512,
        max_position_embeddings=LENGTH,
        pad_token_id=tokenizer.pad_token_id,
    )
    args = TrainingArguments(
        output_dir=str(out / "pretraining"),
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        warmup_steps=0.1,
        lr_scheduler_type="linear",
        save_strategy="no",
        report_to="none",
        logging_steps=50,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        DistilBertForMaskedLM(config),
        args,
        train_dataset=chunks,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    )
    trainer.train()
    trainer.model.save_pretrained(out / "encoder")
    tokenizer.save_pretrained(out / "encoder")


def chunked(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Dataset:
    """Join all texts and cut them into pieces of the encoder's length."""
    tokens = list(chain.from_iterable(tokenizer(texts, add_special_tokens=False)["input_ids"]))
    inside = LENGTH - 2
    pieces = [tokens[start : start + inside] for start in range(0, len(tokens) - inside, inside)]
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    return Dataset.from_dict({"input_ids": [[start, *piece, end] for piece in pieces]})


def fine_tune(method: str, data: Path, out: Path) -> dict[str, Any]:
    """Fine-tune at every rate, choose a run on validation data and evaluate it on test data."""
    torch.set_num_threads(1)
    folders = [out / "runs" / f"{method}_{rate:g}" for rate in RATES]
    for rate, folder in zip(RATES, folders, strict=True):
        if not run.finished(folder):
            words = ["text-distilbert", "--model", str(out / "encoder"), "--data", str(data / "imdb")]
            words += ["--max-length", str(LENGTH), "--method", method, "--learning-rate", f"{rate:g}"]
            name, recipe, args, _ = read_recipe([*words, "--out", str(folder)])
            run.train(name, recipe, args)
    trials = [evaluate_silently(folder, "validation") for folder in folders]
    feasible = [method == "constrained" and trial.feasible for trial in trials]
    best = preferred([-trial.mean for trial in trials], feasible)  # the accuracy, so higher is better
    test = evaluate_silently(folders[best], "test").content()
    kept = ("feasible", "violated", "train_noise", "layer_losses", "layer_metrics", "mean")
    return {"method": method, "learning_rate": RATES[best], **{name: test[name] for name in kept}}


def evaluate_silently(folder: Path, split: str) -> Summary:
    """Evaluate a run at all noise levels, silently."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return evaluated([str(folder), "--split", split, "--noise", LEVELS])[1]


def main() -> None:
    """Parse the command line, pretrain if needed, and fine-tune by both methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the encoder and its runs")
    parser.add_argument("--epochs", type=float, default=2, help="epochs of masked-language training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, out = options.data.absolute(), options.out.absolute()
    if not (out / "encoder").is_dir():
        pretrain(data, out, options.epochs)
    rows = []
    for method in METHODS:
        rows.append(fine_tune(method, data, out))
        print(json.dumps(rows[-1]), flush=True)
    (out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
